/// Documents of our own that were damaged.
mod damages;

/// Rows of Parquet and of lines.
mod rows;

/// Documents in ATIF.
mod atif;

use super::*;
use crate::call::{CallEnd, CallMeta, Flag, Purpose};
use crate::export::Source;
use crate::fault::Ended;
use crate::ids::RolloutId;
use crate::rollout::{RolloutOutcome, RolloutStart, RolloutState};
use crate::trajectory::tests::{Sketch, assistant, call, user};
use crate::trajectory::{ContentHash, Selection, Trajectory, TrajectoryBuilder};
use bytes::Bytes;
use serde_json::{Value, json};
use std::collections::HashMap;

/// Three calls of the agent, the second of which breaks inside the first's completion, and a title.
fn conversation() -> Vec<Sketch> {
    let versions = |meta: &mut CallMeta| {
        meta.policy_version_at_dispatch = Some("7".into());
        meta.policy_version_at_completion = Some("8".into());
    };
    let mut said = vec![user("go")];
    let mut calls = vec![
        call(0, &said)
            .tokens(&[1, 2, 3], &[10, 11, 12])
            .reply("a", Some("c1"))
            .with(versions),
    ];
    said.extend([assistant("a", Some("c1")), user("out")]);
    calls.push(
        call(1, &said)
            .tokens(&[1, 2, 3, 10, 99, 4], &[20, 21])
            .reply("b", None),
    );
    said.extend([assistant("b", None), user("more")]);
    calls.push(
        call(2, &said)
            .tokens(&[1, 2, 3, 10, 99, 4, 20, 21, 5], &[30])
            .reply("c", None),
    );
    let title = call(3, &[user("title")]).tokens(&[7], &[70]).reply("T", None);
    calls.push(title.with(|meta| meta.purpose = Purpose::Title));
    calls
}

fn rollout() -> (RolloutStart, RolloutOutcome) {
    let id = RolloutId::new();
    let start: RolloutStart = serde_json::from_value(json!({
        "id": id, "owner": RolloutId::new(), "task": {"instruction": "go", "id": "t"}, "sample": 0, "endpoint": "e",
        "base_url": "http://127.0.0.1:1/v1", "model": "m", "backend": "local", "agent_version": "1",
        "mode": "transparent_proxy", "placement": "relay", "capture": "stream", "started_unix_ms": 1,
    }))
    .unwrap();
    let outcome: RolloutOutcome = serde_json::from_value(json!({
        "id": id, "ended": Ended::Completed, "fault": null, "sandbox": null, "stages": [], "setup": [], "agent": null,
        "reward": {"value": 0.5, "overridden": false, "source": "verify", "commands": [], "separation": "namespace", "detail": null},
        "files": {}, "files_extra": [], "totals": {}, "late_flags": [], "warnings": [], "wall_ms": 1, "finished_unix_ms": 2,
    }))
    .unwrap();
    (start, outcome)
}

/// The lines of an export of these calls.
fn exported(calls: Vec<Sketch>, shape: Shape, selection: Selection) -> Vec<Value> {
    let mut builder = TrajectoryBuilder::new();
    let (mut records, mut contents) = (Vec::new(), HashMap::<ContentHash, Bytes>::new());
    for sketch in calls {
        let recorded = builder.push(sketch.call);
        records.push(recorded.record);
        contents.extend(recorded.contents);
    }
    let mut trajectory = Trajectory::restore(records.clone());
    trajectory.finalise();
    trajectory.select(selection);
    let (start, outcome) = rollout();
    let source = Source {
        id: start.id,
        state: RolloutState::Finished,
        priority: 0,
        created_unix_ms: 1,
        finished_unix_ms: Some(2),
        start: Some(&start),
        outcome: Some(&outcome),
        trajectory: &trajectory,
        records: &records,
        contents: &contents,
    };
    let mut written = Vec::new();
    let count = source.write_lines(shape, &mut written).unwrap();
    let lines: Vec<Value> = String::from_utf8(written)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(lines.len() as u64, count);
    lines
}

fn found(lines: &[Value]) -> Findings {
    let mut findings = Findings::default();
    for each in lines {
        line(each.to_string().as_bytes(), &mut findings);
    }
    findings
}

fn native_line() -> Value {
    exported(conversation(), Shape::Native, Selection::default()).remove(0)
}

/// Makes the damage, and gives everything that is found.
fn damaged(mut line: Value, damage: impl FnOnce(&mut Value)) -> Vec<Finding> {
    damage(&mut line);
    found(&[line]).list
}

#[track_caller]
fn assert_found(findings: &[Finding], damage: Damage, place: (Option<usize>, Option<u32>, Option<usize>)) {
    let at = |finding: &Finding| (finding.place.sequence, finding.place.call, finding.place.position);
    assert!(
        findings
            .iter()
            .any(|finding| finding.damage == damage && at(finding) == place),
        "{damage} at {place:?} is not in {findings:#?}"
    );
}

#[test]
fn what_is_exported_is_sound_in_every_shape_and_selection() {
    let all = Selection {
        purposes: Selection::PURPOSES.to_vec(),
        ..Selection::default()
    };
    for shape in Shape::ALL {
        for (selection, trained) in [(Selection::default(), 6), (all.clone(), 7)] {
            let findings = found(&exported(conversation(), shape, selection));
            assert_eq!(findings.list, [], "{shape}");
            if shape != Shape::Chat {
                assert_eq!(findings.tally.trained_tokens, trained, "{shape}");
            }
        }
    }
    assert_eq!(found(&[native_line()]).tally.sequences, 3);
}

#[test]
fn calls_that_say_what_is_wrong_with_them_are_sound() {
    let spoil: [fn(&mut crate::call::Call); 5] = [
        |call| {
            call.completions[0].logprobs[0] = f64::NAN;
            call.meta.flags.push(Flag::LogprobInvalid);
        },
        |call| {
            call.completions[0].logprobs.pop();
            call.meta.flags.push(Flag::LengthMismatch);
        },
        |call| {
            call.meta.usage = None;
            call.meta.flags.push(Flag::UsageMissing);
        },
        |call| call.meta.end = CallEnd::DownstreamGone,
        |call| {
            call.prompt_token_ids = None;
            call.meta.flags.push(Flag::PromptIdsMissing);
        },
    ];
    for (number, spoil) in spoil.into_iter().enumerate() {
        for shape in Shape::ALL {
            let mut calls = conversation();
            spoil(&mut calls[1].call);
            let lines = exported(calls, shape, Selection::default());
            assert_eq!(found(&lines).list, [], "case {number}, {shape}");
        }
    }
}
