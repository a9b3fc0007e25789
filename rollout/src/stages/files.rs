//! A task's files on their way into the sandbox.

use super::plan::resolve;
use crate::faults;
use crate::report::Stop;
use crate::run::{Cut, Scope};
use bytes::Bytes;
use dressage_sandbox::{Sandbox, SandboxError};
use dressage_wire::event::Stage;
use std::time::Duration;
use tokio::time::Instant;

/// Which of a task's files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum When {
    /// `files`, before the setup commands.
    Setup,
    /// `verify_files`, which the agent never sees.
    Verify,
}

/// Writes a task's files. A relative path is one below the working directory.
pub(crate) async fn write(
    scope: &Scope,
    sandbox: &dyn Sandbox,
    when: When,
    stage: Stage,
    timeout: Duration,
) -> Result<(), Stop> {
    let task = &scope.request.task;
    let (files, code) = match when {
        When::Setup => (&task.files, faults::SETUP_FILE_FAILED),
        When::Verify => (&task.verify_files, faults::VERIFY_FILE_FAILED),
    };
    let deadline = Instant::now() + timeout;
    for (path, content) in files {
        let fail = |error: &dyn std::error::Error| {
            let mut fault = code.fault(
                Some(stage),
                format!("file `{path}` of the task could not be written"),
            );
            fault.causes.push(error.to_string());
            Stop::from(fault)
        };
        let content = content.bytes().map_err(|error| fail(&error))?;
        let target = resolve(sandbox, path);
        match scope
            .until(
                deadline,
                sandbox.write_file(&target, Bytes::from(content.into_owned()), 0o644),
            )
            .await
        {
            Ok(Ok(())) => {}
            Ok(Err(error @ SandboxError::Gone { .. })) => return Err(Stop::sandbox(stage, code, &error)),
            Ok(Err(error)) => return Err(fail(&error)),
            Err(Cut::Cancelled) => return Err(Stop::Cancelled),
            Err(Cut::Deadline) => {
                let message = format!(
                    "file `{path}` of the task was not written within {} s",
                    timeout.as_secs_f64()
                );
                return Err(code.fault(Some(stage), message).into());
            }
        }
    }
    Ok(())
}
