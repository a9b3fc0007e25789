//! `dressage demo`: the whole of Dressage on one's own machine, with a real agent and a scripted model.

use super::run::{check_agent, connect};
use crate::endpoints::Chosen;
use crate::error::Failure;
use crate::exit::Exit;
use crate::interrupt;
use crate::progress::{Detail, Progress};
use crate::render;
use crate::terminal::{Escapes, FAINT, GOOD, NOTE, STRONG, duration, styled};
use crate::workspace::Context;
use dressage_rollout::RolloutRequest;
use dressage_rollout::presets::PRESETS;
use dressage_sandbox::Pools;
use dressage_wire::ids::RolloutId;
use dressage_wire::rollout::RolloutOutcome;
use dressage_wire::task::{CaptureMode, Mode, Placement};
use std::fmt::Write as _;
use std::sync::Arc;

/// What it takes.
#[derive(Debug, clap::Args)]
#[command(after_help = presets())]
pub struct Arguments {
    /// The task.
    #[arg(default_value = "binary_search")]
    preset: String,
    /// The sandbox backend.
    #[arg(long, value_name = "NAME", help = super::run::sandboxes(), default_value = super::run::DEFAULT_SANDBOX)]
    sandbox: String,
}

fn presets() -> String {
    let mut text = String::from("Presets:\n");
    for preset in PRESETS {
        let _ = writeln!(text, "  {:<14} {}", preset.name, preset.title);
    }
    text.pop();
    text
}

/// Runs it, and tells what happens.
///
/// # Errors
/// Where the preset or backend is unknown, or this machine lacks something.
pub async fn run(arguments: &Arguments, context: &Context) -> Result<Exit, Failure> {
    let task = super::run::preset(&arguments.preset)?.task();
    check_agent(context, &task)?;
    let workspace = context.open().await?;
    let backend = workspace.backend(&arguments.sandbox)?;
    let (upstream, scripted) = connect(Chosen::Demo).await?;
    let supervisor = workspace.supervisor(context, 1, Pools::default());
    let interrupted = interrupt::listen(&supervisor, &context.terminal)
        .map_err(|error| Failure::from_error(Exit::MachineLacks, &error))?;

    let terminal = &context.terminal;
    terminal.note(format!(
        "{} · {} in sandbox `{}`, without network, with the scripted model of this program\n",
        styled(STRONG, &arguments.preset),
        task.agent.name,
        backend.name()
    ));
    let request = RolloutRequest {
        id: RolloutId::new(),
        task: Arc::new(task),
        sample: 0,
        group: None,
        priority: 0,
        upstream,
        backend,
        image: None,
        mode: Mode::TransparentProxy,
        placement: Placement::Relay,
        capture: CaptureMode::Stream,
        top_logprobs: 0,
        disable_thinking: None,
        hold: None,
    };
    let handle = supervisor
        .submit(request)
        .await
        .map_err(|error| Failure::from_error(Exit::RolloutFailed, &error))?;
    let progress = Progress::new(terminal, Detail::Everything, Escapes::Escaped, 1);
    let outcome = progress.follow(handle, &arguments.preset).await;
    supervisor.drained().await;
    workspace.store.close().await;
    if let Some(model) = scripted {
        model.shutdown().await;
    }
    let Some(outcome) = outcome else {
        return Err(Failure::new(
            Exit::RolloutFailed,
            "the engine ended before the rollout did",
        ));
    };
    for line in report(&outcome) {
        terminal.line(line);
    }
    let reward = outcome.reward.as_ref().and_then(|reward| reward.value);
    Ok(match reward {
        _ if interrupted.is_cancelled() => Exit::Interrupted,
        _ if outcome.unstored.is_some() => Exit::MachineLacks,
        Some(1.0) => Exit::Done,
        _ => Exit::RolloutFailed,
    })
}

/// What came of it.
fn report(outcome: &RolloutOutcome) -> Vec<String> {
    let mut lines = vec![String::new()];
    lines.extend(render::faults(outcome));
    lines.push(format!(
        "{}  {}",
        styled(FAINT, "stages "),
        render::stages(outcome)
    ));
    let totals = &outcome.totals;
    lines.push(format!(
        "{}  {}",
        styled(FAINT, "calls  "),
        render::totals(totals)
    ));
    if totals.prefix_breaks > 0 {
        lines.push(format!(
            "{}  {}",
            styled(FAINT, "       "),
            styled(
                NOTE,
                "a prompt that does not begin with what was sampled; the agent writes tool calls anew"
            )
        ));
    }
    lines.push(format!(
        "{}  {}: {} of {} sampled tokens can be trained on",
        styled(FAINT, "capture"),
        render::level(totals.level),
        render::thousands(totals.trainable_tokens),
        render::thousands(totals.completion_tokens)
    ));
    lines.push(styled(FAINT, "reward"));
    match &outcome.reward {
        Some(reward) => lines.extend(render::evidence(reward, Escapes::Escaped)),
        None => lines.push("    –".into()),
    }
    lines.push(format!(
        "{}  {}",
        styled(FAINT, "time   "),
        duration(outcome.wall_ms)
    ));
    lines.push(String::new());
    lines.push(match outcome.unstored {
        None => format!(
            "the trajectory is kept: {}",
            styled(GOOD, format!("dressage show {}", outcome.id))
        ),
        Some(_) => render::more(outcome),
    });
    lines
}
