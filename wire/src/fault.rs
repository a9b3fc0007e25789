use crate::event::Stage;
use serde::{Deserialize, Serialize};

/// Why a rollout failed: one for each failed rollout, stored with it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Fault {
    /// A stable word for branching on, such as `setup_command_failed`; docs/errors.md lists them.
    pub code: String,
    /// Whose failure it was.
    pub owner: FaultOwner,
    /// Where in the rollout; unset before boot.
    pub stage: Option<Stage>,
    /// Whether the same rollout may succeed when tried again.
    pub retryable: bool,
    /// What failed, with which object: the outermost message, lower case.
    pub message: String,
    /// The messages of the causes, outermost first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub causes: Vec<String>,
    /// What may help, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

/// Whose failure it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum FaultOwner {
    /// Its commands, files or reward.
    Task,
    /// The agent's program.
    Agent,
    /// The sandbox or its provider.
    Sandbox,
    /// The model endpoint.
    Upstream,
    /// Dressage itself.
    Server,
}

/// How a rollout ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Ended {
    /// The agent ended by itself with exit 0.
    Completed,
    /// A budget ended the agent.
    Budget,
    /// A deadline ended it.
    Timeout,
    /// The agent failed, or what it stands on did.
    AgentError,
    /// Boot or setup failed.
    SetupError,
    /// Somebody asked for it to stop.
    Cancelled,
}
