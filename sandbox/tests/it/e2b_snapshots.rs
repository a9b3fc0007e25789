use crate::e2b_traps::BROUGHT;
use crate::fake::{Does, Fake};
use crate::provider::{CREATED, ENDED, STARTED, Scripted, backend, leases, line, stream};
use crate::relay::{ASK, answer};
use crate::world::{World, python, run, sh, spec, stdout_of};
use dressage_sandbox::lease::{Lease, LeaseKind, Owner, Reaper, RemoteLease};
use dressage_sandbox::{Asset, Sandbox, SandboxError, SandboxSpec, Snapshot};
use dressage_wire::ids::SandboxId;
use dressage_wire::relay::SECRET_HEADER;
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// What is asked for to keep files.
const KEEP: &str = "/snapshots";

/// What a provider says that keeps files with what is in memory only.
const NOT_FILES_ALONE: &str = r#"{"code":400,"message":"filesystem-only snapshots are not enabled for this team","error_code":"snapshot_filesystem_only_disabled"}"#;

fn with_relay(snapshot: Option<&Snapshot>) -> SandboxSpec {
    SandboxSpec {
        relay_port: Some(7000),
        snapshot: snapshot.cloned(),
        ..spec()
    }
}

async fn keep(sandbox: &dyn Sandbox) -> Result<Snapshot, SandboxError> {
    sandbox.snapshot(&BTreeMap::new()).await
}

/// Whether programs of a sandbox reach the host through its relay.
async fn reaches_the_host(sandbox: &dyn Sandbox) -> bool {
    let answering = tokio::spawn(answer(sandbox.open_relay().await.unwrap()));
    let mut ask = python(ASK);
    ask.argv.push(sandbox.relay_address().unwrap());
    let ran = run(sandbox, ask).await;
    answering.abort();
    ran.stdout == "answered\n"
}

/// What the relay of a sandbox says to who shows it a secret.
async fn dialled(fake: &Fake, sandbox: SandboxId, secret: &str) -> String {
    let address = fake.url.trim_start_matches("http://");
    let mut connection = TcpStream::connect(address).await.unwrap();
    let request = format!(
        "GET / HTTP/1.1\r\nHost: {address}\r\n{}{SECRET_HEADER}: {secret}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
        Fake::headers_for(sandbox, 7001)
    );
    connection.write_all(request.as_bytes()).await.unwrap();
    let mut said = Vec::new();
    while !said.contains(&b'\n') {
        assert_ne!(connection.read_buf(&mut said).await.unwrap(), 0);
    }
    let said = String::from_utf8(said).unwrap();
    said.split(' ').nth(1).unwrap().to_owned()
}

/// Also where the provider keeps what is in memory, and programs go on in each sandbox that is made of it.
#[tokio::test]
async fn nothing_of_a_sandbox_runs_or_is_let_in_where_another_began_with_its_files() {
    for files_alone in [true, false] {
        let world = World::new();
        let backend = world.remote("e2b");
        let one = backend.create(with_relay(None)).await.unwrap();
        assert!(reaches_the_host(&*one).await);
        stdout_of(&*one, sh("echo kept > ~/file; echo too > /tmp/file")).await;
        if !files_alone {
            world.fake().fault(KEEP, 1, Does::Refuse(400, NOT_FILES_ALONE));
        }
        let snapshot = keep(&*one).await.unwrap();
        let two = backend.create(with_relay(Some(&snapshot))).await.unwrap();
        assert_eq!(stdout_of(&*two, sh("cat ~/file /tmp/file")).await, "kept\ntoo");
        assert!(reaches_the_host(&*two).await && reaches_the_host(&*one).await);
        let relays = "grep -lzx '[r]elay' /proc/[0-9]*/cmdline | wc -l";
        for sandbox in [&one, &two] {
            assert_eq!(stdout_of(&**sandbox, sh(relays)).await, "1");
        }
        // That of the first before, of the second, and of the first from then on.
        let secrets = world.fake().relay_secrets();
        assert_eq!(secrets.len(), 3);
        for (sandbox, its_own) in [(&two, 1), (&one, 2)] {
            for (number, secret) in secrets.iter().enumerate() {
                let expected = if number == its_own { "101" } else { "403" };
                let said = dialled(world.fake(), sandbox.id(), secret).await;
                assert_eq!(said, expected, "secret {number} of {secrets:?}");
            }
        }
        for sandbox in [one, two] {
            sandbox.kill().await.unwrap();
        }
        snapshot.remove().await.unwrap();
        assert_eq!((world.fake().living(), world.fake().snapshots()), (0, 0));
    }
}

#[tokio::test]
async fn what_was_brought_along_is_there_already_and_a_user_for_agents_is_made_anew() {
    use dressage_sandbox::Role;
    let world = World::new();
    let backend = world.remote("e2b");
    let tree = world.folder.path().join("agent");
    std::fs::create_dir(&tree).unwrap();
    std::fs::write(tree.join("agent"), "#!/bin/sh\necho an agent\n").unwrap();
    let spec = |snapshot: Option<&Snapshot>| SandboxSpec {
        assets: vec![Asset {
            name: "agent".into(),
            host_path: tree.clone(),
        }],
        ..with_relay(snapshot)
    };
    let one = backend.create(spec(None)).await.unwrap();
    let snapshot = keep(&*one).await.unwrap();
    // An upload would fail now. What an ordinary user plays has nothing that is root's, so that nothing there is trusted.
    if crate::world::is_root() {
        world.fake().fault("POST /files", 100, Does::Refuse(500, "{}"));
    }
    let two = backend.create(spec(Some(&snapshot))).await.unwrap();
    let mut users = Vec::new();
    for sandbox in [&one, &two] {
        let agent = sandbox.asset_path("agent").unwrap();
        let mut command = sh(&format!("sh {agent}/agent; id -u; stat -c %u ~"));
        command.role = Role::Agent;
        users.push(stdout_of(&**sandbox, command).await);
    }
    for said in &users {
        let mut lines = said.lines();
        assert_eq!(lines.next(), Some("an agent"));
        assert_eq!(lines.next(), lines.next(), "{said}");
    }
    if crate::world::is_root() {
        assert_ne!(users[0], users[1], "each has a number of its own");
    }
}

/// As what the provider runs beside a port that listens.
#[tokio::test]
async fn what_is_about_to_end_is_waited_for() {
    let world = World::new();
    let one = world.remote("e2b").create(spec()).await.unwrap();
    run(&*one, sh("setsid sleep 1 >/dev/null 2>&1 & echo")).await;
    keep(&*one).await.unwrap().remove().await.unwrap();
    one.kill().await.unwrap();
}

#[tokio::test]
async fn a_snapshot_whose_answer_breaks_off_is_found_by_its_name_and_removed() {
    for bytes in [0, 20, 90] {
        let world = World::new();
        let one = world.remote("e2b").create(with_relay(None)).await.unwrap();
        world.fake().fault(KEEP, 1, Does::Cut(bytes));
        let error = keep(&*one).await.err().unwrap();
        assert!(matches!(error, SandboxError::Operation { .. }), "{error}");
        assert_eq!((world.fake().snapshots(), leases(&world).len()), (0, 1));
        assert!(reaches_the_host(&*one).await, "it goes on as it was");
        one.kill().await.unwrap();
    }
}

#[tokio::test]
async fn one_that_is_refused_is_told_leaves_nothing_and_is_not_asked_for_twice() {
    for (status, asked) in [(403, 1), (404, 1), (405, 1), (501, 1), (400, 2)] {
        let world = World::new();
        let one = world.remote("e2b").create(with_relay(None)).await.unwrap();
        let body = r#"{"code":1,"message":"there are no snapshots here"}"#;
        world.fake().fault(KEEP, asked, Does::Refuse(status, body));
        let error = keep(&*one).await.err().unwrap();
        assert!(matches!(error, SandboxError::Unsupported { .. }), "{error}");
        assert!(
            error.to_string().contains("there are no snapshots here"),
            "{error}"
        );
        assert_eq!(
            (world.fake().snapshots(), leases(&world).len()),
            (0, 1),
            "{status}"
        );
        assert!(reaches_the_host(&*one).await, "it goes on as it was");
        // All that was to be refused was: the next is not.
        let snapshot = keep(&*one).await.unwrap();
        assert_eq!(world.fake().snapshots(), 1, "{status}");
        one.kill().await.unwrap();
        snapshot.remove().await.unwrap();
    }
}

#[tokio::test]
async fn one_that_may_have_been_made_stays_leased_until_it_cannot_come_to_be() {
    let world = World::new();
    let one = world.remote("e2b").create(spec()).await.unwrap();
    world.fake().fault(KEEP, 1, Does::Refuse(500, "{}"));
    let error = keep(&*one).await.err().unwrap();
    assert!(matches!(error, SandboxError::Operation { .. }), "{error}");
    one.kill().await.unwrap();
    let left = leases(&world);
    assert_eq!(left.len(), 1);
    assert_eq!(left[0].kind, LeaseKind::Snapshot);
    let reaper = Reaper::new(Arc::clone(&world.config.owner));
    let config = world.remote_config();
    let swept = reaper.sweep_own(&config).await;
    assert_eq!((swept.removed.len(), swept.failed.len()), (0, 1));
    let mut old = left[0].clone();
    old.remote.as_mut().unwrap().asked_at_ms = 0;
    old.write(&config.data_dir).unwrap();
    let swept = reaper.sweep_own(&config).await;
    assert_eq!((swept.removed, swept.failed.len()), (vec![old.sandbox], 0));
}

#[tokio::test]
async fn a_removal_that_fails_is_told_and_done_by_the_next_or_by_the_sweep() {
    let world = World::new();
    let one = world.remote("e2b").create(spec()).await.unwrap();
    let reaper = Reaper::new(Arc::clone(&world.config.owner));
    for by_sweep in [false, true] {
        let snapshot = keep(&*one).await.unwrap();
        let times = if by_sweep { 2 } else { 1 };
        world
            .fake()
            .fault("DELETE /templates", times, Does::Refuse(500, "{}"));
        let error = snapshot.remove().await.err().unwrap();
        assert!(matches!(error, SandboxError::Left { .. }), "{error}");
        assert_eq!(world.fake().snapshots(), 1);
        if by_sweep {
            drop(snapshot);
            let config = world.remote_config();
            while leases(&world).len() > 1 {
                reaper.sweep_own(&config).await;
                tokio::task::yield_now().await;
            }
        } else {
            snapshot.remove().await.unwrap();
        }
        assert_eq!((world.fake().snapshots(), leases(&world).len()), (0, 1));
    }
    one.kill().await.unwrap();
}

#[tokio::test]
async fn a_snapshot_of_a_sandbox_that_expired_is_none_and_the_sandbox_is_gone() {
    let world = World::new();
    let one = world.remote("e2b").create(spec()).await.unwrap();
    world.fake().expire();
    let error = keep(&*one).await.err().unwrap();
    assert!(matches!(error, SandboxError::Gone { .. }), "{error}");
    one.kill().await.unwrap();
    assert!(leases(&world).is_empty());
}

/// What is said on the wire, by a script.
#[tokio::test]
async fn it_is_asked_for_by_name_made_use_of_by_its_id_and_removed_in_one_segment() {
    let world = World::new();
    let said = |messages: &[&str]| line("POST /process.Process/Start", 200, &stream(messages, true));
    let (prepared, brought) = (said(&[STARTED, ENDED]), said(&[STARTED, BROUGHT, ENDED]));
    let kept = r#"{"snapshotID":"a-team/kept:default","names":["a-team/kept"]}"#;
    let provider = Scripted::start(vec![
        line("POST /v2/sandboxes", 201, CREATED),
        prepared.clone(),
        brought.clone(),
        // Nothing runs.
        prepared.clone(),
        line("POST /sandboxes/i7/snapshots", 201, kept),
        line("POST /v2/sandboxes", 201, &CREATED.replace("i7", "i8")),
        prepared,
        brought,
        line("DELETE /sandboxes/i7", 204, ""),
        line("DELETE /sandboxes/i8", 204, ""),
        line("DELETE /templates/", 204, ""),
    ])
    .await;
    let backend = backend(&provider.config(&world));
    let one = backend.create(spec()).await.unwrap();
    let snapshot = keep(&*one).await.unwrap();
    let spec = SandboxSpec {
        snapshot: Some(snapshot.clone()),
        ..spec()
    };
    let two = backend.create(spec).await.unwrap();
    one.kill().await.unwrap();
    two.kill().await.unwrap();
    snapshot.remove().await.unwrap();
    let heard = provider.heard.lock().unwrap().clone();
    let body = |begins: &str| {
        let request = heard.iter().rfind(|request| request.starts_with(begins)).unwrap();
        serde_json::from_str::<serde_json::Value>(request.split_once("\r\n\r\n").unwrap().1).unwrap()
    };
    assert_eq!(
        body("POST /sandboxes/i7/snapshots"),
        serde_json::json!({ "name": format!("dressage-snapshot-{}", snapshot.id()), "memory": false })
    );
    assert_eq!(body("POST /v2/sandboxes")["templateID"], "a-team/kept:default");
    let asked = provider.asked();
    assert_eq!(asked.last().unwrap(), "DELETE /templates/a-team%2Fkept%3Adefault");
    assert!(leases(&world).is_empty());
}

#[tokio::test]
async fn one_of_a_dead_process_that_was_never_answered_is_found_on_any_page_and_never_anothers() {
    let world = World::new();
    let dead = Owner::acquire(&world.config.data_dir).unwrap();
    let id = SandboxId::new();
    let mut lease = Lease::new(&dead, id, "e2b", BTreeMap::new());
    lease.kind = LeaseKind::Snapshot;
    let others = r#"[{"snapshotID":"a-team/another:default","names":["a-team/another"]}]"#;
    let ours = format!(r#"[{{"snapshotID":"abc123:default","names":["a-team/dressage-snapshot-{id}"]}}]"#);
    let provider = Scripted::start(vec![
        ("GET /snapshots", 200, "X-Next-Token: more\r\n", others.to_owned()),
        line("GET /snapshots", 200, &ours),
        line("DELETE /templates/", 204, ""),
    ])
    .await;
    lease.remote = Some(RemoteLease {
        place: provider.url.clone(),
        provider_id: None,
        asked_at_ms: 0,
    });
    lease.write(&world.config.data_dir).unwrap();
    drop(dead);
    let reaper = Reaper::new(Arc::clone(&world.config.owner));
    let swept = reaper.sweep_everywhere(&provider.config(&world)).await.unwrap();
    assert_eq!((swept.removed, swept.failed.len()), (vec![id], 0));
    let list = format!("GET /snapshots?limit=100&name=dressage-snapshot-{id}");
    assert_eq!(
        provider.asked(),
        [
            list.clone(),
            format!("{list}&nextToken=more"),
            "DELETE /templates/abc123%3Adefault".into()
        ]
    );
}
