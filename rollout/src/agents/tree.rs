//! The tree of one version of an agent, in Dressage's own cache: `agents/NAME/VERSION`.
//!
//! It is fetched into a folder of its own beside the others, tried there, and takes its place by one rename, under a
//! lock that the end of the process frees: what is there is whole, and two processes never install at once.

use super::contract::{AgentError, InstallProgress, InstallRequest, Installed};
use async_trait::async_trait;
use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use tokio::process::Command;

/// How long a program may take to tell its version on a busy machine.
const TRIAL: Duration = Duration::from_secs(120);

/// What folders of unfinished installations begin with.
const INCOMING: &str = ".incoming-";

/// Why a tree cannot be run.
#[derive(Debug)]
pub(super) enum Unusable {
    /// It is not there.
    Missing,
    /// Something is there, at this path below the cache, that does not do.
    Because(PathBuf, String),
}

/// Where the files of an agent come from.
#[async_trait]
pub(super) trait Source: Send + Sync {
    /// The program that fetches them.
    fn installer(&self) -> &'static str;

    /// What it is asked for, the agent's own package first.
    fn packages(&self) -> &[String];

    /// Fetches them, writing below `incoming` only; returns the folder that is the tree.
    async fn fetch(&self, request: &InstallRequest, incoming: &Path) -> Result<PathBuf, Failed>;

    /// Whether a tree can be run on this machine; fast, runs nothing. Returns what is started: a path relative to the
    /// tree, or an absolute one.
    fn check(&self, tree: &Path) -> Result<String, Unusable>;

    /// What tells the version, whose output has it as a word of its own.
    fn version_command(&self, tree: &Path, program: &str) -> Command;
}

/// Why nothing was fetched.
#[derive(Debug)]
pub(super) enum Failed {
    /// The installing program did not run, or said this at its end.
    Installer(String),
    /// A file operation failed.
    Files(AgentError),
}

impl From<AgentError> for Failed {
    fn from(error: AgentError) -> Self {
        Self::Files(error)
    }
}

/// The text of a version, where it can be no path and no option of a program.
pub(super) fn version(
    agent: &'static str,
    asked: Option<&str>,
    pinned: &'static str,
) -> Result<String, AgentError> {
    let version = asked.unwrap_or(pinned);
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'+');
    if version.starts_with(|first: char| first.is_ascii_digit()) && version.bytes().all(plain) {
        return Ok(version.to_owned());
    }
    Err(AgentError::BadVersion {
        name: agent,
        version: version.to_owned(),
    })
}

/// A version of an agent, there or to be fetched.
pub struct Tree {
    /// Name of the agent.
    agent: &'static str,
    /// Its version.
    version: String,
    /// Where its files come from.
    source: Box<dyn Source>,
}

impl Tree {
    /// That of an agent's version, whose files come from there.
    pub(super) fn new(agent: &'static str, version: String, source: impl Source + 'static) -> Self {
        Self {
            agent,
            version,
            source: Box::new(source),
        }
    }

    /// Where this version belongs.
    fn directory(&self, cache_dir: &Path) -> PathBuf {
        cache_dir.join("agents").join(self.agent).join(&self.version)
    }

    /// Finds it in the cache.
    pub(super) fn installed(&self, cache_dir: &Path) -> Result<Installed, AgentError> {
        let directory = self.directory(cache_dir);
        let program = self.source.check(&directory).map_err(|why| match why {
            Unusable::Missing => AgentError::NotInstalled {
                name: self.agent,
                version: self.version.clone(),
            },
            Unusable::Because(path, reason) => self.broken(&path, reason),
        })?;
        Ok(Installed {
            version: self.version.clone(),
            directory: Some(directory),
            program,
        })
    }

    /// Installs it below the cache, unless it is there.
    pub(super) async fn install(
        &self,
        request: &InstallRequest,
        progress: &(dyn Fn(InstallProgress) + Send + Sync),
    ) -> Result<Installed, AgentError> {
        if let Some(installed) = self.already(request, progress) {
            return Ok(installed);
        }
        let directory = self.directory(&request.cache_dir);
        let parent = request.cache_dir.join("agents").join(self.agent);
        fs::create_dir_all(&parent).map_err(files("make folder", &parent))?;
        readable(&request.cache_dir.join("agents"))?;
        readable(&parent)?;
        let _lock = lock(&parent.join(".lock"), progress).await?;
        // Another process may have installed it while the lock was waited for.
        if let Some(installed) = self.already(request, progress) {
            return Ok(installed);
        }
        remove_leftovers(&parent)?;
        let incoming = tempfile::Builder::new()
            .prefix(INCOMING)
            .tempdir_in(&parent)
            .map_err(files("make a folder in", &parent))?;
        let package = self.source.packages().join(" ");
        progress(InstallProgress::Fetching {
            package: package.clone(),
            installer: self.source.installer(),
            directory: directory.clone(),
        });
        let home = incoming.path().join("home");
        fs::create_dir_all(&home).map_err(files("make folder", &home))?;
        let fetched = self
            .source
            .fetch(request, incoming.path())
            .await
            .map_err(|failed| match failed {
                Failed::Files(error) => error,
                Failed::Installer(reason) => AgentError::Installer {
                    program: self.source.installer(),
                    package,
                    reason,
                },
            })?;
        progress(InstallProgress::Checking);
        self.try_out(&fetched, incoming.path()).await?;
        // Sandboxes read it as another user.
        readable_tree(&fetched)?;
        if directory.exists() {
            let aside = incoming.path().join("replaced");
            fs::rename(&directory, &aside).map_err(files("move aside", &directory))?;
        }
        fs::rename(&fetched, &directory).map_err(files("put in place", &directory))?;
        let installed = self.installed(&request.cache_dir)?;
        progress(InstallProgress::Done {
            version: self.version.clone(),
            directory,
        });
        Ok(installed)
    }

    fn already(
        &self,
        request: &InstallRequest,
        progress: &(dyn Fn(InstallProgress) + Send + Sync),
    ) -> Option<Installed> {
        let installed = self
            .installed(&request.cache_dir)
            .ok()
            .filter(|_| !request.force)?;
        progress(InstallProgress::AlreadyInstalled {
            version: installed.version.clone(),
        });
        Some(installed)
    }

    /// Runs the program for its version, with home and temporary files in `incoming`.
    async fn try_out(&self, tree: &Path, incoming: &Path) -> Result<(), AgentError> {
        let program = self.source.check(tree).map_err(|why| match why {
            Unusable::Missing => self.broken(tree, "the packages do not hold its program"),
            Unusable::Because(path, reason) => self.broken(&path, reason),
        })?;
        let broken = |reason: String| self.broken(&tree.join(&program), reason);
        let trial = self
            .source
            .version_command(tree, &program)
            .env("HOME", incoming.join("home"))
            .env("TMPDIR", incoming)
            .current_dir(incoming)
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output();
        let output = tokio::time::timeout(TRIAL, trial)
            .await
            .map_err(|_| {
                broken(format!(
                    "it did not tell its version within {} s",
                    TRIAL.as_secs()
                ))
            })?
            .map_err(|error| broken(error.to_string()))?;
        if !output.status.success() {
            let reason = last_words(&output.stderr).unwrap_or_else(|| output.status.to_string());
            return Err(broken(reason));
        }
        let told = String::from_utf8_lossy(&output.stdout);
        if !told.split_whitespace().any(|word| word == self.version) {
            return Err(broken(format!(
                "it says it is version `{}`",
                told.trim().escape_debug()
            )));
        }
        Ok(())
    }

    fn broken(&self, path: &Path, reason: impl Into<String>) -> AgentError {
        AgentError::Broken {
            name: self.agent,
            path: path.to_owned(),
            reason: reason.into(),
        }
    }
}

/// Waits for the right to install. Held until the file is dropped, whatever ends the process.
async fn lock(path: &Path, progress: &(dyn Fn(InstallProgress) + Send + Sync)) -> Result<File, AgentError> {
    let file = File::create(path).map_err(files("open", path))?;
    match file.try_lock() {
        Ok(()) => return Ok(file),
        Err(TryLockError::WouldBlock) => progress(InstallProgress::Waiting),
        Err(TryLockError::Error(error)) => return Err(files("lock", path)(error)),
    }
    let waited = tokio::task::spawn_blocking(move || file.lock().map(|()| file)).await;
    waited
        .map_err(io::Error::other)
        .and_then(|locked| locked)
        .map_err(files("lock", path))
}

/// Removes what an installation left that was killed; the lock is held.
fn remove_leftovers(parent: &Path) -> Result<(), AgentError> {
    for entry in fs::read_dir(parent).map_err(files("list", parent))? {
        let entry = entry.map_err(files("list", parent))?;
        if entry.file_name().to_string_lossy().starts_with(INCOMING) {
            fs::remove_dir_all(entry.path()).map_err(files("remove", &entry.path()))?;
        }
    }
    Ok(())
}

/// Lets everybody read and enter a file or folder.
fn readable(path: &Path) -> Result<(), AgentError> {
    let permissions = fs::metadata(path).map_err(files("look at", path))?.permissions();
    let mode = permissions.mode();
    let for_all = if mode & 0o111 == 0 { 0o444 } else { 0o555 };
    if mode & for_all != for_all {
        fs::set_permissions(path, fs::Permissions::from_mode(mode | for_all))
            .map_err(files("open up", path))?;
    }
    Ok(())
}

fn readable_tree(path: &Path) -> Result<(), AgentError> {
    let kind = fs::symlink_metadata(path)
        .map_err(files("look at", path))?
        .file_type();
    if kind.is_symlink() {
        return Ok(());
    }
    readable(path)?;
    if kind.is_dir() {
        for entry in fs::read_dir(path).map_err(files("list", path))? {
            readable_tree(&entry.map_err(files("list", path))?.path())?;
        }
    }
    Ok(())
}

/// The error of a file operation.
pub(super) fn files(operation: &'static str, path: &Path) -> impl Fn(io::Error) -> AgentError {
    let path = path.to_owned();
    move |source| AgentError::Files {
        operation,
        path: path.clone(),
        source,
    }
}

/// Runs an installing program to its end.
pub(super) async fn run(command: &mut Command) -> Result<(), Failed> {
    let output = command
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .map_err(|error| Failed::Installer(error.to_string()))?;
    if output.status.success() {
        return Ok(());
    }
    let said = last_words(&output.stderr).unwrap_or_else(|| output.status.to_string());
    Err(Failed::Installer(said))
}

/// The end of what a program wrote, on one line.
fn last_words(output: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(output);
    let lines: Vec<&str> = text
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .collect();
    let end = lines.get(lines.len().saturating_sub(6)..).unwrap_or_default();
    (!end.is_empty()).then(|| end.join("; "))
}
