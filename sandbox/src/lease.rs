//! Who owns what outside the process, and how what the dead left is removed.
//!
//! Whoever makes something outside the process writes a `Lease` first. Each process is an `Owner`: a file
//! under `owners/` in the data directory that it holds locked for as long as it lives. What belongs to an owner
//! whose lock can be taken is removed by `Reaper::sweep`; nothing else ever is, so that two processes on one data directory never
//! remove each other's sandboxes. The kernel drops the lock with the process, however it ends.

/// Processes that own things.
mod owner;

/// What is owned.
mod record;

/// Processes of what is owned.
mod process;

/// What is owned at a provider instead of on this machine.
mod remote;

/// Removes what the dead left.
mod reaper;

pub use owner::{Owner, dead_owners, is_alive};
pub use process::LeasedProcess;
pub(crate) use process::end_processes;
pub use reaper::{Reaper, Swept};
pub use record::{Lease, LeaseKind};
pub(crate) use remote::{HeldLease, find_removable};
pub use remote::{INSTALLATION_LABEL, OWNER_LABEL, RemoteLease, SANDBOX_LABEL};

use std::path::PathBuf;

/// What can go wrong with leases.
#[derive(Debug, thiserror::Error)]
pub enum LeaseError {
    /// The file system refused.
    #[error("{operation} `{}`", path.display())]
    File {
        /// What was tried: `create`, `write`, `lock`, `read`, `remove`.
        operation: &'static str,
        /// On which file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
    /// A file of ours does not say what it should.
    #[error("`{}` is malformed", path.display())]
    Malformed {
        /// Which.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// What is to be removed belongs to another living process.
    #[error("sandbox {sandbox} belongs to the running process {owner}")]
    OwnedByAnother {
        /// Which.
        sandbox: dressage_wire::ids::SandboxId,
        /// Whose it is.
        owner: dressage_wire::ids::OwnerId,
    },
    /// Its provider could not be asked to remove it, or did not.
    #[error("sandbox {sandbox} could not be removed by backend `{backend}`")]
    AtProvider {
        /// Which.
        sandbox: dressage_wire::ids::SandboxId,
        /// Name of the backend that made it.
        backend: String,
        /// Why not.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A control group would not empty.
    #[error("control group `{}` still has processes", path.display())]
    Busy {
        /// Which.
        path: PathBuf,
    },
}
