//! The traps of captured replies that are the same in every dialect, each over the whole registry, streamed and whole.

use super::recordings::*;
use super::speakers::{Said, Speaker, speakers};
use bytes::{Bytes, BytesMut};
use dressage_wire::call::{CallEnd, CaptureLevel, Change, Flag};
use dressage_wire::capture::{Ask, RequestRules, Shown, StreamEnd, StreamForm};
use dressage_wire::dialect::DIALECTS;
use dressage_wire::sampling::Sampling;
use dressage_wire::task::CaptureMode;
use proptest::prelude::*;
use serde_json::{Value, json};

/// A stream of one choice as vLLM sends it: a prompt of two ids, these choices, and a count.
fn vllm(choices: &[Value], completion_tokens: u64) -> Vec<u8> {
    let event = |choices: Value| json!({"id": "chatcmpl-c", "object": "chat.completion.chunk", "created": 7, "model": "m", "choices": choices});
    let mut first =
        event(json!([{"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": null}]));
    first["prompt_token_ids"] = json!([1, 2]);
    let mut last = event(json!([]));
    last["usage"] = json!({"prompt_tokens": 2, "completion_tokens": completion_tokens,
        "prompt_tokens_details": {"cached_tokens": 1}});
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

/// A choice with one token that says this.
fn token(delta: Value, id: u32, logprob: Value) -> Value {
    json!({
        "index": 0,
        "delta": delta,
        "logprobs": {"content": [{"token": "t", "logprob": logprob, "bytes": []}]},
        "finish_reason": null,
        "token_ids": [id],
    })
}

fn says(text: &str, id: u32) -> Value {
    token(json!({"content": text}), id, json!(-0.5))
}

fn finish(reason: &str) -> Value {
    json!({"index": 0, "delta": {}, "logprobs": null, "finish_reason": reason, "token_ids": null})
}

/// What has happened is in the dialect's document too.
fn stored(speaker: &Speaker, response: &[u8]) -> Said {
    speaker.read_document(response)
}

/// Arguments, whichever way the dialect has them.
fn arguments(value: &Value) -> Value {
    match value {
        Value::String(text) => serde_json::from_str(text).unwrap_or_else(|_| value.clone()),
        other => other.clone(),
    }
}

#[test]
fn every_row_of_the_registry_is_spoken_here() {
    assert_eq!(speakers().len(), DIALECTS.len());
    for dialect in DIALECTS {
        assert_eq!(
            speakers()
                .iter()
                .filter(|speaker| speaker.dialect.name() == dialect.name())
                .count(),
            1
        );
    }
}

const STREAMS: [&str; 6] = [
    "hi_stream_lp5_ids",
    "list_tools_stream_lp5_ids",
    "after_tool_tools_stream_lp5_ids",
    "bad_tools_stream_lp5_ids",
    "count_stream_stop_str",
    "hi_stream_len_mid_multibyte",
];

#[test]
fn recorded_streams_say_in_every_dialect_what_they_say_in_chat_completions() {
    for name in STREAMS {
        let text = response(&format!("vllm-0.32.0/{name}"));
        let sent = super::oracle::Reply::of_stream(&text);
        let sent = &sent.choices[0];
        for speaker in speakers() {
            let (said, captured) = speaker.hears_stream(&text);
            let label = format!("{name} in {}", speaker.name);
            assert_eq!(said.text, sent.content, "{label}");
            assert_eq!(said.reasoning, sent.reasoning, "{label}");
            assert!(said.ended && said.error.is_none(), "{label}: {said:?}");
            let heard: Vec<Value> = said.calls.iter().map(|call| arguments(&call.2)).collect();
            let told: Vec<Value> = sent
                .arguments
                .iter()
                .map(|text| arguments(&json!(text)))
                .collect();
            if name != "bad_tools_stream_lp5_ids" {
                assert_eq!(heard, told, "{label}");
            }
            assert_eq!(captured.end, CallEnd::Complete, "{label}");
            assert_eq!(captured.completions[0].token_ids, sent.token_ids, "{label}");
            assert_eq!(captured.completions[0].logprobs, sent.logprobs, "{label}");
            let kept = stored(&speaker, &captured.response);
            assert_eq!(
                (kept.text, kept.reasoning),
                (said.text, said.reasoning),
                "{label}"
            );
            assert_eq!(kept.finish, said.finish, "{label}");
        }
    }
}

#[test]
fn trap_05_whole_replies_are_said_whole_or_replayed_as_streams_in_every_dialect() {
    for name in ["hi_unary_lp5_ids", "list_tools_unary_lp5_ids", "count_unary_len"] {
        let body = Bytes::from(response(&format!("vllm-0.32.0/{name}")));
        let sent = super::oracle::Reply::of_body(&body);
        for speaker in speakers() {
            let label = format!("{name} in {}", speaker.name);
            let (said, captured) = speaker.hears_document(&body);
            let said = said.unwrap();
            assert_eq!(said.text, sent.choices[0].content, "{label}");
            assert_eq!(said.reasoning, sent.choices[0].reasoning, "{label}");
            assert_eq!(
                captured.completions[0].token_ids, sent.choices[0].token_ids,
                "{label}"
            );
            assert_eq!(said.usage.map(|usage| usage.1), sent.completion_tokens, "{label}");
            let buffered = RequestRules {
                capture: CaptureMode::Buffer,
                ..rules()
            };
            let facts = speaker.prepare(true, &speaker.body(true), &buffered).facts;
            assert!(facts.streamed && !facts.upstream_streamed, "{label}");
            let (Shown::Stream(stream), captured) = speaker.dialect.whole(&body, &facts) else {
                panic!("{label} is no stream");
            };
            let replayed = speaker.read_stream(&stream);
            assert_eq!(
                Said {
                    usage: said.usage,
                    ..replayed
                },
                said,
                "{label}"
            );
            assert_eq!(
                captured.completions[0].token_ids, sent.choices[0].token_ids,
                "{label}"
            );
        }
    }
}

#[test]
fn trap_01_ids_in_the_names_of_tokens_in_every_dialect() {
    for speaker in speakers() {
        let mut named = says("a", 0);
        named["token_ids"] = Value::Null;
        named["logprobs"]["content"][0]["token"] = json!("token_id:42");
        let (said, turn) = speaker.hears_stream(&vllm(&[named.clone(), finish("stop")], 1));
        assert_eq!(
            (said.text.as_str(), &turn.completions[0].token_ids),
            ("a", &vec![42])
        );
        named["token_ids"] = json!([43]);
        let (_, turn) = speaker.hears_stream(&vllm(&[named, finish("stop")], 1));
        assert_eq!(turn.flags, [Flag::IdsDisagree], "{}", speaker.name);
    }
}

#[test]
fn trap_02_07_what_is_asked_for_is_captured_and_not_shown_in_every_dialect() {
    let text = vllm(&[says("a", 777), says("b", 888), finish("stop")], 2);
    for speaker in speakers() {
        for streamed in [true, false] {
            let sent: Value =
                serde_json::from_slice(&speaker.prepare(streamed, &speaker.body(streamed), &rules()).body)
                    .unwrap();
            assert_eq!(
                (
                    &sent["logprobs"],
                    &sent["top_logprobs"],
                    &sent["return_token_ids"]
                ),
                (&json!(true), &json!(5), &json!(true)),
                "{}",
                speaker.name
            );
            assert_eq!(sent["messages"], json!([{"role": "user", "content": "hi"}]));
            assert_eq!(sent.get("stream_options").is_some(), streamed);
        }
        let (agent, turn) = speaker.stream(&speaker.facts(true), [text.as_slice()], StreamEnd::EndOfBody);
        assert_eq!(
            (turn.level, turn.flags),
            (CaptureLevel::Tokens, vec![]),
            "{}",
            speaker.name
        );
        assert_eq!(turn.prompt_token_ids, Some(vec![1, 2]));
        let agent = String::from_utf8(agent).unwrap();
        for word in ["777", "888", "-0.5"] {
            assert!(!agent.contains(word), "{}: {agent}", speaker.name);
        }
    }
}

#[test]
fn trap_03_04_05_19_20_what_is_wrong_with_a_turn_is_flagged_in_every_dialect() {
    let mut no_logprob = says("b", 8);
    no_logprob["logprobs"] = Value::Null;
    let with_usage = {
        let mut last = json!({"id": "c", "choices": [says("a", 7)], "usage": {"prompt_tokens": 2, "completion_tokens": 1}});
        last["choices"][0]["finish_reason"] = json!("stop");
        last["prompt_token_ids"] = json!([1, 2]);
        events(&[&last.to_string(), "[DONE]"])
    };
    for speaker in speakers() {
        for (text, flags) in [
            (
                vllm(
                    &[
                        says("a", 7),
                        token(json!({"content": "b"}), 8, Value::Null),
                        finish("stop"),
                    ],
                    2,
                ),
                vec![Flag::LogprobInvalid],
            ),
            (
                vllm(&[says("a", 7), no_logprob.clone(), finish("stop")], 2),
                vec![Flag::LengthMismatch],
            ),
            (
                vllm(&[says("a", 7), says("b", 8), finish("stop")], 3),
                vec![Flag::TokensMissing],
            ),
            (
                vllm(&[says("a", 7), says("b", 8), finish("length")], 2),
                vec![Flag::Truncated],
            ),
        ] {
            let (said, turn) = speaker.hears_stream(&text);
            assert_eq!(turn.flags, flags, "{}", speaker.name);
            assert_eq!((said.text.as_str(), said.ended), ("ab", true), "{}", speaker.name);
            let cut = flags == [Flag::Truncated];
            assert_eq!(
                said.finish.as_deref(),
                Some(speaker.finishes[if cut { 2 } else { 0 }])
            );
        }
        let (said, turn) = speaker.hears_stream(&with_usage);
        assert_eq!(
            (turn.flags, said.usage),
            (vec![], Some((2, 1))),
            "{}",
            speaker.name
        );
    }
}

fn call(index: u64, id: &str, name: &str, arguments: &str) -> Value {
    let mut call = json!({"index": index, "function": {"arguments": arguments}});
    if !id.is_empty() {
        call["id"] = json!(id);
        call["type"] = json!("function");
        call["function"]["name"] = json!(name);
    }
    token(json!({"tool_calls": [call]}), 7, json!(-0.5))
}

#[test]
fn trap_08_interleaved_calls_are_merged_in_every_dialect() {
    let text = vllm(
        &[
            says("I call.", 6),
            call(0, "call_a", "read", ""),
            call(0, "", "", "{\"path\":"),
            call(1, "call_b", "write", "{\"x\""),
            call(0, "", "", " \"a\"}"),
            call(1, "", "", ": 1}"),
            call(2, "call_c", "list", ""),
            finish("tool_calls"),
        ],
        7,
    );
    for speaker in speakers() {
        let (said, turn) = speaker.hears_stream(&text);
        let calls: Vec<(&str, &str, Value)> = said
            .calls
            .iter()
            .map(|(id, name, value)| (id.as_str(), name.as_str(), arguments(value)))
            .collect();
        let none = calls.last().unwrap().2.clone();
        assert!(none == json!({}) || none == json!(""), "{}: {none}", speaker.name);
        assert_eq!(
            calls[..2],
            [
                ("call_a", "read", json!({"path": "a"})),
                ("call_b", "write", json!({"x": 1})),
            ],
            "{}",
            speaker.name
        );
        assert_eq!((calls[2].0, calls[2].1), ("call_c", "list"));
        assert_eq!(
            said.finish.as_deref(),
            Some(speaker.finishes[1]),
            "{}",
            speaker.name
        );
        let kept = stored(&speaker, &turn.response);
        assert_eq!(kept.calls.len(), 3, "{}", speaker.name);
        assert_eq!(kept.text, "I call.");
    }
}

#[test]
fn trap_09_reasoning_comes_first_under_either_name_in_every_dialect() {
    for name in ["reasoning", "reasoning_content"] {
        let text = vllm(
            &[
                token(json!({name: "I th"}), 6, json!(-0.5)),
                token(json!({name: "ink."}), 7, json!(-0.5)),
                says("So.", 8),
                finish("stop"),
            ],
            3,
        );
        for speaker in speakers() {
            let (said, turn) = speaker.hears_stream(&text);
            assert_eq!(
                (said.reasoning.as_str(), said.text.as_str()),
                ("I think.", "So."),
                "{}",
                speaker.name
            );
            let kept = stored(&speaker, &turn.response);
            assert_eq!((kept.reasoning.as_str(), kept.text.as_str()), ("I think.", "So."));
        }
    }
}

#[test]
fn trap_10_a_stream_that_breaks_off_never_ends_well_in_any_dialect() {
    let whole = vllm(&[says("a", 7), says("b", 8), finish("stop")], 2);
    let text = String::from_utf8(whole).unwrap();
    let cut = text.split_inclusive("\n\n").take(3).collect::<String>();
    for speaker in speakers() {
        for (text, end) in [
            (cut.clone(), StreamEnd::EndOfBody),
            (cut.clone(), StreamEnd::Cut),
            (format!("{cut}data: [DONE]\n\n"), StreamEnd::EndOfBody),
            (String::new(), StreamEnd::EndOfBody),
        ] {
            let (agent, turn) = speaker.stream(&speaker.facts(true), [text.as_bytes()], end);
            assert_eq!(turn.end, CallEnd::UpstreamCut, "{}", speaker.name);
            let said = speaker.read_stream(&agent);
            assert!(!said.ended && said.finish.is_none(), "{}: {said:?}", speaker.name);
            assert!(said.error.is_some(), "{}: {said:?}", speaker.name);
        }
    }
}

#[test]
fn trap_11_errors_are_in_the_words_of_every_dialect() {
    let cases: [(u16, &str, [&str; 4]); 5] = [
        (
            401,
            "no key",
            [
                "authentication_error",
                "authentication_error",
                "authentication_error",
                "UNAUTHENTICATED",
            ],
        ),
        (
            429,
            "slow down",
            ["x", "rate_limit_error", "rate_limit_error", "RESOURCE_EXHAUSTED"],
        ),
        (
            529,
            "overloaded",
            ["x", "overloaded_error", "server_error", "UNAVAILABLE"],
        ),
        (
            400,
            "This model's maximum context length is 8",
            [
                "x",
                "invalid_request_error",
                "invalid_request_error",
                "INVALID_ARGUMENT",
            ],
        ),
        (500, "oh", ["x", "api_error", "server_error", "INTERNAL"]),
    ];
    for (status, message, words) in cases {
        let upstream = Bytes::from(
            json!({"error": {"message": message, "type": "BadRequestError", "param": null, "code": status}})
                .to_string(),
        );
        for (position, speaker) in speakers().iter().enumerate().skip(1) {
            let (shown, turn) = speaker.dialect.refused_reply(status, &upstream);
            let body: Value = serde_json::from_slice(&shown.unwrap()).unwrap();
            assert!(
                body["error"]["message"].as_str().unwrap().ends_with(message),
                "{body}"
            );
            let kind = match speaker.name {
                "generate_content" => &body["error"]["status"],
                _ => &body["error"]["type"],
            };
            assert_eq!(kind, words[position], "{}", speaker.name);
            assert_eq!(turn.end, CallEnd::UpstreamError);
            assert_eq!(
                turn.error,
                Some(format!("the endpoint answered {status}: {message}"))
            );
        }
    }
    let event = json!({"error": {"message": "out of memory", "code": 503}}).to_string();
    let first = json!({"id": "c", "choices": [{"index": 0, "delta": {"content": "a"}}]}).to_string();
    for speaker in speakers() {
        for text in [events(&[&event]), events(&[&first, &event, "[DONE]"])] {
            let (said, turn) = speaker.hears_stream(&text);
            assert_eq!(said.error.as_deref(), Some("out of memory"), "{}", speaker.name);
            assert!(said.finish.is_none(), "{}", speaker.name);
            assert_eq!(turn.end, CallEnd::UpstreamError);
        }
        let alone = speaker.dialect.error_event(503, "gone", StreamForm::Events);
        assert_eq!(
            speaker.read_stream(&alone).error.as_deref(),
            Some("gone"),
            "{}",
            speaker.name
        );
        let body = speaker.dialect.error_body(400, "bad", "invalid_request_error");
        assert_eq!(speaker.read_document(&body).error.as_deref(), Some("bad"));
    }
}

#[test]
fn an_endpoint_that_speaks_another_dialect_is_never_taken_for_a_reply() {
    let documents = [
        r#"{"id":"msg_1","type":"message","role":"assistant","content":[{"type":"text","text":"hi"}],"stop_reason":"end_turn"}"#,
        r#"{"id":"resp_1","object":"response","status":"completed","output":[]}"#,
        r#"{"candidates":[{"content":{"parts":[{"text":"hi"}]}}]}"#,
        "<html>hi</html>",
    ];
    let streams = [
        "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{}}\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
        "data: {\"candidates\":[{\"finishReason\":\"STOP\"}]}\n\n",
    ];
    for speaker in speakers().iter().skip(1) {
        for body in documents {
            let (said, turn) = speaker.hears_document(body.as_bytes());
            assert_eq!(
                (said, turn.end),
                (None, CallEnd::UpstreamError),
                "{}: {body}",
                speaker.name
            );
        }
        for text in streams {
            let (said, turn) = speaker.hears_stream(text.as_bytes());
            assert_eq!(turn.end, CallEnd::UpstreamCut, "{}: {text}", speaker.name);
            assert!(
                said.error.is_some() && said.finish.is_none(),
                "{}: {text}",
                speaker.name
            );
        }
    }
}

#[test]
fn trap_13_14_the_key_of_retries_is_the_same_for_retries_alone_in_every_dialect() {
    let key = |speaker: &Speaker, streamed: bool, members: Value| {
        let body = speaker.body_with(streamed, members);
        speaker.prepare(streamed, &body, &rules()).facts.retry_body_sha256
    };
    for speaker in speakers() {
        let first = key(&speaker, true, json!({}));
        let limit = match speaker.name {
            "responses" => json!({"max_output_tokens": 7}),
            "generate_content" => json!({}),
            _ => json!({"max_tokens": 7}),
        };
        assert_eq!(first, key(&speaker, true, json!({})), "{}", speaker.name);
        if speaker.name != "chat_completions" {
            assert_eq!(first, key(&speaker, false, limit.clone()), "{}", speaker.name);
        }
        let other = match speaker.name {
            "responses" => json!({"input": "ho"}),
            "generate_content" => json!({"contents": [{"role": "user", "parts": [{"text": "ho"}]}]}),
            _ => json!({"messages": [{"role": "user", "content": "ho"}]}),
        };
        assert_ne!(first, key(&speaker, true, other), "{}", speaker.name);
    }
}

#[test]
fn trap_15_auxiliary_calls_are_known_by_their_first_words_in_every_dialect() {
    let system = "You are a title generator. Be short.";
    for speaker in speakers() {
        let body = match speaker.name {
            "chat_completions" => speaker.body_with(
                true,
                json!({"messages": [
                {"role": "system", "content": system}, {"role": "user", "content": "hi"}]}),
            ),
            "messages" => speaker.body_with(true, json!({"system": [{"type": "text", "text": system}]})),
            "responses" => speaker.body_with(true, json!({"instructions": system})),
            _ => speaker.body_with(true, json!({"systemInstruction": {"parts": [{"text": system}]}})),
        };
        let facts = speaker.prepare(true, &body, &rules()).facts;
        assert_eq!(
            (facts.system_start.as_str(), facts.user_start.as_str()),
            (system, "hi"),
            "{}",
            speaker.name
        );
        assert!(!facts.tools);
    }
}

#[test]
fn trap_18_odd_framing_is_read_in_every_dialect() {
    let events = [
        r#"{"choices":null}"#,
        "null",
        r#"{"id":"c","choices":[{"index":0,"delta":{"role":"","content":null}}]}"#,
        r#"{"id":"c","choices":[{"index":0,"delta":{"content":"é "}}]}"#,
        r#"{"id":"c","choices":[{"index":0,"delta":{"content":"\ud83c"}}]}"#,
        r#"{"id":"c","choices":[{"index":0,"delta":{"content":"\udf89"},"finish_reason":"stop"}],"data":null}"#,
        r#"{"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":2}}"#,
        "[DONE]",
    ];
    let text = events
        .iter()
        .map(|data| format!(": comment\r\n\r\ndata: {data}\r\n\r\n"))
        .collect::<String>();
    for speaker in speakers().iter().skip(1) {
        let (said, turn) = speaker.hears_stream(text.as_bytes());
        assert_eq!(turn.end, CallEnd::Complete, "{}", speaker.name);
        assert_eq!(
            (said.text.as_str(), said.usage),
            ("é 🎉", Some((1, 2))),
            "{}",
            speaker.name
        );
        assert_eq!(stored(speaker, &turn.response).text, "é 🎉", "{}", speaker.name);
    }
}

#[test]
fn trap_18_a_character_cut_in_two_by_the_endpoint_is_whole_again() {
    let mut text = Vec::new();
    let party = "🎉".as_bytes();
    for piece in [&party[..1], &party[1..3], &party[3..]] {
        text.extend_from_slice(b"data: {\"id\":\"c\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"");
        text.extend_from_slice(piece);
        text.extend_from_slice(b"\"}}]}\n\n");
    }
    text.extend_from_slice(b"data: {\"id\":\"c\",\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n");
    for speaker in speakers().iter().skip(1) {
        let (said, _) = speaker.hears_stream(&text);
        assert_eq!(said.text, "🎉", "{}", speaker.name);
    }
}

#[test]
fn trap_21_a_budget_answers_in_every_dialect() {
    for speaker in speakers() {
        let facts = speaker.facts(false);
        let body = speaker.dialect.assistant_reply("The budget is spent.", &facts, 7);
        let said = speaker.read_document(&body);
        assert_eq!((said.text.as_str(), said.ended), ("The budget is spent.", true));
        assert_eq!(
            said.finish.as_deref(),
            Some(speaker.finishes[0]),
            "{}",
            speaker.name
        );
        let stream = speaker
            .dialect
            .assistant_reply("The budget is spent.", &speaker.facts(true), 7);
        let said = speaker.read_stream(&stream);
        assert_eq!(
            (said.text.as_str(), said.ended),
            ("The budget is spent.", true),
            "{}",
            speaker.name
        );
        assert_eq!(
            said.finish.as_deref(),
            Some(speaker.finishes[0]),
            "{}",
            speaker.name
        );
    }
}

#[test]
fn trap_22_what_keeps_a_stream_alive_says_nothing_in_any_dialect() {
    let text = vllm(&[says("a", 7), finish("stop")], 1);
    for speaker in speakers() {
        let (agent, _) = speaker.stream(&speaker.facts(true), [text.as_slice()], StreamEnd::EndOfBody);
        let plain = speaker.read_stream(&agent);
        let mut kept = speaker.dialect.keep_alive().to_vec();
        for event in String::from_utf8(agent).unwrap().split_inclusive("\n\n") {
            kept.extend_from_slice(event.as_bytes());
            kept.extend_from_slice(&speaker.dialect.keep_alive());
        }
        assert_eq!(speaker.read_stream(&kept), plain, "{}", speaker.name);
    }
}

#[test]
fn trap_24_what_an_endpoint_refuses_is_left_out_in_every_dialect() {
    let refusal = json!({"error": {"message": "Unsupported parameter: 'max_tokens' is not supported with this model. Use \
        'max_completion_tokens' instead.", "param": "max_tokens", "code": "unsupported_parameter"}})
    .to_string();
    for speaker in speakers().iter().skip(1) {
        let limit = match speaker.name {
            "responses" => json!({"max_output_tokens": 7}),
            "generate_content" => json!({"generationConfig": {"maxOutputTokens": 7}}),
            _ => json!({"max_tokens": 7}),
        };
        let body = speaker.body_with(false, limit);
        let first = speaker.prepare(false, &body, &rules());
        let changes = speaker.dialect.refused(400, refusal.as_bytes(), &first.facts);
        assert_eq!(
            changes,
            [Change::Renamed {
                from: "max_tokens".into(),
                to: "max_completion_tokens".into()
            }]
        );
        let changed = RequestRules { changes, ..rules() };
        let again = speaker.prepare(false, &body, &changed);
        let sent: Value = serde_json::from_slice(&again.body).unwrap();
        assert_eq!(
            (sent.get("max_tokens"), &sent["max_completion_tokens"]),
            (None, &json!(7))
        );
        assert_eq!(again.facts.changes.len(), 1);
    }
}

#[test]
fn trap_26_29_limits_and_sampling_are_set_in_every_dialect() {
    let capped = RequestRules {
        max_tokens_cap: Some(50),
        sampling: Sampling {
            temperature: Some(0.7),
            top_k: Some(-1),
            ..Sampling::default()
        },
        ..rules()
    };
    for speaker in speakers().iter().skip(1) {
        let members = match speaker.name {
            "responses" => json!({"max_output_tokens": 32000, "temperature": 1, "tools": []}),
            "generate_content" => {
                json!({"generationConfig": {"maxOutputTokens": 32000, "temperature": 1}, "tools": []})
            }
            _ => json!({"max_tokens": 32000, "temperature": 1, "tools": []}),
        };
        let prepared = speaker.prepare(true, &speaker.body_with(true, members), &capped);
        let sent: Value = serde_json::from_slice(&prepared.body).unwrap();
        assert_eq!(
            (
                &sent["max_tokens"],
                &sent["temperature"],
                &sent["top_k"],
                sent.get("tools")
            ),
            (&json!(50), &json!(0.7), &json!(-1), None),
            "{}",
            speaker.name
        );
        assert_eq!(prepared.facts.max_tokens_asked, Some(32000));
        assert_eq!(prepared.facts.sampling.temperature, Some(0.7));
    }
}

#[test]
fn a_reply_without_a_token_ends_well_and_says_nothing_in_every_dialect() {
    for speaker in speakers() {
        let (said, turn) = speaker.hears_stream(&vllm(&[finish("stop")], 0));
        assert_eq!(
            (turn.end, turn.level),
            (CallEnd::Complete, CaptureLevel::Tokens),
            "{}",
            speaker.name
        );
        assert!(
            said.ended && said.text.is_empty() && said.calls.is_empty(),
            "{}: {said:?}",
            speaker.name
        );
        assert_eq!(
            said.finish.as_deref(),
            Some(speaker.finishes[0]),
            "{}",
            speaker.name
        );
    }
}

#[test]
fn trap_28_large_events_pass_in_every_dialect() {
    let large = "x".repeat(5 << 20);
    let text = vllm(&[says(&large, 7), finish("stop")], 1);
    for speaker in speakers() {
        let facts = speaker.facts(true);
        let (agent, turn) = speaker.stream(&facts, text.chunks(64 << 10), StreamEnd::EndOfBody);
        assert_eq!(turn.end, CallEnd::Complete, "{}", speaker.name);
        assert_eq!(
            speaker.read_stream(&agent).text.len(),
            large.len(),
            "{}",
            speaker.name
        );
    }
}

#[test]
fn each_event_is_passed_on_when_it_comes_in_every_dialect() {
    let text = String::from_utf8(vllm(&[says("a", 7), says("b", 8), finish("stop")], 2)).unwrap();
    for speaker in speakers() {
        let mut capture = speaker.dialect.stream(&speaker.facts(true), EVENT_LIMIT_BYTES);
        let mut heard = Vec::new();
        for event in text.split_inclusive("\n\n").take(3) {
            let mut out = BytesMut::new();
            capture.push(event.as_bytes(), &mut out).unwrap();
            heard.push(String::from_utf8(out.to_vec()).unwrap());
        }
        assert!(
            heard[1].contains("\"a\"") && heard[2].contains("\"b\""),
            "{}: {heard:?}",
            speaker.name
        );
    }
}

#[test]
fn bad_requests_are_refused_in_every_dialect_and_deep_ones_too() {
    for speaker in speakers() {
        let target = speaker.target(false);
        let try_body = |body: &[u8]| {
            speaker
                .dialect
                .prepare(&target, &Bytes::copy_from_slice(body), &rules())
        };
        for body in [
            &b"{"[..],
            b"[]",
            b"7",
            b"",
            b"{\"a\":NaN}",
            b"{\"a\":\"\xff\"}",
            b"{\"a\":1,\"a\":2}",
        ] {
            assert!(
                try_body(body).is_err(),
                "{}: {}",
                speaker.name,
                String::from_utf8_lossy(body)
            );
        }
        let deep = |depth: usize| {
            let mut body = speaker.body(false).to_string();
            body.pop();
            format!("{body},\"tools\":{}1{}}}", "[".repeat(depth), "]".repeat(depth))
        };
        if speaker.name != "chat_completions" {
            let mut huge = speaker.body(false).to_string();
            huge.pop();
            let error = try_body(format!("{huge},\"x\":1e999}}").as_bytes()).unwrap_err();
            assert!(
                std::error::Error::source(&error)
                    .unwrap()
                    .to_string()
                    .starts_with("invalid literal"),
                "{error}"
            );
        }
        for depth in [126, 127, 128, 129, 100_000] {
            let error = try_body(deep(depth).as_bytes());
            if depth >= 128 {
                assert!(
                    error.unwrap_err().to_string().contains("JSON"),
                    "{} {depth}",
                    speaker.name
                );
            }
        }
    }
}

#[test]
fn ten_thousand_messages_pass_in_every_dialect() {
    for speaker in speakers() {
        let one = |role: &str, at: usize| match speaker.name {
            "generate_content" => json!({"role": if role == "user" { "user" } else { "model" },
                "parts": [{"text": format!("{at}")}]}),
            "responses" => json!({"type": "message", "role": role, "content": format!("{at}")}),
            _ => json!({"role": role, "content": format!("{at}")}),
        };
        let all: Vec<Value> = (0..10_000)
            .map(|at| one(if at % 2 == 0 { "user" } else { "assistant" }, at))
            .collect();
        let name = match speaker.name {
            "generate_content" => "contents",
            "responses" => "input",
            _ => "messages",
        };
        let prepared = speaker.prepare(false, &speaker.body_with(false, json!({name: all})), &rules());
        let sent: Value = serde_json::from_slice(&prepared.body).unwrap();
        assert_eq!(
            sent["messages"].as_array().unwrap().len(),
            10_000,
            "{}",
            speaker.name
        );
        assert_eq!(
            sent["messages"][9_999],
            json!({"role": "assistant", "content": "9999"})
        );
    }
}

#[test]
fn nothing_is_asked_beyond_what_is_wanted() {
    let plain = RequestRules {
        ask: Ask::Nothing,
        ..RequestRules::default()
    };
    for speaker in speakers() {
        let prepared = speaker.prepare(true, &speaker.body(true), &plain);
        let sent: Value = serde_json::from_slice(&prepared.body).unwrap();
        assert_eq!(
            (sent.get("logprobs"), sent.get("return_token_ids")),
            (None, None),
            "{}",
            speaker.name
        );
        assert!(prepared.facts.untranslated.is_empty(), "{}", speaker.name);
    }
}

proptest! {
    #[test]
    fn any_split_of_a_stream_gives_the_same_in_every_dialect(
        name in prop::sample::select(STREAMS.to_vec()),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..20),
    ) {
        let text = response(&format!("vllm-0.32.0/{name}"));
        let mut places: Vec<usize> = cuts.iter().map(|cut| cut.index(text.len())).collect();
        places.extend([0, text.len()]);
        places.sort_unstable();
        for speaker in speakers() {
            let facts = speaker.facts(true);
            let (whole, captured) = speaker.stream(&facts, [text.as_slice()], StreamEnd::EndOfBody);
            let chunks = places.windows(2).map(|pair| &text[pair[0]..pair[1]]);
            let (split, other) = speaker.stream(&facts, chunks, StreamEnd::EndOfBody);
            prop_assert_eq!(String::from_utf8(whole).unwrap(), String::from_utf8(split).unwrap());
            prop_assert_eq!(&captured.response, &other.response);
            prop_assert_eq!(&captured.completions, &other.completions);
        }
    }

    #[test]
    fn no_bytes_make_a_dialect_fail(bytes in prop::collection::vec(any::<u8>(), 0..300), at in any::<prop::sample::Index>()) {
        let mut text = response("vllm-0.32.0/list_tools_stream_lp5_ids");
        let at = at.index(text.len());
        let end = (at + bytes.len()).min(text.len());
        text.splice(at..end, bytes.iter().copied());
        let whole = response("vllm-0.32.0/list_tools_unary_lp5_ids");
        for speaker in speakers() {
            let (_, captured) = speaker.stream(&speaker.facts(true), [text.as_slice()], StreamEnd::EndOfBody);
            if speaker.name != "chat_completions" && !captured.response.is_empty() {
                prop_assert!(serde_json::from_slice::<Value>(&captured.response).is_ok());
            }
            let mut body = whole.clone();
            let at = at.min(body.len());
            let end = (at + bytes.len()).min(body.len());
            body.splice(at..end, bytes.iter().copied());
            let (shown, _) = speaker.dialect.whole(&body.into(), &speaker.facts(false));
            if let (Shown::Document(body), true) = (shown, speaker.name != "chat_completions") {
                prop_assert!(serde_json::from_slice::<Value>(&body).is_ok());
            }
        }
    }

    #[test]
    fn no_request_makes_a_dialect_fail(text in "\\PC{0,200}", bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        for speaker in speakers() {
            for streamed in [true, false] {
                let target = speaker.target(streamed);
                let _ = speaker.dialect.prepare(&target, &Bytes::copy_from_slice(text.as_bytes()), &rules());
                let _ = speaker.dialect.prepare(&target, &Bytes::copy_from_slice(&bytes), &rules());
            }
        }
    }
}
