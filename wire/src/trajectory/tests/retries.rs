use super::*;

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
