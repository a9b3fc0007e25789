use crate::engine::engine;
use crate::fake::{FakeBackend, Trouble};
use crate::played::{Does, Fake};
use crate::world::{BackendChoice, Done, World, WorldPlan, shell, task};
use dressage_rollout::RolloutRequest;
use dressage_wire::event::Stage;
use dressage_wire::ids::GroupId;
use dressage_wire::reward::Separation;
use dressage_wire::task::{FileContent, SnapshotWhen, Task, VerifyIn};
use std::sync::Arc;

/// A task whose setup is not the same twice: what it wrote tells whether it ran.
fn kept(verify: &[&str]) -> Task {
    let mut task = Task {
        setup: vec![
            "date +%s.%N > ~/when; cat given > given.copy; mkdir ~/.closed && chmod 700 ~/.closed ~".into(),
            "echo 'export FROM_SETUP=yes' >> ~/.profile".into(),
        ],
        snapshot: Some(SnapshotWhen::AfterSetup),
        ..task(verify)
    };
    task.files
        .insert("given".into(), FileContent::Text("content".into()));
    task
}

/// The stages in which an earlier setup's files were taken.
fn restored(done: &Done) -> Vec<Stage> {
    let stages = done.outcome.stages.iter();
    stages
        .filter(|time| time.restored)
        .map(|time| time.stage)
        .collect()
}

/// Runs as many at once, as a group.
async fn run_group(world: &World, task: Task, count: u32) -> Vec<Done> {
    let group = GroupId::new();
    let requests: Vec<RolloutRequest> = (0..count)
        .map(|sample| RolloutRequest {
            sample,
            group: Some(group),
            ..world.request(task.clone())
        })
        .collect();
    let handles = world.supervisor.submit_all(requests).await.unwrap();
    let running: Vec<_> = handles
        .into_iter()
        .map(|handle| tokio::spawn(Done::of(handle)))
        .collect();
    let mut done = Vec::new();
    for running in running {
        done.push(running.await.unwrap());
    }
    done
}

/// A group of which one sets up, and all have the same; nothing is left.
async fn one_of_a_group_sets_up(backend: BackendChoice, verify_in: Option<VerifyIn>) {
    let world = World::planned(WorldPlan {
        script: shell(
            "cat ~/when > when; test $FROM_SETUP = yes && echo mine >> given.copy; echo forged > ~/when",
        ),
        backend,
        concurrency: 8,
        ..WorldPlan::default()
    })
    .await;
    let mut task = kept(&[
        "test \"$(cat given.copy)\" = \"$(printf 'content\\nmine')\" || test \"$(cat given.copy)\" = contentmine",
        "test $FROM_SETUP = yes && test \"$(stat -c %a ~ ~/.closed | tr '\\n' ' ')\" = '700 700 '",
    ]);
    task.verify_in = verify_in;
    let done = run_group(&world, task.clone(), 4).await;
    let mut times = std::collections::BTreeSet::new();
    let mut set_up = 0;
    for one in &done {
        assert_eq!(one.reward(), Some(1.0), "{:?}", one.outcome);
        assert_eq!(one.outcome.warnings, [""; 0]);
        times.insert(one.outcome.files["when"].clone());
        let is_fresh = verify_in == Some(VerifyIn::Fresh);
        let first = !restored(one).contains(&Stage::Setup);
        set_up += usize::from(first);
        assert_eq!(one.outcome.setup.len(), if first { 2 } else { 0 });
        assert_eq!(restored(one).contains(&Stage::Verify), is_fresh);
        if is_fresh {
            assert_eq!(one.outcome.reward.as_ref().unwrap().separation, Separation::Fresh);
        }
    }
    assert_eq!((times.len(), set_up), (1, 1), "one of them sets up");
    // What an agent did to its own copy is in no other.
    let later = world.run(task.clone()).await;
    assert_eq!(later.reward(), Some(1.0), "{:?}", later.outcome);
    assert_eq!(Some(&later.outcome.files["when"]), times.first());
    // Another setup is another.
    task.setup.push("true".into());
    let other = world.run(task).await;
    assert!(!restored(&other).contains(&Stage::Setup));
    assert_ne!(Some(&other.outcome.files["when"]), times.first());
    world.supervisor.drained().await;
    assert_eq!(world.left(), 0, "a snapshot is left");
}

#[tokio::test]
async fn one_of_a_group_sets_up_and_the_others_begin_with_what_it_made() {
    one_of_a_group_sets_up(BackendChoice::Named("local"), None).await;
}

#[tokio::test]
async fn a_fresh_sandbox_for_verify_begins_with_what_setup_made() {
    one_of_a_group_sets_up(BackendChoice::Named("local"), Some(VerifyIn::Fresh)).await;
}

#[tokio::test]
async fn one_of_a_group_sets_up_in_a_container_and_the_others_begin_with_its_image() {
    if engine().is_some() {
        one_of_a_group_sets_up(BackendChoice::Named("docker"), Some(VerifyIn::Fresh)).await;
    }
}

/// A provider that is played.
fn e2b(played: &Fake) -> BackendChoice {
    BackendChoice::Over("e2b", Box::new(played.providers()))
}

#[tokio::test]
async fn one_of_a_group_sets_up_at_a_provider_and_the_others_begin_with_its_files() {
    for verify_in in [None, Some(VerifyIn::Fresh)] {
        let played = Fake::start();
        one_of_a_group_sets_up(e2b(&played), verify_in).await;
        assert_eq!((played.living(), played.snapshots()), (0, 0));
    }
}

#[tokio::test]
async fn a_provider_that_refuses_is_asked_once_for_a_setup_and_each_sets_up() {
    let played = Fake::start();
    let body = r#"{"code":404,"message":"no route"}"#;
    played.fault("/snapshots", 1, Does::Refuse(404, body));
    let world = World::planned(WorldPlan {
        script: shell("true"),
        backend: e2b(&played),
        ..WorldPlan::default()
    })
    .await;
    for _ in 0..2 {
        for done in run_group(&world, kept(&["test -e ~/when"]), 2).await {
            assert_eq!(done.reward(), Some(1.0), "{:?}", done.outcome);
            assert_eq!((restored(&done), done.outcome.setup.len()), (vec![], 2));
            let warnings = done.outcome.warnings.join("\n");
            assert!(
                warnings.contains("setup ran anew") || warnings.contains("no route"),
                "{warnings}"
            );
        }
        // Whoever asked again would have been given one.
        assert_eq!(played.snapshots(), 0);
    }
    world.supervisor.drained().await;
    assert_eq!((world.left(), played.living()), (0, 0));
}

#[tokio::test]
async fn setup_that_leaves_programs_running_is_not_kept_and_runs_in_each() {
    let world = World::planned(WorldPlan {
        script: shell("true"),
        ..WorldPlan::default()
    })
    .await;
    let mut task = kept(&["test -e /tmp/pid && kill -0 $(cat ~/pid) 2>/dev/null || test -e ~/pid"]);
    task.setup
        .push("(setsid sleep 1000 >/dev/null 2>&1 & echo $! > ~/pid)".into());
    for round in 0..2 {
        let done = world.run(task.clone()).await;
        assert_eq!(done.reward(), Some(1.0), "{:?}", done.outcome);
        assert_eq!(restored(&done), []);
        assert_eq!(done.outcome.setup.len(), 3);
        let warnings = done.outcome.warnings.join("\n");
        assert!(
            warnings.contains("programs that run: sleep"),
            "{round}: {warnings}"
        );
    }
}

#[tokio::test]
async fn files_in_memory_are_not_kept_and_that_is_said() {
    let world = World::planned(WorldPlan {
        script: shell("ls /tmp > listed"),
        ..WorldPlan::default()
    })
    .await;
    let mut task = kept(&["true"]);
    task.setup.push("touch /tmp/one /tmp/.two".into());
    let first = world.run(task.clone()).await;
    let warnings = first.outcome.warnings.join("\n");
    assert!(
        warnings.contains("2 of the files that setup left are in memory") && warnings.contains("`/tmp/one`"),
        "{warnings}"
    );
    let second = world.run(task).await;
    assert_eq!(restored(&second), [Stage::Setup]);
    assert_eq!(second.outcome.warnings, [""; 0]);
    assert!(!second.outcome.files["listed"].contains("one"));
}

/// Two rollouts, one after the other, with sandboxes that do not do all.
async fn two_with(trouble: Trouble, snapshot: SnapshotWhen) -> ([Done; 2], Arc<FakeBackend>) {
    let backend = FakeBackend::with(trouble);
    let world = World::planned(WorldPlan {
        backend: BackendChoice::Given(backend.clone()),
        ..WorldPlan::default()
    })
    .await;
    let mut task = task(&["check"]);
    task.setup = vec!["prepare".into()];
    task.snapshot = Some(snapshot);
    let done = [world.run(task.clone()).await, world.run(task).await];
    world.supervisor.drained().await;
    (done, backend)
}

fn count(backend: &FakeBackend, what: &str) -> usize {
    backend.log().iter().filter(|line| line.starts_with(what)).count()
}

#[tokio::test]
async fn nothing_is_kept_where_the_task_does_not_ask_for_it() {
    let (done, backend) = two_with(Trouble::None, SnapshotWhen::Never).await;
    assert_eq!(done.each_ref().map(restored), [[], []]);
    assert_eq!((count(&backend, "keep"), count(&backend, "setup")), (0, 2));
}

#[tokio::test]
async fn what_is_kept_is_removed_when_nothing_runs_any_more() {
    let (done, backend) = two_with(Trouble::None, SnapshotWhen::AfterSetup).await;
    assert_eq!(done.each_ref().map(Done::reward), [Some(1.0); 2]);
    assert_eq!(
        [
            count(&backend, "setup"),
            count(&backend, "keep"),
            count(&backend, "restore"),
            count(&backend, "forget")
        ],
        [1; 4]
    );
}

#[tokio::test]
async fn what_cannot_be_kept_is_a_warning_and_setup_runs_in_each() {
    let (done, backend) = two_with(Trouble::KeepFails, SnapshotWhen::AfterSetup).await;
    for one in &done {
        assert_eq!((one.reward(), one.code()), (Some(1.0), None));
        let warnings = one.outcome.warnings.join("\n");
        assert!(warnings.contains("no space left on device"), "{warnings}");
    }
    assert_eq!((count(&backend, "keep"), count(&backend, "setup")), (2, 2));
}

#[tokio::test]
async fn what_was_kept_and_cannot_be_used_is_a_warning_and_setup_runs() {
    let (done, backend) = two_with(Trouble::RestoreFails, SnapshotWhen::AfterSetup).await;
    assert_eq!(done.each_ref().map(Done::reward), [Some(1.0); 2]);
    assert_eq!(done.each_ref().map(restored), [[], []]);
    let warnings = done[1].outcome.warnings.join("\n");
    assert!(warnings.contains("setup ran anew"), "{warnings}");
    assert_eq!((count(&backend, "setup"), count(&backend, "restore")), (2, 1));
}

#[tokio::test]
async fn a_backend_that_keeps_nothing_sets_up_each_and_says_so() {
    let world = World::planned(WorldPlan {
        backend: BackendChoice::Named("process"),
        ..WorldPlan::default()
    })
    .await;
    let mut task = task(&["true"]);
    task.setup = vec!["true".into()];
    task.snapshot = Some(SnapshotWhen::AfterSetup);
    for _ in 0..2 {
        let done = world.run(task.clone()).await;
        assert_eq!((done.reward(), done.outcome.setup.len()), (Some(1.0), 1));
        let warnings = done.outcome.warnings.join("\n");
        assert!(
            warnings.contains("sandbox `process` keeps no snapshots: setup ran anew"),
            "{warnings}"
        );
    }
}
