//! The agents: one file and one row of `Agents::builtin` each.
//!
//! An agent says how its program is installed, how it is started against a base URL, what the lines that it prints
//! mean, and by which signs its calls are known. It never touches a sandbox itself.

/// What an agent is, and what the engine asks of it.
mod contract;

/// Whether a file is a program for this machine.
mod program;

/// A version's tree in Dressage's own cache.
mod tree;

/// What npm fetches.
mod npm;

/// What pip fetches.
mod pip;

/// Tables merged deep.
mod merge;

/// Lines of JSON that mean the same to several agents.
mod lines;

/// OpenCode.
mod opencode;

/// Claude Code.
mod claude_code;

/// Codex.
mod codex;

/// Gemini CLI.
mod gemini_cli;

/// Qwen Code.
mod qwen_code;

/// mini-swe-agent.
mod mini_swe_agent;

/// Any program.
mod command;

pub use claude_code::ClaudeCode;
pub use codex::Codex;
pub use command::Command;
pub use contract::{
    Agent, AgentError, InstallProgress, InstallRequest, Installed, LaunchPlan, LaunchRequest, PlannedFile,
    Session, Wish,
};
pub use gemini_cli::GeminiCli;
pub use lines::LineReader;
pub use mini_swe_agent::MiniSweAgent;
pub use opencode::OpenCode;
pub use qwen_code::QwenCode;
pub use tree::Tree;

use dressage_wire::task::Task;
use std::sync::Arc;

/// The agents that a process knows.
#[derive(Clone)]
pub struct Agents {
    agents: Vec<Arc<dyn Agent>>,
}

impl Agents {
    /// Those that Dressage brings, one row an agent.
    #[must_use]
    pub fn builtin() -> Self {
        Self {
            agents: vec![
                Arc::new(OpenCode),
                Arc::new(ClaudeCode),
                Arc::new(Codex),
                Arc::new(GeminiCli),
                Arc::new(QwenCode),
                Arc::new(MiniSweAgent),
                Arc::new(Command),
            ],
        }
    }

    /// These and one more; it takes the place of one of the same name.
    #[must_use]
    pub fn with(mut self, agent: Arc<dyn Agent>) -> Self {
        self.agents.retain(|known| known.name() != agent.name());
        self.agents.push(agent);
        self
    }

    /// Each, in the order of the table.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<dyn Agent>> {
        self.agents.iter()
    }

    /// The one of that name; [`AgentError::Unknown`] names the nearest where there is none.
    pub fn get(&self, name: &str) -> Result<Arc<dyn Agent>, AgentError> {
        self.iter()
            .find(|agent| agent.name() == name)
            .cloned()
            .ok_or_else(|| AgentError::Unknown {
                name: name.into(),
                known: self.iter().map(|agent| agent.name().to_owned()).collect(),
            })
    }

    /// The agent of a task, where it can do what the task wishes.
    ///
    /// # Errors
    /// [`AgentError::Unknown`], [`AgentError::NotHonoured`] with the key of the task, or what the agent itself says.
    pub fn of_task(&self, task: &Task) -> Result<Arc<dyn Agent>, AgentError> {
        let agent = self.get(&task.agent.name)?;
        let refused = Wish::ALL
            .into_iter()
            .find(|wish| wish.is_in(task) && !agent.honours().contains(wish));
        if let Some(wish) = refused {
            let honour = |other: &&Arc<dyn Agent>| other.honours().contains(&wish);
            return Err(AgentError::NotHonoured {
                name: agent.name(),
                key: wish.key(),
                others: self.iter().filter(honour).map(|other| other.name()).collect(),
            });
        }
        agent.check(&task.agent)?;
        Ok(agent)
    }
}
