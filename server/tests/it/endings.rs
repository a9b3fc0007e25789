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
