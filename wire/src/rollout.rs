use crate::call::{CaptureLevel, Flag};
use crate::event::Stage;
use crate::fault::{Ended, Fault};
use crate::ids::{CallId, GroupId, OwnerId, RolloutId, SandboxId};
use crate::reward::{CommandResult, Reward};
use crate::task::{CaptureMode, Mode, Placement, Task};
use crate::trajectory::Recorded;
use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What is known of a rollout when it starts. Holds no secret.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct RolloutStart {
    /// Its id.
    pub id: RolloutId,
    /// The process that runs it.
    pub owner: OwnerId,
    /// The task, with its defaults filled in. Its keys are those of a task file.
    #[cfg_attr(feature = "schema", schema(value_type = Object))]
    pub task: Task,
    /// Which of the n rollouts of the task it is, from 0.
    pub sample: u32,
    /// The n rollouts that were asked for together; unset where it was asked for alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<GroupId>,
    /// Name of the endpoint in the catalogue, or `custom`.
    pub endpoint: String,
    /// The endpoint's URL without credentials.
    pub base_url: String,
    /// The model asked for.
    pub model: String,
    /// Name of the sandbox backend.
    pub backend: String,
    /// Version of the agent.
    pub agent_version: String,
    /// Where model calls go.
    pub mode: Mode,
    /// Where the tap answers them.
    pub placement: Placement,
    /// How the tap asks the endpoint.
    pub capture: CaptureMode,
    /// Milliseconds since the Unix epoch.
    pub started_unix_ms: u64,
}

/// What came of a rollout. Written whatever happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct RolloutOutcome {
    /// Its id.
    pub id: RolloutId,
    /// How it ended.
    pub ended: Ended,
    /// Why, where it failed.
    pub fault: Option<Fault>,
    /// The verdict; `None` where verify did not run.
    pub reward: Option<Reward>,
    /// The sandbox it had.
    pub sandbox: Option<SandboxId>,
    /// Each stage that started, with its wall time.
    pub stages: Vec<StageTime>,
    /// Each setup command that was run.
    pub setup: Vec<CommandResult>,
    /// What the agent's program did; `None` if it was never started.
    pub agent: Option<AgentOutcome>,
    /// Files collected from the working directory: path relative to it, to text (invalid UTF-8 replaced).
    pub files: BTreeMap<String, String>,
    /// Paths that were there but not collected.
    pub files_extra: Vec<String>,
    /// Calls by what they add up to.
    pub totals: Totals,
    /// Flags given to calls when all were known (superseded, abandoned), added to those on the call.
    pub late_flags: Vec<(CallId, Vec<Flag>)>,
    /// Things worth knowing that are no failure, such as a sandbox that could not be removed at once.
    pub warnings: Vec<String>,
    /// Wall time.
    pub wall_ms: u64,
    /// Milliseconds since the Unix epoch.
    pub finished_unix_ms: u64,
    /// Why nobody will find it in the store; unset where it is there. Never set in what is stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unstored: Option<Fault>,
}

/// How far a rollout is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum RolloutState {
    /// It waits.
    Queued,
    /// Its owner works on it.
    Running,
    /// It is over, and its outcome is there.
    Finished,
    /// Its owner died over it.
    Interrupted,
}

impl RolloutState {
    /// All four, in order.
    pub const ALL: [Self; 4] = [Self::Queued, Self::Running, Self::Finished, Self::Interrupted];

    /// The word used everywhere.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Running => "running",
            Self::Finished => "finished",
            Self::Interrupted => "interrupted",
        }
    }
}

/// How long a stage took.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct StageTime {
    /// Which.
    pub stage: Stage,
    /// Wall time.
    pub duration_ms: u64,
    /// Of boot: whether the sandbox was ready before it was asked for. Absent where it was not.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub warm: bool,
    /// Of setup, and of verify in a fresh sandbox: whether the sandbox began with what an earlier setup made, which did not run
    /// again. Absent where it did.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub restored: bool,
}

/// What the agent's program did.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct AgentOutcome {
    /// Exit code; 124 after a timeout, 128 + n after signal n.
    pub exit_code: i32,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// Whether it said anything as an assistant.
    pub spoke: bool,
    /// The agent's own id of its session.
    pub session: Option<String>,
    /// The end of what it wrote to both outputs.
    pub log_tail: String,
    /// Wall time.
    pub duration_ms: u64,
}

/// What the calls of a rollout add up to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct Totals {
    /// All calls.
    pub calls: u64,
    /// Calls that can be trained on.
    pub trainable_calls: u64,
    /// Prompt tokens, summed.
    pub prompt_tokens: u64,
    /// Sampled tokens, summed.
    pub completion_tokens: u64,
    /// Sampled tokens that can be trained on.
    pub trainable_tokens: u64,
    /// Prompts that did not go on from an earlier call exactly.
    pub prefix_breaks: u64,
    /// The lowest level among the agent's own complete calls.
    pub level: Option<CaptureLevel>,
}

/// Keeps what happens in rollouts. When a method returns, what it was given survives the death of the process.
#[async_trait]
pub trait Recorder: Send + Sync {
    /// A rollout starts.
    async fn started(&self, start: &RolloutStart) -> Result<(), RecorderError>;

    /// A call of it ended.
    async fn call(&self, rollout: RolloutId, recorded: &Recorded) -> Result<(), RecorderError>;

    /// It is over.
    async fn finished(&self, outcome: &RolloutOutcome) -> Result<(), RecorderError>;
}

/// Something could not be kept.
#[derive(Debug, thiserror::Error)]
#[error("{operation} of rollout {rollout} could not be stored{}", because(.reason.as_deref()))]
pub struct RecorderError {
    /// What was to be kept.
    pub operation: &'static str,
    /// Of which rollout.
    pub rollout: RolloutId,
    /// Why not, in a few words such as `no space is left`; part of the message.
    pub reason: Option<String>,
    /// What remains of it nevertheless.
    pub remains: Remains,
    /// What may help, where that is known.
    pub hint: Option<String>,
    /// Why not.
    #[source]
    pub source: Box<dyn std::error::Error + Send + Sync>,
}

/// What remains of something that a recorder did not keep in its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remains {
    /// All of it, elsewhere, to be taken in later.
    Aside,
    /// Nothing.
    Nothing,
}

fn because(reason: Option<&str>) -> String {
    reason.map(|reason| format!(": {reason}")).unwrap_or_default()
}
