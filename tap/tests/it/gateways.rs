use crate::support::agent::read;
use crate::support::{Act, Agent, Script, Stage, ask, fixture, soon};
use dressage_tap::{AllowedHosts, Gateway, Health};
use secrecy::ExposeSecret;
use std::sync::Arc;
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

async fn gateway(hosts: AllowedHosts) -> (Arc<Gateway>, CancellationToken) {
    let gateway = Gateway::bind("127.0.0.1:0".parse().unwrap(), hosts, || Health::Ok)
        .await
        .unwrap();
    let gateway = Arc::new(gateway);
    let stop = CancellationToken::new();
    let (serving, stopping) = (gateway.clone(), stop.clone());
    tokio::spawn(async move { serving.serve(stopping).await });
    (gateway, stop)
}

async fn agent(gateway: &Gateway, token: &str) -> Agent {
    Agent::over(TcpStream::connect(gateway.address()).await.unwrap(), token).await
}

#[tokio::test]
async fn a_request_is_for_the_session_whose_token_it_has() {
    let reply = || Script::json(200, fixture("vllm-0.32.0/hi_unary_lp5_ids.response.body"));
    let one = Stage::new(move |_, _| reply()).await;
    let two = Stage::new(move |_, _| reply()).await;
    let (gateway, _stop) = gateway(AllowedHosts::Named(Vec::new())).await;
    gateway.admit(&one.session);
    gateway.admit(&two.session);
    let mut agent = agent(&gateway, one.session.token().expose_secret()).await;
    assert_eq!(agent.chat(ask(false)).await.status, 200);
    // Another token on the same connection: proxies share connections.
    agent = agent.with_token(two.session.token().expose_secret());
    assert_eq!(agent.chat(ask(false)).await.status, 200);
    agent = agent.with_token("sk-wrong");
    assert_eq!(agent.chat(ask(false)).await.status, 401);
    assert_eq!((one.calls.count(), two.calls.count()), (1, 1));
    let token = two.session.token();
    drop(two);
    agent = agent.with_token(token.expose_secret());
    assert_eq!(
        agent.chat(ask(false)).await.status,
        401,
        "a session that is gone lets nobody in"
    );
}

#[tokio::test]
async fn names_that_are_not_ours_and_web_pages_are_refused() {
    let (gateway, _stop) = gateway(AllowedHosts::Named(vec!["tap.cluster".into()])).await;
    let mut agent = agent(&gateway, "").await;
    let port = gateway.address().port();
    for (host, origin, status) in [
        ("127.0.0.1", None, 200),
        ("localhost:80", None, 200),
        (&*format!("[::1]:{port}"), None, 200),
        ("TAP.cluster:9", None, 200),
        ("evil.example", None, 421),
        ("127.0.0.1.evil.example", None, 421),
        ("", None, 421),
        ("127.0.0.1", Some("http://localhost:3000"), 200),
        ("127.0.0.1", Some("https://evil.example"), 403),
        ("127.0.0.1", Some("null"), 403),
    ] {
        let mut request = agent.request("GET", "/healthz", "");
        request.headers_mut().insert("host", host.parse().unwrap());
        if let Some(origin) = origin {
            request.headers_mut().insert("origin", origin.parse().unwrap());
        }
        let received = read(agent.send(request).await).await;
        assert_eq!(received.status, status, "{host:?} {origin:?}");
        if status == 200 {
            assert_eq!(received.text(), r#"{"status":"ok"}"#);
        }
    }
}

#[tokio::test]
async fn stopping_answers_what_is_under_way_and_takes_nothing_new() {
    let gate = Arc::new(tokio::sync::Notify::new());
    let held = gate.clone();
    let stage = Stage::new(move |_, _| {
        let reply = Script::json(200, fixture("vllm-0.32.0/hi_unary_lp5_ids.response.body"));
        Script::default().then(Act::Wait(held.clone())).and(reply)
    })
    .await;
    let gateway = Gateway::bind("127.0.0.1:0".parse().unwrap(), AllowedHosts::Any, || Health::Ok)
        .await
        .unwrap();
    gateway.admit(&stage.session);
    let gateway = Arc::new(gateway);
    let stop = CancellationToken::new();
    let (server, stopping) = (gateway.clone(), stop.clone());
    let serving = tokio::spawn(async move { server.serve(stopping).await });
    let mut busy = agent(&gateway, stage.session.token().expose_secret()).await;
    let asking = tokio::spawn(async move { busy.chat(ask(false)).await.status });
    soon("the request", async {
        while stage.endpoint.asked().is_empty() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    stop.cancel();
    gate.notify_one();
    assert_eq!(asking.await.unwrap(), 200);
    soon("the end", serving).await.unwrap();
}

#[tokio::test]
async fn a_port_that_is_taken_is_an_error() {
    let (gateway, _stop) = gateway(AllowedHosts::Any).await;
    let again = Gateway::bind(gateway.address(), AllowedHosts::Any, || Health::Ok).await;
    assert_eq!(again.err().unwrap().kind(), std::io::ErrorKind::AddrInUse);
}
