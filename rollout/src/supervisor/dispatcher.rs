//! The dispatcher: the only writer of what is live.

use super::{Live, LiveRollout, LiveState, Message, Submission, SubmitError, SupervisorConfig};
use crate::admission::{Admission, Candidate};
use crate::egress::WayOut;
use crate::events::Events;
use crate::hold::{Held, HoldError};
use crate::request::RolloutRequest;
use crate::run::{self, Scope};
use crate::snapshots::Snapshots;
use dressage_wire::event::Event;
use dressage_wire::ids::RolloutId;
use dressage_wire::rollout::RolloutOutcome;
use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::{Instant, SystemTime};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Messages that are taken before what they changed is published.
const AT_ONCE: usize = 256;

pub(super) struct Dispatcher {
    config: SupervisorConfig,
    snapshots: Snapshots,
    inbox: mpsc::UnboundedReceiver<Message>,
    back: mpsc::WeakUnboundedSender<Message>,
    publish: watch::Sender<Live>,
    hurry: CancellationToken,
    admission: Admission,
    /// Those that have left the queue.
    running: BTreeMap<RolloutId, Entry>,
    waiting: BTreeMap<RolloutId, Waiting>,
    /// Those that wait, as they are published; made anew when the queue has changed.
    waiting_shown: Option<Vec<Arc<LiveRollout>>>,
    /// Answers that are given once what was done can be seen in what is published.
    accepted: Vec<oneshot::Sender<Result<(), SubmitError>>>,
    open: bool,
    tasks: JoinSet<RolloutId>,
}

struct Entry {
    live: Arc<LiveRollout>,
    cancel: CancellationToken,
    hold: Option<Held>,
}

struct Waiting {
    live: Arc<LiveRollout>,
    request: RolloutRequest,
    events: Arc<Events>,
    outcome: oneshot::Sender<RolloutOutcome>,
}

impl Dispatcher {
    pub(super) fn new(
        config: SupervisorConfig,
        inbox: mpsc::UnboundedReceiver<Message>,
        back: mpsc::WeakUnboundedSender<Message>,
        publish: watch::Sender<Live>,
        hurry: CancellationToken,
        snapshots: Snapshots,
    ) -> Self {
        Self {
            admission: Admission::new(config.limits.clone()),
            config,
            snapshots,
            inbox,
            back,
            publish,
            hurry,
            running: BTreeMap::new(),
            waiting: BTreeMap::new(),
            waiting_shown: None,
            accepted: Vec::new(),
            open: true,
            tasks: JoinSet::new(),
        }
    }

    pub(super) async fn run(mut self) {
        loop {
            tokio::select! {
                biased;
                Some(ended) = self.tasks.join_next() => self.end(ended),
                message = self.inbox.recv() => match message {
                    Some(message) => self.take(message),
                    None if self.running.is_empty() && self.waiting.is_empty() => return,
                    // Nobody is left who could cancel: what lives runs to its end.
                    None => if let Some(ended) = self.tasks.join_next().await {
                        self.end(ended);
                    },
                },
            }
            for _ in 0..AT_ONCE {
                let Ok(message) = self.inbox.try_recv() else { break };
                self.take(message);
            }
            for id in self.admission.start() {
                self.start(id);
            }
            self.publish();
        }
    }

    fn take(&mut self, message: Message) {
        match message {
            Message::Submit(submissions, accepted) => self.submit(submissions, accepted),
            Message::Stage(id, stage) => self.enter(id, stage.map_or(LiveState::Running, LiveState::In)),
            Message::OpenHold(id, held) => {
                if let Some(entry) = self.running.get_mut(&id) {
                    entry.hold = Some(held);
                }
            }
            Message::Held(id, until) => self.held(id, Some(until)),
            Message::Released(id) => self.held(id, None),
            // Whoever asked may have left, here and below.
            Message::FindHold(id, answer) => _ = answer.send(self.find_hold(id)),
            Message::Cancel(id) => self.cancel(id),
            Message::CancelAll => {
                let all: Vec<_> = self.waiting.keys().chain(self.running.keys()).copied().collect();
                all.into_iter().for_each(|id| self.cancel(id));
            }
            Message::ForgetWaiting(answer) => {
                let forgotten = self.admission.order().collect::<Vec<_>>();
                for id in &forgotten {
                    self.leave_queue(*id);
                }
                _ = answer.send(forgotten);
            }
            Message::Close => self.open = false,
        }
    }

    fn submit(&mut self, submissions: Vec<Submission>, accepted: oneshot::Sender<Result<(), SubmitError>>) {
        if let Err(error) = self.acceptable(&submissions) {
            _ = accepted.send(Err(error));
            return;
        }
        // Where the caller has gone in the meantime, nobody wants the rollouts.
        if accepted.is_closed() {
            return;
        }
        self.accepted.push(accepted);
        self.waiting_shown = None;
        let candidates: Vec<_> = submissions.iter().map(candidate).collect();
        let positions = self.admission.enter(&candidates);
        for (submission, position) in submissions.into_iter().zip(positions) {
            let Submission {
                request,
                events,
                outcome,
            } = submission;
            let events = Events::new(
                request.id,
                events,
                self.config.observer.clone(),
                self.back.clone(),
            );
            events.tell(Event::Queued { position });
            let waiting = Waiting {
                live: Arc::new(live(&request)),
                request,
                events,
                outcome,
            };
            self.waiting.insert(waiting.live.id, waiting);
        }
    }

    fn acceptable(&self, submissions: &[Submission]) -> Result<(), SubmitError> {
        if !self.open {
            return Err(SubmitError::Closed);
        }
        let mut new = HashSet::new();
        let ids = submissions.iter().map(|submission| submission.request.id);
        for id in ids {
            if self.running.contains_key(&id) || self.waiting.contains_key(&id) || !new.insert(id) {
                return Err(SubmitError::Duplicate(id));
            }
        }
        if !self.admission.has_room_for(submissions.len()) {
            return Err(SubmitError::Full {
                waiting: self.admission.waiting(),
                limit: self.config.limits.waiting,
            });
        }
        Ok(())
    }

    fn start(&mut self, id: RolloutId) {
        if let Some(waiting) = self.waiting.remove(&id) {
            self.waiting_shown = None;
            self.spawn(waiting, CancellationToken::new(), LiveState::Running);
        }
    }

    /// Runs what has left the queue.
    fn spawn(&mut self, waiting: Waiting, cancel: CancellationToken, state: LiveState) {
        let Waiting {
            live,
            request,
            events,
            outcome,
        } = waiting;
        let id = live.id;
        let mut entry = Entry {
            live,
            cancel: cancel.clone(),
            hold: None,
        };
        entry.enter(state);
        self.running.insert(id, entry);
        let scope = Scope {
            owner: self.config.owner,
            recorder: self.config.recorder.clone(),
            agents: self.config.agents.clone(),
            cache_dir: self.config.cache_dir.clone(),
            tap_binary: self.config.tap_binary.clone(),
            labels: self.config.labels.clone(),
            pools: self.config.pools.clone(),
            snapshots: self.snapshots.clone(),
            events,
            cancel,
            hurry: self.hurry.clone(),
            sandboxes: Mutex::default(),
            way_out: WayOut::new(request.id, &request.task.network),
            request,
        };
        self.tasks.spawn(async move {
            // Whoever waits for the outcome may have left; the row is written all the same.
            _ = outcome.send(run::guarded(scope).await);
            id
        });
    }

    fn end(&mut self, ended: Result<RolloutId, tokio::task::JoinError>) {
        // The task wraps whatever a rollout does, panics included, and cannot fail itself.
        if let Ok(id) = ended {
            self.running.remove(&id);
            self.admission.end(id);
        }
    }

    /// A rollout that waits needs no place to be cancelled: it only writes its row and ends.
    fn cancel(&mut self, id: RolloutId) {
        if let Some(waiting) = self.leave_queue(id) {
            let cancel = CancellationToken::new();
            cancel.cancel();
            self.spawn(waiting, cancel, LiveState::Cancelling);
        } else if let Some(entry) = self.running.get_mut(&id) {
            entry.cancel.cancel();
            entry.enter(LiveState::Cancelling);
        }
    }

    fn leave_queue(&mut self, id: RolloutId) -> Option<Waiting> {
        let waiting = self.waiting.remove(&id)?;
        self.admission.withdraw(id);
        self.waiting_shown = None;
        Some(waiting)
    }

    fn enter(&mut self, id: RolloutId, state: LiveState) {
        if let Some(entry) = self.running.get_mut(&id) {
            entry.enter(state);
        }
    }

    fn held(&mut self, id: RolloutId, until: Option<SystemTime>) {
        let Some(entry) = self.running.get_mut(&id) else {
            return;
        };
        let is_new = entry.live.held_until.is_none();
        Arc::make_mut(&mut entry.live).held_until = until;
        match until {
            Some(_) if is_new => {
                entry.enter(LiveState::Held);
                self.admission.hold(id);
            }
            Some(_) => {}
            None => {
                entry.hold = None;
                entry.enter(LiveState::Running);
            }
        }
    }

    fn find_hold(&self, id: RolloutId) -> Result<Held, HoldError> {
        let state = match (self.running.get(&id), self.waiting.get(&id)) {
            (Some(Entry { hold: Some(held), .. }), _) => return Ok(held.clone()),
            (Some(entry), _) => entry.live.state,
            (None, Some(waiting)) => waiting.live.state,
            (None, None) => return Err(HoldError::Unknown(id)),
        };
        Err(HoldError::NotHeld { id, state })
    }

    fn publish(&mut self) {
        let waiting = self.waiting_shown.get_or_insert_with(|| {
            let ids = self.admission.order();
            ids.filter_map(|id| Some(self.waiting.get(&id)?.live.clone()))
                .collect()
        });
        let running = self.running.values().map(|entry| &entry.live);
        let live = running.chain(waiting.iter()).cloned().collect();
        self.publish.send_replace(Arc::new(live));
        for accepted in self.accepted.drain(..) {
            _ = accepted.send(Ok(()));
        }
    }
}

impl Entry {
    /// One that was asked to stop stays that until it has ended.
    fn enter(&mut self, state: LiveState) {
        if self.live.state != LiveState::Cancelling {
            let live = Arc::make_mut(&mut self.live);
            live.state = state;
            live.since = Instant::now();
        }
    }
}

fn candidate(submission: &Submission) -> Candidate {
    let request = &submission.request;
    Candidate {
        id: request.id,
        group: request.group,
        priority: request.priority,
        backend: request.backend.name().into(),
        endpoint: request.upstream.endpoint().name.clone(),
    }
}

fn live(request: &RolloutRequest) -> LiveRollout {
    LiveRollout {
        id: request.id,
        task: request.task.id.clone(),
        sample: request.sample,
        group: request.group,
        priority: request.priority,
        backend: request.backend.name(),
        endpoint: request.upstream.endpoint().name.as_str().into(),
        state: LiveState::Queued,
        since: Instant::now(),
        held_until: None,
    }
}
