use super::boot::seconds;
use super::files::{self, When};
use super::plan::working_directory;
use crate::command::TaskCommand;
use crate::environment;
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
/// fails ends the stage.
pub(crate) async fn run(scope: &Scope, sandbox: &dyn Sandbox, report: &mut Report) -> Result<(), Stop> {
    let task = &scope.request.task;
    let timeout = seconds(task.limits.setup_timeout_s);
    files::write(scope, sandbox, When::Setup, timeout).await?;
    let commands = commands(scope, sandbox, report, timeout).await;
    // After a failure the environment is of use only where verify runs all the same.
    if commands.is_ok() || task.verify_when == VerifyWhen::Always {
        let recorded = environment::record(scope, sandbox, timeout).await;
        match (recorded, &commands) {
            (Ok(environment), _) => report.environment = Some(environment),
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
    report: &mut Report,
    timeout: Duration,
) -> Result<(), Stop> {
    let commands = &scope.request.task.setup;
    for (index, text) in commands.iter().enumerate() {
        let command = Command {
            argv: vec!["bash".into(), "-l".into(), "-c".into(), text.clone()],
            cwd: Some(working_directory(sandbox)),
            timeout: Some(timeout),
            ..Command::default()
        };
        let command = TaskCommand {
            stage: Stage::Setup,
            index,
            text,
            command,
        };
        let deadline = Instant::now() + timeout + REPORT_SLACK;
        let running = command.run(sandbox, &scope.events);
        let result = scope
            .ask(Stage::Setup, faults::SANDBOX_OPERATION_FAILED, deadline, running)
            .await?;
        let fault = failure(&result, index, commands.len());
        report.setup.push(result);
        if let Some(stop) = fault {
            return Err(stop);
        }
    }
    Ok(())
}

fn failure(result: &CommandResult, index: usize, count: usize) -> Option<Stop> {
    if result.exit_code == 0 {
        return None;
    }
    let place = format!("setup command {} of {count}", index + 1);
    let text: String = result.command.chars().take(120).collect();
    let mut fault = match (result.timed_out, result.signal) {
        (true, _) => {
            let seconds = result.duration_ms / 1000;
            faults::SETUP_TIMEOUT.fault(
                Some(Stage::Setup),
                format!("{place} was killed at its deadline after {seconds} s: {text}"),
            )
        }
        (false, Some(signal)) => faults::SETUP_COMMAND_FAILED.fault(
            Some(Stage::Setup),
            format!("{place} was ended by signal {signal}: {text}"),
        ),
        // No program ends with such a code: there was none. The cause is told as its errors.
        (false, None) if result.exit_code < 0 => faults::SETUP_COMMAND_FAILED.fault(
            Some(Stage::Setup),
            format!("{place} could not be started: {text}"),
        ),
        (false, None) => faults::SETUP_COMMAND_FAILED.fault(
            Some(Stage::Setup),
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
