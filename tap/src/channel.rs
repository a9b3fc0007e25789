use crate::relay::MOST_CONNECTIONS;
use crate::session::Session;
use dressage_wire::ids::RolloutId;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::compat::{Compat, FuturesAsyncReadCompatExt, TokioAsyncReadCompatExt};
use tokio_util::sync::CancellationToken;

/// Connections of one sandbox at a time. Further ones are reset. A relay carries fewer; but it may be done with one, and carry
/// the next, before this side is.
const SERVED_CONNECTIONS: usize = MOST_CONNECTIONS + MOST_CONNECTIONS / 2;

/// Streams at which the multiplexer itself gives the channel up: somebody ignores the resets.
const MOST_STREAMS: usize = 2 * MOST_CONNECTIONS;

/// What the channel holds of bytes that nobody has read yet, over all streams: the least the protocol allows.
const UNREAD_BYTES: usize = MOST_STREAMS * yamux::DEFAULT_CREDIT as usize;

/// How often the other side has to show that it is there: providers' proxies cut idle connections.
const PING: Duration = Duration::from_secs(20);

/// Pings without any answer after which the channel is given up.
const MISSED_PINGS: u32 = 6;

/// How a relay's channel ended.
#[derive(Debug, thiserror::Error)]
pub enum ChannelEnd {
    /// The sandbox's side closed it.
    #[error("the relay closed its channel")]
    Closed,
    /// This side was asked to stop.
    #[error("the relay's channel was no longer wanted")]
    Cancelled,
    /// The carrier broke, or the sandbox's side does not keep to the protocol.
    #[error("the relay's channel broke")]
    Broken(#[source] yamux::ConnectionError),
    /// Pings were not answered.
    #[error("the relay did not answer pings for {} s", .0.as_secs())]
    Silent(Duration),
}

impl Session {
    /// Serves the host's end of a relay's channel: the sandbox's side opens streams, each carries one HTTP/1.1
    /// connection. All that arrives is untrusted; what it can cost is limited. A stream that is not read stalls alone.
    ///
    /// When this returns, or is dropped, the calls of the channel are over.
    pub async fn serve_channel<I>(self: Arc<Self>, io: I, cancel: CancellationToken) -> ChannelEnd
    where
        I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let rollout = self.config.rollout;
        serve_streams(io, cancel, rollout, move |stream| {
            Arc::clone(&self).serve_connection(stream)
        })
        .await
    }
}

/// Has each stream of a channel served in a task of its own, until the channel ends or is no longer wanted.
pub(crate) async fn serve_streams<I, F>(
    io: I,
    cancel: CancellationToken,
    rollout: RolloutId,
    serve: impl Fn(Compat<yamux::Stream>) -> F,
) -> ChannelEnd
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    F: Future<Output = ()> + Send + 'static,
{
    let mut config = yamux::Config::default();
    // In this order: each checks itself against the other.
    config.set_max_num_streams(MOST_STREAMS);
    config.set_max_connection_receive_window(Some(UNREAD_BYTES));
    let heard = Arc::new(AtomicU64::new(0));
    let io = Listening {
        io,
        heard: Arc::clone(&heard),
    };
    let mut channel = yamux::Connection::new(io.compat(), config, yamux::Mode::Server);
    let mut connections = JoinSet::new();
    let mut ping = tokio::time::interval_at(Instant::now() + PING, PING);
    ping.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut heard_before, mut missed) = (0, 0);
    let end = loop {
        // Polling the channel sends a ping where one is due, but nothing wakes an idle channel: the tick does.
        let next = tokio::select! {
            biased;
            () = cancel.cancelled() => break ChannelEnd::Cancelled,
            Some(_) = connections.join_next() => continue,
            next = std::future::poll_fn(|cx| channel.poll_next_inbound(cx)) => next,
            _ = ping.tick() => {
                let heard_now = heard.load(Ordering::Relaxed);
                missed = if heard_now == heard_before { missed + 1 } else { 0 };
                heard_before = heard_now;
                if missed > MISSED_PINGS {
                    break ChannelEnd::Silent(PING * MISSED_PINGS);
                }
                continue;
            }
        };
        match next {
            None => break ChannelEnd::Closed,
            Some(Err(error)) => break ChannelEnd::Broken(error),
            Some(Ok(stream)) if connections.len() < SERVED_CONNECTIONS => {
                connections.spawn(serve(stream.compat()));
            }
            Some(Ok(stream)) => {
                tracing::warn!(rollout.id = %rollout, "too many connections on a relay's channel");
                drop(stream);
            }
        }
    };
    connections.shutdown().await;
    end
}

/// Counts what comes in, to tell a quiet carrier from a dead one.
struct Listening<I> {
    io: I,
    heard: Arc<AtomicU64>,
}

impl<I: AsyncRead + Unpin> AsyncRead for Listening<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = into.filled().len();
        let read = Pin::new(&mut self.io).poll_read(cx, into);
        let bytes = into.filled().len().saturating_sub(before);
        self.heard.fetch_add(bytes as u64, Ordering::Relaxed);
        read
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for Listening<I> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}
