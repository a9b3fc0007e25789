use super::client::Reply;
use super::server::{Server, Setup, failing, hanging, quick, with};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use std::collections::HashMap;

fn target(id: &str, rest: &str) -> String {
    format!("/api/v1/rollouts/{id}/{rest}")
}

/// A server with a rollout that is held.
pub fn held(more: Value) -> (Server, String) {
    let server = Setup::new().scripted_agent().start();
    let id = server.submit_one(&with(with(quick(), json!({"hold": true})), more));
    server.until(&id, "held");
    (server, id)
}

pub fn exec(server: &Server, id: &str, body: Value) -> Reply {
    server.post(&target(id, "exec"), &body)
}

fn put(server: &Server, id: &str, path: &str, content: &[u8]) -> Reply {
    let request = server.request("PUT", &target(id, &format!("files/{path}")));
    request.body("application/octet-stream", content).send()
}

pub fn finish(server: &Server, id: &str, body: Value) -> Reply {
    server.post(&target(id, "finish"), &body)
}

#[test]
fn a_held_sandbox_runs_commands_keeps_files_and_takes_the_callers_verdict() {
    let (server, id) = held(json!({}));
    let until = || {
        let rollout = server.rollout(&id);
        assert_eq!(rollout["state"], "running");
        rollout["held_until_unix_ms"].as_u64().unwrap()
    };
    let deadline = until();
    assert_eq!(server.get("/api/v1/queue").expect(200).json()["held"], 1);

    let ran = exec(
        &server,
        &id,
        json!({"command": "cat binary_search.py | wc -l; echo $A >&2; pwd; exit 3", "env": {"A": "b"}}),
    );
    let ran = ran.expect(200).json();
    assert_eq!(
        (&ran["exit_code"], &ran["stderr"], &ran["timed_out"]),
        (&json!(3), &json!("b\n"), &json!(false))
    );
    assert!(ran["stdout"].as_str().unwrap().ends_with("/workdir\n"), "{ran}");
    assert!(until() > deadline, "each request moves the deadline");
    let slow = exec(&server, &id, json!({"command": "sleep 60", "timeout_s": 0.2}))
        .expect(200)
        .json();
    assert_eq!(slow["timed_out"], true);
    let elsewhere = exec(&server, &id, json!({"command": "pwd", "cwd": "/"}))
        .expect(200)
        .json();
    assert_eq!(elsewhere["stdout"], "/\n");

    let bytes: Vec<u8> = (0..=255).collect();
    put(&server, &id, "made/for/it.bin", &bytes).expect(204);
    assert_eq!(
        server.get(&target(&id, "files/made/for/it.bin")).expect(200).body,
        bytes
    );
    put(&server, &id, "made/for/it.bin", b"").expect(204);
    assert_eq!(
        server.get(&target(&id, "files/made/for/it.bin")).expect(200).body,
        b""
    );
    put(&server, &id, "%2Ftmp%2Fabsolute", b"x").expect(204);
    let read = server.get(&target(&id, "files/binary_search.py")).expect(200);
    assert_eq!(read.header("x-content-type-options"), Some("nosniff"));
    assert!(read.text().contains("def "));
    for away in ["..%2F..%2Fx", "../x", "a/../../x", "%00"] {
        put(&server, &id, away, b"x").expect_error(422, "invalid_request");
        server
            .get(&target(&id, &format!("files/{away}")))
            .expect_error(422, "invalid_request");
    }
    server
        .get(&target(&id, "files/none"))
        .expect_error(404, "unknown_file");
    put(&server, &id, "large", &vec![0; 100_000_000]).expect_error(413, "too_large");

    for (body, place) in [
        (json!({}), ""),
        (json!({"command": 7}), "command"),
        (json!({"command": "true", "comand": "x"}), "comand"),
        (json!({"command": "true", "timeout_s": 0}), "timeout_s"),
        (json!({"command": "true", "timeout_s": -1}), "timeout_s"),
        (json!({"command": "true", "timeout_s": 1e9}), "timeout_s"),
        (json!({"command": "true", "env": {"A": 1}}), "env.A"),
        (json!({"command": "a\u{0}b"}), "command"),
        (json!({"command": "true", "cwd": "a\u{0}b"}), "cwd"),
        (json!({"command": "true", "env": {"A": "\u{0}"}}), "env.A"),
        (json!({"command": "true", "env": {"A=B": ""}}), "env"),
        (json!({"command": "true", "env": {"": ""}}), "env"),
        (json!([]), ""),
    ] {
        let error = exec(&server, &id, body.clone()).expect_error(422, "invalid_request");
        assert_eq!(error["details"][0]["path"], place, "{body} {error}");
    }

    for reward in [json!(1.5), json!(-0.1), json!("1"), json!(true)] {
        let error = finish(&server, &id, json!({"reward": reward})).expect_error(422, "invalid_request");
        assert_eq!(error["details"][0]["path"], "reward", "{error}");
    }
    let large = json!({"reward": 1, "detail": {"log": "x".repeat(70_000)}});
    let error = finish(&server, &id, large).expect_error(422, "invalid_request");
    assert_eq!(error["details"][0]["path"], "detail", "{error}");
    assert_eq!(
        server.rollout(&id)["state"],
        "running",
        "what is wrong leaves it held"
    );

    finish(&server, &id, json!({"reward": 0.25, "detail": {"passed": 1}})).expect(202);
    let again = finish(&server, &id, json!({"reward": 1.0}));
    again.expect_error(409, "not_held");
    let ended = server.ended(&id);
    assert_eq!(
        (&ended["ended"], &ended["reward"]),
        (&json!("completed"), &json!(0.25))
    );
    let reward = &ended["outcome"]["reward"];
    assert_eq!(
        (&reward["source"], &reward["detail"]),
        (&json!("caller"), &json!({"passed": 1}))
    );
    assert_eq!(ended["held_until_unix_ms"], Value::Null);
    finish(&server, &id, json!({"reward": 1.0})).expect_error(409, "not_held");
    exec(&server, &id, json!({"command": "true"})).expect_error(409, "not_held");
    put(&server, &id, "x", b"").expect_error(409, "not_held");
    let released = server.events(&id).find(|sent| sent.event == "released").unwrap();
    assert_eq!(released.data["event"]["by"], "caller");
    assert_eq!(server.left_in("homes").len(), 0);
}

#[test]
fn a_path_that_cannot_be_read_or_written_is_the_callers_matter() {
    let (server, id) = held(json!({}));
    let ran = exec(
        &server,
        &id,
        json!({"command": "mkdir folder && mkfifo pipe && ln -s binary_search.py link && ln -s nowhere dangling \
            && ln -s loop loop && truncate -s 67108865 huge && truncate -s 67108864 large && echo x > secret && chmod 0 secret"}),
    );
    assert_eq!(ran.expect(200).json()["exit_code"], 0);
    let read = |path: &str| server.get(&target(&id, &format!("files/{path}")));
    for absent in ["none", "none/at/all", "binary_search.py/below"] {
        read(absent).expect_error(404, "unknown_file");
    }
    let long = "a".repeat(300);
    for (path, said) in [
        ("folder", "is a directory, not a regular file"),
        (".", "is a directory, not a regular file"),
        ("%2F", "is a directory, not a regular file"),
        ("pipe", "is a named pipe, not a regular file"),
        ("link", "is a symbolic link, not a regular file"),
        ("loop", "is a symbolic link, not a regular file"),
        ("%2Fdev%2Fnull", "is a device, not a regular file"),
        ("huge", "has 67108865 bytes, over the limit of 67108864"),
        (long.as_str(), "file name too long"),
    ] {
        let error = read(path).expect_error(422, "invalid_request");
        assert_eq!(error["details"][0]["path"], "path", "{path}: {error}");
        assert!(
            error["message"].as_str().unwrap().contains(said),
            "{path}: {error}"
        );
    }
    assert!(
        read("huge").json()["error"]["hint"]
            .as_str()
            .unwrap()
            .contains("exec")
    );
    assert_eq!(
        read("large").expect(200).body.len(),
        64 << 20,
        "as much as can be written"
    );
    // Verify and the caller are one user: a file that nobody may read is theirs to open up.
    assert!([200, 422].contains(&read("secret").status));
    for path in [
        "folder",
        ".",
        "%2F",
        "binary_search.py/below",
        "%2Fusr%2Fx",
        "%2Fproc%2Fx",
        long.as_str(),
    ] {
        let refused = put(&server, &id, path, b"x");
        assert!([404, 422].contains(&refused.status), "{path}: {}", refused.text());
    }
    // A link is replaced, and never written through.
    put(&server, &id, "link", b"new").expect(204);
    assert_eq!(read("link").expect(200).body, b"new");
    assert!(read("binary_search.py").text().contains("def "));
    // A working directory is made where it is missing; one that cannot be is a command that could not be run.
    let at = |cwd: &str| {
        exec(&server, &id, json!({"command": "pwd", "cwd": cwd}))
            .expect(200)
            .json()
    };
    assert_eq!(at("folder")["exit_code"], 0);
    assert_eq!(at("made/now")["exit_code"], 0);
    for cwd in [
        "binary_search.py",
        "binary_search.py/x",
        "/proc/none",
        long.as_str(),
    ] {
        let ran = at(cwd);
        assert_eq!(
            (&ran["exit_code"], &ran["stdout"]),
            (&json!(-1), &json!("")),
            "{cwd}: {ran}"
        );
        assert!(!ran["stderr"].as_str().unwrap().is_empty());
    }
    assert_eq!(server.rollout(&id)["state"], "running");
    finish(&server, &id, json!({"reward": 1})).expect(202);
    server.ended(&id);
}

#[test]
fn what_programs_wrote_is_there_while_their_rollout_is_held() {
    let task =
        json!({"instruction": "Write binary_search.py.", "setup": ["echo ready"], "verify": ["echo seen"]});
    let server = Setup::new().scripted_agent().start();
    let id = server.submit_one(&json!({"task": task, "endpoint": "demo", "hold": true}));
    server.until(&id, "held");
    let logs = || server.get(&target(&id, "logs")).expect(200).json();
    let held = logs();
    assert!(
        held["agent"].as_str().is_some_and(|text| !text.is_empty()),
        "{held}"
    );
    assert_eq!(held["setup"][0]["stdout"], "ready\n");
    assert_eq!(held["verify"][0]["stdout"], "seen\n");
    exec(&server, &id, json!({"command": "echo mine"})).expect(200);
    finish(&server, &id, json!({"reward": 1})).expect(202);
    let ended = server.ended(&id);
    let over = logs();
    assert_eq!(over["agent"], held["agent"]);
    assert_eq!(over["agent"], ended["outcome"]["agent"]["log_tail"]);
    assert_eq!(over["setup"], held["setup"]);
    assert_eq!(over["verify"][0], held["verify"][0]);
    assert_eq!(over["verify"][1]["stdout"], "mine\n");
}

/// Kills every process below the server, as a machine short of memory would: its sandboxes.
fn kill_sandboxes(server: &Server) {
    let mut parents = HashMap::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let stat = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        // The name in the midst may hold anything; behind it come the state and the parent.
        let rest = stat.rsplit(") ").next().unwrap_or_default();
        let parent = rest
            .split(' ')
            .nth(1)
            .and_then(|parent| parent.parse::<i32>().ok());
        let own = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse::<i32>().ok());
        if let (Some(own), Some(parent)) = (own, parent) {
            parents.insert(own, parent);
        }
    }
    let server = i32::try_from(server.pid()).unwrap();
    let is_below = |process: i32| {
        let mut above = std::iter::successors(parents.get(&process), |parent| parents.get(*parent));
        above.any(|parent| *parent == server)
    };
    let below: Vec<i32> = parents
        .keys()
        .copied()
        .filter(|process| is_below(*process))
        .collect();
    assert!(!below.is_empty());
    // All are stopped first, so that none is left to tell of another's end. Each may have gone with another one.
    for signal in [Signal::SIGSTOP, Signal::SIGKILL] {
        for process in &below {
            _ = kill(Pid::from_raw(*process), signal);
        }
    }
}

#[test]
fn a_sandbox_that_died_by_itself_is_said_to_be_gone_and_its_rollout_can_be_finished() {
    let (server, id) = held(json!({}));
    kill_sandboxes(&server);
    for _ in 0..2 {
        exec(&server, &id, json!({"command": "true"})).expect_error(502, "sandbox_failed");
        put(&server, &id, "x", b"x").expect_error(502, "sandbox_failed");
        server
            .get(&target(&id, "files/binary_search.py"))
            .expect_error(502, "sandbox_failed");
    }
    assert_eq!(
        server.rollout(&id)["state"],
        "running",
        "it is the caller's to end"
    );
    finish(&server, &id, json!({"reward": 0.5})).expect(202);
    let ended = server.ended(&id);
    assert_eq!(
        (&ended["ended"], &ended["reward"]),
        (&json!("completed"), &json!(0.5))
    );
    assert_eq!(server.left_in("homes").len(), 0);

    // In the midst of a command.
    let id = server.submit_one(&with(quick(), json!({"hold": true})));
    server.until(&id, "held");
    std::thread::scope(|scope| {
        let command = scope.spawn(|| exec(&server, &id, json!({"command": "sleep 600"})));
        server
            .events(&id)
            .until(|sent| sent.event == "command_started" && sent.data["event"]["command"] == "sleep 600");
        kill_sandboxes(&server);
        command.join().unwrap().expect_error(502, "sandbox_failed");
    });
    finish(&server, &id, json!({"reward": null})).expect(202);
    let ended = server.ended(&id);
    assert_eq!(
        (&ended["ended"], &ended["reward"]),
        (&json!("completed"), &json!(1.0)),
        "what verify said stands"
    );
    assert_eq!(server.left_in("homes").len(), 0);
}

#[test]
fn without_a_verdict_of_the_caller_that_of_verify_stands() {
    let (server, id) = held(json!({}));
    finish(&server, &id, json!({"reward": null})).expect(202);
    let ended = server.ended(&id);
    assert_eq!(
        (&ended["ended"], &ended["reward"]),
        (&json!("completed"), &json!(1.0))
    );
    assert_eq!(ended["outcome"]["reward"]["source"], "verify");

    let task = json!({"instruction": "Write binary_search.py."});
    let id = server.submit_one(&json!({"task": task, "endpoint": "demo", "hold": true}));
    server.until(&id, "held");
    finish(&server, &id, json!({"reward": null})).expect(202);
    let ended = server.ended(&id);
    assert_eq!(
        (&ended["ended"], &ended["reward"]),
        (&json!("completed"), &Value::Null)
    );
}

#[test]
fn a_hold_ends_at_its_deadline_with_what_verify_said() {
    let (server, id) = held(json!({"hold_timeout_s": 1}));
    let ended = server.ended(&id);
    assert_eq!(
        (&ended["ended"], &ended["reward"]),
        (&json!("completed"), &json!(1.0))
    );
    assert_eq!(ended["outcome"]["reward"]["source"], "verify");
    assert_eq!(ended["outcome"]["fault"], Value::Null);
    let released = server.events(&id).find(|sent| sent.event == "released").unwrap();
    assert_eq!(released.data["event"]["by"], "deadline");
}

#[test]
fn a_rollout_that_is_held_can_be_cancelled_also_under_a_command() {
    let (server, id) = held(json!({}));
    std::thread::scope(|scope| {
        let command = scope.spawn(|| exec(&server, &id, json!({"command": "sleep 600"})));
        server.until(&id, "held");
        server
            .events(&id)
            .until(|sent| sent.event == "command_started" && sent.data["event"]["command"] == "sleep 600");
        server.cancel(&id).expect(202);
        let status = command.join().unwrap().status;
        assert!([409, 502].contains(&status), "{status}");
    });
    assert_eq!(server.ended(&id)["ended"], "cancelled");
    let released = server.events(&id).find(|sent| sent.event == "released").unwrap();
    assert_eq!(released.data["event"]["by"], "cancel");
    assert_eq!(server.left_in("homes").len(), 0);
}

#[test]
fn what_is_not_held_says_so() {
    let server = Setup::new().arguments(&["--concurrency", "1"]).start();
    let running = server.submit_one(&hanging());
    server.until(&running, "command_started");
    let waiting = server.submit_one(&with(failing(), json!({"hold": true})));
    for id in [&running, &waiting] {
        exec(&server, id, json!({"command": "true"})).expect_error(409, "not_held");
        finish(&server, id, json!({"reward": 1})).expect_error(409, "not_held");
        put(&server, id, "x", b"").expect_error(409, "not_held");
        server.get(&target(id, "files/x")).expect_error(409, "not_held");
    }
    server.cancel(&running).expect(202);
    // A setup that fails leaves nothing to verify.
    let ended = server.ended(&waiting);
    assert_eq!(ended["ended"], "setup_error");
    assert!(!server.events(&waiting).any(|sent| sent.event == "held"));
    exec(&server, &waiting, json!({"command": "true"})).expect_error(409, "not_held");
}
