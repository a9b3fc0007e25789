use super::server::{Server, Setup, failing, quick};
use crate::endings::runs_below;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

/// The value of a metric of `local`; 0 where it is not told yet.
fn metric(server: &Server, name: &str) -> u64 {
    let text = server.get("/metrics").expect(200).text();
    let start = format!("dressage_warm_{name}{{backend=\"local\"}} ");
    let found = text.lines().find_map(|line| line.strip_prefix(&start));
    found.map_or(0, |value| value.parse().unwrap())
}

fn until_ready(server: &Server, count: u64) {
    server.eventually("a full pool", || {
        (metric(server, "sandboxes") == count).then_some(())
    });
}

fn boot(rollout: &Value) -> &Value {
    &rollout["outcome"]["stages"][0]
}

#[test]
fn rollouts_take_what_is_ready_and_nothing_of_it_outlives_the_server() {
    let mut server = Setup::new()
        .scripted_agent()
        .variable("DRESSAGE_WARM", "local=9")
        .arguments(&["--warm", "local=3", "--concurrency", "2"])
        .start();
    let first = server.ended(&server.submit_one(&quick()));
    assert_eq!(boot(&first).get("warm"), None);
    until_ready(&server, 3);
    let second = server.ended(&server.submit_one(&quick()));
    assert_eq!(
        (&boot(&second)["stage"], &boot(&second)["warm"]),
        (&json!("boot"), &json!(true))
    );
    assert_eq!(
        second["outcome"]["reward"]["value"],
        first["outcome"]["reward"]["value"]
    );
    assert_ne!(second["outcome"]["sandbox"], first["outcome"]["sandbox"]);
    // Another spec: another agent's environment is set for the whole sandbox.
    let other =
        json!({"task": {"instruction": "x", "setup": ["false"], "env": {"A": "1"}}, "endpoint": "demo"});
    let other = server.ended(&server.submit_one(&other));
    assert_eq!(boot(&other).get("warm"), None);
    assert_eq!(
        (metric(&server, "hits_total"), metric(&server, "misses_total")),
        (1, 2)
    );
    until_ready(&server, 3);

    server.end(Signal::SIGKILL);
    server.start_again();
    assert_eq!(server.left_in("homes").len(), 0, "what was ready is swept");
    server.ended(&server.submit_one(&failing()));
    until_ready(&server, 3);
    assert_eq!(server.left_in("homes").len(), 3);
    server.end(Signal::SIGTERM).expect(0);
    for folder in ["homes", "leases"] {
        assert_eq!(server.left_in(folder).len(), 0, "{folder}");
    }
    assert!(!runs_below(server.place()));
}

#[test]
fn what_makes_no_pool_is_refused_with_its_name() {
    for (setup, complaint) in [
        (Setup::new().arguments(&["--warm", "lokal=3"]), "lokal"),
        (Setup::new().arguments(&["--warm", "local"]), "NAME=COUNT"),
        (
            Setup::new().variable("DRESSAGE_WARM", "local=many"),
            "`many` is not a count",
        ),
        (
            Setup::new().variable("DRESSAGE_WARM_MAX_AGE", "soon"),
            "`soon` of DRESSAGE_WARM_MAX_AGE",
        ),
        (Setup::new().arguments(&["--warm-max-age", "0"]), "is no time"),
    ] {
        let refused = setup.refused();
        assert!(refused.err.contains(complaint), "{}", refused.err);
    }
}
