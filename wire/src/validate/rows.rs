use super::ROUNDING;
use super::finding::{Damage, Findings, Place};
use crate::export::chat::ChatRow;
use crate::export::trl::{TRACE_VERSION, TrainingTrace, TrlRow};
use crate::export::verl::VerlRow;
use std::collections::HashSet;

/// Checks a row of the shape `verl`. Of the rows before it, those of the same rollout count.
pub fn verl(row: &VerlRow, findings: &mut Findings) {
    let place = Place {
        rollout: Some(row.rollout.clone()),
        sequence: usize::try_from(row.leaf).ok(),
        ..Place::default()
    };
    let length = row.response_ids.len();
    let trained: u64 = row.response_mask.iter().map(|mask| u64::from(*mask)).sum();
    findings.tally.rows += 1;
    findings.tally.sequences += 1;
    findings.tally.tokens += (row.prompt_ids.len() + length) as u64;
    findings.tally.trained_tokens += trained;
    findings.tally.calls += row.turns.len() as u64;
    if row.response_mask.len() != length || row.response_logprobs.len() != length {
        let message = format!(
            "{length} response ids, {} of the mask, {} log-probabilities",
            row.response_mask.len(),
            row.response_logprobs.len()
        );
        return findings.add(Damage::LengthsDiffer, place, message);
    }
    if row.reward.is_some_and(|reward| !reward.is_finite()) {
        findings.add(
            Damage::Outcome,
            place.clone(),
            "the reward is not a finite number",
        );
    }
    let spans: Vec<(usize, usize, bool)> = row
        .turns
        .iter()
        .map(|turn| (turn.start, turn.end, turn.trained))
        .collect();
    check_mask(&row.response_mask, &spans, &place, findings);
    check_logprobs(&row.response_logprobs, &place, findings);
    check_context(&row.response_logprobs, &spans, &place, findings);
    let tokens: usize = row
        .turns
        .iter()
        .filter(|turn| turn.trained)
        .map(|turn| turn.end.saturating_sub(turn.start))
        .sum();
    if trained != tokens as u64 {
        let message = format!("the mask sums up to {trained}, and trained turns have {tokens} tokens");
        findings.add(Damage::MaskSum, place.clone(), message);
    }
    if row
        .turns
        .last()
        .is_none_or(|last| last.call != row.leaf || last.end != length)
    {
        let message = format!("it does not end with the completion of call {}", row.leaf);
        findings.add(Damage::TurnsMisplaced, place.clone(), message);
    }
    if findings.trained.0 != row.rollout {
        findings.trained = (row.rollout.clone(), HashSet::new());
    }
    for turn in row.turns.iter().filter(|turn| turn.trained) {
        findings.tally.trainable_calls += 1;
        if !findings.trained.1.insert(turn.call) {
            let message = format!("call {} is trained in another row too", turn.call);
            findings.add(Damage::TrainedTwice, place.clone().call(turn.call), message);
        }
    }
}

/// Checks a row of the shape `trl` by TRL's own rules for a `TrainingTrace` (TRL 1.16), and by ours.
pub fn trl(row: &TrlRow, findings: &mut Findings) {
    let place = Place {
        rollout: Some(row.rollout.clone()),
        ..Place::default()
    };
    findings.tally.rows += 1;
    if let Err(error) = serde_json::from_str::<Vec<serde::de::IgnoredAny>>(&row.trace_entries) {
        findings.add(
            Damage::Unreadable,
            place.clone(),
            format!("`trace_entries`: {error}"),
        );
    }
    let Some(text) = &row.training_trace else {
        if row.turns != 0 {
            findings.add(
                Damage::LengthsDiffer,
                place,
                format!("no trace, and {} turns", row.turns),
            );
        }
        return;
    };
    let trace: TrainingTrace = match serde_json::from_str(text) {
        Ok(trace) => trace,
        Err(error) => return findings.add(Damage::Unreadable, place, format!("`training_trace`: {error}")),
    };
    if trace.schema_version != TRACE_VERSION {
        let message = format!("`training_trace` has version {}", trace.schema_version);
        return findings.add(Damage::UnknownSchema, place, message);
    }
    if trace.turns.len() != row.turns || trace.turns.is_empty() {
        let message = format!(
            "the trace has {} turns, and {} are named",
            trace.turns.len(),
            row.turns
        );
        findings.add(Damage::LengthsDiffer, place.clone(), message);
    }
    let mut nodes = HashSet::new();
    for (number, turn) in trace.turns.iter().enumerate() {
        let place = place.clone().sequence(number);
        let (prompt, sampled) = (turn.prompt_token_ids.len(), turn.completion_token_ids.len());
        findings.tally.calls += 1;
        findings.tally.tokens += (prompt + sampled) as u64;
        let trained: u64 = turn.loss_mask.iter().map(|mask| u64::from(*mask)).sum();
        findings.tally.trained_tokens += trained;
        findings.tally.trainable_calls += u64::from(trained > 0);
        if turn.node_id.is_empty() || !nodes.insert(&turn.node_id) {
            findings.add(
                Damage::Duplicate,
                place.clone(),
                format!("node `{}` is there twice", turn.node_id),
            );
        }
        if prompt == 0 || turn.per_token_logps.len() != sampled || turn.loss_mask.len() != prompt + sampled {
            let message = format!(
                "{prompt} prompt ids, {sampled} sampled ids, {} log-probabilities, {} of the mask",
                turn.per_token_logps.len(),
                turn.loss_mask.len()
            );
            findings.add(Damage::LengthsDiffer, place.clone(), message);
            continue;
        }
        let span = (prompt, prompt + sampled, turn.metadata.trainable);
        check_mask(&turn.loss_mask, &[span], &place, findings);
        check_logprobs(&turn.per_token_logps, &place, findings);
        if turn.metadata.trainable {
            let counted = turn.metadata.usage_completion_tokens;
            if counted != Some(sampled as u64) {
                let message = format!("the endpoint counted {counted:?}, and {sampled} were captured");
                findings.add(Damage::UsageDiffers, place.clone(), message);
            }
            if let Some(flag) = turn.metadata.flags.iter().find(|flag| flag.blocks_training()) {
                let message = format!("it is trained in spite of: {}", flag.name());
                findings.add(Damage::FlagsInconsistent, place, message);
            }
        }
    }
}

/// Checks a row of the shape `chat`.
pub fn chat(row: &ChatRow, findings: &mut Findings) {
    let place = Place {
        rollout: Some(row.rollout.clone()),
        sequence: usize::try_from(row.leaf).ok(),
        ..Place::default()
    };
    findings.tally.rows += 1;
    findings.tally.sequences += 1;
    if row.messages.last().and_then(|message| message.role.as_deref()) != Some("assistant") {
        findings.add(
            Damage::Messages,
            place.clone(),
            "the last message is not the assistant's",
        );
    }
    for (position, message) in row.messages.iter().enumerate() {
        if message.role.as_deref().is_none_or(str::is_empty) {
            findings.add(
                Damage::Messages,
                place.clone().at(position),
                "a message is nobody's",
            );
        }
        let calls = message.tool_calls.iter().flatten();
        let named = |call: &crate::export::chat::ChatToolCall| {
            call.function
                .as_ref()
                .is_some_and(|function| function.name.is_some())
        };
        if calls.clone().any(|call| !named(call)) {
            findings.add(
                Damage::Messages,
                place.clone().at(position),
                "a call of a tool names none",
            );
        }
    }
    if let Some(tools) = &row.tools
        && serde_json::from_str::<Vec<serde::de::IgnoredAny>>(tools).is_err()
    {
        findings.add(Damage::Unreadable, place, "`tools` is no list in JSON");
    }
}

/// Whether a mask is 1 exactly in the trained of some turns, which are in order and apart.
pub(super) fn check_mask(
    mask: &[u8],
    turns: &[(usize, usize, bool)],
    place: &Place,
    findings: &mut Findings,
) {
    let mut done = 0;
    let gap = |range: std::ops::Range<usize>, findings: &mut Findings| {
        let trained = mask
            .get(range.clone())
            .unwrap_or_default()
            .iter()
            .position(|mask| *mask == 1);
        if let Some(at) = trained {
            let message = "a token is trained that no trained turn sampled";
            findings.add(
                Damage::MaskOutsideTurns,
                place.clone().at(range.start + at),
                message,
            );
        }
    };
    if let Some(at) = mask.iter().position(|mask| *mask > 1) {
        let message = format!("the mask is {}", mask.get(at).copied().unwrap_or_default());
        findings.add(Damage::MaskInvalid, place.clone().at(at), message);
    }
    for (start, end, trained) in turns.iter().copied() {
        if start < done || end <= start || end > mask.len() {
            let message = format!(
                "a turn is at {start}..{end}, after one that ends at {done}, of {}",
                mask.len()
            );
            findings.add(Damage::TurnsMisplaced, place.clone().at(start), message);
            continue;
        }
        gap(done..start, findings);
        let within = mask.get(start..end).unwrap_or_default();
        if !trained {
            gap(start..end, findings);
        } else if let Some(at) = within.iter().position(|mask| *mask == 0) {
            let message = "a token of a trained turn is not trained";
            findings.add(Damage::MaskIncomplete, place.clone().at(start + at), message);
        }
        done = end;
    }
    gap(done..mask.len(), findings);
}

/// Whether log-probabilities are finite and not above zero.
pub(super) fn check_logprobs(logprobs: &[f64], place: &Place, findings: &mut Findings) {
    if let Some(at) = logprobs.iter().position(|logprob| !logprob.is_finite()) {
        findings.add(
            Damage::NotFinite,
            place.clone().at(at),
            "a log-probability is not a finite number",
        );
    }
    if let Some(at) = logprobs.iter().position(|logprob| *logprob > ROUNDING) {
        let message = format!(
            "a log-probability is {}",
            logprobs.get(at).copied().unwrap_or_default()
        );
        findings.add(Damage::LogprobPositive, place.clone().at(at), message);
    }
}

/// Whether what was not sampled has 0.0.
fn check_context(logprobs: &[f64], turns: &[(usize, usize, bool)], place: &Place, findings: &mut Findings) {
    let mut done = 0;
    let ends = turns.iter().map(|(start, end, _)| (*start, *end));
    for (start, end) in ends.chain([(logprobs.len(), logprobs.len())]) {
        let gap = logprobs.get(done..start).unwrap_or_default();
        if let Some(at) = gap.iter().position(|logprob| *logprob != 0.0) {
            let message = "a token has a log-probability that no turn sampled";
            findings.add(Damage::LogprobsDiffer, place.clone().at(done + at), message);
        }
        done = end;
    }
}
