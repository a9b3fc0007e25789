use super::*;
use crate::ROLLOUT_LABEL;
use async_trait::async_trait;
use dressage_sandbox::{Sandbox, SandboxError, Size};
use dressage_wire::ids::SandboxId;
use dressage_wire::task::{FileContent, NetworkPolicy};
use std::sync::atomic::{AtomicUsize, Ordering};

struct Nowhere;

#[async_trait]
impl Backend for Nowhere {
    fn name(&self) -> &'static str {
        "nowhere"
    }

    fn gives_home(&self, _: &str) -> bool {
        true
    }

    async fn create(&self, _: SandboxSpec) -> Result<Arc<dyn Sandbox>, SandboxError> {
        Err(SandboxError::UnknownBackend {
            name: "nowhere".into(),
        })
    }

    async fn list(&self, _: &BTreeMap<String, String>) -> Result<Vec<SandboxId>, SandboxError> {
        Ok(Vec::new())
    }

    async fn delete(&self, _: SandboxId) -> Result<(), SandboxError> {
        Ok(())
    }
}

/// The setup of these commands in a sandbox that `change` makes another.
fn setup(commands: &[&str], change: impl FnOnce(&mut SandboxSpec, &mut Task)) -> Setup {
    let mut spec = SandboxSpec {
        id: SandboxId::new(),
        image: None,
        dockerfile: None,
        user: None,
        home: "/home/user".into(),
        env: BTreeMap::new(),
        network: NetworkPolicy::None,
        size: Size {
            memory_bytes: 1 << 30,
            cpus: 1.0,
            pids: 64,
        },
        assets: Vec::new(),
        labels: BTreeMap::from([(ROLLOUT_LABEL.into(), SandboxId::new().to_string())]),
        lifetime: Duration::from_secs(60),
        relay_port: None,
        snapshot: None,
    };
    let mut task = Task {
        setup: commands.iter().map(|&command| command.to_owned()).collect(),
        ..Task::default()
    };
    task.files.insert("a".into(), FileContent::Text("b".into()));
    change(&mut spec, &mut task);
    let backend: Arc<dyn Backend> = Arc::new(Nowhere);
    Setup::of(&backend, &spec, &Arc::new(task))
}

fn same(commands: &[&str]) -> Setup {
    setup(commands, |_, _| {})
}

/// A snapshot that is counted for as long as it is there.
fn snapshot(there: &Arc<AtomicUsize>) -> Snapshot {
    there.fetch_add(1, Ordering::SeqCst);
    let (there, removed) = (Arc::clone(there), std::sync::Once::new());
    Snapshot::new(SandboxId::new(), "nowhere", move || {
        removed.call_once(|| {
            there.fetch_sub(1, Ordering::SeqCst);
        });
        Ok(())
    })
}

fn maker(snapshots: &Snapshots, setup: &Setup) -> Maker {
    match snapshots.claim(setup) {
        Claim::Make(maker) => maker,
        _ => panic!("something is there already"),
    }
}

/// Removal is on a thread of its own.
async fn until(there: &AtomicUsize, count: usize) {
    // Of the machine's clock: the tests' may be paused.
    let begun = std::time::Instant::now();
    while there.load(Ordering::SeqCst) != count {
        let (left, waited) = (there.load(Ordering::SeqCst), begun.elapsed());
        assert!(
            waited < Duration::from_secs(30),
            "{left} are there, and not {count}"
        );
        tokio::task::yield_now().await;
    }
}

#[test]
fn what_a_setup_does_and_to_what_tells_it_from_others() {
    let one = same(&["make"]);
    assert!(
        one == same(&["make"]),
        "labels, ids and tasks that differ otherwise are nothing to it"
    );
    assert!(
        one == setup(&["make"], |_, task| task.instruction = "another".into()),
        "nor what comes after it"
    );
    let others: [Setup; 8] = [
        same(&["make", "make"]),
        setup(&["make"], |spec, _| spec.image = Some("debian".into())),
        setup(&["make"], |spec, _| spec.user = Some("root".into())),
        setup(&["make"], |spec, _| spec.home = "/root".into()),
        setup(&["make"], |spec, _| spec.network = NetworkPolicy::Open),
        setup(&["make"], |spec, _| {
            spec.env.insert("A".into(), "1".into());
        }),
        setup(&["make"], |_, task| {
            task.files.insert("a".into(), FileContent::Text("c".into()));
        }),
        setup(&["make"], |_, task| {
            task.files.insert("b".into(), FileContent::Text("b".into()));
        }),
    ];
    for (index, other) in others.iter().enumerate() {
        assert!(one != *other, "{index}");
    }
}

#[tokio::test]
async fn the_first_makes_it_and_those_that_wait_have_it() {
    let (snapshots, there) = (Snapshots::default(), Arc::default());
    let first = maker(&snapshots, &same(&["make"]));
    assert!(snapshots.there(&same(&["make"])).is_none());
    let waiting: Vec<_> = (0..7)
        .map(|_| match snapshots.claim(&same(&["make"])) {
            Claim::Wait(being_made) => tokio::spawn(being_made.end()),
            _ => panic!("it is not being made"),
        })
        .collect();
    let another = maker(&snapshots, &same(&["another"]));
    let made = snapshot(&there);
    first.made(made.clone());
    for waited in waiting {
        assert_eq!(waited.await.unwrap(), Some(made.clone()));
    }
    assert!(matches!(snapshots.claim(&same(&["make"])), Claim::Restore(found) if found == made));
    assert_eq!(snapshots.there(&same(&["make"])), Some(made.clone()));
    another.refused("no".into());
    assert!(matches!(snapshots.claim(&same(&["another"])), Claim::Refused(reason) if reason == "no"));
    snapshots.clear().await;
    assert_eq!(there.load(Ordering::SeqCst), 0, "removed, whoever has a handle");
    assert!(matches!(snapshots.claim(&same(&["make"])), Claim::Make(_)));
}

#[tokio::test]
async fn those_that_wait_are_told_when_it_will_not_be_there() {
    let snapshots = Snapshots::default();
    let first = maker(&snapshots, &same(&["make"]));
    let Claim::Wait(being_made) = snapshots.claim(&same(&["make"])) else {
        panic!("it is not being made");
    };
    drop(first);
    assert_eq!(being_made.end().await, None);
    let second = maker(&snapshots, &same(&["make"]));
    let Claim::Wait(being_made) = snapshots.claim(&same(&["make"])) else {
        panic!("it is not being made");
    };
    second.refused("no".into());
    assert_eq!(being_made.end().await, None);
}

#[tokio::test(start_paused = true)]
async fn one_that_nobody_asks_for_is_removed_in_time() {
    let (snapshots, there) = (Snapshots::default(), Arc::default());
    maker(&snapshots, &same(&["make"])).made(snapshot(&there));
    for _ in 0..3 {
        tokio::time::sleep(MAX_IDLE * 2 / 3).await;
        assert!(snapshots.there(&same(&["make"])).is_some());
    }
    tokio::time::sleep(MAX_IDLE + Duration::from_secs(1)).await;
    assert!(snapshots.there(&same(&["make"])).is_none());
    until(&there, 0).await;
}

#[tokio::test]
async fn there_are_not_more_than_so_many_and_one_that_is_in_use_stays_until_it_is_not() {
    let (snapshots, there) = (Snapshots::default(), Arc::default());
    let name = |number: usize| number.to_string();
    for number in 0..MOST {
        maker(&snapshots, &same(&[&name(number)])).made(snapshot(&there));
    }
    let used = snapshots.there(&same(&["1"])).unwrap();
    let used_first = snapshots.there(&same(&["0"])).unwrap();
    for number in MOST..2 * MOST - 2 {
        maker(&snapshots, &same(&[&name(number)])).made(snapshot(&there));
    }
    until(&there, MOST).await;
    maker(&snapshots, &same(&["one more"])).made(snapshot(&there));
    assert!(snapshots.there(&same(&["1"])).is_none(), "asked for longest ago");
    assert_eq!(there.load(Ordering::SeqCst), MOST + 1, "and in use");
    drop(used);
    until(&there, MOST).await;
    snapshots.forget(&used_first);
    assert!(snapshots.there(&same(&["0"])).is_none());
    drop(used_first);
    until(&there, MOST - 1).await;
}
