use super::*;

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
