//! The recorded exchanges of real servers: what is stored equals what was sent, what the agent gets equals the plain
//! recording, at any split of the bytes.

use super::oracle::Reply;
use super::recordings::*;
use dressage_wire::call::{CallEnd, CaptureLevel, Flag};
use dressage_wire::capture::{Captured, RequestFacts, StreamEnd};
use dressage_wire::dialect::{Dialect, Target};
use proptest::prelude::*;
use serde_json::Value;

/// Streams recorded with and without what the tap asks for, by the same model of the same request.
const PAIRS: [(&str, &str); 5] = [
    ("vllm-0.32.0/hi_stream_plain", "vllm-0.32.0/hi_stream_lp5_ids"),
    ("vllm-0.32.0/hi_stream_plain", "vllm-0.32.0/hi_stream_ids"),
    (
        "vllm-0.32.0/list_tools_stream_plain",
        "vllm-0.32.0/list_tools_stream_lp5_ids",
    ),
    (
        "vllm-0.32.0-noreasoning/list_tools_stream_plain",
        "vllm-0.32.0-noreasoning/list_tools_stream_lp5_ids",
    ),
    (
        "llamacpp-b10434/chat_stream_plain",
        "llamacpp-b10434/chat_stream_logprobs",
    ),
];

/// Streams recorded with ids, log-probabilities or both.
const STREAMS: [&str; 12] = [
    "vllm-0.32.0/after_tool_tools_stream_lp5_ids",
    "vllm-0.32.0/bad_tools_stream_lp5_ids",
    "vllm-0.32.0/count_stream_stop_str",
    "vllm-0.32.0/hi_stream_len_mid_multibyte",
    "vllm-0.32.0/hi_stream_lp5_ids",
    "vllm-0.32.0/hi_stream_n2",
    "vllm-0.32.0/hi_stream_stream_interval",
    "vllm-0.32.0/hi_stream_tokens_as_ids",
    "vllm-0.32.0/list_tools_stream_lp5_ids",
    "vllm-0.32.0-noreasoning/list_tools_stream_lp5_ids",
    "llamacpp-b10434/chat_stream_logprobs",
    "llamacpp-b10434/chat_stream_multibyte",
];

/// Whole replies recorded with ids, log-probabilities or both.
const UNARY: [&str; 5] = [
    "vllm-0.32.0/hi_unary_lp5_ids",
    "vllm-0.32.0/list_tools_unary_lp5_ids",
    "vllm-0.32.0/bad_tools_unary_lp5_ids",
    "vllm-0.32.0/count_unary_len",
    "llamacpp-b10434/chat_unary_logprobs",
];

fn facts_of(plain_request: &str) -> RequestFacts {
    CHAT.prepare(&Target::default(), &request(plain_request), &rules())
        .unwrap()
        .facts
}

/// Facts of an agent's call that asks for nothing of what was recorded.
fn plain_facts(recording: &str) -> RequestFacts {
    let mut sent: Value = serde_json::from_slice(&request(recording)).unwrap();
    let members = sent.as_object_mut().unwrap();
    for member in [
        "logprobs",
        "top_logprobs",
        "return_token_ids",
        "return_tokens_as_token_ids",
        "stream_options",
    ] {
        members.remove(member);
    }
    prepare(&sent.to_string(), &rules()).facts
}

/// Durations are never the same twice.
fn without_timings(text: String) -> String {
    let mut parts = text.split("\"timings\":{");
    let first = parts.next().unwrap().to_owned();
    parts.fold(first, |text, part| {
        text + "\"timings\":{" + &part[part.find('}').unwrap()..]
    })
}

fn agents_side(text: &[u8]) -> String {
    without_timings(normalised(text))
}

#[test]
fn the_request_sent_upstream_is_the_recorded_one() {
    for (plain, asked) in PAIRS {
        if asked.ends_with("hi_stream_ids") {
            continue;
        }
        let sent = CHAT
            .prepare(&Target::default(), &request(plain), &rules())
            .unwrap()
            .body;
        let (mut sent, mut recorded): (Value, Value) = (
            serde_json::from_slice(&sent).unwrap(),
            serde_json::from_slice(&request(asked)).unwrap(),
        );
        if asked.starts_with("llamacpp") {
            // It ignores the member, and was recorded without.
            assert_eq!(
                sent.as_object_mut().unwrap().remove("return_token_ids"),
                Some(Value::Bool(true))
            );
        }
        sent.sort_all_objects();
        recorded.sort_all_objects();
        assert_eq!(sent, recorded, "{asked}");
    }
}

#[test]
fn the_agent_gets_the_plain_recording() {
    for (plain, asked) in PAIRS {
        let (agent, captured) = whole_stream(&facts_of(plain), &response(asked));
        assert_eq!(agents_side(&agent), agents_side(&response(plain)), "{asked}");
        assert_eq!(captured.end, CallEnd::Complete, "{asked}");
    }
}

#[test]
fn the_agent_gets_the_plain_recording_of_a_whole_reply() {
    let (agent, _) = CHAT.unary(&response("vllm-0.32.0/hi_unary_lp5_ids").into(), &unary());
    let plain = response("vllm-0.32.0/hi_unary_plain");
    // The server itself counts reasoning tokens differently when it is asked for their ids.
    let recount =
        |text: &[u8]| normalised(text).replace("\"reasoning_tokens\":17", "\"reasoning_tokens\":26");
    assert_eq!(recount(&agent), recount(&plain));
}

fn assert_stored_is_sent(name: &str, captured: &Captured, sent: &Reply) {
    assert_eq!(
        captured.prompt_token_ids, sent.prompt_token_ids,
        "{name}: prompt ids"
    );
    assert_eq!(captured.completions.len(), sent.choices.len(), "{name}: choices");
    assert_eq!(
        captured.usage.map(|usage| usage.completion_tokens),
        sent.completion_tokens,
        "{name}: usage"
    );
    for (stored, sent) in captured.completions.iter().zip(&sent.choices) {
        assert_eq!(stored.token_ids, sent.expected_ids(), "{name}: ids");
        assert_eq!(stored.logprobs, sent.logprobs, "{name}: logprobs");
        assert_eq!(stored.tokens, sent.tokens, "{name}: tokens");
        assert_eq!(stored.finish_reason, sent.finish_reason, "{name}: finish_reason");
    }
    let document: Value = serde_json::from_slice(&captured.response).unwrap();
    for (position, sent) in sent.choices.iter().enumerate() {
        let message = &document["choices"][position]["message"];
        assert_eq!(
            message["content"].as_str().unwrap_or(""),
            sent.content,
            "{name}: content"
        );
        assert_eq!(
            message["reasoning"].as_str().unwrap_or(""),
            sent.reasoning,
            "{name}: reasoning"
        );
        let calls = message["tool_calls"].as_array().cloned().unwrap_or_default();
        let arguments: Vec<_> = calls
            .iter()
            .map(|call| call["function"]["arguments"].as_str().unwrap())
            .collect();
        assert_eq!(arguments, sent.arguments, "{name}: arguments");
    }
}

#[test]
fn stored_ids_and_logprobs_are_those_sent_in_streams() {
    for name in STREAMS {
        let (_, captured) = whole_stream(&plain_facts(name), &response(name));
        assert_stored_is_sent(name, &captured, &Reply::of_stream(&response(name)));
    }
}

#[test]
fn stored_ids_and_logprobs_are_those_sent_in_whole_replies() {
    for name in UNARY {
        let (_, captured) = CHAT.unary(&response(name).into(), &plain_facts(name));
        assert_stored_is_sent(name, &captured, &Reply::of_body(&response(name)));
    }
}

#[test]
fn vllm_turns_are_trainable_and_llamacpp_turns_say_what_they_lack() {
    for name in STREAMS {
        let (_, captured) = whole_stream(&plain_facts(name), &response(name));
        let (level, flags) = (captured.level, captured.flags);
        match name {
            "vllm-0.32.0/hi_stream_n2" => {
                assert_eq!(
                    (level, flags),
                    (CaptureLevel::Tokens, vec![Flag::MultipleChoices, Flag::Truncated])
                );
            }
            "vllm-0.32.0/hi_stream_len_mid_multibyte" => {
                assert_eq!((level, flags), (CaptureLevel::Tokens, vec![Flag::Truncated]));
            }
            "vllm-0.32.0/hi_stream_tokens_as_ids" => {
                assert_eq!(
                    (level, flags),
                    (CaptureLevel::Logprobs, vec![Flag::PromptIdsMissing])
                );
            }
            "llamacpp-b10434/chat_stream_logprobs" => {
                let lacks = vec![Flag::TokensMissing, Flag::PromptIdsMissing, Flag::Truncated];
                assert_eq!((level, flags), (CaptureLevel::Logprobs, lacks));
            }
            "llamacpp-b10434/chat_stream_multibyte" => {
                let lacks = vec![Flag::UsageMissing, Flag::PromptIdsMissing, Flag::SamplingAltered];
                assert_eq!((level, flags), (CaptureLevel::Logprobs, lacks), "{name}");
            }
            _ => assert_eq!((level, flags), (CaptureLevel::Tokens, vec![]), "{name}"),
        }
    }
}

#[test]
fn a_stream_and_a_whole_reply_of_one_request_store_the_same() {
    for (streamed, whole) in [
        ("vllm-0.32.0/hi_stream_lp5_ids", "vllm-0.32.0/hi_unary_lp5_ids"),
        (
            "vllm-0.32.0/list_tools_stream_lp5_ids",
            "vllm-0.32.0/list_tools_unary_lp5_ids",
        ),
        (
            "llamacpp-b10434/chat_stream_logprobs",
            "llamacpp-b10434/chat_unary_logprobs",
        ),
    ] {
        let (_, one) = whole_stream(&plain_facts(streamed), &response(streamed));
        let (_, other) = CHAT.unary(&response(whole).into(), &plain_facts(whole));
        assert_eq!(one.completions, other.completions, "{streamed}");
        assert_eq!(one.prompt_token_ids, other.prompt_token_ids, "{streamed}");
        assert_eq!((one.level, one.flags), (other.level, other.flags), "{streamed}");
        let message = |response: &[u8]| {
            let mut document: Value = serde_json::from_slice(response).unwrap();
            let mut message = document["choices"][0]["message"].take();
            message
                .as_object_mut()
                .unwrap()
                .retain(|_, value| !value.is_null());
            for call in message["tool_calls"].as_array_mut().into_iter().flatten() {
                call["id"] = Value::Null;
            }
            // Beside a call the server keeps white space in a stream, and drops it in a whole reply.
            if message["content"]
                .as_str()
                .is_some_and(|content| content.trim().is_empty())
            {
                message.as_object_mut().unwrap().remove("content");
            }
            message
                .as_object_mut()
                .unwrap()
                .retain(|_, value| !value.is_null());
            message
        };
        assert_eq!(message(&one.response), message(&other.response), "{streamed}");
    }
}

fn same(one: &(Vec<u8>, Captured), other: &(Vec<u8>, Captured)) {
    assert_eq!(String::from_utf8_lossy(&one.0), String::from_utf8_lossy(&other.0));
    let parts = |captured: &Captured| format!("{captured:?}");
    assert_eq!(parts(&one.1), parts(&other.1));
}

#[test]
fn byte_by_byte_gives_the_same() {
    for name in STREAMS {
        let (facts, text) = (plain_facts(name), response(name));
        same(
            &stream(&facts, text.chunks(1), StreamEnd::EndOfBody),
            &whole_stream(&facts, &text),
        );
    }
}

#[test]
fn each_event_is_forwarded_by_the_push_that_completes_it() {
    let text = response("vllm-0.32.0/hi_stream_lp5_ids");
    let mut capture = CHAT.stream(&streamed(), EVENT_LIMIT_BYTES);
    let mut forwarded = Vec::new();
    for event in String::from_utf8(text).unwrap().split_inclusive("\n\n") {
        let mut out = bytes::BytesMut::new();
        capture.push(event.as_bytes(), &mut out).unwrap();
        let shows =
            !event.contains("\"delta\":{}") && !event.contains("\"usage\"") && !event.contains("[DONE]");
        let finish = event.contains("\"finish_reason\":\"stop\"");
        if shows || finish {
            assert_eq!(
                capture.holds(),
                finish,
                "only the last event of a choice is held back: {event}"
            );
            assert_eq!(out.is_empty(), finish, "{event}");
        }
        forwarded.extend_from_slice(&out);
    }
    assert!(!capture.holds());
    assert_eq!(
        agents_side(&forwarded),
        agents_side(&response("vllm-0.32.0/hi_stream_plain"))
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_split_of_the_bytes_gives_the_same(
        which in 0..STREAMS.len(),
        cuts in proptest::collection::vec(0.0..1.0_f64, 0..40),
        crlf in any::<bool>(),
    ) {
        let facts = plain_facts(STREAMS[which]);
        let mut text = response(STREAMS[which]);
        if crlf {
            text = String::from_utf8(text).unwrap().replace('\n', "\r\n").into_bytes();
        }
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| (cut * text.len() as f64) as usize).collect();
        cuts.extend([0, text.len()]);
        cuts.sort_unstable();
        let chunks = cuts.windows(2).map(|cut| &text[cut[0]..cut[1]]);
        same(&stream(&facts, chunks, StreamEnd::EndOfBody), &whole_stream(&facts, &text));
    }

    #[test]
    fn a_stream_cut_anywhere_is_no_turn_and_no_panic(which in 0..STREAMS.len(), at in 0.0..1.0_f64) {
        let facts = plain_facts(STREAMS[which]);
        let text = response(STREAMS[which]);
        let before_done = text.len() - "data: [DONE]\n\n".len();
        let cut = (at * before_done as f64) as usize;
        let (agent, captured) = stream(&facts, [&text[..cut]], StreamEnd::Cut);
        prop_assert_eq!(captured.end, CallEnd::UpstreamCut);
        prop_assert!(!String::from_utf8_lossy(&agent).contains("[DONE]"));
    }

    #[test]
    fn garbage_in_a_stream_is_no_panic(noise in proptest::collection::vec((0.0..1.0_f64, any::<u8>()), 1..12)) {
        let mut text = response("vllm-0.32.0/hi_stream_lp5_ids");
        for (at, byte) in noise {
            let at = (at * text.len() as f64) as usize;
            text[at] = byte;
        }
        let (_, captured) = whole_stream(&streamed(), &text);
        serde_json::from_slice::<serde_json::Value>(&captured.response).unwrap();
    }
}
