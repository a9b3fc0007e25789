//! Queue and live state.
//!
//! One dispatcher task owns the state and is its only writer; everybody else sends it messages. Who of the waiting may
//! start is decided in `admission.rs`. What is live can be watched; it is a copy, published after each change.

/// The one that owns the state.
mod dispatcher;

use self::dispatcher::Dispatcher;
use crate::admission::QueueLimits;
use crate::agents::Agents;
use crate::events::{EventFeed, EventReceiver, Observer};
use crate::hold::{Held, HoldError};
use crate::request::RolloutRequest;
use crate::snapshots::Snapshots;
use dressage_sandbox::Pools;
use dressage_wire::event::Stage;
use dressage_wire::ids::{GroupId, OwnerId, RolloutId};
use dressage_wire::rollout::{Recorder, RolloutOutcome};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

/// What a supervisor works with.
#[derive(Clone)]
pub struct SupervisorConfig {
    /// The process that the rollouts belong to.
    pub owner: OwnerId,
    /// Keeps what must remain.
    pub recorder: Arc<dyn Recorder>,
    /// The agents there are.
    pub agents: Agents,
    /// Where agents' programs are installed.
    pub cache_dir: PathBuf,
    /// The static program `dressage-tap`, for placement in_sandbox.
    pub tap_binary: PathBuf,
    /// Carried by every sandbox, beside the rollout's id.
    pub labels: BTreeMap<String, String>,
    /// Sandboxes that are ready before they are asked for. Closing them is up to whoever made them.
    pub pools: Pools,
    /// How many run at once, and how many wait.
    pub limits: QueueLimits,
    /// Sees every event.
    pub observer: Option<Arc<dyn Observer>>,
}

/// Takes rollouts, runs so many at once, and ends them when asked.
#[derive(Clone)]
pub struct Supervisor {
    messages: mpsc::UnboundedSender<Message>,
    live: watch::Receiver<Live>,
    hurry: CancellationToken,
    snapshots: Snapshots,
}

/// What waits and runs: first what runs, oldest first, then what waits, in the order in which it may start.
pub type Live = Arc<Vec<Arc<LiveRollout>>>;

/// A rollout that was submitted.
pub struct RolloutHandle {
    /// Its id.
    pub id: RolloutId,
    /// Its events from the first on. Whoever falls more than 1024 behind misses the oldest, and is told how many.
    pub events: EventReceiver,
    outcome: oneshot::Receiver<RolloutOutcome>,
}

impl RolloutHandle {
    /// Waits for the end. `None` only if it was forgotten while it waited, or the supervisor's runtime is gone.
    pub async fn outcome(self) -> Option<RolloutOutcome> {
        self.outcome.await.ok()
    }
}

/// A rollout that waits or runs.
#[derive(Clone, Debug)]
pub struct LiveRollout {
    /// Its id.
    pub id: RolloutId,
    /// The caller's name of its task.
    pub task: Option<String>,
    /// Which of the n rollouts of the task it is.
    pub sample: u32,
    /// The rollouts that it belongs to.
    pub group: Option<GroupId>,
    /// Higher starts first.
    pub priority: i32,
    /// Name of its backend.
    pub backend: &'static str,
    /// Name of its endpoint.
    pub endpoint: Arc<str>,
    /// Where it is.
    pub state: LiveState,
    /// Since when it is there.
    pub since: Instant,
    /// The deadline of its hold, while it is held.
    pub held_until: Option<SystemTime>,
}

/// Where a live rollout is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LiveState {
    /// It waits for a place.
    Queued,
    /// It runs, and is before its first stage or between two.
    Running,
    /// It is in a stage.
    In(Stage),
    /// Its sandbox is kept for the caller.
    Held,
    /// It was asked to stop.
    Cancelling,
}

/// A rollout was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// No more are taken.
    #[error("the supervisor takes no more rollouts")]
    Closed,
    /// One of that id is there already.
    #[error("rollout {0} is there already")]
    Duplicate(RolloutId),
    /// Too many wait.
    #[error("{waiting} rollouts wait already, of {limit} that may")]
    Full {
        /// How many wait.
        waiting: usize,
        /// How many may.
        limit: usize,
    },
}

/// What the dispatcher is told. There are a handful for each rollout, and one for each call to a held one, which is what
/// bounds the channel.
pub(crate) enum Message {
    Submit(Vec<Submission>, oneshot::Sender<Result<(), SubmitError>>),
    Stage(RolloutId, Option<Stage>),
    OpenHold(RolloutId, Held),
    Held(RolloutId, SystemTime),
    Released(RolloutId),
    FindHold(RolloutId, oneshot::Sender<Result<Held, HoldError>>),
    Cancel(RolloutId),
    CancelAll,
    ForgetWaiting(oneshot::Sender<Vec<RolloutId>>),
    Close,
}

pub(crate) struct Submission {
    request: RolloutRequest,
    events: EventFeed,
    outcome: oneshot::Sender<RolloutOutcome>,
}

impl Supervisor {
    /// Starts the dispatcher on the current runtime. It ends when every supervisor handle is dropped and nothing lives.
    #[must_use]
    pub fn start(config: SupervisorConfig) -> Self {
        let (messages, inbox) = mpsc::unbounded_channel();
        let (publish, live) = watch::channel(Arc::default());
        let hurry = CancellationToken::new();
        let snapshots = Snapshots::default();
        let dispatcher = Dispatcher::new(
            config,
            inbox,
            messages.downgrade(),
            publish,
            hurry.clone(),
            snapshots.clone(),
        );
        tokio::spawn(dispatcher.run());
        Self {
            messages,
            live,
            hurry,
            snapshots,
        }
    }

    /// Takes a rollout; it runs when there is a place for it.
    ///
    /// # Errors
    /// It was not taken.
    pub async fn submit(&self, request: RolloutRequest) -> Result<RolloutHandle, SubmitError> {
        let mut handles = self.submit_all(vec![request]).await?;
        handles.pop().ok_or(SubmitError::Closed)
    }

    /// Takes all of them or none. Those of one group and priority start together, where the limits could ever hold them.
    ///
    /// # Errors
    /// None was taken.
    pub async fn submit_all(&self, requests: Vec<RolloutRequest>) -> Result<Vec<RolloutHandle>, SubmitError> {
        let mut submissions = Vec::with_capacity(requests.len());
        let mut handles = Vec::with_capacity(requests.len());
        for request in requests {
            let (events, receiver) = crate::events::feed();
            let (outcome, outcome_receiver) = oneshot::channel();
            handles.push(RolloutHandle {
                id: request.id,
                events: receiver,
                outcome: outcome_receiver,
            });
            submissions.push(Submission {
                request,
                events,
                outcome,
            });
        }
        let taken = self.ask(|answer| Message::Submit(submissions, answer)).await;
        taken.unwrap_or(Err(SubmitError::Closed))?;
        Ok(handles)
    }

    /// The way to the sandbox of a rollout that is held.
    ///
    /// # Errors
    /// It is not held.
    pub async fn held(&self, id: RolloutId) -> Result<Held, HoldError> {
        let found = self.ask(|answer| Message::FindHold(id, answer)).await;
        found.unwrap_or(Err(HoldError::Unknown(id)))
    }

    /// Asks the dispatcher. `None` if it is gone.
    async fn ask<T>(&self, message: impl FnOnce(oneshot::Sender<T>) -> Message) -> Option<T> {
        let (answer, answered) = oneshot::channel();
        self.messages.send(message(answer)).ok()?;
        answered.await.ok()
    }

    /// Asks a rollout to stop. It ends as cancelled, with everything cleaned up; one that is over stays as it is.
    pub fn cancel(&self, id: RolloutId) {
        _ = self.messages.send(Message::Cancel(id));
    }

    /// Asks every rollout to stop, waiting ones too.
    pub fn cancel_all(&self) {
        _ = self.messages.send(Message::CancelAll);
    }

    /// Drops those that wait, as if they had never been submitted: no row, no outcome, no event. For a process that ends
    /// and leaves them to the next one. Says which they were.
    pub async fn forget_waiting(&self) -> Vec<RolloutId> {
        self.ask(Message::ForgetWaiting).await.unwrap_or_default()
    }

    /// Takes no more rollouts. Those that wait still run.
    pub fn stop_admitting(&self) {
        _ = self.messages.send(Message::Close);
    }

    /// Waits no longer for sandboxes to be taken down; the next sweep of their leases does the rest.
    pub fn hurry(&self) {
        self.hurry.cancel();
    }

    /// What waits and runs; watch it for changes.
    #[must_use]
    pub fn live(&self) -> watch::Receiver<Live> {
        self.live.clone()
    }

    /// Waits until nothing lives, and removes what setups made that was kept.
    pub async fn drained(&self) {
        let mut live = self.live.clone();
        // An error means that the dispatcher is gone, and with it everything that lived.
        _ = live.wait_for(|rollouts| rollouts.is_empty()).await;
        self.snapshots.clear().await;
    }

    /// Stops admitting, lets what lives end within `grace`, held rollouts too, then cancels it and waits for that.
    pub async fn shutdown(&self, grace: Duration) {
        self.stop_admitting();
        if tokio::time::timeout(grace, self.drained()).await.is_err() {
            self.cancel_all();
            self.drained().await;
        }
    }
}
