//! Sandboxes for agents: one contract, one file a backend.

/// The contract that every backend keeps.
mod contract;

pub use contract::*;
