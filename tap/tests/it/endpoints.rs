use crate::support::agent::read;
use crate::support::{Act, Agent, FakeEndpoint, Received, Script, Stage, ask, fixture, session};
use dressage_tap::address::AddressPolicy;
use dressage_tap::endpoint::{ProxyPolicy, with_version};
use dressage_tap::{Endpoint, EndpointError, Upstream};
use dressage_testkit::closed::ClosedPort;
use dressage_wire::call::{Call, CallEnd};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

const KEY: &str = "sk-operators-own-key";

/// Asks once, and gives what the agent got and what was recorded.
async fn ask_once(endpoint: Endpoint) -> (Received, Call) {
    let (session, calls) = session(endpoint, |_| {});
    session.open();
    let received = Agent::connect(&session).await.chat(ask(false)).await;
    let call = calls.only().await;
    (received, call)
}

/// Expects a failure of the endpoint that names it, and gives the message.
async fn fails(endpoint: Endpoint, status: u16) -> String {
    advised(endpoint, status).await.0
}

/// The same, with the remedy that is recorded beside the message.
async fn advised(mut endpoint: Endpoint, status: u16) -> (String, String) {
    endpoint.name = "lab".into();
    endpoint.api_key = Some(KEY.to_owned().into());
    let base_url = endpoint.base_url.clone();
    let (received, call) = ask_once(endpoint).await;
    assert_eq!(received.status, status);
    let message = received.error();
    assert!(
        message.starts_with(&format!("endpoint `lab` ({base_url}): ")),
        "{message}"
    );
    assert!(!message.contains(KEY), "{message}");
    assert_eq!(call.meta.error.as_ref(), Some(&message));
    assert_ne!(call.meta.end, CallEnd::Complete);
    let hint = call.meta.hint.unwrap_or_default();
    assert!(hint.is_empty() || !message.contains(&hint), "{message}");
    (message, hint)
}

fn tls_file(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests/it/tls")
        .join(name)
}

/// A TLS server with a certificate of a private authority; gives its port.
async fn tls_server() -> u16 {
    let certificate = CertificateDer::from_pem_file(tls_file("server.pem")).unwrap();
    let key = PrivateKeyDer::from_pem_file(tls_file("key.pem")).unwrap();
    let config =
        rustls::ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)
            .unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        loop {
            let (socket, _) = listener.accept().await.unwrap();
            let Ok(mut stream) = acceptor.accept(socket).await else {
                continue;
            };
            let body = fixture("vllm-0.32.0/hi_unary_lp5_ids.response.body");
            let mut request = vec![0; 64 << 10];
            let _ = stream.read(&mut request).await;
            let head = format!(
                "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
                body.len()
            );
            stream
                .write_all(&[head.as_bytes(), &body].concat())
                .await
                .unwrap();
            stream.shutdown().await.unwrap();
        }
    });
    port
}

#[tokio::test]
async fn an_endpoint_that_is_down_is_named_with_what_may_help() {
    let closed = ClosedPort::take().unwrap();
    let url = format!("http://{}/v1", closed.address());
    let (message, hint) = advised(Endpoint::at("", url), 502).await;
    assert!(message.contains("no connection could be made"), "{message}");
    assert!(message.contains("Connection refused"), "{message}");
    assert_eq!(hint, "is the server running, and is the port right?");
}

#[tokio::test]
async fn a_host_that_is_not_known_is_said_to_be() {
    let (message, hint) = advised(Endpoint::at("", "http://no-such-host.invalid/v1"), 502).await;
    assert!(
        message.contains("host `no-such-host.invalid` was not found"),
        "{message}"
    );
    assert_eq!(hint, "is the host name right?");
}

#[tokio::test]
async fn a_certificate_of_an_unknown_authority_is_refused_until_it_is_in_ca_file() {
    let port = tls_server().await;
    let mut endpoint = Endpoint::at("lab", format!("https://localhost:{port}/v1"));
    let (message, hint) = advised(endpoint.clone(), 502).await;
    assert!(message.contains("UnknownIssuer"), "{message}");
    assert!(hint.contains("ca_file"), "{hint}");
    endpoint.ca_file = Some(tls_file("ca.pem"));
    let (received, call) = ask_once(endpoint).await;
    assert_eq!(
        (received.status.as_u16(), call.meta.end),
        (200, CallEnd::Complete),
        "{}",
        received.text()
    );
}

#[tokio::test]
async fn https_to_a_server_without_tls_and_http_to_one_with_it_fail_clearly() {
    let plain = FakeEndpoint::start(|_, _| Script::default()).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.unwrap();
        let _ = socket.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
    });
    let (_, hint) = advised(Endpoint::at("", format!("https://127.0.0.1:{port}/v1")), 502).await;
    assert!(hint.contains("is the URL's scheme right?"), "{hint}");
    drop(plain);
    let port = tls_server().await;
    let message = fails(Endpoint::at("", format!("http://127.0.0.1:{port}/v1")), 502).await;
    assert!(message.contains("closed before a reply"), "{message}");
}

#[tokio::test]
async fn a_connection_that_is_not_taken_is_given_up_in_time() {
    // The listener's queue takes the connection, but nobody speaks TLS.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut endpoint = Endpoint::at("", format!("https://{}/v1", listener.local_addr().unwrap()));
    endpoint.timeouts.connect = Duration::from_millis(50);
    let message = fails(endpoint, 502).await;
    assert!(message.contains("no connection within 0.05 s"), "{message}");
}

#[tokio::test]
async fn a_redirect_is_not_followed_and_says_where_it_led() {
    let elsewhere = "location: http://127.0.0.1:9/elsewhere\r\ncontent-type: text/html\r\n";
    let endpoint = FakeEndpoint::start(move |_, _| Script::reply(307, elsewhere, "")).await;
    let message = fails(Endpoint::at("", endpoint.base_url()), 502).await;
    assert!(
        message.contains("http://127.0.0.1:9/elsewhere") && message.contains("307"),
        "{message}"
    );
    assert_eq!(endpoint.asked().len(), 1);
}

#[tokio::test]
async fn html_where_json_was_expected_is_an_error_with_a_hint() {
    for stream in [false, true] {
        let stage = Stage::new(|_, _| {
            Script::reply(
                200,
                "content-type: text/html; charset=utf-8\r\n",
                "<html>hello</html>",
            )
        })
        .await;
        let received = stage.agent().await.chat(ask(stream)).await;
        assert_eq!(received.status, 502);
        assert!(received.error().contains("text/html"), "{}", received.error());
        let meta = stage.calls.only().await.meta;
        assert_eq!(meta.end, CallEnd::UpstreamError);
        assert!(meta.hint.unwrap().contains("ends in /v1"));
    }
    let stage = Stage::new(|_, _| Script::json(200, "<html>hello</html>")).await;
    let received = stage.agent().await.chat(ask(false)).await;
    assert_ne!(received.status, 200, "{}", received.text());
}

#[tokio::test]
async fn a_compressed_reply_is_an_error() {
    let headers = "content-type: application/json\r\ncontent-encoding: gzip\r\n";
    let endpoint = FakeEndpoint::start(move |_, _| Script::reply(200, headers, "\x1f")).await;
    let message = fails(Endpoint::at("", endpoint.base_url()), 502).await;
    assert!(message.contains("\"gzip\""), "{message}");
}

#[tokio::test]
async fn keys_that_an_endpoint_repeats_do_not_reach_the_agent() {
    let body = format!(r#"{{"error":{{"message":"Incorrect API key provided: {KEY}."}}}}"#);
    let stage = Stage::with(
        move |_, _| Script::json(401, &body),
        |endpoint| endpoint.api_key = Some(KEY.to_owned().into()),
        |_| {},
    )
    .await;
    let received = stage.agent().await.chat(ask(false)).await;
    assert_eq!(received.status, 401);
    assert_eq!(received.error(), "Incorrect API key provided: [redacted].");
    let call = stage.calls.only().await;
    assert!(!String::from_utf8_lossy(&call.response).contains(KEY));
    assert!(!format!("{:?}", call.meta).contains(KEY));
}

/// What the agent gets and what is recorded of a reply with status 200 in which the endpoint says its key.
async fn with_key(reply: impl Fn() -> Script + Send + Sync + 'static, stream: bool) -> (Vec<u8>, Call) {
    let stage = Stage::with(
        move |_, _| reply(),
        |endpoint| endpoint.api_key = Some(KEY.to_owned().into()),
        |_| {},
    )
    .await;
    let received = stage.agent().await.chat(ask(stream)).await;
    assert_eq!(received.status, 200);
    let call = stage.calls.only().await;
    assert!(!String::from_utf8_lossy(&call.response).contains(KEY));
    assert!(!format!("{:?}", call.meta).contains(KEY));
    (received.body, call)
}

#[tokio::test]
async fn keys_in_what_an_endpoint_says_of_itself_in_a_stream_are_redacted_at_any_split() {
    let content = format!(r#"data: {{"id":"a","choices":[{{"index":0,"delta":{{"content":"{KEY}"}}}}]}}"#);
    let error = format!(r#"data: {{"error":{{"message":"bad key {KEY}, {KEY}","code":401}}}}"#);
    let garbage = format!("data: Traceback: {KEY}");
    let named = format!("event: error\ndata: \"no such key as {KEY}\"");
    for own_words in [&error, &garbage, &named] {
        // An unfinished last event as well.
        for end in ["\n\n", ""] {
            let body = format!("{content}\n\n{own_words}{end}");
            let redacted = own_words.replace(KEY, "[redacted]");
            let expected = format!("{content}\n\n{redacted}\n\n");
            for part in [1, 7, 64, body.len()] {
                let sent = body.clone();
                let reply = move || Script::events(sent.as_bytes(), part);
                let (received, call) = with_key(reply, true).await;
                let received = String::from_utf8(received).unwrap();
                assert_ne!(call.meta.end, CallEnd::Complete);
                // Not told where an unfinished event is no JSON; and what follows is an error event of our own.
                let told = received.starts_with(&expected);
                let cut_off = end.is_empty() && received.starts_with(&format!("{content}\n\n"));
                assert!(told || cut_off, "in parts of {part}: {received}");
                assert_eq!(
                    received.matches(KEY).count(),
                    1,
                    "only the model's own word is left"
                );
            }
        }
    }
}

#[tokio::test]
async fn a_key_in_an_error_with_a_good_status_is_redacted() {
    for stream in [false, true] {
        let body = format!(r#"{{"error":{{"message":"bad key {KEY}"}}}}"#);
        let (received, call) = with_key(move || Script::json(200, &body), stream).await;
        let received = String::from_utf8(received).unwrap();
        assert!(received.contains("bad key [redacted]"), "{received}");
        assert!(call.meta.error.unwrap().contains("bad key [redacted]"));
    }
}

#[tokio::test]
async fn a_key_in_the_place_that_a_redirect_leads_to_is_redacted() {
    let elsewhere = format!("location: http://127.0.0.1:9/?key={KEY}\r\n");
    let endpoint = FakeEndpoint::start(move |_, _| Script::reply(307, &elsewhere, "")).await;
    let message = fails(Endpoint::at("", endpoint.base_url()), 502).await;
    assert!(message.contains("?key=[redacted]"), "{message}");
}

#[tokio::test]
async fn names_that_lead_to_refused_addresses_are_refused_after_resolution() {
    // Any resolver knows loopback, which is no public address.
    let endpoint = FakeEndpoint::start(|_, _| panic!("nothing may be sent")).await;
    let port = endpoint.address().port();
    let mut settings = Endpoint::at("", format!("http://localhost:{port}/v1"));
    settings.address_policy = AddressPolicy::Public;
    let message = fails(settings, 502).await;
    assert!(message.contains("is not a public address"), "{message}");
    // The C library takes this number for 169.254.169.254.
    let message = fails(Endpoint::at("", "http://2852039166/v1"), 502).await;
    assert!(
        message.contains("is a link-local address") || message.contains("was not found"),
        "{message}"
    );
}

#[test]
fn endpoints_that_cannot_be_used_are_errors_at_once() {
    let error = |url: &str| Upstream::new(Endpoint::at("lab", url)).unwrap_err();
    assert!(matches!(
        error("http://169.254.169.254/v1"),
        EndpointError::Refused { .. }
    ));
    assert!(matches!(
        error("http://[fe80::1]:8000/v1"),
        EndpointError::Refused { .. }
    ));
    assert!(matches!(
        error("http://[::ffff:a9fe:a9fe]/v1"),
        EndpointError::Refused { .. }
    ));
    assert!(matches!(error("http://a b/"), EndpointError::BadUrl { .. }));
    for url in [
        "ftp://host/v1",
        "host:8000/v1",
        "/v1",
        "http://user:secret@host/v1",
        "http://host/v1?key=1",
        "",
    ] {
        let error = error(url);
        assert!(
            matches!(
                error,
                EndpointError::UnusableUrl { .. } | EndpointError::BadUrl { .. }
            ),
            "{url}: {error}"
        );
        assert!(!error.to_string().contains("secret"), "{error}");
    }
    let bad = |configure: fn(&mut Endpoint)| {
        let mut endpoint = Endpoint::at("lab", "https://host/v1");
        configure(&mut endpoint);
        Upstream::new(endpoint).unwrap_err()
    };
    let error = bad(|endpoint| endpoint.api_key = Some("line\nbreak".to_owned().into()));
    assert_eq!(
        error.to_string(),
        "the API key of endpoint `lab` cannot be sent in a header"
    );
    let error = bad(|endpoint| endpoint.ca_file = Some("/nowhere/ca.pem".into()));
    assert_eq!(
        error.to_string(),
        "ca_file `/nowhere/ca.pem` of endpoint `lab` could not be read"
    );
    let error = bad(|endpoint| endpoint.ca_file = Some(tls_file("key.pem")));
    assert!(matches!(error, EndpointError::NoCertificate { .. }), "{error}");
    let error = bad(|endpoint| {
        endpoint.proxy = ProxyPolicy::Variables {
            https_proxy: Some("socks5://proxy:1080".to_owned().into()),
            http_proxy: None,
            no_proxy: None,
        };
    });
    assert!(matches!(error, EndpointError::BadProxy { .. }), "{error}");
}

#[test]
fn shorthands_get_a_version_once() {
    for (given, expected) in [
        ("http://host:8000", "http://host:8000/v1"),
        ("http://host:8000/", "http://host:8000/v1"),
        ("http://host/v1/", "http://host/v1"),
        ("http://host/api/v3", "http://host/api/v3"),
        ("http://host/vllm", "http://host/vllm/v1"),
        (" http://host/v1beta ", "http://host/v1beta"),
    ] {
        assert_eq!(with_version(given), expected);
    }
}

fn through(proxy: &FakeEndpoint, no_proxy: &str) -> ProxyPolicy {
    let url = format!("http://user:pass@{}", proxy.address());
    ProxyPolicy::Variables {
        https_proxy: Some(url.clone().into()),
        http_proxy: Some(url.into()),
        no_proxy: Some(no_proxy.to_owned()),
    }
}

#[tokio::test]
async fn http_endpoints_are_asked_through_http_proxy_with_whole_urls() {
    let proxy =
        FakeEndpoint::start(|_, _| Script::json(200, fixture("vllm-0.32.0/hi_unary_lp5_ids.response.body")))
            .await;
    let mut endpoint = Endpoint::at("lab", "http://model.invalid/v1");
    endpoint.proxy = through(&proxy, "other.invalid");
    let (received, _) = ask_once(endpoint.clone()).await;
    assert_eq!(received.status, 200);
    let asked = proxy.asked().remove(0);
    assert!(
        asked
            .head
            .starts_with("POST http://model.invalid/v1/chat/completions HTTP/1.1\r\n"),
        "{}",
        asked.head
    );
    assert_eq!(asked.header("proxy-authorization"), Some("Basic dXNlcjpwYXNz"));
    // What no_proxy names is asked directly.
    endpoint.proxy = through(&proxy, ".invalid");
    let (received, _) = ask_once(endpoint).await;
    assert!(received.error().contains("was not found"), "{}", received.error());
    assert_eq!(proxy.asked().len(), 1);
}

#[tokio::test]
async fn https_endpoints_are_tunnelled_through_https_proxy() {
    let proxy = FakeEndpoint::start(|_, _| Script::reply(407, "", "")).await;
    let mut endpoint = Endpoint::at("lab", "https://model.invalid/v1");
    endpoint.proxy = through(&proxy, "");
    let (received, _) = ask_once(endpoint).await;
    assert_eq!(received.status, 502);
    assert!(!received.error().contains("pass@"), "{}", received.error());
    let asked = proxy.asked().remove(0);
    assert!(
        asked.head.starts_with("CONNECT model.invalid:443 HTTP/1.1\r\n"),
        "{}",
        asked.head
    );
    assert_eq!(asked.header("proxy-authorization"), Some("Basic dXNlcjpwYXNz"));
}

#[tokio::test]
async fn an_endpoint_that_closes_without_a_reply_is_an_error() {
    let stage = Stage::new(|_, _| Script::default().then(Act::Close)).await;
    let mut agent = stage.agent().await;
    let request = agent.post(ask(false));
    let received = read(agent.send(request).await).await;
    assert_eq!(received.status, 502);
    assert!(
        received.error().contains("the connection closed before a reply"),
        "{}",
        received.error()
    );
    assert_eq!(stage.calls.only().await.meta.end, CallEnd::UpstreamError);
}
