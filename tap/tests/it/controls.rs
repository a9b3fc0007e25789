//! What holds for all calls to an endpoint: pauses, several servers, and budgets of time and cost.

use crate::support::{Act, Agent, FakeEndpoint, Script, Stage, agent, ask, fixture, session, soon};
use dressage_tap::endpoint::Prices;
use dressage_tap::{Budgets, CallLimits, Endpoint};
use dressage_testkit::closed::ClosedPort;
use dressage_wire::call::{CallEnd, Flag};
use http_body_util::BodyExt;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;

fn whole() -> Script {
    Script::json(200, fixture("vllm-0.32.0/hi_unary_lp5_ids.response.body"))
}

fn streamed() -> Script {
    Script::events(&fixture("vllm-0.32.0/hi_stream_lp5_ids.response.body"), 4096)
}

#[tokio::test]
async fn a_paused_endpoint_keeps_agents_waiting_and_their_calls_are_of_the_new_version() {
    let stage = Stage::with(
        |_, _| streamed(),
        |_| {},
        |session| session.keep_alive = Some(Duration::from_millis(10)),
    )
    .await;
    let upstream = stage.session.config().upstream.clone();
    let control = upstream.control();
    control.set_policy_version(Some("step-7".into()));
    control.pause();
    let mut agent = stage.agent().await;
    let response = agent.send(agent.post(ask(true))).await;
    assert_eq!(response.status(), 200);
    let mut body = response.into_body();
    for _ in 0..3 {
        assert_eq!(agent::part(&mut body).await, ": keep-alive\n\n");
    }
    assert!(stage.endpoint.asked().is_empty(), "sent while paused");
    assert_eq!(control.usage().waiting, 1);

    control.set_policy_version(Some("step-8".into()));
    control.resume();
    let rest = soon("the reply", body.collect()).await.unwrap().to_bytes();
    assert!(rest.ends_with(b"data: [DONE]\n\n"));
    let call = stage.calls.only().await;
    assert_eq!(call.meta.end, CallEnd::Complete);
    assert_eq!(call.meta.policy_version_at_dispatch.as_deref(), Some("step-8"));
    soon("the end of all calls", control.drained()).await;
}

#[tokio::test]
async fn a_call_that_waits_ends_with_the_agent_stage_and_is_never_sent() {
    let stage = Stage::new(|_, _| whole()).await;
    let upstream = stage.session.config().upstream.clone();
    upstream.control().pause();
    let mut agent = stage.agent().await;
    let asking = tokio::spawn(async move { agent.chat(ask(false)).await });
    soon("the call's waiting", async {
        while upstream.control().usage().waiting == 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    stage.session.close().await;
    assert_eq!(asking.await.unwrap().status, 503);
    let call = stage.calls.only().await;
    assert_eq!(call.meta.end, CallEnd::DownstreamGone);
    upstream.control().resume();
    assert_eq!(upstream.control().usage().waiting, 0);
    assert!(stage.endpoint.asked().is_empty());
}

#[tokio::test]
async fn no_more_calls_are_sent_at_once_than_the_endpoint_allows() {
    let gate = Arc::new(Notify::new());
    let held = gate.clone();
    let stage = Stage::with(
        move |_, _| Script::default().then(Act::Wait(held.clone())).and(whole()),
        |endpoint| {
            endpoint.limits = CallLimits {
                at_once: Some(1),
                per_minute: None,
            };
        },
        |_| {},
    )
    .await;
    let control = stage.session.config().upstream.control().clone();
    let asking = [stage.agent().await, stage.agent().await]
        .map(|mut agent| tokio::spawn(async move { agent.chat(ask(false)).await }));
    soon("one call in flight and one that waits", async {
        while (
            control.usage().in_flight,
            control.usage().waiting,
            stage.endpoint.asked().len(),
        ) != (1, 1, 1)
        {
            tokio::task::yield_now().await;
        }
    })
    .await;
    // The permit is kept for whoever waits next.
    gate.notify_one();
    soon("the second request", async {
        while stage.endpoint.asked().len() < 2 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    gate.notify_one();
    for asking in asking {
        assert_eq!(asking.await.unwrap().status, 200);
    }
    soon("the end of all calls", control.drained()).await;
}

/// A base URL at which nobody listens, for as long as the port is kept.
fn nobody() -> (ClosedPort, String) {
    let closed = ClosedPort::take().unwrap();
    let url = format!("http://{}/v1", closed.address());
    (closed, url)
}

#[tokio::test]
async fn the_calls_of_a_session_go_to_one_server_and_sessions_to_all() {
    let servers = [
        FakeEndpoint::start(|_, _| whole()).await,
        FakeEndpoint::start(|_, _| whole()).await,
    ];
    let mut used = [0, 0];
    for _ in 0..24 {
        let mut endpoint = Endpoint::at("two", servers[0].base_url());
        endpoint.replicas = vec![servers[1].base_url()];
        let before = [servers[0].asked().len(), servers[1].asked().len()];
        let (session, calls) = session(endpoint, |_| {});
        session.open();
        let mut agent = Agent::connect(&session).await;
        for _ in 0..3 {
            assert_eq!(agent.chat(ask(false)).await.status, 200);
        }
        calls.ended(3).await;
        let asked = [
            servers[0].asked().len() - before[0],
            servers[1].asked().len() - before[1],
        ];
        assert!(asked == [3, 0] || asked == [0, 3], "{asked:?}");
        used[usize::from(asked[1] == 3)] += 1;
    }
    // A chance of one in eight million each.
    assert!(used[0] > 0 && used[1] > 0, "{used:?}");
}

#[tokio::test]
async fn where_no_connection_can_be_made_another_server_is_asked() {
    let server = FakeEndpoint::start(|_, _| whole()).await;
    let ((_one, nobody_here), (_other, nor_here)) = (nobody(), nobody());
    // Whichever a session would go to first.
    for (first, second) in [
        (server.base_url(), nobody_here.clone()),
        (nobody_here.clone(), server.base_url()),
    ] {
        for _ in 0..4 {
            let before = server.asked().len();
            let mut endpoint = Endpoint::at("two", first.clone());
            endpoint.replicas = vec![second.clone()];
            let (session, calls) = session(endpoint, |_| {});
            session.open();
            assert_eq!(Agent::connect(&session).await.chat(ask(false)).await.status, 200);
            assert_eq!(server.asked().len(), before + 1);
            assert_eq!(calls.only().await.meta.end, CallEnd::Complete);
        }
    }
    let mut endpoint = Endpoint::at("two", nobody_here);
    endpoint.replicas = vec![nor_here];
    let (session, calls) = session(endpoint, |_| {});
    session.open();
    assert_eq!(Agent::connect(&session).await.chat(ask(false)).await.status, 502);
    assert_eq!(calls.only().await.meta.end, CallEnd::UpstreamError);
}

#[tokio::test]
async fn what_a_server_was_sent_is_never_sent_to_another() {
    let breaking = || Script::default().then(Act::Reset);
    let servers = [
        FakeEndpoint::start(move |_, _| breaking()).await,
        FakeEndpoint::start(move |_, _| breaking()).await,
    ];
    let mut endpoint = Endpoint::at("two", servers[0].base_url());
    endpoint.replicas = vec![servers[1].base_url()];
    let (session, calls) = session(endpoint, |_| {});
    session.open();
    assert_eq!(Agent::connect(&session).await.chat(ask(false)).await.status, 502);
    assert_eq!(calls.only().await.meta.end, CallEnd::UpstreamError);
    let asked: usize = servers.iter().map(|server| server.asked().len()).sum();
    assert_eq!(asked, 1);
}

#[tokio::test]
async fn a_spent_cost_answers_in_the_endpoints_place() {
    // Of the recorded reply.
    let reply: serde_json::Value =
        serde_json::from_slice(&fixture("vllm-0.32.0/hi_unary_lp5_ids.response.body")).unwrap();
    let count = |name: &str| reply["usage"][name].as_f64().unwrap();
    let prices = Prices {
        prompt: 1e6,
        cached_prompt: None,
        completion: 2e6,
    };
    let each = count("prompt_tokens") + 2.0 * count("completion_tokens");
    let stage = Stage::with(
        |_, _| whole(),
        |endpoint| endpoint.prices = Some(prices),
        |session| {
            session.budgets = Budgets {
                cost: Some(1.5 * each),
                ..Budgets::default()
            };
        },
    )
    .await;
    let mut agent = stage.agent().await;
    for _ in 0..2 {
        assert_eq!(agent.chat(ask(false)).await.status, 200);
    }
    let answered = agent.chat(ask(false)).await.json();
    assert_eq!(
        answered["choices"][0]["message"]["content"],
        "The budget of cost for this task is spent. Stopping here."
    );
    let calls = stage.calls.ended(3).await;
    assert_eq!(stage.endpoint.asked().len(), 2);
    assert_eq!(
        (calls[2].meta.end, calls[2].meta.flags.as_slice()),
        (CallEnd::Budget, [Flag::Budget].as_slice())
    );
}

#[tokio::test]
async fn spent_wall_time_answers_in_the_endpoints_place() {
    let stage = Stage::with(
        |_, _| whole(),
        |_| {},
        |session| {
            session.budgets = Budgets {
                wall: Some(Duration::ZERO),
                ..Budgets::default()
            };
        },
    )
    .await;
    let answered = stage.agent().await.chat(ask(false)).await.json();
    assert_eq!(
        answered["choices"][0]["message"]["content"],
        "The time for this task is spent. Stopping here."
    );
    assert!(stage.endpoint.asked().is_empty());
}
