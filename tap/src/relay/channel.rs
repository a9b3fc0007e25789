use std::future::{Future, poll_fn};
use std::io;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{mpsc, oneshot};
use tokio_util::compat::{Compat, TokioAsyncReadCompatExt};
use yamux::{Config, Connection, Mode, Stream};

/// What a channel runs over. Used through a pointer, so that the multiplexer is in the program once only.
pub(crate) trait Carrier: AsyncRead + AsyncWrite + Send + Unpin + 'static {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin + 'static> Carrier for T {}

/// Opens streams on a channel.
#[derive(Clone, Debug)]
pub(crate) struct Opener(mpsc::Sender<oneshot::Sender<Stream>>);

impl Opener {
    /// A new stream.
    pub(crate) async fn open(&self) -> io::Result<Stream> {
        let gone = || io::Error::from(io::ErrorKind::BrokenPipe);
        let (reply, stream) = oneshot::channel();
        self.0.send(reply).await.map_err(|_| gone())?;
        stream.await.map_err(|_| gone())
    }
}

/// Makes a channel of a byte stream: what opens streams, and what must be polled for any of them to move. The latter ends
/// with the channel.
pub(crate) fn multiplex(carrier: Box<dyn Carrier>) -> (Opener, impl Future<Output = ()> + Send) {
    // Those who wait here hold a connection each, of which there is a bounded number.
    let (requests, waiting) = mpsc::channel(1);
    let connection = Connection::new(carrier.compat(), Config::default(), Mode::Client);
    let mut driver = Driver {
        connection,
        waiting,
        opening: None,
    };
    (Opener(requests), poll_fn(move |context| driver.poll(context)))
}

struct Driver {
    connection: Connection<Compat<Box<dyn Carrier>>>,
    waiting: mpsc::Receiver<oneshot::Sender<Stream>>,
    opening: Option<oneshot::Sender<Stream>>,
}

impl Driver {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        loop {
            if self.opening.is_none()
                && let Poll::Ready(Some(request)) = self.waiting.poll_recv(context)
            {
                self.opening = Some(request);
            }
            if self.opening.is_some() {
                match self.connection.poll_new_outbound(context) {
                    Poll::Ready(Ok(stream)) => {
                        if let Some(request) = self.opening.take() {
                            // Whoever asked may have gone; the stream is then dropped, which resets it.
                            let _ = request.send(stream);
                        }
                        continue;
                    }
                    Poll::Ready(Err(_)) => return Poll::Ready(()),
                    Poll::Pending => {}
                }
            }
            // Also what moves every stream's bytes. The host opens none: one that does is not ours.
            return match self.connection.poll_next_inbound(context) {
                Poll::Ready(_) => Poll::Ready(()),
                Poll::Pending => Poll::Pending,
            };
        }
    }
}
