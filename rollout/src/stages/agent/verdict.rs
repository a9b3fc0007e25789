use super::output::Said;
use crate::faults::{self, FaultCode};
use crate::recording::{CallsSeen, FailedCall};
use crate::report::Stop;
use crate::run::Scope;
use crate::stages::plan::Plan;
use dressage_sandbox::Exit;
use dressage_wire::call::CallEnd;
use dressage_wire::event::Stage;
use dressage_wire::fault::{Ended, Fault};

/// What is known of an agent that has ended.
pub(super) struct Facts {
    pub(super) last: Last,
    pub(super) said: Said,
}

/// The end of an agent's program.
pub(super) enum Last {
    /// It ended by itself, or at its deadline.
    Exit(Exit),
    /// A budget was spent; it ended then, by itself or not.
    Budget(Option<Exit>),
}

impl Last {
    pub(super) fn exit(&self) -> Option<&Exit> {
        match self {
            Self::Exit(exit) => Some(exit),
            Self::Budget(exit) => exit.as_ref(),
        }
    }
}

/// How the stage ended, and what stops the rollout, if something does.
///
/// Exit 0 is `completed` if the agent said something or its model answered it at least once; a model that answers with
/// nothing is for verify to judge. Exit 0 after neither is a failure: nothing was tried.
pub(super) fn judge(
    scope: &Scope,
    plan: &Plan,
    calls: &CallsSeen,
    worked: Result<Facts, Stop>,
) -> Result<(Ended, Option<Stop>), Stop> {
    let Facts { last, said } = worked?;
    let exit = match last {
        Last::Budget(_) => return Ok((Ended::Budget, None)),
        Last::Exit(exit) => exit,
    };
    let name = plan.agent.name();
    let (ended, code, what) = match exit {
        Exit { timed_out: true, .. } => {
            let limit = scope.request.task.limits.agent_timeout_s;
            (
                Ended::Timeout,
                faults::AGENT_TIMEOUT,
                format!("agent `{name}` did not end within {limit} s"),
            )
        }
        Exit {
            signal: Some(signal), ..
        } => (
            Ended::AgentError,
            faults::AGENT_KILLED,
            format!("agent `{name}` was ended by signal {signal}"),
        ),
        Exit { code: 0, .. } if said.failed => (
            Ended::AgentError,
            faults::AGENT_FAILED,
            format!("agent `{name}` exited 0 after an error"),
        ),
        Exit { code: 0, .. } if said.spoke || calls.complete > 0 => return Ok((Ended::Completed, None)),
        Exit { code: 0, .. } => {
            let what = format!("agent `{name}` exited 0 without any assistant text or answered call");
            (Ended::AgentError, faults::AGENT_SILENT, what)
        }
        Exit { code: 126 | 127, .. } if !said.printed || calls.complete == 0 && !said.spoke => (
            Ended::AgentError,
            faults::AGENT_START_FAILED,
            format!("agent `{name}` could not be started"),
        ),
        Exit { code, .. } => (
            Ended::AgentError,
            faults::AGENT_EXIT,
            format!("agent `{name}` exited with code {code}"),
        ),
    };
    let mut fault = match &calls.failed_last {
        Some(call) => upstream_fault(scope, &what, call),
        None => agent_fault(code, what, name, &said),
    };
    if let Some(waited_ms) = calls.unanswered_ms {
        let endpoint = &scope.request.upstream.endpoint().name;
        let waited_s = waited_ms as f64 / 1000.0;
        fault.causes.push(format!(
            "endpoint `{endpoint}` had not answered the last call for {waited_s:.1} s"
        ));
    }
    Ok((ended, Some(fault.into())))
}

fn agent_fault(code: FaultCode, what: String, name: &str, said: &Said) -> Fault {
    let mut fault = code.fault(Some(Stage::Agent), what);
    fault.causes.extend(said.error.clone());
    if said.error.is_none() {
        fault.causes.extend(
            said.log_tail
                .trim_end()
                .lines()
                .last()
                .map(|line| line.chars().take(500).collect()),
        );
    }
    if code == faults::AGENT_START_FAILED {
        fault.hint = Some(format!("run `dressage agents install {name} --force`"));
    }
    fault
}

/// The agent failed, but the last it knew of its model was a failed call: that is why.
fn upstream_fault(scope: &Scope, what: &str, call: &FailedCall) -> Fault {
    let endpoint = scope.request.upstream.endpoint();
    let name = &endpoint.name;
    let (code, why, hint) = match (call.end, call.status) {
        (CallEnd::UpstreamCut, _) => (faults::UPSTREAM_CUT, "broke off its reply".to_owned(), None),
        (_, None) => {
            let hint = format!("check that endpoint `{name}` is up at {}", endpoint.base_url);
            (
                faults::UPSTREAM_UNREACHABLE,
                "could not be reached".to_owned(),
                Some(hint),
            )
        }
        (_, Some(status @ (401 | 403))) => {
            let hint = format!("check the key of endpoint `{name}`");
            (
                faults::UPSTREAM_UNAUTHORIZED,
                format!("refused the key with status {status}"),
                Some(hint),
            )
        }
        (_, Some(404)) => {
            let model = endpoint.model.as_deref().unwrap_or_default();
            let hint = format!(
                "check that endpoint `{name}` serves model `{model}` at {}",
                endpoint.base_url
            );
            (
                faults::UPSTREAM_NOT_FOUND,
                "answered with status 404".to_owned(),
                Some(hint),
            )
        }
        (_, Some(429)) => (
            faults::UPSTREAM_RATE_LIMITED,
            "asked to come back later".to_owned(),
            None,
        ),
        (_, Some(status @ 400..=499)) => (
            faults::UPSTREAM_REJECTED,
            format!("refused the request with status {status}"),
            None,
        ),
        (_, Some(status)) => (
            faults::UPSTREAM_FAILED,
            format!("failed with status {status}"),
            None,
        ),
    };
    let mut fault = code.fault(
        Some(Stage::Agent),
        format!("{what}, since endpoint `{name}` {why}"),
    );
    fault.causes.extend(call.error.clone());
    let hints: Vec<_> = hint.into_iter().chain(call.hint.clone()).collect();
    fault.hint = (!hints.is_empty()).then(|| hints.join("; "));
    fault
}
