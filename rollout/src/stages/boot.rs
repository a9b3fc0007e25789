use super::hold;
use super::plan::{AGENT_ASSET, HOME, Plan, TAP_ASSET};
use super::snapshot::{self, Beginning};
use crate::faults;
use crate::report::{Report, Stop};
use crate::request::RolloutRequest;
use crate::run::{Cut, Scope};
use dressage_sandbox::{Asset, Booted, Sandbox, SandboxError, SandboxSpec, Size};
use dressage_wire::event::Stage;
use dressage_wire::ids::SandboxId;
use dressage_wire::task::{Mode, Placement, Task};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// The label by which a sandbox says which rollout it is of.
pub const ROLLOUT_LABEL: &str = "dressage.rollout";

/// Where the relay listens in a sandbox.
const RELAY_PORT: u16 = 7000;

/// What a sandbox may live beyond the stages' deadlines.
const SPARE_LIFETIME: Duration = Duration::from_secs(300);

/// Makes the sandbox, or takes one that is ready. The lease on it is the backend's, and is there before it is.
pub(crate) async fn run(
    scope: &Scope,
    plan: &Plan,
    report: &mut Report,
) -> Result<(Arc<dyn Sandbox>, Beginning), Stop> {
    let bare = bare_spec(scope);
    let beginning = snapshot::beginning(scope, &bare, report).await?;
    let mut spec = bare;
    fill(&mut spec, scope, plan);
    report.sandbox = Some(spec.id);
    if let Beginning::Restored(snapshot) = &beginning {
        if let Some(sandbox) = snapshot::restore(scope, &spec, snapshot, Stage::Boot, report).await? {
            report.sandbox = Some(sandbox.id());
            return Ok((sandbox, beginning));
        }
        spec.id = SandboxId::new();
        report.sandbox = Some(spec.id);
    }
    let booted = make(scope, spec, Stage::Boot).await?;
    report.sandbox = Some(booted.sandbox.id());
    report.warm = booted.warm;
    let beginning = match beginning {
        Beginning::Restored(_) => Beginning::Empty,
        beginning => beginning,
    };
    Ok((booted.sandbox, beginning))
}

/// Makes a sandbox, or takes one that is ready. It will be taken down at the end whatever happens until then.
pub(super) async fn make(scope: &Scope, spec: SandboxSpec, stage: Stage) -> Result<Booted, Stop> {
    let limits = &scope.request.task.limits;
    let deadline = Instant::now() + seconds(limits.boot_timeout_s);
    let asked = scope.pools.create(&scope.request.backend, spec);
    match scope.until(deadline, asked).await {
        Ok(Ok(booted)) => {
            scope.keep(booted.sandbox.clone());
            Ok(booted)
        }
        Ok(Err(error)) => {
            let code = match error {
                SandboxError::Unavailable { .. }
                | SandboxError::Unsupported { .. }
                | SandboxError::UnknownBackend { .. } => faults::SANDBOX_UNAVAILABLE,
                _ => faults::SANDBOX_BOOT_FAILED,
            };
            Err(Stop::sandbox(stage, code, &error))
        }
        Err(Cut::Cancelled) => Err(Stop::Cancelled),
        Err(Cut::Deadline) => {
            let message = format!("sandbox was not there after {} s", limits.boot_timeout_s);
            Err(faults::SANDBOX_BOOT_TIMEOUT.fault(Some(stage), message).into())
        }
    }
}

/// Adds what an agent needs.
fn fill(spec: &mut SandboxSpec, scope: &Scope, plan: &Plan) {
    let request = &scope.request;
    let program = plan.installed.directory.iter().map(|directory| Asset {
        name: AGENT_ASSET.into(),
        host_path: directory.clone(),
    });
    spec.assets.extend(program);
    match (request.mode, request.placement) {
        (Mode::TransparentProxy, Placement::Relay) => spec.relay_port = Some(RELAY_PORT),
        (Mode::TransparentProxy, Placement::InSandbox) => spec.assets.push(Asset {
            name: TAP_ASSET.into(),
            host_path: scope.tap_binary.clone(),
        }),
        _ => {}
    }
}

/// What a sandbox of the rollout is without an agent.
pub(super) fn bare_spec(scope: &Scope) -> SandboxSpec {
    let request = &scope.request;
    let limits = &request.task.limits;
    let mut labels = scope.labels.clone();
    labels.insert(ROLLOUT_LABEL.into(), request.id.to_string());
    SandboxSpec {
        id: SandboxId::new(),
        image: request.image.clone().or_else(|| request.task.image.clone()),
        dockerfile: dockerfile(request),
        user: request.task.user.clone(),
        home: HOME.into(),
        env: request.task.env.clone().into_iter().collect::<BTreeMap<_, _>>(),
        network: request.task.network.clone(),
        size: Size {
            memory_bytes: limits.memory_mb.saturating_mul(1 << 20),
            cpus: limits.cpus,
            pids: limits.pids,
        },
        assets: Vec::new(),
        labels,
        lifetime: lifetime(&request.task)
            .saturating_add(request.hold.map_or(Duration::ZERO, |_| hold::LONGEST)),
        relay_port: None,
        snapshot: None,
    }
}

/// What the image is built of, if none is named for this rollout. The task was validated: it is text.
fn dockerfile(request: &RolloutRequest) -> Option<String> {
    let content = request
        .task
        .dockerfile
        .as_ref()
        .filter(|_| request.image.is_none())?;
    let bytes = content.bytes().ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// The sum of all deadlines, and some more.
fn lifetime(task: &Task) -> Duration {
    let limits = &task.limits;
    let commands = |count: usize, timeout_s: f64| {
        seconds(timeout_s).saturating_mul(u32::try_from(count + 1).unwrap_or(u32::MAX))
    };
    // Once to take them, and once to put them where verify is.
    let copies = commands(task.outputs.len(), limits.collect_timeout_s).saturating_mul(2);
    [
        seconds(limits.boot_timeout_s),
        commands(task.setup.len(), limits.setup_timeout_s),
        seconds(limits.agent_timeout_s),
        commands(task.verify.len(), limits.verify_timeout_s),
        seconds(limits.collect_timeout_s),
        copies,
    ]
    .into_iter()
    .fold(SPARE_LIFETIME, Duration::saturating_add)
}

/// A limit of the task as a duration. The task was validated: it is a finite number of at most some days.
pub(crate) fn seconds(limit_s: f64) -> Duration {
    Duration::try_from_secs_f64(limit_s).unwrap_or_default()
}
