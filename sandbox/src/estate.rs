use crate::SandboxError;
use crate::cgroup::{Cgroup, Hierarchies};
use crate::lease::{Lease, LeaseError, LeaseKind, LeasedProcess, Owner};
use crate::life::Belongings;
use crate::uid::UidLock;
use crate::{SandboxSpec, Size};
use dressage_wire::ids::SandboxId;
use std::collections::BTreeMap;
use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, chown};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// What a sandbox has on this machine besides its processes: lease, home, control group, user id. All of it is removed
/// when this is dropped, at the latest; hence whoever still has a process in it holds it.
#[derive(Debug)]
pub(crate) struct Estate {
    owner: Arc<Owner>,
    lease: Mutex<Lease>,
    home: PathBuf,
    cgroup: Cgroup,
    uid: Option<UidLock>,
    cleared: Mutex<bool>,
}

/// Whether processes get a user id of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Identity {
    /// One for this sandbox alone, if this process may give it one.
    Own,
    /// That of this process.
    Shared,
}

impl Estate {
    /// Leases, then makes, what `spec` needs. On failure nothing remains. Blocks a little: it syncs the lease.
    pub(crate) fn make(
        owner: &Arc<Owner>,
        backend: &'static str,
        spec: &SandboxSpec,
        identity: Identity,
        hierarchies: &Hierarchies,
    ) -> Result<Self, SandboxError> {
        let lease = Lease::new(owner, spec.id, backend, spec.labels.clone());
        Self::of(owner, lease, identity, Some((hierarchies, spec.size)))
    }

    /// The same for the files of a sandbox alone: nothing runs there.
    pub(crate) fn for_snapshot(
        &self,
        id: SandboxId,
        labels: BTreeMap<String, String>,
    ) -> Result<Self, SandboxError> {
        let backend = self
            .lease
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .backend
            .clone();
        let mut lease = Lease::new(&self.owner, id, &backend, labels);
        lease.kind = LeaseKind::Snapshot;
        let identity = match self.uid {
            Some(_) => Identity::Own,
            None => Identity::Shared,
        };
        Self::of(&self.owner, lease, identity, None)
    }

    fn of(
        owner: &Arc<Owner>,
        mut lease: Lease,
        identity: Identity,
        limits: Option<(&Hierarchies, Size)>,
    ) -> Result<Self, SandboxError> {
        let data_dir = owner.data_dir();
        let id = lease.sandbox;
        let failed = |step: &str| {
            let step = step.to_owned();
            move |source: io::Error| SandboxError::Create {
                step,
                source: Some(source),
            }
        };
        let uid = match identity {
            Identity::Own if nix::unistd::geteuid().is_root() => {
                Some(UidLock::take(data_dir).map_err(failed("take a user id"))?)
            }
            _ => None,
        };
        let homes = Lease::homes_directory(data_dir);
        let home = homes.join(id.to_string());
        let name = Lease::outside_name(id);
        lease.home = Some(home.clone());
        lease.uid = uid.as_ref().map(UidLock::uid);
        lease.cgroups = limits
            .map(|(hierarchies, _)| Cgroup::plan(hierarchies, &name))
            .unwrap_or_default();
        lease
            .write(data_dir)
            .map_err(|source| SandboxError::Lease { id, source })?;
        // From here on dropping the estate removes what was made.
        let mut estate = Self {
            owner: Arc::clone(owner),
            lease: Mutex::new(lease),
            home,
            cgroup: Cgroup::default(),
            uid,
            cleared: Mutex::new(false),
        };
        let made = make_home(&homes, &estate.home, estate.uid()).map_err(failed("make the home"));
        let made = made.and_then(|()| {
            if let Some((hierarchies, size)) = limits {
                estate.cgroup = Cgroup::make(hierarchies, &name, size).map_err(failed("set its limits"))?;
            }
            Ok(())
        });
        match made {
            Ok(()) => Ok(estate),
            Err(error) => {
                let _ = estate.clear();
                Err(error)
            }
        }
    }

    /// Its home on this machine.
    pub(crate) fn home(&self) -> &Path {
        &self.home
    }

    /// Where the home of a snapshot of this installation is.
    pub(crate) fn home_of(&self, snapshot: SandboxId) -> PathBuf {
        Lease::homes_directory(self.owner.data_dir()).join(snapshot.to_string())
    }

    /// The user id of its own, where it has one.
    pub(crate) fn uid(&self) -> Option<u32> {
        self.uid.as_ref().map(UidLock::uid)
    }

    /// See [`Lease::outside_name`].
    pub(crate) fn process_name(&self) -> String {
        Lease::outside_name(self.id())
    }

    /// See [`Cgroup::entrances`].
    pub(crate) fn entrances(&self) -> io::Result<Vec<File>> {
        self.cgroup.entrances()
    }

    /// Adds the outermost processes to the lease, in place of those named before.
    pub(crate) fn name_processes(&self, pids: &[i32]) -> Result<(), LeaseError> {
        let mut lease = self.lease.lock().unwrap_or_else(PoisonError::into_inner);
        lease.processes = pids.iter().filter_map(|pid| LeasedProcess::of(*pid)).collect();
        lease.update(self.owner.data_dir())
    }

    fn id(&self) -> SandboxId {
        self.lease.lock().unwrap_or_else(PoisonError::into_inner).sandbox
    }
}

impl Belongings for Estate {
    fn relabel(&self, labels: BTreeMap<String, String>) -> Result<(), LeaseError> {
        let cleared = self.cleared.lock().unwrap_or_else(PoisonError::into_inner);
        if *cleared {
            return Ok(());
        }
        let mut lease = self.lease.lock().unwrap_or_else(PoisonError::into_inner);
        lease.labels = labels;
        lease.update(self.owner.data_dir())
    }

    fn clear(&self) -> Result<(), LeaseError> {
        let mut cleared = self.cleared.lock().unwrap_or_else(PoisonError::into_inner);
        if !*cleared {
            self.lease
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .clear(self.owner.data_dir())?;
            *cleared = true;
        }
        Ok(())
    }
}

impl Drop for Estate {
    fn drop(&mut self) {
        if let Err(error) = self.clear() {
            tracing::warn!(
                sandbox.id = %self.id(),
                error = &error as &dyn std::error::Error,
                "a sandbox could not be removed; the next sweep tries again"
            );
        }
    }
}

fn make_home(homes: &Path, home: &Path, uid: Option<u32>) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o711).create(homes)?;
    DirBuilder::new().mode(0o700).create(home)?;
    if let Some(uid) = uid {
        chown(home, Some(uid), Some(uid))?;
    }
    Ok(())
}

/// Checks that numbers make sense before the kernel refuses them in its own words.
pub(crate) fn check_size(backend: &'static str, size: Size) -> Result<(), SandboxError> {
    let unsupported = |what: String| Err(SandboxError::Unsupported { backend, what });
    if size.memory_bytes < 16 << 20 {
        return unsupported(format!(
            "a sandbox with {} bytes of memory (16 MB at least)",
            size.memory_bytes
        ));
    }
    if !size.cpus.is_finite() || size.cpus < 0.01 {
        return unsupported(format!(
            "a sandbox with {} processor cores (0.01 at least)",
            size.cpus
        ));
    }
    if size.pids < 8 {
        return unsupported(format!("a sandbox with {} processes (8 at least)", size.pids));
    }
    Ok(())
}
