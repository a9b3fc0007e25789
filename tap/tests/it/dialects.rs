//! Every dialect through the gateway: what an agent that speaks it gets, and what is recorded.

use crate::support::agent::{Received, part, read};
use crate::support::{Act, Agent, Script, Stage, fixture, soon};
use dressage_tap::Budgets;
use dressage_wire::call::{CallEnd, CaptureLevel, DialectName, Flag};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;

const STREAM: &str = "vllm-0.32.0/list_tools_stream_lp5_ids.response.body";
const UNARY: &str = "vllm-0.32.0/hi_unary_lp5_ids.response.body";

/// How an agent speaks a dialect.
pub struct Way {
    pub name: DialectName,
    pub stream_path: &'static str,
    pub unary_path: &'static str,
    pub body: fn(bool) -> Value,
    /// In what a whole stream ends.
    pub last: &'static str,
    /// Where an error's word is that says what kind it is, and the words for 401, 429 and 529.
    pub kind: &'static str,
    pub kinds: [&'static str; 3],
    pub key_header: &'static str,
}

/// The dialects that are translated.
pub static WAYS: [Way; 3] = [
    Way {
        name: DialectName::Messages,
        stream_path: "/v1/messages?beta=true",
        unary_path: "/v1/messages",
        body: |stream| json!({"model": "tiny", "max_tokens": 50, "stream": stream, "messages": [{"role": "user", "content": "hi"}]}),
        last: "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
        kind: "/error/type",
        kinds: ["authentication_error", "rate_limit_error", "overloaded_error"],
        key_header: "x-api-key",
    },
    Way {
        name: DialectName::Responses,
        stream_path: "/v1/responses",
        unary_path: "/v1/responses",
        body: |stream| json!({"model": "tiny", "input": "hi", "stream": stream}),
        last: "event: response.completed\n",
        kind: "/error/type",
        kinds: ["authentication_error", "rate_limit_error", "server_error"],
        key_header: "authorization",
    },
    Way {
        name: DialectName::GenerateContent,
        stream_path: "/v1beta/models/tiny:streamGenerateContent?alt=sse",
        unary_path: "/v1beta/models/tiny:generateContent",
        body: |_| json!({"contents": [{"parts": [{"text": "hi"}]}]}),
        last: "\"finishReason\":\"STOP\"",
        kind: "/error/status",
        kinds: ["UNAUTHENTICATED", "RESOURCE_EXHAUSTED", "UNAVAILABLE"],
        key_header: "x-goog-api-key",
    },
];

impl Way {
    pub fn path(&self, stream: bool) -> &'static str {
        if stream { self.stream_path } else { self.unary_path }
    }

    async fn ask(&self, agent: &mut Agent, stream: bool) -> Received {
        let request = agent.request("POST", self.path(stream), (self.body)(stream).to_string());
        read(agent.send(request).await).await
    }
}

fn beginning() -> Vec<u8> {
    let text = String::from_utf8(fixture(STREAM)).unwrap();
    text.split_inclusive("\n\n")
        .take(10)
        .collect::<String>()
        .into_bytes()
}

#[tokio::test]
async fn trap_02_a_recorded_turn_is_captured_in_every_dialect_streamed_and_whole() {
    for way in &WAYS {
        for stream in [true, false] {
            let body = fixture(if stream { STREAM } else { UNARY });
            let stage = Stage::new(move |_, _| {
                if stream {
                    Script::events(&body, 100)
                } else {
                    Script::json(200, &body)
                }
            })
            .await;
            let mut agent = stage.agent().await;
            let received = way.ask(&mut agent, stream).await;
            assert_eq!(received.status, 200);
            let text = received.text();
            let kind = if stream {
                "text/event-stream; charset=utf-8"
            } else {
                "application/json"
            };
            assert_eq!(received.headers["content-type"], kind, "{:?}", way.name);
            assert!(!text.contains("token_ids") && !received.broken);
            assert!(!stream || text.contains(way.last), "{text}");
            let call = stage.calls.only().await;
            assert_eq!(call.meta.dialect, way.name);
            assert_eq!(
                (call.meta.end, call.meta.level),
                (CallEnd::Complete, CaptureLevel::Tokens)
            );
            assert_eq!(call.meta.flags, [Flag::SamplingDefaulted]);
            assert_eq!(call.meta.streamed, stream);
            assert_eq!(
                call.completions[0].token_ids.len(),
                if stream {
                    42
                } else {
                    call.completions[0].logprobs.len()
                }
            );
            // The agent's own bytes are kept.
            assert_eq!(call.request, (way.body)(stream).to_string());
            assert!(call.meta.untranslated.is_empty());
            let asked = stage.endpoint.asked().remove(0);
            assert!(asked.head.starts_with("POST /v1/chat/completions HTTP/1.1\r\n"));
            assert_eq!(
                asked.json()["messages"],
                json!([{"role": "user", "content": "hi"}])
            );
            assert_eq!(
                (&asked.json()["model"], &asked.json()["return_token_ids"]),
                (&json!("tiny"), &json!(true))
            );
        }
    }
}

#[tokio::test]
async fn what_could_not_be_translated_is_on_the_call() {
    let stage = Stage::new(|_, _| Script::json(200, fixture(UNARY))).await;
    let mut agent = stage.agent().await;
    let body = json!({"contents": [{"parts": [{"text": "hi"}]}], "safetySettings": [{}], "tools": [{"googleSearch": {}}]});
    let request = agent.request("POST", WAYS[2].unary_path, body.to_string());
    assert_eq!(read(agent.send(request).await).await.status, 200);
    let call = stage.calls.only().await;
    assert_eq!(call.meta.untranslated, ["safetySettings", "tools.googleSearch"]);
}

#[tokio::test]
async fn each_event_passes_before_the_next_one_is_sent_in_every_dialect() {
    for way in &WAYS {
        let gate = Arc::new(Notify::new());
        let held = gate.clone();
        let text = String::from_utf8(fixture("vllm-0.32.0/hi_stream_plain.response.body")).unwrap();
        let (head, tail) = text.split_at(
            text.find("content\":\"")
                .map_or(0, |_| text.find("\n\n").unwrap() + 2),
        );
        let second = tail.find("\n\n").unwrap() + 2;
        let (first, rest) = (format!("{head}{}", &tail[..second]), tail[second..].to_owned());
        let stage = Stage::new(move |_, _| {
            Script::stream()
                .chunk(&first)
                .then(Act::Wait(held.clone()))
                .chunk(&rest)
                .finish()
        })
        .await;
        let mut agent = stage.agent().await;
        let request = agent.request("POST", way.stream_path, (way.body)(true).to_string());
        let mut reply = agent.send(request).await.into_body();
        assert!(!part(&mut reply).await.is_empty(), "{:?}", way.name);
        gate.notify_one();
        let rest = soon("the end", reply.collect()).await.unwrap().to_bytes();
        assert!(
            String::from_utf8_lossy(&rest).contains(way.last),
            "{:?}",
            way.name
        );
    }
}

#[tokio::test]
async fn trap_10_streams_that_break_end_in_an_error_in_every_dialect() {
    for way in &WAYS {
        for act in [None, Some(Act::Reset)] {
            let stage = Stage::new(move |_, _| {
                let script = Script::stream().chunk(beginning());
                match act.clone() {
                    None => script.finish(),
                    Some(act) => script.then(act),
                }
            })
            .await;
            let text = way.ask(&mut stage.agent().await, true).await.text();
            assert!(
                text.contains("error") && !text.contains(way.last),
                "{:?}: {text}",
                way.name
            );
            let call = stage.calls.only().await;
            assert_eq!(call.meta.end, CallEnd::UpstreamCut);
            assert!(!call.completions[0].token_ids.is_empty());
        }
    }
}

#[tokio::test]
async fn an_event_that_is_no_json_ends_in_an_error_in_every_dialect() {
    for way in &WAYS {
        let body = [
            beginning(),
            b"data: {\"choices\":[{\n\n".to_vec(),
            b"data: [DONE]\n\n".to_vec(),
        ]
        .concat();
        let stage = Stage::new(move |_, _| Script::events(&body, usize::MAX)).await;
        let text = way.ask(&mut stage.agent().await, true).await.text();
        assert!(
            text.contains("an event of the endpoint's stream is not JSON"),
            "{:?}: {text}",
            way.name
        );
        let call = stage.calls.only().await;
        assert_eq!(call.meta.end, CallEnd::UpstreamCut);
    }
}

#[tokio::test]
async fn trap_11_refusals_keep_status_words_and_retry_after_in_every_dialect() {
    for way in &WAYS {
        for (status, kind) in [(429, way.kinds[1]), (529, way.kinds[2])] {
            for stream in [true, false] {
                let stage = Stage::new(move |_, _| {
                    let body = r#"{"error":{"message":"not now","type":"x","code":1}}"#;
                    Script::reply(
                        status,
                        "content-type: application/problem+json\r\nretry-after: 7\r\n",
                        body,
                    )
                })
                .await;
                let received = way.ask(&mut stage.agent().await, stream).await;
                assert_eq!(received.status, status);
                assert_eq!(received.headers["retry-after"], "7");
                assert_eq!(received.headers["content-type"], "application/json");
                let body = received.json();
                assert_eq!(body.pointer(way.kind), Some(&json!(kind)), "{body}");
                assert_eq!(received.error(), "not now");
                let call = stage.calls.only().await;
                assert_eq!(
                    (call.meta.end, call.meta.status),
                    (CallEnd::UpstreamError, Some(status))
                );
            }
        }
    }
}

#[tokio::test]
async fn trap_11_a_good_status_over_no_reply_is_an_error_in_every_dialect() {
    for way in &WAYS {
        for body in [
            r#"{"error":{"message":"boom"}}"#,
            r#"{"type":"message","content":[]}"#,
            "<html>",
        ] {
            let stage = Stage::new(move |_, _| Script::json(200, body)).await;
            let received = way.ask(&mut stage.agent().await, false).await;
            assert_eq!(received.status, 502, "{:?}: {body}", way.name);
            assert!(!received.error().is_empty());
            assert_eq!(stage.calls.only().await.meta.end, CallEnd::UpstreamError);
        }
    }
}

#[tokio::test]
async fn trap_12_an_agent_that_leaves_is_noticed_in_every_dialect() {
    for way in &WAYS {
        let stage = Stage::new(|_, _| Script::stream().chunk(beginning()).then(Act::UntilGone)).await;
        let mut agent = stage.agent().await;
        let request = agent.request("POST", way.stream_path, (way.body)(true).to_string());
        let mut reply = agent.send(request).await.into_body();
        assert!(!part(&mut reply).await.is_empty());
        agent.leave();
        drop(reply);
        stage.endpoint.until_gone(1).await;
        let call = stage.calls.only().await;
        assert_eq!(call.meta.end, CallEnd::DownstreamGone, "{:?}", way.name);
    }
}

#[tokio::test]
async fn keys_are_taken_where_each_dialect_has_them_and_refused_in_its_words() {
    for way in &WAYS {
        let stage = Stage::new(|_, _| Script::json(200, fixture(UNARY))).await;
        let mut agent = stage.agent().await.with_token("sk-wrong");
        let refused = way.ask(&mut agent, false).await;
        assert_eq!(refused.status, 401);
        assert_eq!(refused.json().pointer(way.kind), Some(&json!(way.kinds[0])));
        use secrecy::ExposeSecret;
        let token = stage.session.token().expose_secret().to_owned();
        let mut request = agent.request("POST", way.unary_path, (way.body)(false).to_string());
        request.headers_mut().remove("authorization");
        let value = if way.key_header == "authorization" {
            format!("Bearer {token}")
        } else {
            token
        };
        request
            .headers_mut()
            .insert(way.key_header, value.parse().unwrap());
        assert_eq!(
            read(agent.send(request).await).await.status,
            200,
            "{:?}",
            way.name
        );
    }
}

#[tokio::test]
async fn trap_13_marked_retries_have_the_same_key_in_every_dialect() {
    for way in &WAYS {
        let stage = Stage::new(|number, _| {
            if number == 0 {
                Script::json(500, r#"{"error":{"message":"oh"}}"#)
            } else {
                Script::json(200, fixture(UNARY))
            }
        })
        .await;
        let mut agent = stage.agent().await;
        for count in ["0", "1"] {
            let mut request = agent.request("POST", way.unary_path, (way.body)(false).to_string());
            request
                .headers_mut()
                .insert("x-stainless-retry-count", count.parse().unwrap());
            read(agent.send(request).await).await;
        }
        let calls = stage.calls.ended(2).await;
        assert_eq!(calls[0].meta.retry_key, calls[1].meta.retry_key);
        assert_eq!(
            (calls[0].meta.retry_count, calls[1].meta.retry_count),
            (Some(0), Some(1))
        );
    }
}

#[tokio::test]
async fn trap_21_a_spent_budget_answers_in_every_dialect() {
    for way in &WAYS {
        for stream in [true, false] {
            let stage = Stage::with(
                |_, _| panic!("nothing is sent"),
                |_| {},
                |session| {
                    session.budgets = Budgets {
                        calls: Some(0),
                        ..Budgets::default()
                    };
                },
            )
            .await;
            let received = way.ask(&mut stage.agent().await, stream).await;
            assert_eq!(received.status, 200);
            let call = stage.calls.only().await;
            assert_eq!(
                (call.meta.end, call.meta.flags),
                (CallEnd::Budget, vec![Flag::Budget])
            );
            assert!(
                !stream || received.text().contains(way.last),
                "{}",
                received.text()
            );
            if !stream {
                assert_eq!(received.body, call.response);
            }
        }
    }
}

#[tokio::test]
async fn trap_22_a_silent_endpoint_is_waited_for_in_every_dialect() {
    for way in &WAYS {
        let gate = Arc::new(Notify::new());
        let held = gate.clone();
        let stage = Stage::with(
            move |_, _| {
                Script::default()
                    .then(Act::Wait(held.clone()))
                    .and(Script::events(&fixture(STREAM), usize::MAX))
            },
            |_| {},
            |session| session.keep_alive = Some(Duration::from_millis(10)),
        )
        .await;
        let mut agent = stage.agent().await;
        let request = agent.request("POST", way.stream_path, (way.body)(true).to_string());
        let response = agent.send(request).await;
        assert_eq!(
            response.headers()["content-type"],
            "text/event-stream; charset=utf-8"
        );
        let mut reply = response.into_body();
        assert!(!part(&mut reply).await.is_empty());
        gate.notify_one();
        let rest = soon("the end", reply.collect()).await.unwrap().to_bytes();
        assert!(
            String::from_utf8_lossy(&rest).contains(way.last),
            "{:?}",
            way.name
        );
        assert_eq!(stage.calls.only().await.meta.end, CallEnd::Complete);
    }
}

#[tokio::test]
async fn trap_22_an_error_after_silence_is_told_in_the_stream_in_every_dialect() {
    for way in &WAYS {
        let gate = Arc::new(Notify::new());
        let held = gate.clone();
        let stage = Stage::with(
            move |_, _| {
                Script::default()
                    .then(Act::Wait(held.clone()))
                    .and(Script::json(429, r#"{"error":{"message":"not now"}}"#))
            },
            |_| {},
            |session| session.keep_alive = Some(Duration::from_millis(10)),
        )
        .await;
        let mut agent = stage.agent().await;
        let request = agent.request("POST", way.stream_path, (way.body)(true).to_string());
        let mut reply = agent.send(request).await.into_body();
        part(&mut reply).await;
        gate.notify_one();
        let rest = soon("the end", reply.collect()).await.unwrap().to_bytes();
        let text = String::from_utf8_lossy(&rest).into_owned();
        assert!(
            text.contains("not now") && text.contains("error"),
            "{:?}: {text}",
            way.name
        );
    }
}

#[tokio::test]
async fn trap_23_a_websocket_is_refused_at_once() {
    let stage = Stage::new(|_, _| panic!("nothing is sent")).await;
    let mut agent = stage.agent().await;
    let mut request = agent.request("GET", "/v1/responses", "");
    for (name, value) in [("connection", "upgrade"), ("upgrade", "websocket")] {
        request.headers_mut().insert(name, value.parse().unwrap());
    }
    assert_eq!(agent.send(request).await.status(), 426);
}

#[tokio::test]
async fn dialects_can_be_mixed_on_one_rollout() {
    let stage = Stage::new(|_, asked| {
        if asked.json()["stream"] == true {
            Script::events(&fixture(STREAM), usize::MAX)
        } else {
            Script::json(200, fixture(UNARY))
        }
    })
    .await;
    let mut agent = stage.agent().await;
    assert_eq!(agent.chat(crate::support::ask(true)).await.status, 200);
    for way in &WAYS {
        for stream in [true, false] {
            assert_eq!(way.ask(&mut agent, stream).await.status, 200);
        }
    }
    let calls = stage.calls.ended(7).await;
    assert!(calls.iter().all(|call| call.meta.level == CaptureLevel::Tokens));
}

#[tokio::test]
async fn tokens_are_counted_by_the_endpoint_or_estimated_with_a_word_about_it() {
    for (counts, header) in [(true, None), (false, Some("estimated"))] {
        let stage = Stage::new(move |_, asked| {
            assert!(
                asked.head.starts_with("POST /tokenize HTTP/1.1\r\n"),
                "{}",
                asked.head
            );
            if counts {
                Script::json(200, r#"{"count":123,"max_model_len":4096,"tokens":[]}"#)
            } else {
                Script::json(404, r#"{"detail":"Not Found"}"#)
            }
        })
        .await;
        let mut agent = stage.agent().await;
        let long = "word ".repeat(100);
        for (path, body, member) in [
            (
                "/v1/messages/count_tokens?beta=true",
                json!({"model": "tiny", "messages": [{"role": "user", "content": long}], "tools": [{"name": "f", "input_schema": {}}]}),
                "input_tokens",
            ),
            (
                "/v1beta/models/tiny:countTokens",
                json!({"contents": [{"parts": [{"text": long}]}]}),
                "totalTokens",
            ),
        ] {
            let request = agent.request("POST", path, body.to_string());
            let received = read(agent.send(request).await).await;
            assert_eq!(received.status, 200, "{}", received.text());
            let counted = received.json()[member].as_u64().unwrap();
            assert!(
                if counts {
                    counted == 123
                } else {
                    (100..200).contains(&counted)
                },
                "{counted}"
            );
            let told = received.headers.get("x-dressage-token-count");
            assert_eq!(told.map(|value| value.to_str().unwrap()), header);
        }
        let asked = stage.endpoint.asked().remove(0).json();
        assert_eq!(
            (&asked["model"], &asked["add_generation_prompt"]),
            (&json!("tiny"), &json!(true))
        );
        assert_eq!(asked["tools"][0]["function"]["name"], "f");
        let bad = agent.request("POST", "/v1/messages/count_tokens", r#"{"messages":7}"#);
        let bad = read(agent.send(bad).await).await;
        assert_eq!(
            (bad.status.as_u16(), bad.error().as_str()),
            (400, "messages is not an array")
        );
        assert_eq!(stage.calls.started(), 0, "a count is no call");
    }
}

#[tokio::test]
async fn models_are_listed_in_the_callers_form() {
    let stage = Stage::new(|_, asked| {
        assert!(asked.head.starts_with("GET /v1/models HTTP/1.1\r\n"));
        Script::json(
            200,
            r#"{"object":"list","data":[{"id":"a/b","object":"model","created":0,"max_model_len":8}]}"#,
        )
    })
    .await;
    let mut agent = stage.agent().await;
    for (path, anthropic, place) in [
        ("/v1/models", false, "/data/0/object"),
        ("/v1/models", true, "/data/0/type"),
        ("/v1/models/a/b", false, "/object"),
        ("/v1/models/a/b", true, "/type"),
        ("/v1beta/models", false, "/models/0/name"),
        ("/v1beta/models/a/b", false, "/name"),
    ] {
        let mut request = agent.request("GET", path, "");
        if anthropic {
            request
                .headers_mut()
                .insert("anthropic-version", "2023-06-01".parse().unwrap());
        }
        let received = read(agent.send(request).await).await;
        let value = received.json();
        let word = if path.contains("beta") {
            "models/a/b"
        } else {
            "model"
        };
        assert_eq!(value.pointer(place), Some(&json!(word)), "{path}: {value}");
    }
    let request = agent.request("GET", "/v1beta/models/none", "");
    let missing = read(agent.send(request).await).await;
    assert_eq!(
        (missing.status.as_u16(), missing.json()["error"]["status"].clone()),
        (404, json!("NOT_FOUND"))
    );
}

#[tokio::test]
async fn bad_requests_are_told_in_every_dialect() {
    for (way, body, message) in [
        (
            &WAYS[0],
            json!({"messages": [{"role": "x"}]}),
            "messages[0].role is not `user`, `assistant` or `system`",
        ),
        (
            &WAYS[1],
            json!({"input": "x", "previous_response_id": "r"}),
            "previous_response_id is about what",
        ),
        (&WAYS[2], json!({"contents": 7}), "contents is not an array"),
    ] {
        let stage = Stage::new(|_, _| panic!("nothing is sent")).await;
        let mut agent = stage.agent().await;
        let request = agent.request("POST", way.unary_path, body.to_string());
        let received = read(agent.send(request).await).await;
        assert_eq!(received.status, 400);
        assert!(received.error().starts_with(message), "{}", received.text());
        assert_eq!(stage.calls.only().await.meta.end, CallEnd::Refused);
    }
}
