use super::finding::{Damage, Findings, Place};
use super::rows::{check_logprobs, check_mask};
use crate::call::{CallEnd, Flag};
use crate::export::native::{Document, DocumentCall, DocumentSequence};
use crate::rollout::RolloutState;
use crate::trajectory::{CallRecord, ContentHash, Trajectory};
use std::collections::{HashMap, HashSet};

/// Checks a rollout with everything: each call, and each sequence against what its calls captured.
pub fn native(document: &Document<'_>, findings: &mut Findings) {
    let place = Place {
        rollout: document.rollout.as_ref().map(|start| start.id.to_string()),
        ..Place::default()
    };
    findings.tally.rows += 1;
    findings.tally.calls += document.calls.len() as u64;
    check_outcome(document, &place, findings);
    check_contents(document, &place, findings);
    let records = match document.records() {
        Ok(records) => records,
        Err(error) => return findings.add(Damage::ContentMissing, place, error.to_string()),
    };
    if !check_indexes(&records, &place, findings) {
        // What names are ambiguous say nothing of the rest.
        return;
    }
    let mut trajectory = Trajectory::restore(records);
    trajectory.select(document.selection.clone().into_owned());
    trajectory.finalise();
    let mut checker = Checker {
        document,
        trajectory: &trajectory,
        place,
        trained: HashMap::new(),
    };
    checker.calls(findings);
    checker.sequences(findings);
}

fn check_outcome(document: &Document<'_>, place: &Place, findings: &mut Findings) {
    let ids = document.rollout.as_ref().zip(document.outcome.as_ref());
    if let Some((start, outcome)) = ids
        && start.id != outcome.id
    {
        let message = format!("the outcome is that of rollout {}", outcome.id);
        findings.add(Damage::Outcome, place.clone(), message);
    }
    let fits = match document.state {
        RolloutState::Finished => document.rollout.is_some() && document.outcome.is_some(),
        RolloutState::Queued => document.calls.is_empty(),
        RolloutState::Running | RolloutState::Interrupted => {
            document.rollout.is_some() && document.outcome.is_none()
        }
    };
    if !fits {
        let message = format!("a {} rollout has no such outcome or start", document.state.name());
        findings.add(Damage::Outcome, place.clone(), message);
    }
    let reward = document
        .outcome
        .as_ref()
        .and_then(|outcome| outcome.reward.as_ref());
    if reward
        .and_then(|reward| reward.value)
        .is_some_and(|value| !value.is_finite())
    {
        findings.add(
            Damage::Outcome,
            place.clone(),
            "the reward is not a finite number",
        );
    }
}

fn check_contents(document: &Document<'_>, place: &Place, findings: &mut Findings) {
    for (position, content) in document.contents.iter().enumerate() {
        match content.bytes() {
            Ok(Some(bytes)) if ContentHash::of(&bytes) != content.hash => {
                let message = format!("content {position} does not have the hash {}", content.hash);
                findings.add(Damage::ContentChanged, place.clone().at(position), message);
            }
            Ok(_) => {}
            Err(_) => {
                let message = format!("content {position} is not in base64");
                findings.add(Damage::Unreadable, place.clone().at(position), message);
            }
        }
    }
}

/// Whether every index and id is unique.
fn check_indexes(records: &[CallRecord], place: &Place, findings: &mut Findings) -> bool {
    let (mut indexes, mut ids) = (HashSet::new(), HashSet::new());
    let mut unique = true;
    for record in records {
        if !indexes.insert(record.meta.index) || !ids.insert(record.meta.id) {
            let message = format!("call {} ({}) is there twice", record.meta.index, record.meta.id);
            findings.add(Damage::Duplicate, place.clone().call(record.meta.index), message);
            unique = false;
        }
    }
    unique
}

struct Checker<'a> {
    document: &'a Document<'a>,
    /// Restored from the calls of the document: what its sequences must be.
    trajectory: &'a Trajectory,
    place: Place,
    /// Calls that are trained, and in which sequence.
    trained: HashMap<u32, usize>,
}

impl Checker<'_> {
    fn calls(&mut self, findings: &mut Findings) {
        let mut before: HashMap<u32, usize> = HashMap::new();
        for (call, view) in self.document.calls.iter().zip(self.trajectory.calls()) {
            let index = call.meta.index;
            let place = self.place.clone().call(index);
            let broken = call.prefix_break.as_deref();
            let bases = [
                ("goes on from", call.continues),
                ("breaks with", broken.map(|found| found.base)),
                (
                    "shares its prompt with",
                    call.prompt.as_ref().and_then(|prompt| prompt.base),
                ),
                ("shares messages with", call.request.messages.base),
            ];
            for (how, base) in bases {
                if let Some(base) = base
                    && !before.contains_key(&base)
                {
                    let message = format!("call {index} {how} call {base}, which is not there before it");
                    findings.add(Damage::BaseMissing, place.clone(), message);
                }
            }
            if let Some(prompt) = call.prompt.as_deref()
                && let Some(length) = prompt.base.and_then(|base| before.get(&base))
                && (prompt.shared as usize) > *length
            {
                let message = format!(
                    "call {index} shares {} tokens with one that has {length}",
                    prompt.shared
                );
                findings.add(Damage::LengthsDiffer, place.clone(), message);
            }
            check_completions(call, &place, findings);
            let flags = |flags: &[Flag]| flags.iter().copied().collect::<HashSet<_>>();
            // Late flags need all calls: a rollout that is not over has none yet.
            let stored = flags(&call.flags);
            if stored != flags(&view.flags) {
                let message = format!(
                    "call {index} has the flags {:?}, and should have {:?}",
                    call.flags, view.flags
                );
                findings.add(Damage::FlagsInconsistent, place.clone(), message);
            } else if call.trainable != view.trainable {
                let message = match view.untrained {
                    Some(why) => format!("call {index} is trainable in spite of: {why}"),
                    None => format!("call {index} is not trainable, and nothing says why"),
                };
                findings.add(Damage::FlagsInconsistent, place.clone(), message);
            }
            findings.tally.trainable_calls += u64::from(call.trainable);
            let sampled = call
                .completions
                .first()
                .map_or(0, |choice| choice.token_ids.len());
            let prompt = call.prompt.as_deref().map_or(0, |prompt| prompt.length());
            before.insert(index, prompt + sampled);
        }
    }

    fn sequences(&mut self, findings: &mut Findings) {
        let mut sum = 0;
        for (number, sequence) in self.document.sequences.each().enumerate() {
            findings.tally.sequences += 1;
            findings.tally.tokens += sequence.token_ids.len() as u64;
            let trained: u64 = sequence.loss_mask.iter().map(|mask| u64::from(*mask)).sum();
            findings.tally.trained_tokens += trained;
            sum += trained;
            let place = self.place.clone().sequence(number);
            self.sequence(&sequence, number, &place, findings);
        }
        let trainable = self.trajectory.calls().filter(|view| view.trainable);
        let mut expected = 0;
        for view in trainable {
            let index = view.meta.index;
            let held = self
                .trajectory
                .at_index(index)
                .and_then(|held| held.tokens.as_ref());
            let graph = &self.trajectory.tokens;
            expected += held.map_or(0, |held| {
                (graph.length(held.end) - graph.length(held.prompt)) as u64
            });
            if !self.trained.contains_key(&index) {
                let message = format!("call {index} is trainable, and no sequence trains it");
                findings.add(Damage::NotTrained, self.place.clone().call(index), message);
            }
        }
        if sum != expected {
            let message =
                format!("the masks sum up to {sum}, and trainable completions have {expected} tokens");
            findings.add(Damage::MaskSum, self.place.clone(), message);
        }
    }

    fn sequence(
        &mut self,
        sequence: &DocumentSequence,
        number: usize,
        place: &Place,
        findings: &mut Findings,
    ) {
        let length = sequence.token_ids.len();
        if sequence.loss_mask.len() != length || sequence.logprobs.len() != length {
            let message = format!(
                "{length} token ids, {} of the mask, {} log-probabilities",
                sequence.loss_mask.len(),
                sequence.logprobs.len()
            );
            return findings.add(Damage::LengthsDiffer, place.clone(), message);
        }
        let spans: Vec<(usize, usize, bool)> = sequence
            .turns
            .iter()
            .map(|turn| (turn.start, turn.end, turn.trained))
            .collect();
        check_mask(&sequence.loss_mask, &spans, place, findings);
        check_logprobs(&sequence.logprobs, place, findings);
        let graph = &self.trajectory.tokens;
        let leaf = self.trajectory.at_index(sequence.leaf);
        let Some((leaf, end)) = leaf.and_then(|held| Some((held, held.tokens.as_ref()?.end))) else {
            let message = format!(
                "call {}, which ends it, is not there or has no tokens",
                sequence.leaf
            );
            return findings.add(Damage::BaseMissing, place.clone().call(sequence.leaf), message);
        };
        if sequence.purpose != leaf.meta.purpose || sequence.flags != leaf.flags().collect::<Vec<_>>() {
            let message = format!(
                "purpose or flags are not those of call {}, which ends it",
                sequence.leaf
            );
            findings.add(Damage::FlagsInconsistent, place.clone(), message);
        }
        let saw = graph.line(end);
        let differing = saw
            .iter()
            .zip(&sequence.token_ids)
            .position(|(saw, has)| saw != has);
        if let Some(at) = differing.or((saw.len() != length).then_some(saw.len().min(length))) {
            let at_place = |ids: &[u32]| {
                ids.get(at)
                    .map_or("the end".to_owned(), |id| format!("token {id}"))
            };
            let message = format!(
                "{} where the endpoint saw {}",
                at_place(&sequence.token_ids),
                at_place(&saw)
            );
            findings.add(Damage::TokensDiffer, place.clone().at(at), message);
        }

        let mut expected = vec![0.0; length];
        for turn in &sequence.turns {
            let held = self.trajectory.at_index(turn.call);
            let Some(tokens) = held.and_then(|held| held.tokens.as_ref()) else {
                let message = format!("call {} of its turns is not there or has no tokens", turn.call);
                findings.add(Damage::BaseMissing, place.clone().call(turn.call), message);
                continue;
            };
            let (start, stop) = (graph.length(tokens.prompt), graph.length(tokens.end));
            if (turn.start, turn.end) != (start, stop) || graph.shared(tokens.end, end) != stop {
                let message = format!(
                    "call {} is at {}..{}, and was sampled at {start}..{stop} of {}",
                    turn.call,
                    turn.start,
                    turn.end,
                    if graph.shared(tokens.end, end) == stop {
                        "this path"
                    } else {
                        "another path"
                    }
                );
                findings.add(
                    Damage::TurnsMisplaced,
                    place.clone().call(turn.call).at(turn.start),
                    message,
                );
                continue;
            }
            if let Some(to) = expected.get_mut(start..stop)
                && to.len() == tokens.logprobs.len()
            {
                for (to, from) in to.iter_mut().zip(&tokens.logprobs) {
                    *to = if from.is_finite() { *from } else { 0.0 };
                }
            }
            if turn.trained
                && let Some(other) = self.trained.insert(turn.call, number)
            {
                let message = format!("call {} is trained in sequence {other} too", turn.call);
                findings.add(Damage::TrainedTwice, place.clone().call(turn.call), message);
            }
        }
        let differing = expected
            .iter()
            .zip(&sequence.logprobs)
            .position(|(expected, has)| expected != has);
        if let Some(at) = differing {
            let at_place = |values: &[f64]| values.get(at).copied().unwrap_or(f64::NAN);
            let message = format!(
                "{} where {} was captured",
                at_place(&sequence.logprobs),
                at_place(&expected)
            );
            findings.add(Damage::LogprobsDiffer, place.clone().at(at), message);
        }
    }
}

/// Whether what was captured of a call is sound, or says that it is not.
fn check_completions(call: &DocumentCall<'_>, place: &Place, findings: &mut Findings) {
    let has = |flag| call.flags.contains(&flag);
    let complete = call.meta.end == CallEnd::Complete;
    for choice in call.completions.iter() {
        let (ids, logprobs) = (choice.token_ids.len(), choice.logprobs.len());
        let both = ids > 0 && logprobs > 0;
        if ids != logprobs && both && complete && !has(Flag::LengthMismatch) && call.trainable {
            let message = format!("{ids} token ids, and {logprobs} log-probabilities");
            findings.add(Damage::LengthsDiffer, place.clone(), message);
        }
        if !choice.top_logprobs.is_empty() && choice.top_logprobs.len() != logprobs && call.trainable {
            let message = format!(
                "{logprobs} log-probabilities, and alternatives at {}",
                choice.top_logprobs.len()
            );
            findings.add(Damage::LengthsDiffer, place.clone(), message);
        }
        if !has(Flag::LogprobInvalid) && complete {
            check_logprobs(&choice.logprobs, place, findings);
        }
    }
    let sampled: u64 = call
        .completions
        .iter()
        .map(|choice| choice.token_ids.len() as u64)
        .sum();
    let counted = call.meta.usage.map(|usage| usage.completion_tokens);
    if call.trainable && counted != Some(sampled) {
        let counted = counted.map_or("nothing".to_owned(), |counted| format!("{counted} tokens"));
        let message = format!("the endpoint counted {counted}, and {sampled} were captured");
        findings.add(Damage::UsageDiffers, place.clone(), message);
    }
}
