//! The engine, with a scripted model, a scripted agent, and real sandboxes.
//!
//! `local` needs bubblewrap; where it is missing these tests fail and say so.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs,
    reason = "a test ends by panicking"
)]

/// An engine for containers.
#[path = "../../../sandbox/tests/it/engine.rs"]
mod engine;

/// A small sandbox.
#[path = "../../../sandbox/tests/it/spec.rs"]
mod spec;

/// Providers that run programs.
#[path = "../../../sandbox/tests/it/fake.rs"]
#[allow(dead_code, reason = "tests of sandboxes ask more of them")]
mod played;

/// The world that a rollout under test runs in.
mod world;

/// A sandbox backend that is nothing but a plan of what goes wrong.
mod fake;

/// Stages in their order, and what each does.
mod stages;

/// The reward, and everything an agent can leave to steer it.
mod forgery;

/// The same on every backend.
mod everywhere;

/// Keys, and where they are not.
mod secrets;

/// Verify in a sandbox of its own.
mod fresh;

/// What setups made, kept for others.
mod snapshots;

/// What verify commands do wrong.
mod verify;

/// Agents that fail, hang, stay silent or spend their budget.
mod agents;

/// Endpoints that fail, and whose fault it is then.
mod upstream;

/// Sandboxes that fail.
mod sandboxes;

/// The way out of sandboxes that may reach some hosts.
mod egress;

/// The queue: concurrency, cancellation, shutdown.
mod supervisor;

/// The queue: who starts when, and who sees what.
mod queue;

/// Rollouts that are held for their caller.
mod hold;

/// The real OpenCode.
mod opencode;

/// Every real agent.
mod conformance;
