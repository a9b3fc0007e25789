use crate::call::{CallEnd, Flag, Purpose};
use crate::graph::NodeId;
use crate::trajectory::held::{Held, Trajectory};
use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};

/// The late flags of every call, by position in the order of recording.
pub(crate) fn flags(trajectory: &Trajectory) -> Vec<(usize, Vec<Flag>)> {
    let superseded = superseded(trajectory);
    let abandoned = abandoned(trajectory, &superseded);
    let given = |position: usize| {
        let flags = [(&superseded, Flag::Superseded), (&abandoned, Flag::Abandoned)];
        flags
            .into_iter()
            .filter(|(calls, _)| calls.contains(&position))
            .map(|(_, flag)| flag)
            .collect()
    };
    (0..trajectory.calls.len())
        .map(|position| (position, given(position)))
        .collect()
}

/// Attempts whose place a later attempt took. Each attempt takes the place of one: identical calls in flight together
/// are separate calls, with retries of their own.
fn superseded(trajectory: &Trajectory) -> HashSet<usize> {
    let mut by_key: HashMap<&str, Vec<(usize, &Held)>> = HashMap::new();
    for (position, held) in trajectory.calls.iter().enumerate() {
        if !held.meta.retry_key.is_empty() {
            by_key
                .entry(&held.meta.retry_key)
                .or_default()
                .push((position, held));
        }
    }
    let mut superseded = HashSet::new();
    for attempts in by_key.values_mut() {
        attempts.sort_by_key(|(_, held)| held.meta.index);
        let mut standing: Vec<(usize, &Held)> = Vec::new();
        for (position, attempt) in attempts.iter() {
            let earlier = standing
                .iter()
                .enumerate()
                .filter(|(_, (_, held))| repeats(attempt, held));
            let place = earlier.max_by_key(|(_, (_, held))| {
                (!answered(held), held.meta.retry_count, Reverse(held.meta.index))
            });
            if let Some((at, _)) = place {
                superseded.insert(standing.remove(at).0);
            }
            standing.push((*position, attempt));
        }
    }
    superseded
}

/// Whether `attempt` may have been made because of what came of `earlier`, which arrived before it.
fn repeats(attempt: &Held, earlier: &Held) -> bool {
    match attempt.meta.retry_count {
        Some(count) if count > 0 => earlier.meta.retry_count.unwrap_or(0) < count,
        // Unmarked, so only what did not complete is repeated. An agent that went away knows so before we do.
        _ => {
            !answered(earlier)
                && (earlier.meta.end == CallEnd::DownstreamGone
                    || earlier.ended_unix_ms() <= attempt.meta.started_unix_ms)
        }
    }
}

fn answered(held: &Held) -> bool {
    matches!(held.meta.end, CallEnd::Complete | CallEnd::Budget)
}

/// What two calls must have alike to be twins.
#[derive(PartialEq, Eq, Hash)]
enum Prompt<'a> {
    Tokens(NodeId),
    Request(&'a str),
}

/// Complete calls that nothing goes on from, when something goes on from a twin.
fn abandoned(trajectory: &Trajectory, superseded: &HashSet<usize>) -> HashSet<usize> {
    let continued: HashSet<usize> = continued(trajectory);
    let mut twins: HashMap<(Prompt<'_>, Option<&str>, Purpose), Vec<usize>> = HashMap::new();
    for (position, held) in trajectory.calls.iter().enumerate() {
        if held.meta.end == CallEnd::Complete && !superseded.contains(&position) {
            let prompt = match &held.tokens {
                Some(tokens) => Prompt::Tokens(tokens.prompt),
                None => Prompt::Request(&held.meta.retry_key),
            };
            let key = (prompt, held.meta.session.as_deref(), held.meta.purpose);
            twins.entry(key).or_default().push(position);
        }
    }
    twins
        .into_values()
        .filter(|twins| twins.iter().any(|position| continued.contains(position)))
        .flatten()
        .filter(|position| !continued.contains(position))
        .collect()
}

/// Positions of the calls that another goes on from.
pub(crate) fn continued(trajectory: &Trajectory) -> HashSet<usize> {
    let bases = trajectory.calls.iter().filter_map(|held| held.continues);
    bases.filter_map(|index| trajectory.position(index)).collect()
}
