//! The way out of a sandbox that may reach some hosts only: an HTTP proxy on the host, over a channel of a relay.
//!
//! The sandbox has no other way out. It asks for a host (`CONNECT HOST:PORT`, or a request with a whole `http://` URL); the host
//! is looked for in the list of the task, its name resolved here, every address checked, and the connection made to an address
//! that was checked: what a name leads to when it is asked for again matters to nobody. Addresses that are not public are reached
//! only where the list has that very address.
//!
//! What is said inside a `CONNECT` is not looked at: who is allowed a host of a content network can reach others of that network
//! by way of it.

/// From names to addresses.
mod names;

/// What a request is for, and what is passed on of it.
mod asked;

/// Bytes on their way, counted and bounded.
mod passing;

/// What was refused.
mod refusals;

pub use names::{Names, SystemNames};
pub use refusals::Refusals;

use crate::address::{AddressPolicy, RefusedAddress};
use crate::channel::{ChannelEnd, serve_streams};
use bytes::Bytes;
use dressage_wire::ids::RolloutId;
use dressage_wire::task::{AllowedHost, Host, Target};
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{Either, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use passing::{Passed, Passing};
use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, mpsc};
use tokio_util::sync::CancellationToken;

/// A request head is larger than this never.
const HEAD_BYTES: usize = 64 << 10;

/// What is read ahead and written behind on one connection.
const BUFFER_BYTES: usize = 128 << 10;

/// Without a whole request head for so long, a connection is closed.
const IDLE: Duration = Duration::from_secs(60);

/// How long it may take until a connection to a host is there, its name resolved.
const CONNECTING: Duration = Duration::from_secs(20);

/// How long one of several addresses of a host may take.
const ONE_ADDRESS: Duration = Duration::from_secs(5);

/// Names that are resolved at once. A look-up goes on when nobody waits for it any more, on a thread that others need too.
const LOOKUPS: usize = 16;

/// What a rollout may move through its way out, in both directions together.
const MOST_BYTES: u64 = 64 << 30;

/// How many of the allowed hosts are named to who asks for another.
const NAMED: usize = 20;

/// The way out of one rollout's sandboxes.
pub struct Egress {
    rollout: RolloutId,
    allowed: Vec<AllowedHost>,
    names: Arc<dyn Names>,
    lookups: Arc<Semaphore>,
    moved_bytes: Arc<AtomicU64>,
    passed: AtomicU64,
    refusals: Mutex<Refusals>,
}

type Reply = Response<Either<Full<Bytes>, Passed>>;

/// A `CONNECT` that was answered: what the client's side becomes, and the host's.
type Tunnel = (hyper::upgrade::OnUpgrade, TcpStream);

/// Why there is no connection to a host.
#[derive(Debug, thiserror::Error)]
enum NoConnection {
    #[error("it was not found: {0}")]
    NotFound(io::Error),
    #[error("it is refused: {0}")]
    Refused(RefusedAddress),
    #[error("it cannot be reached: {0}")]
    Unreachable(io::Error),
}

impl Egress {
    /// A way out to the hosts that are allowed.
    #[must_use]
    pub fn new(rollout: RolloutId, allowed: Vec<AllowedHost>) -> Self {
        Self::resolving(rollout, allowed, Arc::new(SystemNames))
    }

    /// As [`Egress::new`], with names that `names` resolves.
    #[must_use]
    pub fn resolving(rollout: RolloutId, allowed: Vec<AllowedHost>, names: Arc<dyn Names>) -> Self {
        Self {
            rollout,
            allowed,
            names,
            lookups: Arc::new(Semaphore::new(LOOKUPS)),
            moved_bytes: Arc::default(),
            passed: AtomicU64::new(0),
            refusals: Mutex::default(),
        }
    }

    /// How many connections and requests were let through so far.
    #[must_use]
    pub fn passed(&self) -> u64 {
        self.passed.load(Ordering::Relaxed)
    }

    /// How many bytes were moved so far, in both directions together.
    #[must_use]
    pub fn moved_bytes(&self) -> u64 {
        self.moved_bytes.load(Ordering::Relaxed)
    }

    /// What was refused so far.
    #[must_use]
    pub fn refusals(&self) -> Refusals {
        self.refusals
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Serves the host's end of a relay's channel: each stream is a connection to this proxy. All that arrives is
    /// untrusted. When this returns, or is dropped, the connections are over.
    pub async fn serve_channel<I>(self: Arc<Self>, io: I, cancel: CancellationToken) -> ChannelEnd
    where
        I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let rollout = self.rollout;
        serve_streams(io, cancel, rollout, move |stream| {
            Arc::clone(&self).serve_connection(stream)
        })
        .await
    }

    /// Serves one connection.
    pub async fn serve_connection<I>(self: Arc<Self>, io: I)
    where
        I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (tunnels, mut tunnelled) = mpsc::channel::<Tunnel>(1);
        let egress = Arc::clone(&self);
        let service = service_fn(move |request| {
            let (egress, tunnels) = (Arc::clone(&egress), tunnels.clone());
            async move { Ok::<_, Infallible>(egress.answer(request, &tunnels).await) }
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(IDLE)
            .max_header_size(HEAD_BYTES)
            .max_buf_size(BUFFER_BYTES)
            .serve_connection(TokioIo::new(io), service)
            .with_upgrades();
        if let Err(error) = connection.await {
            tracing::debug!(%error, "connection to the way out ended");
        }
        // Here and not in a task of its own: what ends this ends the tunnel.
        if let Ok((upgrade, stream)) = tunnelled.try_recv()
            && let Ok(upgraded) = upgrade.await
        {
            self.passing().tunnel(TokioIo::new(upgraded), stream).await;
        }
    }

    fn passing(&self) -> Passing {
        Passing::new(Arc::clone(&self.moved_bytes), MOST_BYTES)
    }

    async fn answer(&self, mut request: Request<Incoming>, tunnels: &mpsc::Sender<Tunnel>) -> Reply {
        let is_connect = request.method() == Method::CONNECT;
        let target = match asked::target(request.uri(), is_connect) {
            Ok(target) => target,
            Err(complaint) => return said(StatusCode::BAD_REQUEST, complaint),
        };
        let stream = match self.reach(&target).await {
            Ok(stream) => stream,
            Err(reply) => return *reply,
        };
        if is_connect {
            let upgrade = hyper::upgrade::on(&mut request);
            return match tunnels.try_send((upgrade, stream)) {
                Ok(()) => Response::new(Either::Left(Full::default())),
                Err(_) => said(
                    StatusCode::BAD_REQUEST,
                    "a connection becomes a tunnel once".into(),
                ),
            };
        }
        if let Err(complaint) = asked::rewrite(&mut request, &target) {
            return said(StatusCode::BAD_REQUEST, complaint);
        }
        match self.passing().send(request, stream).await {
            Ok(response) if response.status() == StatusCode::SWITCHING_PROTOCOLS => said(
                StatusCode::BAD_GATEWAY,
                format!("`{target}` spoke of another protocol"),
            ),
            Ok(mut response) => {
                asked::remove_hops(response.headers_mut());
                response.map(Either::Right)
            }
            Err(error) => said(
                StatusCode::BAD_GATEWAY,
                format!("`{target}` did not answer: {error}"),
            ),
        }
    }

    /// A connection to a host that is allowed, or the answer where it is not.
    async fn reach(&self, target: &Target) -> Result<TcpStream, Box<Reply>> {
        let answer = |status, complaint| Err(Box::new(said(status, complaint)));
        if self.moved_bytes() >= MOST_BYTES {
            let complaint = format!("this sandbox has moved {MOST_BYTES} bytes, and may move no more");
            return Err(self.refuse(target, complaint));
        }
        if !self.allowed.iter().any(|allowed| allowed.allows(target)) {
            return Err(self.refuse(target, self.how_to_allow(target)));
        }
        match tokio::time::timeout(CONNECTING, self.connect(target)).await {
            Ok(Ok(stream)) => {
                self.passed.fetch_add(1, Ordering::Relaxed);
                // Without it small messages would wait for others; that they do is no failure.
                let _ = stream.set_nodelay(true);
                Ok(stream)
            }
            Ok(Err(NoConnection::Refused(reason))) => {
                let complaint = format!(
                    "`{target}` leads where sandboxes may not go: {reason}. Such an address is reached only where the task \
                     allows that very address"
                );
                Err(self.refuse(target, complaint))
            }
            Ok(Err(error)) => answer(StatusCode::BAD_GATEWAY, format!("`{target}`: {error}")),
            Err(_) => answer(
                StatusCode::GATEWAY_TIMEOUT,
                format!("`{target}` was not reached within {} s", CONNECTING.as_secs()),
            ),
        }
    }

    async fn connect(&self, target: &Target) -> Result<TcpStream, NoConnection> {
        let addresses = self.checked(self.addresses(&target.host).await?, target.port)?;
        let mut failed = io::Error::new(io::ErrorKind::NotFound, "it has no address");
        let several = addresses.len() > 1;
        for address in addresses {
            let connecting = TcpStream::connect(SocketAddr::new(address, target.port));
            // A host may have an address of a kind that leads nowhere from here, and one that does.
            let connected = match several {
                true => tokio::time::timeout(ONE_ADDRESS, connecting)
                    .await
                    .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())),
                false => connecting.await,
            };
            match connected {
                Ok(stream) => return Ok(stream),
                Err(error) => failed = error,
            }
        }
        Err(NoConnection::Unreachable(failed))
    }

    /// Where a host is, whatever that is.
    async fn addresses(&self, host: &Host) -> Result<Vec<IpAddr>, NoConnection> {
        let name = match host {
            Host::Address(address) => return Ok(vec![*address]),
            Host::Name(name) => name.clone(),
        };
        // Closed never, hence a place always comes.
        let place = Arc::clone(&self.lookups).acquire_owned().await;
        let names = Arc::clone(&self.names);
        // In a task of its own: the place is taken for as long as the look-up lasts, not for as long as it is waited for.
        let looking = tokio::spawn(async move {
            let found = names.addresses(&name).await;
            drop(place);
            found
        });
        let found = looking
            .await
            .unwrap_or_else(|error| Err(io::Error::other(error)))
            .map_err(NoConnection::NotFound)?;
        Ok(found.into_iter().map(|address| address.to_canonical()).collect())
    }

    /// Those of the addresses that may be connected to.
    fn checked(&self, addresses: Vec<IpAddr>, port: u16) -> Result<Vec<IpAddr>, NoConnection> {
        let mut refused = None;
        let mut checked = Vec::with_capacity(addresses.len());
        for address in addresses {
            let target = Target {
                host: Host::Address(address),
                port,
            };
            let is_listed = self.allowed.iter().any(|allowed| allowed.allows(&target));
            match AddressPolicy::Public.check(address) {
                Err(reason) if !is_listed => refused = Some(reason),
                _ => checked.push(address),
            }
        }
        match refused {
            Some(reason) if checked.is_empty() => Err(NoConnection::Refused(reason)),
            _ => Ok(checked),
        }
    }

    fn how_to_allow(&self, target: &Target) -> String {
        let named: Vec<String> = self
            .allowed
            .iter()
            .take(NAMED)
            .map(|allowed| format!("`{allowed}`"))
            .collect();
        let more = match self.allowed.len().saturating_sub(NAMED) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        format!(
            "`{target}` is not among the hosts that this sandbox may reach, which are {}{more}. The task allows it with \
             network = {{ allow = [\"{target}\"] }}, `dressage run` with --network allow:{target}",
            named.join(", ")
        )
    }

    fn refuse(&self, target: &Target, complaint: String) -> Box<Reply> {
        let host = target.to_string();
        let is_first = self
            .refusals
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .add(host.clone());
        // Once for each host, and not for all that an agent can think of: it may try for ever.
        if is_first {
            tracing::info!(rollout.id = %self.rollout, egress.host = host, "refused a sandbox the way to a host");
        }
        Box::new(said(StatusCode::FORBIDDEN, complaint))
    }
}

fn said(status: StatusCode, text: String) -> Reply {
    let mut response = Response::new(Either::Left(Full::from(format!("dressage: {text}\n"))));
    *response.status_mut() = status;
    response.headers_mut().insert(
        CONTENT_TYPE,
        HeaderValue::from_static("text/plain; charset=utf-8"),
    );
    response
}

#[cfg(test)]
mod tests;
