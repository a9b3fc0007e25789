use crate::answer;
use crate::forward::{Route, forward};
use crate::reply::ReplyBody;
use crate::session::Session;
use crate::side;
use dressage_wire::dialect::{self, Asked};
use http::header::UPGRADE;
use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::sync::CancellationToken;

/// A request head is larger than this never.
const HEAD_BYTES: usize = 64 << 10;

/// What is read ahead and written behind on one connection.
const BUFFER_BYTES: usize = 128 << 10;

/// Without a whole request head for so long, a connection is closed. Agents keep connections between turns, and a turn's
/// tools can take minutes.
const IDLE: Duration = Duration::from_secs(900);

/// Finds the session that a request is for.
pub(crate) trait Front: Send + Sync + 'static {
    /// The session, or the answer to a request that is for none. What the session itself has to check (token, stage)
    /// is not checked here.
    fn session(&self, request: &Request<Incoming>) -> Result<Arc<Session>, Box<Response<ReplyBody>>>;
}

/// Every request of a connection is for the same session.
struct Only(Arc<Session>);

impl Front for Only {
    fn session(&self, _: &Request<Incoming>) -> Result<Arc<Session>, Box<Response<ReplyBody>>> {
        Ok(Arc::clone(&self.0))
    }
}

impl Session {
    /// Serves one HTTP/1.1 connection of the rollout's sandbox until it is closed. What comes out of `io` is untrusted.
    pub async fn serve_connection<I>(self: Arc<Self>, io: I)
    where
        I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        serve(Arc::new(Only(self)), io, CancellationToken::new()).await;
    }
}

/// Serves a connection until it is closed; once `stop` is cancelled, until the requests under way are answered.
pub(crate) async fn serve<I>(front: Arc<impl Front>, io: I, stop: CancellationToken)
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = service_fn(move |request| {
        let front = Arc::clone(&front);
        async move { Ok::<_, Infallible>(answer(&*front, request).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(IDLE)
        .max_header_size(HEAD_BYTES)
        .max_buf_size(BUFFER_BYTES)
        .serve_connection(TokioIo::new(io), service);
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        biased;
        ended = connection.as_mut() => ended,
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "connection of an agent ended");
    }
}

async fn answer(front: &impl Front, request: Request<Incoming>) -> Response<ReplyBody> {
    // Codex asks for a WebSocket first and falls back at once only on this status.
    if request.headers().contains_key(UPGRADE) {
        return answer::plain(
            StatusCode::UPGRADE_REQUIRED,
            "connections are not upgraded here: use plain HTTP/1.1",
        );
    }
    let session = match front.session(&request) {
        Ok(session) => session,
        Err(response) => return *response,
    };
    if let Some((dialect, target)) = asked_of(&request, dialect::route) {
        return forward(&session, Route { dialect, target }, request).await;
    }
    if let Some((dialect, route)) = asked_of(&request, dialect::side_route) {
        return side::answer(&session, dialect, route, request).await;
    }
    if !answer::is_authorised(&session, request.headers()) {
        return answer::unauthorised(None);
    }
    let (method, path) = (request.method(), request.uri().path());
    answer::plain(
        StatusCode::NOT_FOUND,
        &format!("nothing answers {method} {path} here"),
    )
}

/// What the dialects say of a request.
pub(crate) fn asked_of<T>(request: &Request<Incoming>, say: impl Fn(&Asked<'_>) -> Option<T>) -> Option<T> {
    let headers = request.headers();
    say(&Asked {
        method: request.method().as_str(),
        path: request.uri().path(),
        query: request.uri().query().unwrap_or_default(),
        header: &|name| headers.get(name)?.to_str().ok(),
    })
}

/// The dialect that a request is in, as far as can be told.
#[cfg(feature = "translated")]
pub(crate) fn dialect_of(request: &Request<Incoming>) -> Option<&'static dyn dialect::Dialect> {
    asked_of(request, |asked| {
        let route = dialect::route(asked).map(|(dialect, _)| dialect);
        route.or_else(|| dialect::side_route(asked).map(|(dialect, _)| dialect))
    })
}
