use crate::fake::{FakeBackend, Trouble};
use crate::world::{BackendChoice, Done, World, WorldPlan, task};
use dressage_wire::event::{Event, Stage};
use dressage_wire::fault::Ended;
use dressage_wire::task::{FileContent, VerifyWhen};
use std::sync::Arc;

async fn fake(trouble: Trouble) -> (World, Arc<FakeBackend>) {
    let backend = FakeBackend::with(trouble);
    let plan = WorldPlan {
        backend: BackendChoice::Given(backend.clone()),
        ..WorldPlan::default()
    };
    (World::planned(plan).await, backend)
}

#[tokio::test]
async fn everything_happens_in_the_order_of_the_stages() {
    let (world, backend) = fake(Trouble::None).await;
    let mut task = task(&["check"]);
    task.setup = vec!["prepare".into()];
    task.files.insert("in.txt".into(), FileContent::Text("in".into()));
    task.verify_files
        .insert("/home/user/expected".into(), FileContent::Text("out".into()));
    let done = world.run(task).await;
    assert_eq!(done.outcome.ended, Ended::Completed);
    assert_eq!(done.code(), None);
    assert_eq!(done.reward(), Some(1.0));
    assert_eq!(done.stages(), Stage::ALL);
    let expected = [
        "create",
        "write /home/user/workdir/in.txt",
        "setup prepare",
        "list /home/user/.local/lib",
        "relay",
        "agent",
        "separate /home/user/logs/verifier",
        "write /home/user/expected",
        "verify check",
        "read /home/user/logs/verifier/reward.txt",
        "list /home/user/workdir",
        "kill",
    ];
    assert_eq!(backend.log(), expected);
}

#[tokio::test]
async fn a_stage_starts_only_when_the_one_before_has_ended_and_events_have_no_gaps() {
    let (world, _) = fake(Trouble::None).await;
    let done = world.run(task(&["check"])).await;
    let mut open = None;
    for (at, event) in done.events.iter().enumerate() {
        assert_eq!(event.sequence, at as u64);
        match &event.event {
            Event::StageStarted { stage } => assert_eq!(open.replace(*stage), None),
            Event::StageEnded { stage, .. } => assert_eq!(open.take(), Some(*stage)),
            Event::CommandStarted { stage, .. } | Event::CommandEnded { stage, .. } => {
                assert_eq!(open, Some(*stage));
            }
            _ => {}
        }
    }
    let Event::Finished {
        ended: Ended::Completed,
        fault: None,
    } = &done.events.last().unwrap().event
    else {
        panic!("{:?}", done.events.last());
    };
}

#[tokio::test]
async fn the_row_is_written_before_boot_and_after_the_end() {
    let (world, _) = fake(Trouble::None).await;
    let done = world.run(task(&[])).await;
    let kept = world.recorder.kept.lock().unwrap();
    assert_eq!(kept.started.len(), 1);
    assert_eq!(
        (kept.started[0].endpoint.as_str(), kept.started[0].model.as_str()),
        ("scripted", "scripted")
    );
    assert_eq!(kept.started[0].backend, "fake");
    assert_eq!(kept.finished, [done.outcome]);
}

#[tokio::test]
async fn a_task_without_verify_commands_has_no_reward() {
    let (world, backend) = fake(Trouble::None).await;
    let done = world.run(task(&[])).await;
    assert_eq!(done.outcome.ended, Ended::Completed);
    assert_eq!(done.outcome.reward, None);
    assert!(!done.stages().contains(&Stage::Verify));
    assert!(!backend.log().iter().any(|asked| asked.starts_with("separate")));
}

#[tokio::test]
async fn a_failed_setup_command_ends_the_rollout_with_its_output() {
    let world = World::new().await;
    let mut task = task(&["true"]);
    task.setup = vec![
        "echo fine".into(),
        "echo broken >&2; exit 5".into(),
        "echo never".into(),
    ];
    let done = world.run(task).await;
    assert_eq!(done.outcome.ended, Ended::SetupError);
    assert_eq!(done.code(), Some("setup_command_failed"));
    let fault = done.outcome.fault.as_ref().unwrap();
    assert_eq!(fault.stage, Some(Stage::Setup));
    assert!(
        fault.message.contains("setup command 2 of 3 exited with code 5"),
        "{}",
        fault.message
    );
    assert_eq!(fault.causes, ["broken"]);
    let results: Vec<_> = done
        .outcome
        .setup
        .iter()
        .map(|run| (run.exit_code, run.stdout.as_str()))
        .collect();
    assert_eq!(results, [(0, "fine\n"), (5, "")]);
    assert_eq!(done.outcome.setup[1].stderr, "broken\n");
    assert_eq!(done.outcome.reward, None);
    assert_eq!(done.outcome.agent, None);
    assert_eq!(world.model.calls(), 0);
}

#[tokio::test]
async fn verify_always_runs_after_a_failed_setup_too() {
    let world = World::new().await;
    let mut task = task(&["true", "false"]);
    task.setup = vec!["exit 1".into()];
    task.verify_when = VerifyWhen::Always;
    let done = world.run(task).await;
    assert_eq!(done.outcome.ended, Ended::SetupError);
    assert_eq!(done.code(), Some("setup_command_failed"));
    assert_eq!(done.reward(), Some(0.5));
}

#[tokio::test]
async fn a_setup_command_is_killed_at_its_deadline_with_its_children() {
    let world = World::new().await;
    let mut task = task(&["true"]);
    task.limits.setup_timeout_s = 1.0;
    task.setup = vec!["(trap '' TERM; sleep 600) & sleep 600".into()];
    let done = world.run(task).await;
    assert_eq!(done.outcome.ended, Ended::SetupError);
    assert_eq!(done.code(), Some("setup_timeout"));
    assert_eq!(
        (done.outcome.setup[0].exit_code, done.outcome.setup[0].timed_out),
        (124, true)
    );
}

#[tokio::test]
async fn a_startup_file_that_ends_the_shell_is_a_fault_of_the_task() {
    let world = World::new().await;
    let mut task = task(&["true"]);
    task.setup = vec!["echo 'exit 0' > ~/.bash_profile".into()];
    let done = world.run(task).await;
    assert_eq!(done.code(), Some("setup_environment_unreadable"));
    assert_eq!(done.outcome.ended, Ended::SetupError);
}

#[tokio::test]
async fn files_env_and_what_setup_puts_into_startup_files_reach_agent_and_verify() {
    let world = World::where_the_agent_runs("cp in.bin \"$TARGET\"; echo \"$FROM_SETUP\" > said").await;
    let mut task = task(&[
        "test \"$TARGET\" = out.bin && test \"$FROM_SETUP\" = yes",
        "cmp out.bin /home/user/expected.bin",
        "test \"$(cat said)\" = yes",
    ]);
    task.env.insert("TARGET".into(), "out.bin".into());
    task.files
        .insert("in.bin".into(), FileContent::of(vec![0xff, 0, 0xfe]));
    task.verify_files.insert(
        "/home/user/expected.bin".into(),
        FileContent::of(vec![0xff, 0, 0xfe]),
    );
    task.setup = vec!["echo 'export FROM_SETUP=yes' >> ~/.bash_profile".into()];
    let done = world.run(task).await;
    assert_eq!(done.verified(), [0, 0, 0], "{:?}", done.outcome);
    assert_eq!(done.outcome.ended, Ended::Completed);
    assert_eq!(done.outcome.files["said"], "yes\n");
    assert!(done.outcome.files.contains_key("in.bin"));
}

#[tokio::test]
async fn a_file_that_cannot_be_written_is_a_fault_of_the_task() {
    let world = World::new().await;
    let mut task = task(&["true"]);
    task.files
        .insert("/usr/bin/mine".into(), FileContent::Text("x".into()));
    let done = world.run(task).await;
    assert_eq!(done.code(), Some("setup_file_failed"));
    assert_eq!(done.outcome.ended, Ended::SetupError);
}

#[tokio::test]
async fn files_are_collected_as_far_as_they_are_small_and_near() {
    let work = "mkdir -p a/b; echo 1 > top; echo 2 > a/near; echo 3 > a/b/far; \
                head -c 100000 /dev/zero > big; ln -s /etc/passwd link; mkfifo pipe; \
                head -c 20000 /dev/zero | tr '\\0' x > long";
    let world = World::where_the_agent_runs(work).await;
    let done = world.run(task(&[])).await;
    let names: Vec<_> = done.outcome.files.keys().map(String::as_str).collect();
    assert_eq!(names, ["a/near", "long", "top"]);
    assert_eq!(done.outcome.files["long"].len(), 8000);
    assert_eq!(done.outcome.files_extra, ["big"]);
}

#[tokio::test]
async fn bad_combinations_are_refused_with_a_row_and_no_sandbox() {
    let (world, backend) = fake(Trouble::None).await;
    let mut bad_limit = task(&[]);
    bad_limit.limits.agent_timeout_s = f64::NAN;
    let mut unknown_agent = task(&[]);
    unknown_agent.agent.name = "opencod".into();
    let mut unknown_version = task(&[]);
    unknown_version.agent.name = "opencode".into();
    unknown_version.agent.version = Some("../../etc".into());
    for (task, code) in [
        (bad_limit, "task_invalid"),
        (unknown_agent, "agent_unknown"),
        (unknown_version, "agent_unknown"),
    ] {
        let done: Done = world.run(task).await;
        assert_eq!(done.code(), Some(code));
        assert_eq!(done.outcome.ended, Ended::SetupError);
    }
    let mut request = world.request(task(&[]));
    request.mode = dressage_wire::task::Mode::BlackBox;
    let done = world.run_request(request).await;
    assert_eq!(done.code(), Some("unsupported"));
    let mut request = world.request(task(&[]));
    request.placement = dressage_wire::task::Placement::Direct;
    let done = world.run_request(request).await;
    assert_eq!(done.code(), Some("unsupported"));
    assert_eq!(backend.log(), [""; 0]);
    assert_eq!(world.recorder.kept.lock().unwrap().finished.len(), 5);
}

#[tokio::test]
async fn a_setup_command_that_cannot_be_started_is_said_to_be_that() {
    let world = World::new().await;
    let mut task = task(&["true"]);
    task.setup = vec!["true".into()];
    task.env.insert("PATH".into(), "/nowhere".into());
    let done = world.run(task).await;
    assert_eq!(done.code(), Some("setup_command_failed"));
    let fault = done.outcome.fault.as_ref().unwrap();
    assert_eq!(fault.message, "setup command 1 of 1 could not be started: true");
    assert_eq!(
        fault.causes,
        ["start `bash` in the sandbox: no such file or directory"]
    );
}
