use nix::errno::Errno;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;

/// Waits for every child there is, and tells those who wait for one of them. Clones are the same list.
#[derive(Clone, Debug)]
pub(super) struct Children {
    waiting: Arc<Mutex<HashMap<Pid, oneshot::Sender<()>>>>,
    ended: Arc<Mutex<Option<Signal>>>,
}

impl Children {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            waiting: Arc::default(),
            ended: Arc::new(Mutex::new(Some(signal(SignalKind::child())?))),
        })
    }

    /// Told when the child has been waited for. To be called before the next await after it was started, so that it
    /// cannot be missed.
    pub(super) fn wait_for(&self, child: Pid) -> oneshot::Receiver<()> {
        let (sender, receiver) = oneshot::channel();
        self.waiting().insert(child, sender);
        receiver
    }

    /// Whether this child is one that somebody waits for: a guard.
    pub(super) fn is_awaited(&self, child: Pid) -> bool {
        self.waiting().contains_key(&child)
    }

    /// Waits for children for ever. To run once.
    pub(super) async fn reap(&self) {
        let signal = self.ended.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(mut signal) = signal else { return };
        loop {
            self.reap_now();
            if signal.recv().await.is_none() {
                return;
            }
        }
    }

    /// Waits for the children that have ended by now.
    pub(super) fn reap_now(&self) {
        loop {
            match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::StillAlive) => return,
                Ok(status) => {
                    if let Some(waiting) = status.pid().and_then(|pid| self.waiting().remove(&pid)) {
                        let _ = waiting.send(());
                    }
                }
                Err(Errno::EINTR) => {}
                // No children at all.
                Err(_) => return,
            }
        }
    }

    fn waiting(&self) -> std::sync::MutexGuard<'_, HashMap<Pid, oneshot::Sender<()>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
