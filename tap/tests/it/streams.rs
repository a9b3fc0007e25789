use crate::support::agent::{part, read};
use crate::support::{Act, Script, Stage, ask, fixture, soon};
use dressage_wire::call::{CallEnd, CaptureLevel, Flag};
use http_body_util::BodyExt;
use serde_json::Value;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;

/// The events of a stream, without what differs between any two recordings.
fn events(stream: &[u8]) -> Vec<Value> {
    let text = std::str::from_utf8(stream).unwrap();
    let data = text
        .split("\n\n")
        .filter_map(|event| event.strip_prefix("data: "));
    data.map(|data| match serde_json::from_str::<Value>(data) {
        Ok(mut event) => {
            let event_members = event.as_object_mut().unwrap();
            event_members.shift_remove("id");
            event_members.shift_remove("created");
            for call in event
                .pointer_mut("/choices/0/delta/tool_calls")
                .and_then(Value::as_array_mut)
                .into_iter()
                .flatten()
            {
                call.as_object_mut().unwrap().shift_remove("id");
            }
            event
        }
        Err(_) => Value::String(data.to_owned()),
    })
    .collect()
}

/// Ids and log-probabilities as an independent walk over the recording finds them.
fn sampled(stream: &[u8]) -> (Vec<u32>, Vec<f64>) {
    let (mut ids, mut logprobs) = (Vec::new(), Vec::new());
    for event in events(stream) {
        let Some(choice) = event.pointer("/choices/0") else {
            continue;
        };
        ids.extend(
            choice["token_ids"]
                .as_array()
                .into_iter()
                .flatten()
                .map(|id| id.as_u64().unwrap() as u32),
        );
        let entries = choice["logprobs"]["content"].as_array();
        logprobs.extend(
            entries
                .into_iter()
                .flatten()
                .map(|entry| entry["logprob"].as_f64().unwrap()),
        );
    }
    (ids, logprobs)
}

#[tokio::test]
async fn trap_02_and_07_a_recorded_turn_is_captured_and_the_agent_sees_the_plain_one_at_any_split() {
    let sent = fixture("vllm-0.32.0/list_tools_stream_lp5_ids.response.body");
    let plain = fixture("vllm-0.32.0/list_tools_stream_plain.response.body");
    let (ids, logprobs) = sampled(&sent);
    assert_eq!(ids.len(), 42);
    for part in [1, 7, 1000, usize::MAX] {
        let body = sent.clone();
        let stage = Stage::new(move |_, _| Script::events(&body, part)).await;
        let request = fixture("vllm-0.32.0/list_tools_stream_plain.request.json");
        let received = stage.agent().await.chat(request).await;
        assert_eq!(events(&received.body), events(&plain), "in parts of {part}");
        assert!(!received.broken);
        assert_eq!(
            received.headers["content-type"],
            "text/event-stream; charset=utf-8"
        );
        // Recorded before the agent sees the end: no waiting here.
        assert_eq!(stage.calls.count(), 1);
        let call = stage.calls.only().await;
        assert_eq!(call.completions[0].token_ids, ids);
        assert_eq!(call.completions[0].logprobs, logprobs);
        assert_eq!(call.prompt_token_ids.as_ref().map(Vec::len), Some(125));
        assert_eq!(call.meta.end, CallEnd::Complete);
        assert_eq!(call.meta.level, CaptureLevel::Tokens);
        assert_eq!(call.meta.flags, [Flag::SamplingDefaulted]);
        assert_eq!(call.meta.status, Some(200));
        assert!(call.meta.streamed);
        assert_eq!(call.meta.upstream_bytes, sent.len() as u64);
        assert!(call.meta.first_token_ms.is_some());
    }
}

#[tokio::test]
async fn what_is_captured_is_asked_for_and_the_agents_headers_that_matter_pass() {
    let body = fixture("vllm-0.32.0/hi_stream_lp5_ids.response.body");
    let stage = Stage::with(
        move |_, _| Script::events(&body, usize::MAX),
        |endpoint| {
            endpoint.api_key = Some("sk-operator".to_owned().into());
            endpoint.headers.push(("x-team".into(), "blue".to_owned().into()));
        },
        |_| {},
    )
    .await;
    let mut agent = stage.agent().await;
    let mut request = agent.post(ask(true));
    for (name, value) in [
        ("x-session-id", "ses_1"),
        ("user-agent", "opencode/1"),
        ("cookie", "c=1"),
        ("x-evil", "1"),
    ] {
        request.headers_mut().insert(name, value.parse().unwrap());
    }
    read(agent.send(request).await).await;
    let asked = stage.endpoint.asked().remove(0);
    assert!(
        asked.head.starts_with("POST /v1/chat/completions HTTP/1.1\r\n"),
        "{}",
        asked.head
    );
    assert_eq!(asked.header("authorization"), Some("Bearer sk-operator"));
    assert_eq!(asked.header("x-team"), Some("blue"));
    assert_eq!(asked.header("x-session-id"), Some("ses_1"));
    assert_eq!(asked.header("user-agent"), Some("opencode/1"));
    assert_eq!(asked.header("accept-encoding"), Some("identity"));
    assert_eq!((asked.header("cookie"), asked.header("x-evil")), (None, None));
    let sent = asked.json();
    assert_eq!(sent["logprobs"], true);
    assert_eq!(sent["top_logprobs"], 5);
    assert_eq!(sent["return_token_ids"], true);
    assert_eq!(sent["stream_options"]["include_usage"], true);
    assert_eq!(stage.calls.dispatched(), [asked.body]);
}

#[tokio::test]
async fn each_event_passes_before_the_next_one_is_sent() {
    let body = fixture("vllm-0.32.0/hi_stream_plain.response.body");
    let gate = Arc::new(Notify::new());
    let events: Vec<Vec<u8>> = String::from_utf8(body)
        .unwrap()
        .split_inclusive("\n\n")
        .map(|event| event.as_bytes().to_vec())
        .collect();
    let (first, second) = (events[0].clone(), events[1].clone());
    let held = gate.clone();
    let stage = Stage::new(move |_, _| {
        let script = Script::stream()
            .chunk(&events[0])
            .then(Act::Wait(held.clone()))
            .chunk(&events[1]);
        events[2..]
            .iter()
            .fold(script.then(Act::Wait(held.clone())), |script, event| {
                script.chunk(event)
            })
            .finish()
    })
    .await;
    let mut agent = stage.agent().await;
    let request = agent.post(ask(true));
    let mut reply = agent.send(request).await.into_body();
    assert_eq!(part(&mut reply).await.as_bytes(), first);
    gate.notify_one();
    assert_eq!(part(&mut reply).await.as_bytes(), second);
    gate.notify_one();
    soon("the rest", reply.collect()).await.unwrap();
    assert_eq!(stage.calls.only().await.meta.end, CallEnd::Complete);
}

#[tokio::test]
async fn the_first_event_does_not_wait_for_those_behind_it() {
    let body = fixture("vllm-0.32.0/list_tools_stream_lp5_ids.response.body");
    let text = String::from_utf8(body).unwrap();
    let stage = Stage::new(move |_, _| {
        // All of it in one write, so that there is always more to gather.
        let script = text.split_inclusive("\n\n").fold(Script::stream(), Script::chunk);
        script.finish().at_once()
    })
    .await;
    let mut agent = stage.agent().await;
    let request = agent.post(ask(true));
    let mut reply = agent.send(request).await.into_body();
    let first = part(&mut reply).await;
    assert_eq!(first.matches("data: ").count(), 1, "{first}");
    soon("the rest", reply.collect()).await.unwrap();
}

#[tokio::test]
async fn what_comes_in_one_read_goes_out_in_few_parts() {
    let body = fixture("vllm-0.32.0/list_tools_stream_lp5_ids.response.body");
    let text = String::from_utf8(body).unwrap();
    let stage = Stage::new(move |_, _| {
        let script = text.split_inclusive("\n\n").fold(Script::stream(), Script::chunk);
        script.finish().at_once()
    })
    .await;
    let mut agent = stage.agent().await;
    let request = agent.post(ask(true));
    let mut reply = agent.send(request).await.into_body();
    let mut parts = Vec::new();
    while let Some(frame) = soon("a part", reply.frame()).await {
        let bytes = frame.unwrap().into_data().unwrap();
        parts.push(String::from_utf8(bytes.to_vec()).unwrap());
    }
    // Of its 45 events, some of which are of token ids alone.
    assert_eq!(parts.concat().matches("data: ").count(), 26);
    assert!(parts.concat().ends_with("data: [DONE]\n\n"));
    // The first event by itself, and what is less than a part's bytes: together, or in two where the endpoint's connection
    // had to read twice.
    assert!(parts.len() <= 3, "{parts:#?}");
}

#[tokio::test]
async fn trap_22_a_silent_endpoint_makes_comments_and_an_early_head() {
    let gate = Arc::new(Notify::new());
    let held = gate.clone();
    let body = fixture("vllm-0.32.0/hi_stream_lp5_ids.response.body");
    let plain = fixture("vllm-0.32.0/hi_stream_plain.response.body");
    let at = body.windows(2).position(|two| two == b"\n\n").unwrap() + 2;
    let stage = Stage::with(
        move |_, _| {
            Script::default()
                .then(Act::Wait(held.clone()))
                .then(Act::Send(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n".to_vec()))
                .chunk(&body[..at])
                .then(Act::Wait(held.clone()))
                .chunk(&body[at..])
                .finish()
        },
        |_| {},
        |session| session.keep_alive = Some(Duration::from_millis(20)),
    )
    .await;
    let mut agent = stage.agent().await;
    let request = agent.post(ask(true));
    let response = agent.send(request).await;
    assert_eq!(response.status(), 200);
    assert_eq!(
        response.headers()["content-type"],
        "text/event-stream; charset=utf-8"
    );
    let mut reply = response.into_body();
    let mut all = String::new();
    for _ in 0..3 {
        assert_eq!(part(&mut reply).await, ": keep-alive\n\n");
    }
    gate.notify_one();
    loop {
        let next = part(&mut reply).await;
        if next.starts_with("data:") {
            all.push_str(&next);
            break;
        }
        assert_eq!(next, ": keep-alive\n\n");
    }
    assert_eq!(
        part(&mut reply).await,
        ": keep-alive\n\n",
        "in the middle of a stream too"
    );
    gate.notify_one();
    let rest = soon("the rest", reply.collect()).await.unwrap().to_bytes();
    all.push_str(std::str::from_utf8(&rest).unwrap());
    assert_eq!(
        events(all.replace(": keep-alive\n\n", "").as_bytes()),
        events(&plain)
    );
    assert_eq!(stage.calls.only().await.meta.end, CallEnd::Complete);
}

#[tokio::test]
async fn trap_22_an_error_after_the_early_head_is_an_error_event() {
    let gate = Arc::new(Notify::new());
    let held = gate.clone();
    let stage = Stage::with(
        move |_, _| {
            let reply = b"HTTP/1.1 503 Busy\r\ncontent-type: application/json\r\ncontent-length: 42\r\n\r\n{\"error\":{\"message\":\"the queue is full\"}}\n";
            Script::default().then(Act::Wait(held.clone())).then(Act::Send(reply.to_vec()))
        },
        |_| {},
        |session| session.keep_alive = Some(Duration::from_millis(10)),
    )
    .await;
    let mut agent = stage.agent().await;
    let request = agent.post(ask(true));
    let mut reply = agent.send(request).await.into_body();
    assert_eq!(part(&mut reply).await, ": keep-alive\n\n");
    gate.notify_one();
    let rest = soon("the rest", reply.collect()).await.unwrap().to_bytes();
    let rest = String::from_utf8(rest.to_vec())
        .unwrap()
        .replace(": keep-alive\n\n", "");
    let event: Value = serde_json::from_str(rest.strip_prefix("data: ").unwrap().trim_end()).unwrap();
    assert!(
        event["error"]["message"]
            .as_str()
            .unwrap()
            .contains("the queue is full"),
        "{event}"
    );
    let call = stage.calls.only().await;
    assert_eq!(
        (call.meta.end, call.meta.status),
        (CallEnd::UpstreamError, Some(503))
    );
}

#[tokio::test]
async fn trap_28_an_event_of_5_mb_passes_and_one_over_the_limit_is_a_clear_error() {
    let content = "x".repeat(5 << 20);
    let event = format!(
        "data: {{\"id\":\"c\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"tiny\",\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"{content}\"}},\"finish_reason\":\"stop\"}}]}}\n\n"
    );
    let body = format!("{event}data: [DONE]\n\n");
    let sent = body.clone();
    let stage = Stage::new(move |_, _| Script::events(sent.as_bytes(), 64 << 10)).await;
    let received = stage.agent().await.chat(ask(true)).await;
    assert_eq!(received.body.len(), body.len());
    assert!(received.body == body.as_bytes());
    assert_eq!(stage.calls.only().await.meta.end, CallEnd::Complete);

    let sent = body.clone();
    let stage = Stage::with(
        move |_, _| Script::events(sent.as_bytes(), 64 << 10).then(Act::UntilGone),
        |_| {},
        |session| session.limits.event_bytes = 1 << 20,
    )
    .await;
    let received = stage.agent().await.chat(ask(true)).await;
    assert!(
        received.text().contains("larger than 1048576 bytes"),
        "{}",
        received.text()
    );
    let call = stage.calls.only().await;
    assert_eq!(call.meta.end, CallEnd::UpstreamCut);
}

#[tokio::test]
async fn a_last_event_ends_the_call_though_the_body_goes_on() {
    let gate = Arc::new(Notify::new());
    let held = gate.clone();
    let body = fixture("vllm-0.32.0/hi_stream_lp5_ids.response.body");
    let stage = Stage::new(move |_, _| {
        Script::stream()
            .chunk(&body)
            .then(Act::Wait(held.clone()))
            .finish()
    })
    .await;
    let mut agent = stage.agent().await;
    let request = agent.post(ask(true));
    let mut reply = agent.send(request).await.into_body();
    let mut seen = String::new();
    while !seen.contains("[DONE]") {
        seen.push_str(&part(&mut reply).await);
    }
    assert_eq!(stage.calls.only().await.meta.end, CallEnd::Complete);
    gate.notify_one();
    soon("the end", reply.collect()).await.unwrap();
}
