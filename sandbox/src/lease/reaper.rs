use super::{Lease, LeaseError, Owner, dead_owners, end_processes, is_alive, owner};
use crate::BackendConfig;
use dressage_wire::ids::{OwnerId, SandboxId};
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Between two sweeps of what this process left at providers.
const SWEEP_EVERY: Duration = Duration::from_secs(60);

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
    /// What is at providers, and left by [`Reaper::sweep`] for them to be asked; [`Reaper::sweep_everywhere`] asks.
    pub at_providers: Vec<Lease>,
}

impl Reaper {
    /// A reaper for the data directory of `owner`.
    #[must_use]
    pub fn new(owner: Arc<Owner>) -> Self {
        Self { owner }
    }

    /// As [`Reaper::sweep`], and what is at providers is removed by the backends that made it.
    ///
    /// # Errors
    /// [`LeaseError`] where the leases cannot be listed.
    pub async fn sweep_everywhere(&self, config: &BackendConfig) -> Result<Swept, LeaseError> {
        let reaper = self.clone();
        let swept = tokio::task::spawn_blocking(move || reaper.sweep()).await;
        let mut swept = swept.map_err(|source| LeaseError::File {
            operation: "read",
            path: self.owner.data_dir().to_owned(),
            source: std::io::Error::other(source),
        })??;
        // An owner is forgotten when nothing of it is left.
        let mut owners: BTreeMap<OwnerId, bool> = BTreeMap::new();
        let mut backends = BTreeMap::new();
        let mut left = std::mem::take(&mut swept.at_providers);
        left.sort_by_key(|lease| lease.kind);
        for lease in left {
            let backend = backends.entry(lease.backend.clone()).or_insert_with(|| {
                crate::by_name(&lease.backend)
                    .and_then(|entry| (entry.make)(config))
                    .map_err(Arc::new)
            });
            let removed = match backend {
                Ok(backend) => backend.delete(lease.sandbox).await.map_err(Arc::new),
                Err(error) => Err(Arc::clone(error)),
            };
            let all = owners.entry(lease.owner).or_insert(true);
            match removed {
                Ok(()) => {
                    tell_removed(&lease);
                    swept.removed.push(lease.sandbox);
                }
                Err(error) => {
                    *all = false;
                    swept.failed.push(LeaseError::AtProvider {
                        sandbox: lease.sandbox,
                        backend: lease.backend,
                        source: Box::new(error),
                    });
                }
            }
        }
        for (owner, _) in owners.into_iter().filter(|(_, all)| *all) {
            let left = Lease::all(self.owner.data_dir())?;
            if left.1.is_empty() && !left.0.iter().any(|lease| lease.owner == owner) {
                self.forget(owner);
            }
        }
        Ok(swept)
    }

    /// Removes what this process itself left at providers: sandboxes that could not be ended when they were to be, and those
    /// whose creation was given up before it was known what came of it.
    pub async fn sweep_own(&self, config: &BackendConfig) -> Swept {
        let mut swept = Swept::default();
        for sandbox in self.owner.unresolved() {
            match self.remove_own(sandbox, config).await {
                Ok(found) => {
                    self.owner.resolve(sandbox);
                    swept.removed.extend(found.then_some(sandbox));
                }
                Err(error) => swept.failed.push(error),
            }
        }
        swept
    }

    /// Removes a sandbox, and says whether it was still there.
    async fn remove_own(&self, sandbox: SandboxId, config: &BackendConfig) -> Result<bool, LeaseError> {
        let Some(lease) = Lease::find(self.owner.data_dir(), sandbox)? else {
            return Ok(false);
        };
        let removed = match crate::by_name(&lease.backend).and_then(|entry| (entry.make)(config)) {
            Ok(backend) => backend.delete(sandbox).await,
            Err(error) => Err(error),
        };
        removed.map(|()| true).map_err(|error| LeaseError::AtProvider {
            sandbox,
            backend: lease.backend,
            source: Box::new(error),
        })
    }

    /// Calls [`Reaper::sweep_own`] now and then, for as long as the owner lives, which this does not prolong.
    pub async fn keep_sweeping_own(owner: Weak<Owner>, config: impl Fn(Arc<Owner>) -> BackendConfig) {
        let mut tick = tokio::time::interval(SWEEP_EVERY);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            let Some(owner) = owner.upgrade() else { return };
            let config = config(Arc::clone(&owner));
            let swept = Self::new(owner).sweep_own(&config).await;
            for sandbox in swept.removed {
                tracing::info!(sandbox.id = %sandbox, "removed a sandbox that could not be removed before");
            }
            for error in swept.failed {
                tracing::debug!(
                    error = &error as &dyn std::error::Error,
                    "a sandbox at a provider is still to be removed"
                );
            }
        }
    }

    /// Removes what belongs to owners that no longer live, and nothing else, from this machine. What they have at providers
    /// is listed only. Blocks: it removes files.
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
            at_providers: Vec::new(),
        };
        let leases = leases
            .into_iter()
            .filter(|lease| lease.owner != self.owner.id() && !is_alive(data_dir, lease.owner));
        let (at_providers, leases): (Vec<Lease>, Vec<Lease>) =
            leases.partition(|lease| lease.remote.is_some());
        let mut still_leasing: Vec<OwnerId> = at_providers.iter().map(|lease| lease.owner).collect();
        swept.at_providers = at_providers;
        end_processes(&leases);
        for lease in leases {
            match lease.clear(data_dir) {
                Ok(()) => {
                    tell_removed(&lease);
                    swept.removed.push(lease.sandbox);
                }
                Err(error) => {
                    still_leasing.push(lease.owner);
                    swept.failed.push(error);
                }
            }
        }
        for owner in dead.into_iter().filter(|owner| !still_leasing.contains(owner)) {
            self.forget(owner);
        }
        Ok(swept)
    }

    /// Removes the file of an owner of which nothing is left.
    fn forget(&self, dead: OwnerId) {
        let data_dir = self.owner.data_dir();
        Lease::remove_unfinished(data_dir, dead);
        owner::forget(data_dir, dead);
    }
}

fn tell_removed(lease: &Lease) {
    tracing::info!(
        sandbox.id = %lease.sandbox,
        sandbox.backend = %lease.backend,
        "removed a sandbox that its process left behind"
    );
}
