use super::client::Reply;
use super::server::{Server, Setup, failing, hanging, quick, with};
use serde_json::{Value, json};

const KEY: &str = "0123456789abcdef-first";

/// An address in the page that is relative to `path`, from the root on.
fn absolute(path: &str, relative: &str) -> String {
    let base = url::Url::parse(&format!("http://x{path}")).unwrap();
    base.join(relative).unwrap().path().to_owned()
}

/// What a page loads: its scripts and its style.
fn loaded(reply: &Reply, path: &str) -> Vec<String> {
    let text = reply.text();
    let after = |mark: &'static str| {
        let parts = text.split(mark).skip(1);
        parts
            .map(|part| absolute(path, part.split('"').next().unwrap()))
            .collect::<Vec<_>>()
    };
    let mut all = after("src=\"");
    all.extend(after("href=\""));
    all
}

#[test]
fn the_page_is_at_each_of_its_addresses_and_loads_from_its_own_server_alone() {
    let server = Server::plain();
    let moved = server.get("/").expect(307);
    assert_eq!(moved.header("location"), Some("web/"));
    for path in ["/web", "/web/", "/web/board", "/web/rollouts/x/tokens"] {
        let reply = server.get(path).expect(200);
        assert_eq!(reply.header("content-type"), Some("text/html; charset=utf-8"));
        let policy = reply.header("content-security-policy").unwrap();
        for part in [
            "default-src 'none'",
            "script-src 'self';",
            "style-src 'self';",
            "connect-src 'self';",
            "frame-ancestors 'self'",
        ] {
            assert!(policy.contains(part), "{policy}");
        }
        assert!(
            !policy.contains("unsafe") && !policy.contains("huggingface"),
            "{policy}"
        );
        let loaded = loaded(&reply, path);
        assert!(loaded.len() > 10, "{loaded:?}");
        for file in loaded {
            let got = server.get(&file).expect(200);
            let kind = got.header("content-type").unwrap();
            assert!(
                kind.starts_with("text/javascript")
                    || kind.starts_with("text/css")
                    || kind.starts_with("image/svg"),
                "{file}: {kind}"
            );
        }
        let tag = reply.header("etag").unwrap();
        let again = server.request("GET", path).header("if-none-match", tag).send();
        again.expect(304);
    }
    server.get("/web/assets/x/nothing.js").expect(404);
    server.get("/web/assets/x/../../../etc/passwd").expect(404);
    server.request("POST", "/web").json(&json!({})).send().expect(405);
}

#[test]
fn the_page_needs_no_key_and_what_it_shows_does() {
    let server = Setup::new().variable("DRESSAGE_API_KEYS", KEY).start();
    let page = server.get("/web/rollouts").expect(200);
    for file in loaded(&page, "/web/rollouts") {
        server.get(&file).expect(200);
    }
    server.get("/api/v1/rollouts").expect(401);
    let keyed = server.request("GET", "/api/v1/rollouts").header("x-api-key", KEY);
    keyed.send().expect(200);
    // The prefix with the key stays before all that is relative.
    let prefixed = format!("/k/{KEY}/web/board");
    let page = server.get(&prefixed).expect(200);
    assert!(!page.text().contains(KEY));
    for file in loaded(&page, &prefixed) {
        assert!(file.starts_with(&format!("/k/{KEY}/web/assets/")), "{file}");
    }
}

#[test]
fn a_space_may_show_the_page_in_a_frame_and_it_can_be_turned_off() {
    let server = Setup::new().variable("SPACE_ID", "someone/dressage").start();
    let reply = server.get("/web").expect(200);
    let policy = reply.header("content-security-policy").unwrap();
    assert!(
        policy.ends_with("frame-ancestors 'self' https://huggingface.co"),
        "{policy}"
    );
    let server = Setup::new().variable("ENABLE_WEB_INTERFACE", "false").start();
    for path in ["/", "/web", "/web/", "/web/board"] {
        server.get(path).expect(404);
    }
    server.get("/api/v1/rollouts").expect(200);
}

#[test]
fn lists_are_sorted_and_groups_summed_up() {
    let server = Setup::new().scripted_agent().start();
    let good = server.submit(&with(quick(), json!({"n": 2})));
    let bad = server.submit_one(&failing());
    for id in good.iter().chain([&bad]) {
        server.ended(id);
    }
    let ids = |query: &str| {
        let page = server
            .get(&format!("/api/v1/rollouts?{query}"))
            .expect(200)
            .json();
        let rows = page["rollouts"].as_array().unwrap().iter();
        let ids: Vec<String> = rows.map(|row| row["id"].as_str().unwrap().to_owned()).collect();
        (ids, page["next_skip"].clone(), page["next_cursor"].clone())
    };
    let (first, skip, cursor) = ids("sort=reward&limit=2");
    assert_eq!((first.len(), &skip, &cursor), (2, &json!(2), &Value::Null));
    assert!(!first.contains(&bad), "without a reward it comes last");
    assert_eq!(
        ids("sort=reward&limit=2&skip=2"),
        (vec![bad], Value::Null, Value::Null)
    );
    // One that was asked for alone is a group of its own.
    let all = server.get("/api/v1/groups").expect(200).json();
    assert_eq!(all["groups"].as_array().unwrap().len(), 2);
    let groups = server.get("/api/v1/groups?rollouts_min=2").expect(200).json();
    let groups = groups["groups"].as_array().unwrap();
    assert_eq!(groups.len(), 1);
    let group = &groups[0];
    assert_eq!(
        (
            &group["rollouts"],
            &group["reward_mean"],
            &group["reward_deviation"]
        ),
        (&json!(2), &json!(1.0), &json!(0.0))
    );
    let whole = server
        .get(&format!("/api/v1/rollouts/{}/trajectory", good[0]))
        .expect(200)
        .json();
    let path = format!("/api/v1/rollouts/{}/trajectory?sequences=drop", good[0]);
    let mut dropped = server.get(&path).expect(200).json();
    assert_eq!(dropped["sequences"], json!([]));
    assert_ne!(whole["sequences"], json!([]));
    dropped["sequences"] = whole["sequences"].clone();
    assert_eq!(dropped, whole);
}

#[test]
fn sandboxes_are_listed_and_ended_by_cancelling_their_rollouts() {
    let server = Server::plain();
    let id = server.submit_one(&hanging());
    server.until(&id, "command_started setup");
    let listed = server.get("/api/v1/sandboxes").expect(200).json();
    let found = listed["sandboxes"].as_array().unwrap().iter();
    let own = found
        .clone()
        .find(|sandbox| sandbox["rollout"] == json!(id))
        .unwrap();
    assert_eq!(
        (&own["backend"], &own["owner_alive"]),
        (&json!("local"), &json!(true))
    );
    let sandbox = own["sandbox"].as_str().unwrap();
    let end = |sandbox: &str| server.post(&format!("/api/v1/sandboxes/{sandbox}/end"), &json!({}));
    assert_eq!(end(sandbox).expect(202).json(), json!({"ended": false}));
    assert_eq!(server.ended(&id)["ended"], "cancelled");
    let gone = end(sandbox).expect(404).json();
    assert_eq!(gone["error"]["code"], "unknown_sandbox");
    end("..").expect(404);
}

#[test]
fn a_task_file_is_read_as_a_command_line_would() {
    let server = Server::plain();
    let read = |text: &str, format: &str| {
        let body = json!({"text": text, "format": format});
        server.post("/api/v1/tasks/read", &body)
    };
    let text = "instruction = \"Say hello.\"\n[limits]\nmax_calls = 3\n";
    let task = read(text, "toml").expect(200).json();
    assert_eq!(
        (&task["task"]["instruction"], &task["task"]["limits"]["max_calls"]),
        (&json!("Say hello."), &json!(3))
    );
    let same = read(
        r#"{"instruction": "Say hello.", "limits": {"max_calls": 3}}"#,
        "json",
    );
    assert_eq!(same.expect(200).json(), task);
    for (text, format, path) in [
        ("instruction = \"x\"\nverfy = []", "toml", "verfy"),
        ("{}", "json", "instruction"),
        ("[", "json", ""),
        ("x", "yaml", "format"),
    ] {
        let error = read(text, format).expect(422).json();
        assert_eq!(error["error"]["details"][0]["path"], path, "{text}");
    }
}

#[test]
fn task_files_of_a_folder_are_offered() {
    let server = Server::plain();
    assert_eq!(
        server.get("/api/v1/tasks").expect(200).json(),
        json!({"tasks": []})
    );

    let setup = Setup::new();
    let sort = setup.write(
        "tasks/sort.toml",
        "instruction = 'Sort it.'\nverify_files.'check.py' = { source = 'check.py' }",
    );
    setup.write("tasks/check.py", "print(1)");
    setup.write("tasks/wrong.toml", "instruction = 'x'\nverfy = []");
    setup.write("secret.toml", "instruction = 'not offered'");
    let server = setup.arguments(&["--tasks", "tasks"]).start();
    let listed = server.get("/api/v1/tasks").expect(200).json();
    let path = sort.canonicalize().unwrap();
    assert_eq!(listed["tasks"][0], json!({"name": "sort.toml", "path": path}));
    assert_eq!(listed["tasks"].as_array().unwrap().len(), 2);
    let task = server.get("/api/v1/tasks/sort.toml").expect(200).json();
    assert_eq!(
        (&task["task"]["id"], &task["task"]["verify_files"]["check.py"]),
        (&json!("sort"), &json!("print(1)"))
    );
    let wrong = server.get("/api/v1/tasks/wrong.toml").expect(422).json();
    assert_eq!(wrong["error"]["details"][0]["path"], "verfy");
    for name in ["check.py", "none.toml", "..%2Fsecret.toml"] {
        server
            .get(&format!("/api/v1/tasks/{name}"))
            .expect_error(404, "unknown_task");
    }
    // What is read is what is there now.
    server
        .place()
        .write("tasks/late.json", r#"{"instruction": "Late."}"#);
    server.get("/api/v1/tasks/late.json").expect(200);

    let refused = Setup::new().arguments(&["--tasks", "nowhere"]).refused();
    assert!(
        refused
            .err
            .contains("folder of tasks `nowhere` could not be read"),
        "{}",
        refused.err
    );
}

#[test]
fn what_doctor_finds_is_told() {
    let server = Server::plain();
    let found = server.get("/api/v1/doctor").expect(200).json();
    let names = |list: &Value| {
        let entries = list.as_array().unwrap().iter();
        entries
            .map(|one| one["name"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    assert!(names(&found["checks"]).contains(&"bwrap".to_owned()));
    assert!(names(&found["sandboxes"]).contains(&"local".to_owned()));
    assert!(names(&found["agents"]).contains(&"opencode".to_owned()));
}
