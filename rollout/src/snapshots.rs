//! What setups made, kept for rollouts that would run the same.
//!
//! Of those that would, the first makes a snapshot, and the others wait for it. One that nobody asked for within a time is removed, as
//! is the one that was asked for longest ago where there are too many.

use dressage_sandbox::{Backend, SandboxSpec, Snapshot};
use dressage_wire::task::Task;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// A snapshot that nobody asked for within this time is removed.
const MAX_IDLE: Duration = Duration::from_secs(600);

/// How many there are at most.
const MOST: usize = 16;

/// What a setup does, and to what: where it is the same, what it makes is taken for the same.
#[derive(Clone)]
pub(crate) struct Setup {
    backend: &'static str,
    /// Without what differs between rollouts that are otherwise the same, and what the agent needs.
    spec: SandboxSpec,
    task: Arc<Task>,
}

impl Setup {
    pub(crate) fn of(backend: &Arc<dyn Backend>, bare_spec: &SandboxSpec, task: &Arc<Task>) -> Self {
        Self {
            backend: backend.name(),
            spec: SandboxSpec {
                labels: BTreeMap::new(),
                lifetime: Duration::ZERO,
                ..bare_spec.clone()
            },
            task: Arc::clone(task),
        }
    }
}

impl PartialEq for Setup {
    fn eq(&self, other: &Self) -> bool {
        let spec = SandboxSpec {
            id: self.spec.id,
            ..other.spec.clone()
        };
        self.backend == other.backend
            && self.spec == spec
            && (Arc::ptr_eq(&self.task, &other.task)
                || self.task.setup == other.task.setup && self.task.files == other.task.files)
    }
}

/// The snapshots of a supervisor.
#[derive(Clone, Default)]
pub(crate) struct Snapshots(Arc<Mutex<Vec<Entry>>>);

struct Entry {
    /// Tells it from others. Whoever watches the state has the snapshot.
    mark: Arc<()>,
    setup: Setup,
    state: watch::Receiver<State>,
    asked: Instant,
}

#[derive(Clone)]
enum State {
    Making,
    Made(Snapshot),
    /// There can be none, and why.
    Refused(String),
}

/// What there is for who asks.
pub(crate) enum Claim {
    /// Nothing, and whoever asked is to make it.
    Make(Maker),
    /// Another is making it.
    Wait(BeingMade),
    /// It is there.
    Restore(Snapshot),
    /// There can be none, and why.
    Refused(String),
}

impl Snapshots {
    /// Looks for what a setup made; where nothing is, whoever asks is the one to make it.
    pub(crate) fn claim(&self, setup: &Setup) -> Claim {
        let mut entries = self.entries();
        if let Some(entry) = entries.iter_mut().find(|entry| entry.setup == *setup) {
            entry.asked = Instant::now();
            let state = entry.state.borrow().clone();
            return match state {
                State::Making => Claim::Wait(BeingMade(entry.state.clone())),
                State::Made(snapshot) => Claim::Restore(snapshot),
                State::Refused(reason) => Claim::Refused(reason),
            };
        }
        let over = entries.len() >= MOST;
        let longest_ago = entries
            .iter()
            .enumerate()
            .filter(|(_, entry)| over && !matches!(*entry.state.borrow(), State::Making))
            .min_by_key(|(_, entry)| entry.asked)
            .map(|(place, _)| place);
        let evicted = longest_ago.map(|place| entries.swap_remove(place));
        let (state, watched) = watch::channel(State::Making);
        let mark = Arc::new(());
        entries.push(Entry {
            mark: Arc::clone(&mark),
            setup: setup.clone(),
            state: watched,
            asked: Instant::now(),
        });
        drop(entries);
        drop(evicted);
        Claim::Make(Maker {
            snapshots: Arc::downgrade(&self.0),
            mark,
            state,
        })
    }

    /// What a setup made, if it is there.
    pub(crate) fn there(&self, setup: &Setup) -> Option<Snapshot> {
        let mut entries = self.entries();
        let entry = entries.iter_mut().find(|entry| entry.setup == *setup)?;
        entry.asked = Instant::now();
        match &*entry.state.borrow() {
            State::Made(snapshot) => Some(snapshot.clone()),
            _ => None,
        }
    }

    /// Forgets one that cannot be used. It is removed with the last sandbox that has it.
    pub(crate) fn forget(&self, snapshot: &Snapshot) {
        let is_it = |entry: &Entry| matches!(&*entry.state.borrow(), State::Made(made) if made == snapshot);
        self.take_out(is_it);
    }

    /// Removes all that nobody has any more, and waits for that.
    pub(crate) async fn clear(&self) {
        let entries = self.take_out(|entry| !matches!(*entry.state.borrow(), State::Making));
        let made = entries.iter().filter_map(|entry| match &*entry.state.borrow() {
            State::Made(snapshot) => Some(snapshot.clone()),
            _ => None,
        });
        let made: Vec<Snapshot> = made.collect();
        for result in futures_util::future::join_all(made.iter().map(Snapshot::remove)).await {
            if let Err(error) = result {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "a snapshot could not be removed; the next sweep tries again"
                );
            }
        }
    }

    fn take_out(&self, which: impl Fn(&Entry) -> bool) -> Vec<Entry> {
        self.entries().extract_if(.., |entry| which(entry)).collect()
    }

    fn entries(&self) -> MutexGuard<'_, Vec<Entry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Who is to make a snapshot. Those that wait are told when this is dropped, at the latest.
pub(crate) struct Maker {
    snapshots: Weak<Mutex<Vec<Entry>>>,
    mark: Arc<()>,
    state: watch::Sender<State>,
}

impl Maker {
    /// It is there.
    pub(crate) fn made(self, snapshot: Snapshot) {
        self.end(State::Made(snapshot));
    }

    /// There can be none.
    pub(crate) fn refused(self, reason: String) {
        self.end(State::Refused(reason));
    }

    fn end(&self, state: State) {
        self.state.send_replace(state);
        tokio::spawn(forget_in_time(self.snapshots.clone(), Arc::clone(&self.mark)));
    }
}

impl Drop for Maker {
    fn drop(&mut self) {
        if matches!(*self.state.borrow(), State::Making)
            && let Some(snapshots) = self.snapshots.upgrade()
        {
            Snapshots(snapshots).take_out(|entry| Arc::ptr_eq(&entry.mark, &self.mark));
        }
    }
}

/// Forgets an entry that nobody asked for within a time.
async fn forget_in_time(snapshots: Weak<Mutex<Vec<Entry>>>, mark: Arc<()>) {
    let is_it = |entry: &Entry| Arc::ptr_eq(&entry.mark, &mark);
    loop {
        let until = {
            let Some(snapshots) = snapshots.upgrade().map(Snapshots) else {
                return;
            };
            let asked = snapshots
                .entries()
                .iter()
                .find(|entry| is_it(entry))
                .map(|entry| entry.asked);
            let Some(until) = asked.and_then(|asked| asked.checked_add(MAX_IDLE)) else {
                return;
            };
            if until <= Instant::now() {
                snapshots.take_out(is_it);
                return;
            }
            until
        };
        tokio::time::sleep_until(until).await;
    }
}

/// A snapshot that another makes.
pub(crate) struct BeingMade(watch::Receiver<State>);

impl BeingMade {
    /// Waits until it is there; `None` where it will not be.
    pub(crate) async fn end(mut self) -> Option<Snapshot> {
        let state = self.0.wait_for(|state| !matches!(state, State::Making)).await;
        match &*state.ok()? {
            State::Made(snapshot) => Some(snapshot.clone()),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests;
