use crate::world::{ScriptedAgent, World, WorldPlan, enterable_folder, shell, task, task_of_agent};
use dressage_rollout::agents::{Agent, AgentError, Agents, InstallProgress, InstallRequest, OpenCode};
use dressage_testkit::fault::{Fault, FaultPlan};
use dressage_testkit::model::{ScriptedTurns, Turn};
use dressage_wire::call::{Flag, Purpose};
use dressage_wire::event::{AgentEvent, Event, Stage};
use dressage_wire::fault::{Ended, FaultOwner};
use dressage_wire::task::{Mode, NetworkPolicy, Placement, VerifyWhen};
use serde_json::json;
use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

#[tokio::test]
async fn an_agent_that_works_is_heard_recorded_and_rewarded() {
    let world = World::where_the_agent_runs("echo hello > greeting").await;
    let done = world.run(task(&["grep -q hello greeting"])).await;
    assert_eq!(done.outcome.ended, Ended::Completed, "{:?}", done.outcome);
    assert_eq!(done.reward(), Some(1.0));
    let agent = done.outcome.agent.as_ref().unwrap();
    assert_eq!((agent.exit_code, agent.spoke), (0, true));
    assert!(agent.session.is_some());
    assert_eq!(done.outcome.totals.calls, 2);
    assert_eq!(world.recorder.kept.lock().unwrap().calls.len(), 2);
    let texts: Vec<_> = done
        .events
        .iter()
        .filter_map(|event| match &event.event {
            Event::Agent {
                event: AgentEvent::Text { text },
            } => Some(text.as_str()),
            _ => None,
        })
        .collect();
    // The model writes two line breaks after its thinking, and nobody strips them.
    assert_eq!(texts, ["\n\nDone."]);
    let ended: Vec<_> = done
        .events
        .iter()
        .filter_map(|event| match &event.event {
            Event::CallEnded { call } => Some((call.index, call.purpose)),
            _ => None,
        })
        .collect();
    assert_eq!(ended, [(0, Purpose::Agent), (1, Purpose::Agent)]);
}

#[tokio::test]
async fn the_instruction_reaches_the_model_verbatim() {
    let world = World::new().await;
    let instruction = "  \"quoted\" $HOME `id` \\ 'single'\n\nlast line — ünïcode \u{1f389}\n";
    let mut task = task(&[]);
    task.instruction = instruction.into();
    let done = world.run(task).await;
    assert_eq!(done.outcome.ended, Ended::Completed, "{:?}", done.outcome);
    let body: serde_json::Value = serde_json::from_slice(&world.model.received()[0].body).unwrap();
    let messages = body["messages"].as_array().unwrap();
    let user = messages.iter().find(|message| message["role"] == "user").unwrap();
    assert_eq!(user["content"], instruction);
}

#[tokio::test]
async fn the_key_of_the_endpoint_never_enters_the_sandbox_and_the_token_is_in_no_argument() {
    let look =
        "env > seen; cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n' >> seen";
    let plan = WorldPlan {
        script: shell(look),
        model_key: Some("sk-the-real-key".into()),
        ..WorldPlan::default()
    };
    let world = World::planned(plan).await;
    let mut endpoint = world.endpoint();
    endpoint.api_key = Some("sk-the-real-key".into());
    let done = world
        .run_request(world.request_to(task(&["! grep -q the-real-key seen", "test -s seen"]), endpoint))
        .await;
    assert_eq!(done.verified(), [0, 0], "{:?}", done.outcome);
}

#[tokio::test]
async fn agents_that_never_end_are_killed_with_their_children_at_the_deadline() {
    for misbehaviour in ["hang", "never_exit", "hang,ignore_sigterm"] {
        let world = World::new().await;
        let mut task = task_of_agent(misbehaviour);
        task.limits.agent_timeout_s = 2.0;
        let before = Instant::now();
        let done = world.run(task).await;
        assert_eq!(
            done.outcome.ended,
            Ended::Timeout,
            "{misbehaviour}: {:?}",
            done.outcome
        );
        assert_eq!(done.code(), Some("agent_timeout"), "{misbehaviour}");
        assert_eq!(
            done.outcome.agent.as_ref().unwrap().exit_code,
            124,
            "{misbehaviour}"
        );
        assert_eq!(
            done.outcome.reward, None,
            "{misbehaviour}: verify does not run after a timeout"
        );
        assert!(before.elapsed() < Duration::from_secs(40), "{misbehaviour}");
        assert!(done.stages().contains(&Stage::Collect));
    }
}

#[tokio::test]
async fn a_timeout_tells_that_the_endpoint_had_not_answered() {
    let faults = FaultPlan::default().always(Fault::StallBeforeHeaders { ms: 600_000 });
    let world = World::planned(WorldPlan {
        faults,
        ..WorldPlan::default()
    })
    .await;
    let mut task = task(&["true"]);
    task.limits.agent_timeout_s = 2.0;
    let done = world.run(task).await;
    assert_eq!(done.outcome.ended, Ended::Timeout, "{:?}", done.outcome);
    let causes = done.outcome.fault.unwrap().causes;
    assert!(
        causes
            .iter()
            .any(|cause| cause.contains("had not answered the last call")),
        "{causes:?}"
    );
}

#[tokio::test]
async fn verify_always_runs_after_a_timeout_too() {
    let mut task = task_of_agent("hang");
    task.limits.agent_timeout_s = 1.0;
    task.verify_when = VerifyWhen::Always;
    let done = World::new().await.run(task).await;
    assert_eq!(done.outcome.ended, Ended::Timeout);
    assert_eq!(done.reward(), Some(1.0));
}

#[tokio::test]
async fn agents_that_fail_are_told_apart_and_not_verified() {
    for (misbehaviour, code, exit_code, signal) in [
        ("exit_3", "agent_exit", 3, None),
        ("crash", "agent_killed", 137, Some(9)),
        ("no_text", "agent_silent", 0, None),
    ] {
        let done = World::new().await.run(task_of_agent(misbehaviour)).await;
        let fault = done
            .outcome
            .fault
            .as_ref()
            .unwrap_or_else(|| panic!("{misbehaviour}: {:?}", done.outcome));
        assert_eq!(
            (fault.code.as_str(), fault.owner),
            (code, FaultOwner::Agent),
            "{misbehaviour}"
        );
        let agent = done.outcome.agent.as_ref().unwrap();
        assert_eq!(
            (agent.exit_code, agent.signal),
            (exit_code, signal),
            "{misbehaviour}"
        );
        assert_eq!(done.outcome.ended, Ended::AgentError, "{misbehaviour}");
        assert_eq!(done.outcome.reward, None, "{misbehaviour}");
    }
}

#[tokio::test]
async fn a_model_that_says_nothing_is_for_verify_to_judge() {
    let script = Arc::new(ScriptedTurns(vec![Turn::says("")]));
    let done = World::planned(WorldPlan {
        script,
        ..WorldPlan::default()
    })
    .await
    .run(task(&["false"]))
    .await;
    assert_eq!(done.outcome.ended, Ended::Completed, "{:?}", done.outcome);
    assert_eq!(done.reward(), Some(0.0));
    assert!(!done.outcome.agent.as_ref().unwrap().spoke);
    assert!(
        done.outcome
            .warnings
            .iter()
            .any(|warning| warning.contains("without any assistant text"))
    );
}

#[tokio::test]
async fn an_agent_that_prints_50_mb_is_kept_by_its_end() {
    let done = World::new().await.run(task_of_agent("spam")).await;
    assert_eq!(done.outcome.ended, Ended::Completed, "{:?}", done.outcome);
    assert!(done.outcome.agent.unwrap().log_tail.len() <= 16 * 1024);
}

#[tokio::test]
async fn a_spent_budget_ends_the_agent_and_verify_runs() {
    let turn = || {
        Turn::calls(
            "bash",
            json!({ "command": "echo x >> work", "description": "work" }),
        )
    };
    let script = Arc::new(ScriptedTurns((0..20).map(|_| turn()).collect()));
    let world = World::planned(WorldPlan {
        script,
        ..WorldPlan::default()
    })
    .await;
    let mut task = task(&["test $(wc -l < work) = 2"]);
    task.limits.max_calls = Some(2);
    let done = world.run(task).await;
    assert_eq!(done.outcome.ended, Ended::Budget, "{:?}", done.outcome);
    assert_eq!(done.code(), None);
    assert_eq!(done.reward(), Some(1.0));
    assert_eq!(world.model.calls(), 2);
    let kept = world.recorder.kept.lock().unwrap();
    let flags: Vec<_> = kept
        .calls
        .iter()
        .map(|(_, call)| call.record.meta.flags.contains(&Flag::Budget))
        .collect();
    assert_eq!(flags, [false, false, true]);
}

#[tokio::test]
async fn foreign_calls_are_recorded_and_never_trained() {
    let world = World::new().await;
    let done = world.run(task_of_agent("foreign")).await;
    assert_eq!(done.outcome.ended, Ended::Completed, "{:?}", done.outcome);
    let kept = world.recorder.kept.lock().unwrap();
    let purposes: Vec<_> = kept
        .calls
        .iter()
        .map(|(_, call)| call.record.meta.purpose)
        .collect();
    assert_eq!(purposes, [Purpose::Foreign, Purpose::Agent]);
    assert_eq!(
        (done.outcome.totals.calls, done.outcome.totals.trainable_calls),
        (2, 1)
    );
}

#[tokio::test]
async fn a_wrong_key_gets_nothing_from_the_relay() {
    let world = World::new().await;
    let done = world.run(task_of_agent("wrong_key")).await;
    assert_eq!(done.outcome.ended, Ended::AgentError, "{:?}", done.outcome);
    assert_eq!(world.model.calls(), 0);
}

#[tokio::test]
async fn a_missing_program_and_one_of_another_architecture_are_faults_with_a_hint() {
    let cache = enterable_folder();
    let mut wanted = task(&[]);
    wanted.agent.name = "opencode".into();
    let world = || {
        World::planned(WorldPlan {
            cache_dir: Some(cache.path().to_owned()),
            ..WorldPlan::default()
        })
    };
    let missing = world().await.run(wanted.clone()).await;
    let fault = missing.outcome.fault.as_ref().unwrap();
    assert_eq!(
        (fault.code.as_str(), fault.owner),
        ("agent_missing", FaultOwner::Agent)
    );
    assert!(
        fault
            .hint
            .as_ref()
            .unwrap()
            .contains("dressage agents install opencode"),
        "{fault:?}"
    );

    let directory = cache
        .path()
        .join("agents/opencode")
        .join(OpenCode.pinned_version())
        .join("bin");
    std::fs::create_dir_all(&directory).unwrap();
    let mut header = vec![0u8; 64];
    header[..5].copy_from_slice(b"\x7fELF\x02");
    header[18] = if std::env::consts::ARCH == "aarch64" {
        62
    } else {
        183
    };
    std::fs::write(directory.join("opencode"), header).unwrap();
    std::fs::set_permissions(directory.join("opencode"), std::fs::Permissions::from_mode(0o755)).unwrap();
    let other = world().await.run(wanted).await;
    let fault = other.outcome.fault.as_ref().unwrap();
    assert_eq!(fault.code, "agent_missing");
    assert!(fault.message.contains("this machine is"), "{fault:?}");
    assert!(fault.hint.as_ref().unwrap().contains("--force"), "{fault:?}");
}

#[tokio::test]
async fn an_installation_that_fails_says_why_and_leaves_nothing() {
    let cache = enterable_folder();
    let npm = cache.path().join("fake-npm");
    let write = |script: &str| {
        std::fs::write(&npm, format!("#!/bin/bash\n{script}\n")).unwrap();
        std::fs::set_permissions(&npm, std::fs::Permissions::from_mode(0o755)).unwrap();
    };
    let request = || InstallRequest {
        cache_dir: cache.path().to_owned(),
        version: None,
        npm: Some(npm.clone()),
        npm_config: None,
        python: None,
        force: false,
    };
    let install = async || OpenCode.install(&request(), &|_| {}).await.unwrap_err();

    let error = install().await;
    assert!(
        matches!(error, AgentError::Installer { program: "npm", .. }),
        "{error}"
    );
    assert!(error.hint().unwrap().contains("npm"));

    write("echo 'npm error code E404' >&2; echo 'npm error 404 no such package' >&2; exit 1");
    let error = install().await;
    assert!(
        error.to_string().contains("npm error 404 no such package"),
        "{error}"
    );

    let put_program = "package=${*: -1}; to=$PWD/node_modules/${package%@*}/bin; mkdir -p $to;";
    write(&format!("{put_program} echo 'echo 1.18.33' > $to/opencode"));
    let error = install().await;
    assert!(error.to_string().contains("it is not an ELF program"), "{error}");

    write(&format!("{put_program} cp /bin/true $to/opencode"));
    let error = install().await;
    assert!(error.to_string().contains("it says it is version"), "{error}");

    let left: Vec<_> = std::fs::read_dir(cache.path().join("agents/opencode"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(left, [".lock"]);
}

#[tokio::test]
async fn an_installation_waits_for_another_of_the_same_and_what_is_there_is_not_fetched_again() {
    let cache = enterable_folder();
    let parent = cache.path().join("agents/opencode");
    std::fs::create_dir_all(&parent).unwrap();
    let other = std::fs::File::create(parent.join(".lock")).unwrap();
    other.lock().unwrap();
    let request = InstallRequest {
        cache_dir: cache.path().to_owned(),
        version: None,
        // Whoever calls this fetches again.
        npm: Some("/nowhere/npm".into()),
        npm_config: None,
        python: None,
        force: false,
    };
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    let installing = tokio::spawn(async move {
        OpenCode
            .install(&request, &|progress| tell.send(progress).unwrap())
            .await
    });
    assert_eq!(told.recv().await, Some(InstallProgress::Waiting));
    // The other process ends its work: the program is there, and the lock is free.
    let directory = parent.join(OpenCode.pinned_version()).join("bin");
    std::fs::create_dir_all(&directory).unwrap();
    std::fs::copy("/bin/true", directory.join("opencode")).unwrap();
    drop(other);
    let installed = installing.await.unwrap().unwrap();
    assert_eq!(installed.directory, Some(parent.join(OpenCode.pinned_version())));
    let version = OpenCode.pinned_version().to_owned();
    assert_eq!(
        told.recv().await,
        Some(InstallProgress::AlreadyInstalled { version })
    );
}

#[test]
fn the_table_of_agents_is_the_folder_of_agents() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/agents");
    let shared = ["contract", "lines", "merge", "npm", "pip", "program", "tree"];
    let mut files: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "rs"))
        .map(|path| path.file_stem().unwrap().to_str().unwrap().replace('_', "-"))
        .filter(|name| !shared.contains(&name.as_str()))
        .collect();
    files.sort();
    let agents = Agents::builtin();
    let mut names: Vec<_> = agents.iter().map(|agent| agent.name().to_owned()).collect();
    names.sort();
    assert_eq!(names, files);
    assert!(agents.get("scripted").is_err());
    assert!(agents.with(Arc::new(ScriptedAgent)).get("scripted").is_ok());
}

#[tokio::test]
async fn in_the_process_sandbox_a_task_for_home_user_is_refused_and_others_run() {
    let plan = WorldPlan {
        script: shell("echo hello > greeting"),
        backend: crate::world::BackendChoice::Named("process"),
        ..WorldPlan::default()
    };
    let world = World::planned(plan).await;
    let refused = world.run(task(&["test -f /home/user/workdir/greeting"])).await;
    assert_eq!(refused.code(), Some("unsupported"), "{:?}", refused.outcome);
    for placement in [Placement::Relay, Placement::Direct] {
        let mut task = task(&["grep -q hello greeting"]);
        task.network = NetworkPolicy::Open;
        let mut request = world.request(task);
        request.placement = placement;
        let done = world.run_request(request).await;
        assert_eq!(done.reward(), Some(1.0), "{placement:?}: {:?}", done.outcome);
        assert_eq!(done.outcome.totals.calls, 2, "{placement:?}");
    }
}

#[tokio::test]
async fn in_mode_black_box_the_agent_talks_to_the_endpoint_itself_and_nothing_is_recorded() {
    let plan = WorldPlan {
        script: shell("echo hello > greeting"),
        model_key: Some("sk-real".into()),
        backend: crate::world::BackendChoice::Named("process"),
        ..WorldPlan::default()
    };
    let world = World::planned(plan).await;
    let mut task = task(&["grep -q hello greeting"]);
    task.network = NetworkPolicy::Open;
    let mut endpoint = world.endpoint();
    endpoint.api_key = Some("sk-real".into());
    let mut request = world.request_to(task, endpoint);
    request.mode = Mode::BlackBox;
    let done = world.run_request(request).await;
    assert_eq!(done.reward(), Some(1.0), "{:?}", done.outcome);
    assert_eq!((world.model.calls(), done.outcome.totals.calls), (2, 0));
}

#[tokio::test]
async fn a_trace_that_was_written_in_the_sandbox_is_taken_and_marked() {
    let plan = WorldPlan {
        script: shell("echo hello > greeting"),
        backend: crate::world::BackendChoice::Named("process"),
        ..WorldPlan::default()
    };
    let world = World::planned(plan).await;
    let mut task = task(&["grep -q hello greeting"]);
    task.network = NetworkPolicy::Open;
    let mut request = world.request(task);
    request.placement = Placement::InSandbox;
    let done = world.run_request(request).await;
    assert_eq!(done.reward(), Some(1.0), "{:?}", done.outcome);
    assert_eq!(
        (done.outcome.totals.calls, done.outcome.totals.trainable_calls),
        (2, 0)
    );
    let kept = world.recorder.kept.lock().unwrap();
    assert!(
        kept.calls
            .iter()
            .all(|(_, call)| call.record.meta.flags.contains(&Flag::SandboxIntegrity))
    );
    assert!(
        kept.calls
            .iter()
            .all(|(_, call)| !call.record.completions[0].token_ids.is_empty())
    );
}
