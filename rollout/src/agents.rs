//! The agents: one file and one row of `Agents::builtin` each.
//!
//! An agent says how its program is installed, how it is started against a base URL, what the lines that it prints
//! mean, and by which signs its calls are known. It never touches a sandbox itself.

/// What an agent is, and what the engine asks of it.
mod contract;

/// Whether a file is a program for this machine.
mod program;

/// npm packages, installed into Dressage's own cache.
mod npm;

/// OpenCode.
mod opencode;

pub use contract::{
    Agent, AgentError, InstallProgress, InstallRequest, Installed, LaunchPlan, LaunchRequest, PlannedFile,
};
pub use opencode::OpenCode;

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
            agents: vec![Arc::new(OpenCode)],
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
}
