use crate::fake::{FakeBackend, Trouble};
use crate::world::{BackendChoice, Done, World, WorldPlan, shell, task};
use dressage_rollout::{
    FinishRequest, Held, HeldCommand, HoldError, LiveState, QueueLimits, RolloutHandle, RolloutRequest,
};
use dressage_sandbox::SandboxError;
use dressage_wire::event::{Event, ReleasedBy, Stage};
use dressage_wire::fault::Ended;
use dressage_wire::ids::RolloutId;
use dressage_wire::reward::{OverrideError, RewardSource, Separation};
use dressage_wire::task::{FileContent, Task, VerifyWhen};
use serde_json::json;
use std::time::{Duration, SystemTime};

const LONG: Duration = Duration::from_secs(600);

async fn submit(world: &World, task: Task, hold: Duration) -> RolloutHandle {
    let request = RolloutRequest {
        hold: Some(hold),
        ..world.request(task)
    };
    world.supervisor.submit(request).await.unwrap()
}

/// Waits until a rollout is held.
async fn held(world: &World, id: RolloutId) -> Held {
    let mut live = world.supervisor.live();
    let is_held = |live: &dressage_rollout::Live| {
        live.iter()
            .any(|one| one.id == id && one.state == LiveState::Held)
    };
    live.wait_for(is_held).await.unwrap();
    world.supervisor.held(id).await.unwrap()
}

fn bash(command: &str) -> HeldCommand {
    HeldCommand {
        command: command.into(),
        ..HeldCommand::default()
    }
}

fn reward(value: f64) -> FinishRequest {
    FinishRequest {
        reward: Some(value),
        detail: None,
    }
}

fn released(done: &Done) -> Vec<ReleasedBy> {
    let by = done.events.iter().filter_map(|event| match event.event {
        Event::Released { by } => Some(by),
        _ => None,
    });
    by.collect()
}

fn deadlines(done: &Done) -> Vec<u64> {
    let held = done.events.iter().filter_map(|event| match event.event {
        Event::Held { until_unix_ms } => Some(until_unix_ms),
        _ => None,
    });
    held.collect()
}

#[tokio::test]
async fn a_caller_verifies_with_commands_and_files_of_its_own_and_gives_the_reward() {
    let world =
        World::where_the_agent_runs("echo made > made.txt; echo 'export FORGED=1' >> ~/.bashrc").await;
    let mut task = task(&[]);
    task.setup = vec!["echo 'export FROM_SETUP=yes' >> ~/.bash_profile".into()];
    task.verify_files
        .insert("expected".into(), FileContent::Text("made\n".into()));
    let handle = submit(&world, task, LONG).await;
    let id = handle.id;
    let held = held(&world, id).await;
    let live = world.supervisor.live();
    let until = live.borrow()[0].held_until.unwrap();
    let left = until.duration_since(SystemTime::now()).unwrap();
    assert!(left > Duration::from_secs(500) && left <= LONG);
    drop(live);

    let result = held
        .exec(bash("cmp made.txt expected && echo same"))
        .await
        .unwrap();
    assert_eq!((result.exit_code, result.stdout.as_str()), (0, "same\n"));
    let result = held
        .exec(HeldCommand {
            env: [("MINE".to_owned(), "1".to_owned())].into(),
            cwd: Some("/tmp".into()),
            ..bash("echo $PWD $MINE $FROM_SETUP $FORGED; ls /tmp; exit 3")
        })
        .await
        .unwrap();
    assert_eq!((result.exit_code, result.stdout.as_str()), (3, "/tmp 1 yes\n"));

    held.write_file("tests/run.sh", "cat $1".into(), 0o755)
        .await
        .unwrap();
    assert!(held.exists("tests/run.sh").await.unwrap());
    assert!(!held.exists("tests/other.sh").await.unwrap());
    let result = held.exec(bash("tests/run.sh made.txt")).await;
    assert_eq!(result.unwrap().stdout, "made\n");
    assert_eq!(
        &held.read_file("/home/user/workdir/made.txt").await.unwrap()[..],
        b"made\n"
    );
    let listed = held.list(".", 3, 10).await.unwrap();
    let names: Vec<_> = listed.files.iter().map(|(path, _)| path.as_str()).collect();
    assert!(
        names.iter().any(|name| name.ends_with("/tests/run.sh")),
        "{names:?}"
    );
    let missing = held.read_file("missing").await;
    assert!(
        matches!(missing, Err(HoldError::Sandbox(SandboxError::NotFound { .. }))),
        "{missing:?}"
    );

    let detail = json!({"tests": {"passed": 3}});
    let verdict = FinishRequest {
        reward: Some(0.75),
        detail: detail.as_object().cloned(),
    };
    held.finish(verdict).await.unwrap();
    let done = Done::of(handle).await;
    assert_eq!((done.outcome.ended, done.code()), (Ended::Completed, None));
    let reward = done.outcome.reward.as_ref().unwrap();
    assert_eq!((reward.value, reward.source), (Some(0.75), RewardSource::Caller));
    assert!(!reward.overridden);
    assert_eq!(reward.detail, detail.as_object().cloned());
    assert_eq!(reward.separation, Separation::Namespace);
    assert_eq!(done.verified(), [0, 3, 0], "what the caller ran is evidence");
    assert_eq!(
        done.outcome.files["tests/run.sh"], "cat $1",
        "collect comes after the hold"
    );
    assert_eq!(
        done.stages(),
        [Stage::Boot, Stage::Setup, Stage::Agent, Stage::Collect]
    );
    assert_eq!(released(&done), [ReleasedBy::Caller]);
    assert_eq!(world.recorder.kept.lock().unwrap().finished, [done.outcome]);
    assert!(world.backend.list(&Default::default()).await.unwrap().is_empty());
}

#[tokio::test]
async fn verify_comes_before_the_hold_and_what_it_said_stands_without_another_verdict() {
    for (verdict, value, source) in [
        (None, 0.5, RewardSource::Verify),
        (Some(0.25), 0.25, RewardSource::Caller),
    ] {
        let world = World::new().await;
        let handle = submit(&world, task(&["true", "false"]), LONG).await;
        let held = held(&world, handle.id).await;
        assert_eq!(held.exec(bash("echo mine")).await.unwrap().exit_code, 0);
        let request = FinishRequest {
            reward: verdict,
            detail: json!({"why": "I say so"}).as_object().cloned(),
        };
        held.finish(request).await.unwrap();
        let done = Done::of(handle).await;
        let reward = done.outcome.reward.as_ref().unwrap();
        assert_eq!((reward.value, reward.source), (Some(value), source));
        assert!(reward.detail.is_some());
        let expected: &[i32] = if verdict.is_some() { &[0, 1, 0] } else { &[0, 1] };
        assert_eq!(done.verified(), expected);
        let indices = done.events.iter().filter_map(|event| match event.event {
            Event::CommandEnded { index, .. } => Some(index),
            _ => None,
        });
        assert_eq!(indices.collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!(done.stages(), Stage::ALL);
    }
}

#[tokio::test]
async fn nothing_that_the_agent_left_runs_in_the_hold() {
    let world = World::new().await;
    let mut task = crate::world::task_of_agent("leave_daemon");
    task.verify.clear();
    let handle = submit(&world, task, LONG).await;
    let held = held(&world, handle.id).await;
    let looked = held
        .exec(bash(
            "! grep -l scripted_agen[t] /proc/[0-9]*/comm /proc/[0-9]*/cmdline 2>/dev/null",
        ))
        .await
        .unwrap();
    assert_eq!(looked.exit_code, 0, "{looked:?}");
    held.finish(FinishRequest::default()).await.unwrap();
    let done = Done::of(handle).await;
    assert_eq!(done.reward(), None);
}

#[tokio::test]
async fn a_verdict_that_is_none_is_refused_and_the_hold_goes_on() {
    let world = World::new().await;
    let handle = submit(&world, task(&[]), LONG).await;
    let held = held(&world, handle.id).await;
    for value in [1.5, -0.1, f64::NAN, f64::INFINITY] {
        let refused = held.finish(reward(value)).await.unwrap_err();
        assert!(
            matches!(refused, HoldError::Reward { .. }),
            "{value}: {refused:?}"
        );
    }
    let HoldError::Reward { source } = held.finish(reward(1.5)).await.unwrap_err() else {
        panic!("it is out of range");
    };
    assert!(matches!(source, OverrideError::OutOfRange { .. }));
    let large = FinishRequest {
        reward: Some(1.0),
        detail: json!({"log": "x".repeat(64 * 1024)}).as_object().cloned(),
    };
    let refused = held.finish(large).await.unwrap_err();
    assert!(matches!(refused, HoldError::DetailTooLarge { .. }), "{refused:?}");
    assert_eq!(held.exec(bash("true")).await.unwrap().exit_code, 0);
    held.finish(reward(-0.0)).await.unwrap();
    assert_eq!(Done::of(handle).await.reward(), Some(0.0));
}

#[tokio::test]
async fn it_is_finished_once() {
    let world = World::new().await;
    let handle = submit(&world, task(&[]), LONG).await;
    let id = handle.id;
    let early = world.supervisor.held(id).await;
    assert!(matches!(early, Err(HoldError::NotHeld { .. })), "{early:?}");
    let held = held(&world, id).await;
    let (first, second) = tokio::join!(held.finish(reward(1.0)), held.finish(reward(0.0)));
    first.unwrap();
    let second = second.unwrap_err();
    assert!(
        matches!(
            second,
            HoldError::Released {
                by: ReleasedBy::Caller,
                ..
            }
        ),
        "{second:?}"
    );
    let late = held.exec(bash("true")).await.unwrap_err();
    assert!(
        matches!(
            late,
            HoldError::Released {
                by: ReleasedBy::Caller,
                ..
            }
        ),
        "{late:?}"
    );
    let late = world.supervisor.held(id).await.unwrap_err();
    assert!(
        matches!(late, HoldError::NotHeld { .. } | HoldError::Unknown(_)),
        "{late:?}"
    );
    assert_eq!(Done::of(handle).await.reward(), Some(1.0));
    world.supervisor.drained().await;
    let unknown = world.supervisor.held(id).await.unwrap_err();
    assert!(matches!(unknown, HoldError::Unknown(_)), "{unknown:?}");
}

#[tokio::test]
async fn a_hold_that_nobody_ends_ends_at_its_deadline_without_a_fault() {
    for (verify, value) in [(&[][..], None), (&["true"][..], Some(1.0))] {
        let world = World::new().await;
        let handle = submit(&world, task(verify), Duration::from_millis(300)).await;
        let done = Done::of(handle).await;
        assert_eq!((done.outcome.ended, done.code()), (Ended::Completed, None));
        assert_eq!(done.reward(), value);
        assert_eq!(released(&done), [ReleasedBy::Deadline]);
        assert!(done.stages().contains(&Stage::Collect));
    }
}

#[tokio::test]
async fn each_call_moves_the_deadline_and_none_passes_while_one_runs() {
    let world = World::new().await;
    let hold = Duration::from_secs(2);
    let handle = submit(&world, task(&[]), hold).await;
    let held = held(&world, handle.id).await;
    // Longer than the hold itself.
    assert_eq!(held.exec(bash("sleep 3")).await.unwrap().exit_code, 0);
    for _ in 0..3 {
        tokio::time::sleep(Duration::from_millis(1000)).await;
        assert!(!held.exists("nothing").await.unwrap());
    }
    let done = Done::of(handle).await;
    assert_eq!(released(&done), [ReleasedBy::Deadline]);
    assert!(deadlines(&done).len() >= 5, "{:?}", deadlines(&done));
    let last = *deadlines(&done).last().unwrap();
    let end = done
        .events
        .iter()
        .find(|event| matches!(event.event, Event::Released { .. }));
    assert!(end.unwrap().unix_ms + 100 >= last, "it ended before its deadline");
}

#[tokio::test]
async fn a_command_of_the_caller_has_its_own_deadline() {
    let world = World::new().await;
    let handle = submit(&world, task(&[]), LONG).await;
    let held = held(&world, handle.id).await;
    let command = HeldCommand {
        timeout: Some(Duration::from_secs(1)),
        ..bash("trap '' TERM; (sleep 600) & while :; do sleep 1; done")
    };
    let result = held.exec(command).await.unwrap();
    assert_eq!((result.exit_code, result.timed_out), (124, true));
    held.finish(reward(0.0)).await.unwrap();
    Done::of(handle).await;
}

#[tokio::test]
async fn calls_run_beside_each_other_and_are_given_up_when_the_hold_ends() {
    let world = World::new().await;
    let handle = submit(&world, task(&[]), LONG).await;
    let held = held(&world, handle.id).await;
    let long = tokio::spawn({
        let held = held.clone();
        async move { held.exec(bash("touch started; sleep 600")).await }
    });
    while !held.exists("started").await.unwrap() {}
    held.finish(reward(1.0)).await.unwrap();
    let given_up = long.await.unwrap().unwrap_err();
    assert!(
        matches!(
            given_up,
            HoldError::Released {
                by: ReleasedBy::Caller,
                ..
            }
        ),
        "{given_up:?}"
    );
    assert_eq!(Done::of(handle).await.reward(), Some(1.0));
}

#[tokio::test]
async fn a_cancelled_hold_ends_at_once_with_its_sandbox() {
    let world = World::new().await;
    let handle = submit(&world, task(&["true"]), LONG).await;
    let held = held(&world, handle.id).await;
    let running = tokio::spawn({
        let held = held.clone();
        async move { held.exec(bash("touch started; sleep 600")).await }
    });
    while !held.exists("started").await.unwrap() {}
    world.supervisor.cancel(handle.id);
    let cut = running.await.unwrap().unwrap_err();
    assert!(
        matches!(
            cut,
            HoldError::Released {
                by: ReleasedBy::Cancel,
                ..
            }
        ),
        "{cut:?}"
    );
    let done = Done::of(handle).await;
    assert_eq!((done.outcome.ended, done.code()), (Ended::Cancelled, None));
    assert_eq!(done.reward(), Some(1.0), "what verify said is kept");
    assert_eq!(released(&done), [ReleasedBy::Cancel]);
    assert!(!done.stages().contains(&Stage::Collect));
    assert!(world.backend.list(&Default::default()).await.unwrap().is_empty());
}

#[tokio::test]
async fn shutdown_ends_a_hold() {
    let world = World::new().await;
    let handle = submit(&world, task(&[]), LONG).await;
    held(&world, handle.id).await;
    world.supervisor.shutdown(Duration::from_millis(100)).await;
    assert_eq!(Done::of(handle).await.outcome.ended, Ended::Cancelled);
}

#[tokio::test]
async fn a_sandbox_that_has_died_fails_the_call_and_not_the_verdict() {
    let backend = FakeBackend::with(Trouble::GoneAtVerify);
    let world = World::planned(WorldPlan {
        backend: BackendChoice::Given(backend.clone()),
        ..WorldPlan::default()
    })
    .await;
    let handle = submit(&world, task(&[]), LONG).await;
    let held = held(&world, handle.id).await;
    let dead = held.exec(bash("true")).await.unwrap_err();
    assert!(
        matches!(dead, HoldError::Sandbox(SandboxError::Gone { .. })),
        "{dead:?}"
    );
    held.finish(reward(0.0)).await.unwrap();
    let done = Done::of(handle).await;
    assert_eq!((done.reward(), done.code()), (Some(0.0), None));
}

#[tokio::test]
async fn a_rollout_without_anything_to_judge_is_not_held() {
    let world = World::new().await;
    let mut failing = task(&[]);
    failing.setup = vec!["exit 1".into()];
    let done = Done::of(submit(&world, failing.clone(), LONG).await).await;
    assert_eq!(done.outcome.ended, Ended::SetupError);
    assert_eq!(deadlines(&done), [0; 0]);
    // Unless the task says so.
    failing.verify_when = VerifyWhen::Always;
    let handle = submit(&world, failing, LONG).await;
    held(&world, handle.id).await.finish(reward(0.0)).await.unwrap();
    let done = Done::of(handle).await;
    assert_eq!(
        (done.outcome.ended, done.reward()),
        (Ended::SetupError, Some(0.0))
    );
}

#[tokio::test]
async fn a_held_rollout_leaves_its_endpoint_to_others() {
    let mut limits = QueueLimits::of(2);
    limits.endpoints.insert("scripted".into(), 1);
    let world = World::planned(WorldPlan {
        limits: Some(limits),
        script: shell("true"),
        ..WorldPlan::default()
    })
    .await;
    let handle = submit(&world, task(&[]), LONG).await;
    held(&world, handle.id).await;
    let other = world.run(task(&["true"])).await;
    assert_eq!(other.reward(), Some(1.0));
    world.supervisor.cancel(handle.id);
    Done::of(handle).await;
}
