use crate::role::{self, Other};
use crate::world::{
    World, client, containers, engine, eventually, is_root, run, sh, spec, spec_for, stdout_of,
};
use bollard::query_parameters::ListImagesOptions;
use dressage_sandbox::lease::{Lease, LeaseKind, Reaper};
use dressage_sandbox::{Backend, BackendConfig, Sandbox, SandboxError, SandboxSpec, Snapshot, registry};
use dressage_wire::ids::SandboxId;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Files of all kinds.
const MAKE: &str = r#"
    mkdir -p a/empty closed .hidden; head -c 3000000 /dev/urandom > big; echo x > a/file; ln a/file twice; ln -s a/file link; ln -s /nowhere dead
    truncate -s 50M sparse; printf end >> sparse; mkfifo pipe; echo '#!/bin/sh' > run; chmod 6751 run; echo y > closed/in; chmod 555 closed
    touch "$(printf 'bad\377name')" "two
lines"; chmod 600 twice; touch -h -d 2001-02-03T04:05:06.789 link a/empty a big; chmod 750 .; touch -d 2002-02-02 .
    python3 -c 'import os,socket; os.setxattr("run", "user.kept", b"yes"); socket.socket(socket.AF_UNIX).bind("socket")' || true
"#;

/// What is to be seen of the home: all of it, but for sockets and fractions of seconds, which images do not have.
const LOOK: &str = r#"
    find . ! -type s -printf '%p %y %U %G %m %n %s %T@ %l\n' | sed -E 's/ ([0-9]+)\.[0-9]+ / \1 /' | LC_ALL=C sort
    find . -type f | LC_ALL=C sort | tr '\n' '\0' | xargs -0 md5sum 2>/dev/null
    [ a/file -ef twice ] && echo linked
"#;

/// The rest, which images do not have either.
const LOOK_CLOSER: &str = r#"
    find . -printf '%p %T@\n' | LC_ALL=C sort; du -k sparse | cut -f1
    python3 -c 'import os; print(os.listxattr("run"), os.getxattr("run", "user.kept"))'
    [ -S socket ] && echo socket
"#;

async fn from(backend: &dyn Backend, snapshot: &Snapshot) -> Arc<dyn Sandbox> {
    let spec = SandboxSpec {
        snapshot: Some(snapshot.clone()),
        ..spec()
    };
    backend.create(spec).await.unwrap()
}

async fn keep(sandbox: &dyn Sandbox) -> Snapshot {
    sandbox.snapshot(&BTreeMap::new()).await.unwrap()
}

/// Whether the engine has the image of a snapshot, or the provider that is played has any.
async fn keeps(world: &World, snapshot: SandboxId) -> bool {
    if world.fake().snapshots() > 0 {
        return true;
    }
    if engine().is_none() {
        return false;
    }
    let images = client()
        .await
        .list_images(None::<ListImagesOptions>)
        .await
        .unwrap();
    let tag = format!("dressage-snapshot:{snapshot}");
    images
        .iter()
        .flat_map(|image| &image.repo_tags)
        .any(|name| name.ends_with(&tag))
}

/// The backends that keep snapshots.
fn keeping(config: &BackendConfig) -> impl Iterator<Item = Arc<dyn Backend>> {
    registry()
        .iter()
        .filter(|entry| entry.name != "docker" || engine().is_some())
        .map(|entry| (entry.make)(config).unwrap())
        .filter(|backend| backend.keeps_snapshots())
}

#[tokio::test]
async fn sandboxes_begin_with_exactly_the_files_that_were_kept_and_share_nothing() {
    let world = World::new();
    for backend in keeping(&world.remote_config()) {
        let name = backend.name();
        let one = backend.create(spec()).await.unwrap();
        stdout_of(&*one, sh(MAKE)).await;
        let look = match name {
            "docker" => LOOK.to_owned(),
            _ => format!("{LOOK}{LOOK_CLOSER}"),
        };
        let look = || sh(&look);
        let expected = stdout_of(&*one, look()).await;
        assert!(expected.contains("linked"), "{name}: {expected}");
        let snapshot = keep(&*one).await;
        assert_eq!(
            stdout_of(&*one, look()).await,
            expected,
            "{name}: the one it is of"
        );
        stdout_of(&*one, sh("echo changed > a/file; rm -rf .hidden")).await;
        let (two, three) = (from(&*backend, &snapshot).await, from(&*backend, &snapshot).await);
        assert_eq!(stdout_of(&*two, look()).await, expected, "{name}");
        stdout_of(&*two, sh("echo another > a/file; rm big; : > closed/in || true")).await;
        assert_eq!(
            stdout_of(&*three, look()).await,
            expected,
            "{name}: after another changed its own"
        );
        // With the one that it is of goes nothing.
        one.kill().await.unwrap();
        let four = from(&*backend, &snapshot).await;
        assert_eq!(stdout_of(&*four, look()).await, expected, "{name}");
        // What else a sandbox does works as in any.
        four.separate(&[format!("{}/logs/verifier", four.home())])
            .await
            .unwrap();
        assert_eq!(stdout_of(&*four, sh("cat twice; ls logs")).await, "x\nverifier");
        for sandbox in [two, three, four] {
            sandbox.kill().await.unwrap();
        }
        snapshot.remove().await.unwrap();
        snapshot.remove().await.unwrap();
        assert_eq!(
            (world.names("leases"), world.names("homes")),
            (vec![], vec![]),
            "{name}"
        );
        assert!(!keeps(&world, snapshot.id()).await, "{name}");
        let refused = SandboxSpec {
            snapshot: Some(snapshot),
            ..spec()
        };
        let Err(error) = backend.create(refused).await else {
            panic!("{name}: made of what is not there");
        };
        assert!(matches!(error, SandboxError::Create { .. }), "{error}");
        assert_eq!(world.names("leases"), Vec::<String>::new());
    }
}

#[tokio::test]
async fn a_snapshot_that_nobody_has_any_more_is_removed_with_the_last_sandbox_of_it() {
    let world = World::new();
    for backend in keeping(&world.remote_config()) {
        let one = backend.create(spec()).await.unwrap();
        let snapshot = keep(&*one).await;
        let id = snapshot.id();
        let (leases, _) = Lease::all(&world.config.data_dir).unwrap();
        let lease = leases.iter().find(|lease| lease.sandbox == id).unwrap();
        assert_eq!(
            (lease.kind, lease.backend.as_str()),
            (LeaseKind::Snapshot, backend.name())
        );
        let two = from(&*backend, &snapshot).await;
        drop(snapshot);
        assert_eq!(stdout_of(&*two, sh("echo lives")).await, "lives");
        one.kill().await.unwrap();
        two.kill().await.unwrap();
        drop((one, two));
        eventually("the end of the snapshot", || world.names("leases").is_empty()).await;
        assert_eq!(world.names("homes"), Vec::<String>::new());
        assert!(!keeps(&world, id).await, "{}", backend.name());
    }
}

#[tokio::test]
async fn programs_that_run_are_not_kept_and_files_in_memory_are_named() {
    let world = World::new();
    for backend in keeping(&world.remote_config()) {
        let mut spec = spec();
        spec.relay_port = Some(7000);
        let sandbox = backend.create(spec).await.unwrap();
        let temporary = match backend.name() {
            // Its folder for these is the machine's disk, and the other is this machine's.
            "e2b" => "",
            _ => "touch /tmp/left /var/tmp/.too; ",
        };
        let start = "(setsid sleep 1000 >/dev/null 2>&1 & echo $! > pid); \
                     until grep -qs sleep /proc/$(cat pid)/comm; do :; done";
        stdout_of(&*sandbox, sh(&format!("{temporary}{start}"))).await;
        let error = sandbox.snapshot(&BTreeMap::new()).await.unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, SandboxError::Unsupported { .. }), "{text}");
        assert!(text.ends_with("a snapshot of programs that run: sleep"), "{text}");
        run(
            &*sandbox,
            sh("kill -9 $(cat pid); while kill -0 $(cat pid); do :; done"),
        )
        .await;
        let snapshot = keep(&*sandbox).await;
        if temporary.is_empty() {
            assert_eq!(snapshot.omits(), [""; 0]);
            continue;
        }
        assert_eq!(snapshot.omits(), ["/tmp/left", "/var/tmp/.too"]);
        let other = from(&*backend, &snapshot).await;
        assert_eq!(
            stdout_of(&*other, sh("ls -A /tmp /var/tmp")).await,
            "/tmp:\n\n/var/tmp:"
        );
    }
}

#[tokio::test]
async fn what_setup_did_as_root_is_kept_in_a_container() {
    if engine().is_none() {
        return;
    }
    let world = World::new();
    let backend = world.backend("docker");
    let spec = SandboxSpec {
        user: Some("root".into()),
        home: "/root".into(),
        ..spec()
    };
    let one = backend.create(spec.clone()).await.unwrap();
    let make = "echo other:x:1234:1234::/srv:/bin/sh >> /etc/passwd; echo yes > /etc/kept; echo no > /tmp/not; chmod 700 ~; \
        mkdir /srv/other; chown 1234:1234 /srv/other; rm /etc/hostname.old 2>/dev/null; rm -rf /var/log/*";
    stdout_of(&*one, sh(make)).await;
    let look = "id -un 1234; cat /etc/kept; stat -c '%a %u' ~ /srv/other; ls /tmp /var/log; readlink /home/user; echo $HOME $USER";
    let snapshot = keep(&*one).await;
    let two = backend
        .create(SandboxSpec {
            snapshot: Some(snapshot.clone()),
            id: SandboxId::new(),
            ..spec
        })
        .await
        .unwrap();
    let expected = "other\nyes\n700 0\n755 1234\n/tmp:\n\n/var/log:\n/root\n/root root";
    assert_eq!(stdout_of(&*two, sh(look)).await, expected);
}

#[tokio::test]
async fn providers_and_process_refuse_what_they_do_not_keep() {
    let world = World::new();
    let local = world.local().await;
    let snapshot = keep(&*local).await;
    for backend in world.everywhere() {
        if backend.name() == "local" {
            continue;
        }
        let spec = SandboxSpec {
            snapshot: Some(snapshot.clone()),
            ..spec_for(&*backend)
        };
        let error = backend.create(spec).await.err().unwrap();
        assert!(matches!(error, SandboxError::Unsupported { .. }), "{error}");
        if !backend.keeps_snapshots() {
            let sandbox = backend.create(spec_for(&*backend)).await.unwrap();
            assert!(sandbox.snapshot(&BTreeMap::new()).await.is_err());
        }
    }
}

#[tokio::test]
async fn links_that_change_while_a_home_is_copied_lead_nowhere() {
    if !is_root() {
        return;
    }
    let world = World::new();
    let secret = world.folder.path().join("secret");
    std::fs::create_dir(&secret).unwrap();
    std::fs::write(secret.join("in"), "secret").unwrap();
    std::fs::set_permissions(&secret, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    let sandbox = world.local().await;
    // It calls itself as our own program is called, so that it is not seen, and is where `cp` looks all the time.
    let race = format!(
        "open('/proc/self/comm', 'w').write('dressage-tap')
import os
os.mkdir('d'); open('d/in', 'w').write('own'); os.symlink({:?}, 'l')
print('races', flush=True)
while True:
    os.rename('d', 'e'); os.rename('l', 'd'); os.rename('d', 'l'); os.rename('e', 'd')
",
        secret.display().to_string()
    );
    let racing = sandbox
        .start(
            crate::world::python(&race),
            Arc::new(crate::world::Output::default()),
        )
        .await
        .unwrap();
    let mut copied = 0;
    for _ in 0..10 {
        let Ok(snapshot) = sandbox.snapshot(&BTreeMap::new()).await else {
            continue;
        };
        copied += 1;
        let other = from(&*world.backend("local"), &snapshot).await;
        let seen = stdout_of(&*other, sh("cat d/in e/in 2>/dev/null; true")).await;
        assert!(!seen.contains("secret"), "{seen}");
    }
    drop(racing);
    println!("copied {copied} times");
}

/// What the role below is called.
const ROLE: &str = "snapshots::a_process_that_keeps_snapshots";

/// Keeps the files of a sandbox, and makes another of them.
#[test]
#[ignore = "a role that another test starts in a process of its own"]
fn a_process_that_keeps_snapshots() {
    role::play(async |config| {
        for backend in keeping(&config) {
            let one = backend.create(spec()).await.unwrap();
            let snapshot = keep(&*one).await;
            let two = from(&*backend, &snapshot).await;
            for id in [one.id(), snapshot.id(), two.id()] {
                role::holds(id);
            }
            std::mem::forget((one, snapshot, two));
        }
    });
}

#[tokio::test]
async fn what_a_killed_process_kept_is_removed_after_the_sandboxes_that_are_made_of_it() {
    let world = World::new();
    let config = world.remote_config();
    let mut other = Other::start(ROLE, &world);
    other.kill();
    assert_eq!(other.held.len(), 3 * keeping(&config).count());
    assert_eq!((world.fake().living(), world.fake().snapshots()), (2, 1));
    let reaper = Reaper::new(Arc::clone(&world.config.owner));
    let mut swept = reaper.sweep_everywhere(&config).await.unwrap();
    assert!(swept.failed.is_empty(), "{:?}", swept.failed);
    swept.removed.sort();
    other.held.sort();
    assert_eq!(swept.removed, other.held);
    assert_eq!((world.names("leases"), world.names("homes")), (vec![], vec![]));
    for id in &other.held {
        assert_eq!(containers(*id).await, []);
        assert!(!keeps(&world, *id).await);
    }
    assert_eq!((world.fake().living(), world.fake().snapshots()), (0, 0));
}
