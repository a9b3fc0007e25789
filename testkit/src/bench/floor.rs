//! A reverse proxy that copies bytes and nothing else: the physical limit on a machine, for the same libraries.

use bytes::Bytes;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::SendRequest;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Mutex;

/// A connection to the upstream, kept for the next request of the same client.
type Upstream = Arc<Mutex<Option<SendRequest<Incoming>>>>;

/// Copies between the clients of a listener and an upstream for ever.
///
/// # Errors
/// Where the listener fails.
pub async fn serve(listener: TcpListener, upstream: SocketAddr) -> std::io::Result<Infallible> {
    loop {
        let (stream, _) = listener.accept().await?;
        tokio::spawn(serve_connection(stream, upstream));
    }
}

async fn serve_connection(stream: TcpStream, address: SocketAddr) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "cannot set TCP_NODELAY");
    }
    let upstream = Upstream::default();
    let service = service_fn(move |request| copy(request, address, upstream.clone()));
    let connection =
        hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service);
    if let Err(error) = connection.await {
        tracing::debug!(%error, "a connection of the byte copy ended early");
    }
}

async fn copy(
    request: Request<Incoming>,
    address: SocketAddr,
    upstream: Upstream,
) -> Result<Response<BoxBody<Bytes, hyper::Error>>, Infallible> {
    Ok(match forward(request, address, upstream).await {
        Ok(response) => response.map(BodyExt::boxed),
        Err(error) => {
            let body = Full::new(Bytes::from(error.to_string()));
            let mut response = Response::new(body.map_err(|never| match never {}).boxed());
            *response.status_mut() = StatusCode::BAD_GATEWAY;
            response
        }
    })
}

/// Why a request could not be passed on.
#[derive(Debug, thiserror::Error)]
enum ForwardError {
    #[error("cannot connect to the upstream: {0}")]
    Connect(#[from] std::io::Error),
    #[error("cannot pass the request on: {0}")]
    Send(#[from] hyper::Error),
}

async fn forward(
    request: Request<Incoming>,
    address: SocketAddr,
    upstream: Upstream,
) -> Result<Response<Incoming>, ForwardError> {
    // Requests of one client follow one another: the lock is never waited for.
    let mut kept = upstream.lock().await;
    let is_ready = match kept.as_mut() {
        Some(sender) => sender.ready().await.is_ok(),
        None => false,
    };
    let sender = match kept.as_mut().filter(|_| is_ready) {
        Some(sender) => sender,
        None => kept.insert(connect(address).await?),
    };
    Ok(sender.send_request(request).await?)
}

async fn connect(address: SocketAddr) -> Result<SendRequest<Incoming>, ForwardError> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    Ok(sender)
}
