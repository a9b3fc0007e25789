//! What `dressage run` takes.

use crate::endpoints::catalogue_names;
use crate::warm::WarmArguments;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use dressage_rollout::agents::Agents;
use dressage_sandbox::registry;
use dressage_wire::task::{CaptureMode, Mode, NetworkPolicy, Placement, SnapshotWhen, VerifyIn};
use std::path::PathBuf;
use std::str::FromStr;

/// What it takes.
#[derive(Debug, Default, clap::Args)]
pub struct Arguments {
    /// An instruction, `@FILE` or `-` for one in a file or on standard input; or task files (TOML, JSON) and directories
    /// of them.
    #[arg(value_name = "INSTRUCTION | TASK")]
    pub inputs: Vec<String>,

    /// Read the instruction from a file.
    #[arg(long, value_name = "FILE", help_heading = "Task")]
    pub file: Option<PathBuf>,
    /// Take a ready-made task: see `dressage demo --help`.
    #[arg(long, value_name = "NAME", help_heading = "Task")]
    pub preset: Option<String>,
    /// A shell command to run before the agent, after those of the task; repeatable.
    #[arg(long, value_name = "COMMAND", help_heading = "Task")]
    pub setup: Vec<String>,
    /// A shell command that judges what the agent did, after those of the task; repeatable.
    #[arg(long, value_name = "COMMAND", help_heading = "Task")]
    pub verify: Vec<String>,
    /// Judge also after an agent that failed.
    #[arg(long, help_heading = "Task")]
    pub verify_always: bool,
    /// Where verify runs: the agent's sandbox, or a fresh one that only the outputs are copied to.
    #[arg(long, value_name = "WHERE", value_parser = named(PLACES), help_heading = "Task")]
    pub verify_in: Option<VerifyIn>,
    /// Whether what setup made is kept for rollouts that would run the same setup.
    #[arg(long, value_name = "WHEN", value_parser = named(SNAPSHOTS), help_heading = "Task")]
    pub snapshot: Option<SnapshotWhen>,
    /// An environment variable of setup, agent and verify; repeatable.
    #[arg(long, value_name = "NAME=VALUE", value_parser = pair, help_heading = "Task")]
    pub env: Vec<(String, String)>,
    /// Rollouts of each task.
    #[arg(short = 'n', long, value_name = "COUNT", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..=100_000), help_heading = "Task")]
    pub samples: u32,

    /// The agent.
    #[arg(long, value_name = "NAME", help = agents(), help_heading = "Agent")]
    pub agent: Option<String>,
    /// Its version, where it is not to be the pinned one.
    #[arg(long, value_name = "VERSION", help_heading = "Agent")]
    pub agent_version: Option<String>,
    /// Said to the agent as its system prompt, after its own.
    #[arg(long, value_name = "TEXT", help_heading = "Agent")]
    pub system_prompt: Option<String>,
    /// A tool that the agent may not use, besides those of the task; repeatable.
    #[arg(long, value_name = "TOOL", help_heading = "Agent")]
    pub disable_tool: Vec<String>,
    /// A tool that the agent may use, and no other; repeatable.
    #[arg(long, value_name = "TOOL", help_heading = "Agent")]
    pub enable_tool: Vec<String>,

    /// The model endpoint.
    #[arg(long, value_name = "NAME", help = endpoints(), help_heading = "Endpoint")]
    pub endpoint: Option<String>,
    /// Its URL, up to and with `/v1`. No key of the environment goes there unless `--api-key-env` names it.
    #[arg(long, value_name = "URL", help_heading = "Endpoint")]
    pub base_url: Option<String>,
    /// The model.
    #[arg(long, value_name = "MODEL", help_heading = "Endpoint")]
    pub model: Option<String>,
    /// The environment variable that holds the key.
    #[arg(long, value_name = "VARIABLE", help_heading = "Endpoint")]
    pub api_key_env: Option<String>,
    /// Start without asking the endpoint whether it is there.
    #[arg(long, help_heading = "Endpoint")]
    pub no_check: bool,

    /// Where the agent's calls go; with black_box nothing is captured, and the key is in the sandbox.
    #[arg(long, value_name = "MODE", value_parser = named(MODES), help_heading = "Calls")]
    pub mode: Option<Mode>,
    /// Where the tap answers them.
    #[arg(long, value_name = "PLACEMENT", value_parser = named(PLACEMENTS), help_heading = "Calls")]
    pub placement: Option<Placement>,
    /// Whether the endpoint is asked for a stream where the agent asked for one.
    #[arg(long, value_name = "MODE", value_parser = named(CAPTURES), help_heading = "Calls")]
    pub capture: Option<CaptureMode>,
    /// Alternatives asked for at each token.
    #[arg(long, value_name = "COUNT", default_value_t = 0,
          value_parser = clap::value_parser!(u32).range(0..=100), help_heading = "Calls")]
    pub top_logprobs: u32,
    /// Tell the model not to think; the endpoint's own setting if left out.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true",
          help_heading = "Calls")]
    pub disable_thinking: Option<bool>,

    /// 0 and up.
    #[arg(long, value_name = "NUMBER", value_parser = finite, help_heading = "Sampling, over that of the task")]
    pub temperature: Option<f64>,
    /// Over 0, at most 1.
    #[arg(long, value_name = "NUMBER", value_parser = finite, help_heading = "Sampling, over that of the task")]
    pub top_p: Option<f64>,
    /// -1 or 0 turn it off.
    #[arg(
        long,
        value_name = "COUNT",
        allow_negative_numbers = true,
        help_heading = "Sampling, over that of the task"
    )]
    pub top_k: Option<i64>,
    /// 0 turns it off.
    #[arg(long, value_name = "NUMBER", value_parser = finite, help_heading = "Sampling, over that of the task")]
    pub min_p: Option<f64>,
    /// 0 turns it off.
    #[arg(long, value_name = "NUMBER", value_parser = finite, allow_negative_numbers = true,
          help_heading = "Sampling, over that of the task")]
    pub presence_penalty: Option<f64>,
    /// 0 turns it off.
    #[arg(long, value_name = "NUMBER", value_parser = finite, allow_negative_numbers = true,
          help_heading = "Sampling, over that of the task")]
    pub frequency_penalty: Option<f64>,
    /// 1 turns it off.
    #[arg(long, value_name = "NUMBER", value_parser = finite, help_heading = "Sampling, over that of the task")]
    pub repetition_penalty: Option<f64>,
    /// Same seed, same text, where the server keeps that promise.
    #[arg(
        long,
        value_name = "NUMBER",
        allow_negative_numbers = true,
        help_heading = "Sampling, over that of the task"
    )]
    pub seed: Option<i64>,

    /// The sandbox backend.
    #[arg(long, value_name = "NAME", help = sandboxes(), help_heading = "Sandbox")]
    pub sandbox: Option<String>,
    /// Image or template of the sandbox, for backends with such.
    #[arg(long, value_name = "NAME", help_heading = "Sandbox")]
    pub image: Option<String>,
    /// What the sandbox can reach besides its model: none, open, or allow:HOST,... for these hosts only.
    #[arg(long, value_name = "POLICY", value_parser = NetworkPolicy::from_str, help_heading = "Sandbox")]
    pub network: Option<NetworkPolicy>,
    #[command(flatten)]
    pub warm: WarmArguments,

    /// Seconds for each setup command.
    #[arg(long, value_name = "SECONDS", value_parser = seconds, help_heading = "Limits, over those of the task")]
    pub setup_timeout: Option<f64>,
    /// Seconds for the agent.
    #[arg(long, value_name = "SECONDS", value_parser = seconds, help_heading = "Limits, over those of the task")]
    pub agent_timeout: Option<f64>,
    /// Seconds for each verify command.
    #[arg(long, value_name = "SECONDS", value_parser = seconds, help_heading = "Limits, over those of the task")]
    pub verify_timeout: Option<f64>,
    /// Model calls of a rollout.
    #[arg(long, value_name = "COUNT", help_heading = "Limits, over those of the task")]
    pub max_calls: Option<u64>,
    /// Prompt tokens of a rollout, summed over its calls.
    #[arg(long, value_name = "COUNT", help_heading = "Limits, over those of the task")]
    pub max_prompt_tokens: Option<u64>,
    /// Sampled tokens of a rollout.
    #[arg(long, value_name = "COUNT", help_heading = "Limits, over those of the task")]
    pub max_completion_tokens: Option<u64>,
    /// Seconds of the agent's work, at whose end it is verified all the same.
    #[arg(long, value_name = "SECONDS", value_parser = seconds, help_heading = "Limits, over those of the task")]
    pub max_wall: Option<f64>,
    /// Cost of a rollout's calls, by the prices of the configuration file.
    #[arg(long, value_name = "COST", value_parser = seconds, help_heading = "Limits, over those of the task")]
    pub max_cost: Option<f64>,
    /// Tokens that a call may ask for; 0 is no cap.
    #[arg(long, value_name = "COUNT", help_heading = "Limits, over those of the task")]
    pub max_tokens_cap: Option<u64>,
    /// Memory of the sandbox, in MB.
    #[arg(long, value_name = "MB", help_heading = "Limits, over those of the task")]
    pub memory_mb: Option<u64>,
    /// Processor cores of the sandbox.
    #[arg(long, value_name = "CORES", value_parser = seconds, help_heading = "Limits, over those of the task")]
    pub cpus: Option<f64>,

    /// Rollouts at once.
    #[arg(long, value_name = "COUNT", value_parser = at_once, help_heading = "Output")]
    pub concurrency: Option<usize>,
    /// Write a folder for each rollout: trajectory.json, outcome.json, agent.log, files/.
    #[arg(long, value_name = "DIR", help_heading = "Output")]
    pub output: Option<PathBuf>,
    /// Write a JSON object for each rollout to standard output, one a line, and nothing else.
    #[arg(long, help_heading = "Output")]
    pub json: bool,
    /// Do not escape control characters in what agents wrote.
    #[arg(long, help_heading = "Output")]
    pub raw: bool,
}

const MODES: &[(&str, Mode)] = &[
    ("transparent_proxy", Mode::TransparentProxy),
    ("black_box", Mode::BlackBox),
];
const PLACEMENTS: &[(&str, Placement)] = &[
    ("relay", Placement::Relay),
    ("direct", Placement::Direct),
    ("in_sandbox", Placement::InSandbox),
];
const CAPTURES: &[(&str, CaptureMode)] = &[
    ("stream", CaptureMode::Stream),
    ("buffer", CaptureMode::Buffer),
    ("auto", CaptureMode::Auto),
];
/// What `--verify-in` takes.
pub const PLACES: &[(&str, VerifyIn)] = &[("same", VerifyIn::Same), ("fresh", VerifyIn::Fresh)];
/// What `--snapshot` takes.
pub const SNAPSHOTS: &[(&str, SnapshotWhen)] = &[
    ("never", SnapshotWhen::Never),
    ("after_setup", SnapshotWhen::AfterSetup),
];

fn agents() -> String {
    let agents = Agents::builtin();
    let names: Vec<_> = agents.iter().map(|agent| agent.name()).collect();
    format!("The agent: {}", names.join(", "))
}

fn endpoints() -> String {
    let names: Vec<_> = catalogue_names().collect();
    format!(
        "The model endpoint: {}, or one of the configuration file",
        names.join(", ")
    )
}

/// What `--sandbox` takes.
pub fn sandboxes() -> String {
    let names: Vec<_> = registry().iter().map(|known| known.name).collect();
    format!("The sandbox backend: {}", names.join(", "))
}

/// Takes one of some names.
pub fn named<T: Copy + Send + Sync + 'static>(
    values: &'static [(&'static str, T)],
) -> impl TypedValueParser<Value = T> {
    PossibleValuesParser::new(values.iter().map(|(name, _)| *name)).try_map(move |given| {
        values
            .iter()
            .find(|(name, _)| *name == given)
            .map(|(_, value)| *value)
            .ok_or("no such value")
    })
}

/// Takes `NAME=VALUE`.
fn pair(text: &str) -> Result<(String, String), &'static str> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() && !name.contains(char::is_whitespace) => {
            Ok((name.into(), value.into()))
        }
        _ => Err("it is not of the form NAME=VALUE"),
    }
}

/// Takes a number that is one.
fn finite(text: &str) -> Result<f64, &'static str> {
    text.parse()
        .ok()
        .filter(|number: &f64| number.is_finite())
        .ok_or("it is not a finite number")
}

/// Takes a number above zero.
fn seconds(text: &str) -> Result<f64, &'static str> {
    finite(text)
        .ok()
        .filter(|number| *number > 0.0)
        .ok_or("it is not a number above zero")
}

/// Takes a number of rollouts that a machine can hold.
fn at_once(text: &str) -> Result<usize, &'static str> {
    text.parse()
        .ok()
        .filter(|count| (1..=4096).contains(count))
        .ok_or("it is not a number from 1 to 4096")
}
