use crate::answer::{self, ReplyHead};
use crate::open_call::OpenCall;
use crate::send::{Answer, Sent};
use crate::session::{Abandon, Session, lock};
use crate::stream::Streaming;
use bytes::Bytes;
use dressage_wire::call::CallEnd;
use dressage_wire::capture::{Captured, StreamForm};
use dressage_wire::dialect::Dialect;
use http::{Response, StatusCode};
use hyper::body::{Body, Frame, SizeHint};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::time::{Instant, Sleep};

/// A whole reply is given out in parts of this size, so that an agent that goes away in the middle is noticed.
const PART_BYTES: usize = 64 << 10;

/// How the agent's stream is written.
type AgentsStream = (&'static dyn Dialect, StreamForm);

type Sending = Pin<Box<dyn Future<Output = Sent> + Send>>;

/// The body of a reply to the agent.
pub(crate) enum ReplyBody {
    /// Said by the tap, of no call.
    Local(Option<Bytes>),
    /// Of a call. Shared with the session, which has to get at it when nobody reads it.
    Call(Arc<Mutex<Reply>>),
}

/// The reply of a call, with whom to wake when it is taken away.
pub(crate) struct Reply {
    progress: Progress,
    reader: Option<Waker>,
}

/// How far the reply of a call is.
pub(crate) enum Progress {
    /// The head went out early since the endpoint is silent; its reply is awaited.
    Awaiting {
        stream: AgentsStream,
        sending: Sending,
        every: Duration,
        timer: Pin<Box<Sleep>>,
    },
    /// The endpoint's stream is passed on.
    Streaming(Streaming),
    /// What is left of a reply that is all there.
    Whole(Whole),
    /// The agent has it all, and the call is recorded.
    Ended,
    /// The session has ended it.
    Abandoned,
}

/// A reply that is all there, and not yet the agent's.
pub(crate) struct Whole {
    pub(crate) call: OpenCall,
    pub(crate) captured: Captured,
    pub(crate) body: Bytes,
}

/// The session ended while a reply was on its way: the connection is reset, so that nobody takes the reply for whole.
#[derive(Debug, thiserror::Error)]
#[error("the rollout's agent stage is over")]
pub(crate) struct StageOver;

impl ReplyBody {
    /// Waits for the endpoint's reply and passes it on. With `keep_alive`, an endpoint that is silent for so long has the
    /// agent get the head of a stream at once, and comments until there is more.
    pub(crate) async fn relay(
        session: &Session,
        stream: AgentsStream,
        mut sending: Sending,
        keep_alive: Option<Duration>,
    ) -> Response<Self> {
        let sent = match keep_alive {
            None => sending.await,
            Some(every) => match tokio::time::timeout(every, &mut sending).await {
                Ok(sent) => sent,
                Err(_) => {
                    let timer = Box::pin(tokio::time::sleep(Duration::ZERO));
                    let awaiting = Progress::Awaiting {
                        stream,
                        sending,
                        every,
                        timer,
                    };
                    return ReplyHead::ok(Some(stream.1)).respond(Self::watched(session, awaiting));
                }
            },
        };
        match sent {
            Sent::StageOver => answer::plain(StatusCode::SERVICE_UNAVAILABLE, &StageOver.to_string()),
            Sent::Stream(live) => {
                let (head, streaming) = Streaming::start(*live, stream.0, keep_alive);
                head.respond(Self::watched(session, Progress::Streaming(streaming)))
            }
            Sent::Whole(answer) => {
                let Answer {
                    call,
                    captured,
                    head,
                    body,
                    ..
                } = *answer;
                head.respond(Self::watched(
                    session,
                    Progress::Whole(Whole { call, captured, body }),
                ))
            }
        }
    }

    fn watched(session: &Session, progress: Progress) -> Self {
        let shared = Arc::new(Mutex::new(Reply {
            progress,
            reader: None,
        }));
        let watched: Arc<dyn Abandon> = shared.clone();
        session.watch_reply(&watched);
        Self::Call(shared)
    }
}

impl Whole {
    /// Hands the reply over at once: for replies that nobody waits for.
    pub(crate) fn into_response(self, head: ReplyHead) -> Response<ReplyBody> {
        let reply = Reply {
            progress: Progress::Whole(self),
            reader: None,
        };
        head.respond(ReplyBody::Call(Arc::new(Mutex::new(reply))))
    }
}

impl Progress {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, StageOver>>> {
        loop {
            match self {
                Self::Awaiting {
                    stream,
                    sending,
                    every,
                    timer,
                } => {
                    let Poll::Ready(sent) = sending.as_mut().poll(cx) else {
                        std::task::ready!(timer.as_mut().poll(cx));
                        timer.as_mut().reset(Instant::now() + *every);
                        // Polled once more, so that the timer wakes this task.
                        let _ = timer.as_mut().poll(cx);
                        return Poll::Ready(Some(Ok(stream.0.keep_alive())));
                    };
                    *self = Self::arrived(sent, *stream, *every);
                }
                Self::Streaming(streaming) => {
                    let part = std::task::ready!(streaming.poll(cx));
                    if part.is_none() {
                        *self = Self::Ended;
                    }
                    return Poll::Ready(part.map(Ok));
                }
                Self::Whole(whole) => {
                    let part = whole.body.split_to(whole.body.len().min(PART_BYTES));
                    whole.call.first_content();
                    if whole.body.is_empty()
                        && let Self::Whole(Whole { call, captured, .. }) =
                            std::mem::replace(self, Self::Ended)
                    {
                        // Recorded before the agent sees the end.
                        call.finish(captured);
                    }
                    return Poll::Ready(Some(Ok(part)));
                }
                Self::Ended => return Poll::Ready(None),
                Self::Abandoned => return Poll::Ready(Some(Err(StageOver))),
            }
        }
    }

    /// The reply to a request whose agent has the head of a stream already: an error can be an event only.
    fn arrived(sent: Sent, (dialect, form): AgentsStream, every: Duration) -> Self {
        match sent {
            Sent::StageOver => Self::Abandoned,
            Sent::Stream(stream) => Self::Streaming(Streaming::start(*stream, dialect, Some(every)).1),
            Sent::Whole(answer) => {
                let Answer {
                    call,
                    captured,
                    head,
                    body,
                    failure,
                } = *answer;
                // A good status with a failure is an error that passes for a reply.
                let status = Some(head.status()).filter(|status| !status.is_success());
                let status = status.unwrap_or(StatusCode::BAD_GATEWAY).as_u16();
                let body = failure.map_or(body, |message| dialect.error_event(status, &message, form));
                Self::Whole(Whole { call, captured, body })
            }
        }
    }
}

impl Reply {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, StageOver>>> {
        let polled = self.progress.poll(cx);
        if polled.is_pending()
            && !self
                .reader
                .as_ref()
                .is_some_and(|reader| reader.will_wake(cx.waker()))
        {
            self.reader = Some(cx.waker().clone());
        }
        polled
    }
}

impl Abandon for Mutex<Reply> {
    fn abandon(&self) {
        let mut reply = lock(self);
        let progress = std::mem::replace(&mut reply.progress, Progress::Abandoned);
        let reader = reply.reader.take();
        drop(reply);
        progress.give_up();
        // Nothing else will: what it waited for is gone.
        if let Some(reader) = reader {
            reader.wake();
        }
    }
}

impl Progress {
    /// Records what there is of a reply that its agent will not get.
    fn give_up(self) {
        match self {
            // The call is inside the future, and records itself when that is dropped.
            Self::Awaiting { sending, .. } => drop(sending),
            Self::Streaming(streaming) => streaming.give_up(),
            Self::Whole(Whole {
                call, mut captured, ..
            }) => {
                if captured.end == CallEnd::Complete {
                    captured.end = CallEnd::DownstreamGone;
                }
                call.finish(captured);
            }
            Self::Ended | Self::Abandoned => {}
        }
    }
}

impl Drop for ReplyBody {
    fn drop(&mut self) {
        if let Self::Call(reply) = self {
            let left = std::mem::replace(&mut lock(reply).progress, Progress::Ended);
            left.give_up();
        }
    }
}

impl Body for ReplyBody {
    type Data = Bytes;
    type Error = StageOver;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, StageOver>>> {
        match &mut *self {
            Self::Local(body) => Poll::Ready(body.take().map(|body| Ok(Frame::data(body)))),
            Self::Call(progress) => lock(progress)
                .poll(cx)
                .map(|part| part.map(|part| part.map(Frame::data))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Local(body) => body.is_none(),
            Self::Call(reply) => matches!(lock(reply).progress, Progress::Ended),
        }
    }

    fn size_hint(&self) -> SizeHint {
        let length = match self {
            Self::Local(body) => body.as_ref().map_or(0, Bytes::len),
            Self::Call(reply) => match &lock(reply).progress {
                Progress::Whole(whole) => whole.body.len(),
                Progress::Ended => 0,
                _ => return SizeHint::default(),
            },
        };
        SizeHint::with_exact(length as u64)
    }
}
