use super::engine::Engine;
use crate::SandboxError;
use crate::backends::block_on;
use crate::lease::{HeldLease, Lease, LeaseError, LeaseKind};
use crate::life::{Belongings, Body, on_a_thread};
use dressage_wire::ids::SandboxId;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Between two looks for a container whose creation was not answered.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// How long after it was asked for a container may still come to be: the engine makes it within a second or never, but on a
/// machine that does ten times too much.
const LATE_MS: u64 = 20_000;

/// What images of snapshots are called, before their ids.
pub(super) const SNAPSHOTS: &str = "dressage-snapshot";

/// What a container is called.
pub(super) fn container_name(sandbox: SandboxId) -> String {
    format!("dressage-{sandbox}")
}

/// What the image of a snapshot is called.
pub(super) fn snapshot_name(snapshot: SandboxId) -> String {
    format!("{SNAPSHOTS}:{snapshot}")
}

/// What a sandbox has in the engine: one container, under a lease; or what a snapshot has: an image. Removed when this is dropped, at the latest.
pub(super) struct Holdings {
    kept: Arc<Kept>,
}

struct Kept {
    engine: Engine,
    lease: HeldLease,
    /// Whether the engine was asked for it.
    asked: AtomicBool,
    cleared: Mutex<bool>,
}

impl Holdings {
    pub(super) fn new(engine: &Engine, lease: HeldLease) -> Self {
        Self {
            kept: Arc::new(Kept {
                engine: engine.clone(),
                lease,
                asked: AtomicBool::new(false),
                cleared: Mutex::new(false),
            }),
        }
    }

    pub(super) fn labels(&self) -> std::collections::BTreeMap<String, String> {
        self.kept.lease.lease().provider_labels()
    }

    /// The engine is about to be asked for it.
    pub(super) fn asking(&self) {
        self.kept.asked.store(true, Ordering::Relaxed);
    }

    /// The engine refused: there is none.
    pub(super) fn refused(&self) {
        self.kept.asked.store(false, Ordering::Relaxed);
    }

    /// The engine made it. Blocks.
    pub(super) fn made(&self, container: &str) -> Result<(), LeaseError> {
        self.kept.lease.complete(container)
    }
}

impl Belongings for Holdings {
    fn relabel(&self, labels: BTreeMap<String, String>) -> Result<(), LeaseError> {
        self.kept.lease.relabel(labels)
    }

    fn clear(&self) -> Result<(), LeaseError> {
        self.kept.clear()
    }
}

impl Kept {
    fn clear(&self) -> Result<(), LeaseError> {
        let mut cleared = self.cleared.lock().unwrap_or_else(PoisonError::into_inner);
        if *cleared {
            return Ok(());
        }
        if self.asked.load(Ordering::Relaxed) {
            let lease = self.lease.lease();
            block_on(remove(&self.engine, &lease))
                .unwrap_or_else(|source| Err(at_provider(lease.sandbox, Box::new(source))))?;
        }
        self.lease.clear()?;
        *cleared = true;
        Ok(())
    }
}

impl Drop for Holdings {
    fn drop(&mut self) {
        if *self.kept.cleared.lock().unwrap_or_else(PoisonError::into_inner) {
            return;
        }
        let kept = Arc::clone(&self.kept);
        on_a_thread(move || {
            if let Err(error) = kept.clear() {
                tracing::warn!(
                    sandbox.id = %kept.lease.lease().sandbox,
                    error = &error as &dyn std::error::Error,
                    "a sandbox could not be removed; the next sweep tries again"
                );
            }
        });
    }
}

/// Removes the container or image that a lease names, not the lease. A container whose creation was never answered is waited for;
/// an image takes long to come, and is left to a later attempt.
pub(super) async fn remove(engine: &Engine, lease: &Lease) -> Result<(), LeaseError> {
    let failed = |source: SandboxError| at_provider(lease.sandbox, Box::new(source));
    let Some(remote) = &lease.remote else {
        return Ok(());
    };
    if remote.place != engine.place() {
        return Err(at_provider(
            lease.sandbox,
            "it is in another engine than the one that is configured".into(),
        ));
    }
    if lease.kind == LeaseKind::Snapshot {
        let name = snapshot_name(lease.sandbox);
        let found = engine.remove_image(&name).await.map_err(failed)?;
        if !found && remote.may_appear() {
            return Err(at_provider(
                lease.sandbox,
                "its creation was never answered, and may still come to be".into(),
            ));
        }
        return Ok(());
    }
    let name = container_name(lease.sandbox);
    loop {
        let found = engine.remove(&name).await.map_err(failed)?;
        if found || remote.provider_id.is_some() || remote.age_ms() >= LATE_MS {
            return Ok(());
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

fn at_provider(sandbox: SandboxId, source: Box<dyn std::error::Error + Send + Sync>) -> LeaseError {
    LeaseError::AtProvider {
        sandbox,
        backend: super::NAME.into(),
        source,
    }
}

/// What runs in a container.
pub(super) struct Contained {
    pub(super) engine: Engine,
    pub(super) container: String,
}

impl Body for Contained {
    fn end(self: Box<Self>) {
        let ended = block_on(self.engine.end(&self.container));
        let ended = ended.map_err(|error| SandboxError::Create {
            step: "end its processes".into(),
            source: Some(error),
        });
        if let Err(error) = ended.and_then(|ended| ended) {
            tracing::warn!(
                sandbox.name = self.container,
                error = &error as &dyn std::error::Error,
                "a sandbox's processes could not be ended"
            );
        }
    }
}
