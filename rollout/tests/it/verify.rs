use crate::world::{World, task};
use dressage_rollout::presets::PRESETS;
use dressage_wire::fault::Ended;
use std::time::{Duration, Instant};

#[tokio::test]
async fn a_command_that_prints_megabytes_is_kept_by_its_end() {
    let done = World::new()
        .await
        .run(task(&["head -c 20000000 /dev/zero | tr '\\0' x; echo; echo end"]))
        .await;
    let result = &done.outcome.reward.as_ref().unwrap().commands[0];
    assert_eq!((result.exit_code, result.output_bytes), (0, 20_000_005));
    assert!(result.stdout.ends_with("x\nend\n") && result.stdout.len() <= 16 * 1024);
    assert_eq!(done.reward(), Some(1.0));
}

#[tokio::test]
async fn a_command_that_forks_is_not_waited_for_beyond_its_own_end() {
    let before = Instant::now();
    let done = World::new()
        .await
        .run(task(&["sleep 600 & (setsid sleep 600 &) ; echo forked", "true"]))
        .await;
    assert_eq!(done.verified(), [0, 0]);
    assert_eq!(done.outcome.reward.unwrap().commands[0].stdout, "forked\n");
    assert!(before.elapsed() < Duration::from_secs(60));
}

#[tokio::test]
async fn a_command_that_ignores_sigterm_is_killed_at_its_deadline() {
    let mut task = task(&[
        "trap '' TERM INT HUP; sleep 600 & while :; do sleep 1; done",
        "true",
    ]);
    task.limits.verify_timeout_s = 1.0;
    let done = World::new().await.run(task).await;
    let results = &done.outcome.reward.as_ref().unwrap().commands;
    assert_eq!((results[0].exit_code, results[0].timed_out), (124, true));
    assert_eq!(done.reward(), Some(0.5));
    assert_eq!(done.outcome.ended, Ended::Completed);
}

#[tokio::test]
async fn a_command_that_a_signal_ends_has_failed() {
    let done = World::new().await.run(task(&["kill -9 $$", "true"])).await;
    let results = &done.outcome.reward.as_ref().unwrap().commands;
    assert_eq!((results[0].exit_code, results[0].signal), (137, Some(9)));
    assert_eq!(done.reward(), Some(0.5));
}

#[tokio::test]
async fn output_that_is_no_utf_8_is_kept_readable() {
    let done = World::new()
        .await
        .run(task(&["printf 'a\\377b'; printf 'err' >&2"]))
        .await;
    let result = &done.outcome.reward.as_ref().unwrap().commands[0];
    assert_eq!(
        (result.stdout.as_str(), result.stderr.as_str()),
        ("a\u{fffd}b", "err")
    );
}

#[tokio::test]
async fn commands_written_for_the_home_and_for_python_work_as_they_are() {
    let world = World::where_the_agent_runs("printf 'def f():\\n    return 2\\n' > mod.py").await;
    let done = world
        .run(task(&[
            "test -f /home/user/workdir/mod.py",
            "python -c \"import sys; sys.path.insert(0, '/home/user/workdir'); import mod; assert mod.f() == 2; print('OK')\"",
        ]))
        .await;
    assert_eq!(done.verified(), [0, 0], "{:?}", done.outcome);
}

#[tokio::test]
async fn presets_are_solved_by_the_scripted_model_and_not_by_nothing() {
    for preset in PRESETS {
        let mut task = preset.task();
        task.agent.name = "scripted".into();
        let plan = crate::world::WorldPlan {
            script: std::sync::Arc::new(dressage_testkit::model::PresetScript),
            ..crate::world::WorldPlan::default()
        };
        let done = World::planned(plan).await.run(task.clone()).await;
        assert_eq!(done.reward(), Some(1.0), "{}: {:?}", preset.name, done.outcome);
        let idle = World::new().await.run(task).await;
        assert_eq!(idle.reward(), Some(0.0), "{}: {:?}", preset.name, idle.outcome);
    }
}
