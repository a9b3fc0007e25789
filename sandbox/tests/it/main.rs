//! The conformance suite: what every backend of the registry promises, and what each adds.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "in tests a panic is the report"
)]

/// A small sandbox; the example that measures boots has it from here.
mod spec;

/// An engine for containers; the tests of rollouts have it from here.
mod engine;

/// A data directory, backends over it, and what a test asks of a sandbox.
mod world;

/// Tests that are a part of another, in a process of their own.
mod role;

/// Files: written, read, listed.
mod files;

/// What is taken out of one sandbox and put into another.
mod outputs;

/// Programs: output, exit codes, signals, deadlines, trees.
mod programs;

/// What a sandbox of `local` sees and reaches, and what an agent can do to init and relay.
mod isolation;

/// Memory, processes, processors.
mod limits;

/// Leases, owners, kill, cancel, kill -9, lifetimes.
mod life;

/// Sandboxes that are ready before they are asked for.
mod pool;

/// The files of sandboxes, kept for others to begin with.
mod snapshots;

/// The same at E2B, and faults of it.
mod e2b_snapshots;

/// What verify gets after an agent.
mod separation;

/// Model calls out of a sandbox without a network.
mod relay;

/// The way out of sandboxes that may reach some hosts.
mod egress;

/// The table of backends, and the whole suite as another user.
mod registered;

/// Containers: engines, images, users, limits.
mod docker;

/// Providers, as scripts play them.
mod provider;

/// Providers that run programs.
mod fake;

/// What is promised of sandboxes at providers, and faults of these.
mod remote;

/// The user that agents are at providers.
mod agent_user;

/// Images with what sandboxes need in them.
mod bake;

/// Sandboxes of E2B.
mod e2b;

/// The traps of E2B's protocols, one test for each that this client can step into.
mod e2b_traps;

/// Sandboxes of Hugging Face.
mod huggingface;
