//! npm packages that are one native program, installed into Dressage's own cache.
//!
//! npm runs in a folder of its own below the cache, with its cache and home there too: neither the user's home nor any
//! project is touched. What it fetched is checked and tried before it takes its place by one rename.

use super::contract::{AgentError, InstallProgress, InstallRequest, Installed};
use super::program;
use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use tokio::process::Command;

/// How long a program may take to tell its version on a busy machine.
const TRIAL: Duration = Duration::from_secs(120);

/// A package that is one native program.
pub(super) struct NativePackage<'a> {
    /// Name of the agent.
    pub(super) agent: &'static str,
    /// Name in npm's registry.
    pub(super) package: &'a str,
    /// Exact version: npm otherwise chooses by what suits the local Node.
    pub(super) version: &'a str,
    /// The program, relative to the package's folder.
    pub(super) program: &'static str,
}

impl NativePackage<'_> {
    /// Where this version belongs.
    fn directory(&self, cache_dir: &Path) -> PathBuf {
        cache_dir.join("agents").join(self.agent).join(self.version)
    }

    /// Finds it in the cache.
    pub(super) fn installed(&self, cache_dir: &Path) -> Result<Installed, AgentError> {
        let directory = self.directory(cache_dir);
        let program = directory.join(self.program);
        match program::check_native(&program) {
            Ok(()) => Ok(self.at(directory)),
            Err(program::NotNative::Missing) => Err(AgentError::NotInstalled {
                name: self.agent,
                version: self.version.into(),
            }),
            Err(program::NotNative::Because(reason)) => Err(AgentError::Broken {
                name: self.agent,
                path: program,
                reason,
            }),
        }
    }

    /// Installs it below the cache, unless it is there.
    pub(super) async fn install(
        &self,
        request: &InstallRequest,
        progress: &(dyn Fn(InstallProgress) + Send + Sync),
    ) -> Result<Installed, AgentError> {
        if let (false, Ok(installed)) = (request.force, self.installed(&request.cache_dir)) {
            progress(InstallProgress::AlreadyInstalled {
                version: installed.version.clone(),
            });
            return Ok(installed);
        }
        let directory = self.directory(&request.cache_dir);
        let parent = request.cache_dir.join("agents").join(self.agent);
        fs::create_dir_all(&parent).map_err(files("make folder", &parent))?;
        readable(&request.cache_dir.join("agents"))?;
        readable(&parent)?;
        let _lock = lock(&parent.join(".lock"), progress).await?;
        // Another process may have installed it while the lock was waited for.
        if let (false, Ok(installed)) = (request.force, self.installed(&request.cache_dir)) {
            progress(InstallProgress::AlreadyInstalled {
                version: installed.version.clone(),
            });
            return Ok(installed);
        }
        remove_leftovers(&parent)?;
        let incoming = tempfile::Builder::new()
            .prefix(INCOMING)
            .tempdir_in(&parent)
            .map_err(files("make a folder in", &parent))?;
        progress(InstallProgress::Fetching {
            package: format!("{}@{}", self.package, self.version),
            directory: directory.clone(),
        });
        self.fetch(request, incoming.path()).await?;
        progress(InstallProgress::Checking);
        let fetched = incoming.path().join("node_modules").join(self.package);
        self.try_out(&fetched.join(self.program), incoming.path()).await?;
        // Sandboxes read it as another user.
        readable_tree(&fetched)?;
        if directory.exists() {
            let aside = incoming.path().join("replaced");
            fs::rename(&directory, &aside).map_err(files("move aside", &directory))?;
        }
        fs::rename(&fetched, &directory).map_err(files("put in place", &directory))?;
        progress(InstallProgress::Done {
            version: self.version.into(),
            directory: directory.clone(),
        });
        Ok(self.at(directory))
    }

    fn at(&self, directory: PathBuf) -> Installed {
        Installed {
            version: self.version.into(),
            directory,
            program: self.program.into(),
        }
    }

    async fn fetch(&self, request: &InstallRequest, incoming: &Path) -> Result<(), AgentError> {
        let package = format!("{}@{}", self.package, self.version);
        let failed = |reason: String| AgentError::Installer {
            program: "npm",
            package: package.clone(),
            reason,
        };
        let home = incoming.join("home");
        fs::create_dir_all(&home).map_err(files("make folder", &home))?;
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
        .arg(&package)
        .current_dir(incoming)
        .env("HOME", &home)
        .stdin(Stdio::null())
        .kill_on_drop(true);
        if let Some(config) = &request.npm_config {
            npm.arg("--userconfig").arg(config);
        }
        let output = npm.output().await.map_err(|error| failed(error.to_string()))?;
        if output.status.success() {
            return Ok(());
        }
        Err(failed(
            last_words(&output.stderr).unwrap_or_else(|| output.status.to_string()),
        ))
    }

    /// Runs the program for its version, with home and temporary files in `incoming`.
    async fn try_out(&self, program: &Path, incoming: &Path) -> Result<(), AgentError> {
        let broken = |reason: String| AgentError::Broken {
            name: self.agent,
            path: program.to_owned(),
            reason,
        };
        program::check_native(program).map_err(|why| broken(why.to_string()))?;
        let trial = Command::new(program)
            .arg("--version")
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
        let told = String::from_utf8_lossy(&output.stdout);
        if !output.status.success() {
            let reason = last_words(&output.stderr).unwrap_or_else(|| output.status.to_string());
            return Err(broken(reason));
        }
        if told.trim() != self.version {
            return Err(broken(format!(
                "it says it is version `{}`",
                told.trim().escape_debug()
            )));
        }
        Ok(())
    }
}

/// What folders of unfinished installations begin with.
const INCOMING: &str = ".incoming-";

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

fn files(operation: &'static str, path: &Path) -> impl Fn(io::Error) -> AgentError {
    let path = path.to_owned();
    move |source| AgentError::Files {
        operation,
        path: path.clone(),
        source,
    }
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
