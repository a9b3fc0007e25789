use super::Service;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long an answer holds: whoever asks often does not make the store write often.
const HOLDS: Duration = Duration::from_secs(1);

/// Whether rollouts can be asked for now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// They can.
    Ready,
    /// The server is stopping.
    Draining,
    /// The store cannot be written, or its file is gone.
    StoreFailed,
}

/// What is known of it.
#[derive(Debug, Default)]
pub struct Ready {
    draining: AtomicBool,
    store: Mutex<Option<(Instant, Readiness)>>,
}

impl Ready {
    /// The server stops.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    fn known(&self) -> Option<Readiness> {
        let store = self.store.lock().unwrap_or_else(PoisonError::into_inner);
        store
            .filter(|(asked, _)| asked.elapsed() < HOLDS)
            .map(|(_, known)| known)
    }
}

impl Service {
    /// Whether rollouts can be asked for now.
    pub async fn readiness(&self) -> Readiness {
        let ready = &self.0.ready;
        if ready.draining.load(Ordering::Relaxed) {
            return Readiness::Draining;
        }
        if let Some(known) = ready.known() {
            return known;
        }
        let found = match self.store().check_writable().await {
            Ok(()) => Readiness::Ready,
            Err(error) => {
                tracing::warn!(error = %crate::workspace::chain(&error), "the store cannot be written");
                Readiness::StoreFailed
            }
        };
        *ready.store.lock().unwrap_or_else(PoisonError::into_inner) = Some((Instant::now(), found));
        found
    }
}
