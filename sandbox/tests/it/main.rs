//! The conformance suite: what every backend of the registry promises, and what each adds.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "in tests a panic is the report"
)]

/// A data directory, backends over it, and what a test asks of a sandbox.
mod world;

/// Files: written, read, listed.
mod files;

/// Programs: output, exit codes, signals, deadlines, trees.
mod programs;
