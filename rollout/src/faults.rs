use dressage_wire::event::Stage;
use dressage_wire::fault::{Fault, FaultOwner};
use dressage_wire::rollout::RecorderError;

/// A kind of failure: a row of docs/errors.md.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultCode {
    /// The stable word.
    pub code: &'static str,
    /// Whose failure it is.
    pub owner: FaultOwner,
    /// Whether the same rollout may succeed when tried again.
    pub retryable: bool,
    /// What it means, a sentence.
    pub description: &'static str,
}

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $owner:ident, $retry:literal, $description:literal;)*) => {
        $(
            #[doc = $description]
            pub const $name: FaultCode = FaultCode {
                code: $code,
                owner: FaultOwner::$owner,
                retryable: $retry,
                description: $description,
            };
        )*

        /// Every code, in the order of the stages.
        pub const ALL: &[FaultCode] = &[$($name),*];
    };
}

codes! {
    TASK_INVALID = "task_invalid", Task, false,
        "The task asks for something that cannot be: a relative path that leaves the working directory, a limit that is no number.";
    UNSUPPORTED = "unsupported", Task, false,
        "The combination of mode, placement, sandbox and agent that was asked for does not exist.";
    AGENT_UNKNOWN = "agent_unknown", Task, false,
        "The task names an agent that is not in the registry.";
    AGENT_MISSING = "agent_missing", Agent, false,
        "The agent's program is not installed, or cannot run on this machine.";
    SANDBOX_UNAVAILABLE = "sandbox_unavailable", Sandbox, false,
        "The sandbox backend lacks something on this machine, or cannot provide what the task asks for.";
    SANDBOX_BOOT_FAILED = "sandbox_boot_failed", Sandbox, true,
        "The sandbox could not be made.";
    SANDBOX_BOOT_TIMEOUT = "sandbox_boot_timeout", Sandbox, true,
        "The sandbox was not there before its deadline.";
    SANDBOX_GONE = "sandbox_gone", Sandbox, true,
        "The sandbox ended, or the connection to it did, while it was still needed.";
    SANDBOX_OPERATION_FAILED = "sandbox_operation_failed", Sandbox, true,
        "A file could not be written or read, or a program not be started, in the sandbox.";
    SETUP_FILE_FAILED = "setup_file_failed", Task, false,
        "A file of the task could not be written.";
    SETUP_COMMAND_FAILED = "setup_command_failed", Task, false,
        "A setup command ended with another exit code than 0; its output is in the outcome.";
    SETUP_TIMEOUT = "setup_timeout", Task, true,
        "A setup command did not end before its deadline.";
    SETUP_ENVIRONMENT_UNREADABLE = "setup_environment_unreadable", Task, false,
        "After setup, a login shell did not tell its environment; a startup file probably ends the shell.";
    AGENT_CONFIG_INVALID = "agent_config_invalid", Task, false,
        "The agent cannot be configured as the task asks.";
    AGENT_START_FAILED = "agent_start_failed", Agent, false,
        "The agent's program could not be started.";
    AGENT_EXIT = "agent_exit", Agent, true,
        "The agent ended with another exit code than 0.";
    AGENT_FAILED = "agent_failed", Agent, true,
        "The agent ended with exit 0, but the last it reported was an error.";
    AGENT_KILLED = "agent_killed", Agent, true,
        "A signal ended the agent: it crashed, or something in the sandbox killed it.";
    AGENT_SILENT = "agent_silent", Agent, true,
        "The agent ended with exit 0, but neither said anything nor had a single answer from its model.";
    AGENT_TIMEOUT = "agent_timeout", Agent, true,
        "The agent did not end before its deadline and was killed.";
    UPSTREAM_UNREACHABLE = "upstream_unreachable", Upstream, true,
        "The agent failed since the model endpoint could not be reached.";
    UPSTREAM_UNAUTHORIZED = "upstream_unauthorized", Upstream, false,
        "The agent failed since the model endpoint refused the key.";
    UPSTREAM_NOT_FOUND = "upstream_not_found", Upstream, false,
        "The agent failed since the model endpoint knows no such model or path.";
    UPSTREAM_RATE_LIMITED = "upstream_rate_limited", Upstream, true,
        "The agent failed since the model endpoint asked it to come back later.";
    UPSTREAM_REJECTED = "upstream_rejected", Upstream, false,
        "The agent failed since the model endpoint refused its request.";
    UPSTREAM_FAILED = "upstream_failed", Upstream, true,
        "The agent failed since the model endpoint failed, or answered with something that is not an answer.";
    UPSTREAM_CUT = "upstream_cut", Upstream, true,
        "The agent failed since the model endpoint's reply broke off.";
    OUTPUTS_REFUSED = "outputs_refused", Agent, true,
        "What the agent left could not be copied to the fresh sandbox: there is too much of it, or it is nothing that can be copied.";
    VERIFY_FILE_FAILED = "verify_file_failed", Task, false,
        "A verify file of the task could not be written.";
    REWARD_INVALID = "reward_invalid", Task, false,
        "A verify command wrote something to reward.txt that is not one finite number in the task's range.";
    STORE_FAILED = "store_failed", Server, true,
        "Something of the rollout could not be stored.";
    INTERNAL = "internal", Server, true,
        "Dressage itself failed; the log has more.";
}

impl FaultCode {
    /// A fault of this kind.
    #[must_use]
    pub fn fault(self, stage: Option<Stage>, message: impl Into<String>) -> Fault {
        Fault {
            code: self.code.into(),
            owner: self.owner,
            stage,
            retryable: self.retryable,
            message: message.into(),
            causes: Vec::new(),
            hint: None,
        }
    }

    /// A fault of this kind, with `error` and the chain of its sources as causes.
    #[must_use]
    pub fn caused(
        self,
        stage: Option<Stage>,
        message: impl Into<String>,
        error: &(dyn std::error::Error + 'static),
    ) -> Fault {
        let mut fault = self.fault(stage, message);
        fault.causes = chain(error);
        fault
    }

    /// A fault of this kind whose message is that of `error`, with the chain of its sources as causes.
    #[must_use]
    pub fn from_error(self, stage: Option<Stage>, error: &(dyn std::error::Error + 'static)) -> Fault {
        let mut fault = self.fault(stage, error.to_string());
        fault.causes = error.source().map(chain).unwrap_or_default();
        fault
    }
}

/// The fault that a recorder's error is.
pub(crate) fn not_recorded(error: &RecorderError) -> Fault {
    let mut fault = STORE_FAILED.from_error(None, error);
    fault.hint.clone_from(&error.hint);
    fault
}

/// The messages of an error and its sources, outermost first.
pub(crate) fn chain(error: &(dyn std::error::Error + 'static)) -> Vec<String> {
    std::iter::successors(Some(error), |error| error.source())
        .map(ToString::to_string)
        .collect()
}
