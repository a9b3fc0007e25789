use crate::support::agent::read;
use crate::support::{Act, Script, Stage, ask, fixture, session, soon};
use dressage_tap::{Budgets, SpentBudget};
use dressage_wire::call::{CallEnd, Flag, Purpose};
use dressage_wire::capture::AgentSigns;
use dressage_wire::sampling::Sampling;
use secrecy::ExposeSecret;
use std::collections::HashSet;
use std::sync::Arc;
use tokio::sync::Barrier;

fn unary() -> Script {
    Script::json(200, fixture("vllm-0.32.0/hi_unary_lp5_ids.response.body"))
}

#[tokio::test]
async fn the_token_is_good_in_the_agent_stage_only() {
    let stage = Stage::new(|_, _| unary()).await;
    let (early, _) = session(
        dressage_tap::Endpoint::at("fake", stage.endpoint.base_url()),
        |_| {},
    );
    let received = crate::support::Agent::connect(&early)
        .await
        .chat(ask(false))
        .await;
    assert_eq!(received.status, 401);
    assert_eq!(stage.agent().await.chat(ask(false)).await.status, 200);
    let mut late = stage.agent().await;
    stage.session.close().await;
    assert_eq!(
        late.chat(ask(false)).await.status,
        401,
        "on a connection from before"
    );
    stage.session.open();
    assert_eq!(late.chat(ask(false)).await.status, 401, "closed is closed");
    assert_eq!(stage.endpoint.asked().len(), 1);
    assert_eq!(stage.calls.started(), 1);
}

#[tokio::test]
async fn anything_but_the_token_is_a_401() {
    let stage = Stage::new(|_, _| panic!("nothing may be sent")).await;
    let token = stage.session.token().expose_secret().to_owned();
    assert_eq!(token.len(), 67);
    let mut agent = stage.agent().await;
    for wrong in [
        "",
        "sk-",
        &token[..66],
        &format!("{token}0"),
        &token.to_uppercase(),
    ] {
        agent = agent.with_token(wrong);
        assert_eq!(agent.chat(ask(false)).await.status, 401, "{wrong}");
    }
    let mut request = agent.post(ask(false));
    request.headers_mut().remove("authorization");
    assert_eq!(read(agent.send(request).await).await.status, 401);
    for path in ["/v1/models", "/v1/chat/completions/../../x", "/metrics"] {
        let request = agent.request("GET", path, "");
        assert_eq!(read(agent.send(request).await).await.status, 401, "{path}");
    }
}

#[tokio::test]
async fn the_token_is_taken_from_wherever_a_dialect_puts_it() {
    let stage = Stage::new(|_, _| unary()).await;
    let mut agent = stage.agent().await;
    for header in ["x-api-key", "x-goog-api-key"] {
        let mut request = agent.post(ask(false));
        request.headers_mut().remove("authorization");
        request
            .headers_mut()
            .insert(header, stage.session.token().expose_secret().parse().unwrap());
        assert_eq!(read(agent.send(request).await).await.status, 200, "{header}");
    }
}

#[tokio::test]
async fn trap_21_a_spent_budget_answers_in_the_callers_form_and_says_so() {
    let stage = Stage::with(
        |_, _| unary(),
        |_| {},
        |session| {
            session.budgets = Budgets {
                calls: Some(1),
                ..Budgets::default()
            }
        },
    )
    .await;
    let mut spent = stage.session.budget_spent();
    let mut agent = stage.agent().await;
    agent.chat(ask(false)).await;
    assert_eq!(*spent.borrow_and_update(), None);
    let whole = agent.chat(ask(false)).await;
    assert_eq!(whole.status, 200);
    let message = &whole.json()["choices"][0];
    assert_eq!(message["finish_reason"], "stop");
    assert_eq!(message["message"]["role"], "assistant");
    assert_eq!(message["message"]["content"], SpentBudget::Calls.message());
    let streamed = agent.chat(ask(true)).await;
    assert_eq!(
        streamed.headers["content-type"],
        "text/event-stream; charset=utf-8"
    );
    assert!(
        streamed.text().ends_with("data: [DONE]\n\n")
            && streamed.text().contains(SpentBudget::Calls.message())
    );
    soon("the word that it is spent", spent.changed()).await.unwrap();
    assert_eq!(*spent.borrow(), Some(SpentBudget::Calls));
    assert_eq!(stage.endpoint.asked().len(), 1);
    for call in &stage.calls.ended(3).await[1..] {
        assert_eq!(
            (call.meta.end, &call.meta.flags[..]),
            (CallEnd::Budget, &[Flag::Budget][..])
        );
        assert!(String::from_utf8_lossy(&call.response).contains(SpentBudget::Calls.message()));
    }
}

#[tokio::test]
async fn trap_21_tokens_are_budgeted_by_the_endpoints_count() {
    let recorded: serde_json::Value =
        serde_json::from_slice(&fixture("vllm-0.32.0/hi_unary_lp5_ids.response.body")).unwrap();
    let prompt = recorded["usage"]["prompt_tokens"].as_u64().unwrap();
    let completion = recorded["usage"]["completion_tokens"].as_u64().unwrap();
    for (budgets, expected) in [
        (
            Budgets {
                prompt_tokens: Some(prompt),
                ..Budgets::default()
            },
            SpentBudget::PromptTokens,
        ),
        (
            Budgets {
                completion_tokens: Some(completion),
                ..Budgets::default()
            },
            SpentBudget::CompletionTokens,
        ),
    ] {
        let stage = Stage::with(|_, _| unary(), |_| {}, |session| session.budgets = budgets).await;
        let mut agent = stage.agent().await;
        agent.chat(ask(false)).await;
        agent.chat(ask(false)).await;
        assert_eq!(*stage.session.budget_spent().borrow(), Some(expected));
        assert_eq!(stage.endpoint.asked().len(), 1);
    }
    let one_more = Budgets {
        completion_tokens: Some(completion + 1),
        ..Budgets::default()
    };
    let stage = Stage::with(|_, _| unary(), |_| {}, |session| session.budgets = one_more).await;
    let mut agent = stage.agent().await;
    agent.chat(ask(false)).await;
    agent.chat(ask(false)).await;
    assert_eq!(stage.endpoint.asked().len(), 2);
}

#[tokio::test]
async fn trap_15_calls_are_labelled_by_their_signs() {
    const SIGNS: AgentSigns = AgentSigns {
        session_header: Some("x-session-id"),
        auxiliary: &[],
        ..AgentSigns::OPENCODE
    };
    let stage = Stage::with(|_, _| unary(), |_| {}, |session| session.signs = SIGNS).await;
    let mut agent = stage.agent().await;
    for headers in [
        &[("x-session-id", "ses_1"), ("user-agent", "opencode/1.18")][..],
        &[
            ("x-session-id", "ses_2"),
            ("user-agent", "opencode/1.18"),
            ("x-parent-session-id", "ses_1"),
        ],
        &[("user-agent", "curl/8"), ("x-session-id", "ses_1")],
        &[("user-agent", "opencode/1.18")],
    ] {
        let mut request = agent.post(ask(false));
        for (name, value) in headers {
            request.headers_mut().insert(*name, value.parse().unwrap());
        }
        assert_eq!(read(agent.send(request).await).await.status, 200);
    }
    let calls = stage.calls.ended(4).await;
    let purposes: Vec<Purpose> = calls.iter().map(|call| call.meta.purpose).collect();
    assert_eq!(
        purposes,
        [
            Purpose::Agent,
            Purpose::Subagent,
            Purpose::Foreign,
            Purpose::Foreign
        ]
    );
    assert_eq!(calls[1].meta.session.as_deref(), Some("ses_2"));
    assert_eq!(calls[1].meta.parent_session.as_deref(), Some("ses_1"));
}

#[tokio::test]
async fn trap_13_and_14_a_retry_has_the_key_of_what_it_repeats_and_is_a_call_of_its_own() {
    let stage = Stage::with(
        |_, _| unary(),
        |_| {},
        |session| session.signs.session_header = Some("x-session-id"),
    )
    .await;
    let mut agent = stage.agent().await;
    let other_form = r#"{"max_tokens":5,"messages":[{"content":"hi","role":"user"}],"model":"tiny"}"#;
    for (body, session, retry) in [
        (ask(false), "a", None),
        (ask(false), "a", Some("1")),
        (other_form.into(), "a", None),
        (ask(false), "b", None),
    ] {
        let mut request = agent.post(body);
        request
            .headers_mut()
            .insert("x-session-id", session.parse().unwrap());
        if let Some(count) = retry {
            request
                .headers_mut()
                .insert("x-stainless-retry-count", count.parse().unwrap());
        }
        read(agent.send(request).await).await;
    }
    assert_eq!(stage.endpoint.asked().len(), 4, "nothing is ever replayed");
    let calls = stage.calls.ended(4).await;
    let key = |at: usize| calls[at].meta.retry_key.as_str();
    assert_eq!(calls[1].meta.retry_count, Some(1));
    assert_eq!((key(0), key(0)), (key(1), key(2)));
    assert_ne!(key(0), key(3), "another session");
    assert_eq!(key(0).len(), 32);
}

#[tokio::test]
async fn trap_27_identical_calls_in_flight_together_are_separate_calls() {
    let together = Arc::new(Barrier::new(8));
    let gates: Vec<Arc<tokio::sync::Notify>> = (0..8).map(|_| Arc::default()).collect();
    let held = gates.clone();
    let stage = Stage::new(move |number, _| {
        Script::default()
            .then(Act::Wait(held[number].clone()))
            .and(unary())
    })
    .await;
    let mut running = Vec::new();
    for _ in 0..8 {
        let mut agent = stage.agent().await;
        let together = together.clone();
        running.push(tokio::spawn(async move {
            together.wait().await;
            agent.chat(ask(false)).await.status
        }));
    }
    soon("eight requests at once", async {
        while stage.endpoint.asked().len() < 8 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    gates.iter().for_each(|gate| gate.notify_one());
    for running in running {
        assert_eq!(running.await.unwrap(), 200);
    }
    let calls = stage.calls.ended(8).await;
    let indexes: HashSet<u32> = calls.iter().map(|call| call.meta.index).collect();
    let ids: HashSet<_> = calls.iter().map(|call| call.meta.id).collect();
    assert_eq!((indexes, ids.len()), ((0..8).collect(), 8));
}

#[tokio::test]
async fn trap_25_the_policy_version_is_taken_when_sent_and_when_ended() {
    let gate = Arc::new(tokio::sync::Notify::new());
    let held = gate.clone();
    let stage = Stage::new(move |_, _| Script::default().then(Act::Wait(held.clone())).and(unary())).await;
    let upstream = stage.session.config().upstream.clone();
    upstream.control().set_policy_version(Some("step-7".into()));
    let mut agent = stage.agent().await;
    let asking = tokio::spawn(async move { agent.chat(ask(false)).await });
    soon("the request", async {
        while stage.endpoint.asked().is_empty() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    upstream.control().set_policy_version(Some("step-8".into()));
    gate.notify_one();
    asking.await.unwrap();
    let meta = stage.calls.only().await.meta;
    assert_eq!(meta.policy_version_at_dispatch.as_deref(), Some("step-7"));
    assert_eq!(meta.policy_version_at_completion.as_deref(), Some("step-8"));
}

#[tokio::test]
async fn trap_29_sampling_is_set_over_the_agents_and_recorded() {
    let given = Sampling {
        temperature: Some(0.7),
        seed: Some(3),
        ..Sampling::default()
    };
    let of_endpoint = Sampling {
        temperature: Some(0.1),
        top_p: Some(0.9),
        ..Sampling::default()
    };
    let stage = Stage::with(
        |_, _| unary(),
        |endpoint| endpoint.sampling = of_endpoint,
        |session| session.sampling = given.clone(),
    )
    .await;
    let body = r#"{"model":"tiny","messages":[],"temperature":0.2,"top_k":40}"#;
    stage.agent().await.chat(body).await;
    let sent = stage.endpoint.asked().remove(0).json();
    assert_eq!(
        (&sent["temperature"], &sent["top_p"], &sent["top_k"]),
        (&0.7.into(), &0.9.into(), &(-1).into())
    );
    let meta = stage.calls.only().await.meta;
    let expected = given.over(&Sampling {
        top_p: Some(0.9),
        ..Sampling::neutral()
    });
    assert_eq!(meta.sampling, expected);
    assert!(!meta.flags.contains(&Flag::SamplingDefaulted));
}

#[tokio::test]
async fn trap_26_token_limits_are_clamped_to_the_cap() {
    let stage = Stage::with(
        |_, _| unary(),
        |_| {},
        |session| session.max_tokens_cap = Some(4096),
    )
    .await;
    let body = r#"{"model":"tiny","messages":[],"max_tokens":32000,"tools":[],"stream_options":{"include_usage":true}}"#;
    stage.agent().await.chat(body).await;
    let sent = stage.endpoint.asked().remove(0).json();
    assert_eq!(sent["max_tokens"], 4096);
    assert_eq!((sent.get("tools"), sent.get("stream_options")), (None, None));
}

#[tokio::test]
async fn trap_23_an_upgrade_is_refused_at_once() {
    let stage = Stage::new(|_, _| panic!("nothing may be sent")).await;
    let mut agent = stage.agent().await;
    let mut request = agent.request("GET", "/v1/responses", "");
    request
        .headers_mut()
        .insert("connection", "upgrade".parse().unwrap());
    request
        .headers_mut()
        .insert("upgrade", "websocket".parse().unwrap());
    assert_eq!(read(agent.send(request).await).await.status, 426);
}

#[tokio::test]
async fn models_are_the_endpoints_or_the_one_that_every_call_goes_to() {
    let list = r#"{"object":"list","data":[{"id":"tiny"}]}"#;
    let stage = Stage::new(move |_, _| Script::json(200, list)).await;
    let mut agent = stage.agent().await;
    let request = agent.request("GET", "/v1/models", "");
    assert_eq!(read(agent.send(request).await).await.text(), list);
    assert!(
        stage.endpoint.asked()[0]
            .head
            .starts_with("GET /v1/models HTTP/1.1")
    );

    let stage = Stage::with(
        |_, asked| {
            assert_eq!(asked.json()["model"], "qwen");
            unary()
        },
        |endpoint| endpoint.model = Some("qwen".into()),
        |_| {},
    )
    .await;
    let mut agent = stage.agent().await;
    let request = agent.request("GET", "/v1/models", "");
    assert_eq!(
        read(agent.send(request).await).await.json()["data"][0]["id"],
        "qwen"
    );
    assert_eq!(agent.chat(ask(false)).await.status, 200);
    let request = agent.request("GET", "/v1/nothing", "");
    assert_eq!(read(agent.send(request).await).await.status, 404);
}

#[tokio::test]
async fn request_bodies_under_way_are_bounded_together() {
    let stage = Stage::with(
        |_, _| Script::default().then(Act::UntilGone),
        |_| {},
        |session| session.limits.requests_bytes = 100_000,
    )
    .await;
    let large = format!(
        r#"{{"model":"tiny","messages":[{{"role":"user","content":"{}"}}]}}"#,
        "x".repeat(60_000)
    );
    let mut first = stage.agent().await;
    let request = first.post(large.clone());
    let held = tokio::spawn(async move { first.send(request).await.status() });
    soon("the first request", async {
        while stage.endpoint.asked().is_empty() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let received = stage.agent().await.chat(large).await;
    assert_eq!(received.status, 503);
    assert!(
        received.error().contains("100000 bytes together"),
        "{}",
        received.error()
    );
    held.abort();
    stage.endpoint.until_gone(1).await;
    assert_eq!(stage.calls.ended(2).await[0].meta.end, CallEnd::Refused);
}
