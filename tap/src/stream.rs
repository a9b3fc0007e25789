use crate::answer::ReplyHead;
use crate::failure::SendError;
use crate::open_call::OpenCall;
use crate::send::LiveStream;
use crate::upstream::Upstream;
use bytes::{Bytes, BytesMut};
use dressage_wire::call::CallEnd;
use dressage_wire::capture::StreamEnd;
use dressage_wire::dialect::{Dialect, StreamCapture};
use hyper::body::{Body, Incoming};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::{Instant, Sleep};

/// What has come in is passed on in one part up to here.
const GATHER_BYTES: usize = 16 << 10;

/// How long an event may be held back for what might move into it from the next one.
const HOLD: Duration = Duration::from_millis(50);

/// How often whoever writes for the agent asks in vain, before what has come in is passed on: hyper's server asks twice
/// (it writes, flushes and writes again) before other tasks run, of which one is the endpoint's connection.
const TURNS: u8 = 2;

/// How often it is told at most what a call has sampled while it goes on.
#[cfg(feature = "shared")]
const TELL: Duration = Duration::from_millis(500);

/// How long the end of a body may come after its last event, for the endpoint's connection to be used again.
const TRAILING: Duration = Duration::from_secs(1);

/// An endpoint's stream on its way to the agent: captured and stripped as it comes, in the agent's own task.
pub(crate) struct Streaming {
    dialect: &'static dyn Dialect,
    upstream: Arc<Upstream>,
    body: Incoming,
    out: BytesMut,
    first: First,
    /// How often it was asked in vain since the endpoint's connection last gave something.
    turns: u8,
    phase: Phase,
    waits: Waits,
    timer: Option<Pin<Box<Sleep>>>,
    #[cfg(feature = "shared")]
    told: Told,
}

/// How far it was told what is sampled, and when it is told next.
#[cfg(feature = "shared")]
struct Told {
    tokens: usize,
    next: Instant,
}

#[cfg(feature = "shared")]
impl Told {
    fn look(&mut self, call: &OpenCall, capture: &dyn StreamCapture, now: Instant) {
        if now < self.next {
            return;
        }
        let new = capture.sampled().get(self.tokens..).unwrap_or_default();
        if !new.is_empty() {
            self.tokens += new.len();
            self.next = now + TELL;
            call.sampled(self.tokens, new);
        }
    }
}

/// The first part of a stream, which is not gathered: an agent waits for it, and behind a fast endpoint there is always
/// more.
#[derive(PartialEq, Eq)]
enum First {
    Awaited,
    /// Handed to whoever writes for the agent.
    Given,
    Written,
}

enum Phase {
    /// The call goes on.
    Live {
        call: OpenCall,
        capture: Box<dyn StreamCapture>,
    },
    /// The last event was there and the call is recorded; what is awaited is the end of the body.
    Trailing { until: Instant },
    /// There is nothing more to come.
    Over,
}

struct Waits {
    idle: Duration,
    request: Option<Duration>,
    deadline: Option<Instant>,
    keep_alive: Option<Duration>,
    /// When the endpoint last said something.
    received: Instant,
    /// When the agent was last sent something.
    sent: Instant,
}

impl Streaming {
    pub(crate) fn start(
        stream: LiveStream,
        dialect: &'static dyn Dialect,
        keep_alive: Option<Duration>,
    ) -> (ReplyHead, Self) {
        let LiveStream {
            call,
            head,
            body,
            capture,
            upstream,
            deadline,
        } = stream;
        let now = Instant::now();
        let timeouts = upstream.endpoint().timeouts;
        let waits = Waits {
            idle: timeouts.idle,
            request: timeouts.request,
            deadline,
            keep_alive,
            received: now,
            sent: now,
        };
        let phase = Phase::Live { call, capture };
        (
            head,
            Self {
                dialect,
                upstream,
                body,
                out: BytesMut::new(),
                first: First::Awaited,
                turns: 0,
                phase,
                waits,
                timer: None,
                #[cfg(feature = "shared")]
                told: Told { tokens: 0, next: now },
            },
        )
    }

    /// The next part for the agent; `None` at the end, when the call is recorded.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        // Whoever writes for the agent writes only when there is nothing to be had here.
        if self.first == First::Given {
            self.first = First::Written;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        loop {
            let over = matches!(self.phase, Phase::Over);
            if self.out.len() >= GATHER_BYTES || (over && !self.out.is_empty()) {
                return Poll::Ready(Some(self.give()));
            }
            if over {
                return Poll::Ready(None);
            }
            match Pin::new(&mut self.body).poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => {
                    if let Ok(data) = frame.into_data() {
                        self.receive(&data);
                    }
                }
                Poll::Ready(Some(Err(error))) => self.broken(&SendError::Cut(error)),
                Poll::Ready(None) => self.end(StreamEnd::EndOfBody, None),
                // A read brings many events, of which the endpoint's connection hands over one at a time: it gets a turn,
                // and what it has goes out in one write. Where it has no more, that costs a few microseconds.
                Poll::Pending
                    if !self.out.is_empty() && self.first == First::Written && self.turns < TURNS =>
                {
                    self.turns += 1;
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                Poll::Pending if !self.out.is_empty() => return Poll::Ready(Some(self.give())),
                Poll::Pending => std::task::ready!(self.wait(cx)),
            }
        }
    }

    fn give(&mut self) -> Bytes {
        self.waits.sent = self.waits.received;
        if self.first == First::Awaited {
            self.first = First::Given;
        }
        self.out.split().freeze()
    }

    fn receive(&mut self, data: &[u8]) {
        self.turns = 0;
        self.waits.received = Instant::now();
        let Phase::Live { call, capture } = &mut self.phase else {
            // What comes after a stream's last event is no part of it.
            return;
        };
        call.received(data.len());
        let pushed = capture.push(data, &mut self.out);
        let seen = capture.seen();
        if let Some(at) = seen.own_words_at {
            self.upstream.redact_from(&mut self.out, at);
        }
        if seen.content {
            call.first_content();
        }
        #[cfg(feature = "shared")]
        self.told.look(call, &**capture, self.waits.received);
        if let Err(error) = pushed {
            self.end(StreamEnd::Cut, Some(error.to_string()));
        } else if seen.done {
            self.end(StreamEnd::EndOfBody, None);
            self.phase = Phase::Trailing {
                until: self.waits.received + TRAILING,
            };
        }
    }

    fn broken(&mut self, error: &SendError) {
        let message = error.message(&self.upstream);
        if let Phase::Live { call, .. } = &mut self.phase {
            call.advise(error.hint());
        }
        self.end(StreamEnd::Cut, Some(message));
    }

    /// Records the call, before the agent sees the end of it. A stream that did not end well ends in an error event:
    /// agents take a mere end for a step done, and ask again without limit.
    fn end(&mut self, end: StreamEnd, message: Option<String>) {
        let Phase::Live { call, mut capture } = std::mem::replace(&mut self.phase, Phase::Over) else {
            return;
        };
        let told = capture.seen().error;
        let given = self.out.len();
        let mut captured = capture.finish(end, &mut self.out);
        if captured.end != CallEnd::Complete {
            self.upstream.redact_from(&mut self.out, given);
            self.upstream.redact_captured(&mut captured);
            captured.error = message.or(captured.error);
            if !told {
                let message = captured
                    .error
                    .as_deref()
                    .unwrap_or("the endpoint's stream ended before its reply did");
                capture.fail(message, &mut self.out);
            }
        }
        call.finish(captured);
    }

    /// The agent has gone, or its stage is over.
    pub(crate) fn give_up(self) {
        let Phase::Live { call, mut capture } = self.phase else {
            return;
        };
        // Agents may leave when they have the last of what matters to them, without waiting for the last event.
        let has_it_all = capture.seen().finished && !capture.holds() && self.out.is_empty();
        let end = if has_it_all {
            StreamEnd::EndOfBody
        } else {
            StreamEnd::DownstreamGone
        };
        let mut captured = capture.finish(end, &mut BytesMut::new());
        if captured.end != CallEnd::Complete {
            self.upstream.redact_captured(&mut captured);
        }
        call.finish(captured);
    }

    /// Waits for the first of the times at which something is to be done without word from the endpoint, and does it.
    fn wait(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let due = self.due();
        if due > Instant::now() {
            let timer = self
                .timer
                .get_or_insert_with(|| Box::pin(tokio::time::sleep_until(due)));
            // Set anew only where it would ring late. Ringing early costs a look, setting it at each event more.
            if timer.deadline() > due {
                timer.as_mut().reset(due);
            }
            while timer.as_mut().poll(cx).is_ready() {
                if due <= Instant::now() {
                    break;
                }
                timer.as_mut().reset(due);
            }
            if due > Instant::now() {
                return Poll::Pending;
            }
        }
        self.act(Instant::now());
        Poll::Ready(())
    }

    fn due(&self) -> Instant {
        let waits = &self.waits;
        let capture = match &self.phase {
            Phase::Live { capture, .. } => capture,
            Phase::Trailing { until } => return *until,
            Phase::Over => return waits.received,
        };
        let idle = waits.received + waits.idle;
        let held = capture.holds().then(|| waits.received + HOLD);
        let silent = waits.keep_alive.map(|every| waits.sent + every);
        [waits.deadline, held, silent]
            .into_iter()
            .flatten()
            .fold(idle, Instant::min)
    }

    fn act(&mut self, now: Instant) {
        let waits = &mut self.waits;
        let Phase::Live { capture, .. } = &mut self.phase else {
            self.phase = Phase::Over;
            return;
        };
        if waits.deadline.is_some_and(|deadline| deadline <= now) {
            let time = waits.request.unwrap_or_default();
            self.broken(&SendError::RequestTimeout(time));
        } else if waits.received + waits.idle <= now {
            let time = waits.idle;
            self.broken(&SendError::IdleTimeout(time));
        } else if capture.holds() && waits.received + HOLD <= now {
            capture.release(&mut self.out);
        } else {
            waits.sent = now;
            self.out.extend_from_slice(&self.dialect.keep_alive());
        }
    }
}
