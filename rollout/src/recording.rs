//! Calls on their way from the tap to the recorder.
//!
//! The tap hands calls over from the tasks that carry them and must not wait; a task of the rollout takes them in, one
//! after the other, in compact form.

use crate::events::Events;
use crate::faults;
use crate::run::Scope;
use dressage_tap::CallSink;
use dressage_wire::call::{Call, CallEnd, Flag, Purpose};
use dressage_wire::event::Event;
use dressage_wire::fault::Fault;
use dressage_wire::ids::{CallId, RolloutId};
use dressage_wire::rollout::{Recorder, RecorderError, Totals};
use dressage_wire::trajectory::TrajectoryBuilder;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// Calls that can wait for the recorder. An agent has a handful in flight; only a recorder that hangs lets it come to
/// more, and then the call is lost and the rollout says so.
const WAITING: usize = 1024;

/// Takes the calls of one rollout.
pub(crate) struct Recording {
    feed: Arc<Feed>,
    task: JoinHandle<Recorded>,
}

/// What the calls of a rollout came to.
#[derive(Default)]
pub(crate) struct Recorded {
    pub(crate) totals: Totals,
    pub(crate) late_flags: Vec<(CallId, Vec<Flag>)>,
    /// Set where a call could not be kept.
    pub(crate) fault: Option<Fault>,
}

/// How the agent's own calls went, for telling why an agent failed.
#[derive(Clone, Debug, Default)]
pub(crate) struct CallsSeen {
    /// Calls with a whole reply.
    pub(crate) complete: u64,
    /// The latest call, where it failed upstream.
    pub(crate) failed_last: Option<FailedCall>,
    /// How long the latest call had waited without any answer when the agent went away.
    pub(crate) unanswered_ms: Option<u64>,
    latest: Option<u32>,
}

/// A call that failed upstream.
#[derive(Clone, Debug)]
pub(crate) struct FailedCall {
    pub(crate) end: CallEnd,
    pub(crate) status: Option<u16>,
    pub(crate) error: Option<String>,
    pub(crate) hint: Option<String>,
}

impl Recording {
    pub(crate) fn start(scope: &Scope) -> Self {
        let (sender, receiver) = mpsc::channel(WAITING);
        let feed = Arc::new(Feed {
            events: scope.events.clone(),
            sender: Mutex::new(Some(sender)),
            seen: Mutex::default(),
            lost: Mutex::default(),
        });
        let keeper = Keeper {
            rollout: scope.request.id,
            recorder: scope.recorder.clone(),
            events: scope.events.clone(),
            builder: TrajectoryBuilder::new(),
            error: None,
        };
        Self {
            feed,
            task: tokio::spawn(keeper.run(receiver)),
        }
    }

    /// Where the tap hands calls over.
    pub(crate) fn sink(&self) -> Arc<dyn CallSink> {
        self.feed.clone()
    }

    /// How the agent's own calls have gone so far.
    pub(crate) fn seen(&self) -> CallsSeen {
        lock(&self.feed.seen).clone()
    }

    /// Waits until what was handed over is kept.
    pub(crate) async fn finish(self) -> Recorded {
        drop(lock(&self.feed.sender).take());
        let mut recorded = self.task.await.unwrap_or_else(|crash| Recorded {
            fault: Some(faults::INTERNAL.from_error(None, &crash)),
            ..Recorded::default()
        });
        let lost = *lock(&self.feed.lost);
        if lost > 0 && recorded.fault.is_none() {
            let message = format!("{lost} calls were lost, since the store did not keep up");
            recorded.fault = Some(faults::STORE_FAILED.fault(None, message));
        }
        recorded
    }
}

struct Feed {
    events: Arc<Events>,
    sender: Mutex<Option<mpsc::Sender<Call>>>,
    seen: Mutex<CallsSeen>,
    lost: Mutex<u64>,
}

impl CallSink for Feed {
    fn started(&self, id: CallId) {
        self.events.tell(Event::CallStarted { call: id });
    }

    fn sampled(&self, id: CallId, tokens: usize, new: &[String]) {
        self.events.tell(Event::CallProgress {
            call: id,
            tokens: tokens as u64,
            text: new.concat(),
        });
    }

    fn finished(&self, call: Call) {
        lock(&self.seen).look_at(&call);
        let kept = match &*lock(&self.sender) {
            Some(sender) => sender.try_send(call).is_ok(),
            None => false,
        };
        if !kept {
            *lock(&self.lost) += 1;
        }
    }
}

impl CallsSeen {
    fn look_at(&mut self, call: &Call) {
        let meta = &call.meta;
        if meta.purpose == Purpose::Foreign {
            return;
        }
        if meta.end == CallEnd::DownstreamGone {
            self.unanswered_ms = meta.first_token_ms.is_none().then_some(meta.duration_ms);
            return;
        }
        self.unanswered_ms = None;
        self.complete += u64::from(meta.end == CallEnd::Complete);
        if self.latest.is_none_or(|latest| meta.index >= latest) {
            self.latest = Some(meta.index);
            let failed = matches!(meta.end, CallEnd::UpstreamError | CallEnd::UpstreamCut);
            self.failed_last = failed.then(|| FailedCall {
                end: meta.end,
                status: meta.status,
                error: meta.error.clone(),
                hint: meta.hint.clone(),
            });
        }
    }
}

/// Takes calls in and hands them to the recorder.
struct Keeper {
    rollout: RolloutId,
    recorder: Arc<dyn Recorder>,
    events: Arc<Events>,
    builder: TrajectoryBuilder,
    error: Option<RecorderError>,
}

impl Keeper {
    async fn run(mut self, mut calls: mpsc::Receiver<Call>) -> Recorded {
        while let Some(call) = calls.recv().await {
            let recorded = self.builder.push(call);
            let summary = recorded.record.summary();
            if let Err(error) = self.recorder.call(self.rollout, &recorded).await {
                self.error.get_or_insert(error);
            }
            self.events.tell(Event::CallEnded { call: summary });
        }
        Recorded {
            late_flags: self.builder.finalise(),
            totals: self.builder.totals(),
            fault: self.error.as_ref().map(faults::not_recorded),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
