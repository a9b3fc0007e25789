//! The rollout engine: a task is booted, set up, given to an agent, verified and collected.
//!
//! [`Supervisor`] takes [`RolloutRequest`]s, runs so many at once, and owns what is live. `run.rs` is the one page
//! that reads boot, setup, agent, verify, collect; each stage has a file under `stages/`. The engine prints nothing and
//! reads no environment: it emits events and hands what must be kept to a [`dressage_wire::rollout::Recorder`].

/// What one rollout needs.
mod request;

/// Queue and live state: one dispatcher that owns them.
mod supervisor;

/// Which of the waiting may start now.
mod admission;

/// What happens in a rollout, told to whoever listens.
mod events;

/// One rollout on one page.
mod run;

/// The five stages, a file each.
mod stages;

/// The way of sandboxes to the hosts that a task allows.
mod egress;

/// A held rollout, as its caller sees it.
mod hold;

/// Calls on their way from the tap to the recorder.
mod recording;

/// A shell command of a task: run, bounded, reported.
mod command;

/// The environment of a login shell, recorded before there is an agent.
mod environment;

/// What setups made, kept for rollouts that would run the same.
mod snapshots;

/// What has come of a rollout so far.
mod report;

/// Whose failure it was: every code, one table.
pub mod faults;

/// The agents: how each is installed, started, and read.
pub mod agents;

/// Task files on disk.
pub mod load;

/// Ready-made tasks.
pub mod presets;

pub use admission::QueueLimits;
pub use events::{EventReceiver, Observer};
pub use hold::{FinishRequest, Held, HeldCommand, HoldError, SoFar};
pub use request::RolloutRequest;
pub use stages::boot::ROLLOUT_LABEL;
pub use supervisor::{
    Live, LiveRollout, LiveState, RolloutHandle, SubmitError, Supervisor, SupervisorConfig,
};
