//! What has come of a rollout so far, and how it stops.

use crate::environment::RecordedEnvironment;
use crate::faults::{self, FaultCode};
use dressage_sandbox::SandboxError;
use dressage_wire::event::Stage;
use dressage_wire::fault::{Ended, Fault};
use dressage_wire::ids::{RolloutId, SandboxId};
use dressage_wire::reward::{CommandResult, Reward};
use dressage_wire::rollout::{AgentOutcome, RolloutOutcome, StageTime, Totals};
use std::collections::BTreeMap;
use std::time::Instant;

/// Why a stage did not do what it was to do. What it did until then is in the report.
#[derive(Debug)]
pub(crate) enum Stop {
    /// Somebody asked for it.
    Cancelled,
    /// Something failed.
    Failed(Box<Fault>),
}

impl From<Fault> for Stop {
    fn from(fault: Fault) -> Self {
        Self::Failed(Box::new(fault))
    }
}

impl Stop {
    /// A sandbox did not do what it was asked for; `otherwise` says whose failure it is if the sandbox still stands.
    pub(crate) fn sandbox(stage: Stage, otherwise: FaultCode, error: &SandboxError) -> Self {
        let code = match error {
            SandboxError::Gone { .. } => faults::SANDBOX_GONE,
            _ => otherwise,
        };
        let mut fault = code.from_error(Some(stage), error);
        fault.hint = error.hint();
        fault.into()
    }

    /// A sandbox did not report the end of what it should have ended itself.
    pub(crate) fn unresponsive(stage: Stage) -> Self {
        faults::SANDBOX_GONE
            .fault(
                Some(stage),
                "sandbox did not report the end of a command that was past its deadline",
            )
            .into()
    }
}

/// What has come of a rollout so far. Stages write into it as they go, so that nothing is lost when one is cut short.
pub(crate) struct Report {
    started: Instant,
    pub(crate) stages: Vec<StageTime>,
    pub(crate) sandbox: Option<SandboxId>,
    /// Whether the sandbox was ready before it was asked for.
    pub(crate) warm: bool,
    /// The stages in which an earlier setup's files were taken instead of setup.
    pub(crate) restored: Vec<Stage>,
    pub(crate) setup: Vec<CommandResult>,
    /// Whether setup did all that it was to do.
    pub(crate) set_up: bool,
    /// What verify starts with; recorded at the end of setup.
    pub(crate) environment: Option<RecordedEnvironment>,
    pub(crate) agent: Option<AgentOutcome>,
    /// How the agent stage ended; `None` if there was none.
    pub(crate) agent_ended: Option<Ended>,
    pub(crate) reward: Option<Reward>,
    pub(crate) files: BTreeMap<String, String>,
    pub(crate) files_extra: Vec<String>,
    pub(crate) warnings: Vec<String>,
    cancelled: bool,
    fault: Option<Fault>,
}

impl Report {
    pub(crate) fn new() -> Self {
        Self {
            started: Instant::now(),
            stages: Vec::new(),
            sandbox: None,
            warm: false,
            restored: Vec::new(),
            setup: Vec::new(),
            set_up: false,
            environment: None,
            agent: None,
            agent_ended: None,
            reward: None,
            files: BTreeMap::new(),
            files_extra: Vec::new(),
            warnings: Vec::new(),
            cancelled: false,
            fault: None,
        }
    }

    /// Takes a reason to stop. The first fault is the rollout's; what fails after it is a warning, and never hides it.
    pub(crate) fn stop(&mut self, stop: Stop) {
        match stop {
            Stop::Cancelled => self.cancelled = true,
            Stop::Failed(fault) if self.fault.is_none() => self.fault = Some(*fault),
            Stop::Failed(fault) => self.warn(fault.message),
        }
    }

    /// Takes what came of a step: its value, unless it stopped.
    pub(crate) fn take<T>(&mut self, result: Result<T, Stop>) -> Option<T> {
        result.map_err(|stop| self.stop(stop)).ok()
    }

    pub(crate) fn warn(&mut self, warning: impl Into<String>) {
        self.warnings.push(warning.into());
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancelled
    }

    pub(crate) fn failed(&self) -> bool {
        self.fault.is_some()
    }

    /// How the rollout ended. A cancellation is what it is even where something failed on the way out; a fault before
    /// the agent ended is a failed setup; after that the agent's own end counts.
    fn ended(&self) -> Ended {
        match self.agent_ended {
            _ if self.cancelled => Ended::Cancelled,
            Some(ended) => ended,
            None if self.stages.iter().any(|time| time.stage == Stage::Agent) => Ended::AgentError,
            None => Ended::SetupError,
        }
    }

    /// The outcome, with what the calls came to.
    pub(crate) fn outcome(
        self,
        id: RolloutId,
        totals: Totals,
        late_flags: Vec<(dressage_wire::ids::CallId, Vec<dressage_wire::call::Flag>)>,
    ) -> RolloutOutcome {
        RolloutOutcome {
            id,
            ended: self.ended(),
            fault: self.fault,
            reward: self.reward,
            sandbox: self.sandbox,
            stages: self.stages,
            setup: self.setup,
            agent: self.agent,
            files: self.files,
            files_extra: self.files_extra,
            totals,
            late_flags,
            warnings: self.warnings,
            wall_ms: millis(self.started),
            finished_unix_ms: crate::events::unix_ms(),
            unstored: None,
        }
    }
}

/// Milliseconds since then.
pub(crate) fn millis(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX)
}
