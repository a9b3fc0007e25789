use super::*;

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
