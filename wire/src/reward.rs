use serde::{Deserialize, Serialize};

/// The verdict on a rollout, with what it rests on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reward {
    /// Passed / total, or the override; `None` where there is no verdict.
    pub value: Option<f64>,
    /// Whether a verify command wrote the value itself.
    pub overridden: bool,
    /// Each verify command, in order.
    pub commands: Vec<CommandResult>,
    /// What kept the agent's leavings away from verify.
    pub separation: Separation,
}

/// One command of setup or verify, and what came of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CommandResult {
    /// The shell text.
    pub command: String,
    /// Exit code; 124 after a timeout, 128 + n after signal n, -1 if it could not be run.
    pub exit_code: i32,
    /// The signal that ended it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// Whether the deadline ended it.
    #[serde(default)]
    pub timed_out: bool,
    /// The end of its standard output.
    pub stdout: String,
    /// The end of its standard error.
    pub stderr: String,
    /// Bytes that it wrote to both in all.
    pub output_bytes: u64,
    /// Wall time.
    pub duration_ms: u64,
}

/// What kept the agent's leavings away from verify.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Separation {
    /// A second sandbox that only the outputs were copied to.
    Fresh,
    /// Other pid and mount namespaces over the same home.
    Namespace,
    /// Another user id.
    Uid,
    /// Nothing but the end of the agent's processes.
    None,
}
