//! The agent works: its program is started for each prompt of the task, and watched until it has ended.

/// How the agent reaches its model.
mod access;

/// A proxy beside the agent.
mod proxy;

/// What such a proxy wrote down.
mod trace;

/// What the agent prints, read and kept.
mod output;

/// What its end means.
mod verdict;

use self::access::Access;
use self::output::AgentOutput;
use self::verdict::{Facts, Last};
use super::boot::seconds;
use super::plan::{AGENT_ASSET, Plan, working_directory};
use super::setup::REPORT_SLACK;
use crate::agents::{LaunchRequest, Session};
use crate::faults;
use crate::recording::Recording;
use crate::report::{Report, Stop, millis};
use crate::run::Scope;
use dressage_sandbox::{Command, Exit, Process, Role, Sandbox, SandboxError};
use dressage_wire::event::Stage;
use dressage_wire::rollout::AgentOutcome;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// How long an agent may take to end by itself once a budget has answered it.
const BUDGET_GRACE: Duration = Duration::from_secs(10);

/// What a turn of a session is given where nothing is left of the stage's time: enough to be ended by its deadline.
const LEAST_TIME: Duration = Duration::from_millis(1);

/// The signal of a program that is killed.
const KILLED: i32 = 9;

/// Runs the agent to its end. When this returns, its processes are dead and every call of it is handed over.
pub(crate) async fn run(
    scope: &Scope,
    plan: &Plan,
    sandbox: &dyn Sandbox,
    recording: &Recording,
    report: &mut Report,
) -> Result<(), Stop> {
    let access = Access::open(scope, plan, sandbox, recording).await?;
    let worked = work(scope, plan, sandbox, recording, &access, report).await;
    access.close(sandbox, recording, report).await;
    let (ended, stop) = verdict::judge(scope, plan, &recording.seen(), worked)?;
    report.agent_ended = Some(ended);
    stop.map_or(Ok(()), Err)
}

/// From the agent's start to the end of its processes, for each prompt of the task in its turn: a later one goes to the
/// same session, once the agent has ended by itself with exit 0.
async fn work(
    scope: &Scope,
    plan: &Plan,
    sandbox: &dyn Sandbox,
    recording: &Recording,
    access: &Access,
    report: &mut Report,
) -> Result<Facts, Stop> {
    let task = &scope.request.task;
    let limit = seconds(task.limits.agent_timeout_s);
    let since = std::time::Instant::now();
    let output = Arc::new(AgentOutput::new(&*plan.agent, scope.events.clone()));
    let mut session: Option<String> = None;
    let mut later = task.turns.iter();
    let mut prompt = Prompt {
        text: &task.instruction,
        session: Session::New,
    };
    loop {
        // The deadline is that of the stage, whatever the number of prompts.
        let left = limit.saturating_sub(since.elapsed()).max(LEAST_TIME);
        let command = command(scope, plan, sandbox, access, report, prompt, left).await?;
        let last = one_prompt(scope, sandbox, access, report, command, &output).await;
        let said = output.finish();
        let (exit_code, signal) = match &last {
            Ok(last) => last.exit().map_or((-1, None), |exit| (exit.code, exit.signal)),
            Err(Stop::Cancelled) => (128 + KILLED, Some(KILLED)),
            Err(Stop::Failed(_)) => (-1, None),
        };
        report.agent = Some(AgentOutcome {
            exit_code,
            signal,
            spoke: said.spoke,
            session: said.session.clone(),
            log_tail: said.log_tail.clone(),
            duration_ms: millis(since),
        });
        let last = last?;
        let ended_well = !said.failed
            && matches!(
                last,
                Last::Exit(Exit {
                    code: 0,
                    signal: None,
                    timed_out: false,
                    ..
                })
            );
        match later.next() {
            Some(text) if ended_well => {
                session.clone_from(&said.session);
                prompt = Prompt {
                    text,
                    session: Session::Resumed {
                        id: session.as_deref(),
                    },
                };
            }
            _ => {
                if !said.spoke && recording.seen().complete > 0 && ended_well {
                    report.warn(format!(
                        "agent `{}` exited 0 without any assistant text",
                        plan.agent.name()
                    ));
                }
                return Ok(Facts { last, said });
            }
        }
    }
}

/// What the agent is told now.
#[derive(Clone, Copy)]
struct Prompt<'a> {
    text: &'a str,
    session: Session<'a>,
}

/// One run of the agent's program, and the end of everything it started.
async fn one_prompt(
    scope: &Scope,
    sandbox: &dyn Sandbox,
    access: &Access,
    report: &mut Report,
    command: Command,
    output: &Arc<AgentOutput>,
) -> Result<Last, Stop> {
    let failed = |error: &SandboxError| Stop::sandbox(Stage::Agent, faults::AGENT_START_FAILED, error);
    let timeout = command.timeout.unwrap_or_default();
    let mut process = tokio::select! {
        biased;
        () = scope.cancel.cancelled() => return Err(Stop::Cancelled),
        started = sandbox.start(command, output.clone()) => started.map_err(|error| failed(&error))?,
    };
    let last = watch(
        scope,
        access,
        process.as_mut(),
        Instant::now() + timeout + REPORT_SLACK,
    )
    .await;
    // Whatever the end was, nothing of the agent's is left when the stage is over.
    if let Err(error) = process.kill().await
        && !matches!(error, SandboxError::Gone { .. })
    {
        report.warn(format!(
            "the agent's processes could not be ended at once: {error}"
        ));
    }
    last
}

/// Waits for the agent's end, or brings it about.
async fn watch(
    scope: &Scope,
    access: &Access,
    process: &mut dyn Process,
    deadline: Instant,
) -> Result<Last, Stop> {
    let gone = |error: SandboxError| Stop::sandbox(Stage::Agent, faults::SANDBOX_GONE, &error);
    tokio::select! {
        biased;
        () = scope.cancel.cancelled() => return Err(Stop::Cancelled),
        exit = process.wait() => return exit.map_err(gone).map(|exit| match access.is_budget_spent() {
            true => Last::Budget(Some(exit)),
            false => Last::Exit(exit),
        }),
        () = access.budget_spent() => {}
        () = tokio::time::sleep_until(deadline) => return Err(Stop::unresponsive(Stage::Agent)),
    }
    tokio::select! {
        biased;
        () = scope.cancel.cancelled() => Err(Stop::Cancelled),
        exit = process.wait() => exit.map_err(gone).map(|exit| Last::Budget(Some(exit))),
        () = tokio::time::sleep_until(deadline.min(Instant::now() + BUDGET_GRACE)) => {
            process.kill().await.map_err(gone)?;
            let exit = tokio::time::timeout(REPORT_SLACK, process.wait()).await;
            Ok(Last::Budget(exit.ok().and_then(Result::ok)))
        }
    }
}

/// Writes what the agent needs and says how it is started.
async fn command(
    scope: &Scope,
    plan: &Plan,
    sandbox: &dyn Sandbox,
    access: &Access,
    report: &Report,
    prompt: Prompt<'_>,
    timeout: Duration,
) -> Result<Command, Stop> {
    let task = &scope.request.task;
    let directory = match &plan.installed.directory {
        None => String::new(),
        Some(_) => sandbox.asset_path(AGENT_ASSET).ok_or_else(|| {
            faults::AGENT_START_FAILED.fault(
                Some(Stage::Agent),
                "the agent's program was not put into the sandbox",
            )
        })?,
    };
    let program = &plan.installed.program;
    let by_default = plan.agent.disabled_tools().iter().map(|&tool| tool.to_owned());
    let disabled_tools = match (&task.agent.enabled_tools, &task.agent.disabled_tools) {
        (Some(_), _) => Vec::new(),
        (None, Some(tools)) => tools.clone(),
        (None, None) => by_default.collect(),
    };
    let launch = LaunchRequest {
        spec: &task.agent,
        prompt: prompt.text,
        session: prompt.session,
        disabled_tools: &disabled_tools,
        home: sandbox.home(),
        working_directory: &working_directory(sandbox),
        directory: &directory,
        program: &match program.starts_with('/') {
            true => program.clone(),
            false => format!("{directory}/{program}"),
        },
        base_url: access.base_url(),
        api_key: access.api_key(),
        model: &plan.model,
        max_tokens: task.limits.max_tokens_cap.filter(|&cap| cap > 0),
    };
    let launch = plan.agent.launch(&launch).map_err(|error| {
        let mut fault = faults::AGENT_CONFIG_INVALID.from_error(Some(Stage::Agent), &error);
        fault.hint = error.hint();
        Stop::from(fault)
    })?;
    for file in launch.files {
        let write = sandbox.write_file(&file.path, file.content, file.mode);
        scope
            .until(Instant::now() + timeout, write)
            .await
            .map_err(|_| Stop::Cancelled)?
            .map_err(|error| Stop::sandbox(Stage::Agent, faults::AGENT_START_FAILED, &error))?;
    }
    let mut env: BTreeMap<String, String> = match &report.environment {
        Some(recorded) => recorded.variables.clone(),
        None => task.env.clone(),
    };
    env.extend(task.agent.env.clone());
    env.extend(launch.env);
    // OpenCode believes this more than the directory it is started in; the recorded one is that of another shell.
    env.insert("PWD".into(), working_directory(sandbox));
    reach_loopback_directly(&mut env);
    Ok(Command {
        argv: launch.argv,
        env,
        clear_env: report.environment.is_some(),
        cwd: Some(working_directory(sandbox)),
        stdin: launch.stdin,
        timeout: Some(timeout),
        role: Role::Agent,
    })
}

/// Where the task sets a proxy, agents would look for the relay through it, even on 127.0.0.1.
fn reach_loopback_directly(env: &mut BTreeMap<String, String>) {
    let proxies = ["HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"];
    if !proxies.iter().any(|name| env.contains_key(*name)) {
        return;
    }
    for name in ["NO_PROXY", "no_proxy"] {
        let direct = env.entry(name.into()).or_default();
        if !direct.is_empty() {
            direct.push(',');
        }
        direct.push_str("127.0.0.1,localhost");
    }
}
