use super::{LeaseError, LeasedProcess, Owner, RemoteLease};
use crate::cgroup::Cgroup;
use crate::removal::remove_tree;
use dressage_wire::ids::{InstallationId, OwnerId, SandboxId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// What a lease is on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LeaseKind {
    /// A sandbox.
    #[default]
    Sandbox,
    /// Files that sandboxes begin with. Removed after all sandboxes, since some may be made of it.
    Snapshot,
}

impl LeaseKind {
    fn is_sandbox(&self) -> bool {
        *self == Self::Sandbox
    }
}

/// What a sandbox has outside the process, written down before it is made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// The data directory it is under.
    pub installation: InstallationId,
    /// Whose it is.
    pub owner: OwnerId,
    /// The sandbox, or the snapshot.
    pub sandbox: SandboxId,
    /// Which of them it is.
    #[serde(default, skip_serializing_if = "LeaseKind::is_sandbox")]
    pub kind: LeaseKind,
    /// Name of the backend that makes it.
    pub backend: String,
    /// Carried for [`crate::Backend::list`].
    pub labels: BTreeMap<String, String>,
    /// Its home on this machine.
    pub home: Option<PathBuf>,
    /// The user on this machine that its processes run as, where it has one of its own.
    pub uid: Option<u32>,
    /// Its control groups, one a hierarchy.
    pub cgroups: Vec<PathBuf>,
    /// Its outermost processes; ending them ends the rest.
    pub processes: Vec<LeasedProcess>,
    /// What it has at a provider, instead of all that is above. Its removal is asked of the backend.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remote: Option<RemoteLease>,
}

impl Lease {
    /// A lease on nothing yet.
    #[must_use]
    pub fn new(owner: &Owner, sandbox: SandboxId, backend: &str, labels: BTreeMap<String, String>) -> Self {
        Self {
            installation: owner.installation(),
            owner: owner.id(),
            sandbox,
            kind: LeaseKind::Sandbox,
            backend: backend.to_owned(),
            labels,
            home: None,
            uid: None,
            cgroups: Vec::new(),
            processes: Vec::new(),
            remote: None,
        }
    }

    /// What a sandbox's control groups are called, and its processes until they are in its namespaces: their first argument.
    /// The latter is how `end_processes` finds one that no lease names yet.
    #[must_use]
    pub fn outside_name(sandbox: SandboxId) -> String {
        format!("dressage-{sandbox}")
    }

    /// Where homes are kept.
    #[must_use]
    pub fn homes_directory(data_dir: &Path) -> PathBuf {
        data_dir.join("homes")
    }

    /// Writes the lease so that it survives the machine. To be done before anything it names is made.
    ///
    /// # Errors
    /// [`LeaseError::File`].
    pub fn write(&self, data_dir: &Path) -> Result<(), LeaseError> {
        self.put(data_dir, true)
    }

    /// Adds what has become known since, such as process numbers. These end with the machine, hence nothing is synced.
    ///
    /// # Errors
    /// [`LeaseError::File`].
    pub fn update(&self, data_dir: &Path) -> Result<(), LeaseError> {
        self.put(data_dir, false)
    }

    fn put(&self, data_dir: &Path, sync: bool) -> Result<(), LeaseError> {
        let path = lease_path(data_dir, self.sandbox);
        let fresh = leases_directory(data_dir).join(format!("{}{}", self.sandbox, unfinished(self.owner)));
        let failed = |operation, source| LeaseError::File {
            operation,
            path: path.clone(),
            source,
        };
        let text = serde_json::to_vec_pretty(self).map_err(|source| LeaseError::Malformed {
            path: path.clone(),
            source: Box::new(source),
        })?;
        let mut file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&fresh)
            .map_err(|source| failed("create", source))?;
        file.write_all(&text).map_err(|source| failed("write", source))?;
        if sync {
            file.sync_all().map_err(|source| failed("write", source))?;
        }
        std::fs::rename(&fresh, &path).map_err(|source| failed("write", source))?;
        if sync && let Some(directory) = path.parent() {
            File::open(directory)
                .and_then(|directory| directory.sync_all())
                .map_err(|source| failed("write", source))?;
        }
        Ok(())
    }

    /// The lease of one sandbox.
    ///
    /// # Errors
    /// [`LeaseError`] where it is there but cannot be read.
    pub fn find(data_dir: &Path, sandbox: SandboxId) -> Result<Option<Self>, LeaseError> {
        let path = lease_path(data_dir, sandbox);
        match std::fs::read(&path) {
            Ok(text) => serde_json::from_slice(&text)
                .map(Some)
                .map_err(|source| LeaseError::Malformed {
                    path,
                    source: Box::new(source),
                }),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(source) => Err(LeaseError::File {
                operation: "read",
                path,
                source,
            }),
        }
    }

    /// All leases under a data directory, whoever holds them, oldest first; those that cannot be read are errors
    /// beside them.
    ///
    /// # Errors
    /// [`LeaseError::File`] where the directory cannot be read.
    pub fn all(data_dir: &Path) -> Result<(Vec<Self>, Vec<LeaseError>), LeaseError> {
        let directory = leases_directory(data_dir);
        let entries = match std::fs::read_dir(&directory) {
            Ok(entries) => entries,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok((Vec::new(), Vec::new())),
            Err(source) => {
                return Err(LeaseError::File {
                    operation: "read",
                    path: directory,
                    source,
                });
            }
        };
        let mut sandboxes: Vec<SandboxId> = entries
            .flatten()
            .filter_map(|entry| entry.file_name().to_str()?.strip_suffix(".json")?.parse().ok())
            .collect();
        sandboxes.sort();
        let (mut leases, mut unreadable) = (Vec::new(), Vec::new());
        for sandbox in sandboxes {
            match Self::find(data_dir, sandbox) {
                Ok(lease) => leases.extend(lease),
                Err(error) => unreadable.push(error),
            }
        }
        Ok((leases, unreadable))
    }

    /// Removes what an owner that died while it wrote a lease had of it. Nothing exists by such a lease yet, or the whole
    /// lease it was to replace is still there.
    pub(super) fn remove_unfinished(data_dir: &Path, owner: OwnerId) {
        let entries = std::fs::read_dir(leases_directory(data_dir));
        for entry in entries.into_iter().flatten().flatten() {
            if entry.file_name().to_string_lossy().ends_with(&unfinished(owner)) {
                // What cannot be removed now is tried again by nobody, and is read by nobody either.
                let _ = std::fs::remove_file(entry.path());
            }
        }
    }

    /// Removes everything that the lease names but processes, which have ended or are in its control groups, then the lease.
    /// What is gone already is no error. Blocks for as long as the removal of the files takes.
    ///
    /// # Errors
    /// [`LeaseError`] where something is left; the lease then stays, for the next sweep.
    pub fn clear(&self, data_dir: &Path) -> Result<(), LeaseError> {
        for path in &self.cgroups {
            Cgroup::remove(path)?;
        }
        if let Some(home) = &self.home {
            // A lease is ours, but a home is removed as root: nothing outside our own folder ever is.
            if home.parent() == Some(Self::homes_directory(data_dir).as_path()) {
                remove_tree(home).map_err(|source| LeaseError::File {
                    operation: "remove",
                    path: home.clone(),
                    source,
                })?;
            }
        }
        let path = lease_path(data_dir, self.sandbox);
        match std::fs::remove_file(&path) {
            Err(source) if source.kind() != ErrorKind::NotFound => Err(LeaseError::File {
                operation: "remove",
                path,
                source,
            }),
            _ => Ok(()),
        }
    }
}

fn leases_directory(data_dir: &Path) -> PathBuf {
    data_dir.join("leases")
}

/// How the name of a lease ends while its owner writes it.
fn unfinished(owner: OwnerId) -> String {
    format!(".{owner}.new")
}

fn lease_path(data_dir: &Path, sandbox: SandboxId) -> PathBuf {
    leases_directory(data_dir).join(format!("{sandbox}.json"))
}
