//! `dressage agents list|install`.

use crate::environment::{Environment, names};
use crate::error::Failure;
use crate::exit::Exit;
use crate::terminal::{BAD, FAINT, GOOD, STRONG, Table, styled};
use crate::workspace::Context;
use dressage_rollout::agents::{Agent, AgentError, InstallProgress, InstallRequest};
use dressage_wire::call::DialectName;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What it takes.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// List the agents, and which are installed.
    List {
        /// Write a JSON array.
        #[arg(long)]
        json: bool,
    },
    /// Install agents into the cache directory, never into a home or a project.
    Install {
        /// Which; every agent if left out.
        #[arg(value_name = "NAME")]
        names: Vec<String>,
        /// Its version, where it is not to be the pinned one; of one agent.
        #[arg(long, value_name = "VERSION", requires = "names")]
        version: Option<String>,
        /// Install again what is there.
        #[arg(long)]
        force: bool,
    },
}

/// Does it.
///
/// # Errors
/// Where an agent is unknown or cannot be installed.
pub async fn run(arguments: &Arguments, context: &Context) -> Result<Exit, Failure> {
    match &arguments.command {
        Command::List { json } => list(context, *json),
        Command::Install {
            names,
            version,
            force,
        } => install(context, names, version.as_deref(), *force).await,
    }
}

/// An agent on this machine.
#[derive(Debug, Serialize)]
pub struct AgentState {
    /// Its name.
    pub name: &'static str,
    /// The version that is run where a task names none.
    pub pinned_version: String,
    /// The dialect that it speaks to its model; none where the task says it.
    pub dialect: Option<DialectName>,
    /// What of a task it honours beside the instruction, by key.
    pub honours: Vec<&'static str>,
    /// Whether it can be run: it is installed, or needs no installation.
    pub installed: bool,
    /// The tree that it is in, where it has one.
    pub directory: Option<PathBuf>,
    /// Why it cannot be run, where it is not merely absent.
    pub problem: Option<String>,
    /// What would help.
    pub hint: Option<String>,
}

/// Every agent, as it is on this machine.
pub fn states(context: &Context) -> Vec<AgentState> {
    let state = |agent: &dyn Agent| {
        let found = agent.installed(&context.paths.cache, None);
        let (directory, error) = match found {
            Ok(installed) => (installed.directory, None),
            Err(error) => (None, Some(error)),
        };
        AgentState {
            name: agent.name(),
            pinned_version: agent.pinned_version().to_owned(),
            dialect: agent.dialect(),
            honours: agent.honours().iter().map(|wish| wish.key()).collect(),
            installed: error.is_none(),
            directory,
            hint: error.as_ref().and_then(AgentError::hint),
            problem: error.map(|error| error.to_string()),
        }
    };
    context.agents().iter().map(|agent| state(&**agent)).collect()
}

fn list(context: &Context, json: bool) -> Result<Exit, Failure> {
    let states = states(context);
    if json {
        context.terminal.line(super::json(&states)?);
        return Ok(Exit::Done);
    }
    let mut table = Table::with_heading(["agent", "version", "state"]);
    for state in states {
        let found = match (&state.directory, &state.problem) {
            (Some(directory), _) => format!(
                "{} {}",
                styled(GOOD, "installed"),
                styled(FAINT, directory.display())
            ),
            (None, Some(problem)) => format!("{}: {problem}", styled(BAD, "not usable")),
            (None, None) => styled(GOOD, "needs no installation"),
        };
        table.row([styled(STRONG, state.name), state.pinned_version, found]);
    }
    for line in table.lines() {
        context.terminal.line(line);
    }
    Ok(Exit::Done)
}

async fn install(
    context: &Context,
    names: &[String],
    version: Option<&str>,
    force: bool,
) -> Result<Exit, Failure> {
    if version.is_some() && names.len() > 1 {
        return Err(Failure::input(
            "`--version` is of one agent, and several are named",
        ));
    }
    let agents = context.agents();
    let mut chosen = Vec::new();
    for name in names {
        chosen.push(agents.get(name).map_err(|error| failure(&error))?);
    }
    if chosen.is_empty() {
        chosen.extend(agents.iter().cloned());
    }
    let request = InstallRequest {
        cache_dir: context.paths.cache.clone(),
        version: version.map(str::to_owned),
        npm: context.program("npm"),
        npm_config: npm_config(&context.environment),
        python: None,
        force,
    };
    for agent in chosen {
        let spinner = spinner(context);
        let installed = agent
            .install(&request, &|progress| {
                tell(context, &spinner, agent.name(), &progress)
            })
            .await;
        spinner.finish_and_clear();
        let installed = installed.map_err(|error| failure(&error))?;
        let name = agent.name();
        context.terminal.line(match installed.directory {
            Some(directory) => format!(
                "{name} {} is installed in {}",
                installed.version,
                directory.display()
            ),
            None => format!("{name} needs no installation"),
        });
    }
    Ok(Exit::Done)
}

/// How a command ends where an agent cannot be had: what was asked for is wrong, or the machine lacks it.
pub(super) fn failure(error: &AgentError) -> Failure {
    let exit = match error {
        AgentError::BadVersion { .. }
        | AgentError::Unknown { .. }
        | AgentError::NotHonoured { .. }
        | AgentError::Config { .. } => Exit::BadInput,
        _ => Exit::MachineLacks,
    };
    Failure::from_error(exit, error).maybe_hint(error.hint())
}

/// The user's own npm configuration: which registry and which proxy. npm is run with another home.
fn npm_config(environment: &Environment) -> Option<PathBuf> {
    let path = Path::new(environment.get(names::HOME)?).join(".npmrc");
    path.is_file().then_some(path)
}

fn spinner(context: &Context) -> ProgressBar {
    if !context.terminal.shows_bars() {
        return ProgressBar::hidden();
    }
    let spinner = context.terminal.bars.add(ProgressBar::new_spinner());
    if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} {elapsed:.dim}") {
        spinner.set_style(style);
    }
    spinner.enable_steady_tick(Duration::from_millis(120));
    spinner
}

fn tell(context: &Context, spinner: &ProgressBar, name: &str, progress: &InstallProgress) {
    let line = match progress {
        InstallProgress::AlreadyInstalled { version } => format!("{name} {version} is there already"),
        InstallProgress::Waiting => format!("{name}: waiting for another process that installs it"),
        InstallProgress::Fetching {
            package,
            installer,
            directory,
        } => {
            format!(
                "{name}: fetching {package} with {installer} into {}",
                directory.display()
            )
        }
        InstallProgress::Checking => format!("{name}: trying it"),
        InstallProgress::Done { .. } => return,
    };
    context.terminal.note(&line);
    spinner.set_message(line);
}
