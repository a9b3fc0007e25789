use crate::support::agent::{part, read};
use crate::support::{Act, Script, Stage, ask, fixture, soon};
use dressage_wire::call::{CallEnd, Flag};
use http_body_util::BodyExt;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;

const STREAM: &str = "vllm-0.32.0/list_tools_stream_lp5_ids.response.body";

/// The first events of a recorded stream, whole ones, without a finish_reason.
fn beginning() -> Vec<u8> {
    let text = String::from_utf8(fixture(STREAM)).unwrap();
    text.split_inclusive("\n\n")
        .take(10)
        .collect::<String>()
        .into_bytes()
}

/// The message of the error event that a stream ends in.
fn last_error(stream: &str) -> String {
    let event = stream
        .trim_end()
        .rsplit("\n\n")
        .next()
        .unwrap()
        .strip_prefix("data: ")
        .unwrap();
    let event: serde_json::Value = serde_json::from_str(event).unwrap();
    event["error"]["message"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn trap_10_a_stream_without_finish_reason_ends_in_an_error_event() {
    for done in ["", "data: [DONE]\n\n"] {
        let body = [beginning(), done.as_bytes().to_vec()].concat();
        let stage = Stage::new(move |_, _| Script::events(&body, 50)).await;
        let received = stage.agent().await.chat(ask(true)).await;
        assert!(!last_error(&received.text()).is_empty());
        assert!(!received.text().contains("[DONE]"), "{}", received.text());
        let call = stage.calls.only().await;
        assert_eq!(call.meta.end, CallEnd::UpstreamCut);
        assert!(
            !call.completions[0].token_ids.is_empty(),
            "what was received is kept"
        );
    }
}

#[tokio::test]
async fn trap_10_a_connection_that_breaks_in_the_middle_ends_in_an_error_event() {
    for act in [Act::Close, Act::Reset] {
        let stage = Stage::new(move |_, _| Script::stream().chunk(beginning()).then(act.clone())).await;
        let received = stage.agent().await.chat(ask(true)).await;
        let error = last_error(&received.text());
        assert!(error.starts_with("endpoint `fake` (http://127.0.0.1:"), "{error}");
        assert!(error.contains("the reply broke off"), "{error}");
        let call = stage.calls.only().await;
        assert_eq!(
            (call.meta.end, call.meta.error),
            (CallEnd::UpstreamCut, Some(error))
        );
    }
}

#[tokio::test]
async fn trap_10_a_whole_reply_that_breaks_off_is_a_502() {
    let head =
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 1000\r\n\r\n{\"choices\":";
    let stage = Stage::new(move |_, _| Script::raw(head).then(Act::Close)).await;
    let received = stage.agent().await.chat(ask(false)).await;
    assert_eq!(received.status, 502);
    assert!(
        received.error().contains("the reply broke off"),
        "{}",
        received.error()
    );
    assert_eq!(stage.calls.only().await.meta.end, CallEnd::UpstreamCut);
}

#[tokio::test]
async fn an_endpoint_that_stalls_in_the_middle_is_given_up() {
    let stage = Stage::with(
        |_, _| Script::stream().chunk(beginning()).then(Act::UntilGone),
        |endpoint| endpoint.timeouts.idle = Duration::from_millis(50),
        |_| {},
    )
    .await;
    let received = stage.agent().await.chat(ask(true)).await;
    assert!(
        last_error(&received.text()).contains("the reply stopped for 0.05 s"),
        "{}",
        received.text()
    );
    stage.endpoint.until_gone(1).await;
    assert_eq!(stage.calls.only().await.meta.end, CallEnd::UpstreamCut);
}

#[tokio::test]
async fn an_endpoint_that_says_nothing_is_a_504() {
    let stage = Stage::with(
        |_, _| Script::default().then(Act::UntilGone),
        |endpoint| endpoint.timeouts.header = Duration::from_millis(50),
        |_| {},
    )
    .await;
    let received = stage.agent().await.chat(ask(true)).await;
    assert_eq!(received.status, 504);
    assert!(
        received.error().contains("no reply within 0.05 s"),
        "{}",
        received.error()
    );
    stage.endpoint.until_gone(1).await;
    assert_eq!(stage.calls.only().await.meta.end, CallEnd::UpstreamError);
}

#[tokio::test]
async fn a_reply_that_takes_too_long_altogether_is_given_up() {
    let gate = Arc::new(Notify::new());
    let stage = Stage::with(
        move |_, _| Script::stream().chunk(beginning()).then(Act::Wait(gate.clone())),
        |endpoint| endpoint.timeouts.request = Some(Duration::from_millis(100)),
        |_| {},
    )
    .await;
    let received = stage.agent().await.chat(ask(true)).await;
    assert!(
        last_error(&received.text()).contains("not whole within 0.1 s"),
        "{}",
        received.text()
    );
    assert_eq!(stage.calls.only().await.meta.end, CallEnd::UpstreamCut);
}

#[tokio::test]
async fn trap_11_a_429_passes_with_its_body_and_retry_after() {
    let body = r#"{"error":{"message":"slow down","type":"rate_limit","code":429}}"#;
    let headers =
        "content-type: application/json\r\nretry-after: 7\r\nx-request-id: r1\r\nset-cookie: a=b\r\n";
    let stage = Stage::new(move |_, _| Script::reply(429, headers, body)).await;
    for stream in [true, false] {
        let received = stage.agent().await.chat(ask(stream)).await;
        assert_eq!(received.status, 429);
        assert_eq!(received.headers["retry-after"], "7");
        assert_eq!(received.headers["x-request-id"], "r1");
        assert!(!received.headers.contains_key("set-cookie"));
        assert_eq!(received.text(), body);
    }
    for call in stage.calls.ended(2).await {
        assert_eq!(
            (call.meta.end, call.meta.status),
            (CallEnd::UpstreamError, Some(429))
        );
        assert_eq!(call.response, body.as_bytes());
        assert!(call.meta.error.unwrap().contains("slow down"));
    }
}

#[tokio::test]
async fn trap_11_recorded_errors_of_vllm_pass_byte_for_byte() {
    for (name, status) in [("err_ctx_stream", 400), ("err_model_404", 404)] {
        let body = fixture(&format!("vllm-0.32.0/{name}.response.body"));
        let sent = body.clone();
        let stage = Stage::new(move |_, _| Script::json(status, &sent)).await;
        let received = stage
            .agent()
            .await
            .chat(fixture(&format!("vllm-0.32.0/{name}.request.json")))
            .await;
        assert_eq!((received.status.as_u16(), received.body), (status, body));
        assert_eq!(
            stage.endpoint.asked().len(),
            1,
            "{name} is nothing that a changed request would mend"
        );
        assert_eq!(stage.calls.only().await.meta.end, CallEnd::UpstreamError);
    }
}

#[tokio::test]
async fn trap_11_an_error_event_inside_a_good_stream_passes_and_is_no_turn() {
    let event = "data: {\"error\":{\"message\":\"engine died\",\"type\":\"internal\"}}\n\n";
    let stage = Stage::new(move |_, _| Script::stream().chunk(beginning()).chunk(event).finish()).await;
    let received = stage.agent().await.chat(ask(true)).await;
    assert!(received.text().ends_with(event), "{}", received.text());
    let call = stage.calls.only().await;
    assert_eq!(call.meta.end, CallEnd::UpstreamError);
    assert!(call.meta.error.unwrap().contains("engine died"));
}

#[tokio::test]
async fn trap_12_an_agent_that_leaves_in_mid_stream_cancels_the_endpoint() {
    let stage = Stage::new(|_, _| Script::stream().chunk(beginning()).then(Act::UntilGone)).await;
    let mut agent = stage.agent().await;
    let request = agent.post(ask(true));
    let mut reply = agent.send(request).await.into_body();
    part(&mut reply).await;
    assert_eq!(stage.calls.count(), 0);
    agent.leave();
    stage.endpoint.until_gone(1).await;
    let call = stage.calls.only().await;
    assert_eq!(call.meta.end, CallEnd::DownstreamGone);
    assert!(
        !call.completions[0].token_ids.is_empty(),
        "what was received is kept"
    );
}

#[tokio::test]
async fn trap_12_an_agent_that_leaves_before_the_reply_cancels_the_endpoint() {
    for keep_alive in [None, Some(Duration::from_millis(10))] {
        let stage = Stage::with(
            |_, _| Script::default().then(Act::UntilGone),
            |_| {},
            |session| session.keep_alive = keep_alive,
        )
        .await;
        let mut agent = stage.agent().await;
        let request = agent.post(ask(true));
        let sending = tokio::spawn(async move {
            let mut reply = agent.send(request).await.into_body();
            assert_eq!(part(&mut reply).await, ": keep-alive\n\n");
            agent.leave();
        });
        if keep_alive.is_none() {
            soon("the request", async {
                while stage.endpoint.asked().is_empty() {
                    tokio::task::yield_now().await;
                }
            })
            .await;
            sending.abort();
        } else {
            sending.await.unwrap();
        }
        stage.endpoint.until_gone(1).await;
        let call = stage.calls.only().await;
        assert_eq!((call.meta.end, call.meta.status), (CallEnd::DownstreamGone, None));
    }
}

#[tokio::test]
async fn an_agent_that_leaves_after_the_last_event_has_it_all() {
    let body = fixture(STREAM);
    let stage = Stage::new(move |_, _| Script::stream().chunk(&body).then(Act::UntilGone)).await;
    let mut agent = stage.agent().await;
    let request = agent.post(ask(true));
    let mut reply = agent.send(request).await.into_body();
    let mut seen = String::new();
    while !seen.contains("[DONE]") {
        seen.push_str(&part(&mut reply).await);
    }
    agent.leave();
    assert_eq!(stage.calls.only().await.meta.end, CallEnd::Complete);
    stage.endpoint.until_gone(1).await;
}

#[tokio::test]
async fn an_agent_that_leaves_in_the_middle_of_a_large_whole_reply_did_not_get_it() {
    let reply = format!(
        r#"{{"id":"c","object":"chat.completion","created":1,"model":"tiny","choices":[{{"index":0,"message":{{"role":"assistant","content":"{}"}},"finish_reason":"stop"}}]}}"#,
        "y".repeat(8 << 20)
    );
    let stage = Stage::new(move |_, _| Script::json(200, &reply)).await;
    let mut agent = stage.agent().await;
    let request = agent.post(ask(false));
    let mut body = agent.send(request).await.into_body();
    soon("a part", body.frame()).await.unwrap().unwrap();
    agent.leave();
    assert_eq!(stage.calls.only().await.meta.end, CallEnd::DownstreamGone);
}

#[tokio::test]
async fn closing_the_session_ends_every_call_whatever_state_it_is_in() {
    // One awaits its head, one is in mid-stream, and one is not read by its agent, so that nothing moves it.
    let flood = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"y\"}}]}\n\n".repeat(100_000);
    let stage = Stage::new(move |_, asked| match asked.json()["model"].as_str() {
        Some("awaited") => Script::default().then(Act::UntilGone),
        Some("flowing") => Script::stream().chunk(beginning()).then(Act::UntilGone),
        _ => Script::stream().chunk(flood.clone()).then(Act::UntilGone),
    })
    .await;
    let mut agents = Vec::new();
    for model in ["flowing", "stalled"] {
        let mut agent = stage.agent().await;
        let request = agent.post(format!(r#"{{"model":"{model}","messages":[],"stream":true}}"#));
        let mut reply = agent.send(request).await.into_body();
        part(&mut reply).await;
        agents.push((agent, reply));
    }
    let mut awaiting = stage.agent().await;
    let request = awaiting.post(r#"{"model":"awaited","messages":[],"stream":true}"#);
    let awaited = tokio::spawn(async move { read(awaiting.send(request).await).await });
    soon("the third request", async {
        while stage.endpoint.asked().len() < 3 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    soon("the close", stage.session.close()).await;
    assert_eq!(
        stage.calls.count(),
        3,
        "every call is with the sink when close returns"
    );
    for call in stage.calls.ended(3).await {
        assert_eq!(call.meta.end, CallEnd::DownstreamGone);
    }
    assert_eq!(awaited.await.unwrap().status, 503);
    stage.endpoint.until_gone(3).await;
    for (_, reply) in agents {
        assert!(
            soon("the reset", reply.collect()).await.is_err(),
            "a reply that is cut must not look whole"
        );
    }
}

#[tokio::test]
async fn trap_18_what_an_endpoint_sends_of_odd_but_valid_events_is_a_turn() {
    let body = ": comment\r\ndata: {\"choices\":null}\r\n\r\n\
        data: {\"choices\":[{\"index\":0,\"delta\":{\"role\":\"\",\"content\":\"é\"},\"finish_reason\":null}]}\r\n\r\n\
        data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\r\n\r\n\
        data: {\"choices\":[],\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":1,\"total_tokens\":2}}\r\n\r\ndata: [DONE]\r\n\r\n";
    let stage = Stage::new(move |_, _| Script::events(body.as_bytes(), 1)).await;
    let received = stage.agent().await.chat(ask(true)).await;
    assert!(received.text().contains("é"));
    let call = stage.calls.only().await;
    assert_eq!(call.meta.end, CallEnd::Complete);
    assert_eq!(call.meta.usage.unwrap().completion_tokens, 1);
    assert!(
        call.meta.flags.contains(&Flag::PromptIdsMissing),
        "{:?}",
        call.meta.flags
    );
}
