use crate::answer::{self, ReplyHead};
#[cfg(feature = "translated")]
use crate::connection::dialect_of;
use crate::connection::{Front, serve};
use crate::reply::ReplyBody;
use crate::session::{Access, Session, lock};
use bytes::Bytes;
use http::header::{HOST, ORIGIN};
use http::{HeaderMap, Request, Response, StatusCode};
use hyper::body::Incoming;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// The names by which a listener may be called, so that a web page that has its own name lead to it (DNS rebinding)
/// cannot use it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AllowedHosts {
    /// Loopback names and these, without ports.
    Named(Vec<String>),
    /// Any name: the operator opened the listener to a network.
    Any,
}

/// What `/healthz` says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// All is well.
    Ok,
    /// It works, but not all of it.
    Degraded(String),
}

type HealthCheck = Box<dyn Fn() -> Health + Send + Sync>;

/// A TCP listener through which agents reach their sessions: for sandboxes that can route to it, and for `proxy`.
pub struct Gateway {
    listener: TcpListener,
    address: SocketAddr,
    front: Arc<Directory>,
    connections: TaskTracker,
}

struct Directory {
    hosts: AllowedHosts,
    sessions: Mutex<Vec<Weak<Session>>>,
    health: HealthCheck,
}

impl Gateway {
    /// Listens. Port 0 takes a free one.
    ///
    /// # Errors
    /// The address cannot be listened on.
    pub async fn bind(
        address: SocketAddr,
        hosts: AllowedHosts,
        health: impl Fn() -> Health + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        let front = Directory {
            hosts,
            sessions: Mutex::default(),
            health: Box::new(health),
        };
        Ok(Self {
            listener,
            address,
            front: Arc::new(front),
            connections: TaskTracker::new(),
        })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Lets a session's agent in for as long as the session lives. A request is for the session whose token it has.
    pub fn admit(&self, session: &Arc<Session>) {
        let mut sessions = lock(&self.front.sessions);
        sessions.retain(|session| session.strong_count() > 0);
        sessions.push(Arc::downgrade(session));
    }

    /// Serves until `stop` is cancelled, and then until the requests under way are answered.
    pub async fn serve(&self, stop: CancellationToken) {
        loop {
            let accepted = tokio::select! {
                biased;
                () = stop.cancelled() => break,
                accepted = self.listener.accept() => accepted,
            };
            match accepted {
                Ok((socket, _)) => {
                    // Events are small and must not wait for each other.
                    let _ = socket.set_nodelay(true);
                    self.connections
                        .spawn(serve(Arc::clone(&self.front), socket, stop.clone()));
                }
                // Out of descriptors: those in use become free, and this connection waits in the kernel.
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        }
        self.connections.close();
        self.connections.wait().await;
    }
}

impl Front for Directory {
    fn session(&self, request: &Request<Incoming>) -> Result<Arc<Session>, Box<Response<ReplyBody>>> {
        let headers = request.headers();
        let called = request.uri().authority().map(http::uri::Authority::as_str);
        let host = called
            .or_else(|| headers.get(HOST)?.to_str().ok())
            .unwrap_or_default();
        if !self.hosts.allow(host) {
            let message = format!("this server does not answer to the host name {host:?}");
            return Err(Box::new(answer::plain(StatusCode::MISDIRECTED_REQUEST, &message)));
        }
        if !self.hosts.allow_origin(headers) {
            let message = "requests of web pages are not answered here";
            return Err(Box::new(answer::plain(StatusCode::FORBIDDEN, message)));
        }
        if request.uri().path() == "/healthz" {
            return Err(Box::new(self.health()));
        }
        let given = answer::credential(headers);
        let sessions = lock(&self.sessions);
        let found = sessions
            .iter()
            .filter_map(Weak::upgrade)
            .find(|session| match session.config.access {
                Access::Anyone => true,
                Access::Token => given.is_some_and(|given| session.is_token(given.trim_ascii())),
            });
        found.ok_or_else(|| {
            #[cfg(feature = "translated")]
            let dialect = dialect_of(request);
            #[cfg(not(feature = "translated"))]
            let dialect = None;
            Box::new(answer::unauthorised(dialect))
        })
    }
}

impl Directory {
    fn health(&self) -> Response<ReplyBody> {
        let body = match (self.health)() {
            Health::Ok => Bytes::from_static(br#"{"status":"ok"}"#),
            Health::Degraded(reason) => serde_json::json!({"status": "degraded", "reason": reason})
                .to_string()
                .into(),
        };
        ReplyHead::json(StatusCode::OK).respond(ReplyBody::Local(Some(body)))
    }
}

impl AllowedHosts {
    fn allow(&self, host: &str) -> bool {
        let Self::Named(named) = self else {
            return true;
        };
        let name = without_port(host);
        let loopback = ["localhost", "127.0.0.1", "[::1]"];
        loopback.iter().any(|allowed| name.eq_ignore_ascii_case(allowed))
            || named.iter().any(|allowed| name.eq_ignore_ascii_case(allowed))
    }

    /// Browsers say where a page that asks is from; agents say nothing.
    fn allow_origin(&self, headers: &HeaderMap) -> bool {
        let Some(origin) = headers.get(ORIGIN) else {
            return true;
        };
        let host = origin.to_str().ok().and_then(|origin| origin.split_once("://"));
        host.is_some_and(|(_, host)| self.allow(host))
    }
}

fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|digit| digit.is_ascii_digit()) && !name.is_empty() => name,
        _ => host,
    }
}
