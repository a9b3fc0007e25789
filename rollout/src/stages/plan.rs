use crate::agents::{Agent, AgentError, Installed};
use crate::faults;
use crate::report::Stop;
use crate::run::Scope;
use dressage_sandbox::Sandbox;
use dressage_tap::Endpoint;
use dressage_tap::endpoint::ProxyPolicy;
use dressage_wire::call::DialectName;
use dressage_wire::rollout::RolloutStart;
use dressage_wire::task::{Limits, Mode, NetworkPolicy, Placement, Task};
use std::path::Path;
use std::sync::Arc;

/// Home in every sandbox; where a backend's is elsewhere it makes a link there.
pub(crate) const HOME: &str = "/home/user";

/// Where the agent works, and every command of the task starts.
pub(crate) fn working_directory(sandbox: &dyn Sandbox) -> String {
    format!("{}/workdir", sandbox.home())
}

/// A path of a task or caller as an absolute one: a relative one is below the working directory.
pub(crate) fn resolve(sandbox: &dyn Sandbox, path: &str) -> String {
    match path.starts_with('/') {
        true => path.to_owned(),
        false => format!("{}/{path}", working_directory(sandbox)),
    }
}

/// Name of the asset that is the agent's program.
pub(crate) const AGENT_ASSET: &str = "agent";

/// Name of the asset that is `dressage-tap`, for placement in_sandbox.
pub(crate) const TAP_ASSET: &str = "dressage-tap";

/// What is decided before anything is made.
pub(crate) struct Plan {
    pub(crate) agent: Arc<dyn Agent>,
    pub(crate) installed: Installed,
    /// The model asked for.
    pub(crate) model: String,
}

/// Writes the rollout's row, then looks at everything that can be known to fail before a sandbox is made.
pub(crate) async fn make(scope: &Scope) -> Result<Plan, Stop> {
    let request = &scope.request;
    let spec = &request.task.agent;
    let agent = scope.agents.of_task(&request.task);
    let named = scope.agents.get(&spec.name);
    start(scope, named.as_deref().ok()).await?;
    if scope.cancel.is_cancelled() {
        return Err(Stop::Cancelled);
    }
    request
        .task
        .validate()
        .map_err(|error| faults::TASK_INVALID.from_error(None, &error))?;
    let agent = agent.map_err(|error| agent_fault(&error))?;
    supported(scope, &*agent)?;
    let model = request.upstream.endpoint().model.clone().ok_or_else(|| {
        let endpoint = &request.upstream.endpoint().name;
        faults::UNSUPPORTED.fault(None, format!("endpoint `{endpoint}` names no model"))
    })?;
    let installed = agent
        .installed(&scope.cache_dir, spec.version.as_deref())
        .map_err(|error| agent_fault(&error))?;
    Ok(Plan {
        agent,
        installed,
        model,
    })
}

async fn start(scope: &Scope, agent: Option<&dyn Agent>) -> Result<(), Stop> {
    let request = &scope.request;
    let endpoint = request.upstream.endpoint();
    let version = request.task.agent.version.clone();
    let start = RolloutStart {
        id: request.id,
        owner: scope.owner,
        task: (*request.task).clone(),
        sample: request.sample,
        group: request.group,
        endpoint: endpoint.name.clone(),
        base_url: endpoint.base_url.clone(),
        model: endpoint.model.clone().unwrap_or_default(),
        backend: request.backend.name().into(),
        agent_version: version
            .or_else(|| agent.map(|agent| agent.pinned_version().into()))
            .unwrap_or_default(),
        mode: request.mode,
        placement: request.placement,
        capture: request.capture,
        started_unix_ms: crate::events::unix_ms(),
    };
    scope
        .recorder
        .started(&start)
        .await
        .map_err(|error| faults::not_recorded(&error).into())
}

/// Refuses combinations that do not exist.
fn supported(scope: &Scope, agent: &dyn Agent) -> Result<(), Stop> {
    let request = &scope.request;
    let open = request.task.network == NetworkPolicy::Open;
    let refuse = |message: String, hint: &str| {
        let mut fault = faults::UNSUPPORTED.fault(None, message);
        fault.hint = Some(hint.into());
        Err(fault.into())
    };
    let backend = request.backend.name();
    if !request.backend.gives_home(HOME) && names_home(&request.task) {
        return refuse(
            format!("the task names {HOME}, which is not the home in sandbox `{backend}`"),
            "use sandbox local, or write paths relative to the working directory or with $HOME",
        );
    }
    if let Some(output) = request.task.outputs.iter().find(|output| holds_home(output)) {
        return refuse(
            format!(
                "output `{output}` is the home of the sandbox, or what that is in, and cannot be replaced"
            ),
            "name what is in the home: the working directory is copied where `outputs` is left out",
        );
    }
    match (request.mode, request.placement) {
        (Mode::BlackBox, _) if !open => refuse(
            "mode black_box needs a network, since the agent itself talks to the endpoint".into(),
            "set network = \"open\" in the task, or --network open",
        ),
        (Mode::BlackBox, _) if !request.upstream.endpoint().headers.is_empty() => refuse(
            "mode black_box cannot send the headers that the endpoint is configured with".into(),
            "use mode transparent_proxy",
        ),
        (Mode::TransparentProxy, Placement::InSandbox) if !open => refuse(
            "placement in_sandbox needs a network, since the sandbox itself talks to the endpoint".into(),
            "set network = \"open\" in the task, or use placement relay",
        ),
        (Mode::TransparentProxy, Placement::InSandbox) if !speaks_chat(agent) => refuse(
            format!(
                "placement in_sandbox carries chat completions only, which agent `{}` does not speak",
                agent.name()
            ),
            "use placement relay",
        ),
        (Mode::TransparentProxy, Placement::InSandbox) if !plain(request.upstream.endpoint()) => refuse(
            "placement in_sandbox cannot pass on the headers, ca_file or proxy of the endpoint".into(),
            "use placement relay, with which they stay on the host",
        ),
        (Mode::TransparentProxy, Placement::InSandbox) if budgeted(&request.task.limits) => refuse(
            "placement in_sandbox knows no budgets".into(),
            "use placement relay, or leave max_calls, max_prompt_tokens, max_completion_tokens, max_wall_s and \
             max_cost out",
        ),
        _ if request.task.limits.max_cost.is_some() && request.upstream.endpoint().prices.is_none() => {
            refuse(
                format!(
                    "the task limits the cost, and no prices are known of model `{}`",
                    request.upstream.endpoint().model.as_deref().unwrap_or_default()
                ),
                "put its prices into the configuration file, under [prices.\"MODEL\"]",
            )
        }
        (Mode::TransparentProxy, Placement::Direct) if request.backend.host_address().is_none() => refuse(
            format!(
                "placement direct is not possible with sandbox `{backend}`: it cannot route to this host"
            ),
            "use placement relay, which works with every sandbox",
        ),
        _ => Ok(()),
    }
}

/// Whether an absolute path is the home or above it.
fn holds_home(path: &str) -> bool {
    path.starts_with('/') && Path::new(HOME).starts_with(path)
}

/// Whether an endpoint is no more than a URL and a key.
fn plain(endpoint: &Endpoint) -> bool {
    let direct = match &endpoint.proxy {
        ProxyPolicy::None => true,
        ProxyPolicy::Variables {
            https_proxy,
            http_proxy,
            ..
        } => https_proxy.is_none() && http_proxy.is_none(),
    };
    endpoint.headers.is_empty() && endpoint.ca_file.is_none() && direct
}

/// Whether an agent may speak chat completions; one whose task says what it speaks may.
fn speaks_chat(agent: &dyn Agent) -> bool {
    matches!(agent.dialect(), None | Some(DialectName::ChatCompletions))
}

fn budgeted(limits: &Limits) -> bool {
    limits
        .max_calls
        .or(limits.max_prompt_tokens)
        .or(limits.max_completion_tokens)
        .is_some()
        || limits.max_wall_s.or(limits.max_cost).is_some()
}

/// Whether anything of the task is written for a home that is `/home/user`.
fn names_home(task: &Task) -> bool {
    let texts = std::iter::once(&task.instruction)
        .chain(&task.setup)
        .chain(&task.verify)
        .chain(task.files.keys())
        .chain(task.verify_files.keys())
        .chain(&task.outputs)
        .chain(&task.turns)
        .chain(task.env.values())
        .chain(task.agent.env.values());
    texts.into_iter().any(|text| text.contains(HOME))
}

fn agent_fault(error: &AgentError) -> Stop {
    let code = match error {
        AgentError::Unknown { .. } | AgentError::BadVersion { .. } => faults::AGENT_UNKNOWN,
        AgentError::Config { .. } | AgentError::NotHonoured { .. } => faults::AGENT_CONFIG_INVALID,
        _ => faults::AGENT_MISSING,
    };
    let mut fault = code.from_error(None, error);
    fault.hint = error.hint();
    fault.into()
}
