//! Requests of the translated dialects as chat completions, and what only one dialect has.

mod exports;
mod generate_content;
mod messages;
mod responses;

use super::recordings::rules;
use super::speakers::{speaker, speakers};
use bytes::Bytes;
use dressage_wire::capture::{RequestError, RequestFacts, RequestRules, Shown};
use dressage_wire::dialect::{Asked, Dialect, ModelEntry, SideRoute, side_route};
use proptest::prelude::*;
use serde_json::{Value, json};

/// A request as it goes upstream, without what the capture asks for, and what is known of it.
fn translated(dialect: &str, streamed: bool, body: &Value) -> (Value, RequestFacts) {
    let prepared = speaker(dialect).prepare(
        streamed,
        body,
        &RequestRules {
            ask: dressage_wire::capture::Ask::Nothing,
            ..RequestRules::default()
        },
    );
    (serde_json::from_slice(&prepared.body).unwrap(), prepared.facts)
}

fn refused(dialect: &str, body: &Value) -> RequestError {
    let speaker = speaker(dialect);
    let body = Bytes::from(body.to_string());
    speaker
        .dialect
        .prepare(&speaker.target(false), &body, &rules())
        .unwrap_err()
}

/// The document of a chat completion with this message, in a dialect.
fn document(dialect: &str, body: &Value, message: Value, finish: &str) -> Value {
    let speaker = speaker(dialect);
    let facts = RequestFacts {
        streamed: false,
        ..speaker.prepare(false, body, &rules()).facts
    };
    let reply = chat(message, finish);
    let (Shown::Document(shown), _) = speaker.dialect.whole(&reply, &facts) else {
        panic!("no document");
    };
    serde_json::from_slice(&shown).unwrap()
}

/// The stream of the same reply.
fn stream(dialect: &str, body: &Value, message: Value, finish: &str) -> String {
    let speaker = speaker(dialect);
    let buffered = RequestRules {
        capture: dressage_wire::task::CaptureMode::Buffer,
        ..rules()
    };
    let facts = speaker.prepare(true, body, &buffered).facts;
    let (Shown::Stream(shown), _) = speaker.dialect.whole(&chat(message, finish), &facts) else {
        panic!("no stream");
    };
    String::from_utf8(shown.to_vec()).unwrap()
}

fn chat(message: Value, finish: &str) -> Bytes {
    Bytes::from(
        json!({"id": "chatcmpl-1", "object": "chat.completion", "created": 7, "model": "m",
            "choices": [{"index": 0, "message": message, "finish_reason": finish}],
            "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15,
                "prompt_tokens_details": {"cached_tokens": 4},
                "completion_tokens_details": {"reasoning_tokens": 2}}})
        .to_string(),
    )
}

/// What a request asks for beside a reply.
fn side(method: &str, path: &str, header: Option<&str>) -> Option<(&'static dyn Dialect, SideRoute)> {
    side_route(&Asked {
        method,
        path,
        query: "",
        header: &|name| (Some(name) == header).then_some("1"),
    })
}

#[test]
fn the_list_of_models_is_in_the_callers_form() {
    let entry = ModelEntry {
        id: "a/b".into(),
        created_unix_s: 0,
        context_tokens: Some(8),
    };
    let list = |(dialect, route): (&dyn Dialect, SideRoute)| {
        assert_eq!(route, SideRoute::Models);
        dialect
            .models(std::slice::from_ref(&entry))
            .map(|list| serde_json::from_slice::<Value>(&list).unwrap())
    };
    assert_eq!(list(side("GET", "/v1/models", None).unwrap()), None);
    assert_eq!(
        list(side("GET", "/v1/models", Some("anthropic-version")).unwrap()),
        Some(
            json!({"data": [{"type": "model", "id": "a/b", "display_name": "a/b", "created_at": "1970-01-01T00:00:00Z"}],
            "has_more": false, "first_id": "a/b", "last_id": "a/b"})
        )
    );
    assert_eq!(
        list(side("GET", "/v1beta/models", None).unwrap()),
        Some(
            json!({"models": [{"name": "models/a/b", "version": "001", "displayName": "a/b", "inputTokenLimit": 8,
            "outputTokenLimit": 8, "supportedGenerationMethods": ["generateContent", "countTokens"]}]})
        )
    );
    for (path, header) in [
        ("/v1/models/a/b", None),
        ("/v1/models/a/b", Some("anthropic-version")),
        ("/v1beta/models/a/b", None),
        ("/v1beta/models/a%2Fb", None),
        ("/v1/models/a%2Fb", Some("x-goog-api-key")),
    ] {
        assert_eq!(
            side("GET", path, header).unwrap().1,
            SideRoute::Model("a/b".into())
        );
    }
    assert!(side("POST", "/v1/models", None).is_none());
    assert!(side("GET", "/v1/modelsx", None).is_none());
}

#[test]
fn tokens_are_counted_for_those_who_ask_in_their_own_form() {
    let (dialect, route) = side("POST", "/v1/messages/count_tokens", None).unwrap();
    let SideRoute::CountTokens(target) = route else {
        panic!()
    };
    let body =
        json!({"model": "m", "messages": [{"role": "user", "content": "hi"}], "system": "s"}).to_string();
    let chat: Value = serde_json::from_slice(&dialect.to_be_counted(&target, &body.into()).unwrap()).unwrap();
    let messages = json!([{"role": "system", "content": "s"}, {"role": "user", "content": "hi"}]);
    assert_eq!((&chat["messages"], &chat["model"]), (&messages, &json!("m")));
    assert_eq!(dialect.token_count(7).unwrap(), r#"{"input_tokens":7}"#);

    let (dialect, route) = side("POST", "/v1beta/models/x:countTokens", None).unwrap();
    let SideRoute::CountTokens(target) = route else {
        panic!()
    };
    for body in [
        json!({"contents": [{"parts": [{"text": "hi"}]}]}),
        json!({"generateContentRequest": {"model": "models/x", "contents": [{"parts": [{"text": "hi"}]}]}}),
    ] {
        let chat = dialect.to_be_counted(&target, &body.to_string().into()).unwrap();
        let chat: Value = serde_json::from_slice(&chat).unwrap();
        assert_eq!(
            chat,
            json!({"model": "x", "messages": [{"role": "user", "content": "hi"}]})
        );
    }
    assert_eq!(dialect.token_count(7).unwrap(), r#"{"totalTokens":7}"#);
}

/// A value with one place in it changed.
fn changed(value: &Value, at: &mut usize, to: &Value) -> Value {
    if *at == 0 {
        *at = usize::MAX;
        return to.clone();
    }
    *at -= 1;
    match value {
        Value::Array(items) => items.iter().map(|item| changed(item, at, to)).collect(),
        Value::Object(members) => Value::Object(
            members
                .iter()
                .map(|(name, value)| (name.clone(), changed(value, at, to)))
                .collect(),
        ),
        other => other.clone(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]
    #[test]
    fn a_request_with_anything_in_any_place_is_translated_or_refused(
        at in 1..120_usize,
        to in prop::sample::select(vec![
            json!(null), json!(true), json!(7), json!(-0.5), json!(""), json!("x"), json!([]), json!([7]), json!({}),
            json!({"type": "x"}), json!([{"type": "text"}]), json!([[]]),
        ]),
    ) {
        for speaker in speakers() {
            let body = match speaker.name {
                "messages" => messages::rich(),
                "responses" => responses::rich(),
                "generate_content" => generate_content::rich(),
                _ => continue,
            };
            let body = changed(&body, &mut at.clone(), &to);
            let target = speaker.target(true);
            if let Ok(prepared) = speaker.dialect.prepare(&target, &Bytes::from(body.to_string()), &rules()) {
                prop_assert!(serde_json::from_slice::<Value>(&prepared.body).is_ok());
            }
        }
    }
}
