//! What a command works with: folders, configuration and environment; and, for commands that run rollouts, this
//! process as an owner, the store, the backends and the engine.

use crate::cli::Globals;
use crate::config::Config;
use crate::embedded;
use crate::environment::{Environment, names};
use crate::error::{Failure, nearest};
use crate::exit::Exit;
use crate::paths::{self, Paths, User};
use crate::providers::providers;
use crate::terminal::Terminal;
use dressage_rollout::agents::Agents;
use dressage_rollout::{Observer, QueueLimits, Supervisor, SupervisorConfig};
use dressage_sandbox::lease::{Owner, Reaper, is_alive};
use dressage_sandbox::{Backend, BackendConfig, Pools};
use dressage_store::Store;
use dressage_wire::rollout::Recorder;
use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What every command works with.
#[derive(Clone, Debug)]
pub struct Context {
    /// Where output goes.
    pub terminal: Terminal,
    /// The environment.
    pub environment: Environment,
    /// The configuration file, read.
    pub config: Config,
    /// The folders.
    pub paths: Paths,
}

impl Context {
    /// Reads the environment and the configuration file, and starts the log.
    ///
    /// # Errors
    /// Where one of them cannot be read or is not valid.
    pub fn new(globals: &Globals, terminal: &Terminal) -> Result<Self, Failure> {
        let input = |error: &(dyn std::error::Error + 'static)| Failure::from_error(Exit::BadInput, error);
        let environment = Environment::read(Path::new(".")).map_err(|error| input(&error))?;
        crate::logging::start(globals, &environment, terminal).map_err(|error| input(&error))?;
        let named = globals
            .config
            .clone()
            .or_else(|| environment.get(names::CONFIG).map(PathBuf::from));
        let config = match named.or_else(|| paths::default_config(&environment).filter(|path| path.exists()))
        {
            Some(path) => Config::read(&path).map_err(|error| input(&error).maybe_hint(error.hint()))?,
            None => Config::default(),
        };
        let paths = Paths::resolve(
            globals.data_dir.as_deref(),
            globals.cache_dir.as_deref(),
            &environment,
            User::current(),
        )
        .map_err(|error| input(&error).hint("pass `--data-dir` and `--cache-dir`"))?;
        Ok(Self {
            terminal: terminal.clone(),
            environment,
            config,
            paths,
        })
    }

    /// The agents there are.
    #[must_use]
    pub fn agents(&self) -> Agents {
        Agents::builtin()
    }

    /// Makes a folder that others may enter: sandboxes of root run as other users and have homes and assets below.
    fn make_folder(&self, path: &Path, what: &str, option: &str) -> Result<(), Failure> {
        std::fs::create_dir_all(path).map_err(|error| {
            Failure::new(
                Exit::MachineLacks,
                format!("{what} `{}` could not be made", path.display()),
            )
            .cause(error.to_string())
            .hint(format!("pass a folder that can be written with `{option}`"))
        })
    }

    /// Makes this process an owner, removes what dead ones left, and opens the store.
    ///
    /// # Errors
    /// Where a folder cannot be written or the database not be opened.
    pub async fn open(&self) -> Result<Workspace, Failure> {
        self.make_folder(&self.paths.data, "data directory", "--data-dir")?;
        self.make_folder(&self.paths.cache, "cache directory", "--cache-dir")?;
        let lacks = |error: &(dyn std::error::Error + 'static)| {
            Failure::from_error(Exit::MachineLacks, error)
                .hint("the data directory must be writable and have space left; `--data-dir` names another")
        };
        let tap_binary = embedded::unpack(&self.paths.cache).map_err(|error| {
            Failure::from_error(Exit::MachineLacks, &error)
                .hint("the cache directory must be writable and have space left; `--cache-dir` names another")
        })?;
        let store = Store::open(&self.paths.data)
            .await
            .map_err(|error| store_failure(&error))?;
        let owner = Arc::new(Owner::acquire(&self.paths.data).map_err(|error| lacks(&error))?);
        let backends = self.backends(owner, tap_binary);
        sweep(&backends, &store).await?;
        let (context, tap_binary) = (self.clone(), backends.tap_binary.clone());
        tokio::spawn(Reaper::keep_sweeping_own(
            Arc::downgrade(&backends.owner),
            move |owner| context.backends(owner, tap_binary.clone()),
        ));
        Ok(Workspace {
            store: Arc::new(store),
            backends,
        })
    }

    /// What backends are made with.
    #[must_use]
    pub fn backends(&self, owner: Arc<Owner>, tap_binary: PathBuf) -> BackendConfig {
        BackendConfig {
            data_dir: self.paths.data.clone(),
            cache_dir: self.paths.cache.clone(),
            tap_binary,
            bubblewrap: self.program("bwrap"),
            ripgrep: self.program("rg"),
            owner,
            providers: providers(&self.config, &self.environment),
        }
    }

    /// A program on PATH.
    #[must_use]
    pub fn program(&self, name: &str) -> Option<PathBuf> {
        let runs = |path: &PathBuf| {
            path.metadata()
                .is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
        };
        std::env::split_paths(self.environment.get(names::PATH)?)
            .map(|folder| folder.join(name))
            .find(runs)
    }
}

/// Removes what belongs to processes that are dead, and marks their rollouts. What cannot be removed now is logged, and
/// tried again at the next start.
async fn sweep(backends: &BackendConfig, store: &Store) -> Result<(), Failure> {
    let owner = Arc::clone(&backends.owner);
    let data = owner.data_dir().to_owned();
    let failed = |error: &(dyn std::error::Error + 'static)| Failure::from_error(Exit::MachineLacks, error);
    let running = store
        .running_owners()
        .await
        .map_err(|error| store_failure(&error))?;
    let dead: Vec<_> = running
        .into_iter()
        .filter(|owner| !is_alive(&data, *owner))
        .collect();
    let interrupted = store
        .mark_interrupted(&dead)
        .await
        .map_err(|error| store_failure(&error))?;
    let swept = Reaper::new(owner)
        .sweep_everywhere(backends)
        .await
        .map_err(|error| failed(&error))?;
    if !interrupted.is_empty() || !swept.removed.is_empty() {
        tracing::info!(
            sweep.rollouts = interrupted.len(),
            sweep.sandboxes = swept.removed.len(),
            "took over what dead processes left"
        );
    }
    for error in &swept.failed {
        tracing::warn!(error = %chain(error), "something a dead process left could not be removed");
    }
    Ok(())
}

/// An error with its causes, on a line.
pub fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    for cause in std::iter::successors(error.source(), |error| error.source()) {
        text.push_str(&format!(": {cause}"));
    }
    text
}

/// The failure that an error of the store tells of.
pub fn store_failure(error: &dressage_store::StoreError) -> Failure {
    Failure::from_error(Exit::MachineLacks, error).maybe_hint(error.hint())
}

/// What commands that run rollouts work with.
#[derive(Debug)]
pub struct Workspace {
    /// What remains.
    pub store: Arc<Store>,
    /// What backends are made with.
    pub backends: BackendConfig,
}

impl Workspace {
    /// Makes the backend of that name.
    ///
    /// # Errors
    /// Where there is none, or it cannot work on this machine.
    pub fn backend(&self, name: &str) -> Result<Arc<dyn Backend>, Failure> {
        let known = dressage_sandbox::registry().iter().map(|entry| entry.name);
        let entry = dressage_sandbox::by_name(name).map_err(|error| {
            let hint = match nearest(name, known.clone()) {
                Some(meant) => format!("did you mean `{meant}`?"),
                None => format!("known are {}", known.collect::<Vec<_>>().join(", ")),
            };
            Failure::from_error(Exit::BadInput, &error).hint(hint)
        })?;
        (entry.make)(&self.backends)
            .map_err(|error| Failure::from_error(Exit::MachineLacks, &error).maybe_hint(error.hint()))
    }

    /// Starts the engine for a command.
    #[must_use]
    pub fn supervisor(&self, context: &Context, concurrency: usize, pools: Pools) -> Supervisor {
        let limits = QueueLimits::of(concurrency);
        self.engine(context, limits, pools, self.store.clone(), None)
    }

    /// Starts the engine for a server.
    #[must_use]
    pub fn engine(
        &self,
        context: &Context,
        limits: QueueLimits,
        pools: Pools,
        recorder: Arc<dyn Recorder>,
        observer: Option<Arc<dyn Observer>>,
    ) -> Supervisor {
        Supervisor::start(SupervisorConfig {
            owner: self.backends.owner.id(),
            recorder,
            agents: context.agents(),
            cache_dir: context.paths.cache.clone(),
            tap_binary: self.backends.tap_binary.clone(),
            labels: BTreeMap::from([(
                "dressage.installation".to_owned(),
                self.backends.owner.installation().to_string(),
            )]),
            pools,
            limits,
            observer,
        })
    }
}
