//! What a setup made before is found for a rollout that would run the same, or kept for others.
//!
//! A snapshot only saves time: where there is none, or it cannot be used, setup runs as it does without.

use super::boot::{self, seconds};
use crate::faults;
use crate::report::{Report, Stop};
use crate::run::{Cut, Scope};
use crate::snapshots::{Claim, Maker, Setup};
use dressage_sandbox::{Sandbox, SandboxError, SandboxSpec, Snapshot};
use dressage_wire::event::Stage;
use dressage_wire::task::SnapshotWhen;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// How long the keeping of files may take; large ones take their time.
const KEEPING: Duration = Duration::from_secs(300);

/// What a rollout's sandbox begins with.
pub(crate) enum Beginning {
    /// An image, and an empty home.
    Empty,
    /// The same; and what setup makes is to be kept.
    Kept(Maker),
    /// What an earlier setup made.
    Restored(Snapshot),
}

/// Finds out what the sandbox is to begin with. Waits for a rollout that is setting up the same.
pub(super) async fn beginning(
    scope: &Scope,
    spec: &SandboxSpec,
    report: &mut Report,
) -> Result<Beginning, Stop> {
    let task = &scope.request.task;
    let nothing_to_do = task.setup.is_empty() && task.files.is_empty();
    if task.snapshot != Some(SnapshotWhen::AfterSetup) || nothing_to_do {
        return Ok(Beginning::Empty);
    }
    if !scope.request.backend.keeps_snapshots() {
        report.warn(format!(
            "sandbox `{}` keeps no snapshots: setup ran anew",
            scope.request.backend.name()
        ));
        return Ok(Beginning::Empty);
    }
    let being_made = match scope.snapshots.claim(&setup(scope, spec)) {
        Claim::Make(maker) => return Ok(Beginning::Kept(maker)),
        Claim::Restore(snapshot) => return Ok(Beginning::Restored(snapshot)),
        Claim::Refused(reason) => {
            report.warn(format!("setup ran anew: {reason}"));
            return Ok(Beginning::Empty);
        }
        Claim::Wait(being_made) => being_made,
    };
    let limits = &task.limits;
    let commands = u32::try_from(task.setup.len() + 1).unwrap_or(u32::MAX);
    let longest = seconds(limits.boot_timeout_s)
        .saturating_add(seconds(limits.setup_timeout_s).saturating_mul(commands))
        .saturating_add(KEEPING);
    match scope.until(Instant::now() + longest, being_made.end()).await {
        Ok(Some(snapshot)) => Ok(Beginning::Restored(snapshot)),
        Err(Cut::Cancelled) => Err(Stop::Cancelled),
        Ok(None) | Err(Cut::Deadline) => {
            report.warn("setup ran anew: the rollout that was to keep what it made did not");
            Ok(Beginning::Empty)
        }
    }
}

/// The snapshot of what this rollout's setup makes, if it is there.
pub(super) fn there(scope: &Scope, spec: &SandboxSpec) -> Option<Snapshot> {
    let asked = scope.request.task.snapshot == Some(SnapshotWhen::AfterSetup);
    asked
        .then(|| scope.snapshots.there(&setup(scope, spec)))
        .flatten()
}

fn setup(scope: &Scope, spec: &SandboxSpec) -> Setup {
    Setup::of(&scope.request.backend, spec, &scope.request.task)
}

/// Makes a sandbox that begins with a snapshot. `None` where it cannot be made so.
pub(super) async fn restore(
    scope: &Scope,
    spec: &SandboxSpec,
    snapshot: &Snapshot,
    stage: Stage,
    report: &mut Report,
) -> Result<Option<Arc<dyn Sandbox>>, Stop> {
    let spec = SandboxSpec {
        snapshot: Some(snapshot.clone()),
        ..spec.clone()
    };
    match boot::make(scope, spec, stage).await {
        Ok(booted) => Ok(Some(booted.sandbox)),
        Err(Stop::Cancelled) => Err(Stop::Cancelled),
        Err(Stop::Failed(fault)) => {
            scope.snapshots.forget(snapshot);
            let causes = fault.causes.iter().map(|cause| format!(": {cause}"));
            report.warn(format!(
                "setup ran anew: what was kept of an earlier one could not be used: {}{}",
                fault.message,
                causes.collect::<String>()
            ));
            Ok(None)
        }
    }
}

/// Keeps what setup made, for those that wait for it and those that come.
pub(super) async fn keep(
    scope: &Scope,
    sandbox: &dyn Sandbox,
    maker: Maker,
    report: &mut Report,
) -> Result<(), Stop> {
    let keeping = sandbox.snapshot(&scope.labels);
    let error = match scope.until(Instant::now() + KEEPING, keeping).await {
        Ok(Ok(snapshot)) => {
            let omits = snapshot.omits();
            if let Some(first) = omits.first() {
                report.warn(format!(
                    "{} of the files that setup left are in memory, and not in what is kept for other rollouts, `{first}` first",
                    omits.len()
                ));
            }
            maker.made(snapshot);
            return Ok(());
        }
        Ok(Err(error @ SandboxError::Gone { .. })) => {
            return Err(Stop::sandbox(
                Stage::Setup,
                faults::SANDBOX_OPERATION_FAILED,
                &error,
            ));
        }
        Ok(Err(error)) => error,
        Err(Cut::Cancelled) => return Err(Stop::Cancelled),
        Err(Cut::Deadline) => {
            report.warn(format!(
                "what setup made was not kept within {} s, and others run it anew",
                KEEPING.as_secs()
            ));
            return Ok(());
        }
    };
    let whole = faults::chain(&error).join(": ");
    report.warn(format!(
        "what setup made was not kept, and others run it anew: {whole}"
    ));
    if matches!(error, SandboxError::Unsupported { .. }) {
        // It would be the same for the next.
        maker.refused(whole);
    }
    Ok(())
}
