use super::{Lease, LeaseError, LeaseKind, Owner};
use crate::SandboxSpec;
use dressage_wire::ids::SandboxId;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Label of everything that is made at a provider: the data directory it belongs to.
pub const INSTALLATION_LABEL: &str = "dressage-installation";

/// Label of everything that is made at a provider: the process it belongs to.
pub const OWNER_LABEL: &str = "dressage-owner";

/// Label of everything that is made at a provider: the sandbox. A creation whose answer was lost is found by it.
pub const SANDBOX_LABEL: &str = "dressage-sandbox";

/// For how long something may still come to be after the call that asked for it was lost: a provider that has no place answers
/// late, or has given up waiting itself and places the sandbox nevertheless.
const LATE: Duration = Duration::from_secs(15 * 60);

/// What a sandbox has at a provider, or in an engine, instead of on this machine. Without credentials: who sweeps has its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoteLease {
    /// Where it is: the address of the provider or of the engine, without credentials.
    pub place: String,
    /// What the provider calls it; unset until the provider has answered.
    pub provider_id: Option<String>,
    /// When it was asked for, in milliseconds after 1970.
    pub asked_at_ms: u64,
}

impl RemoteLease {
    /// Whether what the provider does not know of yet may still appear: its creation was asked for, never answered, and
    /// that was not long ago. Such a lease stays.
    #[must_use]
    pub fn may_appear(&self) -> bool {
        self.provider_id.is_none() && u128::from(self.age_ms()) < LATE.as_millis()
    }

    /// For how long it was asked for, in milliseconds.
    pub(crate) fn age_ms(&self) -> u64 {
        now_ms().saturating_sub(self.asked_at_ms)
    }
}

impl Lease {
    /// The labels by which what this lease names is found at its provider.
    #[must_use]
    pub fn provider_labels(&self) -> BTreeMap<String, String> {
        let mut labels = self.labels.clone();
        for (name, value) in [
            (INSTALLATION_LABEL, self.installation.to_string()),
            (OWNER_LABEL, self.owner.to_string()),
            (SANDBOX_LABEL, self.sandbox.to_string()),
        ] {
            labels.insert(name.to_owned(), value);
        }
        labels
    }
}

/// The lease of something at a provider, held by the process that has it made. One that is dropped before it was cleared is for
/// [`Reaper::sweep_own`](super::Reaper::sweep_own), and for the sweep of the next process after that.
#[derive(Debug)]
pub(crate) struct HeldLease {
    owner: Arc<Owner>,
    lease: Mutex<Lease>,
    cleared: AtomicBool,
}

impl HeldLease {
    /// Writes down that something is about to be asked for at `place`. To be done before the call. Blocks: it syncs.
    pub(crate) fn intend(
        owner: &Arc<Owner>,
        backend: &'static str,
        spec: &SandboxSpec,
        place: &str,
    ) -> Result<Self, LeaseError> {
        let lease = Lease::new(owner, spec.id, backend, spec.labels.clone());
        Self::write(owner, lease, place)
    }

    /// The same of a snapshot.
    pub(crate) fn intend_snapshot(
        owner: &Arc<Owner>,
        backend: &'static str,
        id: SandboxId,
        labels: BTreeMap<String, String>,
        place: &str,
    ) -> Result<Self, LeaseError> {
        let mut lease = Lease::new(owner, id, backend, labels);
        lease.kind = LeaseKind::Snapshot;
        Self::write(owner, lease, place)
    }

    fn write(owner: &Arc<Owner>, mut lease: Lease, place: &str) -> Result<Self, LeaseError> {
        lease.remote = Some(RemoteLease {
            place: place.to_owned(),
            provider_id: None,
            asked_at_ms: now_ms(),
        });
        lease.write(owner.data_dir())?;
        Ok(Self {
            owner: Arc::clone(owner),
            lease: Mutex::new(lease),
            cleared: AtomicBool::new(false),
        })
    }

    /// Whose it is.
    pub(crate) fn owner(&self) -> &Arc<Owner> {
        &self.owner
    }

    /// Adds what the provider calls it. Blocks: it syncs, since this outlives the machine.
    pub(crate) fn complete(&self, provider_id: &str) -> Result<(), LeaseError> {
        let mut lease = self.lease.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(remote) = &mut lease.remote {
            remote.provider_id = Some(provider_id.to_owned());
        }
        lease.write(self.owner.data_dir())
    }

    /// Has the lease carry other labels, unless it was removed. Blocks: it syncs.
    pub(crate) fn relabel(&self, labels: BTreeMap<String, String>) -> Result<(), LeaseError> {
        let mut lease = self.lease.lock().unwrap_or_else(PoisonError::into_inner);
        if self.cleared.load(Ordering::Relaxed) {
            return Ok(());
        }
        lease.labels = labels;
        lease.write(self.owner.data_dir())
    }

    /// Removes the lease, once the provider has confirmed that nothing is there.
    pub(crate) fn clear(&self) -> Result<(), LeaseError> {
        self.lease().clear(self.owner.data_dir())?;
        self.cleared.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// The lease as it is now.
    pub(crate) fn lease(&self) -> Lease {
        self.lease.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for HeldLease {
    fn drop(&mut self) {
        if !self.cleared.load(Ordering::Relaxed) {
            self.owner.leave(self.lease().sandbox);
        }
    }
}

/// The lease of a sandbox that may be removed by this process: its own, or that of a dead one; `None` where there is none.
/// Blocks.
pub(crate) fn find_removable(owner: &Owner, sandbox: SandboxId) -> Result<Option<Lease>, LeaseError> {
    let data_dir = owner.data_dir();
    match Lease::find(data_dir, sandbox)? {
        Some(lease) if lease.owner != owner.id() && super::is_alive(data_dir, lease.owner) => {
            Err(LeaseError::OwnedByAnother {
                sandbox,
                owner: lease.owner,
            })
        }
        found => Ok(found),
    }
}

fn now_ms() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(provider_id: Option<&str>, ago: Duration) -> RemoteLease {
        RemoteLease {
            place: "https://api.e2b.app".into(),
            provider_id: provider_id.map(str::to_owned),
            asked_at_ms: now_ms() - u64::try_from(ago.as_millis()).unwrap(),
        }
    }

    #[test]
    fn only_what_was_never_answered_may_still_appear_and_not_forever() {
        assert!(asked(None, Duration::from_secs(60)).may_appear());
        assert!(!asked(None, Duration::from_secs(3600)).may_appear());
        assert!(!asked(Some("i1"), Duration::from_secs(60)).may_appear());
    }
}
