use super::*;

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
