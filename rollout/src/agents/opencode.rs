//! OpenCode (`opencode run`), as measured with 1.18.33.
//!
//! It takes its whole configuration from one environment variable, its prompt from standard input (an argument would be
//! put in quotes), and prints one JSON object a line. Its key comes from a variable too: arguments can be read by every
//! process of a sandbox. It needs `rg` on PATH, or its tools `grep` and `glob` fail.

/// The configuration that it is given.
mod config;

/// The lines that it prints.
mod lines;

use super::contract::{Agent, AgentError, LaunchPlan, LaunchRequest, Session, Wish};
use super::lines::LineReader;
use super::npm::{NpmPackages, for_this_machine};
use super::tree::{self, Tree};
use dressage_wire::call::DialectName;
use dressage_wire::capture::AgentSigns;
use secrecy::ExposeSecret as _;

const NAME: &str = "opencode";

/// The version that everything here was measured with.
const VERSION: &str = "1.18.33";

/// The variable that its key is in.
const KEY_VARIABLE: &str = "DRESSAGE_MODEL_KEY";

/// Switches that keep it from the network, where it has any.
const QUIET: [(&str, &str); 6] = [
    ("OPENCODE_DISABLE_MODELS_FETCH", "1"),
    ("OPENCODE_DISABLE_AUTOUPDATE", "1"),
    ("OPENCODE_DISABLE_LSP_DOWNLOAD", "1"),
    ("OPENCODE_DISABLE_DEFAULT_PLUGINS", "1"),
    ("OPENCODE_DISABLE_TERMINAL_TITLE", "1"),
    ("TERM", "dumb"),
];

/// OpenCode.
#[derive(Clone, Copy, Debug)]
pub struct OpenCode;

/// The npm package for this machine. The baseline build runs on processors without AVX2.
fn package() -> Result<&'static str, AgentError> {
    #[cfg(target_arch = "x86_64")]
    let avx2 = std::arch::is_x86_feature_detected!("avx2");
    #[cfg(not(target_arch = "x86_64"))]
    let avx2 = false;
    let x86_64 = if avx2 {
        "opencode-linux-x64"
    } else {
        "opencode-linux-x64-baseline"
    };
    for_this_machine(NAME, x86_64, "opencode-linux-arm64")
}

impl Agent for OpenCode {
    fn name(&self) -> &'static str {
        NAME
    }

    fn pinned_version(&self) -> &str {
        VERSION
    }

    fn tree(&self, version: Option<&str>) -> Result<Tree, AgentError> {
        let version = tree::version(NAME, version, VERSION)?;
        let source = NpmPackages::program(package()?, &version, "bin/opencode");
        Ok(Tree::new(NAME, version, source))
    }

    fn dialect(&self) -> Option<DialectName> {
        Some(DialectName::ChatCompletions)
    }

    fn honours(&self) -> &'static [Wish] {
        &Wish::ALL
    }

    fn disabled_tools(&self) -> &'static [&'static str] {
        &["webfetch", "question"]
    }

    fn launch(&self, request: &LaunchRequest<'_>) -> Result<LaunchPlan, AgentError> {
        let mut argv = vec![request.program, "run", "--format", "json", "--auto"];
        match request.session {
            // Without a title of ours, a call of its own would find one.
            Session::New => argv.extend(["--title", "rollout"]),
            Session::Resumed { id: Some(id) } => argv.extend(["--session", id]),
            Session::Resumed { id: None } => argv.push("--continue"),
        }
        let config = config::build(request)?.to_string();
        let own = [
            (KEY_VARIABLE, request.api_key.expose_secret()),
            ("OPENCODE_CONFIG_CONTENT", config.as_str()),
        ];
        let env = QUIET.into_iter().chain(own);
        Ok(LaunchPlan::new(argv, env, request.prompt.to_owned()).with_files(config::files(request)))
    }

    fn reader(&self) -> LineReader {
        Box::new(lines::parse)
    }

    fn signs(&self) -> AgentSigns {
        AgentSigns::OPENCODE
    }
}
