use super::*;

proptest! {
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
