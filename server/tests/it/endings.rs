use crate::support::{Place, Running};
use nix::sys::signal::Signal;
use serde_json::Value;

/// A rollout that stays in its setup stage.
fn hanging(place: &Place, name: &str) -> Running {
    place.start(
        name,
        &[
            "run",
            "x",
            "--endpoint",
            "demo",
            "--setup",
            "echo here > ~/here; sleep 600",
            "--setup-timeout",
            "500",
        ],
    )
}

fn homes(place: &Place) -> Vec<std::path::PathBuf> {
    let Ok(entries) = std::fs::read_dir(place.data().join("homes")) else {
        return Vec::new();
    };
    entries.map(|entry| entry.unwrap().path()).collect()
}

/// Waits until so many sandboxes are in the midst of their setup.
#[track_caller]
fn until_set_up(place: &Place, running: &mut Running, count: usize) {
    running.until("setup", || {
        homes(place).iter().filter(|home| holds(home, "here")).count() == count
    });
}

fn holds(folder: &std::path::Path, name: &str) -> bool {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return false;
    };
    entries.flatten().any(|entry| {
        entry.file_name() == name
            || (entry.file_type().is_ok_and(|kind| kind.is_dir()) && holds(&entry.path(), name))
    })
}

fn rows(place: &Place) -> Vec<Value> {
    let listed = place.run(&["list", "--json"]).expect(0).out;
    listed
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

#[test]
fn the_first_interrupt_cancels_cleans_up_and_says_what_was_done() {
    let place = Place::new();
    let mut running = hanging(&place, "a");
    until_set_up(&place, &mut running, 1);
    running.signal(Signal::SIGINT);
    let ran = running.wait().expect(130);
    assert!(
        ran.err.contains("stopping: 1 rollout is cancelled"),
        "{}",
        ran.err
    );
    assert!(ran.err.contains("cancelled"), "{}", ran.err);
    assert_eq!(
        homes(&place),
        Vec::<std::path::PathBuf>::new(),
        "the sandbox is gone"
    );
    assert_eq!(rows(&place)[0]["ended"], "cancelled");
}

#[test]
fn a_data_directory_that_is_removed_in_mid_run_is_said_with_the_outcome() {
    for json in [false, true] {
        let place = Place::new();
        let mut arguments = vec![
            "run",
            "x",
            "--endpoint",
            "demo",
            "--setup",
            "echo here > ~/here; until [ -e ~/go ]; do sleep 0.1; [ -e ~/here ] || exit 7; done",
        ];
        if json {
            arguments.push("--json");
        }
        let mut running = place.start("a", &arguments);
        until_set_up(&place, &mut running, 1);
        std::fs::remove_dir_all(place.data()).unwrap();
        let ran = running.wait().expect(3);
        assert!(
            ran.err.contains("could not be stored") && ran.err.contains("was removed or replaced"),
            "{}",
            ran.err
        );
        assert!(ran.err.contains("hint: run it again, and leave"), "{}", ran.err);
        assert!(ran.err.contains("not stored"), "{}", ran.err);
        assert!(!ran.err.contains("dressage show"), "{}", ran.err);
        assert!(!place.data().exists(), "nothing is made in its place");
        if json {
            let line: Value = serde_json::from_str(ran.out.trim()).unwrap();
            assert_eq!(line["stored"], false);
            assert_eq!(line["ended"], "setup_error", "the outcome itself is told");
            assert_eq!(line["unstored"]["code"], "store_failed");
        } else {
            assert!(ran.err.contains("setup_error"), "{}", ran.err);
        }
    }
}

/// The scripted agent of the test kit in the place of OpenCode's program: it is in its stage at once, and misbehaves as
/// it is told to.
fn with_scripted_agent(place: &Place, name: &str, misbehaviour: &str, more: &[&str]) -> Running {
    let cache = place.scripted_agent();
    let variable = format!("SCRIPTED_AGENT_MISBEHAVE={misbehaviour}");
    let mut arguments = vec![
        "run",
        "x",
        "--endpoint",
        "demo",
        "--cache-dir",
        cache.to_str().unwrap(),
    ];
    arguments.extend(["--env", &variable, "--verify", "true"]);
    arguments.extend(more);
    place.start(name, &arguments)
}

fn leases(place: &Place) -> usize {
    std::fs::read_dir(place.data().join("leases")).map_or(0, Iterator::count)
}

/// Whether any process has the id of a sandbox of this place on its command line.
pub fn runs_below(place: &Place) -> bool {
    let data = place.data();
    let data = data.to_str().unwrap().as_bytes();
    let own = std::process::id().to_string();
    std::fs::read_dir("/proc").unwrap().flatten().any(|entry| {
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        entry.file_name().to_str() != Some(&own) && line.windows(data.len()).any(|part| part == data)
    })
}

#[track_caller]
fn until_the_agent_stage(running: &mut Running, count: usize) {
    let err = running.err.clone();
    running.until("the agent stage", || {
        std::fs::read_to_string(&err).unwrap().matches("… agent").count() == count
    });
}

#[test]
fn an_interrupt_in_the_agent_stage_cancels_it_and_leaves_nothing() {
    let place = Place::new();
    let mut running = with_scripted_agent(&place, "a", "hang", &[]);
    until_the_agent_stage(&mut running, 1);
    assert!(runs_below(&place) && leases(&place) > 0);
    running.signal(Signal::SIGINT);
    let ran = running.wait().expect(130);
    assert!(
        ran.err.contains("stopping: 1 rollout is cancelled"),
        "{}",
        ran.err
    );
    assert!(
        !ran.err.contains("hurrying") && !ran.err.contains("left to"),
        "{}",
        ran.err
    );
    assert!(ran.err.contains("cancelled  reward –"), "a summary: {}", ran.err);
    assert_eq!(homes(&place), Vec::<std::path::PathBuf>::new());
    assert_eq!(leases(&place), 0);
    assert!(!runs_below(&place));
    let rows = rows(&place);
    assert_eq!(
        (&rows[0]["ended"], &rows[0]["state"]),
        (&"cancelled".into(), &"finished".into())
    );
}

#[test]
fn the_second_interrupt_hurries_and_the_third_ends_it_at_once() {
    let place = Place::new();
    for interrupts in [2, 3] {
        let mut running = with_scripted_agent(&place, "a", "ignore_sigterm,hang", &[]);
        until_the_agent_stage(&mut running, 1);
        for said in ["stopping: ", "hurrying: ", ""].iter().take(interrupts) {
            // It may be over before the next one: a sandbox goes in milliseconds.
            if running.child.try_wait().unwrap().is_none() {
                running.signal(Signal::SIGINT);
            }
            let err = running.err.clone();
            let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
            while running.child.try_wait().unwrap().is_none()
                && !std::fs::read_to_string(&err).unwrap().contains(said)
                && std::time::Instant::now() < deadline
            {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
        }
        let ran = running.wait().expect(130);
        assert!(ran.err.contains("stopping: "), "{}", ran.err);
        // What was left, the next start removes.
        place
            .run(&["run", "x", "--endpoint", "demo", "--setup", "false"])
            .expect(1);
        assert_eq!(
            homes(&place),
            Vec::<std::path::PathBuf>::new(),
            "after {interrupts}"
        );
        assert_eq!(leases(&place), 0, "after {interrupts}");
        assert!(!runs_below(&place), "after {interrupts}");
        assert!(
            rows(&place).iter().all(|row| row["state"] != "running"),
            "after {interrupts}"
        );
    }
}

#[test]
fn rollouts_that_were_not_started_are_not_after_an_interrupt() {
    let place = Place::new();
    let arguments = [
        "run",
        "x",
        "--endpoint",
        "demo",
        "-n",
        "5",
        "--concurrency",
        "2",
        "--setup",
        "echo > ~/here; sleep 600",
        "--setup-timeout",
        "500",
        "--json",
    ];
    let mut running = place.start("a", &arguments);
    until_set_up(&place, &mut running, 2);
    running.signal(Signal::SIGTERM);
    let ran = running.wait().expect(130);
    let lines: Vec<Value> = ran
        .out
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(lines.len(), 2, "{}", ran.out);
    assert!(lines.iter().all(|line| line["ended"] == "cancelled"));
    assert!(ran.err.contains("2 of 5 rollouts ended"), "{}", ran.err);
    assert_eq!(rows(&place).len(), 2);
}

#[test]
fn of_two_processes_on_one_data_directory_one_is_killed_and_the_other_untouched() {
    let place = Place::new();
    let mut victim = hanging(&place, "victim");
    until_set_up(&place, &mut victim, 1);
    let mut other = hanging(&place, "other");
    until_set_up(&place, &mut other, 2);
    victim.signal(Signal::SIGKILL);
    assert_eq!(victim.wait().code, None);

    // The next process sweeps what the dead one left, and nothing else.
    place
        .run(&["run", "x", "--endpoint", "demo", "--setup", "false"])
        .expect(1);
    assert_eq!(
        homes(&place).len(),
        1,
        "the dead process's sandbox is gone, the other's is there"
    );
    let states: Vec<_> = rows(&place)
        .iter()
        .map(|row| row["state"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(states, ["finished", "running", "interrupted"]);

    other.until("itself", || true);
    other.signal(Signal::SIGINT);
    other.wait().expect(130);
    assert_eq!(homes(&place), Vec::<std::path::PathBuf>::new());
}

#[test]
fn nothing_runs_on_after_a_kill_9() {
    let place = Place::new();
    let marker = format!("{:x}", std::process::id()) + "d7e55a6e";
    let setup = format!("echo > ~/here; exec -a {marker} sleep 600");
    let mut running = place.start(
        "a",
        &[
            "run",
            "x",
            "--endpoint",
            "demo",
            "--setup",
            &setup,
            "--setup-timeout",
            "500",
        ],
    );
    until_set_up(&place, &mut running, 1);
    running.until("the marked process", || marked(&marker));
    running.signal(Signal::SIGKILL);
    running.wait();
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
    while marked(&marker) {
        assert!(
            std::time::Instant::now() < deadline,
            "a process of the sandbox is still there"
        );
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

/// Whether a process has this as its own name for itself. The program's own command line only contains it.
fn marked(marker: &str) -> bool {
    std::fs::read_dir("/proc").unwrap().flatten().any(|entry| {
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0).next() == Some(marker.as_bytes())
    })
}
