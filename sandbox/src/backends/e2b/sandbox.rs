use super::boot::{CARRIER_PORT, Relay};
use super::envd::{As, Envd, EnvdError, Said};
use super::plane::{ControlPlane, Created};
use crate::lease::HeldLease;
use crate::remote::scripts;
use crate::{Channel, Command, Exit, FileList, OutputSink, Process, Sandbox, SandboxError, SandboxSpec};
use async_trait::async_trait;
use bytes::Bytes;
use dressage_wire::event::OutputStream;
use dressage_wire::ids::SandboxId;
use dressage_wire::reward::Separation;
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// How much longer than its deadline the provider lets a program live: the host keeps the deadline.
const BACKSTOP: Duration = Duration::from_secs(60);

/// Tries to find a program again whose stream broke.
const RECONNECTS: u32 = 5;

/// Tries to dial a relay: the first pause is a tenth of a second, and each next one twice the last.
const DIALS: u32 = 7;

/// A sandbox at E2B.
pub(super) struct E2bSandbox {
    pub(super) inside: Arc<Inside>,
    plane: ControlPlane,
    lease: Arc<HeldLease>,
    /// Where the assets of the spec are inside, by name.
    pub(super) assets: BTreeMap<String, String>,
    pub(super) relay: Option<Relay>,
    /// Held while it is ended, which is done once.
    ending: tokio::sync::Mutex<bool>,
}

/// What programs need of it.
pub(super) struct Inside {
    pub(super) id: SandboxId,
    pub(super) envd: Envd,
    pub(super) over: CancellationToken,
    next: AtomicU64,
    trees: Mutex<Vec<String>>,
}

impl E2bSandbox {
    pub(super) fn new(
        spec: &SandboxSpec,
        plane: &ControlPlane,
        created: Created,
        lease: Arc<HeldLease>,
    ) -> Self {
        let url = plane.inside(&created);
        Self {
            inside: Arc::new(Inside {
                id: spec.id,
                envd: Envd {
                    http: plane.http.clone(),
                    url,
                    sandbox: created.sandbox_id,
                    token: created.envd_access_token,
                    traffic_token: created.traffic_access_token,
                },
                over: CancellationToken::new(),
                next: AtomicU64::new(1),
                trees: Mutex::default(),
            }),
            plane: plane.clone(),
            lease,
            assets: BTreeMap::new(),
            relay: None,
            ending: tokio::sync::Mutex::new(false),
        }
    }
}

impl Inside {
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

    pub(super) async fn failed(
        &self,
        operation: &'static str,
        object: &str,
        error: EnvdError,
    ) -> SandboxError {
        let unclear = match &error {
            EnvdError::Said { code, .. } => code == "unavailable",
            EnvdError::Http(error) => error.is_transient(),
            EnvdError::Cut => true,
        };
        if self.over.is_cancelled() {
            return self.gone("it was killed");
        }
        if unclear && self.envd.lives().await != Some(true) {
            return self.gone(error.to_string());
        }
        let full = matches!(&error, EnvdError::Http(error) if error.status().is_some_and(|status| status.as_u16() == 507));
        SandboxError::Operation {
            operation,
            object: object.chars().take(200).collect(),
            message: error.to_string(),
            errno: full.then_some(libc::ENOSPC),
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
        let mut argv = vec!["-c", script, "dressage"];
        argv.extend(arguments);
        let body = json!({
            "process": { "cmd": "/bin/sh", "args": argv, "envs": {} },
            "stdin": false,
        });
        let limit = Duration::from_secs(120);
        let object = arguments.first().copied().unwrap_or(operation);
        let run = async {
            let mut stream = self
                .envd
                .stream("process.Process/Start", &body, Some(limit), who)
                .await?;
            let (mut out, mut complaint) = (Vec::new(), Vec::new());
            loop {
                match stream.next().await? {
                    Said::Started(_) => {}
                    Said::Stdout(bytes) => out.extend_from_slice(&bytes),
                    Said::Stderr(bytes) => complaint.extend_from_slice(&bytes),
                    Said::Ended { code, .. } => return Ok((code, out, complaint)),
                }
            }
        };
        let done = tokio::select! {
            biased;
            () = self.over.cancelled() => return Err(self.gone("it was killed")),
            done = run => done,
        };
        match done {
            Ok((0, out, _)) => Ok(out),
            Ok((code, _, complaint)) => Err(SandboxError::Operation {
                operation,
                object: object.to_owned(),
                message: format!(
                    "exit code {code}: {}",
                    String::from_utf8_lossy(&complaint)
                        .trim()
                        .chars()
                        .take(200)
                        .collect::<String>()
                ),
                errno: None,
            }),
            Err(error) => Err(self.failed(operation, object, error).await),
        }
    }

    /// Follows a program to its end, through losses of its stream. What it writes while nobody listens is lost: envd keeps
    /// none of it.
    async fn follow(
        &self,
        mut stream: super::envd::Stream,
        pid: u64,
        sink: &Arc<dyn OutputSink>,
    ) -> Result<(i32, String), SandboxError> {
        let vanished = || self.gone(format!("process {pid} vanished: what came of it is not known"));
        let mut tries = 0;
        loop {
            let error = loop {
                match stream.next().await {
                    Ok(Said::Started(_)) => tries = 0,
                    Ok(Said::Stdout(bytes)) => sink.write(OutputStream::Stdout, &bytes),
                    Ok(Said::Stderr(bytes)) => sink.write(OutputStream::Stderr, &bytes),
                    Ok(Said::Ended { code, status }) => return Ok((code, status)),
                    Err(error) => break error,
                }
            };
            if error.is("deadline_exceeded") {
                return Ok((-1, "signal: killed".into()));
            }
            if error.is("not_found") {
                return Err(vanished());
            }
            loop {
                if self.envd.lives().await == Some(false) || tries >= RECONNECTS {
                    return Err(self.gone(error.to_string()));
                }
                tries += 1;
                let body = json!({ "process": { "pid": pid } });
                match self
                    .envd
                    .stream("process.Process/Connect", &body, None, As::User)
                    .await
                {
                    Ok(again) => {
                        tracing::warn!(sandbox.id = %self.id, "the stream of a program was lost and found again");
                        stream = again;
                        break;
                    }
                    Err(error) if error.is("not_found") => return Err(vanished()),
                    Err(_) => tokio::time::sleep(Duration::from_millis(100 << tries)).await,
                }
            }
        }
    }
}

fn absolute(path: &str) -> String {
    match path {
        "" | "." => super::HOME.to_owned(),
        path if path.starts_with('/') => path.to_owned(),
        path => format!("{}/{}", super::HOME, path.trim_start_matches("./")),
    }
}

/// The number in `signal: killed`, by the names that Go has for signals.
fn signal_of(status: &str) -> Option<i32> {
    Some(match status.strip_prefix("signal: ")? {
        "hangup" => libc::SIGHUP,
        "interrupt" => libc::SIGINT,
        "quit" => libc::SIGQUIT,
        "illegal instruction" => libc::SIGILL,
        "aborted" => libc::SIGABRT,
        "bus error" => libc::SIGBUS,
        "floating point exception" => libc::SIGFPE,
        "killed" => libc::SIGKILL,
        "segmentation fault" => libc::SIGSEGV,
        "broken pipe" => libc::SIGPIPE,
        "alarm clock" => libc::SIGALRM,
        "terminated" => libc::SIGTERM,
        other => other
            .trim_start_matches("signal ")
            .split(' ')
            .next()?
            .parse()
            .ok()?,
    })
}

#[async_trait]
impl Sandbox for E2bSandbox {
    fn id(&self) -> SandboxId {
        self.inside.id
    }

    fn home(&self) -> &str {
        super::HOME
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
        let program = command.argv.first().cloned().unwrap_or_default();
        let mark = format!("{}-{}", inside.id, inside.number());
        let mut input = String::new();
        if !command.stdin.is_empty() {
            input = format!("/tmp/.dressage-input-{mark}");
            if let Err(error) = inside.envd.upload(&input, command.stdin.clone()).await {
                return Err(inside.failed("start", &program, error).await);
            }
        }
        let mut envs = command.env.clone();
        envs.insert(scripts::TREE.into(), mark.clone());
        let keep = if command.clear_env {
            let names: Vec<&str> = envs.keys().map(String::as_str).collect();
            format!(" {} ", names.join(" "))
        } else {
            String::new()
        };
        let cwd = absolute(command.cwd.as_deref().unwrap_or_default());
        let mut args = vec![
            "-c".to_owned(),
            scripts::RUN.to_owned(),
            "dressage".into(),
            cwd,
            input,
            keep,
        ];
        args.extend(command.argv.iter().cloned());
        let body = json!({
            "process": { "cmd": "/bin/sh", "args": args, "envs": envs },
            "stdin": false,
            "tag": mark,
        });
        inside
            .trees
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(mark.clone());
        let begun = Instant::now();
        let lifetime = command.timeout.map(|timeout| timeout + BACKSTOP);
        let starting = async {
            let mut stream = inside
                .envd
                .stream("process.Process/Start", &body, lifetime, As::User)
                .await?;
            match stream.next().await? {
                Said::Started(pid) => Ok((stream, pid)),
                _ => Err(EnvdError::Cut),
            }
        };
        let (stream, pid) = match starting.await {
            Ok(started) => started,
            Err(error) => {
                // An answer that was lost may have started it.
                let _ = inside.script("end", scripts::END_TREES, &[&mark], As::User).await;
                return Err(inside.failed("start", &program, error).await);
            }
        };
        let (told, outcome) = watch::channel(None);
        let timed_out = Arc::new(AtomicBool::new(false));
        let (here, late, tree) = (Arc::clone(inside), Arc::clone(&timed_out), mark.clone());
        let deadline = command.timeout;
        tokio::spawn(async move {
            let following = here.follow(stream, pid, &output);
            tokio::pin!(following);
            let ended = tokio::select! {
                biased;
                () = here.over.cancelled() => Err(here.gone("it was killed")),
                ended = &mut following => ended,
                () = until(begun, deadline) => {
                    late.store(true, Ordering::Relaxed);
                    let killed = here.script("end", scripts::END_TREES, &[&tree], As::User).await;
                    tokio::select! {
                        biased;
                        () = here.over.cancelled() => Err(here.gone("it was killed")),
                        ended = &mut following => killed.and(ended),
                    }
                }
            };
            let ended = ended.map(|(code, status)| {
                let timed_out = late.load(Ordering::Relaxed);
                let signal = if code < 0 {
                    signal_of(&status).or(Some(libc::SIGKILL))
                } else {
                    None
                };
                Exit {
                    code: if timed_out {
                        124
                    } else {
                        signal.map_or(code, |signal| 128 + signal)
                    },
                    signal,
                    timed_out,
                    duration: begun.elapsed(),
                }
            });
            told.send_replace(Some(ended.map_err(|error| error.to_string())));
        });
        Ok(Box::new(E2bProcess {
            inside: Arc::clone(inside),
            mark,
            outcome,
        }))
    }

    async fn write_file(&self, path: &str, content: Bytes, mode: u32) -> Result<(), SandboxError> {
        self.inside.alive()?;
        let path = absolute(path);
        let uploaded = format!("{path}.dressage-new-{}", self.inside.number());
        if let Err(error) = self.inside.envd.upload(&uploaded, content).await {
            return Err(self.inside.failed("write", &path, error).await);
        }
        let mode = format!("{mode:o}");
        self.inside
            .script("write", scripts::PLACE, &[&uploaded, &path, &mode], As::User)
            .await
            .map(|_| ())
    }

    async fn read_file(&self, path: &str, limit: u64) -> Result<Bytes, SandboxError> {
        self.inside.alive()?;
        let path = absolute(path);
        let (kind, size) = match self.inside.envd.stat(&path).await {
            Ok(Some(found)) => found,
            Ok(None) => return Err(SandboxError::NotFound { path }),
            Err(error) => return Err(self.inside.failed("read", &path, error).await),
        };
        if kind != "FILE_TYPE_FILE" {
            let kind = match kind.as_str() {
                "FILE_TYPE_DIRECTORY" => "a directory",
                "FILE_TYPE_SYMLINK" => "a link",
                _ => "something else",
            };
            return Err(SandboxError::NotRegular {
                path,
                kind: kind.into(),
            });
        }
        if size > limit {
            return Err(SandboxError::TooLarge { path, size, limit });
        }
        let most = usize::try_from(limit).unwrap_or(usize::MAX);
        match self.inside.envd.download(&path, most).await {
            Ok(bytes) => Ok(bytes),
            Err(error) if error.is("not_found") => Err(SandboxError::NotFound { path }),
            Err(error) => Err(self.inside.failed("read", &path, error).await),
        }
    }

    async fn exists(&self, path: &str) -> Result<bool, SandboxError> {
        self.inside.alive()?;
        let path = absolute(path);
        match self.inside.envd.stat(&path).await {
            Ok(found) => Ok(found.is_some()),
            Err(error) => Err(self.inside.failed("look at", &path, error).await),
        }
    }

    async fn list_files(
        &self,
        path: &str,
        max_depth: u32,
        max_files: usize,
    ) -> Result<FileList, SandboxError> {
        let path = absolute(path);
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
                dialled = inside.envd.dial(CARRIER_PORT, &relay.secret) => dialled,
            };
            let error = match dialled {
                Ok(channel) => return Ok(channel),
                Err(error) => error,
            };
            tries += 1;
            if tries >= DIALS || !error.is_transient() || inside.envd.lives().await == Some(false) {
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
        let marks: Vec<&str> = trees.iter().map(String::as_str).collect();
        self.inside
            .script("end", scripts::END_TREES, &marks, As::Root)
            .await?;
        let fresh: Vec<String> = fresh_directories.iter().map(|path| absolute(path)).collect();
        let fresh: Vec<&str> = fresh.iter().map(String::as_str).collect();
        self.inside
            .script("renew", scripts::FRESH, &fresh, As::User)
            .await?;
        Ok(Separation::None)
    }

    async fn kill(&self) -> Result<(), SandboxError> {
        self.inside.over.cancel();
        let mut ended = self.ending.lock().await;
        if !*ended {
            end(&self.plane, &self.inside, &self.lease).await?;
            *ended = true;
        }
        Ok(())
    }
}

async fn end(plane: &ControlPlane, inside: &Inside, lease: &HeldLease) -> Result<(), SandboxError> {
    let left = |source| SandboxError::Left {
        id: inside.id,
        source: Arc::new(source),
    };
    plane.kill(&inside.envd.sandbox).await.map_err(|error| {
        left(crate::lease::LeaseError::AtProvider {
            sandbox: inside.id,
            backend: super::NAME.into(),
            source: Box::new(error),
        })
    })?;
    lease.clear().map_err(left)
}

impl Drop for E2bSandbox {
    fn drop(&mut self) {
        self.inside.over.cancel();
        let (plane, inside, lease) = (
            self.plane.clone(),
            Arc::clone(&self.inside),
            Arc::clone(&self.lease),
        );
        let ended = *self.ending.get_mut();
        // Without a runtime the lease stays, for the next sweep.
        if !ended && let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                if let Err(error) = end(&plane, &inside, &lease).await {
                    tracing::warn!(
                        sandbox.id = %inside.id,
                        error = &error as &dyn std::error::Error,
                        "a sandbox could not be removed; the next sweep tries again"
                    );
                }
            });
        }
    }
}

async fn until(begun: Instant, timeout: Option<Duration>) {
    match timeout {
        Some(timeout) => tokio::time::sleep_until((begun + timeout).into()).await,
        None => std::future::pending().await,
    }
}

/// A program in it.
struct E2bProcess {
    inside: Arc<Inside>,
    mark: String,
    outcome: watch::Receiver<Option<Result<Exit, String>>>,
}

#[async_trait]
impl Process for E2bProcess {
    async fn wait(&mut self) -> Result<Exit, SandboxError> {
        let outcome = match self.outcome.wait_for(Option::is_some).await {
            Ok(outcome) => outcome.clone(),
            Err(_) => None,
        };
        match outcome {
            Some(Ok(exit)) => Ok(exit),
            Some(Err(reason)) => Err(self.inside.gone(reason)),
            None => Err(self.inside.gone("nobody waits for its programs")),
        }
    }

    async fn kill(&mut self) -> Result<(), SandboxError> {
        if self.outcome.borrow().is_none() {
            self.inside
                .script("end", scripts::END_TREES, &[&self.mark], As::User)
                .await?;
            self.wait().await?;
        }
        Ok(())
    }
}
