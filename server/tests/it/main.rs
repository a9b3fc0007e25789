//! The built program, as its users run it.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that panics has failed, which is what it is for"
)]

/// Folders, the program, servers that misbehave.
mod support;

/// An engine for containers.
#[path = "../../../sandbox/tests/it/engine.rs"]
mod engine;

/// Providers that run programs.
#[path = "../../../sandbox/tests/it/fake.rs"]
#[allow(dead_code, reason = "tests of sandboxes ask more of them")]
mod fake;

/// Help, usage, completions.
mod usage;

/// Pages of docs/ that are made from the source.
mod pages;

/// Tasks and instructions that are none.
mod bad_tasks;

/// Endpoints that cannot be used.
mod bad_endpoints;

/// Machines that lack something.
mod bad_machines;

/// Rollouts of the real agent, from task to reward.
mod rollouts;

/// Exports, what is wrong with them, and taking them in.
mod exporting;

/// Bars, colours and plain lines.
mod terminals;

/// What those who operate a server look at.
mod operating;

/// What is on this machine and at providers, and its end.
mod sandboxes;

/// Images with agents in them.
mod templates;

/// Ctrl-C, kill -9, two processes.
mod endings;

/// `dressage serve` and `dressage mcp`, as their clients see them.
mod serve;
