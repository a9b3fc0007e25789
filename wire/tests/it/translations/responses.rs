use super::*;

/// A request with most of what the dialect has, as Codex asks.
pub fn rich() -> Value {
    serde_json::from_str(include_str!("../../rich/responses.json")).unwrap()
}

#[test]
fn a_rich_request_becomes_a_chat_completion_and_what_is_lost_is_named() {
    let (chat, facts) = translated("responses", true, &rich());
    let custom = &chat["tools"][1]["function"];
    assert_eq!(custom["name"], "apply_patch");
    assert_eq!(
        custom["description"],
        "Patches.\n\nThe input is a text that follows this lark grammar:\nstart: x"
    );
    assert_eq!(custom["parameters"]["required"], json!(["input"]));
    let names: Vec<&str> = chat["tools"]
        .as_array()
        .unwrap()
        .iter()
        .map(|tool| tool["function"]["name"].as_str().unwrap())
        .collect();
    assert_eq!(
        names,
        [
            "exec_command",
            "apply_patch",
            "spawn_agent",
            "multi_agent_v1__exec_command"
        ]
    );
    let mut rest = chat.clone();
    rest.as_object_mut().unwrap().remove("tools");
    let call = |id: &str, name: &str, arguments: &str| json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}});
    assert_eq!(
        rest,
        json!({
            "model": "gpt-x",
            "messages": [
                {"role": "system", "content": "You are Codex.\n\nPermissions."},
                {"role": "user", "content": [
                    {"type": "text", "text": "look"},
                    {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA", "detail": "high"}}]},
                {"role": "assistant", "reasoning_content": "short", "content": "I look.", "tool_calls": [
                    call("call_1", "exec_command", "{\"cmd\":\"ls\"}"),
                    call("call_2", "spawn_agent", "{}"),
                    call("call_3", "apply_patch", "{\"input\": \"*** Begin\\n\"}")]},
                {"role": "tool", "tool_call_id": "call_1", "content": "a.txt"},
                {"role": "tool", "tool_call_id": "call_2", "content": "ok"},
                {"role": "tool", "tool_call_id": "call_3", "content": "done"},
                {"role": "user", "content": "go on"}
            ],
            "tool_choice": "auto",
            "parallel_tool_calls": true,
            "max_tokens": 500,
            "temperature": 0.5,
            "prompt_cache_key": "thread",
            "stream": true,
            "stream_options": {"include_usage": true},
            "reasoning_effort": "high",
            "verbosity": "low",
            "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}, "strict": true}}
        })
    );
    assert_eq!(
        facts.untranslated,
        [
            "client_metadata",
            "include.web_search_call.action.sources",
            "input.encrypted_content",
            "input.web_search_call",
            "tools.custom.format",
            "tools.local_shell",
            "tools.namespace.description",
            "tools.web_search",
        ]
    );
}

#[test]
fn what_would_go_on_from_something_stored_is_refused() {
    for (members, words) in [
        (
            json!({"previous_response_id": "resp_1"}),
            "previous_response_id is about what a service keeps",
        ),
        (json!({"conversation": "conv_1"}), "conversation is about"),
        (json!({"store": true}), "store is about"),
        (json!({"background": true}), "background is about"),
        (json!({"prompt": {"id": "p"}}), "prompt is about"),
        (
            json!({"input": [{"type": "item_reference", "id": "x"}]}),
            "item_reference is about",
        ),
    ] {
        let body = speaker("responses").body_with(false, members);
        let message = refused("responses", &body).to_string();
        assert!(message.starts_with(words), "{message}");
    }
    for members in [json!({"store": false}), json!({"previous_response_id": null})] {
        translated(
            "responses",
            false,
            &speaker("responses").body_with(false, members),
        );
    }
}

#[test]
fn every_way_to_choose_tools_is_translated() {
    let choose = |choice: Value| {
        let function = |name: &str| json!({"type": "function", "name": name, "parameters": {}});
        let body = speaker("responses").body_with(
            false,
            json!({"tools": [function("f"), function("g")], "tool_choice": choice}),
        );
        translated("responses", false, &body)
    };
    assert_eq!(choose(json!("required")).0["tool_choice"], "required");
    assert_eq!(choose(json!("none")).0["tool_choice"], "none");
    assert_eq!(
        choose(json!({"type": "function", "name": "g"})).0["tool_choice"],
        json!({"type": "function", "function": {"name": "g"}})
    );
    let (chat, _) = choose(
        json!({"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "g"}]}),
    );
    assert_eq!(chat["tool_choice"], "required");
    assert_eq!(chat["tools"].as_array().unwrap().len(), 1);
    assert_eq!(
        choose(json!({"type": "web_search"})).1.untranslated,
        ["tool_choice.web_search"]
    );
}

#[test]
fn a_reply_has_all_that_chat_completions_told_and_comes_back_as_it_was() {
    let call = |id: &str, name: &str, arguments: &str| json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}});
    let message = json!({"role": "assistant", "reasoning_content": "think\nhard", "content": "I call.", "tool_calls": [
        call("call_1", "exec_command", "{\"cmd\": \"ls\"}"),
        call("call_2", "multi_agent_v1__exec_command", "{}"),
        call("call_3", "apply_patch", "{\"input\": \"*** Begin\\n\"}")]});
    let document = document("responses", &rich(), message.clone(), "tool_calls");
    assert_eq!(
        document["output"],
        json!([
            {"id": "rs_1_0", "type": "reasoning", "summary": [{"type": "summary_text", "text": "think\nhard"}],
             "encrypted_content": document["output"][0]["encrypted_content"], "status": "completed"},
            {"id": "msg_1_1", "type": "message", "role": "assistant",
             "content": [{"type": "output_text", "text": "I call.", "annotations": [], "logprobs": []}], "status": "completed"},
            {"id": "fc_1_2", "type": "function_call", "call_id": "call_1", "name": "exec_command",
             "arguments": "{\"cmd\": \"ls\"}", "status": "completed"},
            {"id": "fc_1_3", "type": "function_call", "call_id": "call_2", "namespace": "multi_agent_v1",
             "name": "exec_command", "arguments": "{}", "status": "completed"},
            {"id": "ctc_1_4", "type": "custom_tool_call", "call_id": "call_3", "name": "apply_patch",
             "input": "*** Begin\n", "status": "completed"}
        ])
    );
    for (name, value) in [
        ("id", json!("resp_1")),
        ("object", json!("response")),
        ("created_at", json!(7)),
        ("status", json!("completed")),
        ("error", json!(null)),
        ("incomplete_details", json!(null)),
        ("store", json!(false)),
        ("instructions", json!("You are Codex.")),
        ("reasoning", json!({"effort": "high", "summary": "auto"})),
        ("tools", rich()["tools"].clone()),
        ("temperature", json!(0.5)),
        ("top_p", json!(null)),
        (
            "usage",
            json!({"input_tokens": 10, "input_tokens_details": {"cached_tokens": 4}, "output_tokens": 5,
                "output_tokens_details": {"reasoning_tokens": 2}, "total_tokens": 15}),
        ),
    ] {
        assert_eq!(document[name], value, "{name}");
    }
    // Codex keeps of reasoning its summary and what it cannot read.
    let mut output = document["output"].clone();
    output[0]["summary"] = json!([]);
    let mut back = rich();
    back["input"] = output;
    let (chat, facts) = translated("responses", true, &back);
    assert_eq!(chat["messages"][1], message);
    assert!(!facts.untranslated.iter().any(|name| name.starts_with("input")));
}

#[test]
fn a_reply_that_is_cut_is_incomplete() {
    let body = speaker("responses").body(false);
    let document = document("responses", &body, json!({"content": "a"}), "length");
    assert_eq!(
        (
            &document["status"],
            &document["incomplete_details"],
            &document["output"][0]["status"]
        ),
        (
            &json!("incomplete"),
            &json!({"reason": "max_output_tokens"}),
            &json!("incomplete")
        )
    );
}

#[test]
fn the_events_of_a_stream_are_those_of_openais_service() {
    let message = json!({"role": "assistant", "reasoning": "t", "content": "a",
        "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]});
    let kinds = |body: &Value| -> Vec<String> {
        let text = stream("responses", body, message.clone(), "tool_calls");
        let names = text
            .lines()
            .filter_map(|line| line.strip_prefix("event: response."));
        names.map(str::to_owned).collect()
    };
    let mut plain = kinds(&speaker("responses").body(true));
    assert_eq!(
        plain,
        [
            "created",
            "in_progress",
            "output_item.added",
            "content_part.added",
            "reasoning_text.delta",
            "reasoning_text.done",
            "content_part.done",
            "output_item.done",
            "output_item.added",
            "content_part.added",
            "output_text.delta",
            "output_text.done",
            "content_part.done",
            "output_item.done",
            "output_item.added",
            "function_call_arguments.delta",
            "function_call_arguments.done",
            "output_item.done",
            "completed"
        ]
    );
    let summarised = kinds(&speaker("responses").body_with(true, json!({"reasoning": {"summary": "auto"}})));
    for (at, name) in [
        (3, "reasoning_summary_part.added"),
        (4, "reasoning_summary_text.delta"),
        (5, "reasoning_summary_text.done"),
        (6, "reasoning_summary_part.done"),
    ] {
        plain[at] = name.to_owned();
    }
    assert_eq!(summarised, plain);
}

#[test]
fn a_custom_tools_input_is_told_as_the_text_it_is() {
    let body = speaker("responses").body_with(
        true,
        json!({"tools": [{"type": "custom", "name": "apply_patch"}]}),
    );
    for (arguments, input) in [
        ("{\"input\": \"a\\nb\"}", "a\nb"),
        ("not json", "not json"),
        ("{\"x\": 1}", "{\"x\": 1}"),
    ] {
        let message = json!({"content": null, "tool_calls": [{"id": "c", "function": {"name": "apply_patch", "arguments": arguments}}]});
        let text = stream("responses", &body, message, "tool_calls");
        let said = speaker("responses").read_stream(text.as_bytes());
        assert_eq!(said.calls, [("c".into(), "apply_patch".into(), json!(input))]);
    }
}

#[test]
fn bad_requests_say_where_they_are_bad() {
    let with = |input: Value| refused("responses", &json!({"model": "m", "input": input})).to_string();
    assert_eq!(
        with(json!([{"role": "robot", "content": "x"}])),
        "input[0].role is not `user`, `assistant`, `system` or `developer`"
    );
    assert_eq!(
        with(json!([{"type": "function_call"}])),
        "input[0].call_id is not a string"
    );
    assert_eq!(with(json!(7)), "input is not a string or a list of items");
}
