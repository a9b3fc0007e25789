//! The traps of captured replies, each by its number in the list of them.

use super::recordings::*;
use dressage_wire::call::{CallEnd, CaptureLevel, Flag};
use dressage_wire::capture::{Ask, Captured, RequestFacts, RequestRules, StreamEnd, StreamError};
use dressage_wire::dialect::Dialect;
use serde_json::{Value, json};

/// A stream of one choice as vLLM sends it: a prompt of two ids, these choices, and a count.
fn vllm(choices: &[Value], completion_tokens: u64) -> Vec<u8> {
    let event = |choices: Value| json!({"id": "c", "object": "chat.completion.chunk", "model": "m", "choices": choices});
    let mut first =
        event(json!([{"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": null}]));
    first["prompt_token_ids"] = json!([1, 2]);
    let mut last = event(json!([]));
    last["usage"] = json!({"prompt_tokens": 2, "completion_tokens": completion_tokens});
    let middle = choices.iter().map(|choice| event(json!([choice])));
    let all: Vec<String> = [first]
        .into_iter()
        .chain(middle)
        .chain([last])
        .map(|event| event.to_string())
        .collect();
    let mut all: Vec<&str> = all.iter().map(String::as_str).collect();
    all.push("[DONE]");
    events(&all)
}

/// A choice with one token.
fn token(text: &str, id: u32, logprob: Value) -> Value {
    json!({
        "index": 0,
        "delta": {"content": text},
        "logprobs": {"content": [{"token": text, "logprob": logprob, "bytes": []}]},
        "finish_reason": null,
        "token_ids": [id],
    })
}

fn finish(reason: &str) -> Value {
    json!({"index": 0, "delta": {}, "logprobs": null, "finish_reason": reason, "token_ids": null})
}

fn captured(text: &[u8]) -> Captured {
    whole_stream(&streamed(), text).1
}

fn document(captured: &Captured) -> Value {
    serde_json::from_slice(&captured.response).unwrap()
}

/// The content an agent reads from a stream.
fn content(agent: &[u8]) -> String {
    let data = data_of(agent).into_iter().filter(|data| data != "[DONE]");
    let deltas = data.map(|data| serde_json::from_str::<Value>(&data).unwrap()["choices"][0]["delta"].take());
    deltas
        .filter_map(|delta| delta["content"].as_str().map(str::to_owned))
        .collect()
}

#[test]
fn a_clean_turn_has_no_flag() {
    let turn = captured(&vllm(
        &[
            token("a", 7, json!(-0.5)),
            token("b", 8, json!(0.0)),
            finish("stop"),
        ],
        2,
    ));
    assert_eq!(turn.flags, []);
    assert_eq!((turn.end, turn.level), (CallEnd::Complete, CaptureLevel::Tokens));
    assert_eq!(turn.completions[0].token_ids, [7, 8]);
    assert_eq!(turn.completions[0].logprobs, [-0.5, 0.0]);
    assert_eq!(turn.prompt_token_ids, Some(vec![1, 2]));
    assert_eq!(turn.model.as_deref(), Some("m"));
}

#[test]
fn trap_01_ids_in_the_names_of_tokens() {
    let mut named = token("token_id:42", 0, json!(-1.0));
    named["token_ids"] = Value::Null;
    assert_eq!(
        captured(&vllm(&[named, finish("stop")], 1)).completions[0].token_ids,
        [42]
    );
}

#[test]
fn trap_01_ids_that_disagree_are_flagged() {
    let agree = captured(&vllm(&[token("token_id:42", 42, json!(-1.0)), finish("stop")], 1));
    assert_eq!(agree.flags, []);
    let disagree = captured(&vllm(&[token("token_id:42", 43, json!(-1.0)), finish("stop")], 1));
    assert_eq!(disagree.flags, [Flag::IdsDisagree]);
    assert_eq!(disagree.level, CaptureLevel::Logprobs);
}

#[test]
fn trap_01_an_entry_with_two_ids_is_flagged() {
    let mut entry = token("token_id:42", 42, json!(-1.0));
    entry["logprobs"]["content"][0]["id"] = json!(41);
    entry["token_ids"] = Value::Null;
    assert_eq!(
        captured(&vllm(&[entry, finish("stop")], 1)).flags,
        [Flag::IdsDisagree]
    );
}

#[test]
fn trap_02_prompt_ids_at_the_top_and_in_the_choice() {
    let text = r#"{"choices":[{"index":0,"delta":{"content":"x"},"prompt_token_ids":[5,6],"token_ids":[7],
        "logprobs":{"content":[{"token":"x","logprob":-1}]},"finish_reason":"stop"}],
        "usage":{"prompt_tokens":2,"completion_tokens":1}}"#
        .replace('\n', " ");
    let (agent, turn) = whole_stream(&streamed(), &events(&[&text, "[DONE]"]));
    assert_eq!(turn.prompt_token_ids, Some(vec![5, 6]));
    assert_eq!((turn.level, turn.flags), (CaptureLevel::Tokens, vec![]));
    let agent = String::from_utf8(agent).unwrap();
    assert!(
        !agent.contains("token_ids") && !agent.contains("logprobs"),
        "{agent}"
    );
}

#[test]
fn trap_02_without_prompt_ids_it_is_no_token_capture() {
    let text = String::from_utf8(vllm(&[token("a", 7, json!(-0.5)), finish("stop")], 1)).unwrap();
    let turn = captured(text.replace("[1,2]", "null").as_bytes());
    assert_eq!(
        (turn.level, turn.flags),
        (CaptureLevel::Logprobs, vec![Flag::PromptIdsMissing])
    );
}

#[test]
fn trap_03_logprobs_that_are_none_keep_their_place() {
    let python = |word: &str| {
        let turn = vllm(
            &[
                token("a", 7, json!(-0.5)),
                token("b", 8, json!("?")),
                finish("stop"),
            ],
            2,
        );
        String::from_utf8(turn)
            .unwrap()
            .replace("\"?\"", word)
            .into_bytes()
    };
    for (word, kept) in [
        ("null", f64::NAN),
        ("NaN", f64::NAN),
        ("-Infinity", f64::NAN),
        ("Infinity", f64::NAN),
        ("-9999.0", -9999.0),
        ("0.25", 0.25),
        ("\"-inf\"", f64::NAN),
        ("1e999", f64::NAN),
    ] {
        let (agent, turn) = whole_stream(&streamed(), &python(word));
        assert_eq!(turn.flags, [Flag::LogprobInvalid], "{word}");
        assert_eq!(turn.completions[0].token_ids, [7, 8], "{word}");
        let logprobs = &turn.completions[0].logprobs;
        assert_eq!(logprobs.len(), 2, "{word}");
        assert_eq!(logprobs[1].to_bits(), kept.to_bits(), "{word}");
        assert_eq!(turn.end, CallEnd::Complete, "{word}");
        assert_eq!(
            document(&turn)["choices"][0]["message"]["content"],
            "ab",
            "{word}"
        );
        assert_eq!(content(&agent), "ab", "{word}");
    }
}

#[test]
fn trap_03_what_python_writes_beyond_json_is_not_stored() {
    let text = r#"{"choices":[{"index":0,"delta":{"content":"x"},"finish_reason":"stop"}],"metrics":{"a":NaN,"b":-Infinity}}"#;
    let turn = captured(&events(&[text, "[DONE]"]));
    assert_eq!(document(&turn)["metrics"], json!({"a": null, "b": null}));
    let body =
        r#"{"choices":[{"index":0,"message":{"content":"NaN"},"finish_reason":"stop"}],"metrics":[NaN]}"#;
    let (agent, turn) = CHAT.unary(&body.into(), &unary());
    assert_eq!(agent, body);
    assert_eq!(document(&turn)["metrics"], json!([null]));
    assert_eq!(document(&turn)["choices"][0]["message"]["content"], "NaN");
}

#[test]
fn trap_04_one_logprob_more_or_less_than_ids() {
    let mut no_logprob = token("", 9, json!(-1.0));
    no_logprob["logprobs"] = Value::Null;
    let less = captured(&vllm(
        &[token("a", 7, json!(-0.5)), no_logprob, finish("stop")],
        2,
    ));
    assert_eq!(less.flags, [Flag::LengthMismatch]);
    assert_eq!(less.level, CaptureLevel::Logprobs);
    let mut no_id = token("", 9, json!(-1.0));
    no_id["token_ids"] = Value::Null;
    let more = captured(&vllm(&[token("a", 7, json!(-0.5)), no_id, finish("stop")], 1));
    assert_eq!(more.flags, [Flag::LengthMismatch]);
}

#[test]
fn trap_05_fewer_ids_than_the_endpoint_counted() {
    let turn = captured(&vllm(&[token("a", 7, json!(-0.5)), finish("tool_calls")], 20));
    assert_eq!(turn.flags, [Flag::TokensMissing]);
    assert_eq!(turn.level, CaptureLevel::Logprobs);
    assert_eq!(turn.usage.unwrap().completion_tokens, 20);
}

#[test]
fn trap_05_none_of_the_ids_asked_for_came() {
    let text = r#"{"choices":[{"index":0,"delta":{"content":"x"},"finish_reason":"stop"}],"usage":{"completion_tokens":20}}"#;
    let turn = captured(&events(&[text, "[DONE]"]));
    assert_eq!(turn.flags, [Flag::TokensMissing, Flag::PromptIdsMissing]);
    assert_eq!(turn.level, CaptureLevel::Text);
}

#[test]
fn trap_06_every_choice_is_stored_and_none_trainable() {
    let facts = prepare(r#"{"messages":[],"stream":true,"n":2}"#, &rules()).facts;
    let second = |mut choice: Value| {
        choice["index"] = json!(1);
        choice
    };
    let both = [
        token("a", 7, json!(-0.5)),
        second(token("b", 8, json!(-0.6))),
        second(finish("stop")),
        finish("length"),
    ];
    let (_, turn) = whole_stream(&facts, &vllm(&both, 2));
    assert_eq!(turn.flags, [Flag::MultipleChoices, Flag::Truncated]);
    let ids: Vec<_> = turn
        .completions
        .iter()
        .map(|choice| (choice.index, choice.token_ids.clone()))
        .collect();
    assert_eq!(ids, [(0, vec![7]), (1, vec![8])]);
    assert_eq!(document(&turn)["choices"][1]["message"]["content"], "b");
}

#[test]
fn trap_06_one_of_two_choices_that_never_ends_is_a_cut() {
    let facts = prepare(r#"{"messages":[],"stream":true,"n":2}"#, &rules()).facts;
    let mut second = token("b", 8, json!(-0.6));
    second["index"] = json!(1);
    let (agent, turn) = whole_stream(
        &facts,
        &vllm(&[token("a", 7, json!(-0.5)), second, finish("stop")], 2),
    );
    assert_eq!(turn.end, CallEnd::UpstreamCut);
    assert!(!String::from_utf8(agent).unwrap().contains("[DONE]"));
}

#[test]
fn trap_03_entries_are_kept_as_they_came_unless_that_is_no_json() {
    let mut facts = prepare(r#"{"messages":[]}"#, &rules()).facts;
    facts.keep_entries = true;
    for (token, kept) in [
        (r"\u0010\ud83c\udf89\\", r"\u0010\ud83c\udf89\\"),
        (r"\ud83c", "\u{fffd}"),
        (r"\q", "q"),
    ] {
        let entries = |token| {
            let top = format!(r#"[{{"token":"{token}","logprob":-0.5}}]"#);
            format!(r#"[{{"token":"a","logprob":-0.5,"top_logprobs":{top}}}]"#)
        };
        let content = entries(token);
        let body = format!(
            r#"{{"choices":[{{"index":0,"message":{{}},"logprobs":{{"content":{content}}},"finish_reason":"stop"}}]}}"#
        );
        let (_, captured) = CHAT.unary(&body.into(), &facts);
        assert_eq!(captured.entries, entries(kept), "{token}");
    }
}

/// Facts of an agent that asked for log-probabilities itself.
fn asked(members: &str) -> RequestFacts {
    prepare(&format!(r#"{{"messages":[],"stream":true,{members}}}"#), &rules()).facts
}

#[test]
fn trap_07_an_agent_that_asked_keeps_logprobs_and_its_number_of_alternatives() {
    let (agent, turn) = whole_stream(
        &asked(r#""logprobs":true,"top_logprobs":2"#),
        &response("vllm-0.32.0/hi_stream_lp5_ids"),
    );
    let mut entries = 0;
    for data in data_of(&agent).iter().filter(|data| *data != "[DONE]") {
        let event: Value = serde_json::from_str(data).unwrap();
        let choice = &event["choices"][0];
        assert!(choice["token_ids"].is_null() && event["prompt_token_ids"].is_null());
        for entry in choice["logprobs"]["content"].as_array().into_iter().flatten() {
            entries += 1;
            let top = entry["top_logprobs"].as_array().unwrap();
            assert_eq!(top.len(), 2);
            assert_eq!(top[0]["logprob"], entry["logprob"]);
        }
    }
    assert_eq!(
        entries, 27,
        "an entry for each token, those that show nothing too"
    );
    assert!(document(&turn)["choices"][0].get("logprobs").is_none());
}

#[test]
fn trap_07_an_agent_that_asked_without_a_number_gets_no_alternatives() {
    let (agent, _) = whole_stream(
        &asked(r#""logprobs":true"#),
        &response("vllm-0.32.0/hi_stream_lp5_ids"),
    );
    let agent = String::from_utf8(agent).unwrap();
    assert_eq!(agent.matches("\"top_logprobs\":[]").count(), 27);
    let unary_facts = prepare(r#"{"messages":[],"logprobs":true}"#, &rules()).facts;
    let (agent, _) = CHAT.unary(&response("vllm-0.32.0/hi_unary_lp5_ids").into(), &unary_facts);
    let agent: Value = serde_json::from_slice(&agent).unwrap();
    assert_eq!(
        agent["choices"][0]["logprobs"]["content"][26]["top_logprobs"],
        json!([])
    );
    assert_eq!(agent["choices"][0]["token_ids"], Value::Null);
}

#[test]
fn trap_07_an_agent_that_asked_for_ids_keeps_them() {
    let text = response("vllm-0.32.0/hi_stream_ids");
    let (agent, turn) = whole_stream(
        &asked(r#""return_token_ids":true,"stream_options":{"include_usage":true}"#),
        &text,
    );
    assert_eq!(agent, text);
    assert_eq!(turn.completions[0].token_ids.len(), 27);
}

#[test]
fn trap_07_without_asking_nothing_is_stripped() {
    let facts = prepare(
        r#"{"messages":[],"stream":true,"stream_options":{"include_usage":true}}"#,
        &RequestRules {
            ask: Ask::Nothing,
            ..RequestRules::default()
        },
    )
    .facts;
    let text = response("llamacpp-b10434/chat_stream_logprobs");
    assert_eq!(whole_stream(&facts, &text).0, text);
}

#[test]
fn trap_07_a_count_that_is_ours_goes_and_its_members_move_back() {
    let (agent, turn) = whole_stream(&streamed(), &response("vllm-0.32.0/hi_stream_lp5_ids"));
    let data = data_of(&agent);
    assert!(data.iter().all(|data| !data.contains("\"usage\"")));
    assert!(
        data[data.len() - 2].ends_with(r#"}],"system_fingerprint":"vllm-0.32.0-98d5f267"}"#),
        "{data:?}"
    );
    assert_eq!(document(&turn)["usage"]["completion_tokens"], 27);
    assert_eq!(document(&turn)["system_fingerprint"], "vllm-0.32.0-98d5f267");
}

#[test]
fn trap_07_counts_an_agent_asked_for_in_every_event_stay() {
    let facts = asked(r#""stream_options":{"include_usage":true,"continuous_usage_stats":true}"#);
    let text = response("vllm-0.32.0/hi_stream_continuous_usage");
    let (agent, turn) = whole_stream(&facts, &text);
    // The recording was made without ids, so nothing is cut from it.
    assert_eq!(agent, text);
    assert_eq!(turn.usage.unwrap().completion_tokens, 27);
    assert_eq!(turn.usage.unwrap().reasoning_tokens, Some(17));
}

#[test]
fn trap_07_an_empty_count_in_every_event_is_ours_too() {
    let text = events(&[
        r#"{"choices":[{"index":0,"delta":{"content":"x"},"finish_reason":null}],"usage":null}"#,
        r#"{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}],"usage":null}"#,
        r#"{"choices":[],"usage":{"completion_tokens":1}}"#,
        "[DONE]",
    ]);
    let (agent, turn) = whole_stream(&streamed(), &text);
    let plain = [
        r#"{"choices":[{"index":0,"delta":{"content":"x"},"finish_reason":null}]}"#,
        r#"{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#,
        "[DONE]",
    ];
    assert_eq!(
        String::from_utf8(agent).unwrap(),
        String::from_utf8(events(&plain)).unwrap()
    );
    assert_eq!(turn.usage.unwrap().completion_tokens, 1);
}

#[test]
fn trap_07_captured_members_anywhere_in_a_choice_are_cut() {
    for choice in [
        r#"{"logprobs":{"content":[]},"index":0,"delta":{"content":"x"},"finish_reason":null}"#,
        r#"{"index":0,"logprobs":{"content":[]},"delta":{"content":"x"},"finish_reason":null}"#,
        r#"{"index":0,"delta":{"content":"x"},"finish_reason":null, "logprobs" : {"content":[]}}"#,
        r#"{"logprobs":{"content":[]},"prompt_token_ids":[1],"index":0,"delta":{"content":"x"},"finish_reason":null}"#,
    ] {
        let (agent, _) = whole_stream(&streamed(), &events(&[&format!(r#"{{"choices":[{choice}]}}"#)]));
        let data = data_of(&agent);
        let event: Value = serde_json::from_str(&data[0]).unwrap();
        assert_eq!(
            event["choices"][0],
            json!({"index": 0, "delta": {"content": "x"}, "finish_reason": null}),
            "{choice}"
        );
    }
}

#[test]
fn trap_08_interleaved_tool_calls_are_merged_by_index() {
    let call = |call: Value| json!({"index": 0, "delta": {"tool_calls": [call]}, "finish_reason": null});
    let turn = captured(&vllm(
        &[
            call(
                json!({"index": 0, "id": "a", "type": "function", "function": {"name": "read", "arguments": ""}}),
            ),
            call(
                json!({"index": 1, "id": "b", "type": "function", "function": {"name": "bash", "arguments": "{\"c\""}}),
            ),
            call(json!({"index": 0, "function": {"arguments": "{\"path\": "}})),
            call(json!({"index": 1, "function": {"arguments": ":\"ls\"}"}})),
            call(json!({"index": 0, "id": "", "function": {"name": null, "arguments": "\"é\\n\"}"}})),
            finish("tool_calls"),
        ],
        0,
    ));
    let message = &document(&turn)["choices"][0]["message"];
    assert_eq!(
        message["tool_calls"],
        json!([
            {"id": "a", "type": "function", "function": {"name": "read", "arguments": "{\"path\": \"é\\n\"}"}},
            {"id": "b", "type": "function", "function": {"name": "bash", "arguments": "{\"c\":\"ls\"}"}},
        ])
    );
    assert_eq!(message["content"], Value::Null);
}

#[test]
fn trap_08_calls_without_an_index_are_told_by_id() {
    let call = |call: Value| json!({"index": 0, "delta": {"tool_calls": [call]}, "finish_reason": null});
    let turn = captured(&vllm(
        &[
            call(json!({"id": "a", "function": {"name": "one", "arguments": {"x": 1}}})),
            call(json!({"id": "b", "function": {"name": "two", "arguments": "{"}})),
            call(json!({"function": {"arguments": "}"}})),
            finish("tool_calls"),
        ],
        0,
    ));
    let calls = &document(&turn)["choices"][0]["message"]["tool_calls"];
    assert_eq!(
        calls[0]["function"],
        json!({"name": "one", "arguments": "{\"x\":1}"})
    );
    assert_eq!(calls[1]["function"], json!({"name": "two", "arguments": "{}"}));
}

#[test]
fn trap_09_reasoning_of_either_name_is_kept_in_order() {
    for name in ["reasoning_content", "reasoning"] {
        let think = |text: &str| json!({"index": 0, "delta": {name: text}, "finish_reason": null});
        let turn = captured(&vllm(
            &[
                think("I "),
                think("think"),
                token("so", 7, json!(-1)),
                finish("stop"),
            ],
            1,
        ));
        let message = &document(&turn)["choices"][0]["message"];
        assert_eq!(message[name], "I think");
        let names: Vec<_> = message.as_object().unwrap().keys().cloned().collect();
        assert_eq!(names, ["role", name, "content"]);
    }
}

#[test]
fn trap_10_a_stream_without_finish_reason_is_a_cut_and_never_ends_cleanly() {
    let (agent, turn) = whole_stream(&streamed(), &vllm(&[token("a", 7, json!(-0.5))], 1));
    assert_eq!(turn.end, CallEnd::UpstreamCut);
    assert_eq!(
        turn.error.as_deref(),
        Some("the endpoint's stream ended without a finish_reason")
    );
    assert!(!String::from_utf8(agent).unwrap().contains("[DONE]"));
    assert_eq!(turn.completions[0].token_ids, [7], "what came is kept");
}

#[test]
fn trap_10_a_stream_that_breaks_after_finish_reason_is_a_cut() {
    let text = vllm(&[token("a", 7, json!(-0.5)), finish("stop")], 1);
    let end = text.len() - "data: [DONE]\n\n".len();
    assert_eq!(
        stream(&streamed(), [&text[..end]], StreamEnd::Cut).1.end,
        CallEnd::UpstreamCut
    );
    assert_eq!(
        stream(&streamed(), [&text[..]], StreamEnd::Cut).1.end,
        CallEnd::Complete
    );
}

#[test]
fn trap_10_a_missing_last_event_after_finish_reason_does_no_harm() {
    let text = vllm(&[token("a", 7, json!(-0.5)), finish("stop")], 1);
    let end = text.len() - "data: [DONE]\n\n".len();
    let (_, turn) = whole_stream(&streamed(), &text[..end]);
    assert_eq!((turn.end, turn.flags), (CallEnd::Complete, vec![]));
}

#[test]
fn trap_10_a_last_event_without_its_blank_line_is_read() {
    let text = vllm(&[token("a", 7, json!(-0.5)), finish("stop")], 1);
    let (agent, turn) = whole_stream(&streamed(), &text[..text.len() - 2]);
    assert_eq!(turn.end, CallEnd::Complete);
    assert!(agent.ends_with(b"data: [DONE]\n\n"));
}

#[test]
fn trap_10_a_piece_of_an_event_does_not_reach_the_agent() {
    let text = vllm(&[token("a", 7, json!(-0.5))], 1);
    let cut = text.len() - "data: [DONE]\n\n".len() - 30;
    let (agent, turn) = stream(&streamed(), [&text[..cut]], StreamEnd::EndOfBody);
    assert_eq!(turn.end, CallEnd::UpstreamCut);
    assert!(turn.flags.contains(&Flag::CaptureIncomplete));
    assert!(agent.ends_with(b"\n\n"));
    assert_eq!(content(&agent), "a");
}

#[test]
fn trap_10_nothing_at_all_is_a_cut() {
    let (agent, turn) = whole_stream(&streamed(), b"");
    assert_eq!((turn.end, turn.level), (CallEnd::UpstreamCut, CaptureLevel::Text));
    assert!(agent.is_empty() && turn.response.is_empty());
}

#[test]
fn trap_11_an_error_event_in_a_good_stream_is_passed_on() {
    let error = r#"{"error":{"message":"the engine died","type":"InternalServerError","code":500}}"#;
    let text = [
        events(&[r#"{"choices":[{"index":0,"delta":{"content":"x"}}]}"#]),
        events(&[error, "[DONE]"]),
    ]
    .concat();
    let (agent, turn) = whole_stream(&streamed(), &text);
    assert_eq!(turn.end, CallEnd::UpstreamError);
    assert_eq!(turn.error.as_deref(), Some("the engine died"));
    assert_eq!(agent, text);
    assert_eq!(document(&turn)["error"]["code"], 500);
}

#[test]
fn trap_11_an_event_named_error_is_one() {
    let text = b"event: error\ndata: {\"message\":\"overloaded\"}\n\n";
    let (agent, turn) = whole_stream(&streamed(), text);
    assert_eq!(turn.end, CallEnd::UpstreamError);
    assert_eq!(agent, text);
}

#[test]
fn trap_11_a_bad_status_keeps_the_body() {
    for (name, status, message) in [
        (
            "vllm-0.32.0/err_model_404",
            404,
            "The model `nope` does not exist. Valid aliases: tiny.",
        ),
        (
            "llamacpp-b10434/chat_stream_tools_required",
            400,
            "logprobs is not supported with tools + stream",
        ),
    ] {
        let body = response(name);
        let (shown, turn) = CHAT.refused_reply(status, &body.clone().into());
        assert_eq!(shown, None);
        assert_eq!(turn.end, CallEnd::UpstreamError);
        assert_eq!(
            turn.error,
            Some(format!("the endpoint answered {status}: {message}"))
        );
        assert_eq!(turn.response, body);
    }
}

#[test]
fn trap_11_html_in_the_place_of_json_is_an_error() {
    let body = "<html>502 Bad Gateway</html>";
    let (agent, turn) = CHAT.unary(&body.into(), &unary());
    assert_eq!(agent, body);
    assert_eq!(turn.end, CallEnd::UpstreamError);
    let message = "the endpoint's reply is not JSON: unexpected character at byte 0";
    assert_eq!(turn.error.as_deref(), Some(message));
}

#[test]
fn trap_11_an_error_with_a_good_status_is_an_error() {
    let body = r#"{"error":{"message":"no"},"choices":[]}"#;
    let (agent, turn) = CHAT.unary(&body.into(), &unary());
    assert_eq!(
        (agent.as_ref(), turn.end),
        (body.as_bytes(), CallEnd::UpstreamError)
    );
    assert_eq!(turn.error.as_deref(), Some("no"));
    let (_, turn) = CHAT.unary(&r#"{"choices":[]}"#.into(), &unary());
    assert_eq!(turn.error.as_deref(), Some("the endpoint's reply has no choice"));
}

#[test]
fn trap_12_an_agent_that_left_leaves_what_was_received() {
    let text = vllm(&[token("a", 7, json!(-0.5)), token("b", 8, json!(-0.5))], 2);
    let (_, turn) = stream(&streamed(), [&text[..]], StreamEnd::DownstreamGone);
    assert_eq!(turn.end, CallEnd::DownstreamGone);
    assert_eq!(turn.completions[0].token_ids, [7, 8]);
}

#[test]
fn trap_18_oddities_of_streams_reach_the_agent_well_formed() {
    let text = concat!(
        ": connected\r\n\r\n",
        "data: null\r\n\r\n",
        "data: {\"choices\":null}\r\n\r\n",
        "data:{\"choices\":[{\"index\":0,\"delta\":{\"role\":\"\",\"content\":\"caf\"}}]}\r\n\r\n",
        "data: {\"choices\":[{\"index\":0,\r\ndata: \"delta\":{\"content\":\"é\"}}]}\r\n\r\n",
        "data: {\"choices\":[{\"index\":0,\"delta\":null,\"finish_reason\":\"stop\"}]}\r\n\r\n",
        "data: {\"choices\":[],\"usage\":{\"completion_tokens\":2}}\r\n\r\n",
        "data: [DONE]\r\n\r\n",
    );
    let (agent, turn) = whole_stream(&streamed(), text.as_bytes());
    let expected = concat!(
        ": connected\r\n\r\n",
        "data: {\"choices\":[]}\r\n\r\n",
        "data:{\"choices\":[{\"index\":0,\"delta\":{\"content\":\"caf\"}}]}\r\n\r\n",
        "data: {\"choices\":[{\"index\":0,\r\ndata: \"delta\":{\"content\":\"é\"}}]}\r\n\r\n",
        "data: {\"choices\":[{\"index\":0,\"delta\":null,\"finish_reason\":\"stop\"}]}\r\n\r\n",
        "data: [DONE]\r\n\r\n",
    );
    assert_eq!(String::from_utf8(agent).unwrap(), expected);
    assert_eq!(document(&turn)["choices"][0]["message"]["content"], "café");
    assert_eq!(turn.end, CallEnd::Complete);
}

#[test]
fn trap_18_a_character_in_two_halves_is_whole_in_what_is_stored() {
    let half = |text: &str| format!(r#"{{"choices":[{{"index":0,"delta":{{"content":"{text}"}}}}]}}"#);
    let (one, other) = (half(r"\ud83c"), half(r"\udf89"));
    let end = r#"{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#;
    let turn = captured(&events(&[&one, &other, end, "[DONE]"]));
    assert_eq!(document(&turn)["choices"][0]["message"]["content"], "🎉");
    let turn = captured(&events(&[&one, end, "[DONE]"]));
    assert_eq!(document(&turn)["choices"][0]["message"]["content"], "\u{fffd}");
}

#[test]
fn trap_18_several_lines_of_data_are_cut_as_one() {
    let text = b"id: 5\ndata: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"x\"},\ndata: \"logprobs\":{\"content\":[]}}]}\n\n";
    let (agent, _) = whole_stream(&streamed(), text);
    let expected = "id: 5\ndata: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"x\"}}]}\n\n";
    assert_eq!(String::from_utf8(agent).unwrap(), expected);
}

#[test]
fn trap_19_a_count_beside_a_choice_is_kept() {
    let text = events(&[
        r#"{"choices":[{"index":0,"delta":{"content":"x"},"finish_reason":"stop"}],"usage":{"completion_tokens":1}}"#,
        "[DONE]",
    ]);
    let (agent, turn) = whole_stream(&streamed(), &text);
    assert_eq!(turn.usage.unwrap().completion_tokens, 1);
    assert_eq!(document(&turn)["usage"]["completion_tokens"], 1);
    assert_eq!(content(&agent), "x");
    let (agent, _) = whole_stream(&asked(r#""stream_options":{"include_usage":true}"#), &text);
    assert_eq!(agent, text);
}

#[test]
fn trap_20_a_turn_cut_by_its_limit_is_flagged_and_trainable() {
    let turn = captured(&vllm(&[token("a", 7, json!(-0.5)), finish("length")], 1));
    assert_eq!(
        (turn.level, &turn.flags),
        (CaptureLevel::Tokens, &vec![Flag::Truncated])
    );
    assert!(turn.flags.iter().all(|flag| !flag.blocks_training()));
}

#[test]
fn trap_28_an_event_of_five_megabytes_passes_in_small_chunks() {
    let long = "ä".repeat(5 << 19);
    let text = vllm(&[token(&long, 7, json!(-0.5)), finish("stop")], 1);
    let (agent, turn) = stream(&streamed(), text.chunks(16 << 10), StreamEnd::EndOfBody);
    assert_eq!(content(&agent), long);
    assert_eq!((turn.end, turn.flags), (CallEnd::Complete, vec![]));
}

#[test]
fn trap_28_an_event_over_the_limit_is_a_named_error() {
    let mut capture = CHAT.stream(&streamed(), 1000);
    let mut out = bytes::BytesMut::new();
    let text = format!("data: {}", "x".repeat(2000));
    let result: Result<(), StreamError> = text
        .as_bytes()
        .chunks(300)
        .try_for_each(|chunk| capture.push(chunk, &mut out));
    let error = result.unwrap_err();
    assert_eq!(
        error.to_string(),
        "an event of the endpoint's stream is larger than 1000 bytes"
    );
    let turn = capture.finish(StreamEnd::Cut, &mut out);
    assert_eq!(turn.end, CallEnd::UpstreamCut);
    assert_eq!(turn.flags, [Flag::CaptureIncomplete]);
    assert!(out.is_empty());
}

#[test]
fn trap_28_a_reply_of_fifty_megabytes_shares_its_bytes() {
    let content = "x".repeat(50 << 20);
    let body = bytes::Bytes::from(format!(
        r#"{{"choices":[{{"index":0,"message":{{"role":"assistant","content":"{content}"}},"logprobs":null,"finish_reason":"stop"}}],"usage":{{"completion_tokens":1}}}}"#
    ));
    let (agent, turn) = CHAT.unary(&body, &unary());
    assert_eq!(
        agent.as_ptr(),
        body.as_ptr(),
        "nothing was cut, so nothing is copied"
    );
    assert_eq!(turn.response.as_ptr(), body.as_ptr());
    assert_eq!(turn.end, CallEnd::Complete);
}

#[test]
fn a_malformed_event_is_passed_on_and_the_capture_says_so() {
    let text = [
        events(&[r#"{"choices":[{"index":0,"delta":{"content":"x"}}]}"#, "{broken"]),
        events(&[
            r#"{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#,
            "[DONE]",
        ]),
    ]
    .concat();
    let (agent, turn) = whole_stream(&streamed(), &text);
    assert_eq!(agent, text);
    assert!(turn.flags.contains(&Flag::CaptureIncomplete));
}

#[test]
fn a_held_event_is_released_on_demand() {
    let text = vllm(&[token("a", 7, json!(-0.5)), finish("stop")], 1);
    let text = String::from_utf8(text).unwrap();
    let (before, after) = text.split_at(text.find("\"choices\":[],\"usage\"").unwrap());
    let (before, rest) = before.split_at(before.rfind("data: ").unwrap());
    let mut capture = CHAT.stream(&streamed(), EVENT_LIMIT_BYTES);
    let mut out = bytes::BytesMut::new();
    capture.push(before.as_bytes(), &mut out).unwrap();
    assert!(capture.holds() && capture.seen().finished);
    let held_back = out.len();
    capture.release(&mut out);
    assert!(out.len() > held_back && !capture.holds());
    capture.push(rest.as_bytes(), &mut out).unwrap();
    capture.push(after.as_bytes(), &mut out).unwrap();
    assert_eq!(
        capture.finish(StreamEnd::EndOfBody, &mut out).end,
        CallEnd::Complete
    );
    assert!(out.ends_with(b"data: [DONE]\n\n"));
}

#[test]
fn alternatives_are_kept_up_to_the_rule() {
    let facts = RequestFacts {
        keep_top_logprobs: 2,
        ..streamed()
    };
    let (_, turn) = whole_stream(&facts, &response("vllm-0.32.0/hi_stream_lp5_ids"));
    let top = &turn.completions[0].top_logprobs;
    assert_eq!(top.len(), 27);
    assert!(top.iter().all(|top| top.len() == 2));
    assert_eq!(
        (top[0][1].token.as_str(), top[0][1].logprob),
        ("1", -6.829626560211182)
    );
    let (_, turn) = whole_stream(&facts, &response("llamacpp-b10434/chat_stream_logprobs"));
    assert_eq!(turn.completions[0].top_logprobs[0][1].token_id, Some(226));
}

#[test]
fn reasoning_that_was_to_be_left_out_is_taken_out_again() {
    let hidden = prepare(
        r#"{"messages":[],"stream":true,"include_reasoning":false}"#,
        &rules(),
    )
    .facts;
    assert!(hidden.reasoning_hidden);
    let (agent, turn) = whole_stream(&hidden, &response("vllm-0.32.0/list_tools_stream_lp5_ids"));
    let deltas = |stream: &[u8]| -> Vec<Value> {
        let events = data_of(stream)
            .into_iter()
            .filter_map(|data| serde_json::from_str::<Value>(&data).ok());
        let deltas = events.filter_map(|event| event.pointer("/choices/0/delta").cloned());
        deltas
            .map(|mut delta| {
                delta
                    .as_object_mut()
                    .unwrap()
                    .retain(|name, _| name != "reasoning");
                if let Some(call) = delta.pointer_mut("/tool_calls/0") {
                    call.as_object_mut().unwrap().remove("id");
                }
                delta
            })
            .collect()
    };
    assert!(
        !String::from_utf8(agent.clone())
            .unwrap()
            .contains("\"reasoning\":\"")
    );
    assert_eq!(
        deltas(&agent),
        deltas(&response("vllm-0.32.0/list_tools_no_include_reasoning_stream"))
    );
    assert_eq!(
        document(&turn)["choices"][0]["message"]["reasoning"],
        "\nI should run ls.\n"
    );
    assert_eq!((turn.level, turn.flags), (CaptureLevel::Tokens, vec![]));
}
