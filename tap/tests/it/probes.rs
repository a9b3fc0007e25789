//! What is found out about endpoints, from what real ones were recorded to send.

use crate::support::endpoint::Asked;
use crate::support::{FakeEndpoint, Script, fixture};
use dressage_tap::Endpoint;
use dressage_tap::probe::{ProbeError, probe};
use dressage_wire::call::{CaptureLevel, Change, Flag};
use dressage_wire::probe::LogprobsKind;
use dressage_wire::task::CaptureMode;

/// vLLM as it was recorded; `stream_with_tools` is its reply to streams with tools.
fn vllm(asked: &Asked, stream_with_tools: &str) -> Script {
    if asked.head.starts_with("GET /v1/models ") {
        return Script::json(
            200,
            r#"{"object":"list","data":[{"id":"other","max_model_len":1},{"id":"tiny","object":"model","max_model_len":4096}]}"#,
        );
    }
    let body = asked.json();
    let name = match (body.get("tools").is_some(), body["stream"] == true) {
        (false, false) => "hi_unary_lp5_ids",
        (false, true) => "hi_stream_lp5_ids",
        (true, false) => "list_tools_unary_lp5_ids",
        (true, true) => stream_with_tools,
    };
    let reply = fixture(&format!("vllm-0.32.0/{name}.response.body"));
    if body["stream"] == true {
        Script::events(&reply, 4096)
    } else {
        Script::json(200, reply)
    }
}

fn endpoint(server: &FakeEndpoint) -> Endpoint {
    Endpoint {
        model: Some("tiny".into()),
        ..Endpoint::at("fake", server.base_url())
    }
}

#[tokio::test]
async fn a_vllm_that_tells_everything_is_asked_for_streams() {
    let server = FakeEndpoint::start(|_, asked| vllm(asked, "list_tools_stream_lp5_ids")).await;
    let report = probe(&endpoint(&server)).await.unwrap();
    for reply in [
        &report.whole,
        &report.stream,
        &report.whole_with_tools,
        &report.stream_with_tools,
    ] {
        assert_eq!(
            (reply.level, &reply.error),
            (CaptureLevel::Tokens, &None),
            "{report:?}"
        );
    }
    assert!(report.tool_called);
    assert_eq!(report.capture, CaptureMode::Stream);
    assert_eq!(report.context_length, Some(4096));
    // The same log-probabilities at temperature 1 and 2, as vLLM sends them without --logprobs-mode.
    assert_eq!(report.logprobs, LogprobsKind::Raw);
    assert!(report.changes.is_empty());
    let temperatures: Vec<_> = server
        .asked()
        .iter()
        .filter(|asked| asked.head.starts_with("POST"))
        .map(|asked| asked.json()["temperature"].as_f64().unwrap())
        .collect();
    assert_eq!(temperatures, [1.0, 1.0, 1.0, 1.0, 1.0, 2.0]);
}

#[tokio::test]
async fn trap_05_streams_of_tool_calls_without_their_tokens_are_asked_for_whole() {
    let server = FakeEndpoint::start(|_, asked| vllm(asked, "list_tools_stream_plain")).await;
    let report = probe(&endpoint(&server)).await.unwrap();
    assert_eq!(report.whole_with_tools.level, CaptureLevel::Tokens);
    assert_eq!(report.stream_with_tools.level, CaptureLevel::Text);
    assert_eq!(report.capture, CaptureMode::Buffer);
    assert!(
        report.notes.iter().any(|note| note.contains("streams lack")),
        "{:?}",
        report.notes
    );
}

#[tokio::test]
async fn what_is_refused_is_found_out_once() {
    let server = FakeEndpoint::start(|_, asked| {
        let post = asked.head.starts_with("POST");
        if post && asked.json().get("top_k").is_some() {
            return Script::json(
                400,
                r#"{"error":{"message":"Unrecognized request argument supplied: top_k","type":"invalid_request_error","param":null,"code":null}}"#,
            );
        }
        vllm(asked, "list_tools_stream_lp5_ids")
    })
    .await;
    let report = probe(&endpoint(&server)).await.unwrap();
    let removed = Change::Removed {
        field: "top_k".into(),
    };
    assert_eq!(report.changes, [removed]);
    assert!(report.whole.flags.contains(&Flag::RequestChanged));
    let refused = server
        .asked()
        .iter()
        .filter(|asked| asked.head.starts_with("POST") && asked.json().get("top_k").is_some())
        .count();
    assert_eq!(refused, 1);
}

#[tokio::test]
async fn a_server_that_refuses_tools_is_told_of() {
    let server = FakeEndpoint::start(|_, asked| {
        if asked.head.starts_with("POST") && asked.json().get("tools").is_some() {
            return Script::json(
                400,
                r#"{"error":{"message":"\"auto\" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set","type":"BadRequestError","param":null,"code":400}}"#,
            );
        }
        vllm(asked, "list_tools_stream_lp5_ids")
    })
    .await;
    let report = probe(&endpoint(&server)).await.unwrap();
    assert!(
        report
            .whole_with_tools
            .error
            .as_ref()
            .unwrap()
            .contains("--enable-auto-tool-choice")
    );
    assert!(!report.tool_called);
    assert!(
        report.notes[0].contains("requests with tools are refused"),
        "{:?}",
        report.notes
    );
    assert_eq!(report.capture, CaptureMode::Stream);
}

#[tokio::test]
async fn an_endpoint_that_answers_nothing_is_an_error_with_its_words() {
    let server = FakeEndpoint::start(|_, _| {
        Script::json(
            404,
            r#"{"error":{"message":"The model `tiny` does not exist.","type":"NotFoundError"}}"#,
        )
    })
    .await;
    let error = probe(&endpoint(&server)).await.unwrap_err();
    assert!(matches!(&error, ProbeError::NoReply { .. }));
    assert_eq!(
        error.to_string(),
        "endpoint `fake` answers no calls: the endpoint answered 404: The model `tiny` does not exist."
    );
}
