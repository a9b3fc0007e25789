use super::client::Reply;
use super::server::{Server, Setup, failing, hanging, quick, with};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;

const ROLLOUTS: &str = "/api/v1/rollouts";

/// An id of no rollout.
const NOBODY: &str = "01a2289d-2de4-7000-84ad-46eb82fa46c1";

fn place_of(error: &Value) -> &str {
    error["details"][0]["path"]
        .as_str()
        .unwrap_or_else(|| panic!("{error}"))
}

fn ids(reply: &Value) -> Vec<String> {
    let rollouts = reply["rollouts"].as_array().unwrap().iter();
    rollouts
        .map(|rollout| rollout["id"].as_str().unwrap().to_owned())
        .collect()
}

#[test]
fn one_rollout_several_of_a_task_and_several_tasks_are_taken_and_end() {
    let server = Server::plain();
    let reply = server.post(ROLLOUTS, &failing()).expect(202);
    let taken = reply.json();
    let one = &taken["rollouts"][0];
    let id = one["id"].as_str().unwrap();
    assert_eq!(
        reply.header("location"),
        Some(format!("{ROLLOUTS}/{id}").as_str())
    );
    assert_eq!((&one["sample"], &one["state"]), (&json!(0), &json!("queued")));
    let ended = server.ended(id);
    assert_eq!(
        (&ended["ended"], &ended["reward"]),
        (&json!("setup_error"), &Value::Null)
    );
    assert_eq!(ended["outcome"]["fault"]["code"], "setup_command_failed");
    assert_eq!(ended["start"]["task"]["instruction"], "x");

    let group = server
        .post(ROLLOUTS, &with(failing(), json!({"n": 3})))
        .expect(202)
        .json();
    let group = group["rollouts"].as_array().unwrap();
    let samples: Vec<_> = group
        .iter()
        .map(|rollout| rollout["sample"].as_u64().unwrap())
        .collect();
    assert_eq!(samples, [0, 1, 2]);
    let groups: BTreeSet<_> = group
        .iter()
        .map(|rollout| rollout["group"].as_str().unwrap())
        .collect();
    assert_eq!(groups.len(), 1);

    let named = |id: &str, n: u32| {
        let task = json!({"id": id, "instruction": "x", "setup": ["false"]});
        json!({"task": task, "endpoint": "demo", "n": n})
    };
    let batch = server
        .post(ROLLOUTS, &json!({"rollouts": [named("a", 1), named("b", 2)]}))
        .expect(202);
    assert_eq!(batch.header("location"), None);
    let batch = batch.json();
    let tasks: Vec<_> = batch["rollouts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|rollout| &rollout["task_id"])
        .collect();
    assert_eq!(tasks, ["a", "b", "b"]);
    for id in ids(&batch) {
        assert_eq!(server.ended(&id)["ended"], "setup_error");
    }
}

#[test]
fn a_request_that_is_sent_twice_counts_once_and_another_with_its_key_is_refused() {
    let server = Server::plain();
    let keyed = |key: &str, body: &Value| {
        server
            .request("POST", ROLLOUTS)
            .header("idempotency-key", key)
            .json(body)
            .send()
    };
    let group = with(failing(), json!({"n": 2}));
    let first = keyed("k-1", &group).expect(202);
    assert_eq!(first.header("idempotency-replayed"), None);
    let again = keyed("k-1", &group).expect(202);
    assert_eq!(again.header("idempotency-replayed"), Some("true"));
    assert_eq!(ids(&again.json()), ids(&first.json()));
    for id in ids(&first.json()) {
        server.ended(&id);
    }
    // Also when they are over.
    assert_eq!(ids(&keyed("k-1", &group).expect(202).json()), ids(&first.json()));
    keyed("k-1", &failing()).expect_error(409, "idempotency_conflict");
    assert_ne!(ids(&keyed("k-2", &group).expect(202).json()), ids(&first.json()));
    assert_eq!(
        place_of(&keyed("", &group).expect_error(422, "invalid_request")),
        "Idempotency-Key"
    );
    keyed(&"k".repeat(256), &group).expect_error(422, "invalid_request");
    let listed = server.get(ROLLOUTS).expect(200).json();
    assert_eq!(ids(&listed).len(), 4);

    // What was refused left its key free.
    keyed("k-3", &json!({"nope": 1})).expect_error(422, "invalid_request");
    keyed("k-3", &failing()).expect(202);
}

#[test]
fn requests_of_the_same_key_at_once_start_one_rollout() {
    let server = Server::plain();
    let answers: Vec<Reply> = std::thread::scope(|scope| {
        let send = || {
            let request = server.request("POST", ROLLOUTS).header("idempotency-key", "one");
            request.json(&failing()).send()
        };
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(send)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let started: BTreeSet<_> = answers
        .into_iter()
        .flat_map(|answer| ids(&answer.expect(202).json()))
        .collect();
    assert_eq!(started.len(), 1);
}

#[test]
fn what_is_wrong_in_a_body_is_named_with_its_place() {
    let server = Server::plain();
    let post = |body: Value| server.post(ROLLOUTS, &body).expect_error(422, "invalid_request");
    let task = |task: Value| json!({"task": task, "endpoint": "demo"});
    for (body, place) in [
        (json!([]), ""),
        (json!("x"), ""),
        (json!({}), "task"),
        (json!({"presett": "fizzbuzz"}), "presett"),
        (json!({"preset": "nope", "endpoint": "demo"}), "preset"),
        (
            json!({"preset": "fizzbuzz", "task": {"instruction": "x"}}),
            "preset",
        ),
        (json!({"preset": 7}), "preset"),
        (with(failing(), json!({"n": 0})), "n"),
        (with(failing(), json!({"n": 1025})), "n"),
        (with(failing(), json!({"n": -1})), "n"),
        (with(failing(), json!({"n": "two"})), "n"),
        (with(failing(), json!({"mode": "sideways"})), "mode"),
        (with(failing(), json!({"hold": "yes"})), "hold"),
        (with(failing(), json!({"hold_timeout_s": 0})), "hold_timeout_s"),
        (with(failing(), json!({"top_logprobs": 21})), "top_logprobs"),
        (with(failing(), json!({"priority": 1e10})), "priority"),
        (with(failing(), json!({"on_interrupt": "ignore"})), "on_interrupt"),
        (task(json!("x")), "task"),
        (task(json!({"instruction": 7})), "task.instruction"),
        (task(json!({"instruction": ""})), "task.instruction"),
        (
            task(json!({"instruction": "x", "agent": {"nam": "y"}})),
            "task.agent.nam",
        ),
        (
            task(json!({"instruction": "x", "limits": {"agent_timeout_s": "soon"}})),
            "task.limits.agent_timeout_s",
        ),
        (json!({"rollouts": {}}), "rollouts"),
        (json!({"rollouts": []}), "rollouts"),
        (json!({"rollouts": [failing()], "n": 2}), "n"),
        (json!({"rollouts": [failing(), 7]}), "rollouts[1]"),
        (json!({"rollouts": [failing(), {"m": 7}]}), "rollouts[1].m"),
        (
            json!({"rollouts": [failing(), task(json!({"instruction": "x", "agent": {"nam": 1}}))]}),
            "rollouts[1].task.agent.nam",
        ),
    ] {
        let error = post(body.clone());
        assert_eq!(place_of(&error), place, "{body} {error}");
    }
    let hint = post(json!({"presett": "fizzbuzz"}));
    assert_eq!(hint["hint"], "did you mean `preset`?");
    for (more, code) in [
        (json!({"endpoint": "nope"}), "endpoint_unusable"),
        (json!({"backend": "nope"}), "backend_unusable"),
        (
            json!({"task": {"instruction": "x", "agent": {"name": "nope"}}}),
            "agent_unusable",
        ),
    ] {
        server
            .post(ROLLOUTS, &with(failing(), more))
            .expect_error(422, code);
    }
    assert_eq!(
        ids(&server.get(ROLLOUTS).expect(200).json()),
        Vec::<String>::new()
    );
}

#[test]
fn a_body_that_is_no_json_too_large_or_of_another_type_is_refused() {
    let server = Server::plain();
    let raw =
        |content_type: &str, body: &str| server.request("POST", ROLLOUTS).body(content_type, body).send();
    let deep = "[".repeat(100_000);
    for body in [
        "",
        "{",
        "{\"n\": NaN}",
        "nul",
        "{\"task\": \"\u{1}\"}",
        "{} {}",
        &deep,
    ] {
        raw("application/json", body).expect_error(400, "invalid_json");
    }
    for content_type in [
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "",
        "json",
    ] {
        raw(content_type, &failing().to_string()).expect_error(415, "unsupported_media_type");
    }
    server
        .request("POST", ROLLOUTS)
        .send()
        .expect_error(415, "unsupported_media_type");
    raw("application/json; charset=utf-8", &failing().to_string()).expect(202);

    let large = vec![b' '; 100_000_000];
    let reply = server
        .request("POST", ROLLOUTS)
        .body("application/json", large.clone())
        .send();
    reply.expect_error(413, "too_large");
    // Without having said how large it will be.
    let mut stream = TcpStream::connect(server.address).unwrap();
    let head = server
        .request("POST", ROLLOUTS)
        .header("content-type", "application/json");
    let head = head
        .header("transfer-encoding", "chunked")
        .header("connection", "close")
        .head();
    stream.write_all(head.as_bytes()).unwrap();
    for part in large.chunks(1 << 20) {
        let sent = write!(stream, "{:x}\r\n", part.len()).and_then(|()| stream.write_all(part));
        if sent.and_then(|()| stream.write_all(b"\r\n")).is_err() {
            break;
        }
    }
    let mut answer = Vec::new();
    // It may have been cut off behind the reply.
    _ = stream.read_to_end(&mut answer);
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.starts_with("HTTP/1.1 413 "), "{answer:?}");
    server.get("/health").expect(200);
}

#[test]
fn whatever_is_not_there_is_said_in_the_same_shape() {
    let server = Server::plain();
    let id = server.submit_one(&failing());
    server.ended(&id);
    for unknown in [
        NOBODY,
        "x",
        "..",
        "a%2Fb",
        "..%2F..%2Fetc%2Fpasswd",
        "%00",
        "%20",
        "%F0%9F%8D%84",
        &"a".repeat(4000),
    ] {
        for (method, rest) in [
            ("GET", ""),
            ("GET", "/calls"),
            ("GET", "/calls/0"),
            ("GET", "/trajectory"),
            ("GET", "/logs"),
            ("GET", "/files/x"),
            ("PUT", "/files/x"),
            ("GET", "/events"),
            ("POST", "/cancel"),
            ("POST", "/exec"),
            ("POST", "/finish"),
        ] {
            let request = server.request(method, &format!("{ROLLOUTS}/{unknown}{rest}"));
            let request = if method == "GET" {
                request
            } else {
                request.json(&json!({}))
            };
            request.send().expect_error(404, "unknown_rollout");
        }
    }
    for target in [
        "/api/v1/rollouts/%FF",
        "/api/v1/rollouts/%FF/files/x",
        "/api/v1/rollouts/x/files/%FF",
    ] {
        let error = server.get(target).expect_error(422, "invalid_request");
        assert_eq!(place_of(&error), "path");
    }
    for target in [
        "/api/v1/nope",
        "/api/v2/rollouts",
        "/api/v1/rollouts/x/y",
        "/api/v1",
        "/api/",
        "/api/v1/rollouts/",
    ] {
        server.get(target).expect_error(404, "unknown_route");
    }
    for (method, target, allowed) in [
        ("DELETE", ROLLOUTS.to_owned(), "GET,HEAD,POST"),
        ("PUT", format!("{ROLLOUTS}/{id}"), "GET,HEAD"),
        ("GET", format!("{ROLLOUTS}/{id}/cancel"), "POST"),
        ("POST", format!("{ROLLOUTS}/{id}/files/x"), "GET,HEAD,PUT"),
        ("POST", "/api/v1/endpoints".to_owned(), "GET,HEAD"),
    ] {
        let reply = server.request(method, &target).json(&json!({})).send();
        let allow: BTreeSet<_> = reply.header("allow").unwrap().split(',').map(str::trim).collect();
        assert_eq!(allow, allowed.split(',').collect(), "{method} {target}");
        reply.expect_error(405, "method_not_allowed");
    }
    server
        .get(&format!("{ROLLOUTS}/{id}/calls/0"))
        .expect_error(404, "unknown_call");
    server
        .get(&format!("{ROLLOUTS}/{id}/files/none.txt"))
        .expect_error(404, "unknown_file");
}

#[test]
fn a_rollout_is_cancelled_once_and_stays_as_it_ended() {
    let server = Server::plain();
    let id = server.submit_one(&hanging());
    server.until(&id, "command_started");
    server
        .get(&format!("{ROLLOUTS}/{id}/files/x"))
        .expect_error(409, "not_held");
    let asked = server.cancel(&id).expect(202).json();
    assert_eq!(asked["id"], id.as_str());
    // A second time while it ends, or when it is over.
    assert!([200, 202].contains(&server.cancel(&id).status));
    let ended = server.ended(&id);
    assert_eq!(ended["ended"], "cancelled");
    let again = server.cancel(&id).expect(200).json();
    assert_eq!(again["finished_unix_ms"], ended["finished_unix_ms"]);
    assert_eq!(again["ended"], "cancelled");
    assert_eq!(server.left_in("homes").len(), 0);
}

#[test]
fn a_list_is_filtered_and_read_page_by_page() {
    let server = Server::plain();
    let named = |id: &str, instruction: &str, n: u32| {
        let task = json!({"id": id, "instruction": instruction, "setup": ["false"]});
        json!({"task": task, "endpoint": "demo", "n": n})
    };
    let first = server.submit(&named("alpha", "find the needle", 3));
    let second = server.submit(&named("beta", "stack the hay", 2));
    for id in first.iter().chain(&second) {
        server.ended(id);
    }
    let live = server.submit_one(&hanging());
    server.until(&live, "command_started");
    let list = |query: &str| ids(&server.get(&format!("{ROLLOUTS}?{query}")).expect(200).json());
    let group = server.rollout(&first[0])["group"].as_str().unwrap().to_owned();
    let created = server.rollout(&live)["created_unix_ms"].as_u64().unwrap();
    for (query, count) in [
        ("", 6),
        ("task_id=alpha", 3),
        ("task_id=alp", 0),
        ("state=finished", 5),
        ("state=running", 1),
        ("state=queued,running", 1),
        ("state=interrupted", 0),
        ("search=needle", 3),
        ("search=HAY", 2),
        ("search=%25", 0),
        ("agent=opencode&endpoint=demo&backend=local&model=scripted", 6),
        ("agent=nope", 0),
        ("ended=setup_error", 5),
        ("ended=completed", 0),
        ("fault_owner=task", 5),
        ("fault_owner=agent", 0),
        ("reward_min=0", 0),
        (&format!("group={group}"), 3),
        (&format!("since={created}"), 1),
        ("task_id=alpha&limit=1", 1),
    ] {
        assert_eq!(list(query).len(), count, "{query}");
    }
    let mut pages = Vec::new();
    let mut cursor = String::new();
    loop {
        let page = server
            .get(&format!("{ROLLOUTS}?limit=4&cursor={cursor}"))
            .expect(200)
            .json();
        pages.push(ids(&page));
        match &page["next_cursor"] {
            Value::Null => break,
            next => cursor = next.as_str().unwrap().to_owned(),
        }
    }
    assert_eq!(pages.iter().map(Vec::len).collect::<Vec<_>>(), [4, 2]);
    assert_eq!(
        pages.concat(),
        list(""),
        "nothing twice, nothing missing, the latest first"
    );
    assert_eq!(pages[0][0], live);
    for (query, key) in [
        ("state=done", "state"),
        ("limit=0", "limit"),
        ("limit=1001", "limit"),
        ("cursor=x", "cursor"),
        ("reward_min=nan", "reward_min"),
        ("since=-1", "since"),
        ("stat=queued", "stat"),
        ("ended=well", "ended"),
    ] {
        let error = server
            .get(&format!("{ROLLOUTS}?{query}"))
            .expect_error(422, "invalid_request");
        assert_eq!(place_of(&error), key, "{query}");
    }
    let running = server.rollout(&live);
    assert_eq!(
        (&running["state"], &running["stage"]),
        (&json!("running"), &json!("setup"))
    );
    assert_eq!(running["outcome"], Value::Null);
    server.cancel(&live).expect(202);
}

#[test]
fn what_was_recorded_of_a_rollout_is_there_in_every_form() {
    let server = Setup::new().scripted_agent().start();
    let id = server.submit_one(&quick());
    let ended = server.ended(&id);
    assert_eq!(
        (&ended["ended"], &ended["reward"]),
        (&json!("completed"), &json!(1.0)),
        "{ended}"
    );
    let read = |rest: &str| server.get(&format!("{ROLLOUTS}/{id}/{rest}"));

    let calls = read("calls").expect(200).json();
    let calls = calls["calls"].as_array().unwrap();
    assert_eq!(calls.len() as u64, ended["totals"]["calls"].as_u64().unwrap());
    assert!(
        calls.len() >= 3 && calls.iter().all(|call| call["trainable"] == true),
        "{calls:#?}"
    );
    assert_eq!(
        (&calls[0]["index"], &calls[1]["continues"]),
        (&json!(0), &json!(0))
    );

    let training = read("trajectory?format=training").expect(200).json();
    let turns = training["turns"].as_array().unwrap();
    assert_eq!((turns.len(), &training["rollout"]), (calls.len(), &json!(id)));
    for (index, turn) in turns.iter().enumerate() {
        let length = |key: &str| turn[key].as_array().unwrap().len();
        assert!(length("prompt_token_ids") > 0);
        assert_eq!(length("completion_token_ids"), length("per_token_logps"));
        assert_eq!(
            length("loss_mask"),
            length("prompt_token_ids") + length("completion_token_ids")
        );
        assert_eq!(turn["node_id"], format!("{id}:{index}"));
        assert!(turn["request"]["messages"].is_array() && turn["response"]["choices"].is_array());
        assert_eq!(&read(&format!("calls/{index}")).expect(200).json(), turn);
    }
    let native = read("trajectory").expect(200);
    assert_eq!(native.header("content-type"), Some("application/json"));
    assert_eq!(native.json(), read("trajectory?format=native").expect(200).json());
    assert!(!native.json()["sequences"].as_array().unwrap().is_empty());
    let none = read("trajectory?train=title&truncated=drop").expect(200).json();
    assert!(
        none["calls"]
            .as_array()
            .unwrap()
            .iter()
            .all(|call| call["trainable"] == false)
    );
    assert_eq!(none["calls"][0]["untrained"]["reason"], "purpose");
    assert_eq!(none["selection"]["truncated"], "drop");
    let error = read("trajectory?train=foreign").expect_error(422, "invalid_request");
    assert_eq!(place_of(&error), "train");
    let export = |query: &str| server.get(&format!("/api/v1/export{query}"));
    let exported = export(&format!("?ids={id}")).expect(200);
    assert_eq!(exported.header("content-type"), Some("application/x-ndjson"));
    assert_eq!(exported.json(), native.json(), "one line");
    let rows = export("?shape=verl&filter=reward%3E%3D1").expect(200).text();
    let rows: Vec<Value> = rows
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert!(
        !rows.is_empty() && rows.iter().all(|row| row["rollout"] == json!(id)),
        "{rows:?}"
    );
    assert_eq!(export("?filter=reward%3C1").expect(200).text(), "");
    assert_eq!(
        place_of(&export("?shap=verl").expect_error(422, "invalid_request")),
        "shap"
    );
    export("?ids=ffffffff-ffff-7fff-8fff-ffffffffffff").expect_error(404, "unknown_rollout");

    let wrong = read("trajectory?format=xml").expect_error(422, "invalid_request");
    assert_eq!(place_of(&wrong), "format");
    for none in ["calls/99", "calls/-1", "calls/x", "calls/4294967296"] {
        read(none).expect_error(404, "unknown_call");
    }

    let file = read("files/binary_search.py").expect(200);
    assert!(file.text().contains("def "), "{}", file.text());
    assert_eq!(file.header("x-content-type-options"), Some("nosniff"));
    assert_eq!(file.header("content-disposition"), Some("attachment"));
    for away in [
        "files/../secret",
        "files/a/../../b",
        "files/..",
        "files/%2e%2e/x",
        "files/a%2F..%2Fb",
        "files/%00",
    ] {
        let error = read(away).expect_error(422, "invalid_request");
        assert_eq!(place_of(&error), "path");
    }
    read("files/etc/passwd").expect_error(404, "unknown_file");
    read("files/%2Fetc%2Fpasswd").expect_error(404, "unknown_file");
    let logs = read("logs").expect(200).json();
    assert!(
        logs["verify"].as_array().unwrap().len() == 2 && logs["agent"].is_string(),
        "{logs}"
    );

    // One that had no calls has the same forms.
    let id = server.submit_one(&failing());
    server.ended(&id);
    let read = |rest: &str| server.get(&format!("{ROLLOUTS}/{id}/{rest}")).expect(200).json();
    assert_eq!(read("calls")["calls"], json!([]));
    assert_eq!(read("trajectory?format=training")["turns"], json!([]));
    assert_eq!(read("trajectory")["sequences"], json!([]));
}

#[test]
fn the_real_agent_is_run_from_task_to_reward() {
    let server = Server::plain();
    let id = server.submit_one(&json!({"preset": "fizzbuzz", "endpoint": "demo"}));
    let ended = server.ended(&id);
    assert_eq!(
        (&ended["ended"], &ended["reward"]),
        (&json!("completed"), &json!(1.0)),
        "{ended}"
    );
    assert_eq!(ended["totals"]["level"], "tokens");
}

#[test]
fn a_full_queue_is_said_with_when_to_come_back() {
    let server = Setup::new()
        .arguments(&["--concurrency", "1", "--queue", "1"])
        .start();
    let running = server.submit_one(&hanging());
    server.until(&running, "command_started");
    let waiting = server.submit_one(&failing());
    let row = server.rollout(&waiting);
    assert_eq!(
        (&row["state"], &row["queue_position"]),
        (&json!("queued"), &json!(0))
    );
    assert_eq!((&row["start"], &row["outcome"]), (&Value::Null, &Value::Null));
    for rest in ["calls", "trajectory", "trajectory?format=training", "logs"] {
        server
            .get(&format!("{ROLLOUTS}/{waiting}/{rest}"))
            .expect(200)
            .json();
    }
    let full = || {
        server
            .request("POST", ROLLOUTS)
            .header("idempotency-key", "k")
            .json(&failing())
            .send()
    };
    let refused = full();
    assert!(refused.header("retry-after").unwrap().parse::<u32>().unwrap() > 0);
    refused.expect_error(429, "queue_full");
    assert_eq!(
        ids(&server.get(ROLLOUTS).expect(200).json()),
        [&*waiting, &*running]
    );
    let queue = server.get("/api/v1/queue").expect(200).json();
    assert_eq!((&queue["waiting"], &queue["running"]), (&json!(1), &json!(1)));
    assert_eq!(
        (&queue["limits"]["waiting"], &queue["limits"]["running"]),
        (&json!(1), &json!(1))
    );
    server.cancel(&running).expect(202);
    server.ended(&waiting);
    full().expect(202);
}

#[test]
fn a_server_that_stops_answers_and_takes_nothing_new() {
    let mut server = Setup::new().arguments(&["--grace", "60"]).start();
    let running = server.submit_one(&hanging());
    server.until(&running, "command_started");
    server.signal(Signal::SIGTERM);
    server.eventually("the stop", || server.said().contains("stopping").then_some(()));
    let refused = server.post(ROLLOUTS, &failing());
    assert!(refused.header("retry-after").is_some());
    refused.expect_error(503, "draining");
    let ready = server.get("/ready").expect(503);
    assert_eq!(ready.json(), json!({"status": "draining"}));
    assert_eq!(
        server.get("/health").expect(200).json(),
        json!({"status": "healthy"})
    );
    assert_eq!(server.rollout(&running)["state"], "running");
    server.cancel(&running).expect(202);
    let ended = server.running.take().unwrap().wait().expect(0);
    assert!(ended.err.contains("1 rollout is left"), "{}", ended.err);
}

#[test]
fn what_there_is_to_choose_from_is_listed() {
    let server = Setup::new()
        .variable("VLLM_URL", "http://127.0.0.1:9/v1")
        .variable("VLLM_MODEL", "m")
        .start();
    let version = server.get("/api/v1/version").expect(200).json();
    assert_eq!(
        version,
        json!({"name": "dressage", "version": env!("CARGO_PKG_VERSION"), "api": "v1", "schemas": {"native": 2, "trl": 1, "verl": 1, "chat": 1, "atif": 1, "training": 1}})
    );
    let read = |name: &str| server.get(&format!("/api/v1/{name}")).expect(200).json()[name].clone();
    let named = |list: &Value, name: &str| {
        let found = list
            .as_array()
            .unwrap()
            .iter()
            .find(|entry| entry["name"] == name);
        found.unwrap_or_else(|| panic!("{name}: {list}")).clone()
    };
    assert_eq!(named(&read("endpoints"), "demo")["usable"], true);
    assert_eq!(named(&read("endpoints"), "hf_router")["usable"], false);
    assert_eq!(named(&read("agents"), "opencode")["installed"], true);
    named(&read("backends"), "local");
    let preset = named(&read("presets"), "fizzbuzz");
    assert!(preset["task"]["instruction"].is_string());

    // The document shows answers of the same shape.
    let document = server.get("/openapi.json").expect(200).json();
    for name in ["endpoints", "agents", "backends", "presets", "queue", "version"] {
        let path = format!("/api/v1/{name}");
        let answer = server.get(&path).expect(200).json();
        let example =
            &document["paths"][&path]["get"]["responses"]["200"]["content"]["application/json"]["example"];
        let members = |value: &Value| -> BTreeSet<String> {
            let table = value.as_object().unwrap_or_else(|| panic!("{name}: {value}"));
            table.keys().cloned().collect()
        };
        assert_eq!(members(example), members(&answer), "{name}");
        for entry in example[name].as_array().into_iter().flatten() {
            let kind = |entry: &Value| (entry["usable"].clone(), entry["base_url"].is_string());
            let mut answered = answer[name].as_array().unwrap().iter();
            let alike = answered.find(|answered| kind(answered) == kind(entry)).unwrap();
            assert_eq!(members(entry), members(alike), "{name}");
        }
    }
}

/// The routes as the source has them: method and path.
fn routes() -> BTreeSet<(String, String)> {
    let mut routes = BTreeSet::new();
    let sources = [
        ("", include_str!("../../../src/http.rs")),
        ("/api/v1", include_str!("../../../src/rest.rs")),
        ("", include_str!("../../../src/openenv.rs")),
    ];
    for (prefix, source) in sources {
        for call in source.split(".route(").skip(1) {
            let path = call.split('"').nth(1).unwrap().replace("{*", "{");
            let mut depth = 1;
            let end = call.find(|character| {
                depth += match character {
                    '(' => 1,
                    ')' => -1,
                    _ => 0,
                };
                depth == 0
            });
            let handlers = call[..end.unwrap()].split(|character: char| !character.is_alphanumeric());
            // `/mcp` looks at the method itself, and is described once.
            for method in handlers.filter(|word| ["get", "post", "put", "delete", "any"].contains(word)) {
                routes.insert((method.replace("any", "post"), format!("{prefix}{path}")));
            }
        }
    }
    routes
}

#[test]
fn every_route_is_in_the_document_and_all_of_the_document_is_routed() {
    let server = Server::plain();
    let document = server.get("/openapi.json").expect(200).json();
    let mut described = BTreeSet::new();
    let mut operations = BTreeSet::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            described.insert((method.clone(), path.clone()));
            let id = operation["operationId"].as_str().unwrap();
            assert!(operations.insert(id.to_owned()), "{id} stands twice");
            for name in path
                .split('{')
                .skip(1)
                .map(|rest| rest.split('}').next().unwrap())
            {
                let parameters = operation["parameters"].as_array().unwrap();
                assert!(
                    parameters.iter().any(|parameter| parameter["name"] == name),
                    "{method} {path}: {name}"
                );
            }
            assert!(
                operation["responses"]
                    .as_object()
                    .is_some_and(|answers| !answers.is_empty())
            );
        }
    }
    let mut routed = routes();
    // The document itself, the pages that show it, and the socket, which OpenAPI has no words for.
    routed.retain(|(_, path)| path != "/openapi.json" && path != "/ws" && !path.starts_with("/docs"));
    assert_eq!(described, routed);
    for (method, path) in described {
        let target = path
            .replace("{id}", NOBODY)
            .replace("{name}", "opencode_env")
            .replace(['{', '}'], "");
        if ["/api/v1/events", "/mcp"].contains(&&*target) {
            continue;
        }
        let reply = server.request(&method.to_ascii_uppercase(), &target).send();
        let is_unrouted = reply.text().contains("unknown_route") || reply.text().contains("\"Not Found\"");
        assert!(
            !is_unrouted && reply.status != 405,
            "{method} {target}: {}",
            reply.text()
        );
        let answers = document["paths"][&path][&method]["responses"]
            .as_object()
            .unwrap();
        assert!(
            answers.contains_key(&reply.status.to_string()),
            "{method} {path} answers {}, which is not in the document",
            reply.status
        );
    }
}

#[test]
fn answers_are_of_the_types_that_the_document_names() {
    let server = Server::plain();
    let document = server.get("/openapi.json").expect(200).json();
    let mut compared = 0;
    for (path, methods) in document["paths"].as_object().unwrap() {
        let schema = &methods["get"]["responses"]["200"]["content"]["application/json"]["schema"];
        if schema.is_null() || path.contains('{') {
            continue;
        }
        let named = match schema["$ref"].as_str() {
            Some(reference) => document.pointer(reference.trim_start_matches('#')).unwrap(),
            None => schema,
        };
        let answer = server.get(path).expect(200).json();
        let found = match &answer {
            Value::Array(_) => "array",
            Value::Object(_) => "object",
            _ => "something else",
        };
        assert_eq!(named["type"], found, "{path}: {answer}");
        compared += 1;
    }
    assert!(compared > 8, "{compared}");
    for path in ["/api/v1/events", "/api/v1/rollouts/{id}/events"] {
        // Each event is held against it, and an event is fields.
        let content = &document["paths"][path]["get"]["responses"]["200"]["content"];
        assert_eq!(
            content["text/event-stream"]["schema"]["$ref"], "#/components/schemas/ServerSentEvent",
            "{path}"
        );
    }
}

#[test]
fn what_setup_made_is_kept_where_the_task_or_else_the_server_says_so() {
    let server = Setup::new()
        .scripted_agent()
        .arguments(&["--snapshot", "after_setup"])
        .start();
    let restored = |task: Value| -> usize {
        let spec = json!({"task": task, "endpoint": "demo", "n": 2});
        let ended = server.submit(&spec).into_iter().map(|id| server.ended(&id));
        ended
            .flat_map(|rollout| rollout["outcome"]["stages"].as_array().unwrap().clone())
            .filter(|stage| stage["restored"] == true)
            .count()
    };
    let task = json!({"instruction": "x", "setup": ["echo kept > file"]});
    assert_eq!(restored(task.clone()), 1);
    assert_eq!(restored(with(task, json!({"snapshot": "never"}))), 0);
}
