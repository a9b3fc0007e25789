use crate::call::CallSummary;
use crate::fault::{Ended, Fault};
use crate::ids::RolloutId;
use serde::{Deserialize, Serialize};

/// The five stages of a rollout, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// A sandbox is made.
    Boot,
    /// The task's files are written and its setup commands run.
    Setup,
    /// The agent works.
    Agent,
    /// The task's verify commands run.
    Verify,
    /// Files and logs are fetched.
    Collect,
}

impl Stage {
    /// All five, in order.
    pub const ALL: [Self; 5] = [Self::Boot, Self::Setup, Self::Agent, Self::Verify, Self::Collect];

    /// The word used everywhere.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Boot => "boot",
            Self::Setup => "setup",
            Self::Agent => "agent",
            Self::Verify => "verify",
            Self::Collect => "collect",
        }
    }
}

/// Something that happened in a rollout, with its place in the order of things.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct RolloutEvent {
    /// Whose.
    pub rollout: RolloutId,
    /// Position among the events of its rollout, from 0, without gaps.
    pub sequence: u64,
    /// Milliseconds since the Unix epoch.
    pub unix_ms: u64,
    /// What.
    pub event: Event,
}

/// What happens in a rollout, as it happens.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Event {
    /// The rollout was taken; the first event of each.
    Queued {
        /// How many wait before it.
        position: u64,
    },
    /// A stage began.
    StageStarted {
        /// Which.
        stage: Stage,
    },
    /// A stage ended.
    StageEnded {
        /// Which.
        stage: Stage,
        /// Wall time.
        duration_ms: u64,
    },
    /// A setup or verify command began.
    CommandStarted {
        /// Setup or verify.
        stage: Stage,
        /// Position in the task's list; commands of a hold count on behind those of verify.
        index: usize,
        /// The shell text.
        command: String,
    },
    /// A command wrote something. May be left out under load; results carry the end of the output.
    CommandOutput {
        /// Setup or verify.
        stage: Stage,
        /// Position in the task's list; commands of a hold count on behind those of verify.
        index: usize,
        /// Where it wrote to.
        stream: OutputStream,
        /// What it wrote; invalid UTF-8 is replaced.
        text: String,
    },
    /// A command ended.
    CommandEnded {
        /// Setup or verify.
        stage: Stage,
        /// Position in the task's list; commands of a hold count on behind those of verify.
        index: usize,
        /// What came of it.
        result: crate::reward::CommandResult,
    },
    /// The agent said or did something.
    Agent {
        /// What.
        event: AgentEvent,
    },
    /// A call was sent to the endpoint.
    CallStarted {
        /// Its id.
        call: crate::ids::CallId,
    },
    /// Tokens of a call that goes on were sampled: told twice a second at most, of streams with log-probabilities.
    CallProgress {
        /// Its id.
        call: crate::ids::CallId,
        /// How many were sampled so far.
        tokens: u64,
        /// Those since it was told last, as the endpoint names them.
        text: String,
    },
    /// A call ended and is recorded.
    CallEnded {
        /// Its numbers.
        call: CallSummary,
    },
    /// There is a verdict. Told again where the caller of a held rollout gives another.
    Reward {
        /// The reward.
        value: Option<f64>,
    },
    /// The sandbox is kept for the caller. Told again whenever the deadline moves.
    Held {
        /// The deadline, in milliseconds since the Unix epoch.
        until_unix_ms: u64,
    },
    /// The sandbox is kept no longer.
    Released {
        /// What ended it.
        by: ReleasedBy,
    },
    /// The rollout is over.
    Finished {
        /// How.
        ended: Ended,
        /// Why, where it failed.
        fault: Option<Fault>,
    },
}

impl Event {
    /// Its type: the word used everywhere.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Queued { .. } => "queued",
            Self::StageStarted { .. } => "stage_started",
            Self::StageEnded { .. } => "stage_ended",
            Self::CommandStarted { .. } => "command_started",
            Self::CommandOutput { .. } => "command_output",
            Self::CommandEnded { .. } => "command_ended",
            Self::Agent { .. } => "agent",
            Self::CallStarted { .. } => "call_started",
            Self::CallProgress { .. } => "call_progress",
            Self::CallEnded { .. } => "call_ended",
            Self::Reward { .. } => "reward",
            Self::Held { .. } => "held",
            Self::Released { .. } => "released",
            Self::Finished { .. } => "finished",
        }
    }
}

/// What ended a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum ReleasedBy {
    /// The caller said that it is done.
    Caller,
    /// The deadline passed.
    Deadline,
    /// The rollout was cancelled, or its sandbox could not be kept.
    Cancel,
}

impl ReleasedBy {
    /// The word used everywhere.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Caller => "caller",
            Self::Deadline => "deadline",
            Self::Cancel => "cancel",
        }
    }
}

/// Standard output or standard error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum OutputStream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// What an agent reports of itself, read from its structured output.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum AgentEvent {
    /// It named its session.
    Session {
        /// The agent's own id of it.
        id: String,
    },
    /// It said something.
    Text {
        /// The whole text part.
        text: String,
    },
    /// It used a tool.
    Tool {
        /// The tool's name.
        name: String,
        /// A short form of the input.
        input: String,
        /// Whether the tool failed.
        failed: bool,
    },
    /// It reported an error.
    Error {
        /// What it said.
        message: String,
    },
    /// It ended a step.
    StepEnded {
        /// Its reason.
        reason: String,
    },
}
