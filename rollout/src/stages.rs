//! The five stages, the plan that is made before them, and the hold.

/// What is decided before anything is made.
pub(crate) mod plan;

/// A sandbox is made.
pub(crate) mod boot;

/// A task's files on their way into the sandbox.
mod files;

/// What a setup made before is found, or kept for others.
pub(crate) mod snapshot;

/// The task's files are written and its setup commands run.
pub(crate) mod setup;

/// The agent works.
pub(crate) mod agent;

/// What the agent made is brought into a sandbox that it never was in.
mod fresh;

/// The task's verify commands run.
pub(crate) mod verify;

/// Between verify and collect: the sandbox is kept for the caller, where that was asked for.
pub(crate) mod hold;

/// Files and logs are fetched.
pub(crate) mod collect;
