use super::*;
use crate::call::{Call, CallEnd, CallMeta, CaptureLevel, Completion, DialectName, Flag, Purpose, Usage};
use crate::ids::CallId;
use crate::sampling::Sampling;
use bytes::Bytes;
use proptest::prelude::*;
use serde_json::{Value, json};
use std::collections::HashMap;

/// Makes calls that read as sentences in tests.
#[derive(Clone)]
struct Sketch {
    call: Call,
}

fn call(index: u32, messages: &[Value]) -> Sketch {
    let body = json!({"model": "m", "messages": messages, "tools": [{"type": "function"}], "stream": true});
    let request = Bytes::from(body.to_string());
    Sketch {
        call: Call {
            meta: CallMeta {
                id: CallId::new(),
                index,
                dialect: DialectName::ChatCompletions,
                streamed: true,
                started_unix_ms: 1_000 * u64::from(index),
                first_token_ms: Some(5),
                duration_ms: 900,
                end: CallEnd::Complete,
                status: Some(200),
                error: None,
                hint: None,
                purpose: Purpose::Agent,
                session: Some("s".into()),
                parent_session: None,
                retry_count: None,
                retry_key: ContentHash::of(&request).to_string(),
                model: Some("m".into()),
                sampling: Sampling::default(),
                usage: None,
                level: CaptureLevel::Tokens,
                flags: Vec::new(),
                changes: Vec::new(),
                policy_version_at_dispatch: None,
                policy_version_at_completion: None,
                request_bytes: request.len() as u64,
                upstream_bytes: 0,
            },
            request,
            response: Bytes::new(),
            prompt_token_ids: None,
            completions: Vec::new(),
        },
    }
}

impl Sketch {
    fn tokens(mut self, prompt: &[u32], completion: &[u32]) -> Self {
        self.call.prompt_token_ids = Some(prompt.to_vec());
        self.call.completions = vec![Completion {
            token_ids: completion.to_vec(),
            logprobs: completion.iter().map(|id| -f64::from(*id) / 8.0).collect(),
            finish_reason: Some("stop".into()),
            ..Completion::default()
        }];
        self.call.meta.usage = Some(Usage {
            prompt_tokens: prompt.len() as u64,
            completion_tokens: completion.len() as u64,
            reasoning_tokens: None,
        });
        self
    }

    fn reply(mut self, text: &str, tool_call: Option<&str>) -> Self {
        let tool_calls: Vec<Value> = tool_call
            .iter()
            .map(|id| json!({"id": id, "function": {"name": "bash", "arguments": "{\"a\": 1}"}}))
            .collect();
        let message = json!({"role": "assistant", "content": text, "tool_calls": tool_calls});
        self.call.response = Bytes::from(json!({"choices": [{"message": message}]}).to_string());
        self
    }

    fn with(mut self, change: impl FnOnce(&mut CallMeta)) -> Self {
        change(&mut self.call.meta);
        self
    }
}

fn user(text: &str) -> Value {
    json!({"role": "user", "content": text})
}

fn assistant(text: &str, tool_call: Option<&str>) -> Value {
    // As agents do: arguments written anew, without the space.
    let tool_calls: Vec<Value> = tool_call
        .iter()
        .map(|id| json!({"id": id, "function": {"name": "bash", "arguments": "{\"a\":1}"}}))
        .collect();
    json!({"role": "assistant", "content": text, "tool_calls": tool_calls})
}

fn build(calls: Vec<Sketch>) -> (TrajectoryBuilder, Vec<Recorded>) {
    let mut builder = TrajectoryBuilder::new();
    let recorded = calls
        .into_iter()
        .map(|sketch| builder.push(sketch.call))
        .collect();
    (builder, recorded)
}

fn late(builder: &mut TrajectoryBuilder) -> Vec<(u32, Vec<Flag>)> {
    let by_id: HashMap<CallId, Vec<Flag>> = builder.finalise().into_iter().collect();
    let calls = builder.trajectory().calls();
    calls
        .filter_map(|call| Some((call.meta.index, by_id.get(&call.meta.id)?.clone())))
        .collect()
}

/// For each sequence: its leaf, and its turns as (call, trained).
fn shape_of(builder: &TrajectoryBuilder) -> Vec<(u32, Vec<(u32, bool)>)> {
    let plans = builder.trajectory().plan().into_iter();
    plans
        .map(|plan| {
            (
                plan.leaf,
                plan.turns.iter().map(|turn| (turn.call, turn.trained)).collect(),
            )
        })
        .collect()
}

fn trained_tokens(builder: &TrajectoryBuilder) -> u64 {
    builder
        .sequences()
        .flat_map(|sequence| sequence.loss_mask)
        .map(u64::from)
        .sum()
}

#[test]
fn trap_16_a_prompt_that_breaks_inside_a_completion_is_a_branch_and_is_explained() {
    let (mut builder, recorded) = build(vec![
        call(0, &[user("go")])
            .tokens(&[1, 2, 3], &[10, 11, 12, 13])
            .reply("", Some("c1")),
        call(1, &[user("go"), assistant("", Some("c1")), user("out")])
            .tokens(&[1, 2, 3, 10, 11, 99, 4], &[20, 21]),
    ]);
    let record = &recorded[1].record;
    assert_eq!(
        record.prompt,
        Some(TokenDelta {
            base: Some(0),
            shared: 5,
            tail: vec![99, 4]
        })
    );
    assert_eq!(
        record.prefix_break,
        Some(PrefixBreak {
            base: 0,
            at: 5,
            inside_completion: true,
            expected_token_id: 12,
            found_token_id: Some(99),
            message: Some(1),
        })
    );
    assert_eq!(record.continues, Some(0));
    assert!(late(&mut builder).is_empty());
    let sequences: Vec<Sequence> = builder.sequences().collect();
    assert_eq!(sequences.len(), 2);
    assert_eq!(sequences[0].token_ids, [1, 2, 3, 10, 11, 12, 13]);
    assert_eq!(sequences[0].loss_mask, [0, 0, 0, 1, 1, 1, 1]);
    assert_eq!(
        sequences[0].logprobs,
        [0.0, 0.0, 0.0, -1.25, -1.375, -1.5, -1.625]
    );
    assert_eq!(sequences[1].token_ids, [1, 2, 3, 10, 11, 99, 4, 20, 21]);
    assert_eq!(
        sequences[1].loss_mask,
        [0, 0, 0, 0, 0, 0, 0, 1, 1],
        "a part of a completion is context"
    );
    assert_eq!(builder.totals().prefix_breaks, 1);
}

#[test]
fn a_prompt_that_goes_on_exactly_is_one_sequence() {
    let (mut builder, recorded) = build(vec![
        call(0, &[user("go")]).tokens(&[1, 2], &[10, 11]).reply("a", None),
        call(1, &[user("go"), assistant("a", None), user("x")]).tokens(&[1, 2, 10, 11, 3], &[20]),
    ]);
    assert_eq!(recorded[1].record.prefix_break, None);
    assert!(late(&mut builder).is_empty());
    let sequences: Vec<Sequence> = builder.sequences().collect();
    assert_eq!(sequences.len(), 1);
    assert_eq!(sequences[0].loss_mask, [0, 0, 1, 1, 0, 1]);
    assert_eq!(
        sequences[0].plan.turns,
        [
            TurnSpan {
                call: 0,
                start: 2,
                end: 4,
                trained: true
            },
            TurnSpan {
                call: 1,
                start: 5,
                end: 6,
                trained: true
            },
        ]
    );
}

#[test]
fn trap_13_an_attempt_that_did_not_complete_is_superseded_by_the_next() {
    let failed = |index| call(index, &[user("go")]).with(|meta| meta.end = CallEnd::UpstreamError);
    let (mut builder, _) = build(vec![
        failed(0),
        failed(1),
        call(2, &[user("go")]).tokens(&[1], &[2]),
    ]);
    assert_eq!(
        late(&mut builder),
        [(0, vec![Flag::Superseded]), (1, vec![Flag::Superseded])]
    );
}

#[test]
fn trap_13_a_failure_that_nothing_repeats_is_not_superseded() {
    let (mut builder, _) = build(vec![
        call(0, &[user("go")]).with(|meta| meta.end = CallEnd::UpstreamCut),
        call(1, &[user("other")]).tokens(&[1], &[2]),
    ]);
    assert!(late(&mut builder).is_empty());
}

#[test]
fn trap_13_a_complete_call_is_superseded_by_a_marked_retry_only() {
    let first = call(0, &[user("go")]).tokens(&[1], &[2]);
    let again = call(1, &[user("go")]).tokens(&[1], &[3]);
    let (mut marked, _) = build(vec![
        first.clone(),
        again.clone().with(|meta| meta.retry_count = Some(1)),
    ]);
    assert_eq!(late(&mut marked), [(0, vec![Flag::Superseded])]);
    let (mut unmarked, _) = build(vec![first, again.with(|meta| meta.retry_count = Some(0))]);
    assert!(late(&mut unmarked).is_empty());
}

#[test]
fn trap_13_a_retry_that_arrives_before_the_tap_sees_the_disconnect_supersedes() {
    // The second began while the first was still thought to be read, and ended before it.
    let gone = call(0, &[user("go")]).with(|meta| {
        meta.end = CallEnd::DownstreamGone;
        meta.duration_ms = 5_000;
    });
    let (mut builder, _) = build(vec![call(1, &[user("go")]).tokens(&[1], &[2]), gone]);
    assert_eq!(late(&mut builder), [(0, vec![Flag::Superseded])]);
}

#[test]
fn trap_13_identical_calls_in_flight_together_are_separate() {
    let cut = call(0, &[user("go")]).with(|meta| {
        meta.end = CallEnd::UpstreamCut;
        meta.duration_ms = 5_000;
    });
    let (mut builder, _) = build(vec![call(1, &[user("go")]).tokens(&[1], &[2]), cut]);
    assert!(late(&mut builder).is_empty());
    // And of two that failed together, one retry takes the place of one.
    let cut = |index| call(index, &[user("go")]).with(|meta| meta.end = CallEnd::UpstreamCut);
    let twins = vec![
        cut(0),
        cut(1).with(|meta| meta.started_unix_ms = 1),
        call(2, &[user("go")]).tokens(&[1], &[2]),
    ];
    let (mut builder, _) = build(twins);
    assert_eq!(late(&mut builder), [(0, vec![Flag::Superseded])]);
}

#[test]
fn trap_13_a_retry_with_other_token_limits_has_the_key_and_supersedes() {
    let key = |meta: &mut CallMeta| meta.retry_key = "same".into();
    let (mut builder, _) = build(vec![
        call(0, &[user("go")])
            .with(key)
            .with(|meta| meta.end = CallEnd::DownstreamGone),
        call(1, &[user("go")])
            .with(key)
            .tokens(&[1], &[2])
            .with(|meta| meta.streamed = false),
    ]);
    assert_eq!(late(&mut builder), [(0, vec![Flag::Superseded])]);
}

#[test]
fn trap_14_of_completed_twins_the_one_that_is_not_continued_is_abandoned() {
    for (continued, abandoned) in [("first", 1), ("second", 0)] {
        let (mut builder, recorded) = build(vec![
            call(0, &[user("go")]).tokens(&[1], &[2, 3]).reply("first", None),
            call(1, &[user("go")]).tokens(&[1], &[2, 4]).reply("second", None),
            // The agent's words decide also where the tokens no longer tell the twins apart.
            call(2, &[user("go"), assistant(continued, None), user("more")]).tokens(&[1, 2, 9], &[5]),
        ]);
        assert_eq!(recorded[2].record.continues, Some(1 - abandoned));
        assert_eq!(late(&mut builder), [(abandoned, vec![Flag::Abandoned])]);
        assert_eq!(builder.totals().trainable_tokens, 3);
        assert_eq!(trained_tokens(&builder), 3);
    }
}

#[test]
fn trap_14_the_same_body_after_a_completed_call_is_a_new_turn() {
    let (mut builder, _) = build(vec![
        call(0, &[user("go")]).tokens(&[1], &[2]).reply("a", None),
        call(1, &[user("go")]).tokens(&[1], &[3]).reply("b", None),
    ]);
    assert!(late(&mut builder).is_empty());
    assert_eq!(shape_of(&builder), [(0, vec![(0, true)]), (1, vec![(1, true)])]);
}

#[test]
fn trap_17_a_cache_mark_that_moves_does_not_break_the_chain() {
    let marked = json!({"role": "user", "content": [{"type": "text", "text": "go", "cache_control": {"type": "ephemeral"}}]});
    let plain = json!({"role": "user", "content": [{"type": "text", "text": "go"}]});
    let text = |meta: &mut CallMeta| {
        meta.level = CaptureLevel::Text;
        meta.session = None;
    };
    let (_, recorded) = build(vec![
        call(0, &[marked]).reply("a", None).with(text),
        call(1, &[plain, assistant("a", None), user("x")]).with(text),
    ]);
    assert_eq!(recorded[1].record.continues, Some(0));
}

#[test]
fn trap_27_parallel_calls_go_on_from_their_own_and_not_from_what_arrived_last() {
    let session = |name: &'static str| move |meta: &mut CallMeta| meta.session = Some(name.into());
    let (mut builder, recorded) = build(vec![
        call(0, &[user("a")])
            .tokens(&[1, 2], &[10])
            .reply("ra", None)
            .with(session("a")),
        call(1, &[user("b")])
            .tokens(&[1, 3], &[11])
            .reply("rb", None)
            .with(session("b")),
        call(2, &[user("a"), assistant("ra", None), user("x")])
            .tokens(&[1, 2, 10, 5], &[12])
            .with(session("a")),
        call(3, &[user("b"), assistant("rb", None), user("x")])
            .tokens(&[1, 3, 11, 5], &[13])
            .with(session("b")),
    ]);
    assert_eq!(recorded[2].record.continues, Some(0));
    assert_eq!(recorded[3].record.continues, Some(1));
    assert!(
        recorded
            .iter()
            .all(|recorded| recorded.record.prefix_break.is_none())
    );
    assert!(late(&mut builder).is_empty());
    assert_eq!(
        shape_of(&builder),
        [(2, vec![(0, true), (2, true)]), (3, vec![(1, true), (3, true)])]
    );
}

#[test]
fn trap_15_titles_sub_agents_and_foreign_calls_are_labelled_and_not_trained() {
    let purposes = [
        Purpose::Title,
        Purpose::Summary,
        Purpose::Subagent,
        Purpose::Foreign,
    ];
    let mut calls = vec![call(0, &[user("go")]).tokens(&[1], &[2])];
    calls.extend((1_u32..).zip(purposes).map(|(index, purpose)| {
        call(index, &[user(&index.to_string())])
            .tokens(&[100 + index], &[7, 8])
            .with(|meta| meta.purpose = purpose)
    }));
    let (mut builder, _) = build(calls);
    assert!(late(&mut builder).is_empty());
    let labels: Vec<Purpose> = builder
        .sequences()
        .map(|sequence| sequence.plan.purpose)
        .collect();
    assert_eq!(labels, [&[Purpose::Agent][..], &purposes].concat());
    assert_eq!(trained_tokens(&builder), 1);
}

#[test]
fn trap_31_a_completion_shared_by_two_leaves_is_trained_once_in_the_earliest() {
    let after = |index, text: &str, token| {
        call(index, &[user("go"), assistant("a", None), user(text)])
            .tokens(&[1, 10, 11, token], &[50 + token])
    };
    let (mut builder, _) = build(vec![
        call(0, &[user("go")]).tokens(&[1], &[10, 11]).reply("a", None),
        after(1, "x", 3),
        after(2, "y", 4),
    ]);
    assert!(late(&mut builder).is_empty());
    assert_eq!(
        shape_of(&builder),
        [(1, vec![(0, true), (1, true)]), (2, vec![(0, false), (2, true)])]
    );
    assert_eq!(trained_tokens(&builder), builder.totals().trainable_tokens);
    assert_eq!(trained_tokens(&builder), 4);
}

#[test]
fn trap_31_the_agents_own_line_trains_a_completion_that_a_summary_holds_too() {
    let next = [user("go"), assistant("a", None), user("sum up")];
    let (mut builder, _) = build(vec![
        call(0, &[user("go")]).tokens(&[1], &[10]).reply("a", None),
        call(1, &next)
            .tokens(&[1, 10, 3], &[60])
            .with(|meta| meta.purpose = Purpose::Summary),
        call(2, &[user("go"), assistant("a", None), user("on")]).tokens(&[1, 10, 4], &[61]),
    ]);
    assert!(late(&mut builder).is_empty());
    assert_eq!(
        shape_of(&builder),
        [(1, vec![(0, false), (1, false)]), (2, vec![(0, true), (2, true)])]
    );
}

#[test]
fn completions_that_overlap_on_one_path_are_each_trained_in_a_sequence_of_their_own() {
    // The second call went on inside what the first had sampled, and its tokens are the same.
    let (mut builder, _) = build(vec![
        call(0, &[user("a")]).tokens(&[1], &[10, 11, 12]).reply("a", None),
        call(1, &[user("b")]).tokens(&[1, 10], &[11, 12]).reply("b", None),
        call(2, &[user("c")]).tokens(&[1, 10], &[11]).reply("c", None),
        call(3, &[user("a"), assistant("a", None), user("x")]).tokens(&[1, 10, 11, 12, 7], &[13]),
    ]);
    assert!(late(&mut builder).is_empty());
    assert_eq!(trained_tokens(&builder), 3 + 2 + 1 + 1);
    assert_eq!(trained_tokens(&builder), builder.totals().trainable_tokens);
    for sequence in builder.sequences() {
        let spans: Vec<_> = sequence
            .plan
            .turns
            .iter()
            .map(|turn| (turn.start, turn.end))
            .collect();
        assert!(spans.windows(2).all(|pair| pair[0].1 <= pair[1].0), "{spans:?}");
    }
}

#[test]
fn what_makes_a_turn_untrainable_keeps_its_tokens() {
    let spoil: [fn(&mut Call); 7] = [
        |call| call.completions[0].logprobs[0] = f64::NAN,
        |call| call.completions[0].logprobs[0] = 0.5,
        |call| call.completions[0].logprobs.truncate(1),
        |call| call.meta.flags.push(Flag::TokensMissing),
        |call| call.meta.end = CallEnd::DownstreamGone,
        |call| call.meta.level = CaptureLevel::Logprobs,
        |call| call.completions.push(call.completions[0].clone()),
    ];
    for (which, spoil) in spoil.into_iter().enumerate() {
        let mut sketch = call(0, &[user("go")]).tokens(&[1], &[2, 3]);
        spoil(&mut sketch.call);
        let (mut builder, _) = build(vec![sketch]);
        assert!(late(&mut builder).is_empty());
        assert_eq!(builder.totals().trainable_calls, 0, "case {which}");
        let sequences: Vec<Sequence> = builder.sequences().collect();
        assert_eq!(
            (sequences.len(), &sequences[0].token_ids[..]),
            (1, &[1, 2, 3][..]),
            "case {which}"
        );
        assert_eq!(sequences[0].loss_mask, [0, 0, 0], "case {which}");
        assert!(
            sequences[0].logprobs.iter().all(|logprob| logprob.is_finite()),
            "case {which}"
        );
    }
}

#[test]
fn flags_that_do_not_block_training_do_not() {
    let allowed = [Flag::Truncated, Flag::RequestChanged, Flag::SamplingDefaulted];
    let (mut builder, _) = build(vec![
        call(0, &[user("go")])
            .tokens(&[1], &[2])
            .with(|meta| meta.flags.extend(allowed)),
    ]);
    assert!(late(&mut builder).is_empty());
    assert_eq!(trained_tokens(&builder), 1);
}

#[test]
fn trap_30_a_turn_with_log_probabilities_before_temperature_is_kept_and_not_trained() {
    let (mut builder, _) = build(vec![
        call(0, &[user("go")])
            .tokens(&[1], &[2])
            .with(|meta| meta.flags.push(Flag::LogprobsRaw)),
    ]);
    assert!(late(&mut builder).is_empty());
    let totals = builder.totals();
    assert_eq!((totals.calls, totals.trainable_calls), (1, 0));
    let sequences: Vec<Sequence> = builder.sequences().collect();
    assert_eq!(sequences[0].token_ids, [1, 2]);
    assert_eq!(sequences[0].loss_mask, [0, 0]);
}

#[test]
fn compaction_in_a_session_is_a_break_with_the_call_before() {
    let (builder, recorded) = build(vec![
        call(0, &[user("system"), user("go")])
            .tokens(&[1, 2, 3], &[10])
            .reply("a", None),
        call(1, &[user("system"), user("summary of it")]).tokens(&[1, 2, 77], &[11]),
    ]);
    let found = recorded[1].record.prefix_break.as_ref().unwrap();
    assert_eq!(
        (found.base, found.at, found.inside_completion, found.message),
        (0, 2, false, Some(1))
    );
    assert_eq!(builder.totals().prefix_breaks, 1);
}

#[test]
fn an_index_that_was_given_twice_does_not_mix_two_calls_up() {
    let (builder, recorded) = build(vec![
        call(0, &[user("a")]).tokens(&[1, 2], &[3]),
        call(0, &[user("b")]).tokens(&[5, 6], &[7]),
        call(2, &[user("c")]).tokens(&[5, 6, 7, 8], &[9]),
    ]);
    assert_eq!(recorded[1].record.meta.index, 1);
    assert_eq!(recorded[2].record.prompt.as_ref().unwrap().base, Some(1));
    assert_eq!(builder.trajectory().prompt_token_ids(2), Some(vec![5, 6, 7, 8]));
}

#[test]
fn a_call_that_rests_on_a_missing_one_is_kept_without_ids_and_not_trained() {
    let (_, recorded) = build(vec![
        call(0, &[user("a")]).tokens(&[1, 2], &[3]).reply("r", None),
        call(1, &[user("a"), assistant("r", None), user("b")]).tokens(&[1, 2, 3, 4], &[5]),
    ]);
    let restored = Trajectory::restore(recorded.into_iter().skip(1).map(|recorded| recorded.record));
    let calls: Vec<CallView<'_>> = restored.calls().collect();
    assert_eq!(calls[0].flags, [Flag::PromptIdsMissing]);
    assert!(!calls[0].trainable);
    assert_eq!(restored.prompt_token_ids(1), None);
    assert_eq!(
        restored.messages(1),
        None,
        "a list with a hole is not given as a whole one"
    );
    assert_eq!(restored.plan(), []);
}

#[test]
fn messages_and_tools_that_repeat_are_said_once() {
    let (_, recorded) = build(vec![
        call(0, &[user("a")]),
        call(1, &[user("a"), assistant("r", None), user("a")]),
    ]);
    assert_eq!(recorded[0].contents.len(), 3, "a message, the tools, the rest");
    assert_eq!(recorded[1].contents.len(), 1, "the reply, as a message");
    let messages = &recorded[1].record.request.messages;
    assert_eq!(
        (messages.base, messages.shared, messages.tail.len()),
        (Some(0), 1, 2)
    );
}

/// Puts the request of a recorded call together from all that was recorded.
fn assembled(builder: &TrajectoryBuilder, recorded: &[Recorded], which: usize) -> Vec<u8> {
    let contents: HashMap<ContentHash, Bytes> = recorded
        .iter()
        .flat_map(|recorded| recorded.contents.iter().cloned())
        .collect();
    let record = &recorded[which].record;
    let messages = builder.trajectory().messages(record.meta.index).unwrap();
    assemble(&record.request, &messages, |hash| contents.get(&hash).cloned()).unwrap()
}

#[test]
fn bodies_come_back_byte_for_byte_however_they_were_written() {
    let bodies: &[&[u8]] = &[
        b"",
        b"no json",
        b"[1,2]",
        b"{}",
        b"\xff\xfe{\"messages\":[1]}",
        br#"{"messages":null,"tools":null}"#,
        br#"{"messages":[]}"#,
        br#"{"messages":[ ] , "tools":[]}"#,
        br#"{"messages":"text","tools":{"a":1}}"#,
        br#"{"model":"m","messages":[{"role":"user","content":"a, [b] {c} \" null"}],"tools":[{"x":[1, 2]}],"n":1}"#,
        br#"{"tools": [{"a": 1}, {"b": 2}], "messages": [{"a": 1}, {"b": 2}, {"c": 3}], "x": null}"#,
        b"{\n  \"messages\": [\n    {\"a\": 1},\n    {\"b\": 2}\n  ],\n  \"x\": 1\n}\n",
        br#"{"messages":[{"a":1},{"b":2}, {"c":3}]}"#,
        br#"{"messages":[{"a":1}],"messages":[{"b":2}],"tools":[1],"tools":[2]}"#,
        br#"{"mess\u0061ges":[{"a":1},{"a":1}],"x":1e400,"y":1.0e-2}"#,
        br#"{"messages":[{"a":NaN}]}"#,
        "{\"messages\":[{\"c\":\"h\u{e9}llo \u{1f389}\"}],\"\u{e9}\":1}".as_bytes(),
    ];
    let mut builder = TrajectoryBuilder::new();
    let mut recorded = Vec::new();
    for (index, body) in (0_u32..).zip(bodies) {
        let mut made = call(index, &[]).call;
        made.request = Bytes::copy_from_slice(body);
        recorded.push(builder.push(made));
    }
    for (which, body) in bodies.iter().enumerate() {
        assert_eq!(
            assembled(&builder, &recorded, which),
            *body,
            "{}",
            String::from_utf8_lossy(body)
        );
    }
    assert_eq!(
        recorded[14].record.request.messages.length(),
        2,
        "a name with an escape is that name"
    );
    assert_eq!(
        recorded[12].record.request.messages.length(),
        0,
        "uneven gaps are kept in the rest"
    );
}

fn json_text() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        ".{0,12}".prop_map(Value::from),
    ];
    let value = leaf.prop_recursive(3, 12, 3, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            prop::collection::btree_map("[a-c]{1,2}", inner, 0..3)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    });
    let list = || prop::collection::vec(value.clone(), 0..4);
    (list(), prop::option::of(list()), value.clone(), 0..3_u8).prop_map(|(messages, tools, rest, style)| {
        let body = json!({"before": rest, "messages": messages, "tools": tools, "after": rest});
        match style {
            0 => body.to_string(),
            1 => serde_json::to_string_pretty(&body).unwrap_or_default(),
            _ => body.to_string().replace(',', ", "),
        }
    })
}

proptest! {
    #[test]
    fn any_body_comes_back_byte_for_byte(bodies in prop::collection::vec(json_text(), 1..6)) {
        let mut builder = TrajectoryBuilder::new();
        let mut recorded = Vec::new();
        for (index, body) in (0_u32..).zip(&bodies) {
            let mut made = call(index, &[]).call;
            made.request = Bytes::from(body.clone());
            recorded.push(builder.push(made));
        }
        for (which, body) in bodies.iter().enumerate() {
            prop_assert_eq!(assembled(&builder, &recorded, which), body.as_bytes());
        }
    }

    /// Calls over a tiny alphabet, so that they share, break and coincide in every way.
    #[test]
    fn restoring_gives_the_same_ids_flags_and_sequences_and_each_token_is_trained_once(
        drawn in prop::collection::vec(
            (
                prop::collection::vec(0_u32..2, 1..8), prop::collection::vec(0_u32..2, 0..5), 0_u8..3, 0_u8..4,
                0_u8..3, prop::option::of(0_u32..2),
            ),
            1..14,
        ),
        order in prop::collection::vec(any::<u32>(), 14),
    ) {
        let mut calls: Vec<(u32, Sketch)> = (0_u32..).zip(&drawn).zip(order).map(|((index, drawn), order)| {
            let (prompt, completion, messages, end, purpose, retry) = drawn;
            let messages: Vec<Value> = (0..=*messages).map(|at| user(&at.to_string())).collect();
            let made = call(index, &messages).tokens(prompt, completion).reply(&order.to_string(), None);
            let made = made.with(|meta| {
                meta.end = [CallEnd::Complete, CallEnd::Complete, CallEnd::UpstreamCut, CallEnd::DownstreamGone]
                    [usize::from(*end)];
                meta.purpose = [Purpose::Agent, Purpose::Agent, Purpose::Title][usize::from(*purpose)];
                meta.retry_count = *retry;
            });
            (order, made)
        }).collect();
        // They end in another order than they began in.
        calls.sort_by_key(|(order, _)| *order);
        let sent: HashMap<u32, Call> =
            calls.iter().map(|(_, made)| (made.call.meta.index, made.call.clone())).collect();
        let (mut builder, recorded) = build(calls.into_iter().map(|(_, made)| made).collect());
        let mut restored = Trajectory::restore(recorded.iter().map(|recorded| recorded.record.clone()));

        prop_assert_eq!(builder.finalise(), restored.finalise());
        prop_assert_eq!(builder.totals(), restored.totals());
        prop_assert_eq!(builder.trajectory().plan(), restored.plan());
        for (index, call) in &sent {
            prop_assert_eq!(&restored.prompt_token_ids(*index), &call.prompt_token_ids);
            prop_assert_eq!(&builder.trajectory().prompt_token_ids(*index), &call.prompt_token_ids);
        }
        let sequences: Vec<Sequence> = builder.sequences().collect();
        prop_assert_eq!(&sequences, &restored.sequences().collect::<Vec<_>>());
        prop_assert_eq!(trained_tokens(&builder), builder.totals().trainable_tokens);

        let mut trained = HashMap::new();
        for sequence in &sequences {
            prop_assert_eq!(sequence.token_ids.len(), sequence.loss_mask.len());
            prop_assert_eq!(sequence.token_ids.len(), sequence.logprobs.len());
            let mut done = 0;
            for turn in &sequence.plan.turns {
                let call = &sent[&turn.call];
                let prompt = call.prompt_token_ids.as_ref().unwrap();
                prop_assert!(turn.start >= done, "completions lie apart");
                prop_assert_eq!(&sequence.token_ids[..turn.start], &prompt[..]);
                prop_assert_eq!(&sequence.token_ids[turn.start..turn.end], &call.completions[0].token_ids[..]);
                prop_assert_eq!(&sequence.logprobs[turn.start..turn.end], &call.completions[0].logprobs[..]);
                *trained.entry(turn.call).or_insert(0) += u32::from(turn.trained);
                done = turn.end;
            }
        }
        for view in builder.trajectory().calls() {
            let times = trained.get(&view.meta.index).copied();
            let sampled = !sent[&view.meta.index].completions[0].token_ids.is_empty();
            prop_assert_eq!(times.is_some(), sampled, "each that sampled something is on some path");
            prop_assert_eq!(times.unwrap_or(0), u32::from(view.trainable));
        }
    }
}

/// A recorded exchange with vLLM 0.32.0: request, prompt ids, sampled ids.
fn recorded_exchange(name: &str) -> (Bytes, Vec<u32>, Vec<u32>) {
    let file = |suffix: &str| {
        format!(
            "{}/../fixtures/engines/vllm-0.32.0/{name}.{suffix}",
            env!("CARGO_MANIFEST_DIR")
        )
    };
    let stream = std::fs::read_to_string(file("response.body")).unwrap();
    let events = stream
        .lines()
        .filter_map(|line| line.strip_prefix("data: ")?.strip_prefix('{'));
    let events: Vec<Value> = events
        .map(|event| serde_json::from_str(&format!("{{{event}")).unwrap())
        .collect();
    let ids = |value: &Value| -> Vec<u32> { serde_json::from_value(value.clone()).unwrap_or_default() };
    let prompt = events
        .iter()
        .map(|event| ids(&event["prompt_token_ids"]))
        .find(|ids| !ids.is_empty())
        .unwrap();
    let sampled = events
        .iter()
        .flat_map(|event| ids(&event["choices"][0]["token_ids"]))
        .collect();
    (
        std::fs::read(file("request.json")).unwrap().into(),
        prompt,
        sampled,
    )
}

#[test]
fn trap_16_thinking_that_the_template_strips_breaks_a_recorded_conversation_at_the_completion() {
    let mut builder = TrajectoryBuilder::new();
    let mut recorded = Vec::new();
    let names = ["list_tools_stream_lp5_ids", "after_tool_tools_stream_lp5_ids"];
    let exchanges = names.map(recorded_exchange);
    for (index, (request, prompt, sampled)) in (0_u32..).zip(&exchanges) {
        let mut made = call(index, &[]).tokens(prompt, sampled).call;
        made.request = request.clone();
        recorded.push(builder.push(made));
    }
    let record = &recorded[1].record;
    assert_eq!(record.continues, Some(0));
    // Where the first call thought, the second has the tool call at once.
    let expected = PrefixBreak {
        base: 0,
        at: 125,
        inside_completion: true,
        expected_token_id: 3003,
        found_token_id: Some(3005),
        message: Some(2),
    };
    assert_eq!(record.prefix_break, Some(expected));
    assert_eq!(record.prompt.as_ref().unwrap().tail.len(), 178 - 125);
    assert_eq!(record.request.messages.tail.len(), 2, "two messages are new");
    assert_eq!(trained_tokens(&builder), 42 + 30);
    for (which, (request, ..)) in exchanges.iter().enumerate() {
        assert_eq!(assembled(&builder, &recorded, which), *request);
    }
}

#[test]
fn trap_16_what_is_new_of_a_broken_turn_does_not_grow_with_the_turns_before_it() {
    let mut builder = TrajectoryBuilder::new();
    let (mut prompt, mut messages): (Vec<u32>, Vec<Value>) = ((0..30).collect(), vec![user("go")]);
    for turn in 0..300_u32 {
        let sampled: Vec<u32> = (0..20).map(|at| 1_000_000 + turn * 20 + at).collect();
        let reply = turn.to_string();
        let recorded = builder.push(
            call(turn, &messages)
                .tokens(&prompt, &sampled)
                .reply(&reply, None)
                .call,
        );
        if turn > 0 {
            let record = &recorded.record;
            assert_eq!(
                record.prefix_break.as_ref().map(|found| found.base),
                Some(turn - 1)
            );
            assert_eq!(record.prompt.as_ref().unwrap().tail.len(), 20, "turn {turn}");
            assert_eq!(record.request.messages.tail.len(), 2, "turn {turn}");
            assert_eq!(
                recorded.contents.len(),
                3,
                "two messages and a reply, turn {turn}"
            );
        }
        prompt.extend(&sampled[..10]);
        prompt.extend((0..20).map(|at| 2_000_000 + turn * 20 + at));
        messages.extend([assistant(&reply, None), user(&reply)]);
    }
    assert_eq!(
        builder.trajectory().prompt_token_ids(299).unwrap().len(),
        30 + 299 * 30
    );
}
