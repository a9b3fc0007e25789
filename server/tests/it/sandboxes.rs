use crate::fake::{Does, E2B_KEY, Fake, HF_TOKEN};
use crate::support::{Place, Ran, Running};
use nix::sys::signal::Signal;
use serde_json::Value;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

fn listed(place: &Place, more: &[&str]) -> Vec<Value> {
    let ran = place
        .run(&[&["sandboxes", "list", "--json"], more].concat())
        .expect(0);
    ran.out
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// Rollouts that stay in their setup stage, with a sandbox each.
fn hanging(place: &Place, count: usize) -> Running {
    let count_text = count.to_string();
    let arguments = [
        "run",
        "x",
        "--endpoint",
        "demo",
        "--setup",
        "sleep 600",
        "--setup-timeout",
        "500",
        "-n",
        &count_text,
    ];
    let mut running = place.start("hanging", &arguments);
    running.until("setup", || {
        let asleep = std::fs::read_dir(place.data().join("leases"))
            .is_ok_and(|leases| leases.flatten().count() == count);
        asleep && listed(place, &[]).len() == count
    });
    running
}

#[test]
fn where_nothing_was_run_nothing_is_listed_and_nothing_is_made() {
    let place = Place::new();
    let ran = place.run(&["sandboxes", "list"]).expect(0);
    assert_eq!(ran.out, "");
    assert!(ran.err.contains("no such sandboxes in"), "{}", ran.err);
    assert_eq!(listed(&place, &[]), Vec::<Value>::new());
    let ran = place.run(&["sandboxes", "kill", "--all-dead"]).expect(0);
    assert!(ran.err.contains("no such sandboxes in"), "{}", ran.err);
    assert!(!place.data().exists());
}

#[test]
fn what_runs_is_listed_and_refused_and_what_is_left_is_ended() {
    let place = Place::new();
    let running = hanging(&place, 3);
    let all = listed(&place, &[]);
    for told in &all {
        assert_eq!(
            (told["backend"].as_str(), told["owner_alive"].as_bool()),
            (Some("local"), Some(true))
        );
        assert!(
            told["rollout"].is_string() && told["created_unix_ms"].is_u64(),
            "{told}"
        );
        assert_eq!(told["labels"]["dressage.rollout"], told["rollout"]);
    }
    let (one, owner) = (
        all[0]["sandbox"].as_str().unwrap(),
        all[0]["owner"].as_str().unwrap(),
    );
    let ran = place.run(&["sandboxes", "kill", one]).expect(2);
    assert!(
        ran.err
            .contains(&format!("sandbox {one} belongs to the running process {owner}")),
        "{}",
        ran.err
    );
    assert!(
        ran.err
            .contains(&format!("cancel rollout {}", all[0]["rollout"].as_str().unwrap())),
        "{}",
        ran.err
    );
    assert_eq!(listed(&place, &["--dead"]).len(), 0);
    let ran = place.run(&["sandboxes", "kill", "--all-dead"]).expect(0);
    assert!(ran.err.contains("no such sandboxes"), "{}", ran.err);

    running.signal(Signal::SIGKILL);
    running.wait();
    // What it was just starting has its lock for a moment longer.
    let begun = Instant::now();
    while listed(&place, &["--dead"]).len() < 3 {
        assert!(begun.elapsed() < Duration::from_secs(60), "it counts as alive");
    }
    let ran = place.run(&["sandboxes", "list"]).expect(0);
    assert_eq!(ran.out.matches("dead").count(), 3, "{}", ran.out);
    assert!(ran.err.contains("3 left by dead processes"), "{}", ran.err);
    for (filter, count) in [
        (["--backend", "local"], 3),
        (["--backend", "e2b"], 0),
        (["--owner", owner], 3),
        (
            [
                "--label",
                &format!("dressage.rollout={}", all[1]["rollout"].as_str().unwrap()),
            ],
            1,
        ),
        (["--label", "dressage.rollout=none"], 0),
    ] {
        assert_eq!(listed(&place, &filter).len(), count, "{filter:?}");
    }
    let ran = place.run(&["sandboxes", "kill", &one.to_uppercase()]).expect(0);
    assert_eq!(ran.out, format!("{one} is ended\n"));
    assert_eq!(listed(&place, &[]).len(), 2);
    let ran = place.run(&["sandboxes", "kill", one]).expect(2);
    assert!(
        ran.err.contains("no sandbox of this data directory is called"),
        "{}",
        ran.err
    );
    let ran = place
        .run(&["sandboxes", "kill", "--all-dead", "--backend", "local", "--json"])
        .expect(0);
    let ended: Vec<Value> = ran
        .out
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert!(
        ended.len() == 2 && ended.iter().all(|told| told["killed"] == true),
        "{}",
        ran.out
    );
    assert_eq!(listed(&place, &[]).len(), 0);
    assert_eq!(std::fs::read_dir(place.data().join("homes")).unwrap().count(), 0);
}

#[test]
fn odd_ids_and_options_are_named() {
    let place = Place::new();
    for (arguments, told) in [
        (vec!["kill"], "<ID>"),
        (vec!["kill", ""], "an id is empty"),
        (
            vec!["kill", "../../etc"],
            "no sandbox of this data directory is called `../../etc`",
        ),
        (vec!["kill", "\u{1b}[31m"], "is called `\\u{1b}[31m`"),
        (vec!["kill", "x", "--all-dead"], "--all-dead"),
        (vec!["kill", "x", "--backend", "local"], "--backend"),
        (vec!["list", "--owner", "nobody"], "--owner"),
        (vec!["list", "--label", "x"], "NAME=VALUE"),
    ] {
        let ran = place
            .run(&[&["sandboxes"], arguments.as_slice()].concat())
            .expect(2);
        assert!(ran.err.contains(told), "{arguments:?}: {}", ran.err);
        assert_eq!(ran.out, "");
    }
}

#[test]
fn a_lease_that_cannot_be_read_hides_no_other_and_a_backend_that_cannot_be_had_is_named() {
    let place = Place::new();
    let leases = place.data().join("leases");
    std::fs::create_dir_all(&leases).unwrap();
    let (id, other) = (
        "01980000-0000-7000-8000-000000000001",
        "01980000-0000-7000-8000-000000000002",
    );
    let lease = format!(
        r#"{{"installation": "{id}", "owner": "{id}", "sandbox": "{id}", "backend": "e2b", "labels": {{}}, "home": null, "uid": null,
            "cgroups": [], "processes": [], "remote": {{"place": "https://api.e2b.app", "provider_id": "i1", "asked_at_ms": 1}}}}"#
    );
    std::fs::write(leases.join(format!("{id}.json")), lease).unwrap();
    std::fs::write(leases.join(format!("{other}.json")), "{").unwrap();
    let ran = place.run(&["sandboxes", "list", "--json"]).expect(0);
    let told: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(
        (told["provider_id"].as_str(), told["place"].as_str()),
        (Some("i1"), Some("https://api.e2b.app"))
    );
    assert!(
        ran.err.contains(other) && ran.err.contains("malformed"),
        "{}",
        ran.err
    );
    // No key is in the environment.
    let ran = place.run(&["sandboxes", "kill", id]).expect(3);
    assert!(
        ran.err.contains(&format!("sandbox {id} was not ended")) && ran.err.contains("E2B_API_KEY"),
        "{}",
        ran.err
    );
    assert_eq!(listed(&place, &[]).len(), 1, "the lease stays");
}

fn with_providers(command: &mut Command, fake: &Fake) {
    command
        .env("E2B_API_KEY", E2B_KEY)
        .env("E2B_API_URL", &fake.url)
        .env("E2B_SANDBOX_URL", &fake.url)
        .env("HF_TOKEN", HF_TOKEN)
        .env("HF_ENDPOINT", &fake.url);
}

/// A rollout at a provider that is played, with everything logged that can be.
fn told_in_full(place: &Place, fake: &Fake, backend: &str) -> Ran {
    let cache = place.scripted_agent();
    let mut command = place.command(&[
        "run",
        "x",
        "--verify",
        "true",
        "--endpoint",
        "demo",
        "--sandbox",
        backend,
    ]);
    command
        .args([
            "--network",
            if backend == "e2b" { "none" } else { "open" },
            "--json",
        ])
        .env("DRESSAGE_CACHE_DIR", cache)
        .env("DRESSAGE_LOG", "trace");
    with_providers(&mut command, fake);
    Ran::of(command.output().unwrap())
}

#[test]
fn the_key_of_a_provider_is_in_no_output_and_in_no_file() {
    for (backend, key, create) in [
        ("e2b", E2B_KEY, "POST /v2/sandboxes"),
        ("huggingface", HF_TOKEN, "POST /api/jobs/me"),
    ] {
        for refusal in [
            None,
            Some(r#"{"message":"refused: e2b_0123456789","error":"refused: hf_0123456789"}"#),
            Some("refused: e2b_0123456789 hf_0123456789"),
            Some("<html><body>refused: e2b_0123456789 hf_0123456789</body></html>"),
        ] {
            let (place, fake) = (Place::new(), Fake::start());
            if let Some(body) = refusal {
                fake.fault(create, 9, Does::Refuse(401, body));
            }
            let ran = told_in_full(&place, &fake, backend);
            assert_eq!(ran.code == Some(0), refusal.is_none(), "{backend}: {}", ran.err);
            assert!(!ran.out.contains(key), "{backend}: {}", ran.out);
            let line = ran.err.lines().find(|line| line.contains(key));
            assert_eq!(line, None, "{backend}");
            let grep = Command::new("grep")
                .args(["-rlaF", key])
                .arg(place.folder.path())
                .output()
                .unwrap();
            assert_eq!(String::from_utf8(grep.stdout).unwrap(), "", "{backend}");
            assert_eq!(fake.living(), 0);
        }
    }
}

#[test]
fn a_snapshot_at_a_provider_is_listed_and_ended() {
    let (place, fake) = (Place::new(), Fake::start());
    let cache = place.scripted_agent();
    let setup = ["--setup", "echo kept > file", "--snapshot", "after_setup"];
    let run = [
        "run",
        "x",
        "--sandbox",
        "e2b",
        "--endpoint",
        "demo",
        "--verify",
        "sleep 600",
    ];
    let mut running = place.command(&[&run[..], &setup].concat());
    with_providers(&mut running, &fake);
    let mut running = running
        .env("DRESSAGE_CACHE_DIR", cache)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let begun = Instant::now();
    let named = |told: &Value| told["provider_id"].is_string();
    while fake.snapshots() == 0 || !listed(&place, &[]).iter().all(named) {
        assert!(begun.elapsed() < Duration::from_secs(60), "nothing was kept");
        std::thread::sleep(Duration::from_millis(50));
    }
    running.kill().unwrap();
    running.wait().unwrap();
    let told = listed(&place, &["--dead"]);
    let kinds: Vec<_> = told.iter().map(|told| told["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["sandbox", "snapshot"]);
    let (id, name) = (
        told[1]["sandbox"].as_str().unwrap(),
        told[1]["provider_id"].as_str(),
    );
    assert_eq!(
        name,
        Some(format!("team/dressage-snapshot-{id}:default").as_str())
    );
    let mut kill = place.command(&["sandboxes", "kill", "--all-dead"]);
    with_providers(&mut kill, &fake);
    let ran = Ran::of(kill.output().unwrap()).expect(0);
    assert_eq!(ran.out.matches("is ended").count(), 2, "{}", ran.out);
    assert_eq!((fake.living(), fake.snapshots()), (0, 0));
    assert_eq!(listed(&place, &[]).len(), 0);
}
