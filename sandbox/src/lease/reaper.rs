use super::{Lease, LeaseError, Owner, dead_owners, end_processes, is_alive, owner};
use dressage_wire::ids::SandboxId;
use std::sync::Arc;

/// Removes what the dead left.
#[derive(Clone, Debug)]
pub struct Reaper {
    owner: Arc<Owner>,
}

/// What a sweep came to.
#[derive(Debug, Default)]
pub struct Swept {
    /// Sandboxes that were removed.
    pub removed: Vec<SandboxId>,
    /// What could not be; the next sweep tries again.
    pub failed: Vec<LeaseError>,
}

impl Reaper {
    /// A reaper for the data directory of `owner`.
    #[must_use]
    pub fn new(owner: Arc<Owner>) -> Self {
        Self { owner }
    }

    /// Removes what belongs to owners that no longer live, and nothing else. Blocks: it removes files.
    ///
    /// # Errors
    /// [`LeaseError`] where the leases cannot be listed.
    pub fn sweep(&self) -> Result<Swept, LeaseError> {
        let data_dir = self.owner.data_dir();
        // Taken before the leases are listed: who is forgotten below left no lease that was not seen.
        let dead = dead_owners(data_dir)?;
        let (leases, unreadable) = Lease::all(data_dir)?;
        let mut swept = Swept {
            removed: Vec::new(),
            failed: unreadable,
        };
        let mut still_leasing = Vec::new();
        let leases: Vec<Lease> = leases
            .into_iter()
            .filter(|lease| lease.owner != self.owner.id() && !is_alive(data_dir, lease.owner))
            .collect();
        end_processes(&leases);
        for lease in leases {
            match lease.clear(data_dir) {
                Ok(()) => {
                    tracing::info!(
                        sandbox.id = %lease.sandbox,
                        sandbox.backend = %lease.backend,
                        "removed a sandbox that its process left behind"
                    );
                    swept.removed.push(lease.sandbox);
                }
                Err(error) => {
                    still_leasing.push(lease.owner);
                    swept.failed.push(error);
                }
            }
        }
        for owner in dead.into_iter().filter(|owner| !still_leasing.contains(owner)) {
            Lease::remove_unfinished(data_dir, owner);
            owner::forget(data_dir, owner);
        }
        Ok(swept)
    }
}
