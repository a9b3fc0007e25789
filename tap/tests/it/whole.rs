use crate::support::{Act, Script, Stage, ask, fixture};
use dressage_wire::call::{CallEnd, CaptureLevel, Flag};
use dressage_wire::task::CaptureMode;
use serde_json::Value;

fn without_ids(body: &[u8]) -> Value {
    let mut body: Value = serde_json::from_slice(body).unwrap();
    let members = body.as_object_mut().unwrap();
    members.shift_remove("id");
    members.shift_remove("created");
    body
}

#[tokio::test]
async fn trap_02_a_recorded_reply_is_captured_and_the_agent_sees_the_plain_one() {
    let body = fixture("vllm-0.32.0/hi_unary_lp5_ids.response.body");
    let plain = fixture("vllm-0.32.0/hi_unary_plain.response.body");
    let recorded: Value = serde_json::from_slice(&body).unwrap();
    let stage = Stage::new(move |_, _| Script::json(200, &body)).await;
    let received = stage
        .agent()
        .await
        .chat(fixture("vllm-0.32.0/hi_unary_plain.request.json"))
        .await;
    assert_eq!(without_ids(&received.body), without_ids(&plain));
    assert_eq!(
        received.headers["content-length"].to_str().unwrap(),
        received.body.len().to_string()
    );
    let call = stage.calls.only().await;
    let choice = &recorded["choices"][0];
    let ids: Vec<u32> = serde_json::from_value(choice["token_ids"].clone()).unwrap();
    assert_eq!(call.completions[0].token_ids, ids);
    assert_eq!(call.completions[0].top_logprobs[0].len(), 5);
    assert_eq!(call.meta.level, CaptureLevel::Tokens);
    assert_eq!(call.meta.end, CallEnd::Complete);
    assert!(!call.meta.streamed);
}

#[tokio::test]
async fn trap_05_buffer_asks_for_a_whole_reply_and_replays_it_as_a_stream() {
    let body = fixture("vllm-0.32.0/list_tools_unary_lp5_ids.response.body");
    let stage = Stage::with(
        move |_, _| Script::json(200, &body),
        |_| {},
        |session| session.capture = CaptureMode::Buffer,
    )
    .await;
    let received = stage
        .agent()
        .await
        .chat(fixture("vllm-0.32.0/list_tools_stream_plain.request.json"))
        .await;
    let asked = stage.endpoint.asked().remove(0).json();
    assert_ne!(asked["stream"], true);
    assert_eq!(asked.get("stream_options"), None);
    assert_eq!(
        received.headers["content-type"],
        "text/event-stream; charset=utf-8"
    );
    let text = received.text();
    assert!(text.ends_with("data: [DONE]\n\n"), "{text}");
    assert!(text.contains("\"tool_calls\""), "{text}");
    assert!(!text.contains("token_ids\":["), "{text}");
    let call = stage.calls.only().await;
    assert!(call.meta.streamed);
    assert_eq!(
        (call.meta.end, call.meta.level),
        (CallEnd::Complete, CaptureLevel::Tokens)
    );
}

#[tokio::test]
async fn an_endpoint_that_does_not_stream_though_asked_to_is_replayed() {
    let body = fixture("vllm-0.32.0/hi_unary_lp5_ids.response.body");
    let stage = Stage::new(move |_, _| Script::json(200, &body)).await;
    let received = stage.agent().await.chat(ask(true)).await;
    assert!(
        received.text().ends_with("data: [DONE]\n\n"),
        "{}",
        received.text()
    );
    assert_eq!(stage.calls.only().await.meta.end, CallEnd::Complete);
}

#[tokio::test]
async fn trap_28_50_mb_pass_both_ways_and_more_is_a_413() {
    let size = 50 << 20;
    let reply = format!(
        r#"{{"id":"c","object":"chat.completion","created":1,"model":"tiny","choices":[{{"index":0,"message":{{"role":"assistant","content":"{}"}},"finish_reason":"stop"}}]}}"#,
        "y".repeat(size)
    );
    let sent = reply.clone();
    let stage = Stage::new(move |_, _| Script::json(200, &sent)).await;
    let request = format!(
        r#"{{"model":"tiny","messages":[{{"role":"user","content":"{}"}}]}}"#,
        "x".repeat(size)
    );
    let mut agent = stage.agent().await;
    let received = agent.chat(request.clone()).await;
    assert_eq!(received.status, 200);
    assert!(received.body == reply.as_bytes());
    assert!(stage.endpoint.asked()[0].body.len() > size);
    let call = stage.calls.only().await;
    assert_eq!(call.meta.end, CallEnd::Complete);
    assert_eq!(call.request.len(), request.len());

    let stage = Stage::with(
        |_, _| panic!("nothing may be sent"),
        |_| {},
        |session| session.limits.request_bytes = 1 << 20,
    )
    .await;
    let received = stage.agent().await.chat(request).await;
    assert_eq!(received.status, 413);
    assert_eq!(received.error(), "the request body is larger than 1048576 bytes");
    let call = stage.calls.only().await;
    assert_eq!((call.meta.end, call.meta.flags.len()), (CallEnd::Refused, 0));
}

#[tokio::test]
async fn a_reply_over_the_limit_is_a_502() {
    let stage = Stage::with(
        |_, _| Script::json(200, vec![b' '; 4096]).then(Act::UntilGone),
        |_| {},
        |session| session.limits.reply_bytes = 1024,
    )
    .await;
    let received = stage.agent().await.chat(ask(false)).await;
    assert_eq!(received.status, 502);
    assert!(
        received.error().contains("its reply is larger than 1024 bytes"),
        "{}",
        received.error()
    );
    assert_eq!(stage.calls.only().await.meta.end, CallEnd::UpstreamCut);
}

#[tokio::test]
async fn requests_that_are_no_requests_are_refused_here_and_recorded() {
    let stage = Stage::new(|_, _| panic!("nothing may be sent")).await;
    let mut agent = stage.agent().await;
    for (body, what) in [
        ("{", "not valid JSON"),
        ("[]", "not a JSON object"),
        (r#"{"model":"a","model":"b","messages":[]}"#, "more than once"),
    ] {
        let received = agent.chat(body).await;
        assert_eq!(received.status, 400);
        assert!(received.error().contains(what), "{}", received.error());
    }
    let calls = stage.calls.ended(3).await;
    assert!(calls.iter().all(|call| call.meta.end == CallEnd::Refused));
    assert!(calls[0].meta.error.as_ref().unwrap().contains("not valid JSON"));
    assert_eq!(calls[2].meta.index, 2);
}

#[tokio::test]
async fn trap_20_a_turn_ended_by_its_token_limit_is_flagged_and_trainable() {
    let body = fixture("vllm-0.32.0/count_unary_len.response.body");
    let stage = Stage::new(move |_, _| Script::json(200, &body)).await;
    stage.agent().await.chat(ask(false)).await;
    let call = stage.calls.only().await;
    assert!(call.meta.flags.contains(&Flag::Truncated));
    assert!(
        call.meta.flags.iter().all(|flag| !flag.blocks_training()),
        "{:?}",
        call.meta.flags
    );
}
