//! `dressage run`: rollouts of an instruction, of task files, or of a directory of them.

/// What it takes.
mod arguments;

/// From what was given to tasks.
mod tasks;

/// Whether the endpoint is there.
pub mod check;

pub use arguments::{Arguments, PLACES, SNAPSHOTS, named, sandboxes};
pub use tasks::preset;

use crate::endpoints::probes::Probes;
use crate::endpoints::{self, Choice, Chosen};
use crate::error::Failure;
use crate::exit::Exit;
use crate::interrupt;
use crate::output;
use crate::progress::{Detail, Progress};
use crate::render;
use crate::terminal::{BAD, Escapes, STRONG, styled};
use crate::warm;
use crate::workspace::{Context, Workspace, chain};
use dressage_rollout::{RolloutRequest, SubmitError, Supervisor};
use dressage_sandbox::Backend;
use dressage_tap::Upstream;
use dressage_testkit::model::{ScriptedModel, ScriptedModelConfig};
use dressage_wire::fault::Fault;
use dressage_wire::ids::RolloutId;
use dressage_wire::rollout::RolloutOutcome;
use dressage_wire::task::{CaptureMode, Task};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// The backend where nobody names one.
pub const DEFAULT_SANDBOX: &str = "local";

/// Rollouts at once where nobody says.
const DEFAULT_CONCURRENCY: usize = 4;

/// Runs them.
///
/// # Errors
/// Where the input is wrong, or rollouts cannot be started at all. A rollout that fails is no error of this function.
pub async fn run(arguments: &Arguments, context: &Context) -> Result<Exit, Failure> {
    let mut tasks = tasks::read(arguments)?;
    for task in &mut tasks {
        let defaults = &context.config.defaults;
        task.verify_in = task.verify_in.or(defaults.verify_in);
        task.snapshot = task.snapshot.or(defaults.snapshot);
    }
    let choice = Choice {
        name: arguments.endpoint.as_deref(),
        base_url: arguments.base_url.as_deref(),
        model: arguments.model.as_deref(),
        key_variable: arguments.api_key_env.as_deref(),
        key: None,
    };
    let chosen = endpoints::resolve(choice, &context.config, &context.environment)?;
    for task in &tasks {
        check_agent(context, task)?;
    }
    let pools = warm::pools(&arguments.warm, context)?;
    let workspace = context.open().await?;
    let sandbox = arguments
        .sandbox
        .as_deref()
        .or(context.config.defaults.sandbox.as_deref());
    let backend = workspace.backend(sandbox.unwrap_or(DEFAULT_SANDBOX))?;
    let (upstream, scripted) = connect(chosen).await?;
    if scripted.is_none() && !arguments.no_check {
        check::endpoint(&upstream, &context.terminal).await?;
    }
    let probes = Probes::of(&context.paths.cache);
    probes.recall(&upstream);
    let asked = arguments.capture.unwrap_or(upstream.endpoint().capture);
    if asked == CaptureMode::Auto && upstream.learned().is_none() {
        context
            .terminal
            .note("asking the endpoint what it returns (six small calls, once a day)");
        probes.ask(&upstream).await?;
    }
    let concurrency = arguments
        .concurrency
        .or(context.config.defaults.concurrency)
        .unwrap_or(DEFAULT_CONCURRENCY)
        .max(1);
    let supervisor = workspace.supervisor(context, concurrency, pools.clone());
    let interrupted = interrupt::listen(&supervisor, &context.terminal)
        .map_err(|error| Failure::from_error(Exit::MachineLacks, &error))?;
    let total = tasks.len() as u64 * u64::from(arguments.samples);
    let detail = if total == 1 && !arguments.json {
        Detail::Everything
    } else {
        Detail::Ends
    };
    let escapes = if arguments.raw {
        Escapes::Raw
    } else {
        Escapes::Escaped
    };
    let progress = Progress::new(&context.terminal, detail, escapes, total);
    let mut batch = Batch {
        arguments,
        context,
        workspace: &workspace,
        supervisor: &supervisor,
        progress: &progress,
        upstream,
        backend,
        tally: Tally::default(),
        running: JoinSet::new(),
        interrupted: interrupted.clone(),
    };
    batch.admit(tasks, concurrency).await?;
    let tally = batch.drain().await?;
    supervisor.drained().await;
    pools.close().await;
    workspace.store.close().await;
    if let Some(model) = scripted {
        model.shutdown().await;
    }
    progress.clear();
    Ok(tally.close(context, detail, total, interrupted.is_cancelled()))
}

/// Refuses, before anything is made, an agent that is unknown, not installed, not for this machine, or asked for what it
/// cannot do.
pub fn check_agent(context: &Context, task: &Task) -> Result<(), Failure> {
    let agents = context.agents();
    let agent = agents
        .of_task(task)
        .map_err(|error| super::agents::failure(&error))?;
    agent
        .installed(&context.paths.cache, task.agent.version.as_deref())
        .map_err(|error| super::agents::failure(&error))?;
    Ok(())
}

/// Connects to what was chosen; the scripted model is started for that.
pub async fn connect(chosen: Chosen) -> Result<(Arc<Upstream>, Option<ScriptedModel>), Failure> {
    let (endpoint, scripted) = match chosen {
        Chosen::Server(endpoint) => (*endpoint, None),
        Chosen::Demo => {
            let config = ScriptedModelConfig::default();
            let name = config.model.clone();
            let model = ScriptedModel::start(config)
                .await
                .map_err(|error| Failure::from_error(Exit::MachineLacks, &error))?;
            let mut endpoint = dressage_tap::Endpoint::at(endpoints::DEMO, model.base_url());
            endpoint.model = Some(name);
            (endpoint, Some(model))
        }
    };
    let upstream =
        Upstream::new(endpoint).map_err(|error| Failure::from_error(Exit::EndpointUnusable, &error))?;
    Ok((upstream, scripted))
}

/// The rollouts of one command.
struct Batch<'a> {
    arguments: &'a Arguments,
    context: &'a Context,
    workspace: &'a Workspace,
    supervisor: &'a Supervisor,
    progress: &'a Progress,
    upstream: Arc<Upstream>,
    backend: Arc<dyn Backend>,
    tally: Tally,
    running: JoinSet<Option<Ended>>,
    interrupted: CancellationToken,
}

/// A rollout that is over.
struct Ended {
    task: Arc<Task>,
    sample: u32,
    outcome: RolloutOutcome,
}

impl Batch<'_> {
    /// Submits every rollout, no more at once than can run: what waits here costs nothing.
    async fn admit(&mut self, tasks: Vec<Task>, concurrency: usize) -> Result<(), Failure> {
        for task in tasks {
            let task = Arc::new(task);
            for sample in 0..self.arguments.samples {
                while self.running.len() >= concurrency {
                    self.next().await?;
                }
                if self.interrupted.is_cancelled() || !self.submit(task.clone(), sample).await? {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Submits a rollout. False where no more are taken.
    async fn submit(&mut self, task: Arc<Task>, sample: u32) -> Result<bool, Failure> {
        let request = RolloutRequest {
            id: RolloutId::new(),
            task: task.clone(),
            sample,
            group: None,
            priority: 0,
            upstream: self.upstream.clone(),
            backend: self.backend.clone(),
            image: None,
            mode: self.arguments.mode.unwrap_or_default(),
            placement: self.arguments.placement.unwrap_or_default(),
            capture: self.arguments.capture.unwrap_or(self.upstream.endpoint().capture),
            top_logprobs: self.arguments.top_logprobs,
            disable_thinking: self.arguments.disable_thinking,
            hold: None,
        };
        let handle = match self.supervisor.submit(request).await {
            Ok(handle) => handle,
            Err(SubmitError::Closed) => return Ok(false),
            Err(error) => return Err(Failure::from_error(Exit::RolloutFailed, &error)),
        };
        let label = label(&task, sample, self.arguments.samples);
        let progress = self.progress.clone();
        self.running.spawn(async move {
            let outcome = progress.follow(handle, &label).await?;
            Some(Ended {
                task,
                sample,
                outcome,
            })
        });
        Ok(true)
    }

    /// Waits for the next rollout to end, and reports it.
    async fn next(&mut self) -> Result<(), Failure> {
        let Some(ended) = self.running.join_next().await else {
            return Ok(());
        };
        let ended = ended.map_err(|error| Failure::from_error(Exit::RolloutFailed, &error))?;
        let Some(ended) = ended else { return Ok(()) };
        let folder = match &self.arguments.output {
            Some(directory) => self.write(directory, &ended.outcome).await,
            None => None,
        };
        if self.arguments.json {
            self.context.terminal.line(json_line(&ended, folder.as_deref()));
        }
        self.tally.count(ended, folder);
        Ok(())
    }

    /// Writes a rollout's folder. A failure is told and counted; the rollouts that run are not given up for it.
    async fn write(&mut self, directory: &Path, outcome: &RolloutOutcome) -> Option<PathBuf> {
        match output::write(directory, &self.workspace.store, outcome).await {
            Ok(folder) => Some(folder),
            Err(error) => {
                self.tally.unwritten += 1;
                let kept = outcome
                    .unstored
                    .is_none()
                    .then(|| format!("the rollout itself is kept; see `dressage show {}`", outcome.id));
                self.context
                    .terminal
                    .failure(&Failure::from_error(Exit::MachineLacks, &error).maybe_hint(kept));
                None
            }
        }
    }

    async fn drain(mut self) -> Result<Tally, Failure> {
        while !self.running.is_empty() {
            self.next().await?;
        }
        Ok(self.tally)
    }
}

/// What a rollout is called while it runs.
fn label(task: &Task, sample: u32, samples: u32) -> String {
    let name = match &task.id {
        Some(id) => crate::terminal::one_line(id, 40),
        None => crate::terminal::one_line(&task.instruction, 40),
    };
    if samples == 1 {
        name
    } else {
        format!("{name} #{sample}")
    }
}

/// A rollout as `--json` writes it.
#[derive(Serialize)]
struct Line<'a> {
    task: Option<&'a str>,
    sample: u32,
    output: Option<&'a Path>,
    stored: bool,
    #[serde(flatten)]
    outcome: &'a RolloutOutcome,
}

fn json_line(ended: &Ended, output: Option<&Path>) -> String {
    let line = Line {
        task: ended.task.id.as_deref(),
        sample: ended.sample,
        output,
        stored: ended.outcome.unstored.is_none(),
        outcome: &ended.outcome,
    };
    serde_json::to_string(&line).unwrap_or_else(|error| {
        // Only a path that is not UTF-8 has no JSON form.
        tracing::warn!(rollout.id = %ended.outcome.id, error = %chain(&error), "the output folder has no JSON form");
        serde_json::to_string(&Line { output: None, ..line }).unwrap_or_default()
    })
}

/// What came of the rollouts.
#[derive(Default)]
struct Tally {
    ended: u64,
    failed: u64,
    cancelled: u64,
    unwritten: u64,
    unstored: u64,
    /// Why the first of those was not stored.
    unstored_by: Option<Fault>,
    rewards: Vec<f64>,
    /// The last one, shown whole where everything is told of it.
    last: Option<(RolloutOutcome, Option<PathBuf>)>,
}

impl Tally {
    fn count(&mut self, ended: Ended, folder: Option<PathBuf>) {
        let outcome = ended.outcome;
        self.ended += 1;
        match outcome.ended {
            dressage_wire::fault::Ended::Cancelled => self.cancelled += 1,
            _ if outcome.fault.is_some() => self.failed += 1,
            _ => {}
        }
        self.rewards
            .extend(outcome.reward.as_ref().and_then(|reward| reward.value));
        if let Some(fault) = &outcome.unstored {
            self.unstored += 1;
            self.unstored_by.get_or_insert_with(|| fault.clone());
        }
        self.last = Some((outcome, folder));
    }

    /// Prints what was done, and decides how the program ends.
    fn close(self, context: &Context, detail: Detail, total: u64, interrupted: bool) -> Exit {
        match &self.last {
            Some((outcome, folder)) if detail == Detail::Everything => {
                for line in render::faults(outcome) {
                    context.terminal.note(line);
                }
                for warning in &outcome.warnings {
                    context
                        .terminal
                        .note(format!("warning: {}", crate::terminal::one_line(warning, 500)));
                }
                context.terminal.note(format!(
                    "{}  {}",
                    styled(STRONG, outcome.id),
                    render::verdict(outcome)
                ));
                context.terminal.note(match folder {
                    Some(folder) => format!("more: {}", folder.display()),
                    None => render::more(outcome),
                });
            }
            _ => {
                if let Some(fault) = &self.unstored_by {
                    context.terminal.failure(&not_stored(self.unstored, fault));
                }
                context.terminal.note(self.summary(total));
            }
        }
        match () {
            () if interrupted => Exit::Interrupted,
            () if self.unwritten + self.unstored > 0 => Exit::MachineLacks,
            () if self.failed + self.cancelled > 0 || self.ended < total => Exit::RolloutFailed,
            () => Exit::Done,
        }
    }

    fn summary(&self, total: u64) -> String {
        let mut parts = vec![match total {
            1 => format!("{} of 1 rollout ended", self.ended),
            _ => format!("{} of {total} rollouts ended", self.ended),
        }];
        if self.failed > 0 {
            parts.push(styled(BAD, format!("{} failed", self.failed)));
        }
        if self.cancelled > 0 {
            parts.push(format!("{} cancelled", self.cancelled));
        }
        if self.unstored > 0 {
            parts.push(styled(BAD, format!("{} not stored", self.unstored)));
        }
        if !self.rewards.is_empty() {
            let mean = self.rewards.iter().sum::<f64>() / self.rewards.len() as f64;
            parts.push(format!(
                "mean reward {} over {}",
                crate::terminal::reward(Some(mean)),
                self.rewards.len()
            ));
        }
        parts.join(", ")
    }
}

/// So many rollouts are not in the store.
fn not_stored(count: u64, fault: &Fault) -> Failure {
    let what = match count {
        1 => "1 rollout is not stored".to_owned(),
        _ => format!("{count} rollouts are not stored"),
    };
    let mut failure = Failure::new(Exit::MachineLacks, what).cause(fault.message.clone());
    failure.causes.extend(fault.causes.iter().cloned());
    failure.maybe_hint(fault.hint.clone())
}
