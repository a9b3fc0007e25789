//! What agents and endpoints send that is not as it should be, in every dialect: an error in its own shape, or a turn that
//! says what is wrong with it.

use super::every_trap::{Case, arguments, call, everywhere, finish, says};
use super::recordings::*;
use super::speakers::speakers;
use bytes::Bytes;
use dressage_wire::call::{CallEnd, Flag};
use dressage_wire::capture::StreamEnd;
use serde_json::{Value, json};

/// What an agent hands back of a reply, as its next request.
fn handed_back(case: &Case, response: &[u8]) -> Value {
    let reply: Value = serde_json::from_slice(response).unwrap();
    match case.speaker.name {
        "messages" => json!({"messages": [
            {"role": "user", "content": "hi"}, {"role": "assistant", "content": reply["content"]},
            {"role": "user", "content": "go on"}]}),
        "responses" => {
            let mut input = vec![json!({"role": "user", "content": "hi"})];
            input.extend(reply["output"].as_array().unwrap().iter().cloned());
            json!({"input": input})
        }
        "generate_content" => json!({"contents": [
            {"role": "user", "parts": [{"text": "hi"}]}, reply["candidates"][0]["content"]]}),
        _ => json!({"messages": [{"role": "user", "content": "hi"}, reply["choices"][0]["message"]]}),
    }
}

#[test]
fn arguments_that_are_no_json_are_handed_over_and_come_back_as_they_were() {
    for broken in [
        "{\"a\"",
        "not JSON",
        "[1, 2]",
        "\"text\"",
        "{\"INVALID_JSON\": \"x\"}",
        "{\"a\": NaN}",
    ] {
        let choices = [call(0, "call_a", "f", broken), finish("tool_calls")];
        for case in everywhere() {
            let (said, turn) = case.hears(&choices, 1);
            assert_eq!(
                (turn.end, said.ended),
                (CallEnd::Complete, true),
                "{case}: {broken}"
            );
            assert_eq!(
                (said.calls[0].0.as_str(), said.calls[0].1.as_str()),
                ("call_a", "f"),
                "{case}"
            );
            let (sent, _) = case.asks(handed_back(&case, &turn.response), &rules());
            let back = sent["messages"][1]["tool_calls"][0]["function"]["arguments"]
                .as_str()
                .unwrap();
            if broken.contains("INVALID_JSON") {
                // Arguments that look as ours do are read as ours.
                assert!(back == broken || back == "x", "{case}: {back}");
            } else {
                assert_eq!(back, broken, "{case}");
            }
        }
    }
}

#[test]
fn arguments_that_are_nested_deeply_pass() {
    let deep = format!("{{\"a\": {}1{}}}", "[".repeat(100_000), "]".repeat(100_000));
    for case in everywhere() {
        let facts = case.speaker.facts(case.streamed);
        let text = case.body(&[call(0, "call_a", "f", &deep), finish("tool_calls")], 1);
        let end = if case.streamed {
            case.speaker
                .stream(&facts, [text.as_slice()], StreamEnd::EndOfBody)
                .1
                .end
        } else {
            case.speaker.dialect.whole(&Bytes::from(text), &facts).1.end
        };
        assert_eq!(end, CallEnd::Complete, "{case}");
    }
}

#[test]
fn calls_with_the_same_id_are_told_apart() {
    let choices = [
        call(0, "call_a", "read", "{\"n\": 1}"),
        call(1, "call_a", "write", "{\"n\": 2}"),
        call(2, "call_a", "list", "{\"n\": 3}"),
        finish("tool_calls"),
    ];
    for case in everywhere() {
        let (said, turn) = case.hears(&choices, 3);
        assert_eq!(turn.end, CallEnd::Complete, "{case}");
        let calls: Vec<_> = said
            .calls
            .iter()
            .map(|(_, name, value)| (name.as_str(), arguments(value)["n"].clone()))
            .collect();
        assert_eq!(
            calls,
            [("read", json!(1)), ("write", json!(2)), ("list", json!(3))],
            "{case}"
        );
        // Chat completions are passed on as they came.
        if case.speaker.name != "chat_completions" {
            let mut ids: Vec<_> = said.calls.iter().map(|call| call.0.as_str()).collect();
            assert_eq!(ids[0], "call_a", "{case}");
            ids.sort_unstable();
            ids.dedup();
            assert_eq!(ids.len(), 3, "{case}");
            let kept = case.speaker.read_document(&turn.response);
            assert_eq!(kept.calls, said.calls, "{case}");
        }
    }
}

#[test]
fn what_is_wrong_with_a_request_is_named_by_its_place() {
    for (name, body, message) in [
        (
            "messages",
            json!({"messages": [{"role": "wizard", "content": "x"}]}),
            "messages[0].role is not `user`, `assistant` or `system`",
        ),
        (
            "messages",
            json!({"messages": [{"role": "user", "content": 7}]}),
            "messages[0].content is not a string or a list of blocks",
        ),
        (
            "messages",
            json!({"messages": [{"role": "user", "content": [{"type": "text", "text": 7}]}]}),
            "messages[0].content[0].text is not a string",
        ),
        (
            "messages",
            json!({"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": [7]}]}]}),
            "messages[0].content[0].content[0] is not an object",
        ),
        (
            "messages",
            json!({"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "base64", "data": "x"}}]}]}),
            "messages[0].content[0].source.media_type is not a string",
        ),
        (
            "messages",
            json!({"messages": []}),
            "messages is not a conversation with something in it",
        ),
        (
            "messages",
            json!({}),
            "messages is not a conversation with something in it",
        ),
        (
            "messages",
            json!({"messages": [7]}),
            "messages[0] is not an object",
        ),
        ("messages", json!({"messages": {}}), "messages is not an array"),
        (
            "responses",
            json!({"input": [{"role": "wizard", "content": "x"}]}),
            "input[0].role is not `user`, `assistant`, `system` or `developer`",
        ),
        (
            "responses",
            json!({"input": [{"type": "function_call", "name": "f"}]}),
            "input[0].call_id is not a string",
        ),
        (
            "responses",
            json!({"input": [{"type": "custom_tool_call", "call_id": "a", "name": "f", "input": {}}]}),
            "input[0].input is not a string",
        ),
        (
            "responses",
            json!({"input": []}),
            "input is not a conversation with something in it",
        ),
        (
            "responses",
            json!({"input": "x", "stream": "yes"}),
            "stream is not a boolean",
        ),
        (
            "generate_content",
            json!({"contents": [{"role": "wizard", "parts": []}]}),
            "contents[0].role is not `user` or `model`",
        ),
        (
            "generate_content",
            json!({"contents": [{"parts": [{"functionResponse": {}}]}]}),
            "contents[0].parts[0].functionResponse.name is not a string",
        ),
        (
            "generate_content",
            json!({"contents": []}),
            "contents is not a conversation with something in it",
        ),
        (
            "generate_content",
            json!({"contents": [{"parts": [{"inlineData": {"data": "x"}}]}]}),
            "contents[0].parts[0].inlineData.mimeType is not a string",
        ),
    ] {
        let speaker = super::speakers::speaker(name);
        let body = Bytes::from(body.to_string());
        let error = speaker
            .dialect
            .prepare(&speaker.target(false), &body, &rules())
            .unwrap_err();
        assert_eq!(error.to_string(), message, "{name}: {body:?}");
        let told = speaker.dialect.error_body(400, message, "invalid_request_error");
        assert_eq!(
            speaker.read_document(&told).error.as_deref(),
            Some(message),
            "{name}"
        );
    }
}

#[test]
fn messages_that_say_nothing_pass() {
    for (name, body, messages) in [
        (
            "messages",
            json!({"messages": [{"role": "user", "content": ""}, {"role": "assistant", "content": []}, {"role": "user"}]}),
            json!([{"role": "user", "content": ""}, {"role": "assistant", "content": ""}, {"role": "user", "content": ""}]),
        ),
        (
            "responses",
            json!({"input": [{"role": "user", "content": ""}, {"role": "user", "content": []}]}),
            json!([{"role": "user", "content": ""}, {"role": "user", "content": ""}]),
        ),
        (
            "generate_content",
            json!({"contents": [{"role": "user", "parts": []}, {"role": "model"}, {"parts": [{"text": ""}]}]}),
            json!([{"role": "user", "content": ""}, {"role": "assistant", "content": ""}, {"role": "user", "content": ""}]),
        ),
    ] {
        let speaker = super::speakers::speaker(name);
        let body = speaker.body_with(false, body);
        let sent: Value = serde_json::from_slice(&speaker.prepare(false, &body, &rules()).body).unwrap();
        assert_eq!(sent["messages"], messages, "{name}");
    }
}

#[test]
fn a_pretty_request_makes_no_stream_of_many_lines() {
    for speaker in speakers() {
        let body = match speaker.name {
            "messages" => include_str!("../rich/messages.json"),
            "responses" => include_str!("../rich/responses.json"),
            "generate_content" => include_str!("../rich/generate_content.json"),
            _ => continue,
        };
        let body = Bytes::from_static(body.as_bytes());
        let facts = speaker
            .dialect
            .prepare(&speaker.target(true), &body, &rules())
            .unwrap()
            .facts;
        let stream = speaker.dialect.assistant_reply("said", &facts, 7);
        assert_eq!(speaker.read_stream(&stream).text, "said", "{}", speaker.name);
    }
}

#[test]
fn bytes_that_are_no_utf8_are_marked_in_what_agents_get() {
    for case in everywhere() {
        let text = case.body(&[says("HALF", 7), finish("stop")], 1);
        let at = text.windows(4).position(|window| window == b"HALF").unwrap();
        let mut text = text;
        text.splice(at..at + 4, [b'a', 0xff, 0xc3, b'b']);
        let facts = case.speaker.facts(case.streamed);
        let response = if case.streamed {
            case.speaker
                .stream(&facts, [text.as_slice()], StreamEnd::EndOfBody)
                .1
                .response
        } else {
            case.speaker.dialect.whole(&Bytes::from(text), &facts).1.response
        };
        let kept = case.speaker.read_document(&response);
        assert_eq!(kept.text, "a\u{fffd}\u{fffd}b", "{case}");
    }
}

#[test]
fn an_event_that_cannot_be_read_is_not_made_good_by_what_follows() {
    let good = super::every_trap::vllm(&[says("a", 7), says("b", 8), finish("stop")], 2);
    let good = String::from_utf8(good).unwrap();
    let broken = good.replacen("{\"content\":\"b\"}", "{\"content\":\"b}", 1);
    assert_ne!(good, broken);
    for speaker in speakers().iter().skip(1) {
        for chunk in [usize::MAX, 50] {
            let facts = speaker.facts(true);
            let chunks = broken.as_bytes().chunks(chunk);
            let (agent, turn) = speaker.stream(&facts, chunks, StreamEnd::EndOfBody);
            let said = speaker.read_stream(&agent);
            assert_eq!(turn.end, CallEnd::UpstreamCut, "{}", speaker.name);
            assert!(!said.ended && said.error.is_some(), "{}: {said:?}", speaker.name);
            assert_eq!(turn.completions[0].token_ids, [7], "{}", speaker.name);
        }
    }
}

#[test]
fn an_error_in_an_event_that_cannot_be_read_is_told() {
    let text = "data: {\"error\":{\"message\":\"m\",\"code\":500}\"object\":\"x\"}\n\ndata: [DONE]\n\n";
    for speaker in speakers().iter().skip(1) {
        let (said, turn) = speaker.hears_stream(text.as_bytes());
        assert_eq!(turn.end, CallEnd::UpstreamError, "{}", speaker.name);
        assert!(said.error.is_some() && !said.ended, "{}: {said:?}", speaker.name);
    }
}

#[test]
fn counts_that_cannot_be_are_not_passed_on() {
    for (usage, total) in [
        (
            json!({"prompt_tokens": 2, "completion_tokens": 3, "completion_tokens_details": {"reasoning_tokens": 26},
            "prompt_tokens_details": {"cached_tokens": 7}}),
            Some((2, 3)),
        ),
        (
            json!({"prompt_tokens": u64::MAX, "completion_tokens": u64::MAX}),
            None,
        ),
    ] {
        for speaker in speakers().iter().skip(1) {
            let body = json!({"id": "c", "choices": [{"index": 0, "message": {"content": "a"}, "finish_reason": "stop"}], "usage": usage});
            let (said, turn) = speaker.hears_document(body.to_string().as_bytes());
            assert_eq!(turn.end, CallEnd::Complete, "{}", speaker.name);
            let said = said.unwrap();
            assert!(
                total.is_none() || said.usage == total,
                "{}: {said:?}",
                speaker.name
            );
        }
    }
}

#[test]
fn numbers_that_google_writes_as_texts_are_numbers_of_json() {
    let parameters = json!({"type": "STRING", "maxLength": "09", "min_length": "+1", "maxItems": "many"});
    let body = json!({"contents": "x", "tools": [{"functionDeclarations": [{"name": "f", "parameters": parameters}]}]});
    let speaker = super::speakers::speaker("generate_content");
    let sent: Value = serde_json::from_slice(&speaker.prepare(false, &body, &rules()).body).unwrap();
    assert_eq!(
        sent["tools"][0]["function"]["parameters"],
        json!({"type": "string", "maxLength": 9, "minLength": 1, "maxItems": "many"})
    );
}

#[test]
fn a_reply_that_gets_its_name_late_keeps_the_one_it_began_with() {
    let event = |id: &str, delta: Value| {
        let mut event = json!({"choices": [{"index": 0, "delta": delta}]});
        if !id.is_empty() {
            event["id"] = json!(id);
        }
        event.to_string()
    };
    let end = json!({"id": "chatcmpl-2", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
        .to_string();
    let text = events(&[
        &event("", json!({"reasoning": "I th"})),
        &event("chatcmpl-1", json!({"reasoning": "ink."})),
        &event("chatcmpl-1", json!({"content": "So."})),
        &end,
        "[DONE]",
    ]);
    for speaker in speakers() {
        let (said, turn) = speaker.hears_stream(&text);
        let said = (said.reasoning.as_str(), said.text.as_str(), turn.end);
        assert_eq!(said, ("I think.", "So.", CallEnd::Complete), "{}", speaker.name);
    }
}

#[test]
fn a_whole_reply_without_a_finish_reason_has_an_end_in_every_dialect() {
    let body = json!({"id": "c", "choices": [{"index": 0, "message": {"content": "a"}}]}).to_string();
    for speaker in speakers().iter().skip(1) {
        let (said, turn) = speaker.hears_document(body.as_bytes());
        let said = said.unwrap();
        assert_eq!(
            said.finish.as_deref(),
            Some(speaker.finishes[0]),
            "{}",
            speaker.name
        );
        assert!(
            turn.flags.contains(&Flag::CaptureIncomplete),
            "{}: {:?}",
            speaker.name,
            turn.flags
        );
    }
}

#[test]
fn halves_of_characters_in_a_request_are_not_echoed() {
    let speaker = super::speakers::speaker("responses");
    let body = r#"{"model":"m","input":"hi","stream":true,"metadata":{"a":"\ud83c"}}"#;
    let facts = speaker
        .dialect
        .prepare(&speaker.target(true), &body.into(), &rules())
        .unwrap()
        .facts;
    let stream = speaker.dialect.assistant_reply("said", &facts, 7);
    assert_eq!(speaker.read_stream(&stream).text, "said");
}

#[test]
fn a_call_without_a_name_does_not_change_the_order_of_blocks() {
    let nameless = call(0, "", "", "{\"a\": 1}");
    let choices = [
        nameless,
        says("text", 8),
        call(0, "call_a", "late", ""),
        finish("stop"),
    ];
    for case in everywhere().into_iter().filter(|case| case.streamed) {
        let (said, turn) = case.hears(&choices, 3);
        assert_eq!(
            (turn.end, said.text.as_str()),
            (CallEnd::Complete, "text"),
            "{case}"
        );
        assert_eq!(said.calls.len(), 1, "{case}");
    }
}
