use crate::world::{World, is_root, python, run, sh, spec, stdout_of};
use dressage_sandbox::lease::Lease;
use dressage_sandbox::{Command, Size};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// The folder of a sandbox's control group that has a file of one of these names.
fn counter(world: &World, sandbox: dressage_wire::ids::SandboxId, names: &[&str]) -> Option<u64> {
    let lease = Lease::find(&world.config.data_dir, sandbox).unwrap().unwrap();
    let find = |folder: &PathBuf| {
        names.iter().find_map(|name| {
            std::fs::read_to_string(folder.join(name))
                .ok()?
                .trim()
                .parse()
                .ok()
        })
    };
    lease.cgroups.iter().find_map(find)
}

#[tokio::test]
async fn a_fork_bomb_is_held_and_ended_as_seen_from_outside() {
    let world = World::new();
    let backend = world.backend("local");
    let mut spec = spec();
    spec.size = Size {
        pids: 64,
        ..spec.size
    };
    let sandbox = backend.create(spec).await.unwrap();
    let bomb = "
import os, time
while True:
    try:
        os.fork()
    except OSError:
        time.sleep(0.01)";
    let command = Command {
        timeout: Some(Duration::from_secs(3)),
        ..python(bomb)
    };
    let begun = Instant::now();
    let exit = run(&*sandbox, command).await.exit;
    assert_eq!((exit.code, exit.timed_out), (124, true));
    assert!(
        begun.elapsed() < Duration::from_secs(60),
        "the bomb could not be ended"
    );
    match counter(&world, sandbox.id(), &["pids.peak"]) {
        Some(peak) => assert!((32..=64).contains(&peak), "{peak} processes at most"),
        None => assert!(!is_root(), "root has control groups here"),
    }
    // Init lives, and so does the sandbox, and nothing of the bomb.
    let left = "echo on; cat /proc/[0-9]*/comm 2>/dev/null | grep -c python || true";
    assert_eq!(stdout_of(&*sandbox, sh(left)).await, "on\n0");
}

#[tokio::test]
async fn a_command_waits_for_room_where_there_is_none_for_a_moment() {
    let world = World::new();
    let mut spec = spec();
    spec.size = Size {
        pids: 32,
        ..spec.size
    };
    let sandbox = world.backend("local").create(spec).await.unwrap();
    // Processes until there is no room for another; a second later they are all over.
    let crowd = "
import os, time
while True:
    try:
        if os.fork() == 0:
            time.sleep(3600)
    except OSError:
        break
print('full', flush=True)
time.sleep(1)
os.killpg(0, 9)";
    let output = std::sync::Arc::new(crate::world::Output::default());
    let mut process = sandbox.start(python(crowd), output.clone()).await.unwrap();
    crate::world::eventually("the crowd is there", || output.stdout().contains("full")).await;
    assert_eq!(stdout_of(&*sandbox, sh("echo on")).await, "on");
    assert_eq!(process.wait().await.unwrap().signal, Some(9));
}

#[tokio::test]
async fn a_bomb_that_nobody_ends_goes_with_the_sandbox() {
    let world = World::new();
    let mut spec = spec();
    spec.size = Size {
        pids: 64,
        ..spec.size
    };
    let sandbox = world.backend("local").create(spec).await.unwrap();
    let bomb = "while :; do (setsid sh -c 'while :; do sh -c : & done' &) ; done";
    let output = std::sync::Arc::new(crate::world::Output::default());
    let _process = sandbox.start(sh(bomb), output).await.unwrap();
    // A file can be read while no process can be had.
    sandbox
        .write_file("file", crate::world::bytes("x"), 0o644)
        .await
        .unwrap();
    assert_eq!(sandbox.read_file("file", 10).await.unwrap(), "x");
    sandbox.kill().await.unwrap();
    assert_eq!(world.names("homes"), Vec::<String>::new());
    assert_eq!(world.names("leases"), Vec::<String>::new());
}

#[tokio::test]
async fn a_memory_hog_is_killed_and_init_is_not() {
    let world = World::new();
    let mut spec = spec();
    spec.size = Size {
        memory_bytes: 128 << 20,
        ..spec.size
    };
    let sandbox = world.backend("local").create(spec).await.unwrap();
    let hog = "
blocks = []
while True:
    blocks.append(bytearray(8 << 20))
    for i in range(0, 8 << 20, 4096):
        blocks[-1][i] = 1";
    let command = Command {
        timeout: Some(Duration::from_secs(60)),
        ..python(hog)
    };
    let exit = run(&*sandbox, command).await.exit;
    match counter(
        &world,
        sandbox.id(),
        &["memory.peak", "memory.max_usage_in_bytes"],
    ) {
        Some(peak) => {
            assert_eq!((exit.code, exit.signal), (137, Some(9)));
            assert!((64 << 20..=128 << 20).contains(&peak), "{peak} bytes at most");
        }
        None => {
            assert!(!is_root(), "root has control groups here");
            // An rlimit: the allocation fails, and python says so.
            assert_eq!(exit.code, 1);
        }
    }
    assert_eq!(stdout_of(&*sandbox, sh("echo on")).await, "on");
}

#[tokio::test]
async fn sizes_that_make_no_sense_are_refused() {
    let world = World::new();
    let good = spec().size;
    for size in [
        Size {
            memory_bytes: 1,
            ..good
        },
        Size {
            cpus: f64::NAN,
            ..good
        },
        Size { cpus: -1.0, ..good },
        Size { cpus: 0.0, ..good },
        Size {
            cpus: f64::INFINITY,
            ..good
        },
        Size { pids: 1, ..good },
    ] {
        for backend in world.backends() {
            let mut spec = spec();
            spec.size = size;
            let error = backend.create(spec).await.err().unwrap();
            assert!(
                matches!(error, dressage_sandbox::SandboxError::Unsupported { .. }),
                "{error}"
            );
        }
    }
    assert_eq!(world.names("leases"), Vec::<String>::new());
}

#[tokio::test]
async fn processor_time_is_bounded_as_seen_from_outside() {
    let world = World::new();
    let mut spec = spec();
    spec.size = Size {
        cpus: 0.2,
        ..spec.size
    };
    let sandbox = world.backend("local").create(spec).await.unwrap();
    let lease = Lease::find(&world.config.data_dir, sandbox.id())
        .unwrap()
        .unwrap();
    let quota: Vec<String> = lease
        .cgroups
        .iter()
        .flat_map(|folder| ["cpu.cfs_quota_us", "cpu.max"].map(|name| folder.join(name)))
        .filter_map(|path| std::fs::read_to_string(path).ok())
        .map(|text| text.trim().to_owned())
        .collect();
    let expected: &[&[&str]] = if is_root() {
        &[&["20000"], &["20000 100000"]]
    } else {
        &[&[]]
    };
    assert!(
        expected.contains(&quota.iter().map(String::as_str).collect::<Vec<_>>().as_slice()),
        "{quota:?}"
    );
}
