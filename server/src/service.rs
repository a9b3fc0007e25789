//! What a server does, whatever it is asked through: OpenEnv, REST and MCP are forms of this.
//!
//! A rollout that is submitted is written into the queue on disk before anybody is told its id, and stays there until
//! it is over, so that one which waits goes on after a restart.

/// Why something was not done.
mod error;

/// What a rollout is asked for with.
mod spec;

/// What is told of rollouts.
mod views;

/// What happens in live rollouts.
mod board;

/// Endpoints in use.
mod endpoints;

/// Taking rollouts, and taking over those of a server that died.
mod submit;

/// Events for listeners.
mod follow;

/// Rollouts whose caller may go.
mod abandon;

/// Calls as trainers read them.
mod turns;

/// Whether rollouts can be asked for now.
mod ready;

pub use abandon::CancelOnDrop;
pub use endpoints::ClientBaseUrl;
pub use error::{Code, Place, ServiceError};
pub use follow::{Feed, FeedItem, Follow};
pub use ready::Readiness;
pub use spec::RolloutSpec;
pub use turns::{Detail, Turn};
pub use views::{LiveView, Page, Position, Submitted, Summary, View};

use self::board::Board;
use self::endpoints::Endpoints;
use self::ready::Ready;
use crate::endpoints::probes::Probes;
use crate::error::Failure;
use crate::metrics::{Both, Counting, Metrics};
use crate::traces::{Exporter, Settings, Traced, Traces};
use crate::workspace::{Context, Workspace};
use dressage_rollout::{Held, HoldError, Live, LiveRollout, LiveState, Observer, QueueLimits, Supervisor};
use dressage_sandbox::{Backend, Pools};
use dressage_store::{ListFilter, ListSort, RolloutRow, RolloutState, Store};
use dressage_tap::Upstream;
use dressage_tap::address::AddressPolicy;
use dressage_wire::ids::{RolloutId, SandboxId};
use dressage_wire::probe::ProbeReport;
use dressage_wire::rollout::{Recorder, RolloutOutcome};
use dressage_wire::task::{AllowedHost, NetworkPolicy, SnapshotWhen, VerifyIn};
use std::collections::{BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio_util::task::TaskTracker;

/// How long the last traces may take to be sent, at least and at most, whatever is left of the grace.
const LAST_TRACES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(10));

/// How a service works.
#[derive(Clone, Debug)]
pub struct ServiceConfig {
    /// The backend of specs that name none.
    pub backend: String,
    /// Where rollouts are verified whose task does not say.
    pub verify_in: Option<VerifyIn>,
    /// Whether what setup made is kept, where the task does not say.
    pub snapshot: Option<SnapshotWhen>,
    /// Backends that share this machine's loopback and may be used all the same.
    pub shared: BTreeSet<&'static str>,
    /// Addresses that are not public and that tasks may allow their sandboxes all the same.
    pub addresses: TaskAddresses,
    /// How many rollouts run and wait.
    pub limits: QueueLimits,
    /// Which URLs callers may bring.
    pub client_base_url: ClientBaseUrl,
    /// The folder whose task files are offered.
    pub tasks: Option<PathBuf>,
    /// Sandboxes that are ready before they are asked for; closed with the service.
    pub pools: Pools,
}

/// Addresses that are not public and that the tasks of callers may allow their sandboxes. Loopback is among what they may not
/// unless somebody says so: there this server listens, and an agent is not to ask it for rollouts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TaskAddresses {
    /// All of them.
    Any,
    /// These, as they are written in tasks.
    These(Vec<AllowedHost>),
}

impl TaskAddresses {
    /// Whether an agent may come to reach this machine's loopback.
    #[must_use]
    pub fn reach_loopback(&self) -> bool {
        match self {
            Self::Any => true,
            Self::These(these) => these
                .iter()
                .any(|host| host.address().is_some_and(|address| address.is_loopback())),
        }
    }

    /// Refuses a network with an address that is neither public nor one of these.
    fn check(&self, network: &NetworkPolicy) -> Result<(), ServiceError> {
        let (Self::These(these), NetworkPolicy::Allow(hosts)) = (self, network) else {
            return Ok(());
        };
        let is_fine = |host: &AllowedHost| {
            let public = host
                .address()
                .is_none_or(|address| AddressPolicy::Public.check(address).is_ok());
            public || these.contains(host)
        };
        match hosts.iter().find(|host| !is_fine(host)) {
            None => Ok(()),
            Some(host) => Err(ServiceError::new(
                Code::InvalidRequest,
                format!("`network.allow` has `{host}`, which is not a public address, and is not allowed"),
            )
            .hint(Some(format!(
                "`--allow-address {host}` of `dressage serve` allows it"
            )))),
        }
    }
}

/// The engine with everything around it that a server needs. Cheap to clone.
#[derive(Clone)]
pub struct Service(Arc<Inner>);

struct Inner {
    context: Arc<Context>,
    workspace: Workspace,
    config: ServiceConfig,
    supervisor: Supervisor,
    board: Arc<Board>,
    metrics: Arc<Metrics>,
    /// Set where the environment names a collector.
    traces: Option<Arc<Traces>>,
    ready: Ready,
    endpoints: Endpoints,
    backends: Mutex<HashMap<String, Arc<dyn Backend>>>,
    /// Outcomes of rollouts that this process ran, for whoever waits for them.
    endings: Mutex<HashMap<RolloutId, watch::Receiver<Option<Arc<RolloutOutcome>>>>>,
    /// What stores the logs of rollouts that are over.
    keepers: TaskTracker,
}

impl Service {
    /// Starts the engine, and goes on with what waited in the queue of a server that is dead.
    ///
    /// # Errors
    /// Where the data directory cannot be used, or the default backend is unknown or cannot work here.
    pub async fn start(context: Arc<Context>, config: ServiceConfig) -> Result<Self, Failure> {
        let workspace = context.open().await?;
        let backend = workspace.backend(&config.backend)?;
        let board = Arc::new(Board::new());
        let metrics = Metrics::new();
        let traces = traces(&context);
        let mut recorder: Arc<dyn Recorder> = Arc::new(Counting {
            kept: workspace.store.clone(),
            metrics: metrics.clone(),
        });
        let mut observer: Arc<dyn Observer> = Arc::new(Both(board.clone(), metrics.clone()));
        if let Some(traces) = &traces {
            recorder = Arc::new(Traced {
                kept: recorder,
                traces: traces.clone(),
            });
            observer = Arc::new(Both(observer, traces.clone()));
        }
        let supervisor = workspace.engine(
            &context,
            config.limits.clone(),
            config.pools.clone(),
            recorder,
            Some(observer),
        );
        let service = Self(Arc::new(Inner {
            endpoints: Endpoints::new(config.client_base_url),
            backends: Mutex::new(HashMap::from([(config.backend.clone(), backend)])),
            context,
            workspace,
            config,
            supervisor,
            board,
            metrics,
            traces,
            ready: Ready::default(),
            endings: Mutex::default(),
            keepers: TaskTracker::new(),
        }));
        service.adopt().await?;
        Ok(service)
    }

    /// The store.
    #[must_use]
    pub fn store(&self) -> &Store {
        &self.0.workspace.store
    }

    /// Folders, configuration and environment.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.0.context
    }

    /// How it works.
    #[must_use]
    pub fn config(&self) -> &ServiceConfig {
        &self.0.config
    }

    /// What is counted.
    #[must_use]
    pub fn metrics(&self) -> &Metrics {
        &self.0.metrics
    }

    /// What waits and runs; watch it for changes.
    #[must_use]
    pub fn live(&self) -> watch::Receiver<Live> {
        self.0.supervisor.live()
    }

    /// The endpoint of a name, with its own model and key.
    ///
    /// # Errors
    /// Nothing has that name, or it cannot be used.
    pub async fn endpoint(&self, name: &str) -> Result<Arc<Upstream>, ServiceError> {
        let known = crate::endpoints::known_names(&self.0.context.config);
        if !known.iter().any(|known| known == name) {
            let shown = crate::terminal::one_line(name, 80);
            return Err(
                ServiceError::new(Code::UnknownEndpoint, format!("no endpoint is named `{shown}`"))
                    .hint(Some(format!("known are {}", known.join(", ")))),
            );
        }
        self.0.endpoints.named(name, &self.0.context).await
    }

    /// Asks an endpoint what it returns.
    ///
    /// # Errors
    /// It answers nothing.
    pub async fn probe(&self, upstream: &Arc<Upstream>) -> Result<Arc<ProbeReport>, ServiceError> {
        let probes = Probes::of(&self.0.context.paths.cache);
        probes
            .ask(upstream)
            .await
            .map_err(|failure| ServiceError::from_failure(Code::EndpointUnusable, &failure))
    }

    /// The id of a rollout that is known.
    ///
    /// # Errors
    /// It is none, or of no rollout.
    pub async fn find(&self, id: &str) -> Result<RolloutId, ServiceError> {
        let unknown = || {
            ServiceError::new(
                Code::UnknownRollout,
                format!("no rollout has the id `{}`", crate::terminal::one_line(id, 80)),
            )
        };
        let id: RolloutId = id.parse().map_err(|_| unknown())?;
        if self.0.board.log(id).is_some() {
            return Ok(id);
        }
        match self.store().row(id).await {
            Ok(_) => Ok(id),
            Err(error) => match ServiceError::from(error) {
                error if error.code == Code::UnknownRollout => Err(unknown()),
                error => Err(error),
            },
        }
    }

    /// A page of rollouts.
    ///
    /// # Errors
    /// A store that cannot be read.
    pub async fn list(&self, mut filter: ListFilter) -> Result<Page, ServiceError> {
        let limit = filter.limit.unwrap_or(50).clamp(1, 1000);
        // One more tells whether there is a next page.
        filter.limit = Some(limit + 1);
        let mut rows = self.store().list(&filter).await?;
        let more = rows.len() > limit as usize;
        rows.truncate(limit as usize);
        let by_time = filter.sort == ListSort::Created;
        let next_cursor = rows.last().filter(|_| more && by_time).map(|row| row.id);
        let next_skip = (more && !by_time).then(|| filter.skip.saturating_add(limit));
        let live = self.live().borrow().clone();
        Ok(Page {
            rollouts: rows.into_iter().map(|row| summary(row, &live)).collect(),
            next_cursor,
            next_skip,
        })
    }

    /// A rollout.
    ///
    /// # Errors
    /// There is none of that id; a store that cannot be read.
    pub async fn get(&self, id: RolloutId) -> Result<View, ServiceError> {
        let stored = self.store().get(id).await?;
        let live = self.live().borrow().clone();
        Ok(View {
            summary: summary(stored.row, &live),
            start: stored.start,
            outcome: stored.outcome,
        })
    }

    /// Waits until a rollout is over. `None` where it was interrupted and nothing came of it.
    ///
    /// # Errors
    /// There is none of that id; a store that cannot be read.
    pub async fn wait(&self, id: RolloutId) -> Result<Option<Arc<RolloutOutcome>>, ServiceError> {
        let ending = self.0.endings().get(&id).cloned();
        if let Some(mut ending) = ending
            && let Ok(outcome) = ending.wait_for(Option::is_some).await
        {
            return Ok(outcome.clone());
        }
        Ok(self.store().get(id).await?.outcome.map(Arc::new))
    }

    /// Asks a rollout to stop. False where it was over already.
    ///
    /// # Errors
    /// There is none of that id.
    pub async fn cancel(&self, id: RolloutId) -> Result<bool, ServiceError> {
        // Asked before the row is read: between the two it may end, and then the row says so.
        let ours = self.0.endings().contains_key(&id);
        match self.store().row(id).await?.state {
            RolloutState::Finished | RolloutState::Interrupted => Ok(false),
            RolloutState::Queued | RolloutState::Running if ours => {
                self.0.supervisor.cancel(id);
                Ok(true)
            }
            RolloutState::Queued | RolloutState::Running => Err(ServiceError::new(
                Code::InvalidRequest,
                format!("rollout {id} belongs to another process"),
            )
            .hint(Some("stop it where it was started".into()))),
        }
    }

    /// Ends a sandbox that a dead process left.
    ///
    /// # Errors
    /// A backend that cannot be used, or does not end it.
    pub async fn end_sandbox(&self, backend: &str, sandbox: SandboxId) -> Result<(), ServiceError> {
        let backend = self.0.backend(backend)?;
        let ended = backend.delete(sandbox).await;
        ended.map_err(|error| ServiceError::from_error(Code::SandboxFailed, &error).hint(error.hint()))
    }

    /// The sandbox of a rollout that is held.
    ///
    /// # Errors
    /// There is no such rollout, or it is not held.
    pub async fn held(&self, id: RolloutId) -> Result<Held, ServiceError> {
        match self.0.supervisor.held(id).await {
            Ok(held) => Ok(held),
            Err(HoldError::Unknown(_)) => {
                let state = self.store().row(id).await?.state;
                Err(ServiceError::new(
                    Code::NotHeld,
                    format!("rollout {id} is {} and not held", state.name()),
                ))
            }
            Err(error) => Err(ServiceError::from_error(Code::NotHeld, &error).hint(Some(
                "it is held from the end of the agent on, where it was submitted with `hold`".into(),
            ))),
        }
    }

    /// Stops admitting. What waits stays in the queue on disk for the next server; what runs may end within `grace`, then
    /// it is cancelled. Returns when all is cleaned up.
    pub async fn shutdown(&self, grace: Duration) {
        let began = Instant::now();
        self.0.ready.drain();
        self.0.supervisor.stop_admitting();
        let left = self.0.supervisor.forget_waiting().await;
        if !left.is_empty() {
            tracing::info!(
                queue.rollouts = left.len(),
                "left in the queue for the next server"
            );
        }
        tokio::join!(self.0.config.pools.close(), self.0.supervisor.shutdown(grace));
        self.0.keepers.close();
        self.0.keepers.wait().await;
        self.0.endpoints.close().await;
        if let Some(traces) = &self.0.traces {
            let left = grace.saturating_sub(began.elapsed());
            traces
                .exporter()
                .close(left.clamp(LAST_TRACES.0, LAST_TRACES.1))
                .await;
        }
    }

    /// The engine, for whoever ends it by signals.
    #[must_use]
    pub fn supervisor(&self) -> &Supervisor {
        &self.0.supervisor
    }
}

impl Inner {
    fn endings(
        &self,
    ) -> std::sync::MutexGuard<'_, HashMap<RolloutId, watch::Receiver<Option<Arc<RolloutOutcome>>>>> {
        self.endings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The backend of that name; made once.
    fn backend(&self, name: &str) -> Result<Arc<dyn Backend>, ServiceError> {
        if dressage_sandbox::by_name(name)
            .is_ok_and(|entry| entry.shares_loopback && !self.config.shared.contains(entry.name))
        {
            return Err(ServiceError::new(
                Code::BackendUnusable,
                format!("backend `{name}` isolates nothing from this server, and is not allowed"),
            )
            .hint(Some(
                "`--allow-backend` of `dressage serve` allows it; the server then asks for a token".into(),
            )));
        }
        let mut backends = self.backends.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(backend) = backends.get(name) {
            return Ok(backend.clone());
        }
        let made = self.workspace.backend(name);
        let backend = made.map_err(|failure| ServiceError::from_failure(Code::BackendUnusable, &failure))?;
        backends.insert(name.to_owned(), backend.clone());
        Ok(backend)
    }
}

/// Traces, where the environment asks for them. Variables that are often set for a whole machine do not keep a server from
/// starting.
fn traces(context: &Context) -> Option<Arc<Traces>> {
    match Settings::read(&context.environment) {
        Ok(settings) => settings.map(|settings| Traces::new(Exporter::start(settings))),
        Err(error) => {
            tracing::warn!(%error, "no traces are sent");
            None
        }
    }
}

fn summary(row: RolloutRow, live: &[Arc<LiveRollout>]) -> Summary {
    let found = live.iter().find(|rollout| rollout.id == row.id);
    // What waits stands in the order in which it may start.
    let waits_before = |id| {
        let waiting = live.iter().filter(|rollout| rollout.state == LiveState::Queued);
        waiting.take_while(|rollout| rollout.id != id).count()
    };
    let live = found
        .map(|rollout| LiveView::of(rollout, waits_before(rollout.id)))
        .unwrap_or_default();
    Summary { row, live }
}
