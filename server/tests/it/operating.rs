use crate::support::{Place, Running};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::TcpStream;

/// A server that was started for a test.
struct Server {
    running: Running,
    address: String,
}

/// A reply, read to its end.
#[derive(Debug)]
struct Reply {
    status: u16,
    head: String,
    body: String,
}

impl Reply {
    fn header(&self, name: &str) -> Option<&str> {
        self.head
            .lines()
            .filter_map(|line| line.split_once(": "))
            .find(|(found, _)| found.eq_ignore_ascii_case(name))
            .map(|(_, value)| value)
    }

    #[track_caller]
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }
}

impl Server {
    #[track_caller]
    fn start(place: &Place, arguments: &[&str]) -> Self {
        let all = [&["-vv", "serve", "--port", "0"], arguments].concat();
        Self::of(place.start("serve", &all))
    }

    #[track_caller]
    fn of(mut running: Running) -> Self {
        let err = running.err.clone();
        let mut address = String::new();
        running.until("the address", || {
            let said = std::fs::read_to_string(&err).unwrap();
            let found = said.lines().find_map(|line| line.split_once("serves on http://"));
            found.is_some_and(|(_, rest)| {
                address = rest.trim().to_owned();
                said.ends_with('\n')
            })
        });
        Self { running, address }
    }

    #[track_caller]
    fn get(&self, path: &str) -> Reply {
        self.ask("GET", path, &[], "")
    }

    #[track_caller]
    fn ask(&self, method: &str, path: &str, headers: &[&str], body: &str) -> Reply {
        let mut connection = TcpStream::connect(&self.address).unwrap();
        let mut request = format!(
            "{method} {path} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\ncontent-length: {}\r\n",
            self.address,
            body.len()
        );
        for header in headers {
            request.push_str(&format!("{header}\r\n"));
        }
        connection
            .write_all(format!("{request}\r\n{body}").as_bytes())
            .unwrap();
        let mut reply = String::new();
        connection.read_to_string(&mut reply).unwrap();
        let (head, body) = reply.split_once("\r\n\r\n").unwrap();
        Reply {
            status: head.split(' ').nth(1).unwrap().parse().unwrap(),
            head: head.to_owned(),
            body: body.to_owned(),
        }
    }

    fn said(&self) -> String {
        std::fs::read_to_string(&self.running.err).unwrap()
    }

    #[track_caller]
    fn stop(self) {
        self.running.signal(nix::sys::signal::Signal::SIGTERM);
        assert_eq!(self.running.wait().code, Some(0));
    }
}

const KEY: &str = "0123456789abcdef0123456789abcdef";

#[test]
fn metrics_need_a_key_where_there_are_keys_and_readiness_does_not() {
    let place = Place::new();
    let keys = place.write("keys", KEY);
    let server = Server::start(&place, &["--api-keys", keys.to_str().unwrap()]);
    assert_eq!(server.get("/health").status, 200);
    assert_eq!(server.get("/ready").json()["status"], "ready");
    assert_eq!(server.get("/metrics").status, 401);
    let bearer = format!("authorization: Bearer {KEY}");
    let metrics = server.ask("GET", "/metrics", &[&bearer], "");
    assert_eq!(metrics.status, 200);
    assert_eq!(
        metrics.header("content-type"),
        Some("text/plain; version=0.0.4; charset=utf-8")
    );
    for line in [
        "dressage_rollouts{state=\"queued\"} 0",
        "dressage_queue_limit_rollouts 10000",
        "dressage_openenv_sessions_limit 4",
        "dressage_http_requests_total{method=\"GET\",route=\"/health\",status=\"200\"} 1",
        "dressage_http_requests_total{method=\"GET\",route=\"unmatched\",status=\"401\"} 1",
    ] {
        assert!(
            metrics.body.lines().any(|found| found == line),
            "{line}\n{}",
            metrics.body
        );
    }
    // The key in a path opens the same, and never gets into the log.
    let in_path = server.get(&format!("/k/{KEY}/api/v1/queue"));
    assert_eq!(
        (in_path.status, in_path.header("cache-control")),
        (200, Some("no-store"))
    );
    let said = server.said();
    assert!(said.contains("http.route=\"/api/v1/queue\""), "{said}");
    assert!(!said.contains(KEY), "{said}");
    server.stop();
}

#[test]
fn a_server_is_not_ready_while_its_store_cannot_be_written() {
    let place = Place::new();
    let server = Server::start(&place, &[]);
    assert_eq!(server.get("/ready").status, 200);
    let (data, away) = (place.data(), place.path("away"));
    std::fs::rename(&data, &away).unwrap();
    // An answer holds for a second.
    std::thread::sleep(std::time::Duration::from_millis(1100));
    let reply = server.get("/ready");
    assert_eq!(
        (reply.status, reply.json()["status"].as_str()),
        (503, Some("store_failed"))
    );
    assert_eq!(server.get("/health").status, 200);
    std::fs::rename(&away, &data).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(1100));
    assert_eq!(server.get("/ready").status, 200);
    server.stop();
}

#[test]
fn every_reply_carries_what_browsers_heed() {
    let place = Place::new();
    let server = Server::start(&place, &[]);
    for path in [
        "/health",
        "/api/v1/queue",
        "/api/v1/nothing",
        "/nothing",
        "/openapi.json",
    ] {
        let reply = server.get(path);
        assert_eq!(reply.header("x-content-type-options"), Some("nosniff"), "{path}");
        assert_eq!(reply.header("referrer-policy"), Some("no-referrer"), "{path}");
        assert_eq!(
            reply.header("content-security-policy"),
            Some("default-src 'none'; frame-ancestors 'none'"),
            "{path}"
        );
        let stored = reply.header("cache-control");
        assert_eq!(stored, path.starts_with("/api/").then_some("no-store"), "{path}");
    }
    let foreign = server.ask("GET", "/api/v1/queue", &["origin: http://evil.example"], "");
    assert_eq!(foreign.status, 403);
    assert_eq!(foreign.header("cache-control"), Some("no-store"));
    server.stop();
}

#[test]
fn the_routes_are_a_page_without_scripts() {
    let place = Place::new();
    let server = Server::start(&place, &[]);
    let page = server.get("/docs");
    assert_eq!(page.header("content-type"), Some("text/html; charset=utf-8"));
    let policy = page.header("content-security-policy").unwrap();
    assert!(
        policy.starts_with("default-src 'none'; style-src 'self';"),
        "{policy}"
    );
    let document = server.get("/openapi.json").json();
    assert!(document["info"]["version"].is_string());
    for (path, item) in document["paths"].as_object().unwrap() {
        assert!(page.body.contains(&format!("<code>{path}</code>")), "{path}");
        // What is documented is there: a route that is none says so, whatever the method.
        let streams = path == "/api/v1/events";
        for method in item.as_object().unwrap().keys().filter(|_| !streams) {
            let asked = path.replace("{id}", "none").replace(['{', '}'], "");
            let reply = server.ask(&method.to_uppercase(), &asked, &[], "");
            let body = &reply.body;
            assert!(
                !body.contains("unknown_route") && !body.contains("\"Not Found\"") && reply.status != 405,
                "{method} {path}: {body}"
            );
        }
    }
    let style = server.get("/docs/style.css");
    assert_eq!(
        (style.status, style.header("content-type")),
        (200, Some("text/css; charset=utf-8"))
    );
    server.stop();
}

#[test]
fn options_go_over_the_environment_and_that_over_the_file() {
    let place = Place::new();
    let file = place.write(
        "config.toml",
        "[defaults]\nconcurrency = 3\n[serve]\nqueue = 7\nmax_sessions = 2\nallow_hosts = [\"gpu-7.example\"]\n\
         client_base_url = \"none\"\nbackend_limits = { local = 2 }\nendpoint_limits = { demo = 5 }\n",
    );
    let start = |name: &str, sessions: Option<&str>, options: &[&str]| {
        let all = [
            &["--config", file.to_str().unwrap(), "serve", "--port", "0"],
            options,
        ]
        .concat();
        let (out, err) = (
            place.path(&format!("{name}.out")),
            place.path(&format!("{name}.err")),
        );
        let mut command = place.command(&all);
        if let Some(sessions) = sessions {
            command.env("MAX_CONCURRENT_ENVS", sessions);
        }
        let child = command
            .stdout(std::fs::File::create(&out).unwrap())
            .stderr(std::fs::File::create(&err).unwrap())
            .spawn()
            .unwrap();
        Server::of(Running { child, out, err })
    };
    let server = start("file", None, &[]);
    let queue = server.get("/api/v1/queue").json();
    assert_eq!(queue["limits"]["running"], 3);
    assert_eq!(queue["limits"]["waiting"], 7);
    assert_eq!(queue["limits"]["backends"]["local"], 2);
    assert_eq!(queue["limits"]["endpoints"]["demo"], 5);
    assert_eq!(queue["openenv_sessions"]["max"], 2);
    assert_eq!(server.get("/api/v1/endpoints").json()["client_base_url"], "none");
    server.stop();
    let server = start(
        "variable",
        Some("6"),
        &["--queue", "8", "--backend-limit", "local=1"],
    );
    let queue = server.get("/api/v1/queue").json();
    assert_eq!(queue["limits"]["waiting"], 8);
    assert_eq!(queue["limits"]["backends"]["local"], 1);
    assert_eq!(queue["openenv_sessions"]["max"], 6);
    server.stop();
}

#[test]
fn where_rollouts_could_reach_the_server_it_asks_for_a_token() {
    let place = Place::new();
    let file = place.data().join("control-token");
    let spec = r#"{"preset": "binary_search", "endpoint": "demo", "backend": "process"}"#;
    let json = "content-type: application/json";

    let server = Server::start(&place, &[]);
    assert!(!file.exists());
    let refused = server.ask("POST", "/api/v1/rollouts", &[json], spec);
    assert_eq!(refused.json()["error"]["code"], "backend_unusable", "{refused:?}");
    assert_eq!(server.get("/api/v1/queue").status, 200);
    server.stop();

    for options in [&["--sandbox", "process"][..], &["--allow-backend", "process"]] {
        let server = Server::start(&place, options);
        let said = server.said();
        assert!(said.contains(file.to_str().unwrap()), "{said}");
        assert_eq!(server.get("/ready").status, 200);
        assert_eq!(server.get("/api/v1/queue").status, 401);
        let token = std::fs::read_to_string(&file).unwrap();
        let bearer = format!("authorization: Bearer {}", token.trim());
        assert_eq!(server.ask("GET", "/api/v1/queue", &[&bearer], "").status, 200);
        assert!(!said.contains(token.trim()), "{said}");
        server.stop();
        assert!(!file.exists(), "it goes with the server");
    }

    let server = Server::start(&place, &["--sandbox", "process", "--open"]);
    assert_eq!(server.get("/api/v1/queue").status, 200);
    server.stop();
}

#[test]
fn a_server_takes_addresses_of_tasks_that_are_not_public_only_where_it_is_told() {
    let place = Place::new();
    let json = "content-type: application/json";
    let spec = |host: &str| {
        format!(
            r#"{{"task": {{"instruction": "x", "network": {{"allow": ["index.example", "{host}"]}}}}, "endpoint": "demo", "backend": "local"}}"#
        )
    };
    let server = Server::start(&place, &["--allow-address", "10.0.0.5:8080"]);
    for host in [
        "127.0.0.1:8000",
        "10.0.0.5",
        "169.254.169.254",
        "[::1]:80",
        "::ffff:127.0.0.1",
    ] {
        let refused = server.ask("POST", "/api/v1/rollouts", &[json], &spec(host));
        let error = &refused.json()["error"];
        assert_eq!(error["code"], "invalid_request", "{host}: {refused:?}");
        assert!(error.to_string().contains("--allow-address"), "{error}");
    }
    assert_eq!(server.get("/api/v1/queue").status, 200, "no token is asked for");
    server.stop();

    let server = Server::start(&place, &["--allow-address", "127.0.0.1:8000"]);
    assert_eq!(server.get("/api/v1/queue").status, 401, "an agent could reach it");
    server.stop();
}

/// How many of two rollouts with the same setup began with what the other's had made.
fn restored(place: &Place, before: &[&str], options: &[&str]) -> usize {
    let cache = place.scripted_agent();
    let run = [
        "run",
        "x",
        "--endpoint",
        "demo",
        "--cache-dir",
        cache.to_str().unwrap(),
    ];
    let more = ["--setup", "echo kept > file", "-n", "2", "--json"];
    let ran = place.run(&[before, &run, &more, options].concat()).expect(0);
    let rollouts: Vec<serde_json::Value> = ran
        .out
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(rollouts.len(), 2);
    let of_one = |rollout: &serde_json::Value| rollout["stages"].as_array().unwrap().clone();
    rollouts
        .iter()
        .flat_map(of_one)
        .filter(|stage| stage["restored"] == true)
        .count()
}

#[test]
fn what_setup_made_is_kept_where_an_option_or_else_the_file_says_so() {
    let place = Place::new();
    let file = place.write("config.toml", "[defaults]\nsnapshot = \"after_setup\"\n");
    let file = ["--config", file.to_str().unwrap()];
    assert_eq!(restored(&place, &[], &[]), 0);
    assert_eq!(restored(&place, &[], &["--snapshot", "after_setup"]), 1);
    assert_eq!(restored(&place, &file, &[]), 1);
    assert_eq!(restored(&place, &file, &["--snapshot", "never"]), 0);
}
