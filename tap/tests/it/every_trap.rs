//! The traps of a call's way through the tap, in every dialect, streamed and whole: what fails names the dialect and the
//! mode. Those of what is captured are in `dressage-wire`, where a table says which trap is tested where.

use crate::dialects::{WAYS, Way};
use crate::support::agent::{Received, read};
use crate::support::{Act, PATIENCE, Script, Stage, fixture, soon};
use dressage_wire::call::{CallEnd, CaptureLevel, Change, DialectName, Flag, Purpose};
use dressage_wire::capture::AgentSigns;
use dressage_wire::probe::{LogprobsKind, PROBE_VERSION, ProbeReport, ProbedReply};
use dressage_wire::sampling::Sampling;
use dressage_wire::task::CaptureMode;
use serde_json::{Value, json};
use std::fmt;
use std::sync::Arc;
use tokio::sync::Notify;

/// Chat completions, which the others are translated to.
static CHAT: Way = Way {
    name: DialectName::ChatCompletions,
    stream_path: "/v1/chat/completions",
    unary_path: "/v1/chat/completions",
    body: |stream| json!({"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "stream": stream}),
    last: "data: [DONE]\n\n",
    kind: "/error/type",
    kinds: ["authentication_error", "invalid_request_error", "upstream_error"],
    key_header: "authorization",
};

/// A dialect, streamed or whole.
#[derive(Clone, Copy)]
struct Case {
    way: &'static Way,
    streamed: bool,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mode = if self.streamed { "streamed" } else { "whole" };
        write!(f, "in {:?}, {mode}", self.way.name)
    }
}

fn everywhere() -> impl Iterator<Item = Case> {
    let ways = || std::iter::once(&CHAT).chain(&WAYS);
    [true, false]
        .into_iter()
        .flat_map(move |streamed| ways().map(move |way| Case { way, streamed }))
}

impl Case {
    /// A good reply in the mode.
    fn good(self) -> Script {
        if self.streamed {
            Script::events(
                &fixture("vllm-0.32.0/list_tools_stream_lp5_ids.response.body"),
                usize::MAX,
            )
        } else {
            Script::json(200, fixture("vllm-0.32.0/hi_unary_lp5_ids.response.body"))
        }
    }

    /// Asks, with a member put into the body, and headers.
    async fn asks(self, stage: &Stage, members: Value, headers: &[(&'static str, &str)]) -> Received {
        let mut body = (self.way.body)(self.streamed);
        body.as_object_mut()
            .unwrap()
            .extend(members.as_object().unwrap().clone());
        let mut agent = stage.agent().await;
        let mut request = agent.request("POST", self.way.path(self.streamed), body.to_string());
        for (name, value) in headers {
            request.headers_mut().insert(*name, value.parse().unwrap());
        }
        read(agent.send(request).await).await
    }

    fn limit(self, tokens: u64) -> Value {
        match self.way.name {
            DialectName::Responses => json!({"max_output_tokens": tokens}),
            DialectName::GenerateContent => json!({"generationConfig": {"maxOutputTokens": tokens}}),
            _ => json!({"max_tokens": tokens}),
        }
    }
}

#[tokio::test]
async fn trap_10_a_whole_reply_that_breaks_off_is_an_error() {
    let head =
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 1000\r\n\r\n{\"choices\":";
    for case in everywhere().filter(|case| !case.streamed) {
        let stage = Stage::new(move |_, _| Script::raw(head).then(Act::Close)).await;
        let received = case.asks(&stage, json!({}), &[]).await;
        assert_eq!(received.status, 502, "{case}");
        assert!(
            received.error().contains("the reply broke off"),
            "{case}: {}",
            received.error()
        );
        assert_eq!(stage.calls.only().await.meta.end, CallEnd::UpstreamCut, "{case}");
    }
}

#[tokio::test]
async fn trap_11_a_reply_of_another_content_type_is_an_error() {
    for case in everywhere() {
        let stage =
            Stage::new(|_, _| Script::reply(200, "content-type: text/html\r\n", "<html></html>")).await;
        let received = case.asks(&stage, json!({}), &[]).await;
        assert_eq!(received.status, 502, "{case}");
        assert!(
            received.error().contains("it answered with \"text/html\""),
            "{case}: {}",
            received.error()
        );
        assert_eq!(
            stage.calls.only().await.meta.end,
            CallEnd::UpstreamError,
            "{case}"
        );
    }
}

#[tokio::test]
async fn trap_12_an_agent_that_leaves_before_the_reply_cancels_the_endpoint() {
    for case in everywhere() {
        let stage = Stage::new(|_, _| Script::default().then(Act::UntilGone)).await;
        let mut agent = stage.agent().await;
        let request = agent.request(
            "POST",
            case.way.path(case.streamed),
            (case.way.body)(case.streamed).to_string(),
        );
        let sending = tokio::spawn(async move { agent.send(request).await.status() });
        soon("the request", async {
            while stage.endpoint.asked().is_empty() {
                tokio::task::yield_now().await;
            }
        })
        .await;
        sending.abort();
        stage.endpoint.until_gone(1).await;
        let call = stage.calls.only().await;
        assert_eq!(
            (call.meta.end, call.meta.status),
            (CallEnd::DownstreamGone, None),
            "{case}"
        );
    }
}

#[tokio::test]
async fn trap_13_a_retry_has_the_key_of_what_it_repeats() {
    for case in everywhere() {
        let stage = Stage::new(move |number, _| {
            if number == 0 {
                Script::json(500, r#"{"error":{"message":"oh"}}"#)
            } else {
                case.good()
            }
        })
        .await;
        for (count, status) in [("0", 500), ("1", 200)] {
            let received = case
                .asks(&stage, json!({}), &[("x-stainless-retry-count", count)])
                .await;
            assert_eq!(received.status, status, "{case}");
        }
        let calls = stage.calls.ended(2).await;
        assert_eq!(calls[0].meta.retry_key, calls[1].meta.retry_key, "{case}");
        assert_eq!(
            (calls[0].meta.retry_count, calls[1].meta.retry_count),
            (Some(0), Some(1)),
            "{case}"
        );
        assert_eq!(
            (calls[0].meta.end, calls[1].meta.end),
            (CallEnd::UpstreamError, CallEnd::Complete),
            "{case}"
        );
    }
}

#[tokio::test]
async fn trap_15_calls_are_labelled_by_their_signs() {
    const SIGNS: AgentSigns = AgentSigns {
        session_header: Some("x-session-id"),
        auxiliary: &[],
        ..AgentSigns::OPENCODE
    };
    const OWN: (&str, &str) = ("user-agent", "opencode/1.18");
    for case in everywhere() {
        let stage = Stage::with(move |_, _| case.good(), |_| {}, |session| session.signs = SIGNS).await;
        for headers in [
            &[("x-session-id", "ses_1"), OWN][..],
            &[("x-session-id", "ses_2"), ("x-parent-session-id", "ses_1"), OWN],
            &[("x-session-id", "ses_1"), ("user-agent", "curl/8")],
        ] {
            assert_eq!(case.asks(&stage, json!({}), headers).await.status, 200, "{case}");
        }
        let calls = stage.calls.ended(3).await;
        let purposes: Vec<Purpose> = calls.iter().map(|call| call.meta.purpose).collect();
        assert_eq!(
            purposes,
            [Purpose::Agent, Purpose::Subagent, Purpose::Foreign],
            "{case}"
        );
    }
}

#[tokio::test]
async fn trap_24_what_is_refused_is_sent_once_more_without_and_remembered() {
    for case in everywhere() {
        let stage = Stage::new(move |_, asked| {
            if asked.json().get("max_tokens").is_none() {
                return case.good();
            }
            let message = "Unsupported parameter: 'max_tokens' is not supported with this model. Use \
                'max_completion_tokens' instead.";
            let error = json!({"error": {"message": message, "param": "max_tokens", "code": "unsupported_parameter"}});
            Script::json(400, error.to_string())
        })
        .await;
        for _ in 0..2 {
            assert_eq!(case.asks(&stage, case.limit(7), &[]).await.status, 200, "{case}");
        }
        let asked = stage.endpoint.asked();
        assert_eq!(asked.len(), 3, "{case}: what was refused once is not asked again");
        assert_eq!(asked[2].json()["max_completion_tokens"], 7, "{case}");
        let renamed = Change::Renamed {
            from: "max_tokens".into(),
            to: "max_completion_tokens".into(),
        };
        for call in stage.calls.ended(2).await {
            assert_eq!(call.meta.changes, std::slice::from_ref(&renamed), "{case}");
            assert!(call.meta.flags.contains(&Flag::RequestChanged), "{case}");
        }
    }
}

#[tokio::test]
async fn trap_25_27_calls_at_once_are_separate_and_know_their_policies() {
    let cases: Vec<Case> = everywhere().collect();
    let gate = Arc::new(Notify::new());
    let held = gate.clone();
    let stage = Stage::new(move |_, asked| {
        let streamed = asked.json()["stream"] == true;
        let case = Case { way: &CHAT, streamed };
        Script::default().then(Act::Wait(held.clone())).and(case.good())
    })
    .await;
    let stage = Arc::new(stage);
    let control = stage.session.config().upstream.control().clone();
    control.set_policy_version(Some("step-7".into()));
    let asking: Vec<_> = cases
        .iter()
        .map(|case| {
            let (case, stage) = (*case, stage.clone());
            tokio::spawn(async move { case.asks(&stage, json!({}), &[]).await.status })
        })
        .collect();
    soon("all requests at once", async {
        while stage.endpoint.asked().len() < cases.len() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    control.set_policy_version(Some("step-8".into()));
    for _ in &cases {
        gate.notify_one();
        tokio::task::yield_now().await;
    }
    for asking in asking {
        // A permit may have gone to one that had one already.
        let asking = tokio::time::timeout(PATIENCE, async {
            let mut asking = asking;
            loop {
                tokio::select! {
                    status = &mut asking => return status.unwrap(),
                    () = tokio::task::yield_now() => gate.notify_one(),
                }
            }
        });
        assert_eq!(asking.await.unwrap(), 200);
    }
    let calls = stage.calls.ended(cases.len()).await;
    for case in &cases {
        let own = |call: &&dressage_wire::call::Call| {
            call.meta.dialect == case.way.name && call.meta.streamed == case.streamed
        };
        let call = calls
            .iter()
            .find(own)
            .unwrap_or_else(|| panic!("{case}: no call"));
        assert_eq!(
            (call.meta.end, call.meta.level),
            (CallEnd::Complete, CaptureLevel::Tokens),
            "{case}"
        );
        assert_eq!(
            call.meta.policy_version_at_dispatch.as_deref(),
            Some("step-7"),
            "{case}"
        );
        assert_eq!(
            call.meta.policy_version_at_completion.as_deref(),
            Some("step-8"),
            "{case}"
        );
    }
}

#[tokio::test]
async fn trap_28_what_is_too_large_is_a_413_in_the_dialects_words() {
    let image = "A".repeat(64 << 10);
    for case in everywhere() {
        let stage = Stage::with(
            |_, _| panic!("nothing may be sent"),
            |_| {},
            |session| session.limits.request_bytes = 16 << 10,
        )
        .await;
        let members = match case.way.name {
            DialectName::Messages => json!({"messages": [{"role": "user", "content": [
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": image}}]}]}),
            DialectName::Responses => json!({"input": [{"role": "user", "content": [
                {"type": "input_image", "image_url": format!("data:image/png;base64,{image}")}]}]}),
            DialectName::GenerateContent => json!({"contents": [{"parts": [
                {"inlineData": {"mimeType": "image/png", "data": image}}]}]}),
            DialectName::ChatCompletions => json!({"messages": [{"role": "user", "content": [
                {"type": "image_url", "image_url": {"url": format!("data:image/png;base64,{image}")}}]}]}),
        };
        let received = case.asks(&stage, members, &[]).await;
        assert_eq!(received.status, 413, "{case}");
        assert_eq!(
            received.error(),
            "the request body is larger than 16384 bytes",
            "{case}"
        );
        let kind = received.json().pointer(case.way.kind).cloned();
        let wanted = match case.way.name {
            DialectName::Messages => "request_too_large",
            DialectName::GenerateContent => "INVALID_ARGUMENT",
            _ => "invalid_request_error",
        };
        assert_eq!(kind, Some(json!(wanted)), "{case}");
        assert_eq!(stage.calls.only().await.meta.end, CallEnd::Refused, "{case}");
    }
}

#[tokio::test]
async fn trap_28_a_reply_over_the_limit_is_an_error() {
    for case in everywhere() {
        let stage = Stage::with(
            move |_, _| case.good().then(Act::UntilGone),
            |_| {},
            |session| {
                session.limits.reply_bytes = 1024;
                session.limits.event_bytes = 512;
            },
        )
        .await;
        let received = case.asks(&stage, json!({}), &[]).await;
        let end = stage.calls.only().await.meta.end;
        assert_eq!(end, CallEnd::UpstreamCut, "{case}");
        assert!(
            received.text().contains("larger than"),
            "{case}: {}",
            received.text()
        );
        assert_eq!(received.status, if case.streamed { 200 } else { 502 }, "{case}");
        assert!(!received.text().contains(case.way.last), "{case}");
    }
}

#[tokio::test]
async fn trap_29_30_sampling_is_recorded_and_raw_log_probabilities_are_flagged() {
    for case in everywhere() {
        for (temperature, flagged) in [(0.7, true), (1.0, false)] {
            let stage = Stage::with(
                move |_, _| case.good(),
                |_| {},
                |session| {
                    session.upstream.learn(raw_logprobs());
                    session.sampling = Sampling {
                        temperature: Some(temperature),
                        ..Sampling::default()
                    };
                },
            )
            .await;
            assert_eq!(case.asks(&stage, json!({}), &[]).await.status, 200, "{case}");
            assert_eq!(
                stage.endpoint.asked()[0].json()["temperature"],
                temperature,
                "{case}"
            );
            let meta = stage.calls.only().await.meta;
            assert_eq!(meta.sampling.temperature, Some(temperature), "{case}");
            assert_eq!(meta.sampling.top_p, Some(1.0), "{case}: the neutral set");
            assert_eq!(
                meta.flags.contains(&Flag::LogprobsRaw),
                flagged,
                "{case}: {:?}",
                meta.flags
            );
        }
    }
}

/// A report of an endpoint that tells log-probabilities as they are before temperature.
fn raw_logprobs() -> ProbeReport {
    let good = ProbedReply {
        level: CaptureLevel::Tokens,
        flags: Vec::new(),
        error: None,
    };
    ProbeReport {
        version: PROBE_VERSION,
        base_url: String::new(),
        model: "tiny".into(),
        answered_as: None,
        probed_unix_ms: 0,
        whole: good.clone(),
        stream: good.clone(),
        whole_with_tools: good.clone(),
        stream_with_tools: good,
        tool_called: true,
        logprobs: LogprobsKind::Raw,
        changes: Vec::new(),
        context_length: None,
        reasoning_member: None,
        capture: CaptureMode::Stream,
        notes: Vec::new(),
    }
}
