use crate::support::{Script, Stage, ask, fixture};
use dressage_wire::call::{CallEnd, CaptureLevel, Change, Flag};

fn refusal(message: &str) -> Script {
    let body = serde_json::json!({"error": {"message": message, "type": "invalid_request_error", "param": null, "code": null}});
    Script::json(400, body.to_string())
}

#[tokio::test]
async fn trap_24_a_renamed_member_is_sent_under_its_new_name_and_remembered() {
    let stage = Stage::new(|_, asked| match asked.json().get("max_tokens") {
        Some(_) => refusal(
            "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.",
        ),
        None => Script::json(200, fixture("vllm-0.32.0/hi_unary_lp5_ids.response.body")),
    })
    .await;
    let mut agent = stage.agent().await;
    let body = r#"{"model":"tiny","messages":[],"max_tokens":100}"#;
    assert_eq!(agent.chat(body).await.status, 200);
    assert_eq!(agent.chat(body).await.status, 200);
    let asked = stage.endpoint.asked();
    assert_eq!(asked.len(), 3, "the second call knows");
    assert_eq!(
        (
            asked[1].json()["max_completion_tokens"].clone(),
            asked[2].json()["max_completion_tokens"].clone()
        ),
        (100.into(), 100.into())
    );
    for call in stage.calls.ended(2).await {
        let renamed = Change::Renamed {
            from: "max_tokens".into(),
            to: "max_completion_tokens".into(),
        };
        assert_eq!(call.meta.changes, [renamed]);
        assert!(call.meta.flags.contains(&Flag::RequestChanged));
        assert_eq!(
            (call.meta.end, call.meta.level),
            (CallEnd::Complete, CaptureLevel::Tokens)
        );
    }
    assert_eq!(stage.session.config().upstream.refusals("tiny").len(), 1);
    assert_eq!(stage.session.config().upstream.refusals("other").len(), 0);
}

#[tokio::test]
async fn trap_24_members_refused_one_after_the_other_are_left_out_one_after_the_other() {
    const UNKNOWN: [&str; 4] = ["return_token_ids", "top_k", "min_p", "repetition_penalty"];
    let stage = Stage::new(|_, asked| {
        let sent = asked.json();
        match UNKNOWN.iter().find(|name| sent.get(**name).is_some()) {
            Some(name) => refusal(&format!("Unrecognized request argument supplied: {name}")),
            None => Script::json(200, fixture("vllm-0.32.0/hi_unary_plain.response.body")),
        }
    })
    .await;
    assert_eq!(stage.agent().await.chat(ask(false)).await.status, 200);
    let call = stage.calls.only().await;
    assert_eq!(call.meta.changes.len(), 4);
    assert_ne!(
        call.meta.level,
        CaptureLevel::Tokens,
        "the level is what was captured"
    );
    assert_eq!(
        call.meta.sampling.top_k, None,
        "what was not sent is not recorded as sent"
    );
    assert_eq!(stage.calls.dispatched().len(), 5);
}

#[tokio::test]
async fn trap_24_llama_cpp_takes_no_logprobs_with_tools_and_stream() {
    let reply = fixture("llamacpp-b10434/chat_stream_plain.response.body");
    let stage = Stage::new(move |_, asked| match asked.json()["logprobs"].as_bool() {
        Some(true) => Script::json(
            400,
            r#"{"error":{"code":400,"message":"logprobs is not supported with tools + stream","type":"invalid_request_error"}}"#,
        ),
        _ => Script::events(&reply, 100),
    })
    .await;
    let body = r#"{"model":"m","messages":[{"role":"user","content":"hi"}],"stream":true,"tools":[{"type":"function","function":{"name":"f"}}]}"#;
    let received = stage.agent().await.chat(body).await;
    assert_eq!(received.status, 200);
    assert!(received.text().ends_with("data: [DONE]\n\n"));
    let call = stage.calls.only().await;
    assert_eq!(
        (call.meta.end, call.meta.level),
        (CallEnd::Complete, CaptureLevel::Text)
    );
    assert!(
        call.meta.changes.contains(&Change::Removed {
            field: "logprobs".into()
        }),
        "{:?}",
        call.meta.changes
    );
}

#[tokio::test]
async fn trap_24_an_endpoint_that_refuses_for_ever_is_not_asked_for_ever() {
    let stage = Stage::new(|_, asked| {
        // Names something that was sent, always.
        let sent = asked.json();
        let name = sent
            .as_object()
            .unwrap()
            .keys()
            .find(|name| !["model", "messages", "stream"].contains(&name.as_str()));
        refusal(&format!(
            "Unrecognized request argument supplied: {}",
            name.map_or("messages", String::as_str)
        ))
    })
    .await;
    let received = stage.agent().await.chat(ask(false)).await;
    assert_eq!(received.status, 400);
    assert!(received.error().contains("Unrecognized request argument"));
    assert!(
        stage.endpoint.asked().len() <= 10,
        "{}",
        stage.endpoint.asked().len()
    );
    assert_eq!(stage.calls.only().await.meta.end, CallEnd::UpstreamError);
    assert_eq!(
        stage.session.config().upstream.refusals("tiny"),
        [],
        "nothing is learned from what did not help"
    );
}

#[tokio::test]
async fn a_400_for_another_reason_is_passed_on_at_once() {
    let stage = Stage::new(|_, _| refusal("messages: tool must follow a tool call")).await;
    assert_eq!(stage.agent().await.chat(ask(false)).await.status, 400);
    assert_eq!(stage.endpoint.asked().len(), 1);
}
