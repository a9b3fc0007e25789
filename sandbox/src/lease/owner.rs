use super::LeaseError;
use dressage_wire::ids::{InstallationId, OwnerId, SandboxId};
use std::collections::BTreeSet;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// A process that owns sandboxes and rollouts, for as long as this value lives.
#[derive(Debug)]
pub struct Owner {
    id: OwnerId,
    installation: InstallationId,
    data_dir: PathBuf,
    path: PathBuf,
    _lock: File,
    /// Sandboxes at providers that nothing in this process has any more, and whose removal is not known to be done.
    unresolved: Mutex<BTreeSet<SandboxId>>,
}

impl Owner {
    /// Makes this process an owner under `data_dir`, which is made where it is missing.
    ///
    /// # Errors
    /// [`LeaseError`] where the data directory cannot be written.
    pub fn acquire(data_dir: &Path) -> Result<Self, LeaseError> {
        make_directory(data_dir)?;
        make_directory(&data_dir.join("leases"))?;
        make_directory(&owners_directory(data_dir))?;
        let installation = installation(data_dir)?;
        loop {
            let id = OwnerId::new();
            let path = lock_path(data_dir, id);
            let file = OpenOptions::new()
                .write(true)
                .create_new(true)
                .mode(0o600)
                .open(&path)
                .map_err(|source| LeaseError::File {
                    operation: "create",
                    path: path.clone(),
                    source,
                })?;
            file.lock().map_err(|source| LeaseError::File {
                operation: "lock",
                path: path.clone(),
                source,
            })?;
            // A sweep may have taken the file for a dead owner's before it was locked, and removed it.
            if same_file(&path, &file) {
                return Ok(Self {
                    id,
                    installation,
                    data_dir: data_dir.to_path_buf(),
                    path,
                    _lock: file,
                    unresolved: Mutex::default(),
                });
            }
        }
    }

    /// Its id.
    #[must_use]
    pub fn id(&self) -> OwnerId {
        self.id
    }

    /// The id of its data directory.
    #[must_use]
    pub fn installation(&self) -> InstallationId {
        self.installation
    }

    /// Leaves the removal of a sandbox to whoever asks for [`Owner::unresolved`].
    pub(super) fn leave(&self, sandbox: SandboxId) {
        self.unresolved
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(sandbox);
    }

    /// A sandbox is gone: nothing is left to do about it.
    pub(super) fn resolve(&self, sandbox: SandboxId) {
        self.unresolved
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&sandbox);
    }

    /// The sandboxes that were left.
    pub(super) fn unresolved(&self) -> Vec<SandboxId> {
        let unresolved = self.unresolved.lock().unwrap_or_else(PoisonError::into_inner);
        unresolved.iter().copied().collect()
    }

    /// Its data directory.
    #[must_use]
    pub fn data_dir(&self) -> &Path {
        &self.data_dir
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        // Removed while the lock is held. If leases are left, a missing file counts as a dead owner too.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Whether an owner lives: its file is there and locked. An unreadable file counts as alive.
#[must_use]
pub fn is_alive(data_dir: &Path, owner: OwnerId) -> bool {
    match File::open(lock_path(data_dir, owner)) {
        Ok(file) => file.try_lock_shared().is_err(),
        Err(error) => error.kind() != ErrorKind::NotFound,
    }
}

/// The owners whose file is there but not locked: processes that ended without [`Owner`]'s drop. Owners that ended well
/// leave no file; ask [`is_alive`] about an owner found elsewhere.
///
/// # Errors
/// [`LeaseError`] where the directory cannot be read.
pub fn dead_owners(data_dir: &Path) -> Result<Vec<OwnerId>, LeaseError> {
    let directory = owners_directory(data_dir);
    let entries = match std::fs::read_dir(&directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(source) => {
            return Err(LeaseError::File {
                operation: "read",
                path: directory,
                source,
            });
        }
    };
    let mut dead: Vec<OwnerId> = entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.strip_suffix(".lock")?.parse().ok())
        .filter(|owner| !is_alive(data_dir, *owner))
        .collect();
    dead.sort();
    Ok(dead)
}

/// Removes the file of an owner that is dead and of which no lease is left.
pub(super) fn forget(data_dir: &Path, owner: OwnerId) {
    let path = lock_path(data_dir, owner);
    if let Ok(file) = File::open(&path)
        && file.try_lock().is_ok()
        && same_file(&path, &file)
    {
        // Under its lock, so that an owner who is just acquiring it notices.
        let _ = std::fs::remove_file(&path);
    }
}

fn owners_directory(data_dir: &Path) -> PathBuf {
    data_dir.join("owners")
}

fn lock_path(data_dir: &Path, owner: OwnerId) -> PathBuf {
    owners_directory(data_dir).join(format!("{owner}.lock"))
}

fn same_file(path: &Path, file: &File) -> bool {
    match (std::fs::metadata(path), file.metadata()) {
        (Ok(by_path), Ok(by_file)) => by_path.ino() == by_file.ino() && by_path.dev() == by_file.dev(),
        _ => false,
    }
}

/// Makes a directory that others may enter but not list: sandboxes of root run as other users and have homes below.
fn make_directory(path: &Path) -> Result<(), LeaseError> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o711)
        .create(path)
        .map_err(|source| LeaseError::File {
            operation: "create",
            path: path.to_path_buf(),
            source,
        })
}

/// Reads the data directory's id, or gives it one. Two processes that do so at once agree.
fn installation(data_dir: &Path) -> Result<InstallationId, LeaseError> {
    let path = data_dir.join("installation");
    let failed = |operation, source| LeaseError::File {
        operation,
        path: path.clone(),
        source,
    };
    loop {
        match std::fs::read_to_string(&path) {
            Ok(text) => {
                return text.trim().parse().map_err(|source| LeaseError::Malformed {
                    path: path.clone(),
                    source: Box::new(source),
                });
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(source) => return Err(failed("read", source)),
        }
        let id = InstallationId::new();
        let fresh = data_dir.join(format!("installation.{id}"));
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&fresh)
            .map_err(|source| failed("create", source))?;
        let written = writeln!(file, "{id}").and_then(|()| file.sync_all());
        // A link fails where the name is taken: the first process wins, and the loop reads what it wrote.
        let linked = written.and_then(|()| std::fs::hard_link(&fresh, &path));
        let _ = std::fs::remove_file(&fresh);
        match linked {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(source) => return Err(failed("write", source)),
        }
    }
}
