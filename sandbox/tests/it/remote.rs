use crate::fake::{Does, E2B_KEY, HF_TOKEN};
use crate::provider::leases;
use crate::relay::{ASK, answer};
use crate::world::{
    Output, REMOTE, World, bytes, eventually, processes_with, python, run, sh, spec_for, stdout_of, try_run,
};
use dressage_sandbox::lease::Reaper;
use dressage_sandbox::{Asset, OutputSink, SandboxError};
use dressage_wire::ids::SandboxId;
use std::sync::Arc;
use std::time::Duration;

/// What each provider is asked for to make a sandbox, to put a file into it, to run a script and to end it.
fn asked_for(name: &str) -> [&'static str; 4] {
    match name {
        "e2b" => [
            "POST /v2/sandboxes",
            "POST /files",
            "POST /process.Process/Start",
            "DELETE /sandboxes",
        ],
        _ => ["POST /api/jobs/me", "/v1/files/write", "/v1/exec", "/cancel"],
    }
}

#[tokio::test]
async fn a_creation_that_is_refused_is_told_and_leaves_nothing() {
    for name in REMOTE {
        let world = World::new();
        for (status, body) in [
            (500, r#"{"code":500,"message":"internal","error":"internal"}"#),
            (400, "<html><title>nginx</title></html>"),
            (
                401,
                r#"{"code":401,"message":"no such key","error":"no such key"}"#,
            ),
        ] {
            world
                .fake()
                .fault(asked_for(name)[0], 1, Does::Refuse(status, body));
            let backend = world.remote(name);
            let error = backend.create(spec_for(&*backend)).await.err().unwrap();
            assert_eq!(error.is_transient(), status == 500, "{name}: {error}");
            assert_eq!(error.hint().is_some(), status == 401, "{name}: {error}");
            // What may have been done nevertheless, and is not found, is looked for again.
            let left = usize::from(status == 500);
            assert_eq!((world.fake().living(), leases(&world).len()), (0, left), "{name}");
            for lease in leases(&world) {
                lease.clear(&world.config.data_dir).unwrap();
            }
        }
    }
}

#[tokio::test]
async fn a_creation_whose_answer_breaks_off_is_found_and_ended() {
    for name in REMOTE {
        let world = World::new();
        for bytes in [0, 20, 150] {
            world.fake().fault(asked_for(name)[0], 1, Does::Cut(bytes));
            let backend = world.remote(name);
            let error = backend.create(spec_for(&*backend)).await.err().unwrap();
            assert!(matches!(error, SandboxError::Create { .. }), "{name}: {error}");
            assert_eq!((world.fake().living(), leases(&world).len()), (0, 0), "{name}");
        }
    }
}

#[tokio::test]
async fn whatever_fails_while_it_is_prepared_ends_it_and_is_the_error_told() {
    for name in REMOTE {
        let [_, upload, script, end] = asked_for(name);
        for step in [upload, script] {
            let world = World::new();
            let full = "no room: No space left on device (os error 28)";
            world
                .fake()
                .fault(step, 1, Does::Refuse(507, r#"{"code":507,"message":"no room: No space left on device (os error 28)","error":"no room: No space left on device (os error 28)"}"#));
            // Even where that is what fails once more.
            world.fake().fault(end, 1, Does::Refuse(503, "{}"));
            let backend = world.remote(name);
            let mut spec = spec_for(&*backend);
            spec.relay_port = Some(7000);
            let error = backend.create(spec).await.err().unwrap();
            assert!(error.to_string().contains(full), "{name} {step}: {error}");
            assert!(error.hint().unwrap().contains("free some space"));
            assert_eq!((world.fake().living(), leases(&world).len()), (0, 0), "{name}");
        }
    }
}

/// An error with its causes, as people and as programs see it.
fn all_of(error: &SandboxError) -> String {
    let causes = std::iter::successors(std::error::Error::source(error), |error| error.source());
    let causes: Vec<String> = causes.map(|cause| format!("{cause} {cause:?}")).collect();
    format!("{error} {error:?} {:?} {causes:?}", error.hint())
}

/// Some servers repeat the secret that they refuse.
#[tokio::test]
async fn no_secret_is_in_what_is_told_of_a_refusal() {
    for name in REMOTE {
        for form in [
            r#"{"code":401,"message":"no such key: SECRET","error":"no such key: SECRET"}"#,
            "<html><p>no such key: SECRET</html>",
            "Authorization: Bearer SECRET",
            r#"{"code":"unauthenticated","message":"SECRET!","error":"SECRET!"}"#,
        ] {
            for (step, asked) in asked_for(name).into_iter().enumerate() {
                let world = World::new();
                let backend = world.remote(name);
                let spec = spec_for(&*backend);
                // What the server is shown: inside of E2B's sandboxes that is their own token.
                let secret = match (name, step) {
                    ("e2b", 0 | 3) => E2B_KEY.to_owned(),
                    ("e2b", _) => format!("token-of-i{}", spec.id),
                    _ => HF_TOKEN.to_owned(),
                };
                let body = form.replace("SECRET", &secret).leak();
                let refuse = || world.fake().fault(asked, 1, Does::Refuse(401, body));
                let error = if step == 0 {
                    refuse();
                    backend.create(spec).await.err().unwrap()
                } else {
                    let sandbox = backend.create(spec).await.unwrap();
                    refuse();
                    let error = match step {
                        1 => sandbox.write_file("a", bytes("a"), 0o644).await.err(),
                        2 => sandbox.exists("a").await.err(),
                        _ => sandbox.kill().await.err(),
                    };
                    sandbox.kill().await.unwrap();
                    error.unwrap()
                };
                let text = all_of(&error);
                assert!(!text.contains(&secret), "{name}: {asked}: {text}");
                assert!(
                    text.contains("[secret]") || text.contains("HTML"),
                    "{name}: {asked}: {text}"
                );
            }
        }
    }
}

#[tokio::test]
async fn a_deadline_and_a_kill_end_the_whole_tree() {
    let world = World::new();
    for name in REMOTE {
        let backend = world.remote(name);
        let sandbox = backend.create(spec_for(&*backend)).await.unwrap();
        let mark = format!("mark-{}", SandboxId::new());
        let script = format!(
            "trap '' TERM HUP; setsid sh -c ': {mark}; while :; do sleep 0.05; done' & echo spread; : {mark}; while :; do sleep 0.05; done"
        );
        let mut command = sh(&script);
        command.timeout = Some(Duration::from_millis(700));
        let ran = run(&*sandbox, command).await;
        assert_eq!(ran.stdout, "spread\n", "{}", ran.stderr);
        assert_eq!((ran.exit.code, ran.exit.timed_out), (124, true), "{name}");
        // Those outside that entered it are a moment later.
        eventually("the end of the tree", || processes_with(&mark).is_empty()).await;
        let output = Arc::new(Output::default());
        let mut process = sandbox.start(sh(&script), output.clone()).await.unwrap();
        eventually("the tree", || output.stdout() == "spread\n").await;
        process.kill().await.unwrap();
        eventually("the end of the tree", || processes_with(&mark).is_empty()).await;
        let exit = process.wait().await.unwrap();
        assert_eq!((exit.code, exit.signal, exit.timed_out), (137, Some(9), false));
        assert_eq!(stdout_of(&*sandbox, sh("echo on")).await, "on");
        sandbox.kill().await.unwrap();
    }
}

#[tokio::test]
async fn a_program_goes_on_while_the_connection_is_lost_and_its_end_is_known() {
    let world = World::new();
    for name in REMOTE {
        let backend = world.remote(name);
        let sandbox = backend.create(spec_for(&*backend)).await.unwrap();
        // After its beginning; for Hugging Face in the middle of news.
        world.fake().fault(asked_for(name)[2], 1, Does::Cut(70));
        let script = sh("for n in 1 2 3 4 5; do echo $n; sleep 0.1; done; exit 7");
        let ran = run(&*sandbox, script).await;
        assert_eq!(ran.exit.code, 7, "{name}");
        if name == "huggingface" {
            assert_eq!(ran.stdout, "1\n2\n3\n4\n5\n");
        }
        sandbox.kill().await.unwrap();
    }
}

/// Faster than what is written is asked for.
#[tokio::test]
async fn a_flood_that_a_command_leaves_holds_nothing_up() {
    let world = World::new();
    for name in REMOTE {
        let backend = world.remote(name);
        let sandbox = backend.create(spec_for(&*backend)).await.unwrap();
        let script = "(while :; do head -c 3000000 /dev/zero; sleep 0.01; done) & sleep 0.2; exit 7";
        let ran = tokio::time::timeout(Duration::from_secs(60), run(&*sandbox, sh(script)));
        assert_eq!(ran.await.expect(name).exit.code, 7, "{name}");
        sandbox.kill().await.unwrap();
    }
}

#[tokio::test]
async fn a_listing_follows_no_links_and_says_what_it_cannot_list() {
    let world = World::new();
    for name in REMOTE {
        let backend = world.remote(name);
        let sandbox = backend.create(spec_for(&*backend)).await.unwrap();
        let script = "mkdir -p a/b; echo 12 > a/one; echo 1234 > 'a/b/t ü'; ln -s /etc a/etc; ln -s a link; mkfifo a/fifo";
        run(&*sandbox, sh(script)).await;
        let all = sandbox.list_files("a", 9, 9).await.unwrap();
        let expected = [("/home/user/a/b/t ü", 5), ("/home/user/a/one", 3)];
        assert_eq!(all.files, expected.map(|(path, size)| (path.to_owned(), size)));
        let one = sandbox.list_files("a", 9, 1).await.unwrap();
        assert_eq!((one.files.len(), one.truncated), (1, true));
        let none = sandbox.list_files("none", 9, 9).await.err().unwrap();
        assert!(matches!(none, SandboxError::NotFound { .. }), "{none}");
        for other in ["link", "a/one"] {
            let error = sandbox.list_files(other, 9, 9).await.err().unwrap();
            assert!(matches!(error, SandboxError::NotRegular { .. }), "{error}");
        }
        sandbox.kill().await.unwrap();
    }
}

#[tokio::test]
async fn an_upload_that_breaks_off_is_sent_again() {
    let world = World::new();
    for name in REMOTE {
        let backend = world.remote(name);
        let sandbox = backend.create(spec_for(&*backend)).await.unwrap();
        world.fake().fault(asked_for(name)[1], 1, Does::Drop);
        world.fake().fault(asked_for(name)[1], 1, Does::Cut(0));
        let content: Vec<u8> = (0..9_000_000u32).map(|number| (number % 251) as u8).collect();
        sandbox
            .write_file("a", content.clone().into(), 0o644)
            .await
            .unwrap();
        assert!(sandbox.read_file("a", 10 << 20).await.unwrap() == content);
        sandbox.kill().await.unwrap();
    }
}

#[tokio::test]
async fn a_sandbox_that_expires_is_gone_and_its_program_did_not_end_well() {
    for name in REMOTE {
        let world = World::new();
        let backend = world.remote(name);
        let sandbox = backend.create(spec_for(&*backend)).await.unwrap();
        let output = Arc::new(Output::default());
        let script = sh("echo on; sleep 300");
        let mut process = sandbox.start(script, output.clone()).await.unwrap();
        eventually("the program", || output.stdout() == "on\n").await;
        world.fake().expire();
        let error = process.wait().await.err().unwrap();
        assert!(matches!(error, SandboxError::Gone { .. }), "{name}: {error}");
        for error in [
            sandbox.write_file("a", bytes("x"), 0o644).await.err().unwrap(),
            sandbox.exists("a").await.err().unwrap(),
            try_run(&*sandbox, sh("true")).await.err().unwrap(),
        ] {
            assert!(matches!(error, SandboxError::Gone { .. }), "{name}: {error}");
        }
        sandbox.kill().await.unwrap();
        assert!(leases(&world).is_empty());
    }
}

#[tokio::test]
async fn a_kill_that_fails_is_told_and_done_by_the_next_or_by_the_sweep() {
    for name in REMOTE {
        let world = World::new();
        let backend = world.remote(name);
        let end = asked_for(name)[3];
        let sandbox = backend.create(spec_for(&*backend)).await.unwrap();
        world.fake().fault(end, 1, Does::Refuse(500, "{}"));
        let error = sandbox.kill().await.err().unwrap();
        assert!(matches!(error, SandboxError::Left { .. }), "{name}: {error}");
        assert_eq!((world.fake().living(), leases(&world).len()), (1, 1));
        sandbox.kill().await.unwrap();
        assert_eq!((world.fake().living(), leases(&world).len()), (0, 0));

        let sandbox = backend.create(spec_for(&*backend)).await.unwrap();
        world.fake().fault(end, 2, Does::Refuse(500, "{}"));
        sandbox.kill().await.err().unwrap();
        drop(sandbox);
        let reaper = Reaper::new(Arc::clone(&world.config.owner));
        let config = world.remote_config();
        for _ in 0..200 {
            if leases(&world).is_empty() {
                break;
            }
            reaper.sweep_own(&config).await;
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert_eq!((world.fake().living(), leases(&world).len()), (0, 0), "{name}");
    }
}

#[tokio::test]
async fn a_relay_is_dialled_again_and_ends_with_the_agents_programs() {
    let world = World::new();
    let tree = world.folder.path().join("agent");
    std::fs::create_dir_all(tree.join("bin")).unwrap();
    std::fs::write(tree.join("bin/agent"), "#!/bin/sh\necho an agent\n").unwrap();
    std::os::unix::fs::symlink("bin/agent", tree.join("link")).unwrap();
    for backend in world.everywhere() {
        if !REMOTE.contains(&backend.name()) {
            continue;
        }
        let mut spec = spec_for(&*backend);
        spec.relay_port = Some(7000);
        spec.assets = vec![Asset {
            name: "agent".into(),
            host_path: tree.clone(),
        }];
        let sandbox = backend.create(spec).await.unwrap();
        let agent = sandbox.asset_path("agent").unwrap();
        assert_eq!(
            stdout_of(&*sandbox, sh(&format!("sh {agent}/link"))).await,
            "an agent"
        );
        let mut ask = python(ASK);
        ask.argv.push(sandbox.relay_address().unwrap());
        for _ in 0..2 {
            let answering = tokio::spawn(answer(sandbox.open_relay().await.unwrap()));
            assert_eq!(stdout_of(&*sandbox, ask.clone()).await, "answered");
            answering.abort();
            let _ = answering.await;
        }
        // Neither the keys nor the relay's secret are where programs of the sandbox can find them.
        let found = stdout_of(
            &*sandbox,
            sh("cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n' | grep -c -e 'e2b[_]0123' -e 'hf[_]0123' -e 'RELAY[_]SECRET=[^ ]' -e 'SBX[_]TOKEN' ; true"),
        )
        .await;
        assert_eq!(found, "0", "{}", backend.name());
        let answering = tokio::spawn(answer(sandbox.open_relay().await.unwrap()));
        sandbox.separate(&[]).await.unwrap();
        eventually("the end of the relay", || answering.is_finished()).await;
        let error = sandbox.open_relay().await.err().unwrap();
        assert!(matches!(error, SandboxError::Gone { .. }), "{error}");
        sandbox.kill().await.unwrap();
    }
}

#[tokio::test]
async fn separation_ends_what_the_agent_left_and_moves_its_files_aside() {
    let world = World::new();
    for backend in world.everywhere() {
        if !REMOTE.contains(&backend.name()) {
            continue;
        }
        let sandbox = backend.create(spec_for(&*backend)).await.unwrap();
        let left = sh(
            "mkdir logs; echo 1 > logs/reward; (while :; do date > beat; sleep 0.02; done) >/dev/null 2>&1 & echo",
        );
        run(&*sandbox, left).await;
        sandbox.separate(&["logs".into()]).await.unwrap();
        let script =
            "ls logs | wc -l; cat logs.aside-1/reward; rm -f beat; sleep 0.1; ls beat 2>/dev/null; echo over";
        assert_eq!(stdout_of(&*sandbox, sh(script)).await, "0\n1\nover");
        sandbox.kill().await.unwrap();
    }
}

/// What a killed process left at providers, as the next one finds it.
#[tokio::test]
async fn what_is_dropped_with_its_process_is_swept_by_the_next() {
    for name in REMOTE {
        let world = World::new();
        let mut config = world.remote_config();
        let other = Arc::new(dressage_sandbox::lease::Owner::acquire(&config.data_dir).unwrap());
        config.owner = Arc::clone(&other);
        let backend = (dressage_sandbox::by_name(name).unwrap().make)(&config).unwrap();
        for _ in 0..8 {
            let sandbox = backend.create(spec_for(&*backend)).await.unwrap();
            let output: Arc<dyn OutputSink> = Arc::new(Output::default());
            let process = sandbox.start(sh("sleep 300"), output).await.unwrap();
            // As after kill -9: nothing of it is done.
            std::mem::forget((sandbox, process));
        }
        assert_eq!((world.fake().living(), leases(&world).len()), (8, 8));
        let reaper = Reaper::new(Arc::clone(&world.config.owner));
        let config = world.remote_config();
        // Its owner lives.
        assert!(reaper.sweep_everywhere(&config).await.unwrap().removed.is_empty());
        let lock = config
            .data_dir
            .join("owners")
            .join(format!("{}.lock", other.id()));
        std::fs::remove_file(lock).unwrap();
        let swept = reaper.sweep_everywhere(&config).await.unwrap();
        assert_eq!((swept.removed.len(), swept.failed.len()), (8, 0), "{name}");
        assert_eq!((world.fake().living(), leases(&world).len()), (0, 0));
    }
}

/// As many as `DRESSAGE_TEST_AT_ONCE` says.
#[tokio::test]
async fn many_at_once_are_made_used_and_ended() {
    let world = World::new();
    let count = std::env::var("DRESSAGE_TEST_AT_ONCE").map_or(12, |count| count.parse().unwrap());
    for backend in world.everywhere() {
        if !REMOTE.contains(&backend.name()) {
            continue;
        }
        let begun = std::time::Instant::now();
        let mut all = tokio::task::JoinSet::new();
        for number in 0..count {
            let backend = Arc::clone(&backend);
            all.spawn(async move {
                let sandbox = backend.create(spec_for(&*backend)).await.unwrap();
                let script = format!("echo {number}");
                assert_eq!(stdout_of(&*sandbox, sh(&script)).await, number.to_string());
                sandbox.kill().await.unwrap();
            });
        }
        while let Some(done) = all.join_next().await {
            done.unwrap();
        }
        println!("{}: {count} at once in {:?}", backend.name(), begun.elapsed());
        assert!(leases(&world).is_empty());
    }
}
