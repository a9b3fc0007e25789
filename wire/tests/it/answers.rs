//! Answers of our own: replays, ends, errors.

use super::oracle::Reply;
use super::recordings::*;
use dressage_wire::call::{CallEnd, Flag};
use dressage_wire::capture::{RequestRules, StreamForm};
use dressage_wire::dialect::Dialect;
use dressage_wire::task::CaptureMode;
use serde_json::{Value, json};

fn buffered(members: &str) -> dressage_wire::capture::RequestFacts {
    let rules = RequestRules {
        capture: CaptureMode::Buffer,
        ..rules()
    };
    prepare(&format!(r#"{{"messages":[],"stream":true{members}}}"#), &rules).facts
}

/// The events of a stream as trees, without the last one.
fn trees(stream: &[u8]) -> Vec<Value> {
    let data = data_of(stream);
    assert_eq!(data.last().map(String::as_str), Some("[DONE]"));
    data[..data.len() - 1]
        .iter()
        .map(|data| serde_json::from_str(data).unwrap())
        .collect()
}

#[test]
fn trap_05_a_buffered_reply_is_replayed_as_the_stream_it_would_have_been() {
    for name in ["hi_unary_lp5_ids", "list_tools_unary_lp5_ids", "count_unary_len"] {
        let body = response(&format!("vllm-0.32.0/{name}"));
        let facts = buffered(r#","stream_options":{"include_usage":true}"#);
        let (agent, captured) = CHAT.unary(&body.clone().into(), &facts);
        let replayed = CHAT.replay(&agent, &facts).unwrap();
        let (sent, seen) = (Reply::of_body(&body), Reply::of_stream(&replayed));
        let (sent, seen) = (&sent.choices[0], &seen.choices[0]);
        assert_eq!(
            (&seen.content, &seen.reasoning),
            (&sent.content, &sent.reasoning),
            "{name}"
        );
        assert_eq!(
            (&seen.arguments, &seen.finish_reason),
            (&sent.arguments, &sent.finish_reason),
            "{name}"
        );
        assert!(seen.logprobs.is_empty() && seen.token_ids.is_empty(), "{name}");
        assert_eq!(captured.completions[0].token_ids, sent.token_ids, "{name}");
        let events = trees(&replayed);
        assert_eq!(
            events[0]["choices"][0]["delta"],
            json!({"role": "assistant", "content": ""})
        );
        let last = events.last().unwrap();
        assert_eq!(last["choices"], json!([]));
        let document: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(
            (&last["usage"], &last["id"]),
            (&document["usage"], &document["id"]),
            "{name}"
        );
        assert_eq!(last["object"], "chat.completion.chunk");
    }
}

#[test]
fn a_replayed_tool_call_has_its_index_id_and_name() {
    let facts = buffered("");
    let (agent, _) = CHAT.unary(&response("vllm-0.32.0/list_tools_unary_lp5_ids").into(), &facts);
    let replayed = CHAT.replay(&agent, &facts).unwrap();
    let events = trees(&replayed);
    let call = &events
        .iter()
        .find(|event| event["choices"][0]["delta"]["tool_calls"].is_array())
        .unwrap();
    assert_eq!(
        call["choices"][0]["delta"]["tool_calls"],
        json!([{
            "index": 0, "id": "chatcmpl-tool-8884165706cb561d", "type": "function",
            "function": {"name": "bash", "arguments": "{\"command\": \"ls /tmp\"}"},
        }])
    );
    let last = events.last().unwrap();
    assert_eq!(last["choices"][0]["finish_reason"], "tool_calls");
    assert!(
        last["system_fingerprint"].is_string(),
        "no count was asked for, so it is on this event"
    );
    assert!(events.iter().all(|event| event.get("usage").is_none()));
}

#[test]
fn a_replay_keeps_logprobs_that_the_agent_asked_for() {
    let facts = buffered(r#","logprobs":true,"top_logprobs":1"#);
    let (agent, _) = CHAT.unary(&response("vllm-0.32.0/hi_unary_lp5_ids").into(), &facts);
    let replayed = CHAT.replay(&agent, &facts).unwrap();
    let seen = Reply::of_stream(&replayed);
    assert_eq!(seen.choices[0].logprobs.len(), 27);
}

#[test]
fn a_replay_of_a_pretty_printed_reply_has_one_line_an_event() {
    let body = serde_json::to_string_pretty(&json!({
        "id": "x", "choices": [{"index": 0, "message": {"content": "a\nb", "x": {"y": [1, 2]}}, "finish_reason": "stop"}],
        "usage": {"completion_tokens": 1},
    }))
    .unwrap();
    let replayed = CHAT
        .replay(
            body.as_bytes(),
            &buffered(r#","stream_options":{"include_usage":true}"#),
        )
        .unwrap();
    assert_eq!(trees(&replayed).len(), 5);
    assert_eq!(Reply::of_stream(&replayed).choices[0].content, "a\nb");
}

#[test]
fn what_is_no_reply_is_not_replayed() {
    for body in [
        "",
        "<html>",
        "{}",
        r#"{"choices":[]}"#,
        r#"{"choices":[{"index":0}]}"#,
        r#"{"error":{}}"#,
    ] {
        assert!(CHAT.replay(body.as_bytes(), &buffered("")).is_none(), "{body}");
    }
}

#[test]
fn trap_21_the_answer_of_a_budget_is_a_valid_message_in_the_form_asked_for() {
    let text = "The budget is \"used up\".\nStopping.";
    let whole: Value = serde_json::from_slice(&CHAT.assistant_reply(text, &unary(), 7)).unwrap();
    assert_eq!(
        whole["choices"][0]["message"],
        json!({"role": "assistant", "content": text})
    );
    assert_eq!(whole["choices"][0]["finish_reason"], "stop");
    assert_eq!((&whole["created"], &whole["model"]), (&json!(7), &json!("m")));
    let reply = CHAT.assistant_reply(text, &streamed(), 7);
    let (_, captured) = whole_stream(&streamed(), &reply);
    assert_eq!(captured.end, CallEnd::Complete);
    assert_eq!(Reply::of_stream(&reply).choices[0].content, text);
    let counted = prepare(
        r#"{"stream":true,"stream_options":{"include_usage":true}}"#,
        &rules(),
    )
    .facts;
    let reply = CHAT.assistant_reply(text, &counted, 7);
    assert_eq!(trees(&reply).last().unwrap()["usage"]["total_tokens"], 0);
}

#[test]
fn trap_10_an_error_event_is_read_as_one() {
    let event = CHAT.error_event(500, "the stream broke \"off\"\n", StreamForm::Events);
    let (agent, captured) = whole_stream(&streamed(), &event);
    assert_eq!(agent, event);
    assert_eq!(captured.error.as_deref(), Some("the stream broke \"off\"\n"));
    assert!(!captured.flags.contains(&Flag::CaptureIncomplete));
}

#[test]
fn an_error_body_has_message_type_and_code() {
    let body: Value =
        serde_json::from_slice(&CHAT.error_body(413, "too large", "invalid_request_error")).unwrap();
    let error = json!({"message": "too large", "type": "invalid_request_error", "param": null, "code": 413});
    assert_eq!(body, json!({"error": error}));
}

#[test]
fn trap_22_a_keep_alive_is_a_comment() {
    let (agent, captured) = whole_stream(&streamed(), &CHAT.keep_alive());
    assert_eq!(agent, CHAT.keep_alive());
    assert!(captured.completions.is_empty() && captured.flags.is_empty());
}
