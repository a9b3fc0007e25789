use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Which agent works on a task, and how it is configured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AgentSpec {
    /// A name of the agents' registry.
    pub name: String,
    /// The pinned version if unset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Said to the agent as its system prompt, after its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub system_prompt: Option<String>,
    /// Tools the agent may not use; those it has no use for in a rollout if unset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disabled_tools: Option<Vec<String>>,
    /// A whitelist: where set, no other tool is offered to the model, and `disabled_tools` is not looked at.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enabled_tools: Option<Vec<String>>,
    /// Merged deep into the agent's own configuration.
    pub config: serde_json::Map<String, serde_json::Value>,
    /// Environment variables of the agent alone.
    pub env: BTreeMap<String, String>,
    /// MCP servers whose tools it is given, by name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub mcp_servers: BTreeMap<String, McpServer>,
}

/// An MCP server: a program that the agent starts and talks to over standard input and output, or one that listens.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct McpServer {
    /// The program, in the sandbox.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// Its arguments.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
    /// Environment variables of it alone.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// The URL of one that listens (streamable HTTP), as the sandbox reaches it; instead of `command`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// Headers sent to that.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
}

impl Default for AgentSpec {
    fn default() -> Self {
        Self {
            name: "opencode".into(),
            version: None,
            system_prompt: None,
            disabled_tools: None,
            enabled_tools: None,
            config: serde_json::Map::new(),
            env: BTreeMap::new(),
            mcp_servers: BTreeMap::new(),
        }
    }
}

/// Deadlines, budgets and the sandbox's size. Times in seconds, fractions allowed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// For the sandbox to be there.
    pub boot_timeout_s: f64,
    /// For each setup command.
    pub setup_timeout_s: f64,
    /// For the agent.
    pub agent_timeout_s: f64,
    /// For each verify command.
    pub verify_timeout_s: f64,
    /// For fetching files and logs.
    pub collect_timeout_s: f64,
    /// Model calls of the rollout; no limit if unset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_calls: Option<u64>,
    /// Prompt tokens summed over the rollout's calls; no limit if unset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_prompt_tokens: Option<u64>,
    /// Completion tokens summed over the rollout's calls; no limit if unset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_completion_tokens: Option<u64>,
    /// Seconds of the agent's work after which its calls are answered by the budget; no limit if unset. Unlike
    /// `agent_timeout_s`, whose end is a failure, this is an end at which the work is verified.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_wall_s: Option<f64>,
    /// What the rollout's calls may cost by the endpoint's prices; no limit if unset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_cost: Option<f64>,
    /// What a call may ask for at most; 0 or unset is no cap.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_tokens_cap: Option<u64>,
    /// Memory of the sandbox.
    pub memory_mb: u64,
    /// Processor cores of the sandbox.
    pub cpus: f64,
    /// Processes and threads of the sandbox.
    pub pids: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            boot_timeout_s: 120.0,
            setup_timeout_s: 120.0,
            agent_timeout_s: 600.0,
            verify_timeout_s: 120.0,
            collect_timeout_s: 60.0,
            max_calls: None,
            max_prompt_tokens: None,
            max_completion_tokens: None,
            max_wall_s: None,
            max_cost: None,
            max_tokens_cap: Some(4096),
            memory_mb: 4096,
            cpus: 2.0,
            pids: 512,
        }
    }
}

/// The range an overriding reward must be in, ends included.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RewardRange {
    /// Lowest reward.
    pub min: f64,
    /// Highest reward.
    pub max: f64,
}

impl Default for RewardRange {
    fn default() -> Self {
        Self { min: 0.0, max: 1.0 }
    }
}
