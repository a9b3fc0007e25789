use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Connections at once; more wait to be accepted.
const CONNECTIONS_MAX: usize = 8192;

/// How long the head of a request may take.
const HEAD_TIMEOUT: Duration = Duration::from_secs(15);

/// How long connections and sockets may take to end once the server stops.
pub const LAST_REPLIES: Duration = Duration::from_secs(5);

/// A wait after the system refused a connection for want of something, such as files.
const BREATHER: Duration = Duration::from_millis(100);

/// Where the server listens.
#[derive(Debug)]
pub struct Listener {
    listener: TcpListener,
    address: SocketAddr,
}

/// The server cannot listen.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}")]
pub struct ListenError {
    /// Where.
    pub address: String,
    /// Why not.
    #[source]
    pub source: io::Error,
}

impl Listener {
    /// Takes the address; port 0 takes a free one.
    ///
    /// # Errors
    /// It is no address of this machine, or taken.
    pub async fn bind(host: &str, port: u16) -> Result<Self, ListenError> {
        let failed = |source| ListenError {
            address: format!("{host}:{port}"),
            source,
        };
        let listener = TcpListener::bind((host, port)).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        Ok(Self { listener, address })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until `stopping` is cancelled; then no connection is accepted, and those that are idle are closed.
    pub async fn serve(self, router: Router, stopping: CancellationToken) {
        let (connections, places) = (TaskTracker::new(), Arc::new(Semaphore::new(CONNECTIONS_MAX)));
        loop {
            let accepted = tokio::select! {
                biased;
                () = stopping.cancelled() => break,
                accepted = accept(&self.listener, &places) => accepted,
            };
            let (stream, place) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(BREATHER).await;
                    continue;
                }
            };
            // Events are small, and each is to be there at once.
            _ = stream.set_nodelay(true);
            let service = TowerToHyperService::new(router.clone());
            let stopping = stopping.clone();
            connections.spawn(async move {
                let _place = place;
                let connection = http1::Builder::new()
                    .timer(TokioTimer::new())
                    .header_read_timeout(HEAD_TIMEOUT)
                    .serve_connection(TokioIo::new(stream), service)
                    .with_upgrades();
                tokio::pin!(connection);
                let ended = tokio::select! {
                    ended = connection.as_mut() => ended,
                    () = stopping.cancelled() => {
                        connection.as_mut().graceful_shutdown();
                        connection.await
                    }
                };
                if let Err(error) = ended {
                    tracing::debug!(%error, "a connection ended");
                }
            });
        }
        connections.close();
        _ = tokio::time::timeout(LAST_REPLIES, connections.wait()).await;
    }
}

async fn accept(
    listener: &TcpListener,
    places: &Arc<Semaphore>,
) -> io::Result<(tokio::net::TcpStream, tokio::sync::OwnedSemaphorePermit)> {
    // The semaphore is never closed.
    let place = places.clone().acquire_owned().await.map_err(io::Error::other)?;
    let (stream, _) = listener.accept().await?;
    Ok((stream, place))
}
