use crate::provider::{NEVER, Scripted, backend, leases, line};
use crate::world::{World, spec};
use dressage_sandbox::lease::{Lease, Owner, Reaper, RemoteLease};
use dressage_sandbox::{Asset, E2bAccess, SandboxError};
use dressage_wire::ids::SandboxId;
use std::sync::Arc;

#[tokio::test]
async fn without_a_key_it_is_unavailable_and_says_which_to_set() {
    let world = World::new();
    let made = (dressage_sandbox::by_name("e2b").unwrap().make)(&world.config);
    assert!(made.err().unwrap().hint().unwrap().contains("E2B_API_KEY"));
}

#[tokio::test]
async fn a_quota_is_told_at_once_and_leaves_no_lease() {
    let world = World::new();
    let quota =
        r#"{"code":429,"message":"you have reached the maximum number of concurrent E2B sandboxes (20)"}"#;
    let provider = Scripted::start(vec![line("POST /v2/sandboxes", 429, quota)]).await;
    let error = backend(&provider.config(&world))
        .create(spec())
        .await
        .err()
        .unwrap();
    assert!(matches!(error, SandboxError::Unavailable { .. }), "{error}");
    assert_eq!(provider.asked(), ["POST /v2/sandboxes"]);
    assert!(leases(&world).is_empty());
}

#[tokio::test]
async fn a_creation_whose_answer_was_lost_is_found_by_its_label_and_killed() {
    let world = World::new();
    let spec = spec();
    let listed = format!(
        r#"[{{"sandboxID":"i1","metadata":{{"dressage-sandbox":"{}"}}}},{{"sandboxID":"i2","metadata":{{}}}}]"#,
        spec.id
    );
    let provider = Scripted::start(vec![
        line("POST /v2/sandboxes", 0, ""),
        line("GET /v2/sandboxes", 200, &listed),
        line("DELETE /sandboxes/i1", 204, ""),
    ])
    .await;
    let error = backend(&provider.config(&world))
        .create(spec)
        .await
        .err()
        .unwrap();
    assert!(matches!(error, SandboxError::Create { .. }), "{error}");
    let asked = provider.asked();
    assert_eq!(asked.len(), 3, "{asked:?}");
    assert_eq!(asked[2], "DELETE /sandboxes/i1");
    assert!(leases(&world).is_empty());
}

#[tokio::test]
async fn a_deployment_without_the_second_version_of_the_call_gets_the_first_with_a_timeout() {
    let world = World::new();
    let provider = Scripted::start(vec![
        line(
            "POST /v2/sandboxes",
            405,
            r#"{"code":405,"message":"method not allowed"}"#,
        ),
        line("POST /sandboxes", 401, r#"{"code":401,"message":"no such key"}"#),
    ])
    .await;
    let error = backend(&provider.config(&world))
        .create(spec())
        .await
        .err()
        .unwrap();
    assert!(error.hint().unwrap().contains("E2B_API_KEY"), "{error}");
    let heard = provider.heard.lock().unwrap().clone();
    assert!(heard[1].contains(r#""secure":true"#) && heard[1].contains(r#""timeout":600"#));
    assert!(!heard[1].to_ascii_lowercase().contains("idempotency-key"));
}

#[tokio::test]
async fn a_failure_while_it_is_prepared_kills_it_and_is_the_error_told() {
    let world = World::new();
    let created = r#"{"templateID":"base","sandboxID":"i7","clientID":"c","envdVersion":"0.6.13","envdAccessToken":"t"}"#;
    let provider = Scripted::start(vec![
        line("POST /v2/sandboxes", 201, created),
        line(
            "POST /process.Process/Start",
            401,
            r#"{"code":401,"message":"unauthorized access"}"#,
        ),
        line("DELETE /sandboxes/i7", 404, r#"{"code":404,"message":"gone"}"#),
    ])
    .await;
    let error = backend(&provider.config(&world))
        .create(spec())
        .await
        .err()
        .unwrap();
    assert!(error.to_string().contains("unauthorized access"), "{error}");
    assert_eq!(provider.asked().last().unwrap(), "DELETE /sandboxes/i7");
    assert!(leases(&world).is_empty());
}

#[tokio::test]
async fn a_limit_on_calls_is_waited_for_and_a_page_in_html_is_named() {
    let world = World::new();
    let limited = r#"{"code":429,"message":"Rate limit exceeded"}"#.to_owned();
    let provider = Scripted::start(vec![
        ("POST /v2/sandboxes", 429, "Retry-After: 0\r\n", limited),
        line("POST /v2/sandboxes", 400, "<!doctype html><h1>nginx</h1>"),
    ])
    .await;
    let error = backend(&provider.config(&world))
        .create(spec())
        .await
        .err()
        .unwrap();
    assert!(error.to_string().contains("HTML"), "{error}");
    assert_eq!(provider.asked().len(), 2);
}

/// A lease as a process leaves it behind that was killed, and whose owner is no more.
fn left_behind(world: &World, place: &str, provider_id: Option<&str>, asked_at_ms: u64) -> SandboxId {
    let dead = Owner::acquire(&world.config.data_dir).unwrap();
    let mut lease = Lease::new(&dead, SandboxId::new(), "e2b", Default::default());
    lease.remote = Some(RemoteLease {
        place: place.to_owned(),
        provider_id: provider_id.map(str::to_owned),
        asked_at_ms,
    });
    lease.write(&world.config.data_dir).unwrap();
    lease.sandbox
}

fn now_ms() -> u64 {
    let now = std::time::SystemTime::now();
    let since = now.duration_since(std::time::UNIX_EPOCH).unwrap();
    u64::try_from(since.as_millis()).unwrap()
}

#[tokio::test]
async fn what_a_dead_process_left_at_a_provider_is_removed_by_the_next() {
    let world = World::new();
    let provider = Scripted::start(vec![
        line(
            "DELETE /sandboxes/i9",
            500,
            r#"{"code":500,"message":"internal"}"#,
        ),
        line("DELETE /sandboxes/i9", 204, ""),
    ])
    .await;
    let config = provider.config(&world);
    let sandbox = left_behind(&world, &provider.url, Some("i9"), now_ms());
    let reaper = Reaper::new(Arc::clone(&world.config.owner));
    // Without a key nothing can be asked, and the lease stays.
    let swept = reaper.sweep_everywhere(&world.config).await.unwrap();
    assert_eq!((swept.removed.len(), swept.failed.len()), (0, 1));
    // The provider fails: the lease stays.
    let swept = reaper.sweep_everywhere(&config).await.unwrap();
    assert_eq!((swept.removed.len(), swept.failed.len()), (0, 1));
    assert_eq!(leases(&world).len(), 1);
    let swept = reaper.sweep_everywhere(&config).await.unwrap();
    assert_eq!(swept.removed, [sandbox]);
    assert!(swept.failed.is_empty() && leases(&world).is_empty());
    assert_eq!(provider.asked(), ["DELETE /sandboxes/i9"; 2]);
}

#[tokio::test]
async fn a_creation_that_was_never_answered_is_looked_for_by_its_label_until_it_cannot_come_to_be() {
    let world = World::new();
    let provider = Scripted::start(vec![
        line("GET /v2/sandboxes", 200, "[]"),
        line("GET /v2/sandboxes", 200, "[]"),
    ])
    .await;
    let config = provider.config(&world);
    let reaper = Reaper::new(Arc::clone(&world.config.owner));
    let old = left_behind(&world, &provider.url, None, now_ms() - 3_600_000);
    let swept = reaper.sweep_everywhere(&config).await.unwrap();
    assert_eq!(swept.removed, [old]);
    let young = left_behind(&world, &provider.url, None, now_ms());
    let swept = reaper.sweep_everywhere(&config).await.unwrap();
    assert_eq!((swept.removed.len(), swept.failed.len()), (0, 1));
    assert_eq!(leases(&world)[0].sandbox, young);
    for asked in provider.asked() {
        assert!(asked.contains("metadata=dressage-sandbox%3D"), "{asked}");
        assert!(asked.contains("state=running,paused"), "{asked}");
    }
}

#[tokio::test]
async fn a_lease_of_another_deployment_is_not_asked_of_this_one() {
    let world = World::new();
    let provider = Scripted::start(Vec::new()).await;
    left_behind(&world, "https://api.elsewhere.example", Some("i9"), 0);
    let reaper = Reaper::new(Arc::clone(&world.config.owner));
    let swept = reaper.sweep_everywhere(&provider.config(&world)).await.unwrap();
    assert_eq!((swept.removed.len(), swept.failed.len()), (0, 1));
    assert_eq!(provider.asked(), [""; 0]);
}

#[tokio::test]
async fn what_this_process_could_not_remove_is_tried_again_by_itself() {
    let world = World::new();
    let created = r#"{"templateID":"base","sandboxID":"i7","clientID":"c","envdVersion":"0.6.13","envdAccessToken":"t"}"#;
    let provider = Scripted::start(vec![
        line("POST /v2/sandboxes", 201, created),
        line(
            "POST /process.Process/Start",
            401,
            r#"{"code":401,"message":"unauthorized access"}"#,
        ),
        line(
            "DELETE /sandboxes/i7",
            500,
            r#"{"code":500,"message":"internal"}"#,
        ),
        line(
            "DELETE /sandboxes/i7",
            500,
            r#"{"code":500,"message":"internal"}"#,
        ),
        line("DELETE /sandboxes/i7", 204, ""),
    ])
    .await;
    let config = provider.config(&world);
    // The first error is the one told, and not that of the cleaning.
    let error = backend(&config).create(spec()).await.err().unwrap();
    assert!(error.to_string().contains("unauthorized access"), "{error}");
    assert_eq!(leases(&world).len(), 1);
    let reaper = Reaper::new(Arc::clone(&world.config.owner));
    let mut failed = 0;
    // The sandbox that was made tries it once more by itself when it is dropped.
    while !leases(&world).is_empty() {
        failed += reaper.sweep_own(&config).await.failed.len();
        assert!(failed <= 2);
        tokio::task::yield_now().await;
    }
    assert!(reaper.sweep_own(&config).await.failed.is_empty());
}

#[tokio::test]
async fn a_creation_that_is_given_up_is_found_and_removed() {
    let world = World::new();
    let spec = spec();
    let listed = format!(
        r#"[{{"sandboxID":"i1","metadata":{{"dressage-sandbox":"{}"}}}}]"#,
        spec.id
    );
    let provider = Scripted::start(vec![
        line("POST /v2/sandboxes", NEVER, ""),
        line("GET /v2/sandboxes", 200, &listed),
        line("DELETE /sandboxes/i1", 204, ""),
    ])
    .await;
    let config = provider.config(&world);
    let backend = backend(&config);
    {
        let creating = backend.create(spec);
        tokio::pin!(creating);
        let asked = async {
            while provider.asked().is_empty() {
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            }
        };
        tokio::select! {
            _ = &mut creating => panic!("it was never answered"),
            () = asked => {}
        }
    }
    let reaper = Reaper::new(Arc::clone(&world.config.owner));
    let swept = reaper.sweep_own(&config).await;
    assert_eq!((swept.removed.len(), swept.failed.len()), (1, 0));
    assert!(leases(&world).is_empty());
}

#[tokio::test]
async fn trap_11_the_first_version_of_the_call_is_not_repeated_when_it_may_have_been_done() {
    let world = World::new();
    let gone = r#"{"code":404,"message":"no route"}"#;
    let late = r#"{"code":504,"message":"placement timed out","error_code":"sandbox_placement_timeout"}"#;
    let spec = spec();
    let listed = format!(
        r#"[{{"sandboxID":"i1","metadata":{{"dressage-sandbox":"{}"}}}}]"#,
        spec.id
    );
    let provider = Scripted::start(vec![
        line("POST /v2/sandboxes", 404, gone),
        (
            "POST /sandboxes",
            503,
            "Retry-After: 0\r\n",
            r#"{"code":503,"message":"busy"}"#.into(),
        ),
        line("POST /sandboxes", 504, late),
        line("GET /v2/sandboxes", 200, &listed),
        line("DELETE /sandboxes/i1", 204, ""),
    ])
    .await;
    let error = backend(&provider.config(&world))
        .create(spec)
        .await
        .err()
        .unwrap();
    assert!(error.to_string().contains("could not be created"), "{error}");
    let asked = provider.asked();
    assert_eq!(
        (asked.len(), asked[2].as_str(), asked[4].as_str()),
        (5, "POST /sandboxes", "DELETE /sandboxes/i1"),
        "{asked:?}"
    );
    assert!(leases(&world).is_empty());
}

/// Against an independent emulator, or E2B itself, where `DRESSAGE_TEST_E2B_URL` names one.
#[tokio::test]
async fn a_sandbox_lives_works_and_ends_at_a_provider() {
    use crate::world::{bytes, run, sh, stdout_of};
    let Ok(url) = std::env::var("DRESSAGE_TEST_E2B_URL") else {
        eprintln!("SKIPPED: DRESSAGE_TEST_E2B_URL names no provider");
        return;
    };
    let world = World::new();
    let mut config = world.config.clone();
    config.providers.e2b = E2bAccess {
        api_key: Some("e2b_test".to_owned().into()),
        api_url: Some(url.clone()),
        sandbox_url: Some(url),
        ..E2bAccess::default()
    };
    let backend = backend(&config);
    let sandbox = backend.create(spec()).await.unwrap();
    assert!(leases(&world)[0].remote.as_ref().unwrap().provider_id.is_some());

    let ran = run(&*sandbox, sh("echo out; echo err >&2; pwd; exit 3")).await;
    assert_eq!(
        (ran.exit.code, ran.stdout.as_str(), ran.stderr.as_str()),
        (3, "out\n/home/user\n", "err\n")
    );
    let killed = run(&*sandbox, sh("kill -TERM $$")).await;
    assert_eq!((killed.exit.code, killed.exit.signal), (143, Some(15)));

    // Trap 2: what starts a session of its own ends with its tree too.
    let mut slow = sh("setsid sleep 300 & echo $!; sleep 300");
    slow.timeout = Some(std::time::Duration::from_millis(700));
    let slow = run(&*sandbox, slow).await;
    assert_eq!((slow.exit.code, slow.exit.timed_out), (124, true));
    // One that nobody has waited for yet has no command line.
    let alive = format!(
        "[ -n \"$(tr -d '\\0' 2>/dev/null </proc/{}/cmdline)\" ] && echo alive || echo dead",
        slow.stdout.trim()
    );
    assert_eq!(stdout_of(&*sandbox, sh(&alive)).await, "dead");

    let mut command = sh("cat; echo $A; env | cut -d= -f1 | sort | tr '\\n' ' '");
    command.stdin = bytes("given\n");
    command.clear_env = true;
    command.env = [("A", "x y"), ("PATH", "/usr/bin:/bin")]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into();
    assert_eq!(
        stdout_of(&*sandbox, command).await,
        "given\nx y\nA DRESSAGE_TREE PATH PWD"
    );

    let content: Vec<u8> = (0..3_000_000u32).map(|number| (number % 251) as u8).collect();
    sandbox
        .write_file("a/b c/ü", content.clone().into(), 0o750)
        .await
        .unwrap();
    assert_eq!(sandbox.read_file("a/b c/ü", 4 << 20).await.unwrap(), content);
    assert_eq!(stdout_of(&*sandbox, sh("stat -c %a 'a/b c/ü'")).await, "750");
    assert!(sandbox.exists("a").await.unwrap() && !sandbox.exists("no").await.unwrap());
    assert!(matches!(
        sandbox.read_file("no", 9).await.err().unwrap(),
        SandboxError::NotFound { .. }
    ));
    assert!(matches!(
        sandbox.read_file("a", 9).await.err().unwrap(),
        SandboxError::NotRegular { .. }
    ));
    assert!(matches!(
        sandbox.read_file("a/b c/ü", 9).await.err().unwrap(),
        SandboxError::TooLarge { .. }
    ));
    let list = sandbox.list_files("a", 9, 9).await.unwrap();
    assert_eq!(list.files, [("/home/user/a/b c/ü".to_owned(), 3_000_000)]);

    sandbox.kill().await.unwrap();
    sandbox.kill().await.unwrap();
    assert!(leases(&world).is_empty());
    let error = sandbox.exists("a").await.err().unwrap();
    assert!(matches!(error, SandboxError::Gone { .. }), "{error}");
}

/// As above: the relay is dialled, dialled again, and ends with the agent's programs; agents are brought along once.
#[tokio::test]
async fn a_relay_at_a_provider_carries_calls_and_can_be_dialled_again() {
    use crate::relay::{ASK, answer};
    use crate::world::{eventually, python, sh, stdout_of};
    let Ok(url) = std::env::var("DRESSAGE_TEST_E2B_URL") else {
        eprintln!("SKIPPED: DRESSAGE_TEST_E2B_URL names no provider");
        return;
    };
    let world = World::new();
    let mut config = world.config.clone();
    config.providers.e2b = E2bAccess {
        api_key: Some("e2b_unseen".to_owned().into()),
        api_url: Some(url.clone()),
        sandbox_url: Some(url),
        ..E2bAccess::default()
    };
    let tree = world.folder.path().join("agent");
    std::fs::create_dir_all(tree.join("bin")).unwrap();
    std::fs::write(tree.join("bin/agent"), "#!/bin/sh\necho an agent\n").unwrap();
    std::os::unix::fs::symlink("bin/agent", tree.join("link")).unwrap();
    let mut wanted = spec();
    wanted.relay_port = Some(7000);
    wanted.assets = vec![Asset {
        name: "agent".into(),
        host_path: tree,
    }];
    let sandbox = backend(&config).create(wanted).await.unwrap();
    let agent = sandbox.asset_path("agent").unwrap();
    assert_eq!(sandbox.asset_path("other"), None);
    assert_eq!(
        stdout_of(&*sandbox, sh(&format!("sh {agent}/link"))).await,
        "an agent"
    );

    let address = sandbox.relay_address().unwrap();
    assert_eq!(address, "127.0.0.1:7000");
    let mut ask = python(ASK);
    ask.argv.push(address);
    for _ in 0..2 {
        let answering = tokio::spawn(answer(sandbox.open_relay().await.unwrap()));
        assert_eq!(stdout_of(&*sandbox, ask.clone()).await, "answered");
        answering.abort();
        let _ = answering.await;
    }
    // Neither the key nor the relay's secret is where programs of the sandbox can find it.
    let found = stdout_of(
        &*sandbox,
        sh("cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n' | grep -c -e 'e2b[_]unseen' -e 'RELAY[_]SECRET=[^ ]' ; true"),
    )
    .await;
    assert_eq!(found, "0");

    let answering = tokio::spawn(answer(sandbox.open_relay().await.unwrap()));
    sandbox.separate(&[]).await.unwrap();
    eventually("the end of the relay", || answering.is_finished()).await;
    let error = sandbox.open_relay().await.err().unwrap();
    assert!(matches!(error, SandboxError::Gone { .. }), "{error}");
    sandbox.kill().await.unwrap();
    assert!(leases(&world).is_empty());
}
