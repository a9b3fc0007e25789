use crate::world::{World, bytes, eventually, first_process, sh, spec, stdout_of};
use dressage_sandbox::lease::Lease;
use dressage_sandbox::{Backend, Booted, PoolConfig, Pools};
use nix::unistd::Pid;
use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

fn pools(backend: &Arc<dyn Backend>, size: usize) -> Pools {
    let config = PoolConfig {
        size: NonZeroUsize::new(size).unwrap(),
        max_age: Duration::from_secs(600),
    };
    Pools::new(BTreeMap::from([(backend.name().to_owned(), config)]))
}

fn labels(name: &str) -> BTreeMap<String, String> {
    BTreeMap::from([("test".to_owned(), name.to_owned())])
}

async fn create(pools: &Pools, backend: &Arc<dyn Backend>, name: &str) -> Booted {
    let mut spec = spec();
    spec.labels = labels(name);
    pools.create(backend, spec).await.unwrap()
}

async fn until_ready(pools: &Pools, count: usize) {
    eventually("a full pool", || {
        pools.counts().iter().any(|pool| pool.ready == count)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_ready_is_as_new_and_carries_the_labels_of_who_asked() {
    let world = World::new();
    for backend in world.backends() {
        let pools = pools(&backend, 2);
        let first = create(&pools, &backend, "first").await;
        first.sandbox.write_file("mark", bytes("x"), 0o644).await.unwrap();
        until_ready(&pools, 2).await;
        let second = create(&pools, &backend, "second").await;
        assert!(!first.warm && second.warm, "{}", backend.name());
        let sandbox = &second.sandbox;
        assert!(!sandbox.exists("mark").await.unwrap());
        assert_eq!(stdout_of(&**sandbox, sh("echo here")).await, "here");
        assert_eq!(backend.list(&labels("second")).await.unwrap(), [sandbox.id()]);
        // The lease is written anew with the processes that come then.
        sandbox.separate(&[]).await.unwrap();
        assert_eq!(backend.list(&labels("second")).await.unwrap(), [sandbox.id()]);
        assert_eq!(stdout_of(&**sandbox, sh("echo again")).await, "again");

        pools.close().await;
        let (left, _) = Lease::all(&world.config.data_dir).unwrap();
        let mut left: Vec<_> = left.iter().map(|lease| lease.sandbox).collect();
        left.sort();
        let mut used = vec![first.sandbox.id(), sandbox.id()];
        used.sort();
        assert_eq!(left, used, "those that are in use, and none that was ready");
        first.sandbox.kill().await.unwrap();
        sandbox.kill().await.unwrap();
        assert_eq!(world.names("homes").len(), 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_whose_processes_were_killed_is_not_handed_out() {
    let world = World::new();
    for backend in world.backends() {
        let pools = pools(&backend, 1);
        let first = create(&pools, &backend, "first").await;
        until_ready(&pools, 1).await;
        let (leases, _) = Lease::all(&world.config.data_dir).unwrap();
        let ready = leases
            .into_iter()
            .find(|lease| lease.sandbox != first.sandbox.id())
            .unwrap();
        let mut processes: Vec<i32> = ready.processes.iter().map(|process| process.pid).collect();
        if backend.name() == "docker" {
            processes.push(first_process(ready.sandbox).await);
        }
        for pid in &processes {
            // The second of them ends with the first.
            let _ = nix::sys::signal::kill(Pid::from_raw(*pid), nix::sys::signal::Signal::SIGKILL);
        }
        // Until then one of them may answer still.
        assert!(!processes.is_empty(), "{}", backend.name());
        let ended = || processes.iter().all(|pid| has_ended(*pid));
        eventually("the end of the ready one's processes", ended).await;
        let second = create(&pools, &backend, "second").await;
        assert!(!second.warm && second.sandbox.id() != ready.sandbox);
        assert_eq!(stdout_of(&*second.sandbox, sh("echo here")).await, "here");
        let gone = || {
            Lease::find(&world.config.data_dir, ready.sandbox)
                .unwrap()
                .is_none()
        };
        eventually("the end of the dead one's lease", gone).await;
        pools.close().await;
    }
}

/// Whether a process is gone, or waits for its parent to look.
fn has_ended(pid: i32) -> bool {
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else {
        return true;
    };
    // After the name, which is in parentheses and may hold some.
    let state = stat
        .rsplit(')')
        .next()
        .and_then(|rest| rest.trim_start().chars().next());
    matches!(state, Some('Z' | 'X'))
}
