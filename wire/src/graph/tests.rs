use super::*;
use proptest::prelude::*;
use std::time::{Duration, Instant};

fn naive_prefix(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

proptest! {
    #[test]
    fn agrees_with_a_list_of_lines(lines in prop::collection::vec(
        (prop::collection::vec(0_u32..3, 0..40), prop::collection::vec(0_u32..3, 0..20)), 1..30,
    )) {
        let mut graph = TokenGraph::new();
        let mut known: Vec<(NodeId, Vec<u32>, u32)> = Vec::new();
        for (owner, (prompt, completion)) in (0_u32..).zip(&lines) {
            let longest = known.iter().map(|(_, line, _)| naive_prefix(line, prompt)).max().unwrap_or(0);
            let inserted = graph.insert(TokenGraph::ROOT, prompt, owner);
            prop_assert_eq!(inserted.shared, longest);
            match inserted.shared_with {
                None => prop_assert_eq!(longest, 0),
                Some(with) => prop_assert!(
                    known.iter().any(|(_, line, whose)| *whose == with && naive_prefix(line, prompt) >= longest)
                ),
            }
            known.push((inserted.node, prompt.clone(), owner));
            let end = graph.insert(inserted.node, completion, owner).node;
            known.push((end, [prompt.as_slice(), completion].concat(), owner));
        }
        for (node, line, _) in &known {
            prop_assert_eq!(&graph.line(*node), line);
            prop_assert_eq!(graph.length(*node), line.len());
            for (position, symbol) in line.iter().enumerate() {
                prop_assert_eq!(graph.symbol(*node, position), Some(*symbol));
            }
            prop_assert_eq!(graph.symbol(*node, line.len()), None);
        }
        for (a, a_line, _) in &known {
            for (b, b_line, _) in &known {
                prop_assert_eq!(graph.shared(*a, *b), naive_prefix(a_line, b_line));
            }
        }
        // Each distinct non-empty prefix is one symbol of a trie: nothing is held twice.
        let prefixes: std::collections::HashSet<&[u32]> =
            known.iter().flat_map(|(_, line, _)| (1..=line.len()).map(|end| &line[..end])).collect();
        prop_assert_eq!(graph.symbols_held(), prefixes.len());
    }

    #[test]
    fn a_place_on_a_line_is_its_prefix(line in prop::collection::vec(0_u32..3, 0..40), at in 0_usize..50) {
        let mut graph = TokenGraph::new();
        let end = graph.insert(TokenGraph::ROOT, &line, 0).node;
        let place = graph.place_on(end, at);
        prop_assert_eq!(place.map(|node| graph.line(node)), line.get(..at).map(<[u32]>::to_vec));
        prop_assert_eq!(graph.line(end), line);
    }
}

#[test]
fn a_prompt_that_breaks_inside_a_completion_splits_there_and_copies_nothing() {
    let mut graph = TokenGraph::new();
    let prompt = graph.insert(TokenGraph::ROOT, &[1, 2, 3], 0).node;
    let completion = graph.insert(prompt, &[4, 5, 6, 7], 0).node;
    let broken = graph.insert(TokenGraph::ROOT, &[1, 2, 3, 4, 5, 9, 9], 1);
    assert_eq!((broken.shared, broken.shared_with), (5, Some(0)));
    assert_eq!(graph.symbols_held(), 7 + 2);
    assert_eq!(
        graph.line(completion),
        [1, 2, 3, 4, 5, 6, 7],
        "the split end keeps its name"
    );
    assert_eq!(graph.shared(broken.node, completion), 5);
}

#[test]
fn a_million_tokens_in_a_hundred_broken_turns_take_less_than_a_second() {
    let mut graph = TokenGraph::new();
    let mut line: Vec<u32> = Vec::new();
    let began = Instant::now();
    for turn in 0..100_u32 {
        line.extend((0..5_000).map(|at| turn * 10_000 + at));
        let end = graph.insert(TokenGraph::ROOT, &line, turn).node;
        let completion: Vec<u32> = (0..5_000).map(|at| 2_000_000 + at).collect();
        graph.insert(end, &completion, turn);
        // The next prompt goes on from the middle of what was sampled.
        line.extend(completion.iter().take(2_500));
    }
    let took = began.elapsed();
    assert_eq!(graph.symbols_held(), 1_000_000, "each token once");
    // Without optimisation, and with other tests beside it, only what is quadratic is told apart.
    let limit = if cfg!(debug_assertions) { 10 } else { 1 };
    assert!(took < Duration::from_secs(limit), "took {took:?}");
}
