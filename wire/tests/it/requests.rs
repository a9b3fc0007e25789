//! How a request is edited, and who is behind it.

use super::recordings::*;
use bytes::Bytes;
use dressage_wire::call::{Change, Purpose};
use dressage_wire::capture::{AgentSigns, Ask, AuxiliarySign, RequestError, RequestRules, classify};
use dressage_wire::dialect::{Asked, DIALECTS, Dialect, Target, route};
use dressage_wire::sampling::Sampling;
use dressage_wire::task::CaptureMode;
use proptest::prelude::*;
use serde_json::{Value, json};

/// What is sent upstream of a body, as a tree.
fn sent(body: &str, rules: &RequestRules) -> Value {
    serde_json::from_slice(&prepare(body, rules).body).unwrap()
}

fn refused(body: &str) -> RequestError {
    CHAT.prepare(
        &Target::default(),
        &Bytes::copy_from_slice(body.as_bytes()),
        &rules(),
    )
    .unwrap_err()
}

#[test]
fn routes_are_told_by_method_and_path() {
    let to = |method: &str, path: &str| {
        let asked = Asked {
            method,
            path,
            query: "",
            header: &|_| None,
        };
        route(&asked).map(|(_, target)| target.upstream_path)
    };
    for path in ["/v1/chat/completions", "/chat/completions"] {
        assert_eq!(to("POST", path), Some("/chat/completions"));
        assert!(to("GET", path).is_none());
    }
    assert!(to("POST", "/v1/completions").is_none());
    assert!(to("POST", "/v1/chat/completions/render").is_none());
}

#[test]
fn every_dialect_is_a_file_and_a_row() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/dialect");
    let files = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap());
    assert_eq!(files.filter(|name| name.ends_with(".rs")).count(), DIALECTS.len());
}

#[test]
fn the_capture_is_asked_for_and_the_rest_stays_byte_for_byte() {
    let body =
        r#"{"model": "m", "messages": [ {"role":"user", "content":"\u00e9 é"} ], "x": 1.50, "stream": true}"#;
    let prepared = prepare(body, &rules());
    assert_eq!(
        std::str::from_utf8(&prepared.body).unwrap(),
        concat!(
            r#"{"model":"m","messages":[ {"role":"user", "content":"\u00e9 é"} ],"x":1.50,"stream":true,"#,
            r#""stream_options":{"include_usage":true},"logprobs":true,"top_logprobs":5,"return_token_ids":true}"#,
        )
    );
    let facts = prepared.facts;
    assert!(facts.streamed && facts.upstream_streamed && !facts.usage_asked);
    assert_eq!(
        (facts.ask, facts.top_logprobs_asked, facts.top_logprobs_sent),
        (Ask::Tokens, None, 5)
    );
    assert_eq!((facts.model.as_str(), facts.choices), ("m", 1));
}

#[test]
fn no_alternatives_are_asked_for_explicitly() {
    let none = RequestRules {
        top_logprobs: 0,
        ..rules()
    };
    assert_eq!(sent(r#"{"messages":[]}"#, &none)["top_logprobs"], 0);
}

#[test]
fn trap_06_logprobs_are_forced_and_the_larger_number_wins() {
    let body = sent(r#"{"logprobs":false,"top_logprobs":20}"#, &rules());
    assert_eq!(
        (&body["logprobs"], &body["top_logprobs"]),
        (&json!(true), &json!(5))
    );
    let prepared = prepare(r#"{"logprobs":true,"top_logprobs":20}"#, &rules());
    assert_eq!(
        (
            prepared.facts.top_logprobs_asked,
            prepared.facts.top_logprobs_sent
        ),
        (Some(20), 20)
    );
    let prepared = prepare(r#"{"logprobs":true,"top_logprobs":2}"#, &rules());
    assert_eq!(
        (
            prepared.facts.top_logprobs_asked,
            prepared.facts.top_logprobs_sent
        ),
        (Some(2), 5)
    );
    assert_eq!(
        prepare(r#"{"logprobs":true}"#, &rules()).facts.top_logprobs_asked,
        Some(0)
    );
}

#[test]
fn trap_06_what_bends_the_distribution_is_told() {
    let altered = |members: &str| {
        prepare(&format!("{{{members}}}"), &rules())
            .facts
            .sampling_altered
    };
    for members in [
        r#""logit_bias":{"5":1}"#,
        r#""guided_json":{"type":"object"}"#,
        r#""guided_choice":["a"]"#,
        r#""structured_outputs":{"regex":"a"}"#,
        r#""grammar":"root ::= \"a\"""#,
        r#""response_format":{"type":"json_schema"}"#,
        r#""response_format":{"type":"json_object"}"#,
        r#""tool_choice":"required""#,
        r#""tool_choice":{"type":"function","function":{"name":"f"}}"#,
        r#""min_tokens":5"#,
        r#""best_of":2"#,
        r#""ignore_eos":true"#,
    ] {
        assert!(altered(members), "{members}");
    }
    for members in [
        r#""logit_bias":{}"#,
        r#""logit_bias":null"#,
        r#""response_format":{"type":"text"}"#,
        r#""tool_choice":"auto""#,
        r#""min_tokens":0"#,
        r#""typical_p":1.0"#,
        r#""best_of":1"#,
        r#""bad_words":[]"#,
        r#""ignore_eos":false"#,
        r#""temperature":2"#,
    ] {
        assert!(!altered(members), "{members}");
    }
    assert_eq!(prepare(r#"{"n":2}"#, &rules()).facts.choices, 2);
}

#[test]
fn trap_05_a_buffered_capture_asks_for_no_stream() {
    let buffer = RequestRules {
        capture: CaptureMode::Buffer,
        ..rules()
    };
    let prepared = prepare(
        r#"{"stream":true,"stream_options":{"include_usage":true}}"#,
        &buffer,
    );
    let body: Value = serde_json::from_slice(&prepared.body).unwrap();
    assert_eq!(body["stream"], false);
    assert!(body.get("stream_options").is_none());
    let facts = prepared.facts;
    assert!(facts.streamed && !facts.upstream_streamed && facts.usage_asked);
}

#[test]
fn a_count_is_asked_for_and_the_agents_other_options_stay() {
    let options = |options: &str| {
        sent(
            &format!(r#"{{"stream":true,"stream_options":{options}}}"#),
            &rules(),
        )["stream_options"]
            .take()
    };
    assert_eq!(
        options(r#"{"include_usage":false,"x":1}"#),
        json!({"x": 1, "include_usage": true})
    );
    assert_eq!(
        options(r#"{"continuous_usage_stats":true}"#),
        json!({"include_usage": true})
    );
    let both = r#"{"include_usage":true,"continuous_usage_stats":true}"#;
    assert_eq!(options(both), serde_json::from_str::<Value>(both).unwrap());
    assert_eq!(options("null"), json!({"include_usage": true}));
}

#[test]
fn trap_13_the_key_of_a_retry_leaves_out_stream_and_limits() {
    let key = |body: &str| prepare(body, &rules()).facts.retry_body_sha256;
    let first =
        key(r#"{"model":"m","messages":[{"role":"user","content":"é"}],"stream":true,"max_tokens":5}"#);
    assert_eq!(first.len(), 64);
    for retry in [
        r#"{ "messages" : [{"content":"\u00e9","role":"user"}], "model":"m" }"#,
        r#"{"model":"m","messages":[{"role":"user","content":"é"}],"stream":false,"max_completion_tokens":9}"#,
        r#"{"stream_options":{"include_usage":true},"model":"m","messages":[{"role":"user","content":"é"}]}"#,
    ] {
        assert_eq!(key(retry), first, "{retry}");
    }
    for other in [
        r#"{"model":"m","messages":[{"role":"user","content":"e"}]}"#,
        r#"{"model":"m","messages":[{"role":"user","content":"é"}],"temperature":1}"#,
        r#"{"model":"m","messages":[{"role":"user","content":"é","stream":true}]}"#,
    ] {
        assert_ne!(key(other), first, "{other}");
    }
}

fn purpose(body: &str, headers: &[(&str, &'static str)]) -> Purpose {
    let facts = prepare(body, &rules()).facts;
    classify(&facts, &AgentSigns::OPENCODE, |name| {
        headers
            .iter()
            .find(|(known, _)| *known == name)
            .map(|(_, value)| *value)
    })
}

#[test]
fn trap_15_calls_are_told_apart_by_headers_and_first_words() {
    let title = r#"{"messages":[{"role":"system","content":"You are a title generator. Say"},
        {"role":"user","content":"Generate a title for this conversation:\n"}]}"#;
    let summary = r#"{"messages":[{"role":"system","content":[{"type":"text","text":"You are a context summarization agent."}]}]}"#;
    let main = r#"{"messages":[{"role":"system","content":"You are OpenCode"}],"tools":[{}]}"#;
    let own = [
        ("user-agent", "opencode/1.18.33 ai-sdk"),
        ("x-session-id", "ses_1"),
    ];
    assert_eq!(purpose(title, &own), Purpose::Title);
    assert_eq!(purpose(summary, &own), Purpose::Summary);
    assert_eq!(purpose(main, &own), Purpose::Agent);
    let child = [own[0], own[1], ("x-parent-session-id", "ses_0")];
    assert_eq!(purpose(main, &child), Purpose::Subagent);
}

#[test]
fn trap_15_an_agent_that_never_sends_tools_is_still_the_agent() {
    let own = [("user-agent", "opencode/1"), ("x-session-id", "ses_1")];
    assert_eq!(
        purpose(
            r#"{"messages":[{"role":"user","content":"Generate a title for my book"}]}"#,
            &own
        ),
        Purpose::Agent
    );
    let with_tools = r#"{"messages":[{"role":"system","content":"You are a title generator"}],"tools":[{}]}"#;
    assert_eq!(purpose(with_tools, &own), Purpose::Agent);
}

#[test]
fn trap_15_a_call_without_the_agents_signs_is_foreign() {
    let body = r#"{"messages":[]}"#;
    assert_eq!(
        purpose(body, &[("user-agent", "curl/8"), ("x-session-id", "ses_1")]),
        Purpose::Foreign
    );
    assert_eq!(purpose(body, &[("user-agent", "opencode/1")]), Purpose::Foreign);
    assert_eq!(purpose(body, &[]), Purpose::Foreign);
    let facts = prepare(body, &rules()).facts;
    assert_eq!(classify(&facts, &AgentSigns::default(), |_| None), Purpose::Agent);
}

#[test]
fn trap_15_signs_of_other_kinds_tell_subagents_and_summaries_apart() {
    const BY_PROMPT: AgentSigns = AgentSigns {
        session_header: None,
        parent_session_header: None,
        subagent_header: None,
        user_agent_starts_with: Some("Code/"),
        own_system_starts_with: &["You are Code"],
        own_user_starts_with: &[],
        auxiliary: &[
            AuxiliarySign::system(Purpose::Subagent, "You are a memory agent").with_any_tools(),
            AuxiliarySign::system(Purpose::Summary, "You summarize"),
        ],
    };
    let told = |system: &str, tools: &str| {
        let body = format!(r#"{{"messages":[{{"role":"system","content":"{system}"}}],"tools":[{tools}]}}"#);
        classify(&prepare(&body, &rules()).facts, &BY_PROMPT, |name| {
            (name == "user-agent").then_some("Code/1")
        })
    };
    assert_eq!(told("You are Code, an agent", "{}"), Purpose::Agent);
    assert_eq!(told("You are a file searcher", "{}"), Purpose::Subagent);
    assert_eq!(told("You are a memory agent", "{}"), Purpose::Subagent);
    assert_eq!(told("You summarize", ""), Purpose::Summary);

    const BY_FIRST_MESSAGE: AgentSigns = AgentSigns {
        own_user_starts_with: &["<context>"],
        ..BY_PROMPT
    };
    let told = |user: &str| {
        let messages = format!(
            r#"{{"role":"system","content":"You are Code"}},{{"role":"user","content":"{user}"}},{{"role":"user","content":"<context>"}}"#
        );
        let body = format!(r#"{{"messages":[{messages}],"tools":[{{}}]}}"#);
        classify(&prepare(&body, &rules()).facts, &BY_FIRST_MESSAGE, |name| {
            (name == "user-agent").then_some("Code/1")
        })
    };
    assert_eq!(told("<context>Today is Monday."), Purpose::Agent);
    assert_eq!(told("Say which day it is."), Purpose::Subagent);

    const BY_HEADER: AgentSigns = AgentSigns {
        session_header: Some("x-session"),
        parent_session_header: None,
        subagent_header: Some("x-agent-id"),
        user_agent_starts_with: None,
        own_system_starts_with: &[],
        own_user_starts_with: &[],
        auxiliary: &[AuxiliarySign::header(Purpose::Summary, "x-kind", "compact")],
    };
    let facts = prepare(r#"{"messages":[]}"#, &rules()).facts;
    let told = |headers: &[(&str, &'static str)]| {
        let header = |name: &str| {
            headers
                .iter()
                .find(|(known, _)| *known == name)
                .map(|(_, value)| *value)
        };
        (
            classify(&facts, &BY_HEADER, header),
            BY_HEADER.conversation(header),
        )
    };
    assert_eq!(told(&[("x-session", "s")]), (Purpose::Agent, (Some("s"), None)));
    assert_eq!(
        told(&[("x-session", "s"), ("x-agent-id", "a")]),
        (Purpose::Subagent, (Some("a"), Some("s")))
    );
    assert_eq!(
        told(&[("x-session", "s"), ("x-kind", "compact")]).0,
        Purpose::Summary
    );
    assert_eq!(told(&[("x-session", "s"), ("x-kind", "other")]).0, Purpose::Agent);
}

#[test]
fn trap_24_what_was_refused_before_is_left_out_and_the_level_falls() {
    let removed = |field: &str| Change::Removed { field: field.into() };
    let changed = |change: Change| {
        let rules = RequestRules {
            changes: vec![change],
            ..rules()
        };
        let prepared = prepare(
            r#"{"model":"m","messages":[],"max_tokens":9,"temperature":0.5}"#,
            &rules,
        );
        (
            serde_json::from_slice::<Value>(&prepared.body).unwrap(),
            prepared.facts,
        )
    };
    let (body, facts) = changed(removed("return_token_ids"));
    assert!(body.get("return_token_ids").is_none());
    assert_eq!(
        (facts.ask, facts.changes),
        (Ask::Logprobs, vec![removed("return_token_ids")])
    );
    let (body, facts) = changed(removed("logprobs"));
    assert!(body.get("logprobs").is_none() && body.get("top_logprobs").is_none());
    assert_eq!(facts.ask, Ask::Nothing);
    let (body, facts) = changed(removed("temperature"));
    assert!(body.get("temperature").is_none());
    assert_eq!(facts.sampling.temperature, None);
    let to = "max_completion_tokens";
    let (body, facts) = changed(Change::Renamed {
        from: "max_tokens".into(),
        to: to.into(),
    });
    assert_eq!((body.get("max_tokens"), &body[to]), (None, &json!(9)));
    assert_eq!(facts.max_tokens_sent, Some(9));
    let limited = Change::Limited {
        field: "top_logprobs".into(),
        to: "3".into(),
    };
    let (body, facts) = changed(limited.clone());
    assert_eq!((&body["top_logprobs"], facts.top_logprobs_sent), (&json!(3), 3));
    assert_eq!(facts.changes, [limited]);
}

#[test]
fn trap_24_a_change_that_makes_no_difference_is_not_told() {
    let changes = vec![
        Change::Removed { field: "seed".into() },
        Change::Limited {
            field: "top_logprobs".into(),
            to: "9".into(),
        },
        Change::Renamed {
            from: "max_tokens".into(),
            to: "max_completion_tokens".into(),
        },
    ];
    assert_eq!(
        prepare("{}", &RequestRules { changes, ..rules() }).facts.changes,
        []
    );
}

#[test]
fn trap_24_model_messages_tools_and_stream_are_never_taken_out() {
    let body = r#"{"model":"m","messages":[1],"tools":[2],"stream":true}"#;
    let fields = ["model", "messages", "tools", "stream"];
    let removed = fields.map(|field| Change::Removed { field: field.into() });
    let renamed = fields.map(|field| Change::Renamed {
        from: "logprobs".into(),
        to: field.into(),
    });
    let changes = removed.into_iter().chain(renamed).collect();
    let prepared = prepare(body, &RequestRules { changes, ..rules() });
    assert_eq!(prepared.body, prepare(body, &rules()).body);
}

#[test]
fn trap_26_limits_are_clamped_and_what_servers_refuse_is_removed() {
    let capped = RequestRules {
        max_tokens_cap: Some(4096),
        ..rules()
    };
    assert_eq!(sent(r#"{"max_tokens":32000}"#, &capped)["max_tokens"], 4096);
    assert_eq!(
        sent(r#"{"max_completion_tokens":32000}"#, &capped)["max_completion_tokens"],
        4096
    );
    assert_eq!(sent(r#"{"max_tokens":3.2e4}"#, &capped)["max_tokens"], 4096);
    assert_eq!(sent(r#"{"max_tokens":12}"#, &capped)["max_tokens"], 12);
    assert_eq!(sent("{}", &capped)["max_tokens"], 4096);
    let zero = RequestRules {
        max_tokens_cap: Some(0),
        ..rules()
    };
    assert_eq!(sent(r#"{"max_tokens":32000}"#, &zero)["max_tokens"], 32000);
    let facts = prepare(r#"{"max_tokens":32000}"#, &capped).facts;
    assert_eq!(
        (facts.max_tokens_asked, facts.max_tokens_sent),
        (Some(32000), Some(4096))
    );
    let body = sent(
        r#"{"stream_options":{"include_usage":true},"tools":[ ],"tool_choice":"auto"}"#,
        &rules(),
    );
    for gone in ["stream_options", "tools", "tool_choice"] {
        assert!(body.get(gone).is_none(), "{gone}");
    }
    assert!(
        sent(r#"{"tools":[{}],"tool_choice":"auto"}"#, &rules())
            .get("tool_choice")
            .is_some()
    );
}

#[test]
fn trap_28_a_request_of_fifty_megabytes_passes() {
    let content = "x".repeat(50 << 20);
    let body = format!(r#"{{"messages":[{{"role":"user","content":"{content}"}}]}}"#);
    let prepared = prepare(&body, &rules());
    assert!(prepared.body.len() > content.len());
    assert!(prepared.facts.user_start.len() < 500);
}

#[test]
fn trap_29_sampling_is_set_over_the_agents_and_told() {
    let set = Sampling {
        temperature: Some(1.0),
        seed: Some(-3),
        ..Sampling::default()
    }
    .over(&Sampling::neutral());
    let rules = RequestRules {
        sampling: set.clone(),
        ..rules()
    };
    let prepared = prepare(r#"{"temperature":0.1,"top_k":20,"stop":["x"]}"#, &rules);
    let body: Value = serde_json::from_slice(&prepared.body).unwrap();
    assert_eq!(prepared.facts.sampling, set);
    for (name, value) in [
        ("temperature", json!(1.0)),
        ("top_p", json!(1.0)),
        ("top_k", json!(-1)),
        ("min_p", json!(0.0)),
        ("presence_penalty", json!(0.0)),
        ("frequency_penalty", json!(0.0)),
        ("repetition_penalty", json!(1.0)),
        ("seed", json!(-3)),
        ("stop", json!(["x"])),
    ] {
        assert_eq!(body[name], value, "{name}");
    }
}

#[test]
fn trap_29_what_no_rule_sets_stays_the_agents_and_is_told() {
    let sampling = prepare(r#"{"temperature":0.25,"top_p":null,"seed":7}"#, &rules())
        .facts
        .sampling;
    assert_eq!(
        sampling,
        Sampling {
            temperature: Some(0.25),
            seed: Some(7),
            ..Sampling::default()
        }
    );
}

#[test]
fn thinking_is_switched_off_beside_the_agents_own_template_arguments() {
    let off = RequestRules {
        disable_thinking: true,
        ..rules()
    };
    let body = sent(r#"{"chat_template_kwargs":{"enable_thinking":true,"x":1}}"#, &off);
    assert_eq!(
        body["chat_template_kwargs"],
        json!({"x": 1, "enable_thinking": false})
    );
    assert_eq!(
        sent("{}", &off)["chat_template_kwargs"],
        json!({"enable_thinking": false})
    );
}

#[test]
fn another_model_is_named() {
    let other = RequestRules {
        model: Some("a\"b".into()),
        ..rules()
    };
    let prepared = prepare(r#"{"model":"m"}"#, &other);
    assert_eq!(
        serde_json::from_slice::<Value>(&prepared.body).unwrap()["model"],
        "a\"b"
    );
    assert_eq!(prepared.facts.model, "a\"b");
}

#[test]
fn bad_bodies_are_named_errors() {
    assert_eq!(refused("").to_string(), "the request body is not valid JSON");
    assert!(matches!(refused("{\"a\":}"), RequestError::Json(error) if error.at == 5));
    assert!(matches!(refused("{\"a\":1} x"), RequestError::Json(_)));
    assert!(matches!(refused("{\"a\":NaN}"), RequestError::Json(_)));
    assert!(matches!(refused("{\"a\":\"\\q\"}"), RequestError::Json(_)));
    assert!(matches!(refused("{\"a\":[1}"), RequestError::Json(_)));
    assert!(matches!(refused(&"[".repeat(1000)), RequestError::Json(_)));
    assert!(matches!(refused("[]"), RequestError::NotAnObject));
    assert!(matches!(refused("7"), RequestError::NotAnObject));
    let twice = RequestError::DuplicateMember {
        member: "model".into(),
    };
    assert_eq!(refused(r#"{"model":"a","mod\u0065l":"b"}"#), twice);
    let nested = RequestError::DuplicateMember { member: "x".into() };
    assert_eq!(
        refused(r#"{"stream":true,"stream_options":{"x":1,"x":2}}"#),
        nested
    );
    let stream = RequestError::WrongType {
        member: "stream",
        expected: "a boolean",
    };
    assert_eq!(refused(r#"{"stream":"yes"}"#), stream);
    let options = RequestError::WrongType {
        member: "stream_options",
        expected: "an object",
    };
    assert_eq!(refused(r#"{"stream":true,"stream_options":[]}"#), options);
    let invalid = Bytes::from_static(b"{\"a\":\"\xff\"}");
    assert!(
        matches!(CHAT.prepare(&Target::default(), &invalid, &rules()).unwrap_err(), RequestError::Json(error) if error.at == 6)
    );
}

/// Any JSON value, not deep.
fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        ".*".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            proptest::collection::btree_map("[a-z_]{0,8}", inner, 0..4)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn members_that_are_not_ours_stay_what_they_are(content in value(), extra in value()) {
        let body = json!({"messages": [{"role": "user", "content": content}], "zzz": extra});
        let sent = sent(&body.to_string(), &rules());
        prop_assert_eq!(&sent["messages"], &body["messages"]);
        prop_assert_eq!(&sent["zzz"], &body["zzz"]);
    }

    #[test]
    fn any_bytes_are_prepared_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let valid = serde_json::from_slice::<Value>(&bytes).is_ok_and(|value| value.is_object());
        let prepared = CHAT.prepare(&Target::default(), &Bytes::from(bytes), &rules());
        prop_assert!(prepared.is_err() || valid);
    }
}
