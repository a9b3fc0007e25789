use crate::backends::off_the_runtime;
use crate::control::Control;
use crate::egress::Channels;
use crate::life::{Belongings, Body, Life};
use crate::snapshot::{LEFT, Left, Snapshot};
use crate::{Channel, Command, FileList, OutputSink, Process, Sandbox, SandboxError, SandboxSpec};
use async_trait::async_trait;
use bytes::Bytes;
use dressage_wire::control::{Exists, List, Read, Start, Write};
use dressage_wire::ids::SandboxId;
use dressage_wire::reward::Separation;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// For what is left of setup to be looked for.
const LOOK: Duration = Duration::from_secs(20);

/// A sandbox in which `dressage-tap init` runs: everything but how it is built.
pub(crate) struct ControlledSandbox {
    id: SandboxId,
    home: String,
    env: BTreeMap<String, String>,
    assets: BTreeMap<String, String>,
    relay_address: Option<String>,
    relay: Mutex<Option<Box<dyn Channel>>>,
    egress: Channels,
    control: Mutex<Arc<Control>>,
    life: Life,
    ground: Box<dyn Ground>,
}

/// How a sandbox is built, and built again.
#[async_trait]
pub(crate) trait Ground: Send + Sync {
    /// Starts init anew, without a relay but with its way out, over the same home, after all of the old processes have ended. Each of
    /// `fresh` is a new empty directory then.
    async fn rebuild(&self, fresh: &[String]) -> Result<Built, SandboxError>;

    /// What the rebuilding achieves.
    fn separation(&self) -> Separation;

    /// The backend's name in the registry.
    fn backend(&self) -> &'static str;

    /// Keeps the files as they are under a lease of this id, while nothing changes them.
    async fn keep(
        &self,
        id: SandboxId,
        labels: BTreeMap<String, String>,
    ) -> Result<Arc<dyn Belongings>, SandboxError>;
}

/// An init that runs, connected.
pub(crate) struct Built {
    pub(crate) body: Box<dyn Body>,
    pub(crate) control: Arc<Control>,
    pub(crate) relay: Option<Box<dyn Channel>>,
    /// The channel to the host's proxy, where the spec allows some hosts.
    pub(crate) egress: Option<Box<dyn Channel>>,
    pub(crate) relay_address: Option<String>,
}

/// Where a sandbox's things are inside.
pub(crate) struct Inside {
    pub(crate) home: String,
    /// What every command's environment begins with.
    pub(crate) env: BTreeMap<String, String>,
    /// Name to path.
    pub(crate) assets: BTreeMap<String, String>,
}

impl ControlledSandbox {
    pub(crate) fn new(
        spec: &SandboxSpec,
        inside: Inside,
        built: Built,
        belongings: Arc<dyn Belongings>,
        ground: Box<dyn Ground>,
    ) -> Self {
        let mut env = inside.env;
        env.extend(spec.env.clone());
        Self {
            id: spec.id,
            home: inside.home,
            env,
            assets: inside.assets,
            relay_address: built.relay_address,
            relay: Mutex::new(built.relay),
            egress: Channels::new(built.egress),
            control: Mutex::new(built.control),
            life: Life::new(spec.id, belongings, built.body),
            ground,
        }
    }

    fn control(&self) -> Result<Arc<Control>, SandboxError> {
        if self.life.is_over() {
            return Err(self.gone("it was killed"));
        }
        Ok(Arc::clone(
            &self.control.lock().unwrap_or_else(PoisonError::into_inner),
        ))
    }

    /// What a snapshot will not have: names of files. Fails where programs run, which it would not have either.
    async fn unkept(&self) -> Result<Vec<String>, SandboxError> {
        let left = Arc::new(Left::default());
        let look = Command {
            argv: ["/bin/sh", "-c", LEFT].map(str::to_owned).into(),
            env: BTreeMap::from([("PATH".into(), "/usr/bin:/bin".into())]),
            clear_env: true,
            cwd: Some("/".into()),
            timeout: Some(LOOK),
            ..Command::default()
        };
        let exit = self.exec(look, Arc::clone(&left) as Arc<dyn OutputSink>).await?;
        if exit.code != 0 {
            return Err(SandboxError::Operation {
                operation: "look for",
                object: "what runs".into(),
                message: format!("exit code {}", exit.code),
                errno: None,
            });
        }
        left.unkept(self.ground.backend())
    }

    fn gone(&self, reason: &str) -> SandboxError {
        SandboxError::Gone {
            id: self.id,
            reason: reason.to_owned(),
        }
    }

    fn absolute(&self, path: &str) -> String {
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
}

#[async_trait]
impl Sandbox for ControlledSandbox {
    fn id(&self) -> SandboxId {
        self.id
    }

    fn home(&self) -> &str {
        &self.home
    }

    fn asset_path(&self, name: &str) -> Option<String> {
        self.assets.get(name).cloned()
    }

    fn relay_address(&self) -> Option<String> {
        self.relay_address.clone()
    }

    async fn start(
        &self,
        command: Command,
        output: Arc<dyn OutputSink>,
    ) -> Result<Box<dyn Process>, SandboxError> {
        let mut env = if command.clear_env {
            BTreeMap::new()
        } else {
            self.env.clone()
        };
        env.extend(command.env);
        let start = Start {
            argv: command.argv,
            env,
            cwd: command
                .cwd
                .map_or_else(|| self.home.clone(), |cwd| self.absolute(&cwd)),
            timeout_ms: command
                .timeout
                .map(|timeout| u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX)),
        };
        check_start(&start)?;
        Ok(Box::new(
            self.control()?.start(start, command.stdin, output).await?,
        ))
    }

    async fn write_file(&self, path: &str, content: Bytes, mode: u32) -> Result<(), SandboxError> {
        self.control()?
            .write_file(
                Write {
                    path: self.absolute(path),
                    mode,
                },
                content,
            )
            .await
    }

    async fn read_file(&self, path: &str, limit: u64) -> Result<Bytes, SandboxError> {
        self.control()?
            .read_file(Read {
                path: self.absolute(path),
                limit_bytes: limit,
            })
            .await
    }

    async fn exists(&self, path: &str) -> Result<bool, SandboxError> {
        self.control()?
            .exists(Exists {
                path: self.absolute(path),
            })
            .await
    }

    async fn list_files(
        &self,
        path: &str,
        max_depth: u32,
        max_files: usize,
    ) -> Result<FileList, SandboxError> {
        let list = List {
            path: self.absolute(path),
            max_depth,
            max_files: max_files as u64,
        };
        self.control()?.list_files(list).await
    }

    async fn open_relay(&self) -> Result<Box<dyn Channel>, SandboxError> {
        let channel = self.relay.lock().unwrap_or_else(PoisonError::into_inner).take();
        match channel {
            Some(channel) if !self.life.is_over() => Ok(channel),
            _ => Err(self.gone("its relay's channel was taken, or there is none")),
        }
    }

    async fn open_egress(&self) -> Result<Box<dyn Channel>, SandboxError> {
        self.egress.next(self.id).await
    }

    async fn separate(&self, fresh_directories: &[String]) -> Result<Separation, SandboxError> {
        let body = self.life.take_body().ok_or_else(|| self.gone("it was killed"))?;
        self.control()?.close("its processes were ended for verification");
        // Joined or left behind, it runs to its end.
        let _ = tokio::task::spawn_blocking(move || body.end()).await;
        let fresh: Vec<String> = fresh_directories.iter().map(|path| self.absolute(path)).collect();
        let built = self.ground.rebuild(&fresh).await?;
        *self.control.lock().unwrap_or_else(PoisonError::into_inner) = built.control;
        self.egress.put(built.egress);
        if self.life.put_body(built.body).is_err() {
            return Err(self.gone("it was killed"));
        }
        Ok(self.ground.separation())
    }

    async fn snapshot(&self, labels: &BTreeMap<String, String>) -> Result<Snapshot, SandboxError> {
        let omits = self.unkept().await?;
        let id = SandboxId::new();
        let kept = self.ground.keep(id, labels.clone()).await?;
        Ok(Snapshot::without(id, self.ground.backend(), omits, move || {
            kept.clear()
        }))
    }

    async fn relabel(&self, labels: &BTreeMap<String, String>) -> Result<(), SandboxError> {
        if self.life.is_over() {
            return Err(self.gone("it was killed"));
        }
        let (belongings, labels) = (Arc::clone(self.life.belongings()), labels.clone());
        off_the_runtime("label a lease", move || belongings.relabel(labels))
            .await?
            .map_err(|source| SandboxError::Lease { id: self.id, source })
    }

    async fn kill(&self) -> Result<(), SandboxError> {
        self.egress.end();
        if let Ok(control) = self.control() {
            control.close("it was killed");
        }
        self.life.end().await
    }
}

/// What the system would refuse in words that name nothing.
fn check_start(start: &Start) -> Result<(), SandboxError> {
    let refused = |message: &str| {
        Err(SandboxError::Operation {
            operation: "start",
            object: start.argv.first().cloned().unwrap_or_default(),
            message: message.to_owned(),
            errno: Some(libc::EINVAL),
        })
    };
    if start.argv.first().is_none_or(String::is_empty) {
        return refused("there is no program to start");
    }
    if start
        .argv
        .iter()
        .chain(start.env.values())
        .any(|text| text.contains('\0'))
        || start.cwd.contains('\0')
    {
        return refused("an argument, an environment variable or the working directory holds a zero byte");
    }
    if start
        .env
        .keys()
        .any(|name| name.is_empty() || name.contains(['=', '\0']))
    {
        return refused("an environment variable has a name that cannot be one");
    }
    Ok(())
}
