use async_trait::async_trait;
use bytes::Bytes;

use dressage_wire::capture::AgentSigns;
use dressage_wire::event::AgentEvent;
use dressage_wire::task::AgentSpec;
use secrecy::SecretString;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// An agent CLI.
#[async_trait]
pub trait Agent: Send + Sync {
    /// Its name in the registry.
    fn name(&self) -> &'static str;

    /// The version that is installed and run where the task names none.
    fn pinned_version(&self) -> &str;

    /// Finds an installed version (the pinned one if unset); fast, asks nobody. [`AgentError::NotInstalled`] where it
    /// is not there, [`AgentError::Broken`] where what is there cannot be run on this machine.
    fn installed(&self, cache_dir: &Path, version: Option<&str>) -> Result<Installed, AgentError>;

    /// Installs a version below `cache_dir`, unless it is there already; safe for two processes at once. Leaves
    /// nothing behind on failure.
    async fn install(
        &self,
        request: &InstallRequest,
        progress: &(dyn Fn(InstallProgress) + Send + Sync),
    ) -> Result<Installed, AgentError>;

    /// How it is started. The instruction is not part of it: it always comes by standard input.
    fn launch(&self, request: &LaunchRequest<'_>) -> Result<LaunchPlan, AgentError>;

    /// Reads one line of its standard output; adds what it means to `events`. A line that means nothing adds nothing.
    fn parse_line(&self, line: &[u8], events: &mut Vec<AgentEvent>);

    /// By what its calls are known; a call without these signs is foreign.
    fn signs(&self) -> AgentSigns;

    /// Whether it bears comment lines in a stream, which keep it waiting while the endpoint is silent.
    fn bears_comments(&self) -> bool {
        true
    }
}

/// An agent's program on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Installed {
    /// Its version.
    pub version: String,
    /// The tree that is put into the sandbox, read-only.
    pub directory: PathBuf,
    /// The program, relative to `directory`.
    pub program: String,
}

/// What to install, and where.
#[derive(Clone, Debug)]
pub struct InstallRequest {
    /// Dressage's cache folder; everything stays below it.
    pub cache_dir: PathBuf,
    /// The pinned version if unset.
    pub version: Option<String>,
    /// The program `npm`; looked for on PATH if unset.
    pub npm: Option<PathBuf>,
    /// The user's own npm configuration (which registry, which proxy), read and never written.
    pub npm_config: Option<PathBuf>,
    /// Whether what is there is replaced.
    pub force: bool,
}

/// What an installation does, for people to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InstallProgress {
    /// It was there already.
    AlreadyInstalled {
        /// Its version.
        version: String,
    },
    /// Another process installs the same; its end is waited for.
    Waiting,
    /// A package is fetched.
    Fetching {
        /// Package and version.
        package: String,
        /// Where it will be.
        directory: PathBuf,
    },
    /// The program is tried.
    Checking,
    /// It is there.
    Done {
        /// Its version.
        version: String,
        /// Where it is.
        directory: PathBuf,
    },
}

/// What an agent is started with.
#[derive(Clone, Copy, Debug)]
pub struct LaunchRequest<'a> {
    /// The task's wishes.
    pub spec: &'a AgentSpec,
    /// Home in the sandbox, absolute.
    pub home: &'a str,
    /// Working directory in the sandbox, absolute.
    pub working_directory: &'a str,
    /// The program's path in the sandbox.
    pub program: &'a str,
    /// Base URL of the model, `/v1` included.
    pub base_url: &'a str,
    /// What the agent shows as its key.
    pub api_key: &'a SecretString,
    /// The model's name.
    pub model: &'a str,
    /// The most completion tokens of a call, where there is a cap.
    pub max_tokens: Option<u64>,
}

/// How an agent is started.
#[derive(Clone, Debug, Default)]
pub struct LaunchPlan {
    /// Program and arguments. Holds no secret: every process in a sandbox can read it.
    pub argv: Vec<String>,
    /// Environment variables, over the sandbox's and the task's.
    pub env: BTreeMap<String, String>,
    /// Files written before it starts.
    pub files: Vec<PlannedFile>,
}

/// A file that an agent needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedFile {
    /// Absolute path in the sandbox.
    pub path: String,
    /// Its content.
    pub content: Bytes,
    /// Its mode.
    pub mode: u32,
}

/// What can go wrong with an agent's program or its configuration.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The registry has none of that name.
    #[error("no agent is named `{name}`")]
    Unknown {
        /// The name asked for.
        name: String,
        /// The names there are.
        known: Vec<String>,
    },
    /// The version is not there.
    #[error("agent `{name}` {version} is not installed")]
    NotInstalled {
        /// Its name.
        name: &'static str,
        /// The version asked for.
        version: String,
    },
    /// What is there cannot be run.
    #[error("agent `{name}` at `{path}` cannot be run on this machine: {reason}", path = path.display())]
    Broken {
        /// Its name.
        name: &'static str,
        /// Its program.
        path: PathBuf,
        /// Why not.
        reason: String,
    },
    /// The version text could be a path or an option.
    #[error("`{version}` is not a version of agent `{name}`")]
    BadVersion {
        /// Its name.
        name: &'static str,
        /// The text.
        version: String,
    },
    /// This machine is of a kind for which there is no package.
    #[error("agent `{name}` has no package for {platform}")]
    NoPackage {
        /// Its name.
        name: &'static str,
        /// Operating system and architecture.
        platform: String,
    },
    /// A program that installs is not there, or failed.
    #[error("`{program}` could not install `{package}`: {reason}")]
    Installer {
        /// The installing program.
        program: &'static str,
        /// What it was to install.
        package: String,
        /// Its last words.
        reason: String,
    },
    /// A file operation below the cache failed.
    #[error("{operation} `{path}`", path = path.display())]
    Files {
        /// What was tried.
        operation: &'static str,
        /// On what.
        path: PathBuf,
        /// Why it failed.
        #[source]
        source: std::io::Error,
    },
    /// The task's wishes cannot be met.
    #[error("agent `{name}` cannot be configured: {reason}")]
    Config {
        /// Its name.
        name: &'static str,
        /// Why not.
        reason: String,
    },
}

impl AgentError {
    /// What may help, where that is known.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Unknown { name, known } => {
                let nearest = known
                    .iter()
                    .max_by(|a, b| strsim::jaro_winkler(name, a).total_cmp(&strsim::jaro_winkler(name, b)))
                    .filter(|nearest| strsim::jaro_winkler(name, nearest) > 0.7);
                Some(match nearest {
                    Some(nearest) => format!("did you mean `{nearest}`?"),
                    None => format!("the agents are: {}", known.join(", ")),
                })
            }
            Self::NotInstalled { name, version } => Some(format!(
                "run `dressage agents install {name} --version {version}`"
            )),
            Self::Broken { name, .. } => Some(format!("run `dressage agents install {name} --force`")),
            Self::Installer { program: "npm", .. } => {
                Some("npm must be on PATH (apt-get install npm) and reach its registry".into())
            }
            _ => None,
        }
    }
}
