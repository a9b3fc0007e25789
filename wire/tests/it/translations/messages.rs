use super::*;

/// A request with most of what the dialect has.
pub fn rich() -> Value {
    serde_json::from_str(include_str!("../../rich/messages.json")).unwrap()
}

#[test]
fn a_rich_request_becomes_a_chat_completion_and_what_is_lost_is_named() {
    let (chat, facts) = translated("messages", true, &rich());
    assert_eq!(
        chat,
        json!({
            "model": "claude-x",
            "messages": [
                {"role": "system", "content": "You are Claude Code.\n\nBe brief."},
                {"role": "user", "content": [
                    {"type": "text", "text": "look"},
                    {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
                    {"type": "image_url", "image_url": {"url": "https://x/y.png"}}
                ]},
                {"role": "assistant", "reasoning_content": "think", "content": "I look.", "tool_calls": [
                    {"id": "toolu_1", "type": "function",
                     "function": {"name": "Bash", "arguments": "{\"command\": \"ls -l\", \"n\": [1, 2]}"}},
                    {"id": "toolu_2", "type": "function", "function": {"name": "Bash", "arguments": "{}"}}
                ]},
                {"role": "tool", "tool_call_id": "toolu_1", "content": "a.txt"},
                {"role": "tool", "tool_call_id": "toolu_2", "content": [
                    {"type": "text", "text": "no"},
                    {"type": "image_url", "image_url": {"url": "data:image/png;base64,BBBB"}}
                ]},
                {"role": "user", "content": "go on"},
                {"role": "system", "content": "Mind the time."}
            ],
            "tools": [{"type": "function", "function": {"name": "Bash", "description": "Runs",
                "parameters": {"type": "object", "properties": {"command": {"type": "string"}}}}}],
            "tool_choice": "auto",
            "parallel_tool_calls": false,
            "max_tokens": 1000,
            "temperature": 0.5,
            "top_p": 0.9,
            "top_k": 40,
            "stop": ["END"],
            "stream": true,
            "stream_options": {"include_usage": true},
            "user": "u",
            "reasoning_effort": "medium"
        })
    );
    assert_eq!(
        facts.untranslated,
        [
            "context_management",
            "messages.content.cache_control",
            "messages.content.redacted_thinking",
            "messages.content.thinking.signature",
            "messages.content.tool_result.is_error",
            "messages.output_config",
            "system.cache_control",
            "system.x-anthropic-billing-header",
            "thinking.display",
            "tools.cache_control",
            "tools.web_search_20250305",
        ]
    );
    assert!(facts.streamed && facts.upstream_streamed && facts.tools);
    assert_eq!(facts.system_start, "You are Claude Code.\n\nBe brief.");
}

#[test]
fn trap_17_a_nonce_and_moving_cache_marks_change_neither_prompt_nor_key() {
    let of = |nonce: &str, marked: bool| {
        let mut last = json!({"role": "user", "content": "go"});
        if marked {
            last["content"] = json!([{"type": "text", "text": "go", "cache_control": {"type": "ephemeral"}}]);
        }
        let body = json!({"model": "m", "max_tokens": 5, "messages": [last], "system": [
            {"type": "text", "text": format!("x-anthropic-billing-header: cch={nonce};")}, {"type": "text", "text": "s"}]});
        translated("messages", false, &body)
    };
    let (one, facts) = of("a", false);
    let (other, others) = of("b", true);
    assert_eq!(one, other);
    // The marks are the agent's own, and part of what it asked.
    assert_ne!(facts.retry_body_sha256, others.retry_body_sha256);
    assert_eq!(facts.retry_body_sha256, of("c", false).1.retry_body_sha256);

    let shape = speaker("messages").dialect.shape();
    let plain = r#"{"role":"user","content":"go"}"#;
    let marked =
        r#"{"role":"user","content":[{"type":"text","text":"go","cache_control":{"type":"ephemeral"}}]}"#;
    let canonical = |message: &str| (shape.canonical)(message).unwrap_or_else(|| message.to_owned());
    assert_eq!(canonical(plain), canonical(marked));
}

#[test]
fn every_way_to_choose_tools_is_translated() {
    let choose = |choice: Value| {
        let body = json!({"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "x"}],
            "tools": [{"name": "f", "input_schema": {"type": "object"}}], "tool_choice": choice});
        translated("messages", false, &body).0
    };
    assert_eq!(choose(json!({"type": "any"}))["tool_choice"], "required");
    assert_eq!(choose(json!({"type": "none"}))["tool_choice"], "none");
    assert_eq!(
        choose(json!({"type": "tool", "name": "f"}))["tool_choice"],
        json!({"type": "function", "function": {"name": "f"}})
    );
    assert_eq!(choose(json!({"type": "auto"})).get("parallel_tool_calls"), None);
}

#[test]
fn structured_output_and_thinking_are_translated() {
    let with = |members: Value| {
        let body = speaker("messages").body_with(false, members);
        translated("messages", false, &body)
    };
    let schema = json!({"type": "object", "properties": {}});
    let format = json!({"type": "json_schema", "schema": schema});
    for members in [
        json!({"output_config": {"format": format}}),
        json!({"output_format": format}),
    ] {
        let (chat, facts) = with(members);
        assert_eq!(
            chat["response_format"],
            json!({"type": "json_schema", "json_schema": {"name": "output", "schema": schema, "strict": true}})
        );
        assert!(facts.sampling_altered);
        assert!(facts.untranslated.is_empty());
    }
    let (chat, _) = with(json!({"thinking": {"type": "disabled"}}));
    assert_eq!(chat["chat_template_kwargs"], json!({"enable_thinking": false}));
    let (chat, facts) = with(json!({"thinking": {"type": "enabled", "budget_tokens": 2000}}));
    assert_eq!(chat.get("chat_template_kwargs"), None);
    assert_eq!(facts.untranslated, ["thinking.budget_tokens"]);
    let (_, facts) =
        with(json!({"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "{"}]}));
    assert_eq!(facts.untranslated, ["messages.prefill"]);
}

#[test]
fn a_reply_has_all_that_chat_completions_told() {
    let call = |id: &str, arguments: &str| json!({"id": id, "type": "function", "function": {"name": "f", "arguments": arguments}});
    let message = json!({"role": "assistant", "reasoning": "think", "content": "I call.",
        "tool_calls": [call("call_1", "{\"a\": 1}"), call("call_2", "{\"a\""), call("call_3", "")]});
    let body = speaker("messages").body(false);
    let document = document("messages", &body, message.clone(), "tool_calls");
    let signature = document["content"][0]["signature"].clone();
    assert_eq!(
        document,
        json!({"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": [
            {"type": "thinking", "thinking": "think", "signature": signature},
            {"type": "text", "text": "I call."},
            {"type": "tool_use", "id": "call_1", "name": "f", "input": {"a": 1}},
            {"type": "tool_use", "id": "call_2", "name": "f", "input": {"INVALID_JSON": "{\"a\""}},
            {"type": "tool_use", "id": "call_3", "name": "f", "input": {}}],
            "stop_reason": "tool_use", "stop_sequence": null,
            "usage": {"input_tokens": 6, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 4, "output_tokens": 5}})
    );
    // What comes back says what was said.
    let back = json!({"model": "m", "max_tokens": 5, "messages": [
        {"role": "user", "content": "x"}, {"role": "assistant", "content": document["content"]},
        {"role": "user", "content": "y"}]});
    let (chat, facts) = translated("messages", false, &back);
    assert!(facts.untranslated.is_empty(), "{:?}", facts.untranslated);
    let mut expected = message;
    expected["reasoning_content"] = expected.as_object_mut().unwrap().remove("reasoning").unwrap();
    expected["tool_calls"][2]["function"]["arguments"] = json!("{}");
    assert_eq!(chat["messages"][1], expected);
}

#[test]
fn a_stop_sequence_is_named() {
    let body = speaker("messages").body(false);
    let mut reply: Value = serde_json::from_slice(&chat(json!({"content": "a"}), "stop")).unwrap();
    reply["choices"][0]["stop_reason"] = json!("END");
    let speaker = speaker("messages");
    let facts = speaker.prepare(false, &body, &rules()).facts;
    let (Shown::Document(shown), _) = speaker.dialect.whole(&reply.to_string().into(), &facts) else {
        panic!()
    };
    let shown: Value = serde_json::from_slice(&shown).unwrap();
    assert_eq!(
        (&shown["stop_reason"], &shown["stop_sequence"]),
        (&json!("stop_sequence"), &json!("END"))
    );
}

#[test]
fn the_events_of_a_stream_are_those_of_anthropics_service() {
    let message = json!({"role": "assistant", "reasoning": "t", "content": "a",
        "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]});
    let text = stream("messages", &speaker("messages").body(true), message, "tool_calls");
    let names: Vec<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("event: "))
        .collect();
    assert_eq!(
        names,
        [
            "message_start",
            "content_block_start",
            "content_block_delta",
            "content_block_delta",
            "content_block_stop",
            "content_block_start",
            "content_block_delta",
            "content_block_stop",
            "content_block_start",
            "content_block_delta",
            "content_block_stop",
            "message_delta",
            "message_stop"
        ]
    );
}

#[test]
fn bad_requests_say_where_they_are_bad() {
    let with = |messages: Value| {
        refused(
            "messages",
            &json!({"model": "m", "max_tokens": 5, "messages": messages}),
        )
        .to_string()
    };
    assert_eq!(
        with(json!([{"role": "robot", "content": "x"}])),
        "messages[0].role is not `user`, `assistant` or `system`"
    );
    assert_eq!(
        with(json!([{"role": "user", "content": [{"type": "text"}]}])),
        "messages[0].content[0].text is not a string"
    );
    assert_eq!(
        with(json!([{"role": "user", "content": [{"type": "tool_result"}]}])),
        "messages[0].content[0].tool_use_id is not a string"
    );
    assert_eq!(with(json!(["x"])), "messages[0] is not an object");
    assert_eq!(with(json!("x")), "messages is not an array");
    assert_eq!(
        refused(
            "messages",
            &json!({"messages": [{"role": "user", "content": "x"}], "stream": "yes"})
        )
        .to_string(),
        "stream is not a boolean"
    );
}

#[test]
fn messages_of_the_assistant_that_follow_each_other_are_one_turn_as_far_as_their_order_can_be_told() {
    let body = json!({"model": "m", "max_tokens": 5, "messages": [
        {"role": "assistant", "content": "a"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "x", "name": "f", "input": {}}]},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"}]});
    let (chat, _) = translated("messages", false, &body);
    let call = json!({"id": "x", "type": "function", "function": {"name": "f", "arguments": "{}"}});
    assert_eq!(
        chat["messages"],
        json!([
        {"role": "assistant", "content": "a", "tool_calls": [call]},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"}])
    );
}

#[test]
fn duplicated_ids_of_calls_are_passed_on_as_they_are() {
    let body = json!({"model": "m", "max_tokens": 5, "messages": [
        {"role": "assistant", "content": [
            {"type": "tool_use", "id": "x", "name": "f", "input": {}}, {"type": "tool_use", "id": "x", "name": "g", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "x"}, {"type": "tool_result", "tool_use_id": "x"}]}]});
    let (chat, _) = translated("messages", false, &body);
    assert_eq!(chat["messages"][0]["tool_calls"].as_array().unwrap().len(), 2);
    assert_eq!(
        chat["messages"][2],
        json!({"role": "tool", "tool_call_id": "x", "content": ""})
    );
}
