use super::*;

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
