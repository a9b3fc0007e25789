//! Members, their order, nulls and framing, compared with recordings of vLLM 0.32.

use crate::client::{Reply, chat, config, model_of, post, start};
use dressage_testkit::model::{ScriptedModel, ScriptedModelConfig, Turn};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// A recorded request and its recorded reply.
fn recorded(name: &str) -> (Value, String) {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../fixtures/engines/vllm-0.32.0");
    let read = |suffix: &str| std::fs::read_to_string(format!("{folder}/{name}.{suffix}")).unwrap();
    (
        serde_json::from_str(&read("request.json")).unwrap(),
        read("response.body"),
    )
}

fn recorded_events(body: &str) -> Vec<Value> {
    let events = body
        .split_terminator("\n\n")
        .map(|event| event.strip_prefix("data: ").unwrap());
    events
        .filter(|event| *event != "[DONE]")
        .map(|event| serde_json::from_str(event).unwrap())
        .collect()
}

/// The members of a document in order, with the types of their values; of an array, the first value's.
fn shape(value: &Value) -> String {
    match value {
        Value::Null => "null".into(),
        Value::Bool(_) => "bool".into(),
        Value::Number(_) => "number".into(),
        Value::String(_) => "string".into(),
        Value::Array(values) => format!("[{}]", values.first().map(shape).unwrap_or_default()),
        Value::Object(members) => {
            let members: Vec<String> = members
                .iter()
                .map(|(name, value)| format!("{name}: {}", shape(value)))
                .collect();
            format!("{{{}}}", members.join(", "))
        }
    }
}

/// What an event of a stream is for.
fn kind(event: &Value) -> &'static str {
    let Some(choice) = event["choices"].get(0) else {
        return "usage";
    };
    let delta = &choice["delta"];
    let has_id = delta["tool_calls"][0].get("id").is_some();
    match choice["finish_reason"].as_str() {
        Some(_) => "finish",
        None if delta.get("role").is_some() => "first",
        None if has_id => "tool name",
        None if delta.get("tool_calls").is_some() => "tool arguments",
        None if delta.get("reasoning").is_some_and(Value::is_string) => "reasoning",
        None if delta.get("content").is_some() => "content",
        None => "nothing",
    }
}

fn shapes(events: &[Value]) -> BTreeMap<&'static str, String> {
    events.iter().map(|event| (kind(event), shape(event))).collect()
}

async fn model_of_the_recordings() -> ScriptedModel {
    model_of(vec![
        Turn::calls("bash", json!({"command": "ls /tmp"})).thinking("I should run ls."),
    ])
    .await
}

/// Every kind of event of the recording comes, and has the recorded shape.
async fn assert_recorded_shapes(name: &str, kinds: &[&str]) -> Reply {
    let (request, body) = recorded(name);
    let reply = chat(&model_of_the_recordings().await, &request).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    let (ours, theirs) = (shapes(&reply.events()), shapes(&recorded_events(&body)));
    for kind in kinds {
        assert!(
            theirs.contains_key(kind),
            "the recording has no event of kind {kind}"
        );
        assert_eq!(ours.get(kind), theirs.get(kind), "{name}: {kind}");
    }
    reply
}

#[tokio::test]
async fn a_captured_stream_with_a_tool_call_has_the_recorded_shapes() {
    let kinds = [
        "first",
        "nothing",
        "reasoning",
        "content",
        "tool name",
        "tool arguments",
        "finish",
        "usage",
    ];
    assert_recorded_shapes("list_tools_stream_lp5_ids", &kinds).await;
}

#[tokio::test]
async fn a_plain_stream_with_a_tool_call_has_the_recorded_shapes_and_no_empty_events() {
    let kinds = [
        "first",
        "reasoning",
        "content",
        "tool name",
        "tool arguments",
        "finish",
        "usage",
    ];
    let reply = assert_recorded_shapes("list_tools_stream_plain", &kinds).await;
    assert!(reply.events().iter().all(|event| kind(event) != "nothing"));
}

#[tokio::test]
async fn without_a_usage_event_the_fingerprint_stands_on_the_finish_event() {
    let model = model_of(vec![Turn::says("Hi.").thinking("Hi 🎉!")]).await;
    for name in ["hi_stream_plain", "hi_stream_continuous_usage"] {
        let (request, body) = recorded(name);
        let ours = shapes(&chat(&model, &request).await.events());
        let theirs = shapes(&recorded_events(&body));
        for kind in ["first", "reasoning", "finish"] {
            assert_eq!(ours.get(kind), theirs.get(kind), "{name}: {kind}");
        }
        assert_eq!(ours.contains_key("usage"), theirs.contains_key("usage"));
    }
}

#[tokio::test]
async fn tokens_named_by_id_have_the_recorded_shapes() {
    let (request, body) = recorded("hi_stream_tokens_as_ids");
    let model = model_of(vec![Turn::says("Hi.").thinking("Hi there")]).await;
    let ours = chat(&model, &request).await.events();
    let theirs = recorded_events(&body);
    for kind in ["first", "reasoning", "finish", "usage"] {
        assert_eq!(shapes(&ours).get(kind), shapes(&theirs).get(kind), "{kind}");
    }
    for event in ours
        .iter()
        .chain(&theirs)
        .filter(|event| kind(event) == "reasoning")
    {
        let entry = &event["choices"][0]["logprobs"]["content"][0];
        assert!(
            entry["token"].as_str().unwrap().starts_with("token_id:"),
            "{entry}"
        );
        let text = |named: &Value| {
            let bytes = named["bytes"]
                .as_array()
                .unwrap()
                .iter()
                .map(|byte| byte.as_u64().unwrap() as u8);
            String::from_utf8(bytes.collect()).unwrap()
        };
        assert_eq!(event["choices"][0]["delta"]["reasoning"], text(entry).as_str());
        let alternative = &entry["top_logprobs"][0];
        assert_eq!(alternative["token"], text(alternative).as_str());
    }
}

#[tokio::test]
async fn without_reasoning_neither_ids_nor_log_probabilities_come() {
    let kinds = [
        "first",
        "content",
        "tool name",
        "tool arguments",
        "finish",
        "usage",
    ];
    let reply = assert_recorded_shapes("list_tools_no_include_reasoning_stream", &kinds).await;
    assert!(!reply.text().contains("I should"), "reasoning was to be left out");
}

#[tokio::test]
async fn a_malformed_call_ends_a_stream_with_tool_calls_and_a_document_with_stop() {
    let raw = Value::from("{\"command\": \n");
    let turn = Turn::calls("bash", raw).thinking("Trying.");
    let model = model_of(vec![turn]).await;
    let (request, body) = recorded("bad_tools_stream_lp5_ids");
    let ours = chat(&model, &request).await.events();
    let theirs = recorded_events(&body);
    let finish = |events: &[Value]| {
        events.iter().rev().find(|e| kind(e) == "finish").unwrap()["choices"][0]["finish_reason"].clone()
    };
    assert_eq!(finish(&ours), finish(&theirs));
    assert_eq!(finish(&ours), "tool_calls");
    let (request, body) = recorded("bad_tools_unary_lp5_ids");
    let ours = chat(&model, &request).await.json();
    let theirs: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(shape(&ours), shape(&theirs));
    assert_eq!(ours["choices"][0]["finish_reason"], "stop");
    assert!(
        ours["choices"][0]["message"]["content"]
            .as_str()
            .unwrap()
            .contains("<tool_call>")
    );
}

#[tokio::test]
async fn documents_have_the_recorded_shapes() {
    let (request, body) = recorded("list_tools_unary_lp5_ids");
    let ours = chat(&model_of_the_recordings().await, &request).await.json();
    let theirs: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(shape(&ours), shape(&theirs));
    assert_eq!(
        ours["choices"][0]["message"]["tool_calls"][0]["function"],
        theirs["choices"][0]["message"]["tool_calls"][0]["function"]
    );
    assert_eq!(
        ours["choices"][0]["message"]["reasoning"],
        theirs["choices"][0]["message"]["reasoning"]
    );

    // The recorded model said nothing but reasoning; cut short inside it, ours does the same.
    let (mut request, body) = recorded("hi_unary_plain");
    request["max_tokens"] = json!(3);
    let model = model_of(vec![Turn::says("Hi.").thinking("Hi 🎉!")]).await;
    let ours = chat(&model, &request).await.json();
    let theirs: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(shape(&ours), shape(&theirs));
    assert_eq!(ours["choices"][0]["finish_reason"], "length");
}

#[tokio::test]
async fn tokenize_has_the_recorded_shape() {
    let (mut request, body) = recorded("tokenize_chat");
    request["return_token_strs"] = json!(true);
    let ours = post(&model_of(vec![]).await, "/tokenize", request.to_string())
        .await
        .json();
    assert_eq!(shape(&ours), shape(&serde_json::from_str(&body).unwrap()));
}

#[tokio::test]
async fn refusals_are_the_recorded_ones_word_by_word() {
    let model = start(ScriptedModelConfig {
        max_model_len: 1024,
        ..config()
    })
    .await;
    for (name, status) in [
        ("err_model_404", 404),
        ("err_stream_options_without_stream", 400),
        ("err_ctx_stream", 400),
    ] {
        let (request, body) = recorded(name);
        let reply = chat(&model, &request).await;
        assert_eq!(
            (reply.status, reply.text().as_str()),
            (status, body.as_str()),
            "{name}"
        );
        assert_eq!(reply.headers["content-type"], "application/json", "{name}");
    }
}

#[tokio::test]
async fn bad_requests_are_refused_and_name_the_member() {
    let model = start(config()).await;
    let hi = json!([{"role": "user", "content": "hi"}]);
    let bad = [
        (json!({"messages": hi, "top_logprobs": 5}), "top_logprobs"),
        (
            json!({"messages": hi, "logprobs": true, "top_logprobs": 21}),
            "greater than max allowed: 20",
        ),
        (
            json!({"messages": hi, "logprobs": "yes"}),
            "logprobs: input should be a valid boolean",
        ),
        (json!({"messages": hi, "max_tokens": 0}), "max_tokens"),
        (
            json!({"messages": hi, "max_tokens": 1_000_000}),
            "'max_tokens' or 'max_completion_tokens' is too large",
        ),
        (json!({"messages": hi, "n": 0}), "n must be at least 1"),
        (json!({"messages": hi, "n": 1000}), "n must be at most 128"),
        (json!({"messages": hi, "temperature": -1}), "temperature"),
        (
            json!({"messages": hi, "stream": true, "prompt_logprobs": 1}),
            "prompt_logprobs",
        ),
        (json!({"messages": hi, "stop": ""}), "stop"),
        (json!({"messages": hi, "tools": [{"type": "function"}]}), "tools"),
        (json!({"messages": []}), "messages"),
        (json!({"messages": [{"content": "no role"}]}), "messages.role"),
        (
            json!({"messages": [{"role": "user", "content": 5}]}),
            "messages.content",
        ),
        (json!({"model": "tiny"}), "messages: field required"),
        (json!([]), "must be a JSON object"),
    ];
    for (body, said) in bad {
        let reply = chat(&model, &body).await;
        assert_eq!(reply.status, 400, "{body}");
        let error = &reply.json()["error"];
        assert!(
            error["message"].as_str().unwrap().contains(said),
            "{body}: {error}"
        );
        assert_eq!(error["code"], 400);
    }
    let reply = post(&model, "/v1/chat/completions", "{\"messages\": [".into()).await;
    assert_eq!(
        (reply.status, &reply.json()["error"]["type"]),
        (400, &json!("Bad Request"))
    );
}

#[tokio::test]
async fn each_event_is_an_http_chunk_of_its_own() {
    let (request, _) = recorded("list_tools_stream_lp5_ids");
    let reply = chat(&model_of_the_recordings().await, &request).await;
    assert_eq!(reply.headers["content-type"], "text/event-stream; charset=utf-8");
    assert_eq!(reply.headers["transfer-encoding"], "chunked");
    assert_eq!(reply.chunks.len(), reply.events().len() + 1);
    assert!(
        reply
            .chunks
            .iter()
            .all(|chunk| chunk.starts_with(b"data: ") && chunk.ends_with(b"\n\n"))
    );
}
