//! Packages that pip fetches, for the Python that every sandbox has.
//!
//! Sandboxes see the system's Python at the same path; a compiled package fits one version of it, so the tree says which
//! it was made for. It is run isolated (`-I`) with the tree put on its path by the script itself: nothing of that reaches
//! what the agent starts.

use super::contract::InstallRequest;
use super::tree::{Failed, Source, Unusable, files, run};
use async_trait::async_trait;
use std::fs;
use std::path::{Path, PathBuf};
use tokio::process::Command;

/// Where sandboxes have their Python, in the order of their PATH.
const PLACES: [&str; 2] = ["/usr/local/bin/python3", "/usr/bin/python3"];

/// The file of a tree that names its Python: its path, and what that leads to.
const MADE_FOR: &str = "python.txt";

/// What pip is asked for.
pub(super) struct PipPackages {
    /// `name==version` each, the agent's own first.
    pub(super) packages: Vec<String>,
    /// The agent's module, whose `__version__` is its version.
    pub(super) module: &'static str,
}

/// A Python and what its path leads to.
fn made_for(python: &Path) -> Option<String> {
    let real = fs::canonicalize(python).ok()?;
    Some(format!("{}\n{}\n", python.display(), real.display()))
}

#[async_trait]
impl Source for PipPackages {
    fn installer(&self) -> &'static str {
        "pip"
    }

    fn packages(&self) -> &[String] {
        &self.packages
    }

    async fn fetch(&self, request: &InstallRequest, incoming: &Path) -> Result<PathBuf, Failed> {
        let system = || PLACES.iter().map(PathBuf::from).find(|path| path.is_file());
        let python = request
            .python
            .clone()
            .or_else(system)
            .ok_or_else(|| Failed::Installer("there is no Python in the system's folders".into()))?;
        let tree = incoming.join("tree");
        let mut pip = Command::new(&python);
        pip.args(["-I", "-m", "pip", "install"])
            .args(["--disable-pip-version-check", "--no-input", "--quiet"])
            .arg("--target")
            .arg(&tree)
            .arg("--cache-dir")
            .arg(request.cache_dir.join("pip"))
            .args(&self.packages)
            .current_dir(incoming);
        run(&mut pip).await?;
        let note = tree.join(MADE_FOR);
        fs::write(&note, made_for(&python).unwrap_or_default()).map_err(files("write", &note))?;
        Ok(tree)
    }

    fn check(&self, tree: &Path) -> Result<String, Unusable> {
        let note = tree.join(MADE_FOR);
        let Ok(told) = fs::read_to_string(&note) else {
            return Err(Unusable::Missing);
        };
        let python = told.lines().next().unwrap_or_default();
        if made_for(Path::new(python)).as_deref() != Some(told.as_str()) {
            let reason = format!("it was made for another Python than {python} is now");
            return Err(Unusable::Because(tree.to_owned(), reason));
        }
        if !tree.join(self.module).is_dir() {
            return Err(Unusable::Because(
                tree.join(self.module),
                "it is not a folder".into(),
            ));
        }
        Ok(python.to_owned())
    }

    fn version_command(&self, tree: &Path, program: &str) -> Command {
        let mut command = Command::new(program);
        let module = self.module;
        let script = format!(
            "import sys; sys.path.insert(0, sys.argv[1]); import {module}; print({module}.__version__)"
        );
        command.args(["-I", "-c", &script]).arg(tree);
        command
    }
}
