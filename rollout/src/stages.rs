//! The five stages, and the plan that is made before them.

/// What is decided before anything is made.
pub(crate) mod plan;

/// A sandbox is made.
pub(crate) mod boot;

/// A task's files on their way into the sandbox.
mod files;

/// The task's files are written and its setup commands run.
pub(crate) mod setup;

/// The agent works.
pub(crate) mod agent;

/// The task's verify commands run.
pub(crate) mod verify;

/// Files and logs are fetched.
pub(crate) mod collect;
