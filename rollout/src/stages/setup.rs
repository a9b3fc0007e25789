use super::boot::seconds;
use super::files::{self, When};
use super::plan::working_directory;
use super::snapshot::{self, Beginning};
use crate::command::TaskCommand;
use crate::environment::{self, RecordedEnvironment};
use crate::faults;
use crate::report::{Report, Stop};
use crate::run::Scope;
use dressage_sandbox::{Command, Sandbox};
use dressage_wire::event::Stage;
use dressage_wire::reward::CommandResult;
use dressage_wire::task::VerifyWhen;
use std::time::Duration;
use tokio::time::Instant;

/// What the engine waits beyond a command's own deadline for the sandbox to report its end.
pub(crate) const REPORT_SLACK: Duration = Duration::from_secs(15);

/// Writes the task's files and runs its setup commands, each in a login shell in the working directory, then records
/// what environment a login shell has: the agent starts with it, and verify gets exactly it. The first command that
/// fails ends the stage. Where the sandbox began with what an earlier setup made, only the environment is asked for.
pub(crate) async fn run(
    scope: &Scope,
    sandbox: &dyn Sandbox,
    beginning: Beginning,
    report: &mut Report,
) -> Result<(), Stop> {
    if let Beginning::Restored(_) = beginning {
        return restored(scope, sandbox, Stage::Setup, report).await;
    }
    let mut done = Done::default();
    let result = set_up(scope, sandbox, Stage::Setup, &mut done).await;
    report.setup = done.results;
    report.environment = done.environment;
    result?;
    match beginning {
        Beginning::Kept(maker) => snapshot::keep(scope, sandbox, maker, report).await,
        _ => Ok(()),
    }
}

/// Asks for the environment where an earlier setup's files are.
pub(super) async fn restored(
    scope: &Scope,
    sandbox: &dyn Sandbox,
    stage: Stage,
    report: &mut Report,
) -> Result<(), Stop> {
    let timeout = seconds(scope.request.task.limits.setup_timeout_s);
    report.restored.push(stage);
    report.environment = Some(environment::record(scope, sandbox, stage, timeout).await?);
    Ok(())
}

/// Does the same in a fresh sandbox, for verify, whose environment is that of this one then. It is not told of, and what comes
/// of the commands is kept only where one fails. Where setup failed the first time it may fail again.
pub(super) async fn again(scope: &Scope, sandbox: &dyn Sandbox, report: &mut Report) -> Result<(), Stop> {
    let mut done = Done::default();
    let result = set_up(scope, sandbox, Stage::Verify, &mut done).await;
    report.environment = done.environment;
    match result {
        Err(Stop::Failed(_)) if !report.set_up => Ok(()),
        result => result,
    }
}

/// What came of it.
#[derive(Default)]
struct Done {
    results: Vec<CommandResult>,
    environment: Option<RecordedEnvironment>,
}

async fn set_up(scope: &Scope, sandbox: &dyn Sandbox, stage: Stage, done: &mut Done) -> Result<(), Stop> {
    let task = &scope.request.task;
    let timeout = seconds(task.limits.setup_timeout_s);
    files::write(scope, sandbox, When::Setup, stage, timeout).await?;
    let commands = commands(scope, sandbox, stage, &mut done.results, timeout).await;
    // After a failure the environment is of use only where verify runs all the same.
    if commands.is_ok() || task.verify_when == VerifyWhen::Always {
        let recorded = environment::record(scope, sandbox, stage, timeout).await;
        match (recorded, &commands) {
            (Ok(environment), _) => done.environment = Some(environment),
            (Err(stop), Ok(())) => return Err(stop),
            // The command's failure is the one to tell.
            (Err(_), Err(_)) => {}
        }
    }
    commands
}

async fn commands(
    scope: &Scope,
    sandbox: &dyn Sandbox,
    stage: Stage,
    results: &mut Vec<CommandResult>,
    timeout: Duration,
) -> Result<(), Stop> {
    let commands = &scope.request.task.setup;
    // Commands of one stage are told by their numbers, and verify has its own.
    let events = (stage == Stage::Setup).then_some(&scope.events);
    for (index, text) in commands.iter().enumerate() {
        let command = Command {
            argv: vec!["bash".into(), "-l".into(), "-c".into(), text.clone()],
            cwd: Some(working_directory(sandbox)),
            timeout: Some(timeout),
            ..Command::default()
        };
        let command = TaskCommand {
            stage,
            index,
            text,
            command,
        };
        let deadline = Instant::now() + timeout + REPORT_SLACK;
        let running = command.run(sandbox, events);
        let result = scope
            .ask(stage, faults::SANDBOX_OPERATION_FAILED, deadline, running)
            .await?;
        let fault = failure(&result, stage, index, commands.len());
        results.push(result);
        if let Some(stop) = fault {
            return Err(stop);
        }
    }
    Ok(())
}

fn failure(result: &CommandResult, stage: Stage, index: usize, count: usize) -> Option<Stop> {
    if result.exit_code == 0 {
        return None;
    }
    let place = format!("setup command {} of {count}", index + 1);
    let text: String = result.command.chars().take(120).collect();
    let mut fault = match (result.timed_out, result.signal) {
        (true, _) => {
            let seconds = result.duration_ms / 1000;
            faults::SETUP_TIMEOUT.fault(
                Some(stage),
                format!("{place} was killed at its deadline after {seconds} s: {text}"),
            )
        }
        (false, Some(signal)) => faults::SETUP_COMMAND_FAILED.fault(
            Some(stage),
            format!("{place} was ended by signal {signal}: {text}"),
        ),
        // No program ends with such a code: there was none. The cause is told as its errors.
        (false, None) if result.exit_code < 0 => {
            faults::SETUP_COMMAND_FAILED.fault(Some(stage), format!("{place} could not be started: {text}"))
        }
        (false, None) => faults::SETUP_COMMAND_FAILED.fault(
            Some(stage),
            format!("{place} exited with code {}: {text}", result.exit_code),
        ),
    };
    let output = if result.stderr.trim().is_empty() {
        &result.stdout
    } else {
        &result.stderr
    };
    let last_lines: Vec<&str> = output.trim_end().lines().rev().take(5).collect();
    fault.causes.extend(
        last_lines
            .iter()
            .rev()
            .map(|line| line.chars().take(500).collect()),
    );
    Some(fault.into())
}
