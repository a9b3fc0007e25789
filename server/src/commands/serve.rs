//! `dressage serve`: OpenEnv clients, REST and MCP, on one address.

use crate::environment::names;
use crate::error::Failure;
use crate::exit::Exit;
use crate::http::{self, Access, AccessConfig, App, ControlToken, Listener, OpenEnv};
use crate::interrupt;
use crate::openenv::{EnvMode, PING, Sessions};
use crate::service::{ClientBaseUrl, Service, ServiceConfig, TaskAddresses};
use crate::terminal::{STRONG, styled};
use crate::warm::{self, WarmArguments};
use crate::workspace::Context;
use dressage_rollout::QueueLimits;
use dressage_wire::task::{AllowedHost, AllowedHostError, SnapshotWhen, VerifyIn};
use secrecy::SecretString;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::net::IpAddr;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// What it takes.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// The address to listen on; default 127.0.0.1. Beyond loopback a key is needed, or `--open`.
    #[arg(long, value_name = "ADDRESS")]
    pub host: Option<String>,
    /// The port; 0 takes a free one; default 8000.
    #[arg(long, value_name = "PORT")]
    pub port: Option<u16>,
    /// A file that the port is written into, in digits, once the server answers.
    #[arg(long, value_name = "FILE")]
    pub port_file: Option<PathBuf>,
    /// A file with API keys, one a line; with DRESSAGE_API_KEYS those of the environment, separated by commas.
    #[arg(long, value_name = "FILE", help_heading = "Access")]
    pub api_keys: Option<PathBuf>,
    /// Answer without a key on an address beyond loopback: whoever reaches it runs commands here.
    #[arg(long, help_heading = "Access")]
    pub open: bool,
    /// A host name that the server answers for besides loopback names; repeatable.
    #[arg(long, value_name = "HOST", help_heading = "Access")]
    pub allow_host: Vec<String>,
    /// Which endpoint URLs callers may bring; default `any` on loopback or with a key, else `none`.
    #[arg(long, value_enum, value_name = "WHICH", help_heading = "Access")]
    pub client_base_url: Option<ClientBaseUrl>,

    /// The sandbox backend of requests that name none.
    #[arg(long, value_name = "NAME", help = super::run::sandboxes(), help_heading = "Rollouts")]
    pub sandbox: Option<String>,
    /// Where rollouts are verified whose task does not say: the agent's sandbox, or a fresh one.
    #[arg(long, value_name = "WHERE", value_parser = super::run::named(super::run::PLACES), help_heading = "Rollouts")]
    pub verify_in: Option<VerifyIn>,
    /// Whether what setup made is kept for rollouts that would run the same, where their task does not say.
    #[arg(long, value_name = "WHEN", value_parser = super::run::named(super::run::SNAPSHOTS), help_heading = "Rollouts")]
    pub snapshot: Option<SnapshotWhen>,
    /// A backend without isolation from this machine's loopback that requests may choose; repeatable.
    #[arg(long, value_name = "NAME", help_heading = "Access")]
    pub allow_backend: Vec<String>,
    /// An address that is not public and that tasks may allow their sandboxes, as it is in tasks; repeatable.
    #[arg(long, value_name = "ADDRESS[:PORT]", value_parser = address, help_heading = "Access")]
    pub allow_address: Vec<AllowedHost>,
    /// A folder of task files that are offered beside the ready-made tasks.
    #[arg(long, value_name = "DIR", help_heading = "Rollouts")]
    pub tasks: Option<PathBuf>,
    /// Rollouts at once.
    #[arg(long, value_name = "COUNT", help_heading = "Rollouts")]
    pub concurrency: Option<usize>,
    /// Rollouts that may wait, default 10000; beyond that requests are answered with 429.
    #[arg(long, value_name = "COUNT", help_heading = "Rollouts")]
    pub queue: Option<usize>,
    /// At most so many rollouts at once on a backend; repeatable.
    #[arg(long, value_name = "NAME=COUNT", value_parser = limit, help_heading = "Rollouts")]
    pub backend_limit: Vec<(String, usize)>,
    #[command(flatten)]
    pub warm: WarmArguments,
    /// At most so many rollouts at once on an endpoint; repeatable.
    #[arg(long, value_name = "NAME=COUNT", value_parser = limit, help_heading = "Rollouts")]
    pub endpoint_limit: Vec<(String, usize)>,
    /// OpenEnv sessions at once; default MAX_CONCURRENT_ENVS, else 4.
    #[arg(long, value_name = "COUNT", help_heading = "OpenEnv")]
    pub max_sessions: Option<usize>,
    /// Seconds between pings to an OpenEnv client's socket, which is closed when six in a row were not answered; default 20.
    #[arg(long, value_name = "SECONDS", help_heading = "OpenEnv")]
    pub socket_ping: Option<f64>,
    /// Let a rollout go on whose OpenEnv client has gone.
    #[arg(long, help_heading = "OpenEnv")]
    pub keep_abandoned: bool,
    /// Seconds that rollouts may take to end when the server is stopped, before they are cancelled; default 30.
    #[arg(long, value_name = "SECONDS", help_heading = "Rollouts")]
    pub grace: Option<f64>,
}

fn limit(text: &str) -> Result<(String, usize), String> {
    let (name, count) = text.split_once('=').ok_or("is not NAME=COUNT")?;
    match count.parse() {
        Ok(count) if count > 0 => Ok((name.to_owned(), count)),
        _ => Err(format!("`{count}` is not a count above zero")),
    }
}

fn address(text: &str) -> Result<AllowedHost, String> {
    let host: AllowedHost = text
        .parse()
        .map_err(|error: AllowedHostError| error.to_string())?;
    match host.address() {
        Some(_) => Ok(host),
        None => Err(format!("`{text}` is not an address")),
    }
}

/// The address where nobody says.
const DEFAULT_HOST: &str = "127.0.0.1";

/// The port where nobody says, as in OpenEnv.
const DEFAULT_PORT: u16 = 8000;

/// Rollouts at once where nobody says.
const DEFAULT_CONCURRENCY: usize = 4;

/// Rollouts that may wait where nobody says.
const DEFAULT_QUEUE: usize = 10_000;

/// OpenEnv sessions at once where nobody says, as in `opencode_env`.
const DEFAULT_SESSIONS: usize = 4;

/// Seconds that rollouts may take to end where nobody says.
const DEFAULT_GRACE_S: f64 = 30.0;

/// Serves until it is stopped.
///
/// # Errors
/// Where it cannot listen, may not listen so, or cannot start the engine.
pub async fn run(arguments: &Arguments, context: &Context) -> Result<Exit, Failure> {
    let file = &context.config.serve;
    let given = arguments.host.as_deref().or(file.host.as_deref());
    let host = given.unwrap_or(DEFAULT_HOST);
    let is_open = arguments.open || file.open;
    let mut keys = keys(arguments, context)?;
    let is_loopback = host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback());
    if !is_loopback && keys.is_empty() && !is_open {
        return Err(Failure::input(format!("`{host}` is not a loopback address, and there is no API key"))
            .hint("set DRESSAGE_API_KEYS or pass `--api-keys FILE`; `--open` serves everybody who reaches the address"));
    }
    let client_base_url = match arguments.client_base_url.or(file.client_base_url) {
        Some(ClientBaseUrl::Any) if !is_loopback && keys.is_empty() => {
            return Err(Failure::input(
                "`--client-base-url any` needs a loopback address or an API key",
            ));
        }
        Some(chosen) => chosen,
        None if is_loopback || !keys.is_empty() => ClientBaseUrl::Any,
        None => ClientBaseUrl::None,
    };
    let config = service(arguments, context, client_base_url)?;
    let grace = arguments.grace.or(file.grace_s).unwrap_or(DEFAULT_GRACE_S);
    let grace = time(grace).ok_or_else(|| no_time(grace, "`--grace` or `grace_s`"))?;
    let openenv = openenv(arguments, context)?;
    let listener = Listener::bind(host, arguments.port.or(file.port).unwrap_or(DEFAULT_PORT))
        .await
        .map_err(|error| {
            Failure::from_error(Exit::MachineLacks, &error).hint("`--port` names another port")
        })?;
    let reached = !config.shared.is_empty() || config.addresses.reach_loopback();
    let needs_token = reached && !is_open;
    let service = Service::start(Arc::new(context.clone()), config).await?;
    let made = needs_token.then(|| ControlToken::make(&context.paths.data));
    let token = match made.transpose() {
        Ok(token) => token,
        Err(failure) => {
            service.shutdown(Duration::ZERO).await;
            return Err(failure);
        }
    };
    keys.extend(token.as_ref().map(ControlToken::secret));
    let stopping = CancellationToken::new();
    let hosts = arguments.allow_host.iter().chain(&file.allow_hosts);
    let sockets = TaskTracker::new();
    let app = App {
        openenv,
        mcp: crate::mcp::http(service.clone(), stopping.clone()),
        service: service.clone(),
        access: Arc::new(Access::new(&AccessConfig {
            hosts: hosts.cloned().collect(),
            keys,
        })),
        stopping: stopping.clone(),
        sockets: sockets.clone(),
    };
    let stop = interrupt::listen_serving(service.supervisor(), grace, &context.terminal)
        .map_err(|error| Failure::from_error(Exit::MachineLacks, &error))?;
    if let Some(token) = &token {
        context.terminal.note(format!(
            "rollouts of `process` could reach this server: it asks for the token in {}",
            token.path().display()
        ));
    }
    if let Some(path) = &arguments.port_file {
        tell_port(path, listener.address().port())?;
    }
    context.terminal.note(format!(
        "{} on {}",
        styled(STRONG, "dressage serves"),
        format_args!("http://{}", listener.address())
    ));
    let serving = tokio::spawn(listener.serve(http::router(app), stopping.clone()));
    stop.cancelled().await;
    service.shutdown(grace).await;
    stopping.cancel();
    _ = serving.await;
    sockets.close();
    _ = tokio::time::timeout(http::LAST_REPLIES, sockets.wait()).await;
    // Only now: until here somebody may still ask what is stored.
    service.store().close().await;
    Ok(Exit::Done)
}

/// How the engine works: options, else the file, else what is usual.
fn service(
    arguments: &Arguments,
    context: &Context,
    client_base_url: ClientBaseUrl,
) -> Result<ServiceConfig, Failure> {
    let (file, defaults) = (&context.config.serve, &context.config.defaults);
    let limits = |file: &BTreeMap<String, NonZeroUsize>, options: &[(String, usize)]| {
        let file = file.iter().map(|(name, count)| (name.clone(), count.get()));
        file.chain(options.iter().cloned()).collect()
    };
    let sandbox = arguments.sandbox.as_deref().or(defaults.sandbox.as_deref());
    let backend = sandbox.unwrap_or(super::run::DEFAULT_SANDBOX).to_owned();
    let allowed = arguments.allow_backend.iter().chain(&file.allow_backends);
    let mut shared = BTreeSet::new();
    for name in allowed.chain([&backend]) {
        let entry =
            dressage_sandbox::by_name(name).map_err(|error| Failure::from_error(Exit::BadInput, &error))?;
        if entry.shares_loopback {
            shared.insert(entry.name);
        }
    }
    let mut addresses = arguments.allow_address.clone();
    for text in &file.allow_addresses {
        addresses
            .push(address(text).map_err(|problem| Failure::input(format!("`allow_addresses`: {problem}")))?);
    }
    Ok(ServiceConfig {
        backend,
        verify_in: arguments.verify_in.or(defaults.verify_in),
        snapshot: arguments.snapshot.or(defaults.snapshot),
        shared,
        addresses: TaskAddresses::These(addresses),
        limits: QueueLimits {
            concurrency: arguments
                .concurrency
                .or(defaults.concurrency)
                .unwrap_or(DEFAULT_CONCURRENCY)
                .max(1),
            waiting: arguments.queue.or(file.queue).unwrap_or(DEFAULT_QUEUE),
            backends: limits(&file.backend_limits, &arguments.backend_limit),
            endpoints: limits(&file.endpoint_limits, &arguments.endpoint_limit),
        },
        client_base_url,
        tasks: tasks(arguments.tasks.as_ref().or(file.tasks.as_ref()))?,
        pools: warm::pools(&arguments.warm, context)?,
    })
}

/// The folder of task files, if it is one. Its path is one that another program can be given.
fn tasks(folder: Option<&PathBuf>) -> Result<Option<PathBuf>, Failure> {
    let Some(folder) = folder else { return Ok(None) };
    let found = folder
        .canonicalize()
        .and_then(|found| std::fs::read_dir(&found).map(|_| found));
    found.map(Some).map_err(|error| {
        Failure::input(format!(
            "folder of tasks `{}` could not be read",
            folder.display()
        ))
        .cause(error.to_string())
    })
}

/// Writes the port where whoever started the server looks for it; it is there whole or not at all.
fn tell_port(path: &Path, port: u16) -> Result<(), Failure> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let written = tempfile::NamedTempFile::new_in(folder).and_then(|mut file| {
        writeln!(file, "{port}")?;
        file.persist(path).map_err(|error| error.error)
    });
    written.map(drop).map_err(|error| {
        Failure::input(format!("port file `{}` cannot be written", path.display())).cause(error.to_string())
    })
}

/// What OpenEnv clients find, as the variables of OpenEnv's own server have it.
/// So many seconds, if they are a time.
fn time(seconds: f64) -> Option<Duration> {
    Duration::try_from_secs_f64(seconds).ok()
}

fn no_time(seconds: f64, setting: &str) -> Failure {
    Failure::input(format!("`{seconds}` of {setting} is no time"))
}

fn openenv(arguments: &Arguments, context: &Context) -> Result<OpenEnv, Failure> {
    let variable = |name| context.environment.get(name).filter(|value| !value.is_empty());
    let from_variable = match variable(names::MAX_CONCURRENT_ENVS) {
        None => None,
        Some(text) => Some(text.parse().map_err(|_| {
            Failure::input(format!(
                "{} is `{text}`, which is not a count",
                names::MAX_CONCURRENT_ENVS
            ))
        })?),
    };
    let mode = match variable(names::OPENENV_MODE)
        .map(str::to_ascii_lowercase)
        .as_deref()
    {
        None | Some("simulation") => EnvMode::Simulation,
        Some("production") => EnvMode::Production,
        Some(other) => {
            return Err(Failure::input(format!("{} is `{other}`", names::OPENENV_MODE))
                .hint("it is `simulation` or `production`"));
        }
    };
    let ping = match arguments.socket_ping.or(context.config.serve.socket_ping_s) {
        None => PING,
        // Of nothing, a timer cannot be made.
        Some(seconds) => time(seconds)
            .filter(|ping| !ping.is_zero())
            .ok_or_else(|| no_time(seconds, "`--socket-ping` or `socket_ping_s`"))?,
    };
    Ok(OpenEnv {
        ping,
        sessions: Sessions::new(
            arguments
                .max_sessions
                .or(from_variable)
                .or(context.config.serve.max_sessions)
                .unwrap_or(DEFAULT_SESSIONS)
                .max(1),
        ),
        mode,
        cancel_abandoned: !(arguments.keep_abandoned || context.config.serve.keep_abandoned),
    })
}

/// The keys of the file and of the environment.
fn keys(arguments: &Arguments, context: &Context) -> Result<Vec<SecretString>, Failure> {
    let mut text = String::new();
    let file = arguments
        .api_keys
        .as_ref()
        .or(context.config.serve.api_keys.as_ref());
    if let Some(path) = file {
        text = std::fs::read_to_string(path).map_err(|error| {
            Failure::input(format!("API keys `{}` cannot be read", path.display())).cause(error.to_string())
        })?;
    }
    let from_environment = context.environment.get(names::API_KEYS).unwrap_or_default();
    let keys = text.lines().chain(from_environment.split(','));
    let keys: Vec<_> = keys
        .map(str::trim)
        .filter(|key| !key.is_empty() && !key.starts_with('#'))
        .collect();
    if let Some(short) = keys.iter().find(|key| key.len() < 16) {
        return Err(Failure::input(format!(
            "an API key of {} characters is too short to be one",
            short.len()
        ))
        .hint("make one with `openssl rand -hex 32`"));
    }
    Ok(keys.into_iter().map(SecretString::from).collect())
}
