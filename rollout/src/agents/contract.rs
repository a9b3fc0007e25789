use super::lines::LineReader;
use super::tree::Tree;
use async_trait::async_trait;
use bytes::Bytes;

use dressage_wire::call::DialectName;
use dressage_wire::capture::AgentSigns;
use dressage_wire::task::{AgentSpec, Task};
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

    /// A version (the pinned one if unset) as a tree in Dressage's cache, there or to be fetched. An agent that has no
    /// such tree says by itself what is [`Self::installed`] and how to [`Self::install`] it.
    ///
    /// # Errors
    /// [`AgentError::BadVersion`], [`AgentError::NoPackage`]; [`AgentError::NotInstalled`] where it has none.
    fn tree(&self, version: Option<&str>) -> Result<Tree, AgentError> {
        Err(AgentError::NotInstalled {
            name: self.name(),
            version: version.unwrap_or(self.pinned_version()).to_owned(),
        })
    }

    /// Finds an installed version (the pinned one if unset); fast, asks nobody. [`AgentError::NotInstalled`] where it
    /// is not there, [`AgentError::Broken`] where what is there cannot be run on this machine.
    fn installed(&self, cache_dir: &Path, version: Option<&str>) -> Result<Installed, AgentError> {
        self.tree(version)?.installed(cache_dir)
    }

    /// Installs a version below `cache_dir`, unless it is there already; safe for two processes at once. Leaves
    /// nothing behind on failure.
    async fn install(
        &self,
        request: &InstallRequest,
        progress: &(dyn Fn(InstallProgress) + Send + Sync),
    ) -> Result<Installed, AgentError> {
        let tree = self.tree(request.version.as_deref())?;
        tree.install(request, progress).await
    }

    /// The dialect that its calls are in; `None` where the task says it.
    fn dialect(&self) -> Option<DialectName>;

    /// What a task may wish of it beside an instruction.
    fn honours(&self) -> &'static [Wish];

    /// Tools that are disabled where the task does not say which: they are of no use in a rollout.
    fn disabled_tools(&self) -> &'static [&'static str] {
        &[]
    }

    /// Looks at what the task says of it, as far as that can be wrong before anything is made.
    fn check(&self, _spec: &AgentSpec) -> Result<(), AgentError> {
        Ok(())
    }

    /// How it is started for a prompt.
    fn launch(&self, request: &LaunchRequest<'_>) -> Result<LaunchPlan, AgentError>;

    /// Reads what it prints on its standard output, from its start to its end.
    fn reader(&self) -> LineReader;

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
    /// The tree that is put into the sandbox, read-only; none where the sandbox has the program already.
    pub directory: Option<PathBuf>,
    /// The program: relative to `directory`, or absolute where it is in every sandbox.
    pub program: String,
}

/// What a task can wish of an agent beside an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// `agent.version`.
    Version,
    /// `agent.system_prompt`.
    SystemPrompt,
    /// `agent.disabled_tools`.
    DisabledTools,
    /// `agent.enabled_tools`.
    EnabledTools,
    /// `agent.config`.
    Config,
    /// `agent.mcp_servers`.
    McpServers,
    /// `turns`.
    Turns,
}

impl Wish {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Version,
        Self::SystemPrompt,
        Self::DisabledTools,
        Self::EnabledTools,
        Self::Config,
        Self::McpServers,
        Self::Turns,
    ];

    /// The key of the task.
    #[must_use]
    pub fn key(self) -> &'static str {
        match self {
            Self::Version => "agent.version",
            Self::SystemPrompt => "agent.system_prompt",
            Self::DisabledTools => "agent.disabled_tools",
            Self::EnabledTools => "agent.enabled_tools",
            Self::Config => "agent.config",
            Self::McpServers => "agent.mcp_servers",
            Self::Turns => "turns",
        }
    }

    /// Whether a task wishes it.
    #[must_use]
    pub fn is_in(self, task: &Task) -> bool {
        let agent = &task.agent;
        match self {
            Self::Version => agent.version.is_some(),
            Self::SystemPrompt => agent.system_prompt.is_some(),
            Self::DisabledTools => agent
                .disabled_tools
                .as_ref()
                .is_some_and(|tools| !tools.is_empty()),
            Self::EnabledTools => agent.enabled_tools.is_some(),
            Self::Config => !agent.config.is_empty(),
            Self::McpServers => !agent.mcp_servers.is_empty(),
            Self::Turns => !task.turns.is_empty(),
        }
    }
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
    /// The Python that every sandbox has, at the same path; looked for in the system's folders if unset.
    pub python: Option<PathBuf>,
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
        /// The program that fetches it.
        installer: &'static str,
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
    /// What it is told, verbatim.
    pub prompt: &'a str,
    /// The conversation that this belongs to.
    pub session: Session<'a>,
    /// Tools that it may not use; none where the task enables some.
    pub disabled_tools: &'a [String],
    /// Home in the sandbox, absolute.
    pub home: &'a str,
    /// Working directory in the sandbox, absolute.
    pub working_directory: &'a str,
    /// Its tree's path in the sandbox; empty where it has none.
    pub directory: &'a str,
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

/// The conversation that a prompt belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Session<'a> {
    /// One that begins with it.
    New,
    /// The one before it.
    Resumed {
        /// The agent's own id of it, where it told one.
        id: Option<&'a str>,
    },
}

impl LaunchRequest<'_> {
    /// The base URL without `/v1`, for agents that write it themselves.
    #[must_use]
    pub fn base_url_without_version(&self) -> &str {
        self.base_url.strip_suffix("/v1").unwrap_or(self.base_url)
    }

    /// A file of ours in the sandbox, readable by the agent.
    pub(super) fn file(&self, name: &str, content: impl Into<Bytes>) -> PlannedFile {
        PlannedFile {
            path: self.own_path(name),
            content: content.into(),
            mode: 0o600,
        }
    }

    /// Where a file of ours is in the sandbox.
    pub(super) fn own_path(&self, name: &str) -> String {
        format!("{}/.config/dressage/{name}", self.home)
    }
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
    /// What it reads on its standard input, which then ends.
    pub stdin: Bytes,
}

impl LaunchPlan {
    /// A program with its arguments, its variables, and what it reads on its standard input; without files.
    pub(super) fn new<'a>(
        argv: impl IntoIterator<Item = impl Into<String>>,
        env: impl IntoIterator<Item = (&'a str, &'a str)>,
        stdin: impl Into<Bytes>,
    ) -> Self {
        let env = env.into_iter();
        Self {
            argv: argv.into_iter().map(Into::into).collect(),
            env: env
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .collect(),
            files: Vec::new(),
            stdin: stdin.into(),
        }
    }

    /// And these files.
    pub(super) fn with_files(self, files: Vec<PlannedFile>) -> Self {
        Self { files, ..self }
    }
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
    /// The task wishes what the agent cannot do.
    #[error("agent `{name}` does not support `{key}`")]
    NotHonoured {
        /// Its name.
        name: &'static str,
        /// The key of the task.
        key: &'static str,
        /// The agents that can.
        others: Vec<&'static str>,
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
            Self::Installer { program: "pip", .. } => Some(
                "the system's own Python needs pip (apt-get install python3-pip), which must reach its index"
                    .into(),
            ),
            Self::NotHonoured { others, .. } if !others.is_empty() => {
                Some(format!("agents that do: {}", others.join(", ")))
            }
            _ => None,
        }
    }
}
