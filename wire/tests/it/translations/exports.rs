//! Calls of every dialect as rows for trainers: what they say is what the endpoint was asked and answered in chat
//! completions, token by token.

use super::*;
use crate::recordings::response;
use dressage_wire::call::{Call, CallEnd, CallMeta, CaptureLevel, Purpose};
use dressage_wire::capture::{Captured, StreamEnd};
use dressage_wire::export::{Shape, Source};
use dressage_wire::ids::{CallId, RolloutId};
use dressage_wire::rollout::{RolloutOutcome, RolloutStart, RolloutState};
use dressage_wire::trajectory::{ContentHash, Trajectory, TrajectoryBuilder};
use dressage_wire::validate::{Findings, line};
use std::collections::HashMap;

/// A conversation of two calls in a dialect, with replies that vLLM gave.
struct Conversation {
    calls: Vec<Call>,
    /// The requests as the endpoint got them.
    asked: Vec<Value>,
    untranslated: Vec<String>,
}

/// A request of a dialect, which leaves sampling free so that replies are trained.
fn rich(dialect: &str) -> Value {
    match dialect {
        "messages" => messages::rich(),
        "responses" => {
            let mut body = responses::rich();
            body["text"].as_object_mut().unwrap().remove("format");
            body
        }
        "generate_content" => {
            let mut body = generate_content::rich();
            let config = body["generationConfig"].as_object_mut().unwrap();
            config.remove("responseMimeType");
            config.remove("responseSchema");
            body.as_object_mut().unwrap().remove("toolConfig");
            body
        }
        _ => json!({"model": "m", "messages": [{"role": "user", "content": "look"}], "stream": true,
            "tools": [{"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}]}),
    }
}

/// The request after a reply, as the agent hands it back.
fn next(dialect: &str, mut body: Value, reply: &Value) -> Value {
    let (member, said) = match dialect {
        "messages" => (
            "messages",
            vec![json!({"role": "assistant", "content": reply["content"]})],
        ),
        "responses" => ("input", reply["output"].as_array().unwrap().clone()),
        "generate_content" => ("contents", vec![reply["candidates"][0]["content"].clone()]),
        _ => ("messages", vec![reply["choices"][0]["message"].clone()]),
    };
    let user = match dialect {
        "generate_content" => json!({"role": "user", "parts": [{"text": "and now?"}]}),
        _ => json!({"role": "user", "content": "and now?"}),
    };
    let messages = body[member].as_array_mut().unwrap();
    messages.extend(said);
    messages.push(user);
    body
}

fn call(dialect: &str, index: u32, body: &Value, facts: &RequestFacts, captured: Captured) -> Call {
    let request = Bytes::from(body.to_string());
    let meta = CallMeta {
        id: CallId::new(),
        index,
        dialect: speaker(dialect).dialect.name(),
        streamed: facts.streamed,
        started_unix_ms: 1_000 * u64::from(index),
        first_token_ms: None,
        duration_ms: 1,
        end: captured.end,
        status: Some(200),
        error: captured.error,
        hint: None,
        purpose: Purpose::Agent,
        session: None,
        parent_session: None,
        retry_count: None,
        retry_key: ContentHash::of(&request).to_string(),
        model: captured.model,
        sampling: facts.sampling.clone(),
        usage: captured.usage,
        level: captured.level,
        flags: captured.flags,
        changes: Vec::new(),
        untranslated: facts.untranslated.clone(),
        policy_version_at_dispatch: None,
        policy_version_at_completion: None,
        request_bytes: request.len() as u64,
        upstream_bytes: 0,
    };
    Call {
        meta,
        request,
        response: captured.response,
        prompt_token_ids: captured.prompt_token_ids,
        completions: captured.completions,
    }
}

/// The first reply comes whole, the second as a stream.
fn conversation(dialect: &str) -> Conversation {
    let speaker = speaker(dialect);
    let mut body = rich(dialect);
    let (mut calls, mut asked) = (Vec::new(), Vec::new());
    let mut untranslated = Vec::new();
    for (index, recorded) in [
        (0, "list_tools_unary_lp5_ids"),
        (1, "after_tool_tools_stream_lp5_ids"),
    ] {
        asked.push(translated(dialect, true, &body).0);
        let facts = speaker.prepare(true, &body, &rules()).facts;
        let recorded = response(&format!("vllm-0.32.0/{recorded}"));
        let captured = if index == 0 {
            let facts = RequestFacts {
                upstream_streamed: false,
                ..facts.clone()
            };
            speaker.dialect.whole(&recorded.into(), &facts).1
        } else {
            speaker.stream(&facts, [&recorded[..]], StreamEnd::EndOfBody).1
        };
        assert_eq!(
            (captured.end, captured.level),
            (CallEnd::Complete, CaptureLevel::Tokens),
            "{dialect}"
        );
        untranslated.clone_from(&facts.untranslated);
        let made = call(dialect, index, &body, &facts, captured);
        let reply = serde_json::from_slice(&made.response).unwrap();
        body = next(dialect, body, &reply);
        calls.push(made);
    }
    Conversation {
        calls,
        asked,
        untranslated,
    }
}

fn rows(calls: &[Call], shape: Shape) -> Vec<Value> {
    let mut builder = TrajectoryBuilder::new();
    let (mut records, mut contents) = (Vec::new(), HashMap::<ContentHash, Bytes>::new());
    for call in calls {
        let recorded = builder.push(call.clone());
        records.push(recorded.record);
        contents.extend(recorded.contents);
    }
    let mut trajectory = Trajectory::restore(records.clone());
    trajectory.finalise();
    let id = RolloutId::new();
    let start: RolloutStart = serde_json::from_value(json!({
        "id": id, "owner": RolloutId::new(), "task": {"instruction": "go", "id": "t"}, "sample": 0, "endpoint": "e",
        "base_url": "http://127.0.0.1:1/v1", "model": "m", "backend": "local", "agent_version": "1",
        "mode": "transparent_proxy", "placement": "relay", "capture": "stream", "started_unix_ms": 1,
    }))
    .unwrap();
    let outcome: RolloutOutcome = serde_json::from_value(json!({
        "id": id, "ended": "completed", "fault": null, "sandbox": null, "stages": [], "setup": [], "agent": null,
        "reward": {"value": 1.0, "overridden": false, "source": "verify", "commands": [], "separation": "namespace", "detail": null},
        "files": {}, "files_extra": [], "totals": {}, "late_flags": [], "warnings": [], "wall_ms": 1, "finished_unix_ms": 2,
    }))
    .unwrap();
    let source = Source {
        id,
        state: RolloutState::Finished,
        priority: 0,
        created_unix_ms: 1,
        finished_unix_ms: Some(2),
        start: Some(&start),
        outcome: Some(&outcome),
        trajectory: &trajectory,
        records: &records,
        contents: &contents,
    };
    let mut written = Vec::new();
    source.write_lines(shape, &mut written).unwrap();
    let mut findings = Findings::default();
    let lines: Vec<&[u8]> = written
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty())
        .collect();
    for text in &lines {
        assert_eq!(line(text, &mut findings), Some(shape));
    }
    assert_eq!(findings.list, [], "{shape}");
    lines
        .iter()
        .map(|text| serde_json::from_slice(text).unwrap())
        .collect()
}

/// A message of a chat completion without members that say nothing, its text as one.
fn plain(message: &Value) -> Value {
    let mut plain = message.clone();
    let members = plain.as_object_mut().unwrap();
    for name in ["annotations", "audio", "function_call", "refusal"] {
        members.remove(name);
    }
    if let Some(reasoning) = members.remove("reasoning") {
        members.insert("reasoning_content".into(), reasoning);
    }
    members.retain(|_, value| !value.is_null());
    plain
}

/// A message of a row, likewise.
fn of_row(message: &Value) -> Value {
    let mut message = plain(message);
    let members = message.as_object_mut().unwrap();
    if let Some(parts) = members.remove("content_parts") {
        members.insert(
            "content".into(),
            serde_json::from_str(parts.as_str().unwrap()).unwrap(),
        );
    }
    message
}

/// What vLLM said in the second reply.
fn last_reply() -> Value {
    let recorded = response("vllm-0.32.0/after_tool_tools_stream_lp5_ids");
    let (said, _) = speaker("chat_completions").hears_stream(&recorded);
    let calls: Vec<Value> = said
        .calls
        .iter()
        .map(|(id, name, arguments)| json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}))
        .collect();
    let mut message = json!({"role": "assistant"});
    for (name, text) in [("reasoning_content", &said.reasoning), ("content", &said.text)] {
        if !text.is_empty() {
            message[name] = json!(text);
        }
    }
    if !calls.is_empty() {
        message["tool_calls"] = json!(calls);
    }
    message
}

#[test]
fn conversations_of_every_dialect_are_rows_of_chat_completions() {
    for speaker in speakers() {
        let Conversation {
            calls,
            asked,
            untranslated,
        } = conversation(speaker.name);
        let mut rows = rows(&calls, Shape::Chat);
        assert_eq!(
            rows.len(),
            1,
            "{}: the second call goes on from the first",
            speaker.name
        );
        let row = rows.remove(0);
        let mut messages: Vec<Value> = row["messages"].as_array().unwrap().iter().map(of_row).collect();
        let reply = messages.pop().unwrap();
        let expected: Vec<Value> = asked[1]["messages"]
            .as_array()
            .unwrap()
            .iter()
            .map(plain)
            .collect();
        assert_eq!(messages, expected, "{}", speaker.name);
        assert_eq!(reply, last_reply(), "{}", speaker.name);
        let tools: Value = serde_json::from_str(row["tools"].as_str().unwrap()).unwrap();
        assert_eq!(tools, asked[1]["tools"], "{}", speaker.name);
        assert_eq!(row["finish_reason"], "stop", "{}", speaker.name);
        assert_eq!(row["dialect"], speaker.name);
        assert_eq!(row["untranslated"], json!(untranslated), "{}", speaker.name);
    }
}

#[test]
fn turns_of_every_dialect_are_chat_completions_in_a_training_trace() {
    for speaker in speakers() {
        let Conversation {
            calls,
            asked,
            untranslated,
        } = conversation(speaker.name);
        let row = rows(&calls, Shape::Trl).remove(0);
        let trace: Value = serde_json::from_str(row["training_trace"].as_str().unwrap()).unwrap();
        let entries: Value = serde_json::from_str(row["trace_entries"].as_str().unwrap()).unwrap();
        assert_eq!(
            (&row["turns"], trace["turns"].as_array().unwrap().len()),
            (&json!(2), 2)
        );
        for (index, asked) in asked.iter().enumerate() {
            let (turn, entry) = (&trace["turns"][index], &entries[index]);
            assert_eq!(
                turn["completion_token_ids"],
                json!(calls[index].completions[0].token_ids)
            );
            for request in [&turn["request"], &entry["request"]] {
                assert_eq!(request["messages"], asked["messages"], "{}", speaker.name);
                assert_eq!(request["tools"], asked["tools"], "{}", speaker.name);
            }
            for response in [&turn["response"], &entry["response"]] {
                assert_eq!(response["object"], "chat.completion", "{}", speaker.name);
                let usage = calls[index].meta.usage.unwrap();
                assert_eq!(response["usage"]["completion_tokens"], usage.completion_tokens);
            }
            assert_eq!(turn["metadata"]["dialect"], speaker.name);
            assert_eq!(turn["metadata"]["untranslated"], json!(untranslated));
        }
        let message = &trace["turns"][0]["response"]["choices"][0]["message"];
        assert_eq!(
            message["tool_calls"][0]["function"]["arguments"], "{\"command\": \"ls /tmp\"}",
            "{}",
            speaker.name
        );
        assert_eq!(
            plain(&trace["turns"][1]["response"]["choices"][0]["message"]),
            last_reply()
        );
    }
}

#[test]
fn sequences_of_every_dialect_have_the_ids_that_the_endpoint_sent() {
    let of = |dialect: &str| {
        let calls = conversation(dialect).calls;
        let mut rows = rows(&calls, Shape::Verl);
        for row in &mut rows {
            row.as_object_mut().unwrap().remove("rollout");
        }
        let trained: u64 = rows
            .iter()
            .flat_map(|row| row["response_mask"].as_array().unwrap())
            .map(|mask| mask.as_u64().unwrap())
            .sum();
        let sampled: usize = calls.iter().map(|call| call.completions[0].token_ids.len()).sum();
        assert_eq!(trained, sampled as u64, "{dialect}");
        rows
    };
    let expected = of("chat_completions");
    for speaker in speakers() {
        assert_eq!(of(speaker.name), expected, "{}", speaker.name);
        rows(&conversation(speaker.name).calls, Shape::Native);
        let documents = rows(&conversation(speaker.name).calls, Shape::Atif);
        let steps = documents[0]["steps"].as_array().unwrap();
        let sampled: Vec<&Value> = steps
            .iter()
            .filter(|step| step["llm_call_count"] == 1)
            .map(|step| &step["metrics"]["completion_token_ids"])
            .collect();
        let calls = conversation(speaker.name).calls;
        let sent: Vec<Value> = calls
            .iter()
            .map(|call| json!(call.completions[0].token_ids))
            .collect();
        assert_eq!(sampled, sent.iter().collect::<Vec<_>>(), "{}", speaker.name);
    }
}

#[test]
fn a_reply_whose_calls_and_texts_alternate_is_one_message() {
    let reply = json!({"type": "message", "content": [
        {"type": "text", "text": "a"}, {"type": "tool_use", "id": "1", "name": "f", "input": {}},
        {"type": "thinking", "thinking": "t", "signature": ""}, {"type": "text", "text": "b"},
        {"type": "tool_use", "id": "2", "name": "g", "input": {"INVALID_JSON": "{"}}]});
    let speaker = speaker("messages");
    let body = speaker.body(false);
    let facts = speaker.prepare(false, &body, &rules()).facts;
    let recorded = response("vllm-0.32.0/list_tools_unary_lp5_ids");
    let captured = speaker.dialect.whole(&recorded.into(), &facts).1;
    let mut call = call("messages", 0, &body, &facts, captured);
    call.response = reply.to_string().into();
    let row = self::rows(&[call], Shape::Chat).remove(0);
    assert_eq!(
        row["messages"][1],
        json!({"role": "assistant", "content": "ab", "content_parts": null, "reasoning_content": "t", "tool_call_id": null,
            "name": null, "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}},
                {"id": "2", "type": "function", "function": {"name": "g", "arguments": "{"}}]})
    );
}
