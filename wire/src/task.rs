//! What is asked for: an instruction, how to set up and verify it, the agent, sampling and limits.
//!
//! A task comes as TOML or JSON text (`Task::from_toml`, `Task::from_json`) or is built in code. What is read is
//! checked as a whole (`Task::validate`), and each error says where in the task it is.

/// The agent of a task, its limits and its reward's range.
mod parts;

/// Hosts that a sandbox may reach.
mod allow;

/// The words that choose between ways to do something.
mod choices;

/// The content of a file of a task.
mod content;

/// From text to task.
mod parse;

/// What a task may ask for.
mod validate;

pub use allow::{AllowedHost, AllowedHostError, Host, Target, TargetError};
pub use choices::{
    CaptureMode, Mode, NetworkPolicy, NetworkPolicyError, Placement, SnapshotWhen, VerifyIn, VerifyWhen,
};
pub use content::{ContentError, FileContent};
pub use parse::TaskError;
pub use parts::{AgentSpec, Limits, McpServer, RewardRange};
pub use validate::{ALLOWED_HOSTS_MAX, INSTRUCTION_MAX_BYTES, TIMEOUT_MAX_S};

use crate::sampling::Sampling;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What a rollout is to do, and how it is judged.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Task {
    /// The caller's name for it; shown, stored, never interpreted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// What the agent is told, verbatim.
    pub instruction: String,
    /// What it is told next, each when it has ended with what it was told before, in the same session.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub turns: Vec<String>,
    /// Shell commands run in order before the agent; the first that fails ends the rollout.
    pub setup: Vec<String>,
    /// Shell commands run in order after the agent; the reward is passed / total.
    pub verify: Vec<String>,
    /// Files written before setup: path (absolute, or relative to the working directory) to content.
    pub files: BTreeMap<String, FileContent>,
    /// Files written after the agent has ended, before verify.
    pub verify_files: BTreeMap<String, FileContent>,
    /// Environment variables of setup, agent and verify.
    pub env: BTreeMap<String, String>,
    /// Which agent works on it, and how it is configured.
    pub agent: AgentSpec,
    /// Sampling parameters, over those of the endpoint.
    pub sampling: Sampling,
    /// Deadlines, budgets and the sandbox's size.
    pub limits: Limits,
    /// Image or template of the sandbox, for backends that have such.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// A Dockerfile, of which the image is built, for backends that build. It has no files beside it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dockerfile: Option<FileContent>,
    /// Who setup, agent and verify are in the image, by name or number, for backends with such. An ordinary user of ours if
    /// unset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// What the sandbox can reach besides its model.
    pub network: NetworkPolicy,
    /// The range an overriding reward must be in.
    pub reward: RewardRange,
    /// Whether verify runs where setup or the agent failed.
    pub verify_when: VerifyWhen,
    /// Where verify runs; where nobody says, in the agent's own sandbox.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verify_in: Option<VerifyIn>,
    /// What is copied into a fresh sandbox for verify: paths, absolute or relative to the working directory, which is copied
    /// where there are none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub outputs: Vec<String>,
    /// Whether what setup made is kept for rollouts that would run the same setup; where nobody says, it is not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<SnapshotWhen>,
    /// The caller's own data, stored and exported as it is.
    pub metadata: serde_json::Map<String, serde_json::Value>,
}
