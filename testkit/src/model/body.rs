//! A reply's body, played in time: each event is an HTTP chunk of its own and reaches the socket before the next is made.

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::{Instant, Sleep, sleep_until};

/// A moment of a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Bytes are sent.
    Send(Bytes),
    /// Nothing is sent for a while.
    Wait(Duration),
    /// The connection is closed in the middle of the body.
    Close,
    /// The connection is reset.
    Reset,
}

/// The body breaks off on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the reply was cut on purpose")]
pub(super) struct CutOnPurpose;

/// A body that plays its steps.
#[derive(Debug)]
pub(super) struct Played {
    steps: VecDeque<Step>,
    sleep: Option<Pin<Box<Sleep>>>,
    /// Bytes were handed over that the connection has not been given the chance to flush.
    unflushed: bool,
    /// Told when the connection is to be reset.
    reset: Arc<Notify>,
    /// The size, where it is told in `content-length`.
    length: Option<u64>,
}

impl Played {
    /// A streamed body.
    pub(super) fn stream(steps: Vec<Step>, reset: Arc<Notify>) -> Self {
        Self {
            steps: steps.into(),
            sleep: None,
            unflushed: false,
            reset,
            length: None,
        }
    }

    /// A body whose length is told beforehand, also if its steps then break off.
    pub(super) fn document(length: usize, steps: Vec<Step>, reset: Arc<Notify>) -> Self {
        Self {
            length: Some(length as u64),
            ..Self::stream(steps, reset)
        }
    }
}

impl Body for Played {
    type Data = Bytes;
    type Error = CutOnPurpose;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, CutOnPurpose>>> {
        if let Some(sleep) = self.sleep.as_mut() {
            std::task::ready!(sleep.as_mut().poll(context));
            self.sleep = None;
        }
        if self.unflushed {
            // A body that is not ready makes hyper flush; it is asked again at once.
            self.unflushed = false;
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        match self.steps.pop_front() {
            None => Poll::Ready(None),
            Some(Step::Send(bytes)) => {
                self.unflushed = !self.steps.is_empty();
                Poll::Ready(Some(Ok(Frame::data(bytes))))
            }
            Some(Step::Wait(duration)) => {
                self.sleep = Some(Box::pin(sleep_until(Instant::now() + duration)));
                context.waker().wake_by_ref();
                Poll::Pending
            }
            Some(Step::Close) => Poll::Ready(Some(Err(CutOnPurpose))),
            Some(Step::Reset) => {
                // The connection's task drops body and socket. Until it does, hyper may ask again.
                self.steps.push_front(Step::Reset);
                self.reset.notify_one();
                Poll::Pending
            }
        }
    }

    fn size_hint(&self) -> SizeHint {
        self.length.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}
