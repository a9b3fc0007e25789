//! Sandboxes that are ready before they are asked for.
//!
//! A pool learns what is wanted from what it is asked for: whoever gets a sandbox leaves it to the pool to make others of the same
//! spec, in the background, up to the pool's size. Each is handed out once, and was never used before. A pool only makes
//! booting faster: where nothing is ready, or what was ready does not answer, a sandbox is made as without one. What is ready
//! is leased like any other sandbox, so that nothing of it outlives the process.

/// What is ready, and what is to be.
mod shelves;

use self::shelves::Shelves;
use crate::{Backend, Sandbox, SandboxError, SandboxSpec};
use dressage_wire::ids::SandboxId;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::{Id, JoinError, JoinSet};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Sandboxes that a pool makes at once: what rollouts need now comes first.
const AT_ONCE: usize = 2;

/// How long the making of one may take.
const MAKING: Duration = Duration::from_secs(300);

/// How long one that is ready may take to show that it lives.
const ANSWER: Duration = Duration::from_secs(3);

/// How long the end of all that is ready may take; then their leases are what remains of them.
const CLOSING: Duration = Duration::from_secs(30);

/// How a pool is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolConfig {
    /// Sandboxes that are ready at once, of all specs together.
    pub size: NonZeroUsize,
    /// A sandbox that was not asked for ends after this, and a spec that was not asked for is forgotten.
    pub max_age: Duration,
}

/// What a pool did since it began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolCounts {
    /// Name of its backend.
    pub backend: &'static str,
    /// Sandboxes that are ready now.
    pub ready: usize,
    /// Sandboxes that were asked for and ready.
    pub hits: u64,
    /// Sandboxes that were asked for and had to be made.
    pub misses: u64,
    /// Sandboxes that could not be made ready.
    pub failures: u64,
}

/// A sandbox, and whether it was ready.
pub struct Booted {
    /// The sandbox. One that was ready has an id of its own instead of that of the spec.
    pub sandbox: Arc<dyn Sandbox>,
    /// Whether it was made before it was asked for.
    pub warm: bool,
}

/// The pools of a process: one for each backend that is to have one. Dropping the last handle ends what is ready, in the
/// background; [`Pools::close`] waits for that.
#[derive(Clone, Default)]
pub struct Pools(Arc<Inner>);

#[derive(Default)]
struct Inner {
    configs: BTreeMap<String, PoolConfig>,
    pools: Mutex<BTreeMap<&'static str, Arc<Pool>>>,
    closing: CancellationToken,
    keepers: TaskTracker,
}

impl Pools {
    /// Pools for the backends that are named, none for others.
    #[must_use]
    pub fn new(configs: BTreeMap<String, PoolConfig>) -> Self {
        Self(Arc::new(Inner {
            configs,
            pools: Mutex::default(),
            closing: CancellationToken::new(),
            keepers: TaskTracker::new(),
        }))
    }

    /// A sandbox that is ready and differs from `spec` in nothing but its id, which is its own; else one that `backend` makes.
    /// Its labels are those of `spec` either way. What begins with a snapshot is made: snapshots do not outlast what needs them. All that is asked for under one name of a backend is to come of one backend.
    ///
    /// # Errors
    /// Those of [`Backend::create`].
    pub async fn create(
        &self,
        backend: &Arc<dyn Backend>,
        spec: SandboxSpec,
    ) -> Result<Booted, SandboxError> {
        match self.pool(backend).filter(|_| spec.snapshot.is_none()) {
            Some(pool) => pool.create(spec).await,
            None => backend.create(spec).await.map(cold),
        }
    }

    /// What each pool did, by the names of their backends.
    #[must_use]
    pub fn counts(&self) -> Vec<PoolCounts> {
        let pools = self.0.pools.lock().unwrap_or_else(PoisonError::into_inner);
        pools.values().map(|pool| pool.counts()).collect()
    }

    /// Ends what is ready, and makes no more. What is asked for from now on is made as without pools. Idempotent.
    pub async fn close(&self) {
        self.0.closing.cancel();
        self.0.keepers.close();
        self.0.keepers.wait().await;
    }

    fn pool(&self, backend: &Arc<dyn Backend>) -> Option<Arc<Pool>> {
        let name = backend.name();
        let config = *self.0.configs.get(name)?;
        if self.0.closing.is_cancelled() {
            return None;
        }
        let mut pools = self.0.pools.lock().unwrap_or_else(PoisonError::into_inner);
        let pool = pools.entry(name).or_insert_with(|| {
            let pool = Arc::new(Pool {
                backend: Arc::clone(backend),
                shelves: Mutex::new(Shelves::new(config)),
                changed: Notify::new(),
                hits: AtomicU64::new(0),
                misses: AtomicU64::new(0),
                failures: AtomicU64::new(0),
            });
            let keeper = keep(Arc::clone(&pool), self.0.closing.clone());
            self.0.keepers.spawn(keeper);
            pool
        });
        Some(Arc::clone(pool))
    }
}

impl fmt::Debug for Pools {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Pools").field(&self.0.configs).finish()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.closing.cancel();
    }
}

fn cold(sandbox: Arc<dyn Sandbox>) -> Booted {
    Booted { sandbox, warm: false }
}

struct Pool {
    backend: Arc<dyn Backend>,
    shelves: Mutex<Shelves<Arc<dyn Sandbox>>>,
    changed: Notify,
    hits: AtomicU64,
    misses: AtomicU64,
    failures: AtomicU64,
}

impl Pool {
    async fn create(&self, spec: SandboxSpec) -> Result<Booted, SandboxError> {
        loop {
            let ready = self.shelves().take(&spec, Instant::now());
            let Some(sandbox) = ready else { break };
            if is_usable(&*sandbox, &spec).await {
                self.hits.fetch_add(1, Ordering::Relaxed);
                self.want(&spec);
                return Ok(Booted { sandbox, warm: true });
            }
            // With its last handle goes what is left of it.
            tracing::info!(
                sandbox.id = %sandbox.id(),
                sandbox.backend = self.backend.name(),
                "a sandbox that was ready no longer answers"
            );
        }
        self.misses.fetch_add(1, Ordering::Relaxed);
        let sandbox = self.backend.create(spec.clone()).await?;
        // Only now: whoever waits comes first, and what cannot be made is not wanted again.
        self.want(&spec);
        Ok(cold(sandbox))
    }

    fn want(&self, spec: &SandboxSpec) {
        self.shelves().want(spec, Instant::now());
        self.changed.notify_one();
    }

    fn counts(&self) -> PoolCounts {
        PoolCounts {
            backend: self.backend.name(),
            ready: self.shelves().ready(),
            hits: self.hits.load(Ordering::Relaxed),
            misses: self.misses.load(Ordering::Relaxed),
            failures: self.failures.load(Ordering::Relaxed),
        }
    }

    fn failed(&self, shelf: Option<SandboxId>, error: &(dyn std::error::Error + 'static)) {
        self.failures.fetch_add(1, Ordering::Relaxed);
        if let Some(shelf) = shelf {
            self.shelves().failed(shelf, Instant::now());
        }
        tracing::warn!(
            sandbox.backend = self.backend.name(),
            error,
            "no sandbox could be made ready; rollouts make their own"
        );
    }

    fn shelves(&self) -> MutexGuard<'_, Shelves<Arc<dyn Sandbox>>> {
        self.shelves.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a sandbox that was ready still lives, and now carries the labels of `spec`.
async fn is_usable(sandbox: &dyn Sandbox, spec: &SandboxSpec) -> bool {
    let lives = tokio::time::timeout(ANSWER, sandbox.exists(".")).await;
    matches!(lives, Ok(Ok(true))) && sandbox.relabel(&spec.labels).await.is_ok()
}

/// Makes what is to be ready and ends what is not, until the pool is closed; then ends everything.
async fn keep(pool: Arc<Pool>, closing: CancellationToken) {
    let mut work = Work::default();
    loop {
        let wake = work.begin(&pool);
        tokio::select! {
            biased;
            () = closing.cancelled() => break,
            Some(made) = work.making.join_next_with_id() => work.take_in(&pool, made),
            Some(_) = work.ending.join_next() => {}
            () = pool.changed.notified() => {}
            () = until(wake) => {}
        }
    }
    if tokio::time::timeout(CLOSING, work.finish(&pool)).await.is_err() {
        tracing::warn!(
            sandbox.backend = pool.backend.name(),
            "sandboxes that were ready are left to the next sweep"
        );
    }
}

type Made = Result<Arc<dyn Sandbox>, SandboxError>;

/// What a keeper has under way.
#[derive(Default)]
struct Work {
    making: JoinSet<Made>,
    /// For which shelf each task makes one.
    shelves: HashMap<Id, SandboxId>,
    ending: JoinSet<()>,
}

impl Work {
    /// Begins what is due, and says when something will be that is not yet.
    fn begin(&mut self, pool: &Pool) -> Option<Instant> {
        let now = Instant::now();
        let mut shelves = pool.shelves();
        self.end(shelves.tidy(now));
        while self.making.len() < AT_ONCE
            && let Some((shelf, spec)) = shelves.next_to_make(now)
        {
            let task = self.making.spawn(make(Arc::clone(&pool.backend), spec));
            self.shelves.insert(task.id(), shelf);
        }
        shelves.wakes_at()
    }

    fn take_in(&mut self, pool: &Pool, made: Result<(Id, Made), JoinError>) {
        let id = made.as_ref().map_or_else(JoinError::id, |(id, _)| *id);
        let shelf = self.shelves.remove(&id);
        match made {
            Ok((_, Ok(sandbox))) => {
                let unwanted = match shelf {
                    Some(shelf) => pool.shelves().put(shelf, sandbox, Instant::now()),
                    None => Some(sandbox),
                };
                self.end(unwanted);
            }
            Ok((_, Err(error))) => pool.failed(shelf, &error),
            Err(crash) => pool.failed(shelf, &crash),
        }
    }

    fn end(&mut self, sandboxes: impl IntoIterator<Item = Arc<dyn Sandbox>>) {
        for sandbox in sandboxes {
            self.ending.spawn(end(sandbox));
        }
    }

    /// Ends everything, that which is being made too.
    async fn finish(&mut self, pool: &Pool) {
        let ready = pool.shelves().clear();
        self.end(ready);
        while let Some(made) = self.making.join_next().await {
            self.end(made.ok().and_then(Result::ok));
        }
        while self.ending.join_next().await.is_some() {}
    }
}

async fn make(backend: Arc<dyn Backend>, spec: SandboxSpec) -> Made {
    match tokio::time::timeout(MAKING, backend.create(spec)).await {
        Ok(made) => made,
        Err(_) => Err(SandboxError::Create {
            step: "make it ready".into(),
            source: Some(std::io::ErrorKind::TimedOut.into()),
        }),
    }
}

async fn end(sandbox: Arc<dyn Sandbox>) {
    if let Err(error) = sandbox.kill().await {
        tracing::warn!(
            sandbox.id = %sandbox.id(),
            error = &error as &dyn std::error::Error,
            "a sandbox that was ready could not be removed; the next sweep tries again"
        );
    }
}

async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests;
