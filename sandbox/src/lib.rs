//! Sandboxes for agents: one contract, one file a backend.
//!
//! [`registry`] lists the backends; each makes [`Sandbox`]es that keep the promises of the [contract](Backend). What
//! is made outside this process is leased first ([`lease`]), so that whatever happens to the process, the next one removes it.

/// The contract that every backend keeps.
mod contract;

/// The files of a sandbox, kept for others to begin with.
mod snapshot;

/// What a backend is given to work with.
mod config;

/// The backends, and the table of them.
mod backends;

/// Images with what sandboxes need in them.
pub mod bake;

/// Sandboxes that are ready before they are asked for.
mod pool;

/// Who owns what outside the process, and how what the dead left is removed.
pub mod lease;

/// Control groups: limits, and an end for every process in one.
mod cgroup;

/// User ids for sandboxes that root makes.
mod uid;

/// What a sandbox has outside the process.
mod estate;

/// What has no safe form.
mod kernel;

/// Starts programs from a thread that outlives them.
mod spawn;

/// Whether a sandbox lives, and its end.
mod life;

/// The processes of a sandbox on this machine.
mod processes;

/// The conversation with init.
mod control;

/// Its side of the way to hosts that its spec allows.
mod egress;

/// A sandbox in which init runs.
mod controlled;

/// Starts an init, and connects to it.
mod launch;

/// What comes in pieces, read as a stream of bytes.
mod received;

/// What backends at providers share.
mod remote;

/// Archives that come out of sandboxes.
pub mod archive;

/// What is taken out of one sandbox and put into another.
pub mod outputs;

/// Makes directories anew in homes that agents have had.
mod fresh;

/// Removes trees that agents made, whatever they look like.
mod removal;

pub use backends::{BackendEntry, Fact, MakeBaker, Report, by_name, registry};
pub use config::{AgentUser, BackendConfig, DockerAccess, E2bAccess, HuggingFaceAccess, Providers};
pub use contract::*;
pub use pool::{Booted, PoolConfig, PoolCounts, Pools};
pub use snapshot::Snapshot;
