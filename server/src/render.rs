//! Rollouts, calls and rewards as people read them; shared by `demo`, `run`, `list` and `show`.

use crate::terminal::{BAD, Escapes, FAINT, GOOD, NOTE, STRONG, duration, one_line, reward, safe, styled};
use dressage_wire::call::{CallEnd, CallSummary, CaptureLevel, Flag, Purpose};
use dressage_wire::event::Stage;
use dressage_wire::fault::{Ended, Fault, FaultOwner};
use dressage_wire::reward::{CommandResult, Reward, RewardSource, Separation};
use dressage_wire::rollout::{RolloutOutcome, Totals};
use serde::Serialize;

/// The word that a value has on every surface: that of its JSON form.
pub fn word(value: &impl Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(word)) => word,
        _ => "?".into(),
    }
}

/// How a rollout ended, coloured.
pub fn ended(ended: Ended) -> String {
    let style = match ended {
        Ended::Completed => GOOD,
        Ended::Budget | Ended::Cancelled => NOTE,
        Ended::Timeout | Ended::AgentError | Ended::SetupError => BAD,
    };
    styled(style, word(&ended))
}

/// A reward, coloured.
pub fn reward_cell(value: Option<f64>) -> String {
    let style = match value {
        Some(value) if value > 0.0 => GOOD,
        Some(_) => NOTE,
        None => FAINT,
    };
    styled(style, reward(value))
}

/// End, reward and totals of a rollout, in a line.
pub fn verdict(outcome: &RolloutOutcome) -> String {
    let value = outcome.reward.as_ref().and_then(|reward| reward.value);
    format!(
        "{}  reward {}  {}  {}",
        ended(outcome.ended),
        reward_cell(value),
        totals(&outcome.totals),
        styled(FAINT, duration(outcome.wall_ms))
    )
}

/// Calls, tokens and breaks in a line.
pub fn totals(totals: &Totals) -> String {
    let calls = match totals.calls {
        1 => "1 call".to_owned(),
        calls => format!("{calls} calls"),
    };
    let mut line = format!(
        "{calls}, {} → {} tokens",
        thousands(totals.prompt_tokens),
        thousands(totals.completion_tokens)
    );
    if totals.prefix_breaks > 0 {
        let word = if totals.prefix_breaks == 1 {
            "break"
        } else {
            "breaks"
        };
        line.push_str(&format!(", {} prefix {word}", totals.prefix_breaks));
    }
    line
}

/// A number with commas.
pub fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (position, digit) in digits.chars().enumerate() {
        if position > 0 && (digits.len() - position).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A command and how it ended, in a line under its stage.
pub fn command(stage: Stage, result: &CommandResult) -> String {
    let (style, mark) = if result.exit_code == 0 {
        (GOOD, "passed")
    } else {
        (BAD, "failed")
    };
    let mark = if stage == Stage::Setup && result.exit_code == 0 {
        "done"
    } else {
        mark
    };
    let mut line = format!("    {:<6} {}", styled(style, mark), one_line(&result.command, 90));
    match result.exit_code {
        0 => {}
        _ if result.timed_out => line.push_str(&format!("  {}", styled(BAD, "timed out"))),
        code => line.push_str(&format!("  {}", styled(BAD, format!("exit {code}")))),
    }
    line.push_str(&format!("  {}", styled(FAINT, duration(result.duration_ms))));
    line
}

/// The output of a command, indented; nothing where it wrote nothing.
pub fn output(result: &CommandResult, escapes: Escapes) -> Vec<String> {
    let mut lines = Vec::new();
    for (name, text) in [("stdout", &result.stdout), ("stderr", &result.stderr)] {
        if !text.trim().is_empty() {
            lines.extend(block(name, text, escapes));
        }
    }
    lines
}

/// Text under a heading, indented.
pub fn block(name: &str, text: &str, escapes: Escapes) -> Vec<String> {
    let mut lines = vec![format!("      {}", styled(FAINT, name))];
    let text = safe(text.trim_end(), escapes);
    lines.extend(text.lines().map(|line| format!("        {line}")));
    lines
}

/// A call that ended, in a line under the agent.
pub fn call(call: &CallSummary) -> String {
    let mut line = format!(
        "    call {:>2} {} → {} tokens  {}",
        call.index,
        thousands(call.prompt_tokens),
        thousands(call.completion_tokens),
        styled(FAINT, duration(call.duration_ms))
    );
    if call.end != CallEnd::Complete {
        line.push_str(&format!("  {}", styled(BAD, word(&call.end))));
    }
    if call.purpose != Purpose::Agent {
        line.push_str(&format!("  {}", styled(NOTE, word(&call.purpose))));
    }
    if call.prefix_break {
        line.push_str(&format!("  {}", styled(NOTE, "prefix break")));
    }
    // That nobody said how to sample is so for every call of a rollout, or for none; `show` says it.
    let told: Vec<_> = call
        .flags
        .iter()
        .copied()
        .filter(|flag| *flag != Flag::SamplingDefaulted)
        .collect();
    line.push_str(&flags(&told));
    line
}

/// Flags, those that block training in another colour; empty where there are none.
pub fn flags(flags: &[Flag]) -> String {
    let shown = |flag: &Flag| {
        format!(
            "  {}",
            styled(if flag.blocks_training() { BAD } else { FAINT }, word(flag))
        )
    };
    flags.iter().map(shown).collect()
}

/// A fault, line by line.
pub fn fault(fault: &Fault) -> Vec<String> {
    let owner = match fault.owner {
        FaultOwner::Task => "the task's",
        FaultOwner::Agent => "the agent's",
        FaultOwner::Sandbox => "the sandbox's",
        FaultOwner::Upstream => "the endpoint's",
        FaultOwner::Server => "dressage's own",
    };
    let stage = fault
        .stage
        .map_or(String::new(), |stage| format!(" in {}", stage.name()));
    let retry = if fault.retryable {
        ", may succeed when run again"
    } else {
        ""
    };
    let mut lines = vec![
        format!("{} {}", styled(BAD, "fault:"), one_line(&fault.message, 2_000)),
        styled(FAINT, format!("       {} ({owner}{stage}{retry})", fault.code)),
    ];
    lines.extend(
        fault
            .causes
            .iter()
            .map(|cause| format!("{} {}", styled(STRONG, "cause:"), one_line(cause, 2_000))),
    );
    lines.extend(
        fault
            .hint
            .iter()
            .map(|hint| format!("{} {}", styled(STRONG, "hint:"), one_line(hint, 2_000))),
    );
    lines
}

/// Why a rollout failed, and why it is not stored where that is something else; line by line.
pub fn faults(outcome: &RolloutOutcome) -> Vec<String> {
    let unstored = outcome
        .unstored
        .iter()
        .filter(|fault| outcome.fault.as_ref() != Some(fault));
    outcome.fault.iter().chain(unstored).flat_map(fault).collect()
}

/// Where there is more of a rollout.
pub fn more(outcome: &RolloutOutcome) -> String {
    match outcome.unstored {
        None => format!("more: dressage show {}", outcome.id),
        Some(_) => styled(BAD, "not stored: there is no more than this"),
    }
}

/// A reward with its evidence, line by line.
pub fn evidence(verdict: &Reward, escapes: Escapes) -> Vec<String> {
    let mut lines = Vec::new();
    for result in &verdict.commands {
        lines.push(command(Stage::Verify, result));
        if result.exit_code != 0 {
            lines.extend(output(result, escapes));
        }
    }
    let origin = match verdict.source {
        RewardSource::Caller => "given by the caller".to_owned(),
        // Rows of before there was a source have the other field only.
        RewardSource::Override | RewardSource::Verify if verdict.overridden => {
            "written by a verify command".to_owned()
        }
        RewardSource::Override | RewardSource::Verify => {
            let passed = verdict
                .commands
                .iter()
                .filter(|result| result.exit_code == 0)
                .count();
            format!("{passed} of {} passed", verdict.commands.len())
        }
    };
    let separation = match verdict.separation {
        Separation::Fresh => "in a second sandbox",
        Separation::Namespace => "in new namespaces",
        Separation::Uid => "as another user",
        Separation::None => "not separated from the agent",
    };
    lines.push(format!(
        "    {} ({origin}; verified {separation})",
        reward_cell(verdict.value)
    ));
    lines
}

/// Stages and their times, in a line; a dash where there was none.
pub fn stages(outcome: &RolloutOutcome) -> String {
    if outcome.stages.is_empty() {
        return "–".into();
    }
    let each = |time: &dressage_wire::rollout::StageTime| {
        let warm = match (time.warm, time.restored) {
            (true, _) => ", was ready",
            (_, true) => ", restored",
            _ => "",
        };
        format!(
            "{} {}",
            time.stage.name(),
            styled(FAINT, format!("{}{warm}", duration(time.duration_ms)))
        )
    };
    outcome.stages.iter().map(each).collect::<Vec<_>>().join("  ")
}

/// A capture level; what was not captured is a dash.
pub fn level(level: Option<CaptureLevel>) -> String {
    level.map_or("–".into(), |level| word(&level))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_have_commas() {
        assert_eq!(
            [0, 999, 1_000, 1_234_567].map(thousands),
            ["0", "999", "1,000", "1,234,567"]
        );
    }

    #[test]
    fn words_are_those_of_the_json() {
        assert_eq!(word(&Ended::AgentError), "agent_error");
        assert_eq!(word(&Flag::IdsDisagree), "ids_disagree");
    }
}
