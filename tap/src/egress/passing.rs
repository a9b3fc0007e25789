use bytes::Bytes;
use http::{Request, Response};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper_util::rt::TokioIo;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_util::task::AbortOnDropHandle;

/// A connection over which nothing went in either direction for so long is closed.
pub(super) const QUIET: Duration = Duration::from_secs(300);

/// How often that is looked at.
const TICK: Duration = Duration::from_secs(5);

/// Passes bytes between a sandbox and one host, within limits.
pub(super) struct Passing {
    total: Arc<AtomicU64>,
    most: u64,
}

impl Passing {
    /// What is passed counts in `total`; at `most` all of that is over.
    pub(super) fn new(total: Arc<AtomicU64>, most: u64) -> Self {
        Self { total, most }
    }

    /// Passes bytes both ways until both sides have ended.
    pub(super) async fn tunnel<I: AsyncRead + AsyncWrite + Unpin>(self, mut client: I, host: TcpStream) {
        let (mut host, moved) = self.count(host);
        tokio::select! {
            biased;
            // An error is the end of one side; dropping both tells the other.
            _ = tokio::io::copy_bidirectional(&mut client, &mut host) => {}
            () = quiet(&moved) => {}
        }
    }

    /// Sends a request; the body of the reply keeps the connection.
    pub(super) async fn send(
        self,
        request: Request<Incoming>,
        host: TcpStream,
    ) -> hyper::Result<Response<Passed>> {
        let (host, moved) = self.count(host);
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(host)).await?;
        let driver = AbortOnDropHandle::new(tokio::spawn(async move {
            tokio::select! {
                biased;
                // Whoever waits for the reply hears of an error too.
                _ = connection => {}
                () = quiet(&moved) => {}
            }
        }));
        let response = sender.send_request(request).await?;
        Ok(response.map(|body| Passed {
            body,
            _driver: driver,
        }))
    }

    fn count(self, host: TcpStream) -> (Counted, Arc<AtomicU64>) {
        let moved = Arc::new(AtomicU64::new(0));
        let counted = Counted {
            io: host,
            moved: Arc::clone(&moved),
            total: self.total,
            most: self.most,
        };
        (counted, moved)
    }
}

/// Returns when nothing has moved for a while.
async fn quiet(moved: &AtomicU64) {
    let (mut before, mut waited) = (0, Duration::ZERO);
    while waited < QUIET {
        tokio::time::sleep(TICK).await;
        let now = moved.load(Ordering::Relaxed);
        waited = if now == before {
            waited + TICK
        } else {
            Duration::ZERO
        };
        before = now;
    }
}

/// The body of a host's reply, with what drives its connection.
pub(super) struct Passed {
    body: Incoming,
    _driver: AbortOnDropHandle<()>,
}

impl Body for Passed {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A connection to a host that counts what goes over it, and ends where that is too much.
struct Counted {
    io: TcpStream,
    moved: Arc<AtomicU64>,
    total: Arc<AtomicU64>,
    most: u64,
}

impl Counted {
    fn add(&self, bytes: usize) {
        self.moved.fetch_add(bytes as u64, Ordering::Relaxed);
        self.total.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    fn check(&self) -> io::Result<()> {
        match self.total.load(Ordering::Relaxed) < self.most {
            true => Ok(()),
            false => Err(io::Error::other("this sandbox may move no more bytes")),
        }
    }
}

impl AsyncRead for Counted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check()?;
        let before = into.filled().len();
        let read = Pin::new(&mut self.io).poll_read(cx, into);
        self.add(into.filled().len().saturating_sub(before));
        read
    }
}

impl AsyncWrite for Counted {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.check()?;
        let written = Pin::new(&mut self.io).poll_write(cx, bytes);
        if let Poll::Ready(Ok(written)) = written {
            self.add(written);
        }
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}
