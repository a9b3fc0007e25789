use super::*;
use crate::lease::LeaseError;
use crate::{Channel, Command, FileList, OutputSink, Process, Size};
use async_trait::async_trait;
use bytes::Bytes;
use dressage_wire::reward::Separation;
use dressage_wire::task::NetworkPolicy;
use std::collections::BTreeSet;
use std::sync::atomic::AtomicBool;

const MAX_AGE: Duration = Duration::from_secs(600);

/// What a fake backend made, and how it is to behave.
#[derive(Default)]
struct World {
    made: Mutex<Vec<Arc<Fake>>>,
    attempts: AtomicU64,
    fails: AtomicBool,
}

struct FakeBackend(Arc<World>);

/// A sandbox that is nothing but a state.
struct Fake {
    spec: SandboxSpec,
    is_dead: AtomicBool,
    labels: Mutex<BTreeMap<String, String>>,
}

/// The handle that is given out: its drop ends the sandbox, as the contract has it.
struct Handle(Arc<Fake>);

impl Drop for Handle {
    fn drop(&mut self) {
        self.0.is_dead.store(true, Ordering::Relaxed);
    }
}

#[async_trait]
impl Backend for FakeBackend {
    fn name(&self) -> &'static str {
        "fake"
    }

    fn gives_home(&self, _: &str) -> bool {
        true
    }

    async fn create(&self, spec: SandboxSpec) -> Result<Arc<dyn Sandbox>, SandboxError> {
        self.0.attempts.fetch_add(1, Ordering::Relaxed);
        // A moment, so that the clock matters.
        tokio::time::sleep(Duration::from_millis(30)).await;
        if self.0.fails.load(Ordering::Relaxed) {
            return Err(SandboxError::Create {
                step: "exist".into(),
                source: None,
            });
        }
        let fake = Arc::new(Fake {
            labels: Mutex::new(spec.labels.clone()),
            spec,
            is_dead: AtomicBool::new(false),
        });
        self.0.made.lock().unwrap().push(Arc::clone(&fake));
        Ok(Arc::new(Handle(fake)))
    }

    async fn list(&self, _: &BTreeMap<String, String>) -> Result<Vec<SandboxId>, SandboxError> {
        Ok(Vec::new())
    }

    async fn delete(&self, _: SandboxId) -> Result<(), SandboxError> {
        Ok(())
    }
}

impl Handle {
    fn gone<T>(&self) -> Result<T, SandboxError> {
        Err(SandboxError::Gone {
            id: self.0.spec.id,
            reason: "it is a fake".into(),
        })
    }
}

#[async_trait]
impl Sandbox for Handle {
    fn id(&self) -> SandboxId {
        self.0.spec.id
    }

    fn home(&self) -> &str {
        "/home/user"
    }

    fn asset_path(&self, _: &str) -> Option<String> {
        None
    }

    fn relay_address(&self) -> Option<String> {
        None
    }

    async fn start(&self, _: Command, _: Arc<dyn OutputSink>) -> Result<Box<dyn Process>, SandboxError> {
        self.gone()
    }

    async fn write_file(&self, _: &str, _: Bytes, _: u32) -> Result<(), SandboxError> {
        self.gone()
    }

    async fn read_file(&self, _: &str, _: u64) -> Result<Bytes, SandboxError> {
        self.gone()
    }

    async fn exists(&self, _: &str) -> Result<bool, SandboxError> {
        match self.0.is_dead.load(Ordering::Relaxed) {
            true => self.gone(),
            false => Ok(true),
        }
    }

    async fn list_files(&self, _: &str, _: u32, _: usize) -> Result<FileList, SandboxError> {
        self.gone()
    }

    async fn open_relay(&self) -> Result<Box<dyn Channel>, SandboxError> {
        self.gone()
    }

    async fn separate(&self, _: &[String]) -> Result<Separation, SandboxError> {
        self.gone()
    }

    async fn relabel(&self, labels: &BTreeMap<String, String>) -> Result<(), SandboxError> {
        *self.0.labels.lock().unwrap() = labels.clone();
        Ok(())
    }

    async fn kill(&self) -> Result<(), SandboxError> {
        self.0.is_dead.store(true, Ordering::Relaxed);
        match self.0.spec.env.contains_key("STAYS") {
            false => Ok(()),
            true => Err(SandboxError::Left {
                id: self.0.spec.id,
                source: Arc::new(LeaseError::Busy { path: "x".into() }),
            }),
        }
    }
}

struct Setting {
    world: Arc<World>,
    backend: Arc<dyn Backend>,
    pools: Pools,
}

fn setting(size: usize) -> Setting {
    let world = Arc::new(World::default());
    let config = PoolConfig {
        size: NonZeroUsize::new(size).unwrap(),
        max_age: MAX_AGE,
    };
    Setting {
        backend: Arc::new(FakeBackend(Arc::clone(&world))),
        world,
        pools: Pools::new(BTreeMap::from([("fake".to_owned(), config)])),
    }
}

fn spec(home: &str) -> SandboxSpec {
    SandboxSpec {
        id: SandboxId::new(),
        dockerfile: None,
        user: None,
        image: None,
        home: home.into(),
        env: BTreeMap::new(),
        network: NetworkPolicy::None,
        size: Size {
            memory_bytes: 1 << 30,
            cpus: 1.0,
            pids: 64,
        },
        assets: Vec::new(),
        labels: BTreeMap::from([("rollout".to_owned(), home.to_owned())]),
        lifetime: Duration::from_secs(60),
        relay_port: None,
        snapshot: None,
    }
}

impl Setting {
    async fn create(&self, spec: SandboxSpec) -> Booted {
        self.pools.create(&self.backend, spec).await.unwrap()
    }

    fn counts(&self) -> PoolCounts {
        self.pools.counts()[0]
    }

    fn living(&self) -> usize {
        let made = self.world.made.lock().unwrap();
        made.iter()
            .filter(|fake| !fake.is_dead.load(Ordering::Relaxed))
            .count()
    }

    fn attempts(&self) -> u64 {
        self.world.attempts.load(Ordering::Relaxed)
    }

    fn fake(&self, id: SandboxId) -> Arc<Fake> {
        let made = self.world.made.lock().unwrap();
        made.iter().find(|fake| fake.spec.id == id).unwrap().clone()
    }
}

/// Lets the paused clock go on; what is due meanwhile happens in order.
async fn after(seconds: u64) {
    tokio::time::sleep(Duration::from_secs(seconds)).await;
}

#[tokio::test(start_paused = true)]
async fn what_is_like_the_last_one_is_ready_and_then_made_again() {
    let setting = setting(2);
    let first = spec("/a");
    let asked = first.id;
    let cold = setting.create(first).await;
    assert!(!cold.warm && cold.sandbox.id() == asked);
    after(1).await;
    assert_eq!((setting.counts().ready, setting.living()), (2, 3));

    let mut seen = BTreeSet::from([cold.sandbox.id()]);
    let mut handles = vec![cold];
    for _ in 0..5 {
        let warm = setting.create(spec("/a")).await;
        assert!(warm.warm);
        assert!(seen.insert(warm.sandbox.id()), "a sandbox was handed out twice");
        handles.push(warm);
        after(1).await;
        assert_eq!(setting.counts().ready, 2, "what was taken is made again");
    }
    let counts = setting.counts();
    assert_eq!((counts.hits, counts.misses, counts.failures), (5, 1, 0));
    assert_eq!(setting.living(), 8);
}

#[tokio::test(start_paused = true)]
async fn one_that_is_handed_out_carries_the_labels_and_outlives_its_wait() {
    let setting = setting(1);
    setting.create(spec("/a")).await;
    after(1).await;
    let ready = setting.world.made.lock().unwrap()[1].clone();
    let unused = BTreeMap::from([("dressage.warm".to_owned(), "true".to_owned())]);
    assert_eq!(*ready.labels.lock().unwrap(), unused);
    assert_eq!(ready.spec.lifetime, Duration::from_secs(60) + MAX_AGE);

    let mut asked = spec("/a");
    asked.labels = BTreeMap::from([("rollout".to_owned(), "second".to_owned())]);
    let warm = setting.create(asked.clone()).await;
    assert_eq!(warm.sandbox.id(), ready.spec.id);
    assert_eq!(*ready.labels.lock().unwrap(), asked.labels);
}

#[tokio::test(start_paused = true)]
async fn another_spec_is_a_miss_and_gets_its_share() {
    let setting = setting(3);
    let mut other = spec("/a");
    other.env = BTreeMap::from([("A".to_owned(), "1".to_owned())]);
    let _first = setting.create(spec("/a")).await;
    after(1).await;
    let second = setting.create(other.clone()).await;
    assert!(!second.warm);
    after(1).await;
    assert_eq!(
        setting.counts().ready,
        3,
        "two of the first spec, one of the other"
    );
    for (spec, is_ready) in [(spec("/a"), true), (spec("/a"), true), (other, true)] {
        let booted = setting.create(spec.clone()).await;
        assert_eq!(booted.warm, is_ready);
        assert_eq!(setting.fake(booted.sandbox.id()).spec.env, spec.env);
    }
}

#[tokio::test(start_paused = true)]
async fn specs_beyond_the_size_push_out_what_was_asked_for_longest_ago() {
    let setting = setting(2);
    for home in ["/a", "/b", "/a", "/c"] {
        setting.create(spec(home)).await;
        after(1).await;
    }
    assert!(setting.create(spec("/a")).await.warm);
    assert!(setting.create(spec("/c")).await.warm);
    assert!(!setting.create(spec("/b")).await.warm);
}

#[tokio::test(start_paused = true)]
async fn what_waited_too_long_ends_and_an_idle_pool_empties() {
    let setting = setting(2);
    let first = setting.create(spec("/a")).await;
    after(1).await;
    let old: Vec<SandboxId> = {
        let made = setting.world.made.lock().unwrap();
        made[1..].iter().map(|fake| fake.spec.id).collect()
    };
    after(500).await;
    // Takes the oldest, and says that the spec is still wanted.
    let second = setting.create(spec("/a")).await;
    assert!(second.warm && second.sandbox.id() == old[0]);
    after(101).await;
    assert!(
        setting.fake(old[1]).is_dead.load(Ordering::Relaxed),
        "it was there for 601 s"
    );
    assert_eq!(setting.counts().ready, 2, "made anew, since the spec is wanted");
    let attempts = setting.attempts();
    after(600).await;
    assert_eq!(setting.counts().ready, 0);
    assert_eq!(setting.living(), 2, "those that were handed out");
    after(6000).await;
    assert_eq!(setting.attempts(), attempts, "nobody asked for more");
    assert!(!setting.create(spec("/a")).await.warm);
    drop((first, second));
}

#[tokio::test(start_paused = true)]
async fn one_that_died_is_not_handed_out() {
    let setting = setting(2);
    setting.create(spec("/a")).await;
    after(1).await;
    let made = setting.world.made.lock().unwrap().clone();
    made[1].is_dead.store(true, Ordering::Relaxed);
    let next = setting.create(spec("/a")).await;
    assert!(next.warm && next.sandbox.id() == made[2].spec.id);
    after(1).await;
    for fake in setting.world.made.lock().unwrap().iter() {
        fake.is_dead.store(true, Ordering::Relaxed);
    }
    assert!(!setting.create(spec("/a")).await.warm, "all are dead");
    assert_eq!((setting.counts().hits, setting.counts().misses), (1, 2));
}

#[tokio::test(start_paused = true)]
async fn a_backend_that_fails_is_not_asked_in_a_hurry() {
    let setting = setting(4);
    setting.create(spec("/a")).await;
    setting.world.fails.store(true, Ordering::Relaxed);
    after(300).await;
    // Two at once, then 2, 4, 8, 16 and 32 s later, then once a minute.
    let failures = setting.counts().failures;
    assert!((8..=12).contains(&failures), "{failures} attempts in 5 minutes");
    assert_eq!(setting.attempts(), failures + 1);
    setting.world.fails.store(false, Ordering::Relaxed);
    after(61).await;
    assert_eq!(setting.counts().ready, 4, "it works again, and all are made");
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_made_at_all_is_not_wanted() {
    let setting = setting(4);
    setting.world.fails.store(true, Ordering::Relaxed);
    assert!(setting.pools.create(&setting.backend, spec("/a")).await.is_err());
    after(300).await;
    assert_eq!(setting.attempts(), 1);
}

#[tokio::test(start_paused = true)]
async fn closing_ends_what_is_ready_and_what_is_being_made() {
    for moment_ms in [0, 15, 45, 1000] {
        let setting = setting(3);
        let mut asked = spec("/a");
        asked.env.insert("STAYS".into(), "1".into());
        let used = setting.create(asked).await;
        tokio::time::sleep(Duration::from_millis(moment_ms)).await;
        setting.pools.close().await;
        assert_eq!(setting.living(), 1, "after {moment_ms} ms");
        assert!(!setting.create(spec("/a")).await.warm);
        after(300).await;
        assert_eq!(setting.living(), 1, "nothing is made after the end");
        setting.pools.close().await;
        drop(used);
    }
}

#[tokio::test(start_paused = true)]
async fn pools_that_nobody_holds_end_what_is_ready() {
    let setting = setting(3);
    setting.create(spec("/a")).await;
    after(1).await;
    assert_eq!(setting.living(), 3);
    drop(setting.pools);
    after(1).await;
    let made = setting.world.made.lock().unwrap();
    assert!(made.iter().all(|fake| fake.is_dead.load(Ordering::Relaxed)));
}

#[tokio::test(start_paused = true)]
async fn a_backend_without_a_pool_makes_what_is_asked_for() {
    let setting = setting(3);
    let pools = Pools::default();
    for _ in 0..3 {
        let spec = spec("/a");
        let asked = spec.id;
        let booted = pools.create(&setting.backend, spec).await.unwrap();
        assert!(!booted.warm && booted.sandbox.id() == asked);
        after(1).await;
    }
    assert_eq!(setting.attempts(), 3);
    assert!(pools.counts().is_empty());
}
