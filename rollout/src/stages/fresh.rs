//! A fresh sandbox for verify: set up as the agent's was, and given nothing of the agent's but the outputs, as data.
//!
//! The outputs are on this machine, whole, before the agent's sandbox is ended, and that has ended before the fresh one is
//! made: a rollout never has two at a time, so that limits on sandboxes are limits on rollouts.

use super::boot::{self, seconds};
use super::plan::{HOME, working_directory};
use super::setup::{self, REPORT_SLACK};
use super::snapshot;
use crate::faults;
use crate::report::{Report, Stop};
use crate::run::{Cut, Scope};
use dressage_sandbox::Sandbox;
use dressage_sandbox::archive::{ArchiveError, ArchiveLimits, Omitted};
use dressage_sandbox::outputs::{self, Output, OutputsError};
use dressage_wire::event::Stage;
use std::fs::File;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// The working directory, where a task names no outputs.
const WORKING_DIRECTORY: [&str; 1] = ["."];

/// Brings the outputs out of the agent's sandbox, ends that, and makes the one that is instead of it.
pub(super) async fn instead_of(
    scope: &Scope,
    agents: &dyn Sandbox,
    report: &mut Report,
) -> Result<Arc<dyn Sandbox>, Stop> {
    let taken = take(scope, agents, report).await?;
    scope.let_go(agents).await;
    let fresh = make(scope, report).await.map_err(in_fresh)?;
    put(scope, &*fresh, taken, report).await?;
    Ok(fresh)
}

async fn make(scope: &Scope, report: &mut Report) -> Result<Arc<dyn Sandbox>, Stop> {
    let spec = boot::bare_spec(scope);
    if report.set_up
        && let Some(snapshot) = snapshot::there(scope, &spec)
        && let Some(fresh) = snapshot::restore(scope, &spec, &snapshot, Stage::Verify, report).await?
    {
        setup::restored(scope, &*fresh, Stage::Verify, report).await?;
        return Ok(fresh);
    }
    // Another id: one that failed may be leased still.
    let spec = boot::bare_spec(scope);
    let fresh = boot::make(scope, spec, Stage::Verify).await?.sandbox;
    setup::again(scope, &*fresh, report).await?;
    Ok(fresh)
}

/// Says of a failure where it was: the same worked before.
fn in_fresh(stop: Stop) -> Stop {
    match stop {
        Stop::Cancelled => Stop::Cancelled,
        Stop::Failed(mut fault) => {
            fault.message = format!("in the fresh sandbox for verify: {}", fault.message);
            Stop::Failed(fault)
        }
    }
}

/// Takes the outputs, when nothing of the agent's runs any more that could change them.
async fn take(
    scope: &Scope,
    sandbox: &dyn Sandbox,
    report: &mut Report,
) -> Result<Vec<(String, Output)>, Stop> {
    let within = seconds(scope.request.task.limits.collect_timeout_s);
    let ending = sandbox.separate(&[]);
    scope
        .ask(
            Stage::Verify,
            faults::SANDBOX_OPERATION_FAILED,
            Instant::now() + within + REPORT_SLACK,
            ending,
        )
        .await?;
    let mut limits = ArchiveLimits::default();
    let mut taken = Vec::new();
    for output in wanted(&scope.request.task.outputs, sandbox) {
        let path = absolute(&output, sandbox);
        // Below a home that has another place in each sandbox, what is absolute does not stay right.
        let stays = output.starts_with('/') || sandbox.home() == HOME;
        let place = stays.then_some(path.as_str());
        let spool = spool(scope)?;
        let taking = outputs::take(sandbox, &path, place, spool, limits, within);
        let one = copy(scope, within, taking).await?;
        if let Some(complaint) = &one.complaint {
            report.warn(format!("not all of output `{output}` could be read: {complaint}"));
        }
        limits = one.rest_of(limits);
        taken.push((output, one));
    }
    Ok(taken)
}

/// Puts the outputs in place of what setup made there.
async fn put(
    scope: &Scope,
    sandbox: &dyn Sandbox,
    taken: Vec<(String, Output)>,
    report: &mut Report,
) -> Result<(), Stop> {
    let within = seconds(scope.request.task.limits.collect_timeout_s);
    let mut omitted = Omitted::default();
    for (output, one) in taken {
        let path = absolute(&output, sandbox);
        omitted.and(copy(scope, within, one.put(sandbox, &path, within)).await?);
    }
    if omitted.count > 0 {
        report.warn(format!(
            "{} entries of the outputs are not in the fresh sandbox, being links that lead out of them, devices or pipes: {}",
            omitted.count,
            omitted.examples.join(", ")
        ));
    }
    Ok(())
}

/// A file without a name, for what must not all be in memory: nothing of it can remain.
fn spool(scope: &Scope) -> Result<File, Stop> {
    let made =
        std::fs::create_dir_all(&scope.cache_dir).and_then(|()| tempfile::tempfile_in(&scope.cache_dir));
    made.map_err(|error| {
        let message = "there is no room in the cache directory for what the agent left";
        faults::STORE_FAILED
            .caused(Some(Stage::Verify), message, &error)
            .into()
    })
}

/// The task's outputs as they are told apart: relative to the working directory or absolute, none within another.
fn wanted(asked: &[String], sandbox: &dyn Sandbox) -> Vec<String> {
    let asked: Vec<&str> = match asked {
        [] => WORKING_DIRECTORY.to_vec(),
        asked => asked.iter().map(String::as_str).collect(),
    };
    let mut outputs: Vec<String> = Vec::new();
    for (index, output) in asked.iter().enumerate() {
        let path = absolute(output, sandbox);
        let is_within = |(other_index, other): (usize, &&str)| {
            let other = absolute(other, sandbox);
            match path.strip_prefix(&other) {
                // The same twice: the first is taken.
                Some("") => other_index < index,
                Some(rest) => rest.starts_with('/'),
                None => false,
            }
        };
        if !asked.iter().enumerate().any(is_within) {
            outputs.push((*output).to_owned());
        }
    }
    outputs
}

/// The path of an output in a sandbox, without what says nothing.
fn absolute(output: &str, sandbox: &dyn Sandbox) -> String {
    let whole = match output.starts_with('/') {
        true => output.to_owned(),
        false => format!("{}/{output}", working_directory(sandbox)),
    };
    let parts = whole.split('/').filter(|part| !matches!(*part, "" | "."));
    parts.fold(String::new(), |path, part| path + "/" + part)
}

/// Copies, until the time for that has passed or the rollout is cancelled.
async fn copy<T>(
    scope: &Scope,
    within: Duration,
    work: impl Future<Output = Result<T, OutputsError>>,
) -> Result<T, Stop> {
    match scope.until(Instant::now() + within + REPORT_SLACK, work).await {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(error)) => Err(stop(&error)),
        Err(Cut::Cancelled) => Err(Stop::Cancelled),
        Err(Cut::Deadline) => Err(Stop::unresponsive(Stage::Verify)),
    }
}

/// Whose failure it is that something could not be copied.
fn stop(error: &OutputsError) -> Stop {
    let (code, hint) = match error {
        OutputsError::Sandbox(error) => {
            return Stop::sandbox(Stage::Verify, faults::SANDBOX_OPERATION_FAILED, error);
        }
        OutputsError::TimedOut { .. } => (
            faults::OUTPUTS_REFUSED,
            Some("give it more time with limits.collect_timeout_s, or name in `outputs` what verify needs"),
        ),
        OutputsError::Archive { source, .. } => match source {
            ArchiveError::Keep(_) => (
                faults::STORE_FAILED,
                Some("free some space in the cache directory"),
            ),
            // What broke off was on its way.
            ArchiveError::Truncated { .. } => (faults::SANDBOX_OPERATION_FAILED, None),
            ArchiveError::TooLong { .. } | ArchiveError::TooMany { .. } | ArchiveError::Names { .. } => (
                faults::OUTPUTS_REFUSED,
                Some("name in `outputs` what verify needs of what the agent leaves"),
            ),
            ArchiveError::Entry { .. } => (faults::OUTPUTS_REFUSED, None),
        },
    };
    let mut fault = code.from_error(Some(Stage::Verify), error);
    fault.hint = hint.map(str::to_owned);
    fault.into()
}
