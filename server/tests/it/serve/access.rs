use super::client::{Reply, Request};
use super::server::{Server, Setup, failing, with};
use super::socket::upgrade;
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use std::path::Path;

const KEY: &str = "0123456789abcdef-first";
const OTHER_KEY: &str = "0123456789abcdef-other";
const WRONG_KEY: &str = "0123456789abcdef-wrong";

/// Every route of the document with its method, the document itself, both sockets, MCP proper, and what is nothing.
fn doors(server: &Server, key: &str) -> Vec<(&'static str, String)> {
    let document = server
        .request("GET", "/openapi.json")
        .header("x-api-key", key)
        .send()
        .expect(200)
        .json();
    let mut doors = Vec::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        let target = path
            .replace("{id}", "01a2289d-2de4-7000-84ad-46eb82fa46c1")
            .replace(['{', '}'], "");
        for method in methods.as_object().unwrap().keys() {
            let method = ["GET", "POST", "PUT"]
                .into_iter()
                .find(|known| known.eq_ignore_ascii_case(method));
            doors.push((method.unwrap(), target.clone()));
        }
    }
    assert!(doors.len() > 25);
    doors.extend([
        ("GET", "/openapi.json".into()),
        ("SOCKET", "/ws".into()),
        ("SOCKET", "/ws?session_id=x".into()),
        ("SOCKET", "/mcp".into()),
        ("GET", "/mcp".into()),
        ("DELETE", "/mcp".into()),
        ("MCP", "/mcp".into()),
        ("OPTIONS", "/api/v1/rollouts".into()),
        ("GET", "/nothing".into()),
        ("GET", "/api/v1/nothing".into()),
        ("DELETE", "/api/v1/rollouts".into()),
    ]);
    doors
}

fn knock(server: &Server, (method, target): &(&'static str, String), prefix: &str) -> Request {
    let target = format!("{prefix}{target}");
    match *method {
        "SOCKET" => upgrade(server.request("GET", &target)),
        "MCP" => server
            .request("POST", &target)
            .header("accept", "application/json, text/event-stream")
            .json(&json!({"jsonrpc": "2.0", "id": 1, "method": "ping"})),
        "POST" | "PUT" => server.request(method, &target).json(&json!({})),
        method => server.request(method, &target),
    }
}

#[track_caller]
fn refused(request: Request, status: u16, code: &str, door: &(&str, String)) {
    let reply = request.send();
    assert_eq!(reply.status, status, "{door:?}: {}", reply.text());
    if door.0 != "HEAD" {
        reply.expect_error(status, code);
    }
}

#[test]
fn no_door_is_open_to_pages_of_other_origins_or_other_names_of_this_machine() {
    let server = Server::plain();
    let port = server.address.port();
    for door in doors(&server, "") {
        for host in [
            "evil.example",
            &format!("evil.example:{port}"),
            "127.0.0.1.evil.example",
            "0.0.0.0",
            "a@localhost",
            "",
        ] {
            refused(
                knock(&server, &door, "").header("host", host),
                403,
                "forbidden_host",
                &door,
            );
        }
        for origin in [
            "http://evil.example",
            "null",
            &format!("http://localhost:{}", port ^ 1),
            "file://",
            "",
        ] {
            refused(
                knock(&server, &door, "").header("origin", origin),
                403,
                "forbidden_origin",
                &door,
            );
        }
        // As a page of another origin would ask whether it may.
        let preflight = server
            .request("OPTIONS", &door.1)
            .header("origin", "http://evil.example");
        refused(
            preflight.header("access-control-request-method", "POST"),
            403,
            "forbidden_origin",
            &door,
        );
        for host in [
            format!("localhost:{port}"),
            format!("127.0.0.1:{port}"),
            format!("[::1]:{port}"),
        ] {
            let own = format!("http://{host}");
            let open = knock(&server, &door, "")
                .header("host", &host)
                .header("origin", &own)
                .open();
            assert!(
                ![401, 403].contains(&open.status),
                "{door:?} {host}: {}",
                open.status
            );
            assert!(
                !open
                    .headers
                    .iter()
                    .any(|(name, _)| name.starts_with("access-control-"))
            );
        }
    }
    assert_eq!(
        server.get("/api/v1/rollouts").expect(200).json()["rollouts"],
        json!([])
    );
}

#[test]
fn a_name_that_is_allowed_is_answered_for() {
    let server = Setup::new().arguments(&["--allow-host", "gpu-7"]).start();
    let host = |host: &str, origin: &str| {
        let request = server.request("GET", "/api/v1/queue").header("host", host);
        if origin.is_empty() {
            request.send().status
        } else {
            request.header("origin", origin).send().status
        }
    };
    assert_eq!(host("gpu-7", ""), 200);
    assert_eq!(host("GPU-7:8000", "http://gpu-7:8000"), 200);
    assert_eq!(host("gpu-7:8000", "http://gpu-7"), 403);
    assert_eq!(host("gpu-8", ""), 403);
}

#[test]
fn every_door_asks_for_a_key_and_takes_it_in_each_form() {
    let server = Setup::new()
        .variable("DRESSAGE_API_KEYS", &format!("{KEY},{OTHER_KEY}"))
        .arguments(&["-vv"])
        .start();
    for door in doors(&server, KEY) {
        refused(
            knock(&server, &door, "")
                .header("host", "evil.example")
                .header("x-api-key", KEY),
            403,
            "forbidden_host",
            &door,
        );
        let is_open = ["/health", "/ready"].contains(&&*door.1);
        let without = knock(&server, &door, "");
        if is_open {
            without.send().expect(200);
            continue;
        }
        let reply = without.send();
        assert_eq!(reply.header("www-authenticate"), Some("Bearer"), "{door:?}");
        reply.expect_error(401, "unauthorized");
        let wrong = [
            knock(&server, &door, "").header("authorization", &format!("Bearer {WRONG_KEY}")),
            knock(&server, &door, "").header("authorization", KEY),
            knock(&server, &door, "").header("authorization", "Bearer "),
            knock(&server, &door, "").header("x-api-key", WRONG_KEY),
            knock(&server, &door, &format!("/k/{WRONG_KEY}")),
            knock(&server, &door, "/k/"),
        ];
        for request in wrong {
            refused(request, 401, "unauthorized", &door);
        }
        let right = [
            knock(&server, &door, "").header("authorization", &format!("Bearer {KEY}")),
            knock(&server, &door, "").header("authorization", &format!("bearer {OTHER_KEY}")),
            knock(&server, &door, "").header("x-api-key", OTHER_KEY),
            knock(&server, &door, &format!("/k/{KEY}")),
        ];
        let statuses: Vec<_> = right.into_iter().map(|request| request.open().status).collect();
        assert!(
            statuses
                .iter()
                .all(|status| *status == statuses[0] && ![401, 403].contains(status)),
            "{door:?} {statuses:?}"
        );
        if door.0 == "SOCKET" {
            assert_eq!(statuses[0], 101);
        }
    }
    for key in [KEY, OTHER_KEY, WRONG_KEY] {
        assert!(!server.said().contains(key));
    }
}

#[test]
fn a_key_in_the_path_is_repeated_nowhere() {
    let mut server = Setup::new()
        .variable("DRESSAGE_API_KEYS", KEY)
        .arguments(&["-vvv", "--log-format", "json"])
        .start();
    let keyed = |method: &str, target: &str| server.request(method, &format!("/k/{KEY}{target}"));
    let mut answers: Vec<Reply> = Vec::new();
    for target in [
        "",
        "/",
        "/nope",
        "/api/v1/nope",
        "/api/v1/rollouts",
        "/api/v1/rollouts/x",
        "/openapi.json",
        "/state",
        "/health",
    ] {
        answers.push(keyed("GET", target).send());
        answers.push(keyed("DELETE", target).send());
    }
    answers.push(keyed("POST", "/api/v1/rollouts").json(&failing()).send());
    let taken = answers.last().unwrap().json();
    assert!(answers.last().unwrap().header("location").is_some());
    let id = taken["rollouts"][0]["id"].as_str().unwrap();
    server.eventually("the end", || {
        let rollout = keyed("GET", &format!("/api/v1/rollouts/{id}")).send();
        (rollout.json()["state"] == "finished").then_some(())
    });
    answers.push(
        server
            .request("GET", &format!("/k/{WRONG_KEY}/api/v1/queue"))
            .send(),
    );
    for answer in answers {
        let text = format!("{:?} {}", answer.headers, answer.text());
        assert!(!text.contains(KEY) && !text.contains(WRONG_KEY), "{text}");
    }
    let said = server.end(Signal::SIGTERM).expect(0).err;
    assert!(!said.contains(KEY) && !said.contains(WRONG_KEY), "{said}");
}

/// Whether a file below a folder holds these bytes.
fn holds(folder: &Path, bytes: &[u8]) -> bool {
    std::fs::read_dir(folder).unwrap().flatten().any(|entry| {
        let path = entry.path();
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            return holds(&path, bytes);
        }
        let content = std::fs::read(&path).unwrap_or_default();
        content.windows(bytes.len()).any(|part| part == bytes)
    })
}

#[test]
fn a_callers_own_key_for_an_endpoint_is_neither_told_nor_kept() {
    const SECRET: &str = "sk-caller-5d41402abc4b2a76";
    let mut server = Setup::new().arguments(&["--concurrency", "1", "-vvv"]).start();
    let spec = with(
        failing(),
        json!({"endpoint": null, "base_url": "http://127.0.0.1:9/v1", "model": "m", "api_key": SECRET}),
    );
    let id = server.submit_one(&spec);
    let ended = server.ended(&id);
    assert_eq!(ended["ended"], "setup_error");
    let events: Vec<_> = server.events(&id).map(|sent| sent.data.to_string()).collect();
    let wrong = server.post(
        "/api/v1/rollouts",
        &json!({"preset": 7, "base_url": "http://x/v1", "api_key": SECRET}),
    );
    let unknown = server.post("/api/v1/rollouts", &json!({"presett": "x", "api_key": SECRET}));
    for told in [ended.to_string(), events.concat(), wrong.text(), unknown.text()] {
        assert!(!told.contains(SECRET), "{told}");
    }
    let data = server.place().data();
    assert!(!holds(&data, SECRET.as_bytes()));
    let said = server.end(Signal::SIGTERM).expect(0).err;
    assert!(!said.contains(SECRET));
}

#[test]
fn beyond_loopback_it_starts_with_a_key_or_when_told_to() {
    let setup = |arguments: &[&str]| Setup::new().arguments(arguments);
    for host in ["0.0.0.0", "::"] {
        let ran = setup(&["--host", host]).refused().expect(2);
        assert!(
            ran.err.contains("there is no API key") && ran.err.contains("hint: "),
            "{}",
            ran.err
        );
    }
    let ran = setup(&["--host", "0.0.0.0", "--open", "--client-base-url", "any"])
        .refused()
        .expect(2);
    assert!(ran.err.contains("--client-base-url any"), "{}", ran.err);
    let ran = setup(&[])
        .variable("DRESSAGE_API_KEYS", "short")
        .refused()
        .expect(2);
    assert!(
        ran.err.contains("too short") && !ran.err.contains("short,"),
        "{}",
        ran.err
    );
    let ran = setup(&["--api-keys", "none.txt"]).refused().expect(2);
    assert!(ran.err.contains("none.txt"), "{}", ran.err);

    let open = setup(&["--host", "0.0.0.0", "--open"]).start();
    let spec = with(
        failing(),
        json!({"endpoint": null, "base_url": "http://127.0.0.1:9/v1", "model": "m"}),
    );
    let refused = open
        .post("/api/v1/rollouts", &spec)
        .expect_error(422, "invalid_request");
    assert_eq!(refused["details"][0]["path"], "base_url");
    // Its own address is not one of the names that it answers for, unless that is said.
    assert_eq!(
        open.request("GET", "/health")
            .header("host", "192.0.2.1")
            .send()
            .status,
        403
    );
    drop(open);
    let keyed = setup(&["--host", "0.0.0.0"])
        .variable("DRESSAGE_API_KEYS", KEY)
        .start();
    keyed.get("/api/v1/queue").expect(401);
    let listed: Value = keyed
        .request("GET", "/api/v1/endpoints")
        .header("x-api-key", KEY)
        .send()
        .expect(200)
        .json();
    assert_eq!(listed["client_base_url"], "any");
}

#[test]
fn a_callers_url_is_taken_as_far_as_the_server_was_told() {
    const KNOWN: &str = "http://127.0.0.1:9/v1";
    for (allowed, of_a_known_origin, of_another) in [
        ("any", true, true),
        ("listed", true, false),
        ("none", false, false),
    ] {
        let server = Setup::new()
            .arguments(&["--client-base-url", allowed])
            .variable("VLLM_URL", KNOWN)
            .variable("VLLM_MODEL", "m")
            .start();
        for (url, taken) in [
            (KNOWN, of_a_known_origin),
            ("http://127.0.0.1:9/other", of_a_known_origin),
            ("http://127.0.0.1:10/v1", of_another),
            ("http://localhost:9/v1", of_another),
            ("https://127.0.0.1:9/v1", of_another),
            ("http://127.0.0.1:9@192.0.2.1/v1", false),
        ] {
            let spec = with(
                failing(),
                json!({"endpoint": null, "base_url": url, "model": "m", "api_key": "the-callers-own"}),
            );
            let reply = server.post("/api/v1/rollouts", &spec);
            let status = if taken { 202 } else { 422 };
            assert_eq!(reply.status, status, "{allowed} {url}: {}", reply.text());
        }
        let by_name = with(failing(), json!({"endpoint": "vllm"}));
        server.post("/api/v1/rollouts", &by_name).expect(202);
    }
}

#[test]
fn a_file_of_keys_is_read_with_its_comments() {
    let setup = Setup::new();
    let path = setup.write("keys.txt", &format!("# of the lab\n\n  {KEY}  \n{OTHER_KEY}\n"));
    let server = setup.arguments(&["--api-keys", path.to_str().unwrap()]).start();
    for (key, status) in [
        (KEY, 200),
        (OTHER_KEY, 200),
        (WRONG_KEY, 401),
        ("# of the lab", 401),
    ] {
        assert_eq!(
            server
                .request("GET", "/api/v1/queue")
                .header("x-api-key", key)
                .send()
                .status,
            status,
            "{key}"
        );
    }
}
