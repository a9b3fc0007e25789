use super::boot::seconds;
use super::files::{self, When};
use super::fresh;
use super::plan::working_directory;
use super::setup::REPORT_SLACK;
use crate::command::TaskCommand;
use crate::faults;
use crate::report::{Report, Stop};
use crate::run::Scope;
use dressage_sandbox::{Command, Sandbox, SandboxError};
use dressage_wire::event::{Event, Stage};
use dressage_wire::reward::{self, CommandResult, OverrideError, Reward, RewardSource, Separation};
use dressage_wire::task::VerifyIn;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Runs the verify commands apart from what the agent left, and takes the reward.
///
/// Before the first command the agent's processes are dead, `/tmp` and `<home>/logs/verifier` are new, and only then
/// are the verify files written. Each command runs in a shell that reads no startup file, with the environment that
/// was recorded before there was an agent.
pub(crate) async fn run(
    scope: &Scope,
    sandbox: &mut Arc<dyn Sandbox>,
    report: &mut Report,
) -> Result<(), Stop> {
    let separation = prepare(scope, sandbox, report).await?;
    let sandbox = &**sandbox;
    let mut results = Vec::new();
    let ran = commands(scope, sandbox, report, &mut results).await;
    let value = match ran {
        Ok(()) => read_override(scope, sandbox, &format!("{}/reward.txt", directory(sandbox))).await,
        Err(stop) => Err(stop),
    };
    // The evidence is kept whatever came of it.
    let (reward, result) = match value {
        Ok(value) => (verdict(results, value, separation), Ok(())),
        Err(stop) => (
            Reward {
                value: None,
                ..verdict(results, None, separation)
            },
            Err(stop),
        ),
    };
    scope.events.tell(Event::Reward { value: reward.value });
    report.reward = Some(reward);
    result
}

/// Where verify commands write their reward.
fn directory(sandbox: &dyn Sandbox) -> String {
    format!("{}/logs/verifier", sandbox.home())
}

/// Leaves behind what the agent left, and writes the verify files. What comes next is in another sandbox where that is asked for.
pub(super) async fn prepare(
    scope: &Scope,
    place: &mut Arc<dyn Sandbox>,
    report: &mut Report,
) -> Result<Separation, Stop> {
    let is_fresh = scope.request.task.verify_in == Some(VerifyIn::Fresh);
    if is_fresh {
        *place = fresh::instead_of(scope, &**place, report).await?;
    }
    let sandbox = &**place;
    let timeout = seconds(scope.request.task.limits.verify_timeout_s);
    let deadline = Instant::now() + timeout + REPORT_SLACK;
    let directories = [directory(sandbox)];
    let separating = sandbox.separate(&directories);
    let separation = scope
        .ask(
            Stage::Verify,
            faults::SANDBOX_OPERATION_FAILED,
            deadline,
            separating,
        )
        .await?;
    files::write(scope, sandbox, When::Verify, Stage::Verify, timeout).await?;
    Ok(if is_fresh { Separation::Fresh } else { separation })
}

/// Runs shell commands apart from what the agent left in startup files and environment.
pub(super) struct VerifyShell {
    environment: BTreeMap<String, String>,
    recorded: bool,
}

impl VerifyShell {
    pub(super) fn new(scope: &Scope, report: &Report) -> Self {
        Self {
            environment: match &report.environment {
                Some(recorded) => recorded.for_verify(),
                // Setup failed before a login shell could be asked; there was no agent, and the sandbox's own has to do.
                None => scope.request.task.env.clone(),
            },
            recorded: report.environment.is_some(),
        }
    }

    /// How a shell text is run.
    pub(super) fn command(&self, sandbox: &dyn Sandbox, text: &str, timeout: Duration) -> Command {
        let argv = ["bash", "--noprofile", "--norc", "-c", text];
        Command {
            argv: argv.map(String::from).into(),
            env: self.environment.clone(),
            clear_env: self.recorded,
            cwd: Some(working_directory(sandbox)),
            timeout: Some(timeout),
            ..Command::default()
        }
    }
}

async fn commands(
    scope: &Scope,
    sandbox: &dyn Sandbox,
    report: &Report,
    results: &mut Vec<CommandResult>,
) -> Result<(), Stop> {
    let task = &scope.request.task;
    let timeout = seconds(task.limits.verify_timeout_s);
    let shell = VerifyShell::new(scope, report);
    for (index, text) in task.verify.iter().enumerate() {
        let command = shell.command(sandbox, text, timeout);
        let command = TaskCommand {
            stage: Stage::Verify,
            index,
            text,
            command,
        };
        let deadline = Instant::now() + timeout + REPORT_SLACK;
        let running = command.run(sandbox, Some(&scope.events));
        let result = scope
            .ask(Stage::Verify, faults::SANDBOX_OPERATION_FAILED, deadline, running)
            .await?;
        results.push(result);
    }
    Ok(())
}

/// The reward that a verify command wrote, if one did.
async fn read_override(scope: &Scope, sandbox: &dyn Sandbox, path: &str) -> Result<Option<f64>, Stop> {
    let range = scope.request.task.reward;
    let deadline = Instant::now() + REPORT_SLACK;
    let reading = sandbox.read_file(path, reward::OVERRIDE_MAX_BYTES);
    let content = match scope.hear(Stage::Verify, deadline, reading).await? {
        Ok(content) => content,
        Err(SandboxError::NotFound { .. }) => return Ok(None),
        Err(error) => {
            let mut fault =
                faults::REWARD_INVALID.fault(Some(Stage::Verify), "reward.txt cannot be read as a reward");
            fault.causes.push(error.to_string());
            return Err(match error {
                SandboxError::Gone { .. } => Stop::sandbox(Stage::Verify, faults::SANDBOX_GONE, &error),
                _ => fault.into(),
            });
        }
    };
    let invalid = |error: OverrideError| {
        let message = "reward.txt, which a verify command wrote, is not a reward";
        Stop::from(faults::REWARD_INVALID.caused(Some(Stage::Verify), message, &error))
    };
    reward::parse_override(&content, range).map(Some).map_err(invalid)
}

fn verdict(commands: Vec<CommandResult>, written: Option<f64>, separation: Separation) -> Reward {
    Reward {
        value: written.or_else(|| reward::passed_share(&commands)),
        overridden: written.is_some(),
        source: match written {
            Some(_) => RewardSource::Override,
            None => RewardSource::Verify,
        },
        commands,
        separation,
        detail: None,
    }
}
