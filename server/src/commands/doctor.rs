//! `dressage doctor`: what this machine can do.

use super::agents::{AgentState, states};
use super::run::{DEFAULT_SANDBOX, check};
use crate::embedded;
use crate::endpoints::probes::Probes;
use crate::endpoints::{self, Choice, Chosen};
use crate::error::Failure;
use crate::exit::Exit;
use crate::render::word;
use crate::terminal::{BAD, FAINT, GOOD, NOTE, STRONG, one_line, styled};
use crate::workspace::{Context, chain};
use dressage_sandbox::lease::Owner;
use dressage_sandbox::{BackendConfig, registry};
use dressage_store::Store;
use dressage_tap::Upstream;
use dressage_wire::probe::{ProbeReport, ProbedReply};
use dressage_wire::task::AgentSpec;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What it takes.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Ask this endpoint too.
    #[arg(long, value_name = "NAME")]
    endpoint: Option<String>,
    /// Write a JSON object.
    #[arg(long)]
    json: bool,
}

/// What was found.
#[derive(Debug, Serialize)]
struct Findings {
    version: &'static str,
    system: String,
    checks: Vec<Check>,
    /// What the endpoint returns that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    endpoint: Option<Arc<ProbeReport>>,
    sandboxes: Vec<Sandbox>,
    agents: Vec<AgentState>,
}

/// One thing that rollouts need, or that is good to have.
#[derive(Debug, Serialize)]
struct Check {
    name: &'static str,
    state: State,
    value: String,
    hint: Option<String>,
}

/// How it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum State {
    Good,
    /// Something is done without it.
    Lacking,
    /// Nothing can be done without it.
    Bad,
}

/// A sandbox backend.
#[derive(Debug, Serialize)]
struct Sandbox {
    name: &'static str,
    summary: &'static str,
    problem: Option<String>,
    hint: Option<String>,
    facts: Vec<(&'static str, String)>,
}

/// What it finds, for programs, without asking an endpoint.
///
/// # Errors
/// It has no JSON form, which does not happen.
pub async fn found(context: &Context) -> Result<serde_json::Value, serde_json::Error> {
    let (mut checks, backends) = folders(context).await;
    checks.extend(programs(context));
    let sandboxes = match backends {
        Some(backends) => sandboxes(backends).await,
        None => Vec::new(),
    };
    serde_json::to_value(Findings {
        version: env!("CARGO_PKG_VERSION"),
        system: system(),
        endpoint: None,
        checks,
        sandboxes,
        agents: states(context),
    })
}

/// Finds it out, and tells. Exit 3 where `demo` could not run.
///
/// # Errors
/// Where the endpoint that is to be asked is not one.
pub async fn run(arguments: &Arguments, context: &Context) -> Result<Exit, Failure> {
    let (mut checks, backends) = folders(context).await;
    checks.extend(programs(context));
    let mut report = None;
    if let Some(name) = &arguments.endpoint {
        let (check, found) = endpoint(name, context).await?;
        checks.push(check);
        report = found;
    }
    let sandboxes = match backends {
        Some(backends) => sandboxes(backends).await,
        None => Vec::new(),
    };
    let findings = Findings {
        version: env!("CARGO_PKG_VERSION"),
        system: system(),
        endpoint: report,
        checks,
        sandboxes,
        agents: states(context),
    };
    if arguments.json {
        context.terminal.line(super::json(&findings)?);
    } else {
        for line in lines(&findings) {
            context.terminal.line(line);
        }
    }
    Ok(verdict(&findings))
}

fn verdict(findings: &Findings) -> Exit {
    let of_endpoint = |check: &&Check| check.name == ENDPOINT;
    let bad = |check: &&Check| check.state == State::Bad;
    let sandbox = findings
        .sandboxes
        .iter()
        .any(|entry| entry.name == DEFAULT_SANDBOX && entry.problem.is_none());
    let agent = findings
        .agents
        .iter()
        .any(|agent| is_default(agent) && agent.installed);
    if !sandbox
        || !agent
        || findings
            .checks
            .iter()
            .filter(bad)
            .any(|check| !of_endpoint(&check))
    {
        Exit::MachineLacks
    } else if findings.checks.iter().any(|check| bad(&check)) {
        Exit::EndpointUnusable
    } else {
        Exit::Done
    }
}

/// Whether it is the agent that works where a task names none, as in `demo`.
fn is_default(agent: &AgentState) -> bool {
    agent.name == AgentSpec::default().name
}

const ENDPOINT: &str = "endpoint";

/// Folders and what is in them; and what backends are probed with, where that is possible.
async fn folders(context: &Context) -> (Vec<Check>, Option<BackendConfig>) {
    let mut checks = Vec::new();
    let shown = |path: &std::path::Path| path.display().to_string();
    let owner = Owner::acquire(&context.paths.data);
    checks.push(match &owner {
        Ok(_) => good("data directory", shown(&context.paths.data)),
        Err(error) => bad(
            "data directory",
            chain(error),
            "pass one that can be written with `--data-dir`",
        ),
    });
    let tap_binary = embedded::unpack(&context.paths.cache);
    checks.push(match &tap_binary {
        Ok(_) => good("cache directory", shown(&context.paths.cache)),
        Err(error) => bad(
            "cache directory",
            chain(error),
            "pass one that can be written with `--cache-dir`",
        ),
    });
    if owner.is_ok() {
        checks.push(match Store::open(&context.paths.data).await {
            Ok(store) => {
                let path = shown(store.path());
                store.close().await;
                good("database", path)
            }
            Err(error) => Check {
                hint: error.hint(),
                ..bad("database", chain(&error), "")
            },
        });
    }
    let backends = match (owner, tap_binary) {
        (Ok(owner), Ok(tap_binary)) => Some(context.backends(Arc::new(owner), tap_binary)),
        _ => None,
    };
    (checks, backends)
}

async fn sandboxes(backends: BackendConfig) -> Vec<Sandbox> {
    let probing = tokio::task::spawn_blocking(move || {
        let probe = |entry: &dressage_sandbox::BackendEntry| {
            let report = (entry.probe)(&backends);
            Sandbox {
                name: entry.name,
                summary: entry.summary,
                problem: report.problem,
                hint: report.hint,
                facts: report
                    .facts
                    .into_iter()
                    .map(|fact| (fact.name, fact.value))
                    .collect(),
            }
        };
        registry().iter().map(probe).collect()
    });
    // It fails only where a probe panics, and then nothing is known of any.
    probing.await.unwrap_or_default()
}

/// Who runs a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Runs {
    /// Dressage, from wherever it is on PATH.
    Here,
    /// Programs in a sandbox, which sees the system's folders only.
    Inside,
}

fn in_system_folders(name: &str) -> Option<PathBuf> {
    ["/usr/local/bin", "/usr/bin", "/bin"]
        .map(|folder| Path::new(folder).join(name))
        .into_iter()
        .find(|path| path.is_file())
}

/// Programs that are used where they are there.
fn programs(context: &Context) -> Vec<Check> {
    const PROGRAMS: &[(&str, Runs, &str)] = &[
        (
            "bwrap",
            Runs::Here,
            "the sandbox `local` needs it: apt-get install bubblewrap",
        ),
        (
            "npm",
            Runs::Here,
            "agents are installed with it: apt-get install npm",
        ),
        (
            "rg",
            Runs::Here,
            "OpenCode's grep and glob need it: apt-get install ripgrep",
        ),
        (
            "python3",
            Runs::Inside,
            "the preset tasks need it: apt-get install python3",
        ),
        (
            "git",
            Runs::Inside,
            "agents use it where it is there: apt-get install git",
        ),
    ];
    PROGRAMS
        .iter()
        .map(|(name, runs, hint)| {
            let (found, where_not) = match runs {
                Runs::Here => (context.program(name), "not on PATH"),
                Runs::Inside => (in_system_folders(name), "not in the folders that sandboxes see"),
            };
            match found {
                Some(path) => good(name, path.display().to_string()),
                None => Check {
                    name,
                    state: State::Lacking,
                    value: where_not.into(),
                    hint: Some((*hint).to_owned()),
                },
            }
        })
        .collect()
}

/// Whether an endpoint answers, and what it returns.
async fn endpoint(name: &str, context: &Context) -> Result<(Check, Option<Arc<ProbeReport>>), Failure> {
    let choice = Choice {
        name: Some(name),
        ..Choice::default()
    };
    let endpoint = match endpoints::resolve(choice, &context.config, &context.environment) {
        Ok(Chosen::Demo) => return Ok((good(ENDPOINT, "demo: part of this program".into()), None)),
        Ok(Chosen::Server(endpoint)) => *endpoint,
        Err(error @ endpoints::EndpointError::UnknownName { .. }) => return Err(error.into()),
        Err(error) => return Ok((unusable(error.into()), None)),
    };
    let upstream = match Upstream::new(endpoint) {
        Ok(upstream) => upstream,
        Err(error) => {
            let failure = Failure::from_error(Exit::EndpointUnusable, &error);
            return Ok((unusable(failure), None));
        }
    };
    if let Err(failure) = check::endpoint(&upstream, &context.terminal).await {
        return Ok((unusable(failure), None));
    }
    context.terminal.note(format!(
        "asking endpoint `{name}` what it returns (six small calls)"
    ));
    Ok(match Probes::of(&context.paths.cache).ask(&upstream).await {
        Ok(report) => {
            let answers = format!("{name}: {} answers", upstream.base_url());
            (good(ENDPOINT, answers), Some(report))
        }
        Err(failure) => (unusable(failure), None),
    })
}

/// What an endpoint returns, in lines.
fn report_lines(report: &ProbeReport) -> Vec<String> {
    let reply = |reply: &ProbedReply| match &reply.error {
        Some(error) => format!("refused: {}", one_line(error, 200)),
        None => {
            let mut text = word(&reply.level);
            if !reply.flags.is_empty() {
                let flags: Vec<_> = reply.flags.iter().map(word).collect();
                text.push_str(&format!(" ({})", flags.join(", ")));
            }
            text
        }
    };
    let mut facts = vec![
        (
            "model",
            report.answered_as.clone().unwrap_or_else(|| report.model.clone()),
        ),
        ("whole reply", reply(&report.whole)),
        ("stream", reply(&report.stream)),
        ("with tools", reply(&report.whole_with_tools)),
        ("… in a stream", reply(&report.stream_with_tools)),
        ("logprobs", word(&report.logprobs)),
        ("capture = auto", word(&report.capture)),
    ];
    if let Some(length) = report.context_length {
        facts.push(("context", format!("{length} tokens")));
    }
    if let Some(member) = &report.reasoning_member {
        facts.push(("reasoning in", member.clone()));
    }
    for change in &report.changes {
        facts.push(("changed", super::show::changed(change)));
    }
    facts.extend(report.notes.iter().map(|note| ("note", one_line(note, 400))));
    facts
        .into_iter()
        .map(|(name, value)| format!("    {} {value}", styled(FAINT, format!("{name:<15}"))))
        .collect()
}

fn unusable(failure: Failure) -> Check {
    let mut value = failure.what;
    for cause in failure.causes {
        value.push_str(": ");
        value.push_str(&cause);
    }
    Check {
        name: ENDPOINT,
        state: State::Bad,
        value,
        hint: failure.hints.into_iter().next(),
    }
}

fn good(name: &'static str, value: String) -> Check {
    Check {
        name,
        state: State::Good,
        value,
        hint: None,
    }
}

fn bad(name: &'static str, value: String, hint: &str) -> Check {
    Check {
        name,
        state: State::Bad,
        value,
        hint: Some(hint.to_owned()),
    }
}

fn system() -> String {
    let Ok(name) = nix::sys::utsname::uname() else {
        return std::env::consts::OS.into();
    };
    let part = |text: &std::ffi::OsStr| text.to_string_lossy().into_owned();
    format!(
        "{} {} {}",
        part(name.sysname()),
        part(name.release()),
        part(name.machine())
    )
}

fn lines(findings: &Findings) -> Vec<String> {
    let mut lines = vec![
        format!("dressage {} on {}", findings.version, findings.system),
        String::new(),
        styled(STRONG, "machine"),
    ];
    let mark = |state: State| match state {
        State::Good => styled(GOOD, "✓"),
        State::Lacking => styled(NOTE, "–"),
        State::Bad => styled(BAD, "✗"),
    };
    let hint = |hint: &Option<String>| {
        hint.as_ref()
            .map(|hint| format!("    {} {hint}", styled(FAINT, "hint:")))
    };
    for check in &findings.checks {
        lines.push(format!(
            "  {} {:<16} {}",
            mark(check.state),
            check.name,
            check.value
        ));
        lines.extend(hint(&check.hint));
    }
    lines.extend(findings.endpoint.iter().flat_map(|report| report_lines(report)));
    lines.push(styled(STRONG, "sandboxes"));
    for sandbox in &findings.sandboxes {
        let state = if sandbox.problem.is_none() {
            State::Good
        } else {
            State::Bad
        };
        lines.push(format!(
            "  {} {:<16} {}",
            mark(state),
            sandbox.name,
            sandbox.summary
        ));
        lines.extend(sandbox.problem.iter().map(|problem| format!("    {problem}")));
        lines.extend(hint(&sandbox.hint));
        for (name, value) in &sandbox.facts {
            lines.push(format!("    {} {value}", styled(FAINT, format!("{name:<15}"))));
        }
    }
    lines.push(styled(STRONG, "agents"));
    for agent in &findings.agents {
        let state = match (agent.installed, is_default(agent)) {
            (true, _) => State::Good,
            (false, true) => State::Bad,
            (false, false) => State::Lacking,
        };
        let what = agent
            .problem
            .clone()
            .unwrap_or_else(|| agent.pinned_version.clone());
        lines.push(format!("  {} {:<16} {what}", mark(state), agent.name));
        lines.extend(hint(&agent.hint));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_of_sandboxes_are_looked_for_where_sandboxes_see_them() {
        let shell = in_system_folders("sh");
        assert!(
            shell == Some("/usr/bin/sh".into()) || shell == Some("/bin/sh".into()),
            "{shell:?}"
        );
        assert_eq!(in_system_folders("no-such-program"), None);
    }
}
