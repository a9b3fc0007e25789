use crate::SandboxError;
use crate::lease::LeaseError;
use dressage_wire::ids::SandboxId;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::watch;

/// What runs of a sandbox. Ended, with everything in it, when it is dropped.
pub(crate) trait Body: Send {
    /// Ends everything, and returns when nothing of it runs any more. Blocks.
    fn end(self: Box<Self>);
}

/// What a sandbox has outside of this process besides what runs. All of it is removed when this is dropped, at the latest.
pub(crate) trait Belongings: Send + Sync {
    /// Has the lease carry other labels, unless everything was removed. Blocks: it syncs.
    fn relabel(&self, labels: BTreeMap<String, String>) -> Result<(), LeaseError>;

    /// Removes everything, once. Blocks for as long as that takes.
    fn clear(&self) -> Result<(), LeaseError>;
}

/// Whether a sandbox still lives, and its end.
pub(crate) struct Life {
    id: SandboxId,
    belongings: Arc<dyn Belongings>,
    state: Arc<Mutex<State>>,
    outcome: watch::Sender<Option<Result<(), Arc<LeaseError>>>>,
}

enum State {
    /// Its processes run.
    Alive(Box<dyn Body>),
    /// They were ended, and others are being started.
    Between,
    /// It was ended, or is being ended.
    Over,
}

impl Life {
    pub(crate) fn new(id: SandboxId, belongings: Arc<dyn Belongings>, body: Box<dyn Body>) -> Self {
        Self {
            id,
            belongings,
            state: Arc::new(Mutex::new(State::Alive(body))),
            outcome: watch::Sender::new(None),
        }
    }

    /// What the sandbox has outside its processes.
    pub(crate) fn belongings(&self) -> &Arc<dyn Belongings> {
        &self.belongings
    }

    pub(crate) fn is_over(&self) -> bool {
        matches!(
            *self.state.lock().unwrap_or_else(PoisonError::into_inner),
            State::Over
        )
    }

    /// Takes the processes away in order to end them and start others; `None` once it is over.
    pub(crate) fn take_body(&self) -> Option<Box<dyn Body>> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match std::mem::replace(&mut *state, State::Between) {
            State::Alive(body) => Some(body),
            other => {
                *state = other;
                None
            }
        }
    }

    /// Puts others in their place; gives them back if the sandbox was ended meanwhile.
    pub(crate) fn put_body(&self, body: Box<dyn Body>) -> Result<(), Box<dyn Body>> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match *state {
            State::Between => {
                *state = State::Alive(body);
                Ok(())
            }
            _ => Err(body),
        }
    }

    /// Ends the sandbox and waits until nothing of it is left. May be called any number of times, by any number at once;
    /// a caller that stops waiting stops nothing.
    pub(crate) async fn end(&self) -> Result<(), SandboxError> {
        self.begin_end();
        let mut outcome = self.outcome.subscribe();
        let result = outcome
            .wait_for(Option::is_some)
            .await
            .ok()
            .and_then(|outcome| outcome.clone());
        match result {
            None | Some(Ok(())) => Ok(()),
            Some(Err(error)) => Err(SandboxError::Left {
                id: self.id,
                source: error,
            }),
        }
    }

    /// Begins to end it. On a thread of its own, which needs no runtime and is not cancelled with one.
    pub(crate) fn begin_end(&self) {
        let before = {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *state, State::Over)
        };
        let failed_before = matches!(&*self.outcome.borrow(), Some(Err(_)));
        if matches!(before, State::Over) && !failed_before {
            return;
        }
        self.outcome.send_replace(None);
        let (belongings, outcome) = (Arc::clone(&self.belongings), self.outcome.clone());
        on_a_thread(move || {
            if let State::Alive(body) = before {
                body.end();
            }
            let result = belongings.clear().map_err(Arc::new);
            drop(belongings);
            outcome.send_replace(Some(result));
        });
    }
}

/// Runs what blocks on a thread of its own, which needs no runtime and is not cancelled with one; or here, where there are no
/// threads to be had.
pub(crate) fn on_a_thread(work: impl FnOnce() + Send + 'static) {
    let work = Arc::new(Mutex::new(Some(work)));
    let take = |work: &Mutex<Option<_>>| work.lock().unwrap_or_else(PoisonError::into_inner).take();
    let there = Arc::clone(&work);
    let spawned = std::thread::Builder::new().name("ending".into()).spawn(move || {
        if let Some(work) = take(&there) {
            work();
        }
    });
    if spawned.is_err()
        && let Some(work) = take(&work)
    {
        work();
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        self.begin_end();
    }
}
