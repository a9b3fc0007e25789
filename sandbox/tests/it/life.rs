use crate::role::{self, Other};
use crate::world::{
    Output, World, containers, eventually, is_root, names, processes_with, run, sh, spec, stdout_of,
};
use dressage_sandbox::lease::{Lease, Owner, Reaper, dead_owners, is_alive};
use dressage_sandbox::{Backend, Sandbox, SandboxError};
use dressage_wire::ids::SandboxId;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What the role below is called.
const ROLE: &str = "life::a_process_that_holds_sandboxes";

/// Starts sandboxes, each with a program.
#[test]
#[ignore = "a role that other tests start in a process of its own"]
fn a_process_that_holds_sandboxes() {
    role::play(async |config| {
        for entry in crate::world::entries() {
            let backend = (entry.make)(&config).unwrap();
            let sandbox = backend.create(spec()).await.unwrap();
            let script = format!(
                "echo > here; : child-of-{}; while :; do sleep 0.05; done",
                sandbox.id()
            );
            let process = sandbox
                .start(sh(&script), Arc::new(Output::default()))
                .await
                .unwrap();
            role::holds(sandbox.id());
            std::mem::forget((sandbox, process));
        }
    });
}

/// Folders of control groups that a lease of the sandbox named, by looking at every group there is.
fn groups_of(sandbox: SandboxId) -> Vec<PathBuf> {
    fn search(folder: &Path, name: &str, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                if entry.file_name().to_string_lossy().contains(name) {
                    found.push(entry.path());
                }
                search(&entry.path(), name, found);
            }
        }
    }
    let mut found = Vec::new();
    search(Path::new("/sys/fs/cgroup"), &sandbox.to_string(), &mut found);
    found
}

async fn assert_nothing_left(data_dir: &Path, sandbox: SandboxId) {
    let id = sandbox.to_string();
    for folder in ["homes", "leases"] {
        let left: Vec<_> = names(&data_dir.join(folder))
            .into_iter()
            .filter(|name| name.contains(&id))
            .collect();
        assert_eq!(left, Vec::<String>::new(), "in {folder}");
    }
    assert_eq!(groups_of(sandbox), Vec::<PathBuf>::new());
    assert_eq!(containers(sandbox).await, []);
    let left: Vec<String> = processes_with(&id)
        .into_iter()
        .map(|pid| {
            let read =
                |name: &str| std::fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap_or_default();
            format!("{}: {}", read("stat"), read("cmdline").replace('\0', " "))
        })
        .collect();
    assert_eq!(left, Vec::<String>::new());
}

#[tokio::test]
async fn kill_is_idempotent_and_leaves_nothing() {
    let world = World::new();
    for sandbox in world.sandboxes().await {
        let id = sandbox.id();
        let script = format!(
            "(setsid sh -c ': of-{id}; while :; do sleep 0.05; done' &); : of-{id}; while :; do sleep 0.05; done"
        );
        let mut process = sandbox
            .start(sh(&script), Arc::new(Output::default()))
            .await
            .unwrap();
        eventually("its programs", || processes_with(&format!("of-{id}")).len() >= 3).await;
        let lease = Lease::find(&world.config.data_dir, id).unwrap().unwrap();
        if is_root() && lease.remote.is_none() {
            assert!(!groups_of(id).is_empty());
        }
        let (one, two) = tokio::join!(sandbox.kill(), sandbox.kill());
        one.unwrap();
        two.unwrap();
        assert_nothing_left(&world.config.data_dir, id).await;
        sandbox.kill().await.unwrap();
        assert!(matches!(process.wait().await, Err(SandboxError::Gone { .. })));
        assert!(matches!(process.wait().await, Err(SandboxError::Gone { .. })));
        let ended = [
            sandbox.exists("x").await.err(),
            sandbox.read_file("x", 1).await.err(),
            sandbox.write_file("x", bytes::Bytes::new(), 0o600).await.err(),
            sandbox.list_files("x", 1, 1).await.err(),
            sandbox.separate(&[]).await.err(),
            sandbox.start(sh("true"), Arc::new(Output::default())).await.err(),
            sandbox.open_relay().await.err(),
        ];
        for error in ended {
            assert!(matches!(error, Some(SandboxError::Gone { .. })), "{error:?}");
        }
    }
}

#[tokio::test]
async fn dropping_the_last_handle_leaves_nothing() {
    let world = World::new();
    for sandbox in world.sandboxes().await {
        let id = sandbox.id();
        drop(sandbox);
        eventually("its end", || {
            world
                .names("leases")
                .iter()
                .all(|name| !name.contains(&id.to_string()))
        })
        .await;
        assert_nothing_left(&world.config.data_dir, id).await;
    }
}

#[tokio::test]
async fn creating_that_is_cancelled_at_any_moment_leaves_nothing() {
    let world = World::new();
    for backend in world.backends() {
        let slow: &[u64] = match backend.name() {
            "docker" => &[70, 100, 150, 200, 250, 300],
            _ => &[],
        };
        for step_ms in [0, 1, 2, 4, 8, 12, 16, 24, 32, 48].iter().chain(slow) {
            let spec = spec();
            let id = spec.id;
            let creating = backend.create(spec);
            let made = tokio::time::timeout(Duration::from_millis(*step_ms), creating).await;
            drop(made);
            let name = id.to_string();
            eventually("its end", || {
                ["homes", "leases"]
                    .iter()
                    .all(|folder| world.names(folder).iter().all(|left| !left.contains(&name)))
                    && groups_of(id).is_empty()
                    // Without control groups the kernel ends what bubblewrap had begun, a moment after bubblewrap.
                    && processes_with(&name).is_empty()
            })
            .await;
        }
    }
}

#[tokio::test]
async fn a_failed_creation_leaves_nothing() {
    let world = World::new();
    let config = dressage_sandbox::BackendConfig {
        tap_binary: "/usr/bin/true".into(),
        ..world.config.clone()
    };
    for entry in crate::world::entries() {
        let backend = (entry.make)(&config).unwrap();
        let spec = spec();
        let id = spec.id;
        let error = backend.create(spec).await.err().unwrap();
        assert!(
            matches!(error, SandboxError::Create { .. } | SandboxError::Gone { .. }),
            "{error}"
        );
        eventually("its end", || world.names("leases").is_empty()).await;
        assert_nothing_left(&world.config.data_dir, id).await;
    }
}

#[tokio::test]
async fn a_killed_process_leaves_nothing_that_the_next_does_not_remove() {
    let world = World::new();
    let mut other = Other::start(ROLE, &world);
    let sandboxes = other.held.clone();
    for sandbox in &sandboxes {
        assert!(!processes_with(&format!("child-of-{sandbox}")).is_empty());
    }
    other.kill();
    // Its processes end by themselves, before any sweep.
    for sandbox in &sandboxes {
        eventually("the end of its processes", || {
            processes_with(&format!("child-of-{sandbox}")).is_empty()
        })
        .await;
    }
    assert_eq!(world.names("leases").len(), sandboxes.len());
    let dead = dead_owners(&world.config.data_dir).unwrap();
    assert_eq!(dead.len(), 1);
    assert!(!is_alive(&world.config.data_dir, dead[0]));
    // As if each had been about to write a lease when the other died.
    let leases = world.config.data_dir.join("leases");
    let unfinished = |owner| format!("{}.{owner}.new", SandboxId::new());
    let (theirs, ours) = (unfinished(dead[0]), unfinished(world.config.owner.id()));
    std::fs::write(leases.join(theirs), "{").unwrap();
    std::fs::write(leases.join(&ours), "{").unwrap();
    let reaper = Reaper::new(Arc::clone(&world.config.owner));
    let mut swept = reaper.sweep_everywhere(&world.config).await.unwrap();
    swept.removed.sort();
    assert_eq!(swept.removed, sandboxes);
    assert!(swept.failed.is_empty(), "{:?}", swept.failed);
    for sandbox in sandboxes {
        assert_nothing_left(&world.config.data_dir, sandbox).await;
    }
    assert_eq!(world.names("leases"), [ours]);
    assert_eq!(dead_owners(&world.config.data_dir).unwrap(), []);
}

/// A child of bubblewrap whose parent died before it had told it to go on: it waits for ever, in a pid namespace of its own.
/// Bubblewrap dies of writing to a pipe that nobody reads any more.
async fn orphan(sandbox: SandboxId, home: &Path) -> i32 {
    let name = Lease::outside_name(sandbox);
    let script = r#"{ sleep 0.2; exec -a "$1" bwrap --unshare-user --unshare-pid --as-pid-1 --die-with-parent --info-fd 1 --bind "$2" / -- /true; } | :"#;
    let status = Command::new("bash")
        .args(["-c", script, "bash", &name])
        .arg(home)
        .status()
        .unwrap();
    assert!(status.success());
    let mut found = Vec::new();
    eventually("an orphan", || {
        found = processes_with(&name);
        found.len() == 1
    })
    .await;
    found[0]
}

#[tokio::test]
async fn what_was_killed_in_the_making_and_waits_for_ever_is_ended_by_the_sweep() {
    let world = World::new();
    let data_dir = &world.config.data_dir;
    let leased = |owner: &Owner| {
        let sandbox = SandboxId::new();
        let mut lease = Lease::new(owner, sandbox, "local", BTreeMap::new());
        let home = Lease::homes_directory(data_dir).join(sandbox.to_string());
        std::fs::create_dir_all(&home).unwrap();
        lease.home = Some(home.clone());
        // Neither a control group nor a process: all that an ordinary user's lease says this early.
        lease.write(data_dir).unwrap();
        (sandbox, home)
    };
    let (gone, living) = (
        Owner::acquire(data_dir).unwrap(),
        Owner::acquire(data_dir).unwrap(),
    );
    let ((dead_one, dead_home), (deleted, deleted_home)) = (leased(&gone), leased(&gone));
    let (kept, kept_home) = leased(&living);
    drop(gone);
    let pid = orphan(dead_one, &dead_home).await;
    orphan(deleted, &deleted_home).await;
    orphan(kept, &kept_home).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(
        processes_with(&Lease::outside_name(dead_one)),
        [pid],
        "it ended by itself"
    );
    world.backend("local").delete(deleted).await.unwrap();
    assert_nothing_left(data_dir, deleted).await;
    let reaper = Reaper::new(Arc::clone(&world.config.owner));
    assert_eq!(reaper.sweep().unwrap().removed, [dead_one]);
    assert_nothing_left(data_dir, dead_one).await;
    // That of a living owner is its owner's affair.
    assert_eq!(processes_with(&Lease::outside_name(kept)).len(), 1);
    drop(living);
    assert_eq!(reaper.sweep().unwrap().removed, [kept]);
    assert_nothing_left(data_dir, kept).await;
}

#[tokio::test]
async fn of_two_processes_one_is_killed_and_the_others_sandboxes_are_untouched() {
    let world = World::new();
    let own = world.local().await;
    stdout_of(&*own, sh("echo mine > file")).await;
    let (mut first, second) = (Other::start(ROLE, &world), Other::start(ROLE, &world));
    first.kill();
    let reaper = Reaper::new(Arc::clone(&world.config.owner));
    let mut swept = reaper.sweep_everywhere(&world.config).await.unwrap();
    swept.removed.sort();
    assert_eq!(swept.removed, first.held);
    let again = reaper.sweep_everywhere(&world.config).await.unwrap();
    assert!(again.removed.is_empty());
    // The second's still run, with their files; so does ours.
    for sandbox in &second.held {
        assert!(!processes_with(&format!("child-of-{sandbox}")).is_empty());
        let lease = Lease::find(&world.config.data_dir, *sandbox).unwrap().unwrap();
        if lease.remote.is_some() {
            continue;
        }
        assert_eq!(
            names(&world.config.data_dir.join("homes").join(sandbox.to_string())),
            ["here"]
        );
    }
    assert_eq!(stdout_of(&*own, sh("cat file")).await, "mine");
    // Not even by name can another living process's sandbox be deleted.
    let local = world.backend("local");
    let error = local.delete(second.held[0]).await.err().unwrap();
    assert!(matches!(error, SandboxError::Left { .. }), "{error}");
    assert!(is_alive(&world.config.data_dir, world.config.owner.id()));
}

#[tokio::test]
async fn sandboxes_are_listed_by_label_and_deleted_after_their_process() {
    let world = World::new();
    let local = world.backend("local");
    let labelled = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
        pairs
            .iter()
            .map(|(name, value)| ((*name).into(), (*value).into()))
            .collect()
    };
    let mut one = spec();
    one.labels = labelled(&[("rollout", "1"), ("kind", "test")]);
    let mut two = spec();
    two.labels = labelled(&[("rollout", "2"), ("kind", "test")]);
    let (id_one, id_two) = (one.id, two.id);
    let (one, two) = (local.create(one).await.unwrap(), local.create(two).await.unwrap());
    assert_eq!(
        local.list(&labelled(&[("kind", "test")])).await.unwrap(),
        [id_one, id_two]
    );
    assert_eq!(
        local.list(&labelled(&[("rollout", "2")])).await.unwrap(),
        [id_two]
    );
    assert_eq!(local.list(&labelled(&[("rollout", "3")])).await.unwrap(), []);
    assert_eq!(world.backend("process").list(&BTreeMap::new()).await.unwrap(), []);
    local.delete(id_one).await.unwrap();
    local.delete(id_one).await.unwrap();
    assert_nothing_left(&world.config.data_dir, id_one).await;
    assert!(one.exec(sh("true"), Arc::new(Output::default())).await.is_err());
    one.kill().await.unwrap();
    two.kill().await.unwrap();
    // One whose process is gone.
    let mut other = Other::start(ROLE, &world);
    other.kill();
    let left = local.list(&BTreeMap::new()).await.unwrap();
    assert_eq!(left, [other.held[0]]);
    local.delete(left[0]).await.unwrap();
    assert_nothing_left(&world.config.data_dir, left[0]).await;
    local.delete(SandboxId::new()).await.unwrap();
}

#[test]
fn a_sandbox_outlives_thirty_seconds_of_an_idle_runtime() {
    let world = World::new();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let sandboxes = runtime.block_on(async {
        let sandboxes = world.sandboxes().await;
        for sandbox in &sandboxes {
            stdout_of(&**sandbox, sh("echo before > file")).await;
        }
        sandboxes
    });
    // Idle threads of the runtime's pool end after 10 s.
    std::thread::sleep(Duration::from_secs(30));
    runtime.block_on(async {
        for sandbox in &sandboxes {
            assert_eq!(stdout_of(&**sandbox, sh("cat file")).await, "before");
            sandbox.kill().await.unwrap();
        }
    });
}

#[tokio::test]
async fn a_sandbox_ends_after_its_lifetime() {
    let world = World::new();
    for backend in world.backends() {
        let mut spec = spec();
        spec.lifetime = Duration::from_millis(700);
        let sandbox = backend.create(spec).await.unwrap();
        let begun = Instant::now();
        let result = sandbox
            .exec(sh("while :; do sleep 0.05; done"), Arc::new(Output::default()))
            .await;
        assert!(matches!(result, Err(SandboxError::Gone { .. })), "{result:?}");
        assert!(begun.elapsed() < Duration::from_secs(20));
        sandbox.kill().await.unwrap();
        assert_nothing_left(&world.config.data_dir, sandbox.id()).await;
    }
}

#[tokio::test]
async fn an_init_that_was_killed_is_gone_and_not_exit_0() {
    let world = World::new();
    for sandbox in world.sandboxes().await {
        let lease = Lease::find(&world.config.data_dir, sandbox.id())
            .unwrap()
            .unwrap();
        let mut process = sandbox
            .start(sh("sleep 1000"), Arc::new(Output::default()))
            .await
            .unwrap();
        let init = match lease.processes.last() {
            Some(process) => process.pid,
            None => crate::world::first_process(sandbox.id()).await,
        };
        nix::sys::signal::kill(
            nix::unistd::Pid::from_raw(init),
            nix::sys::signal::Signal::SIGKILL,
        )
        .unwrap();
        match process.wait().await {
            Err(SandboxError::Gone { reason, .. }) => assert_eq!(reason, "its init has ended"),
            other => panic!("{other:?}"),
        }
        assert!(matches!(
            sandbox.exists("x").await,
            Err(SandboxError::Gone { .. })
        ));
        sandbox.kill().await.unwrap();
        // Where neither a namespace nor a control group ends the rest, its guards do, in a moment.
        let id = sandbox.id().to_string();
        eventually("the end of its programs", || processes_with(&id).is_empty()).await;
        assert_nothing_left(&world.config.data_dir, sandbox.id()).await;
    }
}

#[tokio::test]
async fn a_home_of_horrors_is_removed() {
    let world = World::new();
    for sandbox in world.sandboxes().await {
        let script = "
            mkdir -p a/b/c; ln -s / a/root; ln -s ../../.. a/b/up; mkfifo a/b/fifo; mkdir closed; echo > closed/x; chmod 0 closed
            touch -- '-rf' 'new
line'; ln a/b/fifo hard; chmod 0 a/b; chmod 0 a; chmod 0 .";
        run(&*sandbox, sh(script)).await;
        sandbox.kill().await.unwrap();
        assert_nothing_left(&world.config.data_dir, sandbox.id()).await;
    }
    assert!(Path::new("/etc/passwd").exists());
}

#[test]
fn two_owners_agree_on_the_installation_and_know_each_other() {
    let folder = tempfile::tempdir().unwrap();
    let owners: Vec<Owner> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|_| scope.spawn(|| Owner::acquire(folder.path()).unwrap()))
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    for owner in &owners {
        assert_eq!(owner.installation(), owners[0].installation());
        assert!(is_alive(folder.path(), owner.id()));
    }
    assert_eq!(dead_owners(folder.path()).unwrap(), []);
    let id = owners[0].id();
    drop(owners);
    assert!(!is_alive(folder.path(), id));
    assert_eq!(names(&folder.path().join("owners")), Vec::<String>::new());
}

#[test]
fn a_lease_that_cannot_be_read_is_told_and_holds_up_no_other() {
    let world = World::new();
    let data_dir = &world.config.data_dir;
    let malformed = SandboxId::new();
    std::fs::write(data_dir.join("leases").join(format!("{malformed}.json")), "{").unwrap();
    let gone = Owner::acquire(data_dir).unwrap();
    let sandbox = SandboxId::new();
    let mut lease = Lease::new(&gone, sandbox, "local", BTreeMap::new());
    let home = Lease::homes_directory(data_dir).join(sandbox.to_string());
    std::fs::create_dir_all(home.join("x")).unwrap();
    lease.home = Some(home.clone());
    lease.write(data_dir).unwrap();
    drop(gone);
    let swept = Reaper::new(Arc::clone(&world.config.owner)).sweep().unwrap();
    assert_eq!(swept.removed, [sandbox]);
    assert_eq!(swept.failed.len(), 1);
    assert!(!home.exists());
}

#[test]
fn a_lease_with_a_home_elsewhere_removes_nothing_there() {
    let world = World::new();
    let data_dir = &world.config.data_dir;
    let elsewhere = tempfile::tempdir().unwrap();
    std::fs::write(elsewhere.path().join("kept"), "x").unwrap();
    let gone = Owner::acquire(data_dir).unwrap();
    let mut lease = Lease::new(&gone, SandboxId::new(), "local", BTreeMap::new());
    lease.home = Some(elsewhere.path().to_path_buf());
    lease.write(data_dir).unwrap();
    drop(gone);
    Reaper::new(Arc::clone(&world.config.owner)).sweep().unwrap();
    assert!(elsewhere.path().join("kept").exists());
}

#[test]
fn a_data_directory_that_cannot_be_written_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "x").unwrap();
    let error = Owner::acquire(&file.join("data")).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("create `{}`", file.join("data").display())
    );
}

#[tokio::test]
async fn a_data_directory_that_others_cannot_enter_is_named_to_root() {
    use std::os::unix::fs::PermissionsExt;
    let world = World::new();
    std::fs::set_permissions(world.folder.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
    let made: Result<Arc<dyn Backend>, _> = (dressage_sandbox::by_name("local").unwrap().make)(&world.config);
    if is_root() {
        let error = made.err().unwrap();
        assert!(
            error.to_string().contains(&format!(
                "`{}` cannot be entered by other users",
                world.folder.path().display()
            )),
            "{error}"
        );
        assert!(error.hint().unwrap().contains("--data-dir"));
    } else {
        let sandbox: Arc<dyn Sandbox> = made.unwrap().create(spec()).await.unwrap();
        assert_eq!(stdout_of(&*sandbox, sh("echo on")).await, "on");
    }
}
