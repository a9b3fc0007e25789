//! What holds in every dialect, each over the whole registry; the traps that are the same streamed and whole are in
//! `every_trap`.

use super::every_trap::{arguments, finish, says, vllm};
use super::fuzzed;
use super::recordings::*;
use super::speakers::{Said, Speaker, speakers};
use bytes::{Bytes, BytesMut};
use dressage_wire::call::CallEnd;
use dressage_wire::capture::{Ask, RequestRules, Shown, StreamEnd, StreamForm};
use dressage_wire::dialect::DIALECTS;
use dressage_wire::task::CaptureMode;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use serde_json::{Value, json};

/// What has happened is in the dialect's document too.
fn stored(speaker: &Speaker, response: &[u8]) -> Said {
    speaker.read_document(response)
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
        // What no reader of ours holds is for the endpoint to refuse.
        let mut huge = speaker.body(false).to_string();
        huge.pop();
        assert!(
            try_body(format!("{huge},\"x\":1e999}}").as_bytes()).is_ok(),
            "{}",
            speaker.name
        );
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

/// Something that is almost a recording: a part of it is other bytes, or missing, or said twice.
fn almost(names: &'static [&'static str]) -> impl Strategy<Value = Vec<u8>> {
    let part = prop_oneof![
        prop::collection::vec(any::<u8>(), 0..60),
        "[\\[\\]{},:\"\\\\ 0-9eE.+a-z-]{0,40}".prop_map(String::into_bytes),
        prop::sample::select(vec![
            "\n\n",
            "data: ",
            "[DONE]",
            "null",
            "\\ud83c",
            "\r",
            "\"index\":1",
            "\"id\":\"\""
        ])
        .prop_map(|text| text.as_bytes().to_vec()),
    ];
    let name = prop::sample::select(names.to_vec());
    (name, any::<prop::sample::Index>(), 0..200_usize, part).prop_map(|(name, at, taken, part)| {
        let mut text = recording(name);
        let at = at.index(text.len());
        let end = (at + taken).min(text.len());
        text.splice(at..end, part);
        text
    })
}

const RECORDED_STREAMS: &[&str] = &[
    "vllm-0.32.0/list_tools_stream_lp5_ids.response.body",
    "vllm-0.32.0/hi_stream_len_mid_multibyte.response.body",
    "vllm-0.32.0/after_tool_tools_stream_lp5_ids.response.body",
    "llamacpp-b10434/chat_stream_logprobs.response.body",
];

const RECORDED_REPLIES: &[&str] = &[
    "vllm-0.32.0/list_tools_unary_lp5_ids.response.body",
    "vllm-0.32.0/count_unary_len.response.body",
    "vllm-0.32.0/err_model_404.response.body",
];

const REQUESTS: &[&str] = &[
    "vllm-0.32.0/list_tools_stream_lp5_ids.request.json",
    "../../wire/tests/rich/messages.json",
    "../../wire/tests/rich/responses.json",
    "../../wire/tests/rich/generate_content.json",
];

#[test]
fn what_is_fuzzed_holds_for_what_was_recorded() {
    for name in RECORDED_STREAMS {
        fuzzed::events(&recording(name));
        fuzzed::streams(&recording(name));
    }
    RECORDED_REPLIES
        .iter()
        .for_each(|name| fuzzed::replies(&recording(name)));
    for name in REQUESTS {
        fuzzed::json(&recording(name));
        fuzzed::requests(&recording(name));
    }
}

/// The same cases each time: looking for others is what the fuzz targets do.
fn same_cases() -> ProptestConfig {
    ProptestConfig {
        cases: 64,
        rng_seed: RngSeed::Fixed(7),
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(same_cases())]

    #[test]
    fn what_must_hold_for_streams_of_events(text in almost(RECORDED_STREAMS), bytes in "[\r\n:dat ]{0,60}") {
        fuzzed::events(&text);
        fuzzed::events(bytes.as_bytes());
    }

    #[test]
    fn what_must_hold_for_texts_of_json(text in almost(REQUESTS), bytes in prop::collection::vec(any::<u8>(), 0..100)) {
        fuzzed::json(&text);
        fuzzed::json(&bytes);
    }

    #[test]
    fn what_must_hold_for_hosts(
        text in "((\\*\\.)?([a-cA-C1_.-]{0,8}|\\[[0-9a-f:.]{0,12}\\]|[0-9.]{3,12}|0x7f)(\\.org|\\.a\\.org)?\\.?(:[0-9+]{0,6}|@a.org)?\n){1,6}",
        bytes in "\\PC{0,200}",
    ) {
        fuzzed::hosts(text.as_bytes());
        fuzzed::hosts(bytes.as_bytes());
    }

    #[test]
    fn what_must_hold_for_streamed_replies(text in almost(RECORDED_STREAMS)) {
        fuzzed::streams(&text);
    }

    #[test]
    fn what_must_hold_for_whole_replies(text in almost(RECORDED_REPLIES)) {
        fuzzed::replies(&text);
    }

    #[test]
    fn what_must_hold_for_requests(text in almost(REQUESTS), other in "\\PC{0,200}") {
        fuzzed::requests(&text);
        fuzzed::requests(other.as_bytes());
    }
}
