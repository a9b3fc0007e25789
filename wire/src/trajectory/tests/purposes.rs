use super::*;

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
