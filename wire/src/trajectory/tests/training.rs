use super::*;

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
fn what_a_trainer_selects_is_trained_and_the_reason_is_told_where_something_is_not() {
    let purpose = |purpose| move |meta: &mut CallMeta| meta.purpose = purpose;
    let (builder, recorded) = build(vec![
        call(0, &[user("go")]).tokens(&[1], &[10, 11]),
        call(1, &[user("sub")])
            .tokens(&[2], &[20, 21, 22])
            .with(purpose(Purpose::Subagent)),
        call(2, &[user("title")])
            .tokens(&[3], &[30])
            .with(purpose(Purpose::Title)),
        call(3, &[user("curl")])
            .tokens(&[4], &[40])
            .with(purpose(Purpose::Foreign)),
        call(4, &[user("long")])
            .tokens(&[5], &[50])
            .with(|meta| meta.flags.push(Flag::Truncated)),
        call(5, &[user("budget")])
            .tokens(&[6], &[60])
            .with(|meta| meta.flags.push(Flag::Budget)),
    ]);
    assert_eq!(
        trained_tokens(&builder),
        2 + 1,
        "the agent's own, truncated ones too"
    );
    let mut trajectory = Trajectory::restore(recorded.into_iter().map(|recorded| recorded.record));
    trajectory.select(Selection {
        purposes: vec![Purpose::Agent, Purpose::Subagent, Purpose::Foreign],
        truncated: Keep::Drop,
        ..Selection::default()
    });
    let trained: u64 = trajectory
        .sequences()
        .flat_map(|sequence| sequence.loss_mask)
        .map(u64::from)
        .sum();
    assert_eq!(trained, 2 + 3);
    let why: Vec<Option<Untrained>> = trajectory.calls().map(|call| call.untrained).collect();
    let expected = [
        None,
        None,
        Some(Untrained::Purpose),
        Some(Untrained::Purpose),
        Some(Untrained::Truncated),
        Some(Untrained::Flag(Flag::Budget)),
    ];
    assert_eq!(why, expected, "foreign calls are never trained");
}

#[test]
fn the_word_for_a_flag_is_that_of_its_json() {
    for flag in Flag::ALL {
        assert_eq!(serde_json::to_value(flag).unwrap(), flag.name());
    }
}
