//! `dressage list`: rollouts, the latest first.

use crate::error::Failure;
use crate::exit::Exit;
use crate::render;
use crate::terminal::{BAD, FAINT, NOTE, Table, duration, one_line, styled};
use crate::workspace::{Context, store_failure};
use dressage_store::{ListFilter, RolloutRow, RolloutState, Store, StoreError};
use dressage_wire::fault::{Ended, FaultOwner};
use serde::de::DeserializeOwned;

/// What it takes.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Only those of this task.
    #[arg(long, value_name = "ID")]
    task: Option<String>,
    /// Only those in this state: queued, running, finished, interrupted.
    #[arg(long, value_name = "STATE", value_parser = word::<RolloutState>)]
    state: Option<RolloutState>,
    /// Only those that ended so: completed, budget, timeout, agent_error, setup_error, cancelled.
    #[arg(long, value_name = "END", value_parser = word::<Ended>)]
    ended: Option<Ended>,
    /// Only those that failed by this owner's fault: task, agent, sandbox, upstream, server.
    #[arg(long, value_name = "OWNER", value_parser = word::<FaultOwner>)]
    fault: Option<FaultOwner>,
    /// Only those of this agent.
    #[arg(long, value_name = "NAME")]
    agent: Option<String>,
    /// Only those of this endpoint.
    #[arg(long, value_name = "NAME")]
    endpoint: Option<String>,
    /// Only those with at least this reward.
    #[arg(long, value_name = "NUMBER", allow_negative_numbers = true)]
    min_reward: Option<f64>,
    /// Only those with at most this reward.
    #[arg(long, value_name = "NUMBER", allow_negative_numbers = true)]
    max_reward: Option<f64>,
    /// At most so many; 0 for all.
    #[arg(short = 'l', long, value_name = "COUNT", default_value_t = 50)]
    limit: u32,
    /// Write a JSON object a line.
    #[arg(long)]
    json: bool,
}

/// Takes a word as JSON has it.
fn word<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    serde_json::from_value(text.into()).map_err(|error| error.to_string())
}

/// Writes the list.
///
/// # Errors
/// Where the database cannot be read. That there is none yet is no error: nothing was run.
pub async fn run(arguments: &Arguments, context: &Context) -> Result<Exit, Failure> {
    let store = match Store::open_read_only(&context.paths.data).await {
        Ok(store) => store,
        Err(StoreError::Missing { .. }) => {
            context
                .terminal
                .note(format!("no rollouts in {}", context.paths.data.display()));
            return Ok(Exit::Done);
        }
        Err(error) => return Err(store_failure(&error)),
    };
    let filter = ListFilter {
        states: arguments.state.into_iter().collect(),
        task_id: arguments.task.clone(),
        agent: arguments.agent.clone(),
        endpoint: arguments.endpoint.clone(),
        ended: arguments.ended,
        fault_owner: arguments.fault,
        reward_at_least: arguments.min_reward,
        reward_at_most: arguments.max_reward,
        limit: (arguments.limit > 0).then_some(arguments.limit),
        ..ListFilter::default()
    };
    let rows = store.list(&filter).await.map_err(|error| store_failure(&error))?;
    let repeated = store.repeated(&rows).await;
    let repeated = repeated.map_err(|error| store_failure(&error))?;
    store.close().await;
    if arguments.json {
        for row in &rows {
            let line = serde_json::to_string(row);
            context
                .terminal
                .line(line.map_err(|error| Failure::from_error(Exit::MachineLacks, &error))?);
        }
        return Ok(Exit::Done);
    }
    let now = jiff::Timestamp::now();
    let mut table = Table::with_heading([
        "rollout", "task", "state", "reward", "calls", "tokens", "breaks", "time", "started",
    ]);
    for row in &rows {
        table.row(cells(row, repeated.contains(&row.id), now));
    }
    for line in table.lines() {
        context.terminal.line(line);
    }
    if arguments.limit > 0 && rows.len() == arguments.limit as usize {
        context.terminal.note(styled(
            FAINT,
            format!("the latest {}; `--limit 0` shows all", arguments.limit),
        ));
    }
    Ok(Exit::Done)
}

fn cells(row: &RolloutRow, repeated: bool, now: jiff::Timestamp) -> [String; 9] {
    let task = row.task_id.as_deref().unwrap_or(&row.title);
    let task = if repeated {
        format!("{} #{}", one_line(task, 32), row.sample)
    } else {
        one_line(task, 36)
    };
    [
        row.id.to_string(),
        task,
        state(row),
        render::reward_cell(row.reward),
        row.totals.calls.to_string(),
        format!(
            "{} → {}",
            render::thousands(row.totals.prompt_tokens),
            render::thousands(row.totals.completion_tokens)
        ),
        row.totals.prefix_breaks.to_string(),
        row.wall_ms.map_or("–".into(), duration),
        row.started_unix_ms.map_or("–".into(), |at| started(at, now)),
    ]
}

/// How far it is, or how it ended, and by which fault.
fn state(row: &RolloutRow) -> String {
    let state = match (row.ended, row.state) {
        (Some(ended), _) => render::ended(ended),
        (None, RolloutState::Interrupted) => styled(BAD, row.state.name()),
        (None, RolloutState::Queued) => styled(FAINT, row.state.name()),
        (None, _) => styled(NOTE, row.state.name()),
    };
    match &row.fault_code {
        Some(code) => format!("{state} {}", styled(FAINT, code)),
        None => state,
    }
}

/// When it started: how long ago for today's, the day for older ones.
fn started(unix_ms: u64, now: jiff::Timestamp) -> String {
    let at = i64::try_from(unix_ms)
        .ok()
        .and_then(|at| jiff::Timestamp::from_millisecond(at).ok());
    let Some(at) = at else { return "?".into() };
    let ago = u64::try_from(now.as_millisecond() - at.as_millisecond()).unwrap_or_default();
    match ago {
        0..86_400_000 => format!("{} ago", duration(ago / 1_000 * 1_000)),
        _ => at.strftime("%Y-%m-%d").to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn older_rollouts_are_dated() {
        let now = jiff::Timestamp::from_millisecond(1_764_430_000_000).unwrap();
        assert_eq!(started(1_764_430_000_000 - 61_500, now), "1 min 01 s ago");
        assert_eq!(started(1_764_430_000_000 - 2 * 86_400_000, now), "2025-11-27");
        assert_eq!(started(u64::MAX, now), "?");
    }

    #[test]
    fn words_of_filters_are_those_of_the_json() {
        assert_eq!(word::<Ended>("agent_error"), Ok(Ended::AgentError));
        assert!(
            word::<Ended>("agent error")
                .unwrap_err()
                .contains("expected one of")
        );
    }
}
