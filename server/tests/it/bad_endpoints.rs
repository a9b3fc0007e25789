use crate::support::{Canned, Place, Ran};
use dressage_testkit::closed::ClosedPort;

/// Runs against an endpoint that cannot be used; nothing must have been started.
#[track_caller]
fn unusable(place: &Place, url: &str, more: &[&str]) -> Ran {
    let mut all = vec!["run", "x", "--base-url", url, "--model", "m"];
    all.extend_from_slice(more);
    let ran = place.run(&all).expect(4);
    assert_eq!(ran.out, "");
    assert_eq!(
        place.run(&["list", "--json"]).expect(0).out,
        "",
        "no rollout was started"
    );
    ran
}

#[test]
fn an_endpoint_that_is_down_is_said_at_once() {
    let place = Place::new();
    let closed = ClosedPort::take().unwrap();
    let url = format!("http://{}/v1", closed.address());
    let ran = unusable(&place, &url, &[]);
    assert!(
        ran.err.contains("Connection refused") && ran.err.contains("is the server running"),
        "{}",
        ran.err
    );
}

#[test]
fn a_wrong_key_is_said_with_its_variable_and_without_the_key() {
    let place = Place::new();
    let server = Canned::start(
        "HTTP/1.1 401 Unauthorized\r\ncontent-type: application/json",
        r#"{"error": {"message": "Incorrect API key provided", "type": "invalid_request_error"}}"#,
    );
    let output = place
        .command(&["run", "x", "--endpoint", "openai"])
        .env("OPENAI_BASE_URL", server.url())
        .env("OPENAI_API_KEY", "sk-very-secret")
        .output()
        .unwrap();
    let ran = Ran::of(output).expect(4);
    assert!(
        ran.err.contains("refuses the key") && ran.err.contains("Incorrect API key provided"),
        "{}",
        ran.err
    );
    assert!(
        ran.err.contains("is OPENAI_API_KEY right?") && !ran.err.contains("very-secret"),
        "{}",
        ran.err
    );
    assert!(server.received()[0].contains("Bearer sk-very-secret"));
}

#[test]
fn a_url_on_the_command_line_gets_no_key_of_the_environment() {
    let place = Place::new();
    let server = Canned::start(
        "HTTP/1.1 401 Unauthorized\r\ncontent-type: application/json",
        "{}",
    );
    let output = place
        .command(&["run", "x", "--endpoint", "openai", "--base-url", &server.url()])
        .env("OPENAI_API_KEY", "sk-very-secret")
        .output()
        .unwrap();
    Ran::of(output).expect(4);
    let received = server.received().concat().to_lowercase();
    assert!(
        !received.contains("authorization") && !received.contains("very-secret"),
        "{received}"
    );
}

#[test]
fn tls_to_a_server_without_it_fails_with_a_hint() {
    let place = Place::new();
    let server = Canned::start("HTTP/1.1 200 OK", "{}");
    let ran = unusable(&place, &format!("https://{}/v1", server.address), &[]);
    assert!(ran.err.contains("is the URL's scheme right?"), "{}", ran.err);
}

#[test]
fn a_redirect_is_not_followed() {
    let place = Place::new();
    let elsewhere = Canned::start(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json",
        r#"{"data": []}"#,
    );
    let head = format!(
        "HTTP/1.1 308 Permanent Redirect\r\nlocation: {}/models",
        elsewhere.url()
    );
    let server = Canned::start(&head, "");
    let ran = unusable(&place, &server.url(), &[]);
    assert!(ran.err.contains("redirects are not followed"), "{}", ran.err);
    assert_eq!(elsewhere.received(), Vec::<String>::new());
}

#[test]
fn html_instead_of_json_is_said() {
    let place = Place::new();
    let server = Canned::start(
        "HTTP/1.1 200 OK\r\ncontent-type: text/html",
        "<!doctype html><title>Welcome</title>",
    );
    let ran = unusable(&place, &server.url(), &[]);
    assert!(ran.err.contains("ends in /v1"), "{}", ran.err);
}

#[test]
fn a_link_local_address_is_refused() {
    let place = Place::new();
    let ran = unusable(&place, "http://169.254.169.254/v1", &[]);
    assert!(
        ran.err.contains("169.254.169.254") || ran.err.contains("link-local"),
        "{}",
        ran.err
    );
}

#[test]
fn missing_credentials_unknown_names_and_missing_models_name_what_to_set() {
    let place = Place::new();
    let ran = place.run(&["run", "x", "--endpoint", "openai"]).expect(4);
    assert!(
        ran.err
            .contains("OPENAI_API_KEY is not set\nhint: set OPENAI_API_KEY"),
        "{}",
        ran.err
    );
    let ran = place.run(&["run", "x", "--endpoint", "vllm"]).expect(4);
    assert!(ran.err.contains("hint: set VLLM_URL"), "{}", ran.err);
    let ran = place.run(&["run", "x", "--endpoint", "vlmm"]).expect(2);
    assert!(ran.err.contains("did you mean `vllm`?"), "{}", ran.err);
    let ran = place
        .run(&["run", "x", "--base-url", "http://127.0.0.1:1/v1"])
        .expect(4);
    assert!(ran.err.contains("hint: pass `--model MODEL`"), "{}", ran.err);
    let ran = place.run(&["run", "x"]).expect(2);
    assert!(ran.err.contains("no endpoint was chosen"), "{}", ran.err);
}

#[test]
fn a_dot_env_file_is_loaded_and_never_overrides() {
    let place = Place::new();
    let server = Canned::start(
        "HTTP/1.1 401 Unauthorized\r\ncontent-type: application/json",
        "{}",
    );
    place.write(
        ".env",
        format!("VLLM_URL={}\nVLLM_API_KEY=from-file\n", server.url()),
    );
    place.run(&["run", "x", "--endpoint", "vllm"]).expect(4);
    assert!(
        server.received()[0].contains("Bearer from-file"),
        "{:?}",
        server.received()
    );
    let other = Canned::start(
        "HTTP/1.1 401 Unauthorized\r\ncontent-type: application/json",
        "{}",
    );
    let output = place
        .command(&["run", "x", "--endpoint", "vllm"])
        .env("VLLM_URL", other.url())
        .output()
        .unwrap();
    Ran::of(output).expect(4);
    assert_eq!((server.received().len(), other.received().len()), (1, 1));
}

#[test]
fn a_proxy_of_the_environment_is_used_and_no_proxy_honoured() {
    let place = Place::new();
    let proxy = Canned::start("HTTP/1.1 403 Forbidden\r\ncontent-type: text/plain", "no");
    let server = Canned::start(
        "HTTP/1.1 401 Unauthorized\r\ncontent-type: application/json",
        "{}",
    );
    let run = |no_proxy: &str| {
        let url = server.url();
        let output = place
            .command(&["run", "x", "--base-url", &url, "--model", "m"])
            .env("http_proxy", format!("http://{}", proxy.address))
            .env("NO_PROXY", no_proxy)
            .output()
            .unwrap();
        Ran::of(output).expect(4)
    };
    run("127.0.0.1");
    assert_eq!((proxy.received().len(), server.received().len()), (0, 1));
    run("other.example");
    assert_eq!((proxy.received().len(), server.received().len()), (1, 1));
}
