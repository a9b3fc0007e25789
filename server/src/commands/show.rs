//! `dressage show ID`: a rollout from task to reward.

use crate::error::Failure;
use crate::exit::Exit;
use crate::render;
use crate::terminal::{BAD, Escapes, FAINT, NOTE, STRONG, Table, duration, one_line, safe, styled};
use crate::workspace::{Context, store_failure};
use dressage_store::{RolloutRow, RolloutState, Store, StoreError, StoredRollout};
use dressage_wire::call::{CallEnd, CallMeta, CallSummary, Flag, Purpose};
use dressage_wire::event::Stage;
use dressage_wire::export::Source;
use dressage_wire::rollout::{RolloutOutcome, RolloutStart};
use dressage_wire::trajectory::{
    CallRecord, CallView, Explanation, MessageChange, PrefixBreak, Selection, Untrained,
};
use serde::Serialize;

/// What it takes.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Its id, or the beginning of it; `last` for the latest rollout.
    id: String,
    /// Write a JSON object.
    #[arg(long)]
    json: bool,
    /// Write the trajectory file.
    #[arg(long, conflicts_with = "json")]
    trajectory: bool,
    /// Do not escape control characters in what the agent wrote.
    #[arg(long)]
    raw: bool,
}

/// A rollout as `--json` writes it.
#[derive(Serialize)]
struct Document<'a> {
    #[serde(flatten)]
    row: &'a RolloutRow,
    start: Option<&'a RolloutStart>,
    outcome: Option<&'a RolloutOutcome>,
    calls: Vec<ShownCall>,
}

/// A call, without its contents.
#[derive(Serialize)]
struct ShownCall {
    meta: CallMeta,
    prompt_tokens: u64,
    completion_tokens: u64,
    flags: Vec<Flag>,
    trainable: bool,
    untrained: Option<Untrained>,
    continues: Option<u32>,
    prefix_break: Option<PrefixBreak>,
    /// What made it break.
    explanation: Option<Explanation>,
}

/// Writes it.
///
/// # Errors
/// Where there is no such rollout, or the database cannot be read.
pub async fn run(arguments: &Arguments, context: &Context) -> Result<Exit, Failure> {
    let failed = |error: StoreError| match error {
        StoreError::NotFound { .. } | StoreError::Ambiguous { .. } | StoreError::Missing { .. } => Failure {
            exit: Exit::BadInput,
            ..store_failure(&error)
        },
        error => store_failure(&error),
    };
    let store = Store::open_read_only(&context.paths.data).await.map_err(failed)?;
    let id = super::find(&store, &arguments.id).await?;
    if arguments.trajectory {
        let written = store.export_trajectory(id, Vec::new()).await.map_err(failed)?;
        context
            .terminal
            .bytes(&written)
            .map_err(|error| Failure::from_error(Exit::MachineLacks, &error))?;
        return Ok(Exit::Done);
    }
    let stored = store.get(id).await.map_err(failed)?;
    let calls = store.with_source(id, Selection::default(), shown_calls);
    let calls = calls.await.map_err(failed)?;
    store.close().await;
    if arguments.json {
        let StoredRollout { row, start, outcome } = &stored;
        let document = Document {
            row,
            start: start.as_ref(),
            outcome: outcome.as_ref(),
            calls,
        };
        context.terminal.line(super::json(&document)?);
    } else {
        let escapes = if arguments.raw {
            Escapes::Raw
        } else {
            Escapes::Escaped
        };
        for line in lines(&stored, &calls, escapes) {
            context.terminal.line(line);
        }
    }
    Ok(Exit::Done)
}

fn shown_calls(source: &Source<'_>) -> Vec<ShownCall> {
    let calls = source.trajectory.calls().zip(source.trajectory.summaries());
    let shown = |((view, summary), record): ((CallView<'_>, CallSummary), &CallRecord)| ShownCall {
        meta: view.meta.clone(),
        prompt_tokens: summary.prompt_tokens,
        completion_tokens: summary.completion_tokens,
        flags: view.flags,
        trainable: view.trainable,
        untrained: view.untrained,
        continues: view.continues,
        prefix_break: view.prefix_break.cloned(),
        explanation: source.explain(record),
    };
    calls.zip(source.records).map(shown).collect()
}

fn lines(stored: &StoredRollout, calls: &[ShownCall], escapes: Escapes) -> Vec<String> {
    let mut lines = head(stored, escapes);
    let Some(outcome) = &stored.outcome else {
        if stored.row.state == RolloutState::Queued {
            lines.push(styled(NOTE, "queued: it has not begun"));
            return lines;
        }
        lines.push(styled(NOTE, format!("{}: no outcome", stored.row.state.name())));
        lines.extend(call_lines(calls));
        return lines;
    };
    lines.extend(outcome.fault.iter().flat_map(render::fault));
    lines.push(field("stages", render::stages(outcome)));
    if !outcome.setup.is_empty() {
        lines.push(heading("setup"));
        for result in &outcome.setup {
            lines.push(render::command(Stage::Setup, result));
            if result.exit_code != 0 {
                lines.extend(render::output(result, escapes));
            }
        }
    }
    if let Some(agent) = &outcome.agent {
        lines.push(heading("agent"));
        lines.push(format!(
            "    exit {}{}  {}",
            agent.exit_code,
            if agent.spoke { "" } else { ", said nothing" },
            styled(FAINT, duration(agent.duration_ms))
        ));
        if outcome.fault.is_some() && !agent.log_tail.trim().is_empty() {
            lines.extend(render::block("log", &agent.log_tail, escapes));
        }
    }
    lines.extend(call_lines(calls));
    lines.push(heading("reward"));
    match &outcome.reward {
        Some(reward) => lines.extend(render::evidence(reward, escapes)),
        None => lines.push(styled(FAINT, "    – (verify did not run)")),
    }
    lines.extend(files(outcome));
    for warning in &outcome.warnings {
        lines.push(format!("{} {}", styled(NOTE, "warning:"), one_line(warning, 500)));
    }
    lines
}

fn heading(name: &str) -> String {
    styled(STRONG, name)
}

fn field(name: &str, value: impl std::fmt::Display) -> String {
    format!("{} {value}", styled(FAINT, format!("{name:<11}")))
}

fn head(stored: &StoredRollout, escapes: Escapes) -> Vec<String> {
    let StoredRollout { row, start, .. } = stored;
    let ended = row
        .ended
        .map_or_else(|| row.state.name().to_owned(), render::ended);
    let mut lines = vec![
        format!(
            "{}  {ended}  reward {}",
            styled(STRONG, row.id),
            render::reward_cell(row.reward)
        ),
        field(
            "task",
            format!(
                "{} #{}",
                one_line(row.task_id.as_deref().unwrap_or("–"), 80),
                row.sample
            ),
        ),
    ];
    let Some(start) = start else {
        lines.extend([
            field("instruction", one_line(&row.title, 100)),
            field("agent", &row.agent),
            field(
                "model",
                format!("{} at {}", one_line(&row.model, 80), row.endpoint),
            ),
            field("sandbox", &row.backend),
            field("priority", row.priority),
        ]);
        return lines;
    };
    let text = safe(start.task.instruction.trim(), escapes).into_owned();
    for (position, line) in text.lines().take(8).enumerate() {
        lines.push(field(
            if position == 0 { "instruction" } else { "" },
            one_line(line, 100),
        ));
    }
    lines.extend([
        field("agent", format!("{} {}", row.agent, row.agent_version)),
        field(
            "model",
            format!(
                "{} at {} ({})",
                one_line(&row.model, 80),
                row.endpoint,
                start.base_url
            ),
        ),
        field(
            "sandbox",
            format!("{}, network {}", row.backend, start.task.network),
        ),
        field(
            "capture",
            format!(
                "{}, {}, {}; level {}",
                render::word(&start.mode),
                render::word(&start.placement),
                render::word(&start.capture),
                render::level(row.totals.level)
            ),
        ),
        field(
            "totals",
            format!(
                "{}; {} of {} sampled tokens can be trained on",
                render::totals(&row.totals),
                render::thousands(row.totals.trainable_tokens),
                render::thousands(row.totals.completion_tokens)
            ),
        ),
    ]);
    lines
}

fn call_lines(calls: &[ShownCall]) -> Vec<String> {
    if calls.is_empty() {
        return Vec::new();
    }
    let mut table = Table::with_heading([
        "   #", "purpose", "prompt", "sampled", "level", "trained", "time", "",
    ]);
    for call in calls {
        let meta = &call.meta;
        let purpose = match meta.purpose {
            Purpose::Agent => render::word(&meta.purpose),
            _ => styled(NOTE, render::word(&meta.purpose)),
        };
        let mut notes = render::flags(&call.flags);
        if meta.end != CallEnd::Complete {
            notes.insert_str(0, &format!("  {}", styled(BAD, render::word(&meta.end))));
        }
        table.row([
            format!("   {}", meta.index),
            purpose,
            render::thousands(call.prompt_tokens),
            render::thousands(call.completion_tokens),
            render::word(&meta.level),
            match call.untrained {
                None => "yes".to_owned(),
                Some(Untrained::Flag(_) | Untrained::Purpose | Untrained::End) => "no".to_owned(),
                // Nothing else in the line says it.
                Some(why) => format!("no: {why}"),
            },
            duration(meta.duration_ms),
            notes.trim_start().to_owned(),
        ]);
    }
    let mut lines = vec![heading("calls")];
    lines.extend(table.lines());
    for call in calls {
        lines.extend(
            call.prefix_break
                .as_ref()
                .map(|found| break_line(call.meta.index, found, call.explanation.as_ref())),
        );
        lines.extend(call.meta.error.as_ref().map(|error| {
            format!(
                "    call {}: {}",
                call.meta.index,
                styled(BAD, one_line(error, 300))
            )
        }));
        for change in &call.meta.changes {
            lines.push(format!(
                "    call {}: {}",
                call.meta.index,
                styled(NOTE, changed(change))
            ));
        }
    }
    lines.extend(untranslated_lines(calls));
    lines
}

/// What was not carried over to the endpoint's dialect: agents say the same in each call, so that it is said once.
fn untranslated_lines(calls: &[ShownCall]) -> Vec<String> {
    let mut said: Vec<(&[String], Vec<u32>)> = Vec::new();
    for ShownCall { meta, .. } in calls {
        if meta.untranslated.is_empty() {
            continue;
        }
        match said.iter_mut().find(|(names, _)| *names == meta.untranslated) {
            Some((_, of)) => of.push(meta.index),
            None => said.push((&meta.untranslated, vec![meta.index])),
        }
    }
    let line = |(names, of): (&[String], Vec<u32>)| {
        let of = match of.as_slice() {
            [only] => format!("call {only}"),
            more => format!("calls {}", ranges(more)),
        };
        let text = format!("not carried over to chat completions: {}", names.join(", "));
        format!(
            "    {}: {}",
            one_line(&of, 120),
            styled(FAINT, one_line(&text, 600))
        )
    };
    said.into_iter().map(line).collect()
}

/// Numbers in order, as `0-3, 5`.
fn ranges(numbers: &[u32]) -> String {
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for number in numbers {
        match ranges.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(*number) => *last = *number,
            _ => ranges.push((*number, *number)),
        }
    }
    let text = |(first, last): (u32, u32)| match last - first {
        0 => first.to_string(),
        _ => format!("{first}-{last}"),
    };
    ranges.into_iter().map(text).collect::<Vec<_>>().join(", ")
}

/// What was changed in a request, for people to read.
pub(super) fn changed(change: &dressage_wire::call::Change) -> String {
    use dressage_wire::call::Change;
    match change {
        Change::Removed { field } => format!(
            "sent without `{}`, which the endpoint refuses",
            one_line(field, 60)
        ),
        Change::Renamed { from, to } => {
            format!(
                "`{}` was renamed to `{}` for the endpoint",
                one_line(from, 60),
                one_line(to, 60)
            )
        }
        Change::Limited { field, to } => {
            format!(
                "`{}` was limited to {} for the endpoint",
                one_line(field, 60),
                one_line(to, 60)
            )
        }
    }
}

/// Where a prompt stops being what came before it, and why.
fn break_line(index: u32, found: &PrefixBreak, explanation: Option<&Explanation>) -> String {
    let place = if found.inside_completion {
        "inside what was sampled in"
    } else {
        "inside the prompt of"
    };
    let now = found
        .found_token_id
        .map_or("the end".to_owned(), |id| format!("token {id}"));
    let name = explanation.and_then(|explanation| explanation.expected_token.as_deref());
    let name = name.map_or(String::new(), |name| format!(" (`{}`)", one_line(name, 40)));
    let mut text = format!(
        "call {index} breaks at token {} {place} call {}: {now} where token {}{name} was",
        found.at, found.base, found.expected_token_id
    );
    if let Some(explanation) = explanation {
        text.push_str(&format!("; {}", why(explanation)));
    }
    format!("    {}", styled(NOTE, text))
}

/// What made a prompt break, in words.
fn why(explanation: &Explanation) -> String {
    let message = match (&explanation.message, &explanation.role) {
        (Some(message), Some(role)) => format!("message {message} ({})", one_line(role, 20)),
        (Some(message), None) => format!("message {message}"),
        (None, _) => "no message".to_owned(),
    };
    let members = explanation.members.join(", ");
    let members = match members.as_str() {
        "" => String::new(),
        members => format!(" in {}", one_line(members, 120)),
    };
    match explanation.change {
        MessageChange::ReplyRewritten => format!("{message} is the reply, changed{members}"),
        MessageChange::ReplyRendered => {
            format!("{message} is the reply as it was given, and the template writes it otherwise")
        }
        MessageChange::Changed => format!("{message} changed{members}"),
        MessageChange::Replaced => format!("{message} stands where another was"),
        MessageChange::Tools => "the tools changed, and no message did".to_owned(),
        MessageChange::Rendered => "no message changed: the template writes them otherwise".to_owned(),
    }
}

fn files(outcome: &RolloutOutcome) -> Vec<String> {
    if outcome.files.is_empty() && outcome.files_extra.is_empty() {
        return Vec::new();
    }
    let mut lines = vec![heading("files")];
    for (name, content) in &outcome.files {
        lines.push(format!(
            "    {}  {}",
            one_line(name, 100),
            styled(FAINT, size(content.len()))
        ));
    }
    for name in &outcome.files_extra {
        lines.push(format!(
            "    {}  {}",
            one_line(name, 100),
            styled(FAINT, "not collected")
        ));
    }
    lines
}

fn size(bytes: usize) -> String {
    format!("{} bytes", render::thousands(bytes as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_in_order_are_ranges() {
        assert_eq!(ranges(&[0, 1, 2, 5, 7, 8]), "0-2, 5, 7-8");
        assert_eq!(ranges(&[3]), "3");
    }

    #[test]
    fn a_break_is_explained() {
        let found = PrefixBreak {
            base: 1,
            at: 812,
            inside_completion: true,
            expected_token_id: 25,
            found_token_id: None,
            message: Some(3),
        };
        let explanation = Explanation {
            change: MessageChange::ReplyRewritten,
            message: Some(3),
            role: Some("assistant".into()),
            members: vec!["tool_calls[0].function.arguments".into()],
            expected_token: Some(" {".into()),
        };
        let line = break_line(2, &found, Some(&explanation));
        let line = anstream::adapter::strip_str(&line).to_string();
        let expected = "    call 2 breaks at token 812 inside what was sampled in call 1: the end where token 25 (`{`) was; \
                        message 3 (assistant) is the reply, changed in tool_calls[0].function.arguments";
        assert_eq!(line, expected);
    }
}
