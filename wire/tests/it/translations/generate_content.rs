use super::*;
use bytes::BytesMut;
use dressage_wire::capture::{StreamEnd, StreamForm};
use dressage_wire::dialect::route;

/// A request with most of what the dialect has, as Gemini CLI asks.
pub fn rich() -> Value {
    serde_json::from_str(include_str!("../../rich/generate_content.json")).unwrap()
}

#[test]
fn a_rich_request_becomes_a_chat_completion_and_what_is_lost_is_named() {
    let (chat, facts) = translated("generate_content", true, &rich());
    assert_eq!(
        chat,
        json!({
            "model": "m",
            "messages": [
                {"role": "system", "content": "You are Gemini."},
                {"role": "user", "content": [
                    {"type": "text", "text": "look"},
                    {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
                    {"type": "input_audio", "input_audio": {"data": "BBBB", "format": "wav"}}]},
                {"role": "assistant", "reasoning_content": "think", "content": "I look.", "tool_calls": [
                    {"id": "call_0", "type": "function", "function": {"name": "read", "arguments": "{\"path\": \"a\"}"}},
                    {"id": "x1", "type": "function", "function": {"name": "read", "arguments": "{\"path\": \"b\"}"}}]},
                {"role": "tool", "tool_call_id": "call_0", "content": "{\"output\": \"A\"}"},
                {"role": "tool", "tool_call_id": "x1", "content": "{\"output\": \"B\"}"},
                {"role": "user", "content": "go on"}
            ],
            "tools": [
                {"type": "function", "function": {"name": "read", "description": "Reads", "parameters": {
                    "type": "object", "properties": {
                        "path": {"type": ["string", "null"], "maxLength": 10},
                        "kinds": {"type": "array", "items": {"type": "string", "enum": ["A"]}, "minItems": 1}},
                    "required": ["path"]}}},
                {"type": "function", "function": {"name": "write",
                    "parameters": {"type": "object", "properties": {"nullable": {"type": "string"}}}}}
            ],
            "tool_choice": "required",
            "max_tokens": 100,
            "temperature": 1,
            "top_p": 0.95,
            "presence_penalty": 0.1,
            "frequency_penalty": 0.2,
            "seed": 7,
            "stop": ["END"],
            "top_k": 64,
            "response_format": {"type": "json_schema", "json_schema": {"name": "output", "schema": {"type": "object"}}},
            "stream": true,
            "stream_options": {"include_usage": true}
        })
    );
    assert_eq!(
        facts.untranslated,
        [
            "contents.parts.fileData",
            "contents.parts.thoughtSignature",
            "generationConfig.thinkingConfig.thinkingBudget",
            "safetySettings",
            "tools.googleSearch",
        ]
    );
}

#[test]
fn properties_of_a_schema_are_not_taken_for_its_members() {
    let schema = json!({"type": "OBJECT", "properties": {"type": {"type": "STRING"}, "nullable": {"type": "BOOLEAN"},
        "items": {"anyOf": [{"type": "STRING"}, {"type": "NUMBER"}]}}});
    let body = speaker("generate_content").body_with(
        false,
        json!({"tools": [{"functionDeclarations": [{"name": "f", "parameters": schema}]}]}),
    );
    let (chat, _) = translated("generate_content", false, &body);
    assert_eq!(
        chat["tools"][0]["function"]["parameters"],
        json!({"type": "object", "properties": {"type": {"type": "string"}, "nullable": {"type": "boolean"},
            "items": {"anyOf": [{"type": "string"}, {"type": "number"}]}}})
    );
}

#[test]
fn every_way_to_choose_tools_is_translated() {
    let choose = |config: Value| {
        let body = speaker("generate_content").body_with(
            false,
            json!({"tools": [{"functionDeclarations": [{"name": "f"}, {"name": "g"}]}],
                "toolConfig": {"functionCallingConfig": config}}),
        );
        translated("generate_content", false, &body).0
    };
    assert_eq!(choose(json!({"mode": "AUTO"})).get("tool_choice"), None);
    assert_eq!(choose(json!({"mode": "NONE"}))["tool_choice"], "none");
    let only = choose(json!({"mode": "ANY", "allowedFunctionNames": ["g"]}));
    assert_eq!(
        only["tool_choice"],
        json!({"type": "function", "function": {"name": "g"}})
    );
    assert_eq!(only["tools"].as_array().unwrap().len(), 1);
}

#[test]
fn a_reply_has_all_that_chat_completions_told_and_comes_back_as_it_was() {
    let call = |id: &str, arguments: &str| json!({"id": id, "type": "function", "function": {"name": "f", "arguments": arguments}});
    let message = json!({"role": "assistant", "reasoning_content": "think", "content": "I call.",
        "tool_calls": [call("call_1", "{\"a\": 1}"), call("call_2", "[1]")]});
    let body = speaker("generate_content").body(false);
    let document = document("generate_content", &body, message.clone(), "tool_calls");
    assert_eq!(
        document,
        json!({"candidates": [{"content": {"parts": [
            {"text": "think", "thought": true},
            {"text": "I call."},
            {"functionCall": {"id": "call_1", "name": "f", "args": {"a": 1}}},
            {"functionCall": {"id": "call_2", "name": "f", "args": {"INVALID_JSON": "[1]"}}}], "role": "model"},
            "finishReason": "STOP", "index": 0}],
            "usageMetadata": {"promptTokenCount": 10, "candidatesTokenCount": 3, "totalTokenCount": 15,
                "cachedContentTokenCount": 4, "thoughtsTokenCount": 2},
            "modelVersion": "m", "responseId": "1"})
    );
    let mut back = body;
    back["contents"]
        .as_array_mut()
        .unwrap()
        .push(document["candidates"][0]["content"].clone());
    let (chat, facts) = translated("generate_content", false, &back);
    assert!(facts.untranslated.is_empty());
    assert_eq!(chat["messages"][1], message);
    // In pieces, as it was streamed.
    back["contents"][1]["parts"] = json!([{"text": "th", "thought": true}, {"text": "ink", "thought": true},
        {"text": "I "}, {"text": "call."}, document["candidates"][0]["content"]["parts"][2],
        document["candidates"][0]["content"]["parts"][3]]);
    let (chat, _) = translated("generate_content", false, &back);
    assert_eq!(chat["messages"][1], message);
}

#[test]
fn the_path_says_model_and_form() {
    let of = |path: &str, query: &str| {
        route(&Asked {
            method: "POST",
            path,
            query,
            header: &|_| None,
        })
        .map(|(_, target)| (target.model.unwrap(), target.stream))
    };
    assert_eq!(
        of("/v1beta/models/a:generateContent", ""),
        Some(("a".into(), None))
    );
    assert_eq!(
        of("/v1beta/models/a%2Fb:streamGenerateContent", "key=1&alt=sse"),
        Some(("a/b".into(), Some(StreamForm::Events)))
    );
    assert_eq!(
        of("/v1/models/a/b:streamGenerateContent", ""),
        Some(("a/b".into(), Some(StreamForm::Array)))
    );
    assert_eq!(of("/v1beta/models/a:embedContent", ""), None);
    assert_eq!(of("/v1beta/models/:generateContent", ""), None);
}

#[test]
fn a_stream_without_events_is_an_array() {
    let (dialect, target) = route(&Asked {
        method: "POST",
        path: "/v1beta/models/m:streamGenerateContent",
        query: "",
        header: &|_| None,
    })
    .unwrap();
    let body = Bytes::from(speaker("generate_content").body(true).to_string());
    let facts = dialect.prepare(&target, &body, &rules()).unwrap().facts;
    assert_eq!((facts.streamed, facts.form), (true, StreamForm::Array));
    let text = super::super::recordings::response("vllm-0.32.0/list_tools_stream_lp5_ids");
    let mut capture = dialect.stream(&facts, 1 << 20);
    let mut out = BytesMut::new();
    capture.push(&text, &mut out).unwrap();
    capture.finish(StreamEnd::EndOfBody, &mut out);
    let items: Vec<Value> = serde_json::from_slice(&out).unwrap();
    assert_eq!(items.last().unwrap()["candidates"][0]["finishReason"], "STOP");

    for cut in [0, text.len() / 2] {
        let mut capture = dialect.stream(&facts, 1 << 20);
        let mut out = BytesMut::new();
        capture.push(&text[..cut], &mut out).unwrap();
        capture.finish(StreamEnd::Cut, &mut out);
        capture.fail("it broke", &mut out);
        let items: Vec<Value> = serde_json::from_slice(&out).unwrap();
        assert_eq!(items.last().unwrap()["error"]["message"], "it broke");
    }
    let alone = dialect.error_event(503, "gone", StreamForm::Array);
    assert_eq!(
        serde_json::from_slice::<Value>(&alone).unwrap(),
        json!([{"error": {"code": 503, "message": "gone", "status": "UNAVAILABLE"}}])
    );
}

#[test]
fn bad_requests_say_where_they_are_bad() {
    let with = |contents: Value| refused("generate_content", &json!({"contents": contents})).to_string();
    assert_eq!(
        with(json!([{"role": "robot", "parts": []}])),
        "contents[0].role is not `user` or `model`"
    );
    assert_eq!(
        with(json!([{"parts": [{"functionResponse": {}}]}])),
        "contents[0].parts[0].functionResponse.name is not a string"
    );
    assert_eq!(
        refused("generate_content", &json!({"cachedContent": "cachedContents/1"})).to_string(),
        "cachedContent is about what a service keeps between calls, and nothing is kept here: send the contents themselves"
    );
}
