use super::server::{Server, Setup, failing, hanging, quick, with};
use crate::endings::runs_below;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

/// The scripted agent, which does nothing for ever.
fn idle_agent() -> Value {
    let task = json!({"instruction": "x", "env": {"SCRIPTED_AGENT_MISBEHAVE": "hang"}});
    json!({"task": task, "endpoint": "demo"})
}

/// Nothing of a rollout is left: no sandbox, no lease but of rollouts that run, no process.
#[track_caller]
fn nothing_left(server: &mut Server) {
    assert_eq!(server.left_in("homes").len(), 0);
    server.end(Signal::SIGTERM).expect(0);
    assert_eq!(server.left_in("leases").len(), 0);
    assert!(!runs_below(server.place()));
}

fn list(server: &Server, state: &str) -> Vec<Value> {
    let listed = server
        .get(&format!("/api/v1/rollouts?state={state}"))
        .expect(200)
        .json();
    listed["rollouts"].as_array().unwrap().clone()
}

#[test]
fn what_waits_goes_on_after_a_kill_9_and_what_ran_is_marked() {
    let mut server = Setup::new().arguments(&["--concurrency", "1"]).start();
    let running = server.submit_one(&hanging());
    server.until(&running, "command_started");
    let keyed = |server: &Server| {
        let request = server
            .request("POST", "/api/v1/rollouts")
            .header("idempotency-key", "k");
        request
            .json(&with(failing(), json!({"n": 2})))
            .send()
            .expect(202)
            .json()
    };
    let waiting = keyed(&server);
    server.end(Signal::SIGKILL);
    let listed = server
        .place()
        .run(&["list", "--state", "queued", "--json"])
        .expect(0)
        .out;
    assert_eq!(listed.lines().count(), 2);

    server.start_again();
    for rollout in waiting["rollouts"].as_array().unwrap() {
        let id = rollout["id"].as_str().unwrap();
        let ended = server.ended(id);
        assert_eq!(ended["ended"], "setup_error");
        for key in ["group", "sample"] {
            assert_eq!(ended[key], rollout[key]);
        }
        assert_eq!(server.events(id).next().unwrap().event, "queued");
    }
    let again = keyed(&server);
    assert_eq!(
        again["rollouts"][0]["id"], waiting["rollouts"][0]["id"],
        "its key is remembered"
    );
    let marked = server.rollout(&running);
    assert_eq!(
        (&marked["state"], &marked["outcome"]),
        (&json!("interrupted"), &Value::Null)
    );
    assert_eq!(marked["start"]["task"]["instruction"], "x");
    assert_eq!(server.cancel(&running).expect(200).json()["state"], "interrupted");
    // Its stream ends, with whatever is known of it.
    server.events(&running).for_each(drop);
    assert_eq!(list(&server, "queued,running").len(), 0);
    nothing_left(&mut server);
}

#[test]
fn what_ran_is_run_again_where_it_asks_for_that_but_not_for_ever() {
    let mut server = Server::plain();
    let id = server.submit_one(&with(hanging(), json!({"on_interrupt": "rerun"})));
    let first = server.rollout(&id);
    for kill in 0..4 {
        let read = server.until(&id, "command_started");
        assert_eq!(
            (&*read[0].id, &*read[0].event),
            ("0", "queued"),
            "its events begin anew"
        );
        server.end(Signal::SIGKILL);
        server.start_again();
        let again = server.rollout(&id);
        if kill < 3 {
            let state = again["state"].as_str().unwrap();
            assert!(
                ["queued", "running"].contains(&state),
                "whoever looks takes {state} for over"
            );
        }
        for key in ["id", "group", "sample", "title", "endpoint", "created_unix_ms"] {
            assert_eq!(again[key], first[key], "{key} after {kill}");
        }
    }
    assert_eq!(
        server.rollout(&id)["state"],
        "interrupted",
        "it may be what brings servers down"
    );
    assert_eq!(list(&server, "queued,running,finished").len(), 0);

    let once = server.submit_one(&with(hanging(), json!({"on_interrupt": "rerun"})));
    server.until(&once, "command_started");
    server.end(Signal::SIGKILL);
    server.start_again();
    server.until(&once, "command_started");
    server.cancel(&once).expect(202);
    assert_eq!(server.ended(&once)["ended"], "cancelled");
    // It is over, and not run once more.
    server.end(Signal::SIGKILL);
    server.start_again();
    assert_eq!(server.rollout(&once)["ended"], "cancelled");
    assert_eq!(list(&server, "queued,running").len(), 0);
    nothing_left(&mut server);
}

#[test]
fn a_kill_9_at_any_stage_leaves_nothing() {
    let mut server = Setup::new().scripted_agent().start();
    let mut ids = Vec::new();
    for (spec, event) in [
        (hanging(), "queued"),
        (hanging(), "stage_started boot"),
        (hanging(), "command_started"),
        (idle_agent(), "stage_started agent"),
        (with(quick(), json!({"hold": true})), "held"),
    ] {
        let id = server.submit_one(&spec);
        server.until(&id, event);
        server.end(Signal::SIGKILL);
        server.start_again();
        ids.push(id);
    }
    // One that had not begun may have gone on.
    server.cancel(&ids[0]);
    for (number, id) in ids.iter().enumerate() {
        let state = server.eventually("its end", || {
            let state = server.rollout(id)["state"].clone();
            ["interrupted", "finished"]
                .iter()
                .any(|over| state == *over)
                .then_some(state)
        });
        assert!(state == "interrupted" || number < 2, "{number} is {state}");
    }
    let next = server.submit_one(&failing());
    assert_eq!(server.ended(&next)["ended"], "setup_error");
    nothing_left(&mut server);
}

#[test]
fn a_server_that_is_stopped_leaves_what_waits_to_the_next_one() {
    let mut server = Setup::new()
        .arguments(&["--concurrency", "1", "--grace", "0.1"])
        .start();
    let running = server.submit_one(&hanging());
    server.until(&running, "command_started");
    let waiting = server.submit(&with(failing(), json!({"n": 2})));
    let mut follows = server.events(&waiting[0]);
    server.end(Signal::SIGTERM).expect(0);
    assert_eq!(
        follows.by_ref().last().unwrap().event,
        "queued",
        "not told as finished"
    );
    assert_eq!(server.left_in("homes").len(), 0);
    assert_eq!(server.left_in("leases").len(), 0);
    server.start_again();
    assert_eq!(server.rollout(&running)["ended"], "cancelled");
    for id in &waiting {
        assert_eq!(server.ended(id)["ended"], "setup_error");
    }
    nothing_left(&mut server);
}

#[test]
fn a_second_server_on_the_same_data_leaves_the_first_ones_alone() {
    let server = Setup::new().arguments(&["--concurrency", "1"]).start();
    let running = server.submit_one(&hanging());
    server.until(&running, "command_started");
    let waiting = server.submit_one(&failing());
    let other = server.beside();
    assert_eq!(list(&other, "queued").len(), 1);
    assert_eq!(list(&other, "running").len(), 1);
    for id in [&running, &waiting] {
        other.cancel(id).expect_error(422, "invalid_request");
    }
    let own = other.submit_one(&failing());
    assert_eq!(other.ended(&own)["ended"], "setup_error");
    server.cancel(&running).expect(202);
    server.ended(&waiting);
    assert_eq!(other.rollout(&waiting)["ended"], "setup_error");
}
