//! The result of `run_rollout`: upstream's `RolloutResult`, with what trainers need beside it.

use crate::service::{Detail, Service, ServiceError, Turn};
use dressage_store::Transcript;
use dressage_wire::fault::Fault;
use dressage_wire::ids::RolloutId;
use dressage_wire::reward::CommandResult;
use dressage_wire::rollout::RolloutOutcome;
use dressage_wire::task::Mode;
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Bytes of a result up to which every turn is told in full.
const FULL_MAX: usize = 24 << 20;

/// Bytes of a result as such. It stands twice in a reply, with its quotes escaped, and no reply may exceed 90 MB.
const RESULT_MAX: usize = 32 << 20;

/// Bytes of a result that is repeated a third time, for clients that read `structured_content`.
const STRUCTURED_MAX: usize = 1 << 20;

/// The working directory of every sandbox; where a backend's home is elsewhere there is a link.
const WORKING_DIRECTORY: &str = "/home/user/workdir";

/// Characters of output and logs that upstream keeps.
const TAIL_MAX: usize = 2000;

/// Upstream's `RolloutResult`.
#[derive(Debug, Serialize)]
struct RolloutResult<'a> {
    task_id: &'a str,
    sandbox_id: String,
    reward: Option<f64>,
    agent_exit_code: Option<i32>,
    wall_s: f64,
    mode: Mode,
    setup_results: Vec<Command<'a>>,
    verify_results: Vec<Command<'a>>,
    proxy_turns: Vec<Box<RawValue>>,
    files: BTreeMap<String, &'a str>,
    files_extra: Vec<String>,
    agent_log_tail: &'a str,
    proxy_log_tail: &'a str,
    error: Option<String>,
    /// The id of the rollout, for REST.
    rollout_id: String,
    /// How it ended, in our words.
    ended: Value,
}

/// Upstream's `CommandResult`.
#[derive(Debug, Serialize)]
struct Command<'a> {
    cmd: &'a str,
    exit_code: i32,
    stdout: &'a str,
    stderr: &'a str,
    duration_s: f64,
}

/// The result of a rollout that ended, as JSON.
///
/// # Errors
/// Its calls cannot be read.
pub async fn text(
    service: &Service,
    task_id: &str,
    mode: Mode,
    outcome: &Arc<RolloutOutcome>,
) -> Result<String, ServiceError> {
    let transcript = service.store().transcript(outcome.id).await?;
    let (outcome, task_id) = (outcome.clone(), task_id.to_owned());
    let made = tokio::task::spawn_blocking(move || largest(&transcript, &task_id, mode, &outcome));
    made.await
        .map_err(|error| ServiceError::from_error(crate::service::Code::StoreFailed, &error))
}

/// The result with as much of each turn as there is room for.
fn largest(transcript: &Transcript, task_id: &str, mode: Mode, outcome: &RolloutOutcome) -> String {
    let mut texts = Detail::ALL.map(Some).into_iter().chain([None]).map(|detail| {
        let turns = turns(transcript, outcome.id, detail);
        turns.and_then(|turns| render(task_id, mode, outcome, turns, limit(detail)))
    });
    // Without turns, the files are what is left, and collecting them is bounded.
    texts
        .find_map(|text| text)
        .unwrap_or_else(|| unstarted(task_id, mode, "the result is too large"))
}

/// The result of a rollout that was not taken.
#[must_use]
pub fn unstarted(task_id: &str, mode: Mode, error: &str) -> String {
    json!({
        "task_id": task_id, "sandbox_id": "", "reward": null, "agent_exit_code": null, "wall_s": 0.0, "mode": mode,
        "setup_results": [], "verify_results": [], "proxy_turns": [], "files": {}, "files_extra": [],
        "agent_log_tail": "", "proxy_log_tail": "", "error": error,
    })
    .to_string()
}

/// A tool's result as FastMCP sends it.
#[must_use]
pub fn envelope(text: &str) -> Box<RawValue> {
    let quoted = Value::from(text).to_string();
    let structured = match quoted.len() <= STRUCTURED_MAX {
        true => format!(r#"{{"result":{quoted}}}"#),
        false => "null".to_owned(),
    };
    let json = format!(
        r#"{{"content":[{{"type":"text","text":{quoted},"annotations":null,"meta":null}}],"structured_content":{structured},"meta":{{"fastmcp":{{"wrap_result":true}}}},"data":{quoted},"is_error":false}}"#
    );
    // Made of JSON only.
    RawValue::from_string(json).unwrap_or_default()
}

fn render(
    task_id: &str,
    mode: Mode,
    outcome: &RolloutOutcome,
    proxy_turns: Vec<Box<RawValue>>,
    limit: usize,
) -> Option<String> {
    let agent = outcome.agent.as_ref();
    let files = outcome.files.iter();
    let result = RolloutResult {
        task_id,
        sandbox_id: outcome.sandbox.map(|id| id.to_string()).unwrap_or_default(),
        reward: outcome.reward.as_ref().and_then(|reward| reward.value),
        agent_exit_code: agent.map(|agent| agent.exit_code),
        wall_s: outcome.wall_ms as f64 / 1000.0,
        mode,
        setup_results: outcome.setup.iter().map(command).collect(),
        verify_results: outcome
            .reward
            .iter()
            .flat_map(|reward| &reward.commands)
            .map(command)
            .collect(),
        proxy_turns,
        files: files
            .map(|(name, text)| (absolute(name), text.as_str()))
            .collect(),
        files_extra: outcome.files_extra.iter().map(|name| absolute(name)).collect(),
        agent_log_tail: agent.map(|agent| tail(&agent.log_tail)).unwrap_or(""),
        proxy_log_tail: "",
        error: outcome.fault.as_ref().map(|fault| error(fault, outcome)),
        rollout_id: outcome.id.to_string(),
        ended: json!(outcome.ended),
    };
    let text = serde_json::to_string(&result).ok()?;
    (text.len() <= limit).then_some(text)
}

/// Where a collected file stood: upstream tells what `find` printed for its working directory.
fn absolute(name: &str) -> String {
    format!("{WORKING_DIRECTORY}/{name}")
}

fn command(result: &CommandResult) -> Command<'_> {
    Command {
        cmd: &result.command,
        exit_code: result.exit_code,
        stdout: tail(&result.stdout),
        stderr: tail(&result.stderr),
        duration_s: result.duration_ms as f64 / 1000.0,
    }
}

/// A failure in upstream's words where it has some, else in ours.
fn error(fault: &Fault, outcome: &RolloutOutcome) -> String {
    match fault.code.as_str() {
        "setup_command_failed" => match outcome.setup.last() {
            Some(last) => {
                let command: String = last.command.chars().take(120).collect();
                format!("setup command failed (exit {}): {command}", last.exit_code)
            }
            None => fault.message.clone(),
        },
        "agent_timeout" => format!("agent timeout: {}", fault.message),
        code => {
            let causes: String = fault.causes.iter().map(|cause| format!(": {cause}")).collect();
            let hint = fault
                .hint
                .as_ref()
                .map(|hint| format!(" ({hint})"))
                .unwrap_or_default();
            format!("{code}: {}{causes}{hint}", fault.message)
        }
    }
}

/// The end of a text.
fn tail(text: &str) -> &str {
    match text.char_indices().rev().nth(TAIL_MAX - 1) {
        Some((start, _)) => text.get(start..).unwrap_or(text),
        None => text,
    }
}

/// The turns as JSON; `None` as soon as they are larger than their detail allows.
fn turns(transcript: &Transcript, rollout: RolloutId, detail: Option<Detail>) -> Option<Vec<Box<RawValue>>> {
    let Some(detail) = detail else {
        return Some(Vec::new());
    };
    let mut bytes = 0;
    let mut turns = Vec::new();
    for turn in Turn::all(transcript, rollout, detail) {
        let turn = serde_json::value::to_raw_value(&turn).ok()?;
        bytes += turn.get().len();
        if bytes > limit(Some(detail)) {
            return None;
        }
        turns.push(turn);
    }
    Some(turns)
}

/// Bytes that a result of this detail may have.
fn limit(detail: Option<Detail>) -> usize {
    match detail {
        Some(Detail::Full | Detail::NewMessages | Detail::NoPrompts) => FULL_MAX,
        Some(Detail::NoBodies) | None => RESULT_MAX,
    }
}

#[cfg(test)]
mod tests;
