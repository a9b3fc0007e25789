use crate::engine::{IMAGE, engine};
use async_trait::async_trait;
use dressage_rollout::agents::{
    Agent, AgentError, Agents, InstallProgress, InstallRequest, Installed, LaunchPlan, LaunchRequest,
    LineReader, OpenCode, Wish,
};
use dressage_rollout::{Observer, QueueLimits, RolloutHandle, RolloutRequest, Supervisor, SupervisorConfig};
use dressage_sandbox::lease::Owner;
use dressage_sandbox::{Backend, BackendConfig, DockerAccess, Pools, Providers};
use dressage_tap::{Endpoint, Upstream};
use dressage_testkit::fault::FaultPlan;
use dressage_testkit::model::{
    KeepRequests, Script, ScriptedModel, ScriptedModelConfig, ScriptedTurns, Turn,
};
use dressage_wire::call::DialectName;
use dressage_wire::capture::AgentSigns;
use dressage_wire::event::{Event, RolloutEvent, Stage};
use dressage_wire::ids::RolloutId;
use dressage_wire::rollout::{Recorder, RecorderError, Remains, RolloutOutcome, RolloutStart};
use dressage_wire::task::{CaptureMode, Mode, Placement, Task};
use dressage_wire::trajectory::Recorded;
use serde_json::json;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tempfile::TempDir;
use tokio::sync::broadcast::error::RecvError;

/// No rollout of these tests takes longer, on a busy machine either; one that does hangs.
const HANG: Duration = Duration::from_secs(300);

/// Everything a rollout needs, with defaults that work; each test says what is different.
pub struct World {
    pub recorder: Arc<MemoryRecorder>,
    pub supervisor: Supervisor,
    pub backend: Arc<dyn Backend>,
    pub model: ScriptedModel,
    data: TempDir,
}

/// What is different from a world where all is well.
pub struct WorldPlan {
    pub script: Arc<dyn Script>,
    pub faults: FaultPlan,
    pub model_key: Option<String>,
    pub backend: BackendChoice,
    pub agents: Agents,
    pub concurrency: usize,
    /// Instead of nothing but `concurrency`.
    pub limits: Option<QueueLimits>,
    pub observer: Option<Arc<dyn Observer>>,
    pub recorder: Arc<MemoryRecorder>,
    pub cache_dir: Option<PathBuf>,
    pub pools: Pools,
}

pub enum BackendChoice {
    Named(&'static str),
    /// With access to providers that are played.
    Over(&'static str, Box<Providers>),
    Given(Arc<dyn Backend>),
}

impl Default for WorldPlan {
    fn default() -> Self {
        Self {
            script: Arc::new(ScriptedTurns(vec![Turn::says("Done.")])),
            faults: FaultPlan::default(),
            model_key: None,
            backend: BackendChoice::Named("local"),
            agents: Agents::builtin().with(Arc::new(ScriptedAgent)),
            concurrency: 4,
            limits: None,
            observer: None,
            recorder: Arc::default(),
            cache_dir: None,
            pools: Pools::default(),
        }
    }
}

/// The providers that `DRESSAGE_TEST_E2B_URL` and `DRESSAGE_TEST_HF_URL` name: emulators, or deployments.
pub fn provider_url(backend: &str) -> Option<String> {
    let variable = match backend {
        "e2b" => "DRESSAGE_TEST_E2B_URL",
        _ => "DRESSAGE_TEST_HF_URL",
    };
    std::env::var(variable).ok()
}

fn providers(backend: &str) -> Providers {
    let mut providers = Providers::default();
    if backend == "docker" {
        providers.docker = DockerAccess {
            host: engine().map(str::to_owned),
            image: Some(IMAGE.into()),
        };
    }
    crate::played::named(providers)
}

/// An agent's work as one shell command, then a last word.
pub fn shell(command: &str) -> Arc<dyn Script> {
    let call = Turn::calls("bash", json!({ "command": command, "description": "work" }));
    Arc::new(ScriptedTurns(vec![call, Turn::says("Done.")]))
}

impl World {
    pub async fn new() -> Self {
        Self::planned(WorldPlan::default()).await
    }

    /// A world whose agent runs one shell command.
    pub async fn where_the_agent_runs(command: &str) -> Self {
        Self::planned(WorldPlan {
            script: shell(command),
            ..WorldPlan::default()
        })
        .await
    }

    pub async fn planned(plan: WorldPlan) -> Self {
        let data = enterable_folder();
        let owner = Arc::new(Owner::acquire(data.path()).unwrap());
        let cache_dir = plan.cache_dir.unwrap_or_else(|| data.path().join("cache"));
        let make = |name: &str, providers| {
            let config = BackendConfig {
                data_dir: data.path().to_owned(),
                cache_dir: cache_dir.clone(),
                tap_binary: tap_binary(),
                bubblewrap: None,
                ripgrep: None,
                owner: owner.clone(),
                providers,
            };
            (dressage_sandbox::by_name(name).unwrap().make)(&config).unwrap()
        };
        let backend = match plan.backend {
            BackendChoice::Given(backend) => backend,
            BackendChoice::Named(name) => make(name, providers(name)),
            BackendChoice::Over(name, providers) => make(name, *providers),
        };
        let model = ScriptedModel::start(ScriptedModelConfig {
            script: plan.script,
            faults: plan.faults,
            api_key: plan.model_key,
            keep_requests: KeepRequests::Yes,
            ..ScriptedModelConfig::default()
        });
        let supervisor = Supervisor::start(SupervisorConfig {
            owner: owner.id(),
            recorder: plan.recorder.clone(),
            agents: plan.agents,
            cache_dir,
            tap_binary: tap_binary(),
            labels: BTreeMap::new(),
            pools: plan.pools,
            limits: plan.limits.unwrap_or_else(|| QueueLimits::of(plan.concurrency)),
            observer: plan.observer,
        });
        Self {
            recorder: plan.recorder,
            supervisor,
            backend,
            model: model.await.unwrap(),
            data,
        }
    }

    /// Leases and homes that are there.
    pub fn left(&self) -> usize {
        let count = |name: &str| std::fs::read_dir(self.data.path().join(name)).map_or(0, Iterator::count);
        count("leases") + count("homes")
    }

    /// A request for `task` with this world's model and backend.
    pub fn request(&self, task: Task) -> RolloutRequest {
        self.request_to(task, self.endpoint())
    }

    pub fn endpoint(&self) -> Endpoint {
        let mut endpoint = Endpoint::at("scripted", self.model.base_url());
        endpoint.model = Some("scripted".into());
        endpoint
    }

    pub fn request_to(&self, task: Task, endpoint: Endpoint) -> RolloutRequest {
        RolloutRequest {
            id: RolloutId::new(),
            task: Arc::new(task),
            sample: 0,
            group: None,
            priority: 0,
            upstream: Upstream::new(endpoint).unwrap(),
            backend: self.backend.clone(),
            image: None,
            mode: Mode::TransparentProxy,
            placement: Placement::Relay,
            capture: CaptureMode::Stream,
            top_logprobs: 0,
            disable_thinking: None,
            hold: None,
        }
    }

    /// Runs a task to its end.
    pub async fn run(&self, task: Task) -> Done {
        self.run_request(self.request(task)).await
    }

    pub async fn run_request(&self, request: RolloutRequest) -> Done {
        Done::of(self.supervisor.submit(request).await.unwrap()).await
    }
}

/// A rollout that is over.
pub struct Done {
    pub outcome: RolloutOutcome,
    pub events: Vec<Arc<RolloutEvent>>,
}

impl Done {
    pub async fn of(mut handle: RolloutHandle) -> Self {
        let mut events = Vec::new();
        let listening = async {
            loop {
                match handle.events.recv().await {
                    Ok(event) => {
                        let over = matches!(event.event, Event::Finished { .. });
                        events.push(event);
                        if over {
                            return;
                        }
                    }
                    Err(RecvError::Lagged(_)) => {}
                    Err(RecvError::Closed) => return,
                }
            }
        };
        tokio::time::timeout(HANG, listening)
            .await
            .expect("the rollout hangs");
        let outcome = tokio::time::timeout(HANG, handle.outcome()).await;
        Self {
            outcome: outcome.expect("the outcome never comes").unwrap(),
            events,
        }
    }

    pub fn code(&self) -> Option<&str> {
        self.outcome.fault.as_ref().map(|fault| fault.code.as_str())
    }

    pub fn reward(&self) -> Option<f64> {
        self.outcome.reward.as_ref().and_then(|reward| reward.value)
    }

    pub fn stages(&self) -> Vec<Stage> {
        self.outcome.stages.iter().map(|time| time.stage).collect()
    }

    /// Exit codes of the verify commands.
    pub fn verified(&self) -> Vec<i32> {
        let reward = self.outcome.reward.as_ref();
        reward
            .map(|reward| reward.commands.iter().map(|result| result.exit_code).collect())
            .unwrap_or_default()
    }
}

/// A task for the scripted agent, with deadlines that fit a test.
pub fn task(verify: &[&str]) -> Task {
    let mut task = Task {
        instruction: "Do what the script says.".into(),
        verify: verify.iter().map(|&command| command.to_owned()).collect(),
        ..Task::default()
    };
    task.agent.name = "scripted".into();
    task.limits.boot_timeout_s = 30.0;
    task.limits.setup_timeout_s = 30.0;
    task.limits.agent_timeout_s = 60.0;
    task.limits.verify_timeout_s = 30.0;
    task.limits.memory_mb = 1024;
    task
}

/// The same, whose agent misbehaves.
pub fn task_of_agent(misbehaviour: &str) -> Task {
    let mut task = task(&["true"]);
    task.agent
        .env
        .insert("SCRIPTED_AGENT_MISBEHAVE".into(), misbehaviour.into());
    task
}

/// The scripted agent of the test kit: configured as OpenCode is, and read as it is.
pub struct ScriptedAgent;

#[async_trait]
impl Agent for ScriptedAgent {
    fn name(&self) -> &'static str {
        "scripted"
    }

    fn pinned_version(&self) -> &str {
        "1"
    }

    fn installed(&self, cache_dir: &Path, _version: Option<&str>) -> Result<Installed, AgentError> {
        // Sandboxes run as another user, who cannot enter every build folder.
        let directory = cache_dir.join("scripted");
        std::fs::create_dir_all(&directory).unwrap();
        let program = directory.join("scripted_agent");
        if !program.exists() {
            let incoming = directory.join(format!("incoming-{:?}", std::thread::current().id()));
            std::fs::copy(built("scripted_agent"), &incoming).unwrap();
            std::fs::rename(incoming, program).unwrap();
        }
        Ok(Installed {
            version: "1".into(),
            directory: Some(directory),
            program: "scripted_agent".into(),
        })
    }

    async fn install(
        &self,
        request: &InstallRequest,
        _progress: &(dyn Fn(InstallProgress) + Send + Sync),
    ) -> Result<Installed, AgentError> {
        self.installed(&request.cache_dir, None)
    }

    fn dialect(&self) -> Option<DialectName> {
        OpenCode.dialect()
    }

    fn honours(&self) -> &'static [Wish] {
        OpenCode.honours()
    }

    fn disabled_tools(&self) -> &'static [&'static str] {
        OpenCode.disabled_tools()
    }

    fn launch(&self, request: &LaunchRequest<'_>) -> Result<LaunchPlan, AgentError> {
        OpenCode.launch(request)
    }

    fn reader(&self) -> LineReader {
        OpenCode.reader()
    }

    fn signs(&self) -> AgentSigns {
        OpenCode.signs()
    }
}

/// A program of this workspace, beside the test's own.
fn built(name: &str) -> PathBuf {
    let own = std::env::current_exe().unwrap();
    let path = own.parent().unwrap().parent().unwrap().join(name);
    assert!(
        path.exists(),
        "{} is missing: run `cargo build --workspace --bins` first",
        path.display()
    );
    path
}

pub fn tap_binary() -> PathBuf {
    let path = std::env::var_os("DRESSAGE_TAP_BINARY").map(PathBuf::from);
    let path = path.expect("DRESSAGE_TAP_BINARY is not set: run the tests with `make test`");
    assert!(
        path.exists(),
        "DRESSAGE_TAP_BINARY names {}, which is not there",
        path.display()
    );
    path
}

/// Where `dressage agents install` puts agents for this user.
pub fn agents_cache_dir() -> PathBuf {
    let variable = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let given = variable("DRESSAGE_CACHE_DIR");
    let system =
        || Some(PathBuf::from("/var/cache/dressage")).filter(|path| path.join("agents/opencode").exists());
    let own = || {
        variable("XDG_CACHE_HOME")
            .or(variable("HOME").map(|home| home.join(".cache")))
            .map(|dir| dir.join("dressage"))
    };
    given.or_else(system).or_else(own).unwrap()
}

/// A temporary folder that other users can enter, as sandboxes of root have to.
pub fn enterable_folder() -> TempDir {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    folder
}

/// Keeps everything in memory, and fails where it is told to.
#[derive(Default)]
pub struct MemoryRecorder {
    pub kept: Mutex<Kept>,
    pub refuse: Mutex<Option<&'static str>>,
}

#[derive(Default)]
pub struct Kept {
    pub started: Vec<RolloutStart>,
    pub calls: Vec<(RolloutId, Recorded)>,
    pub finished: Vec<RolloutOutcome>,
}

impl MemoryRecorder {
    pub fn refusing(operation: &'static str) -> Arc<Self> {
        Arc::new(Self {
            kept: Mutex::default(),
            refuse: Mutex::new(Some(operation)),
        })
    }

    fn check(&self, operation: &'static str, rollout: RolloutId) -> Result<(), RecorderError> {
        match *self.refuse.lock().unwrap() {
            Some(refused) if refused == operation => Err(RecorderError {
                operation,
                rollout,
                reason: Some("no space is left".into()),
                remains: Remains::Nothing,
                hint: Some("free some space".into()),
                source: "no space left".into(),
            }),
            _ => Ok(()),
        }
    }
}

#[async_trait]
impl Recorder for MemoryRecorder {
    async fn started(&self, start: &RolloutStart) -> Result<(), RecorderError> {
        self.check("start", start.id)?;
        self.kept.lock().unwrap().started.push(start.clone());
        Ok(())
    }

    async fn call(&self, rollout: RolloutId, recorded: &Recorded) -> Result<(), RecorderError> {
        self.check("call", rollout)?;
        self.kept.lock().unwrap().calls.push((rollout, recorded.clone()));
        Ok(())
    }

    async fn finished(&self, outcome: &RolloutOutcome) -> Result<(), RecorderError> {
        self.check("outcome", outcome.id)?;
        self.kept.lock().unwrap().finished.push(outcome.clone());
        Ok(())
    }
}
