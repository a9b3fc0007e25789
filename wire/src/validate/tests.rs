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

#[test]
fn damage_01_lists_of_different_length() {
    let findings = damaged(native_line(), |line| {
        line["sequences"][1]["logprobs"].as_array_mut().unwrap().pop();
    });
    assert_found(&findings, Damage::LengthsDiffer, (Some(1), None, None));
}

#[test]
fn damage_02_a_token_that_the_endpoint_did_not_see() {
    let findings = damaged(native_line(), |line| {
        line["sequences"][1]["token_ids"][4] = json!(98)
    });
    assert_found(&findings, Damage::TokensDiffer, (Some(1), None, Some(4)));
    assert_eq!(findings[0].message, "token 98 where the endpoint saw token 99");
    assert_eq!(findings[0].place.rollout.as_ref().map(String::len), Some(36));
    let findings = damaged(native_line(), |line| {
        line["calls"][1]["completions"][0]["token_ids"][0] = json!(22)
    });
    assert_found(&findings, Damage::TokensDiffer, (Some(1), None, Some(6)));
}

#[test]
fn damage_03_a_mask_over_what_was_not_sampled() {
    let findings = damaged(native_line(), |line| {
        line["sequences"][1]["loss_mask"][2] = json!(1)
    });
    assert_found(&findings, Damage::MaskOutsideTurns, (Some(1), None, Some(2)));
    assert_found(&findings, Damage::MaskSum, (None, None, None));
    let findings = damaged(native_line(), |line| {
        line["sequences"][1]["loss_mask"][7] = json!(2)
    });
    assert_found(&findings, Damage::MaskInvalid, (Some(1), None, Some(7)));
}

#[test]
fn damage_04_a_token_that_is_left_out_of_the_mask() {
    let findings = damaged(native_line(), |line| {
        line["sequences"][0]["loss_mask"][5] = json!(0)
    });
    assert_found(&findings, Damage::MaskIncomplete, (Some(0), None, Some(5)));
    assert_found(&findings, Damage::MaskSum, (None, None, None));
}

#[test]
fn damage_05_log_probabilities_above_zero_not_finite_or_of_another_token() {
    let set = |value: Value| damaged(native_line(), |line| line["sequences"][0]["logprobs"][4] = value);
    assert_found(
        &set(json!(0.25)),
        Damage::LogprobPositive,
        (Some(0), None, Some(4)),
    );
    assert_found(
        &set(json!(-0.25)),
        Damage::LogprobsDiffer,
        (Some(0), None, Some(4)),
    );
    assert_eq!(set(Value::Null)[0].damage, Damage::Unreadable);
    let findings = damaged(native_line(), |line| {
        line["calls"][0]["completions"][0]["logprobs"][1] = Value::Null
    });
    assert_found(&findings, Damage::NotFinite, (None, Some(0), Some(1)));
    assert_found(&findings, Damage::FlagsInconsistent, (None, Some(0), None));
    let rounded = damaged(native_line(), |line| {
        line["sequences"][0]["logprobs"][0] = json!(1e-9)
    });
    assert!(
        rounded
            .iter()
            .all(|finding| finding.damage != Damage::LogprobPositive),
        "{rounded:?}"
    );
}

#[test]
fn damage_06_a_count_of_the_endpoint_that_does_not_agree() {
    let findings = damaged(native_line(), |line| {
        line["calls"][1]["meta"]["usage"]["completion_tokens"] = json!(3)
    });
    assert_found(&findings, Damage::UsageDiffers, (None, Some(1), None));
}

#[test]
fn damage_07_turns_that_overlap_or_are_elsewhere() {
    let findings = damaged(native_line(), |line| {
        line["sequences"][1]["turns"][1]["start"] = json!(7)
    });
    assert_found(&findings, Damage::TurnsMisplaced, (Some(1), None, Some(7)));
    assert_found(&findings, Damage::TurnsMisplaced, (Some(1), Some(2), Some(7)));
    let findings = damaged(native_line(), |line| {
        line["sequences"][1]["turns"].as_array_mut().unwrap().swap(0, 1);
    });
    assert_found(&findings, Damage::TurnsMisplaced, (Some(1), None, Some(6)));
}

#[test]
fn damage_08_a_completion_that_is_trained_twice_or_not_at_all() {
    let findings = damaged(native_line(), |line| {
        let again = line["sequences"][0].clone();
        line["sequences"].as_array_mut().unwrap().push(again);
    });
    assert_found(&findings, Damage::TrainedTwice, (Some(3), Some(0), None));
    assert_found(&findings, Damage::MaskSum, (None, None, None));
    let findings = damaged(native_line(), |line| {
        line["sequences"].as_array_mut().unwrap().remove(0);
    });
    assert_found(&findings, Damage::NotTrained, (None, Some(0), None));
}

#[test]
fn damage_09_flags_that_do_not_fit_what_is_trained() {
    let findings = damaged(native_line(), |line| {
        line["calls"][2]["flags"] = json!(["logprobs_raw"]);
        line["calls"][2]["meta"]["flags"] = json!(["logprobs_raw"]);
    });
    assert_found(&findings, Damage::FlagsInconsistent, (None, Some(2), None));
    let message = |finding: &Finding| finding.message == "call 2 is trainable in spite of: logprobs_raw";
    assert!(findings.iter().any(message), "{findings:#?}");
    let findings = damaged(native_line(), |line| line["calls"][3]["trainable"] = json!(true));
    assert_found(&findings, Damage::FlagsInconsistent, (None, Some(3), None));
    let findings = damaged(native_line(), |line| {
        line["calls"][0]["flags"] = json!(["superseded"])
    });
    assert_found(&findings, Damage::FlagsInconsistent, (None, Some(0), None));
}

#[test]
fn damage_10_a_call_that_others_rest_on_is_gone() {
    let findings = damaged(native_line(), |line| {
        line["calls"].as_array_mut().unwrap().remove(0);
    });
    assert_found(&findings, Damage::BaseMissing, (None, Some(1), None));
    assert_found(&findings, Damage::BaseMissing, (Some(0), Some(0), None));
    let findings = damaged(native_line(), |line| line["calls"][1]["continues"] = json!(2));
    assert_found(&findings, Damage::BaseMissing, (None, Some(1), None));
    let findings = damaged(native_line(), |line| {
        line["calls"][1]["prompt"]["shared"] = json!(7)
    });
    assert_found(&findings, Damage::LengthsDiffer, (None, Some(1), None));
}

#[test]
fn damage_11_something_said_that_was_changed_or_is_gone() {
    let findings = damaged(native_line(), |line| line["contents"][2]["text"] = json!("{}"));
    assert_found(&findings, Damage::ContentChanged, (None, None, Some(2)));
    let findings = damaged(native_line(), |line| {
        line["contents"].as_array_mut().unwrap().pop();
    });
    assert!(
        findings
            .iter()
            .any(|finding| finding.damage == Damage::ContentMissing),
        "{findings:#?}"
    );
}

#[test]
fn damage_12_an_index_that_is_there_twice() {
    let findings = damaged(native_line(), |line| line["calls"][2]["meta"]["index"] = json!(1));
    assert_found(&findings, Damage::Duplicate, (None, Some(1), None));
}

#[test]
fn damage_13_an_outcome_of_another_rollout() {
    let findings = damaged(native_line(), |line| {
        line["outcome"]["id"] = json!(RolloutId::new())
    });
    assert_found(&findings, Damage::Outcome, (None, None, None));
    let findings = damaged(native_line(), |line| line["outcome"] = Value::Null);
    assert_found(&findings, Damage::Outcome, (None, None, None));
}

#[test]
fn damage_14_lines_that_are_cut_or_of_another_schema() {
    let mut findings = Findings::default();
    let line_text = native_line().to_string();
    line(&line_text.as_bytes()[..line_text.len() / 2], &mut findings);
    line(b"\xff", &mut findings);
    line(
        br#"{"schema": "dressage.trajectory", "schema_version": 99}"#,
        &mut findings,
    );
    line(br#"{"schema": "other"}"#, &mut findings);
    line(
        br#"{"schema": "dressage.verl", "schema_version": 1}"#,
        &mut findings,
    );
    let kinds: Vec<Damage> = findings.list.iter().map(|finding| finding.damage).collect();
    let expected = [
        Damage::Unreadable,
        Damage::Unreadable,
        Damage::UnknownSchema,
        Damage::UnknownSchema,
        Damage::Unreadable,
    ];
    assert_eq!(kinds, expected);
}

#[test]
fn rows_of_sequences_are_checked_by_themselves_and_with_those_before() {
    let rows = exported(conversation(), Shape::Verl, Selection::default());
    assert_eq!(rows.len(), 2, "a sequence without a trained token has no row");
    assert_eq!(rows[1]["prompt_ids"], json!([1, 2, 3, 10, 99, 4]));
    assert_eq!(rows[1]["response_ids"], json!([20, 21, 5, 30]));
    assert_eq!(rows[1]["response_mask"], json!([1, 1, 0, 1]));
    assert_eq!(rows[1]["response_logprobs"], json!([-2.5, -2.625, 0.0, -3.75]));
    assert_eq!(rows[0]["turns"][0]["policy_version_at_dispatch"], "7");
    assert_eq!(rows[0]["turns"][0]["policy_version_at_completion"], "8");
    let twice = found(&[rows[0].clone(), rows[1].clone(), rows[1].clone()]).list;
    assert_found(&twice, Damage::TrainedTwice, (Some(2), Some(1), None));
    let damage = |damage: &dyn Fn(&mut Value)| damaged(rows[1].clone(), damage);
    let place = |position| (Some(2), None, position);
    let findings = damage(&|row| row["response_mask"][2] = json!(1));
    assert_found(&findings, Damage::MaskOutsideTurns, place(Some(2)));
    assert_found(&findings, Damage::MaskSum, place(None));
    assert_found(
        &damage(&|row| row["response_mask"][0] = json!(0)),
        Damage::MaskIncomplete,
        place(Some(0)),
    );
    assert_found(
        &damage(&|row| row["response_logprobs"][1] = json!(0.5)),
        Damage::LogprobPositive,
        place(Some(1)),
    );
    assert_found(
        &damage(&|row| row["response_logprobs"][2] = json!(-0.5)),
        Damage::LogprobsDiffer,
        place(Some(2)),
    );
    assert_found(
        &damage(&|row| row["turns"][1]["end"] = json!(9)),
        Damage::TurnsMisplaced,
        place(Some(3)),
    );
    let findings = damage(&|row| {
        row["response_ids"].as_array_mut().unwrap().pop();
    });
    assert_found(&findings, Damage::LengthsDiffer, place(None));
}

#[test]
fn rows_of_turns_are_checked_by_the_rules_of_a_training_trace() {
    let row = exported(conversation(), Shape::Trl, Selection::default()).remove(0);
    let trace = |row: &Value| serde_json::from_str::<Value>(row["training_trace"].as_str().unwrap()).unwrap();
    let turns = trace(&row);
    assert_eq!(turns["turns"].as_array().unwrap().len(), 3, "the agent's own");
    assert_eq!(turns["turns"][1]["loss_mask"], json!([0, 0, 0, 0, 0, 0, 1, 1]));
    assert_eq!(
        turns["turns"][1]["request"]["messages"].as_array().unwrap().len(),
        3
    );
    assert_eq!(turns["turns"][0]["metadata"]["policy_version_at_completion"], "8");
    let entries: Value = serde_json::from_str(row["trace_entries"].as_str().unwrap()).unwrap();
    assert_eq!(entries.as_array().unwrap().len(), 4);
    assert_eq!(entries[3]["role"], "auxiliary");
    let damage = |damage: &dyn Fn(&mut Value)| {
        let mut turns = trace(&row);
        damage(&mut turns["turns"][1]);
        damaged(row.clone(), |row| {
            row["training_trace"] = json!(turns.to_string())
        })
    };
    let place = |position| (Some(1), None, position);
    let node = turns["turns"][0]["node_id"].clone();
    assert_found(
        &damage(&|turn| turn["node_id"] = node.clone()),
        Damage::Duplicate,
        place(None),
    );
    assert_found(
        &damage(&|turn| turn["loss_mask"][0] = json!(1)),
        Damage::MaskOutsideTurns,
        place(Some(0)),
    );
    assert_found(
        &damage(&|turn| turn["per_token_logps"][1] = json!(1)),
        Damage::LogprobPositive,
        place(Some(1)),
    );
    assert_found(
        &damage(&|turn| turn["per_token_logps"] = json!([])),
        Damage::LengthsDiffer,
        place(None),
    );
    let flagged = damage(&|turn| turn["metadata"]["flags"] = json!(["budget"]));
    assert_found(&flagged, Damage::FlagsInconsistent, place(None));
    let counted = damage(&|turn| turn["metadata"]["usage_completion_tokens"] = json!(1));
    assert_found(&counted, Damage::UsageDiffers, place(None));
    assert_eq!(
        damage(&|turn| turn["more"] = json!(1))[0].damage,
        Damage::Unreadable
    );
}

#[test]
fn rows_of_conversations_hold_the_last_request_and_its_reply() {
    let rows = exported(conversation(), Shape::Chat, Selection::default());
    assert_eq!(rows.len(), 1, "the first two go on, and titles are not selected");
    let messages = rows[0]["messages"].as_array().unwrap();
    let roles: Vec<&str> = messages
        .iter()
        .map(|message| message["role"].as_str().unwrap())
        .collect();
    assert_eq!(
        roles,
        ["user", "assistant", "user", "assistant", "user", "assistant"]
    );
    assert_eq!(messages[1]["tool_calls"][0]["function"]["arguments"], "{\"a\":1}");
    assert_eq!(messages[5]["content"], "c");
    assert_eq!(rows[0]["tools"], "[{\"type\":\"function\"}]");
    let last = damaged(rows[0].clone(), |row| {
        row["messages"].as_array_mut().unwrap().pop();
    });
    assert_found(&last, Damage::Messages, (Some(2), None, None));
}

/// A conversation with a sub-agent that the second call started.
fn with_sub_agent() -> Vec<Sketch> {
    let mut calls = conversation();
    let sub_agent = call(4, &[user("look")])
        .tokens(&[8], &[80, 81])
        .reply("seen", None);
    calls.insert(
        2,
        sub_agent.with(|meta| {
            meta.index = 2;
            meta.purpose = Purpose::Subagent;
            meta.session = Some("child".into());
            meta.parent_session = Some("s".into());
        }),
    );
    calls[3].call.meta.index = 3;
    calls[4].call.meta.index = 4;
    calls
}

#[test]
fn documents_in_atif_hold_each_call_once_with_its_tokens_and_what_came_of_it() {
    let documents = exported(with_sub_agent(), Shape::Atif, Selection::default());
    assert_eq!(
        documents.len(),
        1,
        "the sub-agent is embedded, the title not selected"
    );
    let document = &documents[0];
    assert_eq!(document["schema_version"], "ATIF-v1.7");
    let steps = document["steps"].as_array().unwrap();
    let sources: Vec<&str> = steps
        .iter()
        .map(|step| step["source"].as_str().unwrap())
        .collect();
    assert_eq!(sources, ["user", "agent", "user", "agent", "user", "agent"]);
    let calls: Vec<&Value> = steps
        .iter()
        .filter_map(|step| step["extra"].get("call"))
        .collect();
    assert_eq!(calls, [0, 1, 3]);
    assert_eq!(
        steps[1]["tool_calls"],
        json!([{"tool_call_id": "c1", "function_name": "bash", "arguments": {"a": 1}}])
    );
    assert_eq!(steps[1]["metrics"]["prompt_token_ids"], json!([1, 2, 3]));
    assert_eq!(steps[1]["metrics"]["completion_token_ids"], json!([10, 11, 12]));
    assert_eq!(steps[1]["metrics"]["logprobs"], json!([-1.25, -1.375, -1.5]));
    assert_eq!(steps[1]["extra"]["policy_version_at_completion"], "8");
    assert_eq!(steps[1]["timestamp"], "1970-01-01T00:00:00Z");
    let reference = &steps[3]["observation"]["results"][0]["subagent_trajectory_ref"][0];
    let embedded = document["subagent_trajectories"].as_array().unwrap();
    assert_eq!(embedded.len(), 1);
    assert_eq!(reference["trajectory_id"], embedded[0]["trajectory_id"]);
    assert_eq!(embedded[0]["steps"][1]["message"], "seen");
    assert_eq!(
        document["final_metrics"],
        json!({"total_prompt_tokens": 18, "total_completion_tokens": 6, "total_steps": 6})
    );
    assert_eq!(
        (&document["extra"]["schema"], &document["extra"]["reward"]),
        (&json!("dressage.atif"), &json!(0.5))
    );
    assert_eq!(found(&documents).list, []);
}

#[test]
fn what_a_tool_gave_back_is_the_observation_of_the_step_that_called_it() {
    let mut said = vec![user("go")];
    let first = call(0, &said).tokens(&[1], &[10]).reply("a", Some("c1"));
    said.extend([
        assistant("a", Some("c1")),
        json!({"role": "tool", "tool_call_id": "c1", "content": "out"}),
    ]);
    said.push(json!({"role": "tool", "tool_call_id": "c9", "content": [{"type": "text", "text": "x"}, {"type": "image_url"}]}));
    let second = call(1, &said).tokens(&[1, 10, 2], &[20]).reply("b", None);
    let documents = exported(vec![first, second], Shape::Atif, Selection::default());
    let steps = &documents[0]["steps"];
    assert_eq!(
        steps[1]["observation"],
        json!({"results": [{"source_call_id": "c1", "content": "out"}]})
    );
    let lost = json!({"content": "x[image_url]", "extra": {"tool_call_id": "c9",
        "content_parts": [{"type": "text", "text": "x"}, {"type": "image_url"}]}});
    assert_eq!(
        (&steps[2]["source"], &steps[2]["observation"]["results"][0]),
        (&json!("system"), &lost)
    );
    assert_eq!(found(&documents).list, []);
}

#[test]
fn damage_of_documents_in_atif_is_found() {
    let document = || exported(with_sub_agent(), Shape::Atif, Selection::default()).remove(0);
    for (damage, change) in [
        (
            Damage::Messages,
            (|document| document["steps"][2]["step_id"] = json!(9)) as fn(&mut Value),
        ),
        (Damage::Messages, |document| {
            document["steps"][0]["metrics"] = json!({})
        }),
        (Damage::Messages, |document| {
            document["steps"][0]["source"] = json!("robot")
        }),
        (Damage::Messages, |document| {
            document["steps"][3]["observation"]["results"][0]["source_call_id"] = json!("nobody's")
        }),
        (Damage::Messages, |document| document["steps"] = json!([])),
        (Damage::LengthsDiffer, |document| {
            document["steps"][1]["metrics"]["logprobs"]
                .as_array_mut()
                .unwrap()
                .pop();
        }),
        (Damage::LengthsDiffer, |document| {
            document["final_metrics"]["total_steps"] = json!(1)
        }),
        (Damage::LogprobPositive, |document| {
            document["steps"][1]["metrics"]["logprobs"][0] = json!(0.5)
        }),
        (Damage::UsageDiffers, |document| {
            document["steps"][1]["metrics"]["completion_tokens"] = json!(9)
        }),
        (Damage::FlagsInconsistent, |document| {
            document["steps"][1]["extra"]["flags"] = json!(["ids_disagree"])
        }),
        (Damage::TrainedTwice, |document| {
            document["steps"][3]["extra"]["call"] = json!(0)
        }),
        (Damage::ContentMissing, |document| {
            document["subagent_trajectories"].as_array_mut().unwrap().clear();
        }),
        (Damage::Unreadable, |document| document["unheard_of"] = json!(1)),
        (Damage::Unreadable, |document| document["agent"] = Value::Null),
        (Damage::UnknownSchema, |document| {
            document["schema_version"] = json!("ATIF-v2.0")
        }),
    ] {
        let findings = damaged(document(), change);
        assert!(
            findings.iter().any(|finding| finding.damage == damage),
            "{damage}: {findings:#?}"
        );
    }
}

#[test]
fn every_kind_of_damage_has_a_word_of_its_own() {
    for damage in Damage::ALL {
        assert_eq!(serde_json::to_value(damage).unwrap(), damage.name());
        let row = format!("| `{damage}` | {} |\n", damage.meaning());
        assert!(
            include_str!("../../../docs/export.md").contains(&row),
            "docs/export.md lacks {row}"
        );
    }
}
