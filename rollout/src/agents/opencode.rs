//! OpenCode (`opencode run`), as measured with 1.18.33.
//!
//! It takes its whole configuration from one environment variable, its prompt from standard input (an argument would be
//! put in quotes), and prints one JSON object a line. Its key comes from a variable too: arguments can be read by every
//! process of a sandbox. It needs `rg` on PATH, or its tools `grep` and `glob` fail.

/// The configuration that it is given.
mod config;

/// The lines that it prints.
mod lines;

use super::contract::{
    Agent, AgentError, InstallProgress, InstallRequest, Installed, LaunchPlan, LaunchRequest, Session, Wish,
};
use super::lines::LineReader;
use super::npm::NpmPackages;
use super::tree::{self, Tree};
use async_trait::async_trait;
use dressage_wire::call::DialectName;
use dressage_wire::capture::AgentSigns;
use secrecy::ExposeSecret as _;
use std::path::Path;

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
    match (std::env::consts::OS, std::env::consts::ARCH, avx2) {
        ("linux", "x86_64", true) => Ok("opencode-linux-x64"),
        ("linux", "x86_64", false) => Ok("opencode-linux-x64-baseline"),
        ("linux", "aarch64", _) => Ok("opencode-linux-arm64"),
        (system, architecture, _) => Err(AgentError::NoPackage {
            name: NAME,
            platform: format!("{system} on {architecture}"),
        }),
    }
}

fn tree(version: Option<&str>) -> Result<Tree<NpmPackages>, AgentError> {
    let version = tree::version(NAME, version, VERSION)?;
    let package = package()?;
    Ok(Tree {
        agent: NAME,
        source: NpmPackages {
            packages: vec![format!("{package}@{version}")],
            kept: format!("node_modules/{package}"),
            program: "bin/opencode",
            script: None,
        },
        version,
    })
}

#[async_trait]
impl Agent for OpenCode {
    fn name(&self) -> &'static str {
        NAME
    }

    fn pinned_version(&self) -> &str {
        VERSION
    }

    fn installed(&self, cache_dir: &Path, version: Option<&str>) -> Result<Installed, AgentError> {
        tree(version)?.installed(cache_dir)
    }

    async fn install(
        &self,
        request: &InstallRequest,
        progress: &(dyn Fn(InstallProgress) + Send + Sync),
    ) -> Result<Installed, AgentError> {
        tree(request.version.as_deref())?.install(request, progress).await
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
        let mut plan = LaunchPlan {
            argv: argv.into_iter().map(String::from).collect(),
            stdin: request.prompt.to_owned().into(),
            ..LaunchPlan::default()
        };
        plan.env = QUIET
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into();
        plan.env
            .insert(KEY_VARIABLE.into(), request.api_key.expose_secret().into());
        plan.env.insert(
            "OPENCODE_CONFIG_CONTENT".into(),
            config::build(request)?.to_string(),
        );
        plan.files = config::files(request);
        Ok(plan)
    }

    fn reader(&self) -> LineReader {
        Box::new(lines::parse)
    }

    fn signs(&self) -> AgentSigns {
        AgentSigns::OPENCODE
    }
}
