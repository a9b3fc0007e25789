use super::boot::seconds;
use super::files::{self, When};
use super::plan::working_directory;
use super::setup::REPORT_SLACK;
use crate::command::TaskCommand;
use crate::faults;
use crate::report::{Report, Stop};
use crate::run::Scope;
use dressage_sandbox::{Command, Sandbox, SandboxError};
use dressage_wire::event::{Event, Stage};
use dressage_wire::reward::{self, CommandResult, OverrideError, Reward, Separation};
use std::collections::BTreeMap;
use tokio::time::Instant;

/// Runs the verify commands apart from what the agent left, and takes the reward.
///
/// Before the first command the agent's processes are dead, `/tmp` and `<home>/logs/verifier` are new, and only then
/// are the verify files written. Each command runs in a shell that reads no startup file, with the environment that
/// was recorded before there was an agent.
pub(crate) async fn run(scope: &Scope, sandbox: &dyn Sandbox, report: &mut Report) -> Result<(), Stop> {
    let timeout = seconds(scope.request.task.limits.verify_timeout_s);
    let directory = format!("{}/logs/verifier", sandbox.home());
    let deadline = Instant::now() + timeout + REPORT_SLACK;
    let separating = sandbox.separate(std::slice::from_ref(&directory));
    let separation = scope
        .ask(
            Stage::Verify,
            faults::SANDBOX_OPERATION_FAILED,
            deadline,
            separating,
        )
        .await?;
    files::write(scope, sandbox, When::Verify, timeout).await?;
    let mut results = Vec::new();
    let ran = commands(scope, sandbox, report, &mut results).await;
    let value = match ran {
        Ok(()) => read_override(scope, sandbox, &format!("{directory}/reward.txt")).await,
        Err(stop) => Err(stop),
    };
    // The evidence is kept whatever came of it.
    let (reward, result) = match value {
        Ok(value) => (verdict(results, value, separation), Ok(())),
        Err(stop) => (
            Reward {
                value: None,
                overridden: false,
                commands: results,
                separation,
            },
            Err(stop),
        ),
    };
    scope.events.tell(Event::Reward { value: reward.value });
    report.reward = Some(reward);
    result
}

async fn commands(
    scope: &Scope,
    sandbox: &dyn Sandbox,
    report: &Report,
    results: &mut Vec<CommandResult>,
) -> Result<(), Stop> {
    let task = &scope.request.task;
    let timeout = seconds(task.limits.verify_timeout_s);
    let environment: BTreeMap<String, String> = match &report.environment {
        Some(recorded) => recorded.for_verify(),
        // Setup failed before a login shell could be asked; there was no agent, and the sandbox's own has to do.
        None => task.env.clone(),
    };
    let recorded = report.environment.is_some();
    for (index, text) in task.verify.iter().enumerate() {
        let argv = ["bash", "--noprofile", "--norc", "-c", text];
        let command = Command {
            argv: argv.map(String::from).into(),
            env: environment.clone(),
            clear_env: recorded,
            cwd: Some(working_directory(sandbox)),
            timeout: Some(timeout),
            ..Command::default()
        };
        let command = TaskCommand {
            stage: Stage::Verify,
            index,
            text,
            command,
        };
        let deadline = Instant::now() + timeout + REPORT_SLACK;
        let running = command.run(sandbox, &scope.events);
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
        commands,
        separation,
    }
}
