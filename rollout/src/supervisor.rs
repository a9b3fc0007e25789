//! Queue and live state.
//!
//! One dispatcher task owns the state and is its only writer; everybody else sends it messages. Rollouts wait in the
//! order in which they were submitted. What is live can be watched; it is a copy, published after each change.

use crate::agents::Agents;
use crate::events::Events;
use crate::request::RolloutRequest;
use crate::run::{self, Scope};
use dressage_wire::event::{RolloutEvent, Stage};
use dressage_wire::ids::{OwnerId, RolloutId};
use dressage_wire::rollout::{Recorder, RolloutOutcome};
use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tokio::sync::{broadcast, mpsc, oneshot, watch};
use tokio::task::JoinSet;
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
    /// Rollouts at once, at least 1.
    pub concurrency: usize,
}

/// Takes rollouts, runs so many at once, and ends them when asked.
#[derive(Clone)]
pub struct Supervisor {
    messages: mpsc::UnboundedSender<Message>,
    live: watch::Receiver<Arc<Vec<LiveRollout>>>,
    hurry: CancellationToken,
}

/// A rollout that was submitted.
pub struct RolloutHandle {
    /// Its id.
    pub id: RolloutId,
    /// Its events from the first on. Whoever falls more than 1024 behind misses the oldest, and is told how many.
    pub events: broadcast::Receiver<Arc<RolloutEvent>>,
    outcome: oneshot::Receiver<RolloutOutcome>,
}

impl RolloutHandle {
    /// Waits for the end. `None` only if the supervisor's runtime is gone.
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
    /// Where it is.
    pub state: LiveState,
    /// Since when it is there.
    pub since: Instant,
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
}

/// What the dispatcher is told. There are a handful for each rollout, which is what bounds the channel.
pub(crate) enum Message {
    Submit(Box<Submission>),
    Stage(RolloutId, Option<Stage>),
    Cancel(RolloutId),
    CancelAll,
    Close,
}

pub(crate) struct Submission {
    request: RolloutRequest,
    events: broadcast::Sender<Arc<RolloutEvent>>,
    outcome: oneshot::Sender<RolloutOutcome>,
    accepted: oneshot::Sender<Result<(), SubmitError>>,
}

impl Supervisor {
    /// Starts the dispatcher on the current runtime. It ends when every supervisor handle is dropped and nothing lives.
    #[must_use]
    pub fn start(config: SupervisorConfig) -> Self {
        let (messages, inbox) = mpsc::unbounded_channel();
        let (publish, live) = watch::channel(Arc::default());
        let hurry = CancellationToken::new();
        let dispatcher = Dispatcher {
            config,
            inbox,
            back: messages.downgrade(),
            publish,
            hurry: hurry.clone(),
            entries: BTreeMap::new(),
            queue: VecDeque::new(),
            accepted: Vec::new(),
            running: 0,
            open: true,
            tasks: JoinSet::new(),
        };
        tokio::spawn(dispatcher.run());
        Self {
            messages,
            live,
            hurry,
        }
    }

    /// Takes a rollout; it runs when there is a place for it.
    pub async fn submit(&self, request: RolloutRequest) -> Result<RolloutHandle, SubmitError> {
        let id = request.id;
        let (events, receiver) = broadcast::channel(crate::events::CAPACITY);
        let (outcome, outcome_receiver) = oneshot::channel();
        let (accepted, answer) = oneshot::channel();
        let submission = Submission {
            request,
            events,
            outcome,
            accepted,
        };
        self.messages
            .send(Message::Submit(Box::new(submission)))
            .map_err(|_| SubmitError::Closed)?;
        answer.await.unwrap_or(Err(SubmitError::Closed))?;
        Ok(RolloutHandle {
            id,
            events: receiver,
            outcome: outcome_receiver,
        })
    }

    /// Asks a rollout to stop. It ends as cancelled, with everything cleaned up; one that is over stays as it is.
    pub fn cancel(&self, id: RolloutId) {
        _ = self.messages.send(Message::Cancel(id));
    }

    /// Asks every rollout to stop, waiting ones too.
    pub fn cancel_all(&self) {
        _ = self.messages.send(Message::CancelAll);
    }

    /// Takes no more rollouts. Those that wait still run.
    pub fn stop_admitting(&self) {
        _ = self.messages.send(Message::Close);
    }

    /// Waits no longer for sandboxes to be taken down; the next sweep of their leases does the rest.
    pub fn hurry(&self) {
        self.hurry.cancel();
    }

    /// What waits and runs, oldest first; watch it for changes.
    #[must_use]
    pub fn live(&self) -> watch::Receiver<Arc<Vec<LiveRollout>>> {
        self.live.clone()
    }

    /// Waits until nothing lives.
    pub async fn drained(&self) {
        let mut live = self.live.clone();
        // An error means that the dispatcher is gone, and with it everything that lived.
        _ = live.wait_for(|rollouts| rollouts.is_empty()).await;
    }

    /// Stops admitting, lets what lives end within `grace`, then cancels it and waits for that.
    pub async fn shutdown(&self, grace: Duration) {
        self.stop_admitting();
        if tokio::time::timeout(grace, self.drained()).await.is_err() {
            self.cancel_all();
            self.drained().await;
        }
    }
}

struct Dispatcher {
    config: SupervisorConfig,
    inbox: mpsc::UnboundedReceiver<Message>,
    back: mpsc::WeakUnboundedSender<Message>,
    publish: watch::Sender<Arc<Vec<LiveRollout>>>,
    hurry: CancellationToken,
    entries: BTreeMap<RolloutId, Entry>,
    queue: VecDeque<RolloutId>,
    /// Told that they were taken once that can be seen in what is published.
    accepted: Vec<oneshot::Sender<Result<(), SubmitError>>>,
    running: usize,
    open: bool,
    tasks: JoinSet<RolloutId>,
}

struct Entry {
    live: LiveRollout,
    cancel: CancellationToken,
    /// Taken when it starts to run.
    waiting: Option<Waiting>,
}

struct Waiting {
    request: RolloutRequest,
    events: broadcast::Sender<Arc<RolloutEvent>>,
    outcome: oneshot::Sender<RolloutOutcome>,
}

impl Dispatcher {
    async fn run(mut self) {
        loop {
            tokio::select! {
                biased;
                Some(ended) = self.tasks.join_next() => {
                    // The task wraps whatever a rollout does, panics included, and cannot fail itself.
                    if let Ok(id) = ended {
                        self.entries.remove(&id);
                        self.running = self.running.saturating_sub(1);
                    }
                }
                message = self.inbox.recv() => match message {
                    Some(message) => self.take(message),
                    None if self.entries.is_empty() => return,
                    // Nobody is left who could cancel: what lives runs to its end.
                    None => if let Some(Ok(id)) = self.tasks.join_next().await {
                        self.entries.remove(&id);
                        self.running = self.running.saturating_sub(1);
                    },
                },
            }
            self.admit();
            self.publish();
        }
    }

    fn take(&mut self, message: Message) {
        match message {
            Message::Submit(submission) => self.submit(*submission),
            Message::Stage(id, stage) => {
                if let Some(entry) = self.entries.get_mut(&id)
                    && entry.live.state != LiveState::Cancelling
                {
                    entry.enter(stage.map_or(LiveState::Running, LiveState::In));
                }
            }
            Message::Cancel(id) => {
                if let Some(entry) = self.entries.get_mut(&id) {
                    entry.stop();
                }
            }
            Message::CancelAll => self.entries.values_mut().for_each(Entry::stop),
            Message::Close => self.open = false,
        }
    }

    fn submit(&mut self, submission: Submission) {
        let Submission {
            request,
            events,
            outcome,
            accepted,
        } = submission;
        let id = request.id;
        let answer = match self.entries.contains_key(&id) {
            _ if !self.open => Err(SubmitError::Closed),
            true => Err(SubmitError::Duplicate(id)),
            false => Ok(()),
        };
        if answer.is_err() {
            // Whoever asked may have left.
            _ = accepted.send(answer);
            return;
        }
        // Where the caller has gone in the meantime, nobody wants the rollout.
        if accepted.is_closed() {
            return;
        }
        self.accepted.push(accepted);
        let live = LiveRollout {
            id,
            task: request.task.id.clone(),
            sample: request.sample,
            state: LiveState::Queued,
            since: Instant::now(),
        };
        let cancel = CancellationToken::new();
        self.queue.push_back(id);
        let waiting = Some(Waiting {
            request,
            events,
            outcome,
        });
        self.entries.insert(
            id,
            Entry {
                live,
                cancel,
                waiting,
            },
        );
    }

    /// Starts what there is a place for. A cancelled rollout needs none: it only writes its row and ends.
    fn admit(&mut self) {
        let mut still_waiting = VecDeque::new();
        while let Some(id) = self.queue.pop_front() {
            let Some(entry) = self.entries.get_mut(&id) else {
                continue;
            };
            if self.running >= self.config.concurrency.max(1) && !entry.cancel.is_cancelled() {
                still_waiting.push_back(id);
                continue;
            }
            let Some(waiting) = entry.waiting.take() else {
                continue;
            };
            if !entry.cancel.is_cancelled() {
                entry.enter(LiveState::Running);
            }
            self.running += 1;
            let scope = Scope {
                owner: self.config.owner,
                recorder: self.config.recorder.clone(),
                agents: self.config.agents.clone(),
                cache_dir: self.config.cache_dir.clone(),
                tap_binary: self.config.tap_binary.clone(),
                labels: self.config.labels.clone(),
                events: Events::new(id, waiting.events, self.back.clone()),
                cancel: entry.cancel.clone(),
                hurry: self.hurry.clone(),
                sandbox: OnceLock::new(),
                request: waiting.request,
            };
            self.tasks.spawn(async move {
                // Whoever waits for the outcome may have left; the row is written all the same.
                _ = waiting.outcome.send(run::guarded(scope).await);
                id
            });
        }
        self.queue = still_waiting;
    }

    fn publish(&mut self) {
        let live = self.entries.values().map(|entry| entry.live.clone()).collect();
        self.publish.send_replace(Arc::new(live));
        for accepted in self.accepted.drain(..) {
            _ = accepted.send(Ok(()));
        }
    }
}

impl Entry {
    fn enter(&mut self, state: LiveState) {
        self.live.state = state;
        self.live.since = Instant::now();
    }

    fn stop(&mut self) {
        if !self.cancel.is_cancelled() {
            self.cancel.cancel();
            self.enter(LiveState::Cancelling);
        }
    }
}
