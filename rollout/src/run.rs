//! One rollout on one page: boot, setup, agent, verify, collect; between the last two, the hold, where one is asked for.
//!
//! A stage starts only when the one before it has ended. Whatever happens, the sandbox is taken down and the outcome
//! is handed to the recorder; a failure on that way is a warning and never hides the error that led to it.

use crate::agents::Agents;
use crate::egress::WayOut;
use crate::events::Events;
use crate::faults;
use crate::recording::Recording;
use crate::report::{Report, Stop, millis};
use crate::request::RolloutRequest;
use crate::snapshots::Snapshots;
use crate::stages::{agent, boot, collect, hold, plan, setup, verify};
use dressage_sandbox::{Pools, Sandbox, SandboxError};
use dressage_wire::event::{Event, Stage};
use dressage_wire::fault::Ended;
use dressage_wire::ids::OwnerId;
use dressage_wire::rollout::{Recorder, RecorderError, Remains, RolloutOutcome, StageTime};
use dressage_wire::task::VerifyWhen;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

/// How long a sandbox may take to go; then its lease is what remains of it.
const TAKE_DOWN: Duration = Duration::from_secs(30);

/// What every stage of a rollout can see.
pub(crate) struct Scope {
    pub(crate) request: RolloutRequest,
    pub(crate) owner: OwnerId,
    pub(crate) recorder: Arc<dyn Recorder>,
    pub(crate) agents: Agents,
    pub(crate) cache_dir: PathBuf,
    pub(crate) tap_binary: PathBuf,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) pools: Pools,
    pub(crate) snapshots: Snapshots,
    pub(crate) events: Arc<Events>,
    pub(crate) cancel: CancellationToken,
    pub(crate) hurry: CancellationToken,
    /// There from boot on, so that they are taken down even after a panic: the agent's, and where verify has one of its own,
    /// that.
    pub(crate) sandboxes: Mutex<Vec<Arc<dyn Sandbox>>>,
    /// Their way to the hosts that the task allows.
    pub(crate) way_out: WayOut,
}

/// Runs a rollout in a task of its own: a panic in it is a fault of ours, and leaves a row and no sandbox.
pub(crate) async fn guarded(scope: Scope) -> RolloutOutcome {
    let scope = Arc::new(scope);
    match tokio::spawn(run(scope.clone())).await {
        Ok(outcome) => outcome,
        Err(crash) => {
            let mut report = Report::new();
            report.stop(faults::INTERNAL.from_error(None, &crash).into());
            take_down(&scope, &mut report).await;
            finish(&scope, report, Recording::start(&scope)).await
        }
    }
}

async fn run(scope: Arc<Scope>) -> RolloutOutcome {
    let mut report = Report::new();
    let recording = Recording::start(&scope);
    match plan::make(&scope).await {
        Ok(plan) => stages(&scope, &plan, &recording, &mut report).await,
        Err(stop) => report.stop(stop),
    }
    take_down(&scope, &mut report).await;
    finish(&scope, report, recording).await
}

/// The five stages, in order.
async fn stages(scope: &Scope, plan: &plan::Plan, recording: &Recording, report: &mut Report) {
    let stage = scope.begin(Stage::Boot);
    let booted = boot::run(scope, plan, report).await;
    let Some((mut sandbox, beginning)) = stage.end(report, booted) else {
        return;
    };

    let stage = scope.begin(Stage::Setup);
    let set_up = setup::run(scope, &*sandbox, beginning, report).await;
    report.set_up = stage.end(report, set_up).is_some();

    if report.set_up {
        let stage = scope.begin(Stage::Agent);
        let worked = agent::run(scope, plan, &*sandbox, recording, report).await;
        stage.end(report, worked);
    }

    // From here on it may be another sandbox: a fresh one.
    if verdict_is_due(scope, report) && !scope.request.task.verify.is_empty() {
        let stage = scope.begin(Stage::Verify);
        let verified = verify::run(scope, &mut sandbox, report).await;
        stage.end(report, verified);
    }

    if let Some(idle) = scope.request.hold
        && verdict_is_due(scope, report)
    {
        let held = hold::run(scope, &mut sandbox, idle, report).await;
        report.take(held);
    }

    if !report.is_cancelled() {
        let stage = scope.begin(Stage::Collect);
        let collected = collect::run(scope, &*sandbox, report).await;
        stage.end(report, collected);
    }
}

/// Whether there is something to judge: after an agent that ended by itself or was ended by a budget, or always.
fn verdict_is_due(scope: &Scope, report: &Report) -> bool {
    let task = &scope.request.task;
    let worked = matches!(report.agent_ended, Some(Ended::Completed | Ended::Budget)) && !report.failed();
    let due = worked || task.verify_when == VerifyWhen::Always;
    due && !report.is_cancelled()
}

/// Ends the sandboxes that there are, at the same time.
async fn take_down(scope: &Scope, report: &mut Report) {
    let sandboxes = std::mem::take(&mut *scope.sandboxes());
    let ending = sandboxes.iter().map(|sandbox| end(scope, &**sandbox));
    for warning in futures_util::future::join_all(ending).await.into_iter().flatten() {
        report.warn(warning);
    }
    if let Some(warning) = scope.way_out.warning() {
        report.warn(warning);
    }
}

/// Ends a sandbox; what there is to be said of that.
async fn end(scope: &Scope, sandbox: &dyn Sandbox) -> Option<String> {
    tokio::select! {
        biased;
        killed = sandbox.kill() => killed
            .err()
            .map(|error| format!("sandbox {} could not be taken down: {error}", sandbox.id())),
        () = scope.hurry.cancelled() => {
            Some(format!("sandbox {} was left to the next sweep in a hurry", sandbox.id()))
        }
        () = tokio::time::sleep(TAKE_DOWN) => {
            Some(format!("sandbox {} was not gone after {} s and is left to the next sweep",
                sandbox.id(), TAKE_DOWN.as_secs()))
        }
    }
}

/// Waits until every call is recorded, and records the outcome.
async fn finish(scope: &Scope, mut report: Report, recording: Recording) -> RolloutOutcome {
    let calls = recording.finish().await;
    if let Some(fault) = calls.fault {
        report.stop(fault.into());
    }
    let mut outcome = report.outcome(scope.request.id, calls.totals, calls.late_flags);
    if let Err(error) = scope.recorder.finished(&outcome).await {
        tracing::error!(rollout.id = %scope.request.id, error = &error as &dyn std::error::Error, "outcome not stored");
        not_kept(&mut outcome, &error);
    }
    let fault = outcome.fault.clone();
    scope.events.tell(Event::Finished {
        ended: outcome.ended,
        fault,
    });
    outcome
}

/// Says in an outcome that the recorder did not take it.
fn not_kept(outcome: &mut RolloutOutcome, error: &RecorderError) {
    let not_stored = faults::STORE_FAILED.code;
    let fault = match &outcome.fault {
        // What was refused first is why the rest was.
        Some(fault) if fault.code == not_stored => fault.clone(),
        Some(_) => {
            if error.remains == Remains::Aside {
                outcome.warnings.push(error.source.to_string());
            }
            faults::not_recorded(error)
        }
        None => outcome.fault.insert(faults::not_recorded(error)).clone(),
    };
    if error.remains == Remains::Nothing {
        outcome.unstored = Some(fault);
    }
}

/// A stage that has begun.
pub(crate) struct Begun<'a> {
    scope: &'a Scope,
    stage: Stage,
    since: Instant,
}

impl Scope {
    /// The sandboxes that are to be taken down.
    fn sandboxes(&self) -> MutexGuard<'_, Vec<Arc<dyn Sandbox>>> {
        self.sandboxes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The sandbox that was made for the agent, while it is there.
    pub(crate) fn agents_sandbox(&self) -> Option<Arc<dyn Sandbox>> {
        self.sandboxes().first().cloned()
    }

    /// Has a sandbox taken down at the end, whatever happens until then, and gives it its way out.
    pub(crate) fn keep(&self, sandbox: Arc<dyn Sandbox>) {
        self.way_out.serve(Arc::clone(&sandbox));
        self.sandboxes().push(sandbox);
    }

    /// Ends a sandbox that nothing needs any more before the end. Where that fails it is tried again then.
    pub(crate) async fn let_go(&self, sandbox: &dyn Sandbox) {
        if end(self, sandbox).await.is_none() {
            self.sandboxes().retain(|kept| kept.id() != sandbox.id());
        }
    }

    fn begin(&self, stage: Stage) -> Begun<'_> {
        self.events.tell(Event::StageStarted { stage });
        Begun {
            scope: self,
            stage,
            since: Instant::now(),
        }
    }

    /// Does `work` until it is done, the rollout is cancelled, or the deadline has passed. What is cut off is dropped.
    pub(crate) async fn until<T>(
        &self,
        deadline: tokio::time::Instant,
        work: impl Future<Output = T>,
    ) -> Result<T, Cut> {
        tokio::select! {
            biased;
            () = self.cancel.cancelled() => Err(Cut::Cancelled),
            () = tokio::time::sleep_until(deadline) => Err(Cut::Deadline),
            done = work => Ok(done),
        }
    }

    /// Has a sandbox do something until a deadline by which it should have ended it itself. That it failed stops the
    /// stage; `otherwise` says whose failure it is if the sandbox still stands.
    pub(crate) async fn ask<T>(
        &self,
        stage: Stage,
        otherwise: faults::FaultCode,
        deadline: tokio::time::Instant,
        work: impl Future<Output = Result<T, SandboxError>>,
    ) -> Result<T, Stop> {
        self.hear(stage, deadline, work)
            .await?
            .map_err(|error| Stop::sandbox(stage, otherwise, &error))
    }

    /// As [`Scope::ask`], where the sandbox's own error may mean something else than a failure.
    pub(crate) async fn hear<T>(
        &self,
        stage: Stage,
        deadline: tokio::time::Instant,
        work: impl Future<Output = Result<T, SandboxError>>,
    ) -> Result<Result<T, SandboxError>, Stop> {
        self.until(deadline, work).await.map_err(|cut| match cut {
            Cut::Cancelled => Stop::Cancelled,
            Cut::Deadline => Stop::unresponsive(stage),
        })
    }
}

impl Begun<'_> {
    /// Takes down what came of the stage; its value, unless it stopped.
    fn end<T>(self, report: &mut Report, result: Result<T, Stop>) -> Option<T> {
        let duration_ms = millis(self.since);
        report.stages.push(StageTime {
            stage: self.stage,
            duration_ms,
            warm: self.stage == Stage::Boot && report.warm,
            restored: report.restored.contains(&self.stage),
        });
        self.scope.events.tell(Event::StageEnded {
            stage: self.stage,
            duration_ms,
        });
        report.take(result)
    }
}

/// Why work was cut off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    Cancelled,
    Deadline,
}
