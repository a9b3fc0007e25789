//! What remains of rollouts: SQLite, compressed bodies, exports.
//!
//! A [`Store`] is a database in a data directory. It keeps a row for every rollout whatever happened to it, its calls
//! with every token id and log-probability bit for bit, and what was said, each message once. When a method that writes
//! returns, what it was given survives the death of the process. Several processes may use one data directory at once.
//! It does not know how rollouts are run, and holds no secrets.

/// What can go wrong, and what may help.
mod error;

/// Opening a data directory.
mod open;

/// Bytes in packed form: compressed where that helps, with a checksum.
mod packed;

/// Tokens in binary form, bit for bit.
mod codec;

/// Rows as lists show them.
mod rows;

/// Keeping what happens.
mod write;

/// Rollouts that wait, and those that may begin again.
mod queue;

/// The events of rollouts that are over.
mod events;

/// Outcomes that the database would not take.
mod unsaved;

/// Finding rollouts.
mod list;

/// Groups of rollouts.
mod groups;

/// Giving back what was kept of them.
mod read;

/// Everything that was said in a rollout.
mod transcript;

/// Rollouts as they leave.
mod export;

/// Rollouts that come from elsewhere.
mod import;

pub use dressage_wire::rollout::RolloutState;
pub use error::{ImportProblem, Problem, StoreError};
pub use export::{
    Compression, Export, ExportCounts, ExportFilter, FilterError, Format, ParquetError, RowWriter, Wanted,
    read_parquet,
};
pub use groups::{GroupFilter, GroupRow};
pub use import::Imported;
pub use open::Store;
pub use queue::{Adopted, Enqueued, Idempotency, QueuedRollout};
pub use read::StoredRollout;
pub use rows::{ListFilter, ListOrder, ListSort, RolloutCounts, RolloutRow};
pub use transcript::Transcript;
pub use write::title;
