use super::agent_user::{Account, Temporary};
use super::boot::Relay;
use super::http::Content;
use super::machine::{As, Machine, MachineError, Program};
use super::programs::{RemoteProcess, can_start, program};
use super::provider::Provider;
use super::scripts;
use crate::backends::off_the_runtime;
use crate::lease::{HeldLease, LeaseError};
use crate::{
    AgentUser, Channel, Command, FileList, OutputSink, Process, Role, Sandbox, SandboxError, SandboxSpec,
};
use async_trait::async_trait;
use bytes::Bytes;
use dressage_wire::ids::SandboxId;
use dressage_wire::reward::Separation;
use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

/// How long a script of ours may take.
const SCRIPT: Duration = Duration::from_secs(120);

/// Tries to dial a relay: the first pause is a tenth of a second, and each next one twice the last.
const DIALS: u32 = 7;

const REGULAR: &str = "a regular file";
const DIRECTORY: &str = "a directory";

/// A sandbox at a provider.
pub(crate) struct RemoteSandbox {
    pub(super) inside: Arc<Inside>,
    end: Arc<End>,
    /// Where the assets of the spec are inside, by name.
    pub(super) assets: BTreeMap<String, String>,
    pub(super) relay: Option<Relay>,
    /// Held while it is ended, which is done once.
    ending: tokio::sync::Mutex<bool>,
}

/// What programs need of it.
pub(super) struct Inside {
    pub(super) id: SandboxId,
    /// The backend's name.
    pub(super) backend: &'static str,
    pub(super) home: String,
    pub(super) machine: Arc<dyn Machine>,
    pub(super) over: CancellationToken,
    /// Of every command that does not clear it.
    pub(super) env: BTreeMap<String, String>,
    /// Where `dressage-tap` is inside, once it is there and programs are run by its `leader`.
    pub(super) leader: OnceLock<String>,
    /// Whom agents are to be.
    pub(super) agent_user: Option<AgentUser>,
    /// Whom agents are, once one was started: the image's user if it is nobody.
    pub(super) agent: OnceLock<Option<Account>>,
    next: AtomicU64,
    trees: Mutex<Vec<String>>,
}

/// What ends it.
struct End {
    sandbox: SandboxId,
    provider: Arc<dyn Provider>,
    provider_id: String,
    lease: Arc<HeldLease>,
}

impl RemoteSandbox {
    pub(super) fn new(
        spec: &SandboxSpec,
        agent_user: Option<AgentUser>,
        machine: Arc<dyn Machine>,
        provider: Arc<dyn Provider>,
        provider_id: String,
        lease: Arc<HeldLease>,
    ) -> Self {
        let mut env = BTreeMap::from([("HOME".to_owned(), spec.home.clone())]);
        env.extend(spec.env.clone());
        Self {
            inside: Arc::new(Inside {
                id: spec.id,
                backend: provider.name(),
                home: spec.home.clone(),
                machine,
                over: CancellationToken::new(),
                env,
                leader: OnceLock::new(),
                agent_user,
                agent: OnceLock::new(),
                next: AtomicU64::new(1),
                trees: Mutex::default(),
            }),
            end: Arc::new(End {
                sandbox: spec.id,
                provider,
                provider_id,
                lease,
            }),
            assets: BTreeMap::new(),
            relay: None,
            ending: tokio::sync::Mutex::new(false),
        }
    }
}

impl Inside {
    /// Writes a file, which is there whole or not at all.
    async fn write(&self, path: &str, content: Content, mode: u32) -> Result<(), SandboxError> {
        self.alive()?;
        let path = self.absolute(path);
        // Beside it, to be moved there; a name of its own, since names have a longest length.
        let (folder, _) = path.rsplit_once('/').unwrap_or_default();
        let uploaded = format!("{folder}/.dressage-new-{}-{}", self.id, self.number());
        if let Err(error) = self.machine.upload(&uploaded, content).await {
            return Err(self.failed("write", &path, error).await);
        }
        let mode = format!("{mode:o}");
        self.script("write", scripts::PLACE, &[&uploaded, &path, &mode], As::User)
            .await
            .map(|_| ())
    }

    pub(super) fn gone(&self, reason: impl Into<String>) -> SandboxError {
        SandboxError::Gone {
            id: self.id,
            reason: reason.into(),
        }
    }

    fn alive(&self) -> Result<(), SandboxError> {
        if self.over.is_cancelled() {
            return Err(self.gone("it was killed"));
        }
        Ok(())
    }

    pub(super) fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn absolute(&self, path: &str) -> String {
        match path {
            "" | "." => self.home.clone(),
            path if path.starts_with('/') => path.to_owned(),
            path => format!(
                "{}/{}",
                self.home.trim_end_matches('/'),
                path.trim_start_matches("./")
            ),
        }
    }

    pub(super) async fn failed(
        &self,
        operation: &'static str,
        object: &str,
        error: MachineError,
    ) -> SandboxError {
        if self.over.is_cancelled() {
            return self.gone("it was killed");
        }
        if error.is_unclear() && self.machine.lives().await != Some(true) {
            return self.gone(error.to_string());
        }
        SandboxError::Operation {
            operation,
            object: object.chars().take(200).collect(),
            message: error.to_string(),
            errno: error.is_full_disk().then_some(libc::ENOSPC),
        }
    }

    /// Runs a script of ours, which must succeed; gives what it wrote.
    pub(super) async fn script(
        &self,
        operation: &'static str,
        script: &str,
        arguments: &[&str],
        who: As,
    ) -> Result<Vec<u8>, SandboxError> {
        self.alive()?;
        let mut argv = vec!["/bin/sh", "-c", script, "dressage"];
        argv.extend(arguments);
        let program = Program {
            argv: argv.into_iter().map(str::to_owned).collect(),
            env: BTreeMap::new(),
            lifetime: Some(SCRIPT),
            who,
        };
        let object = arguments.first().copied().unwrap_or(operation);
        let done = tokio::select! {
            biased;
            () = self.over.cancelled() => return Err(self.gone("it was killed")),
            done = self.machine.run(&program) => done,
        };
        match done {
            Ok(ran) if ran.code == 0 => Ok(ran.stdout),
            Ok(ran) => {
                let complaint = String::from_utf8_lossy(&ran.stderr);
                let complaint: String = complaint.trim().chars().take(200).collect();
                Err(SandboxError::Operation {
                    operation,
                    object: object.to_owned(),
                    message: format!("exit code {}: {complaint}", ran.code),
                    errno: complaint
                        .contains("No space left on device")
                        .then_some(libc::ENOSPC),
                })
            }
            Err(error) => Err(self.failed(operation, object, error).await),
        }
    }

    /// What is at a path, in the words of [`SandboxError::NotRegular`], and its length; `None` where nothing is.
    async fn stat(
        &self,
        operation: &'static str,
        path: &str,
    ) -> Result<Option<(&'static str, u64)>, SandboxError> {
        let told = self.script(operation, scripts::STAT, &[path], As::User).await?;
        let told = String::from_utf8_lossy(&told);
        Ok(told.trim().split_once(' ').map(|(mode, size)| {
            let mode = u32::from_str_radix(mode, 16).unwrap_or_default();
            let kind = match mode & libc::S_IFMT {
                libc::S_IFREG => REGULAR,
                libc::S_IFDIR => DIRECTORY,
                libc::S_IFLNK => "a symbolic link",
                libc::S_IFIFO => "a named pipe",
                libc::S_IFSOCK => "a socket or a device",
                _ => "a device",
            };
            (kind, size.parse().unwrap_or_default())
        }))
    }

    /// Ends a program and what it has started; an agent's with all that is its user's.
    pub(super) async fn end_tree(&self, mark: &str, role: Role) -> Result<(), SandboxError> {
        if let Some(account) = self.account(role) {
            return self.end_agent(account, Temporary::Kept).await;
        }
        self.script("end", scripts::END_TREES, &[mark], As::User)
            .await
            .map(|_| ())
    }
}

#[async_trait]
impl Sandbox for RemoteSandbox {
    fn id(&self) -> SandboxId {
        self.inside.id
    }

    fn home(&self) -> &str {
        &self.inside.home
    }

    fn asset_path(&self, name: &str) -> Option<String> {
        self.assets.get(name).cloned()
    }

    fn relay_address(&self) -> Option<String> {
        self.relay.as_ref().map(|relay| relay.address.clone())
    }

    async fn start(
        &self,
        command: Command,
        output: Arc<dyn OutputSink>,
    ) -> Result<Box<dyn Process>, SandboxError> {
        let inside = &self.inside;
        inside.alive()?;
        let name = command.argv.first().cloned().unwrap_or_default();
        can_start(&command)?;
        let mark = format!("{}-{}", inside.id, inside.number());
        let mut input = String::new();
        if !command.stdin.is_empty() {
            input = format!("/tmp/.dressage-input-{mark}");
            let content = Content::from(command.stdin.clone());
            if let Err(error) = inside.machine.upload(&input, content).await {
                return Err(inside.failed("start", &name, error).await);
            }
        }
        if command.role == Role::Agent {
            inside.hand_over(&input).await?;
        }
        let program = program(inside, &command, &mark, input);
        inside
            .trees
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(mark.clone());
        let begun = Instant::now();
        let running = match inside.machine.start(&program).await {
            Ok(running) => running,
            Err(error) => {
                // An answer that was lost may have started it.
                let _ = inside.end_tree(&mark, command.role).await;
                return Err(inside.failed("start", &name, error).await);
            }
        };
        let process = RemoteProcess::follow(inside, running, output, mark, begun, &command);
        Ok(Box::new(process))
    }

    async fn write_file(&self, path: &str, content: Bytes, mode: u32) -> Result<(), SandboxError> {
        self.inside.write(path, content.into(), mode).await
    }

    async fn upload(&self, path: &str, content: Arc<File>, mode: u32) -> Result<(), SandboxError> {
        // It may have no name any more; by its number it is opened again for each try.
        let open = PathBuf::from(format!("/proc/self/fd/{}", content.as_raw_fd()));
        self.inside.write(path, Content::File(open), mode).await
    }

    async fn read_file(&self, path: &str, limit: u64) -> Result<Bytes, SandboxError> {
        self.inside.alive()?;
        let path = self.inside.absolute(path);
        let Some((kind, size)) = self.inside.stat("read", &path).await? else {
            return Err(SandboxError::NotFound { path });
        };
        if kind != REGULAR {
            return Err(SandboxError::NotRegular {
                path,
                kind: kind.into(),
            });
        }
        if size > limit {
            return Err(SandboxError::TooLarge { path, size, limit });
        }
        let most = usize::try_from(limit).unwrap_or(usize::MAX);
        match self.inside.machine.download(&path, most).await {
            Ok(bytes) => Ok(bytes),
            Err(error) if error.is_not_found() => Err(SandboxError::NotFound { path }),
            Err(error) => Err(self.inside.failed("read", &path, error).await),
        }
    }

    async fn exists(&self, path: &str) -> Result<bool, SandboxError> {
        self.inside.alive()?;
        let path = self.inside.absolute(path);
        Ok(self.inside.stat("look at", &path).await?.is_some())
    }

    async fn list_files(
        &self,
        path: &str,
        max_depth: u32,
        max_files: usize,
    ) -> Result<FileList, SandboxError> {
        let path = self.inside.absolute(path);
        match self.inside.stat("list", &path).await? {
            None => return Err(SandboxError::NotFound { path }),
            Some((DIRECTORY, _)) => {}
            Some((kind, _)) => {
                return Err(SandboxError::NotRegular {
                    path,
                    kind: kind.into(),
                });
            }
        }
        let most = max_files.saturating_add(1).to_string();
        let arguments = [path.as_str(), &max_depth.to_string(), &most];
        let listed = self
            .inside
            .script("list", scripts::LIST, &arguments, As::User)
            .await?;
        let mut list = FileList::default();
        for entry in listed.split(|byte| *byte == 0).filter(|entry| !entry.is_empty()) {
            let entry = String::from_utf8_lossy(entry);
            if let Some((size, path)) = entry.split_once(' ') {
                list.files.push((path.to_owned(), size.parse().unwrap_or(0)));
            }
        }
        list.truncated = list.files.len() > max_files;
        list.files.truncate(max_files);
        list.files.sort();
        Ok(list)
    }

    async fn open_relay(&self) -> Result<Box<dyn Channel>, SandboxError> {
        let inside = &self.inside;
        let Some(relay) = &self.relay else {
            return Err(inside.gone("it has no relay"));
        };
        let mut tries = 0;
        loop {
            let dialled = tokio::select! {
                biased;
                () = relay.over.cancelled() => return Err(inside.gone("its relay has ended")),
                dialled = inside.machine.dial(&relay.secret) => dialled,
            };
            let error = match dialled {
                Ok(channel) => return Ok(channel),
                Err(error) => error,
            };
            tries += 1;
            if tries >= DIALS || !error.is_transient() || inside.machine.lives().await == Some(false) {
                return Err(inside.failed("dial", "its relay", error.into()).await);
            }
            tokio::select! {
                biased;
                () = relay.over.cancelled() => {}
                () = tokio::time::sleep(Duration::from_millis(50 << tries)) => {}
            }
        }
    }

    async fn separate(&self, fresh_directories: &[String]) -> Result<Separation, SandboxError> {
        self.end_relay().await?;
        let trees = self
            .inside
            .trees
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        let mut separation = Separation::None;
        if let Some(account) = self.inside.account(Role::Agent) {
            self.inside.end_agent(account, Temporary::Removed).await?;
            separation = Separation::Uid;
        }
        let marks: Vec<&str> = trees.iter().map(String::as_str).collect();
        self.inside
            .script("end", scripts::END_TREES, &marks, As::Root)
            .await?;
        let fresh: Vec<String> = fresh_directories
            .iter()
            .map(|path| self.inside.absolute(path))
            .collect();
        let mut arguments = vec![self.inside.home.as_str()];
        arguments.extend(fresh.iter().map(String::as_str));
        self.inside
            .script("renew", scripts::FRESH, &arguments, As::Root)
            .await?;
        Ok(separation)
    }

    async fn relabel(&self, labels: &BTreeMap<String, String>) -> Result<(), SandboxError> {
        let (end, labels) = (Arc::clone(&self.end), labels.clone());
        off_the_runtime("label a lease", move || end.lease.relabel(labels))
            .await?
            .map_err(|source| SandboxError::Lease {
                id: self.inside.id,
                source,
            })
    }

    async fn kill(&self) -> Result<(), SandboxError> {
        self.inside.over.cancel();
        let mut ended = self.ending.lock().await;
        if !*ended {
            self.end.end().await?;
            *ended = true;
        }
        Ok(())
    }
}

impl End {
    async fn end(&self) -> Result<(), SandboxError> {
        let left = |source| SandboxError::Left {
            id: self.sandbox,
            source: Arc::new(source),
        };
        self.provider.kill(&self.provider_id).await.map_err(|error| {
            left(LeaseError::AtProvider {
                sandbox: self.sandbox,
                backend: self.provider.name().into(),
                source: Box::new(error),
            })
        })?;
        self.lease.clear().map_err(left)
    }
}

impl Drop for RemoteSandbox {
    fn drop(&mut self) {
        self.inside.over.cancel();
        let (end, ended) = (Arc::clone(&self.end), *self.ending.get_mut());
        // Without a runtime the lease stays, for the next sweep.
        if !ended && let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                if let Err(error) = end.end().await {
                    tracing::warn!(
                        sandbox.id = %end.sandbox,
                        error = &error as &dyn std::error::Error,
                        "a sandbox could not be removed; the next sweep tries again"
                    );
                }
            });
        }
    }
}
