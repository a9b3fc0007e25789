use super::NAME;
use super::accounts::{Account, Accounts, USER, names};
use super::archive::{Archive, ROOT, first_file};
use super::engine::{Engine, said, status};
use super::holdings::{Contained, Holdings, container_name};
use super::home::USUAL_HOME;
use super::image::Image;
use super::parcels::Parcels;
use super::stream::Output;
use crate::control::Control;
use crate::controlled::{Built, Ground, Inside};
use crate::egress;
use crate::launch::READY_TIMEOUT;
use crate::lease::Owner;
use crate::life::Belongings;
use crate::remote::scripts;
use crate::{BackendConfig, Channel, SandboxError, SandboxSpec};
use async_trait::async_trait;
use bollard::models::ExecConfig;
use bollard::query_parameters::{
    AttachContainerOptionsBuilder, CreateContainerOptionsBuilder, DownloadFromContainerOptionsBuilder,
    StartContainerOptions, UploadToContainerOptionsBuilder,
};
use bytes::Bytes;
use dressage_wire::control::Exists;
use dressage_wire::ids::SandboxId;
use dressage_wire::reward::Separation;
use futures_util::TryStreamExt;
use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use tokio_util::io::ReaderStream;

/// Where what Dressage puts into a container is, and what an image may have of it.
pub(super) const OURS: &str = scripts::BAKED;

/// Where programs are looked for if the image does not say.
pub(super) const SEARCH_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The most that is read of a file of accounts.
const MAX_ACCOUNTS_BYTES: usize = 1 << 20;

/// A container with a sandbox in it.
pub(super) struct Container {
    pub(super) engine: Engine,
    pub(super) name: String,
    pub(super) spec: SandboxSpec,
    pub(super) image: Arc<Image>,
    pub(super) tap_binary: PathBuf,
    pub(super) cache_dir: PathBuf,
    pub(super) owner: Arc<Owner>,
    /// What is sent to an engine that does not see this machine; unset where it does.
    pub(super) parcels: tokio::sync::OnceCell<Parcels>,
    /// Known once it is made.
    account: OnceLock<Account>,
}

/// How what is on this machine comes into a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bring {
    /// The engine shows it, read-only: it sees the files of this machine.
    Mount,
    /// It is sent.
    Copy,
}

/// What is put into a container.
pub(super) enum Content {
    /// An archive of a few entries.
    Small(Bytes),
    /// A file that is one.
    File(tokio::fs::File),
}

/// Whether a relay listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Relay {
    /// On the port of the spec, if that has one.
    Listens,
    /// Not at all.
    IsAbsent,
}

impl Container {
    pub(super) fn new(engine: &Engine, spec: SandboxSpec, image: Arc<Image>, config: &BackendConfig) -> Self {
        Self {
            engine: engine.clone(),
            name: container_name(spec.id),
            spec,
            image,
            tap_binary: config.tap_binary.clone(),
            cache_dir: config.cache_dir.clone(),
            owner: Arc::clone(&config.owner),
            parcels: tokio::sync::OnceCell::new(),
            account: OnceLock::new(),
        }
    }

    /// Where things are inside.
    pub(super) fn inside(&self) -> Inside {
        let mut env = BTreeMap::from(
            [("LANG", "C.UTF-8"), ("PATH", SEARCH_PATH), ("SHELL", "/bin/bash")]
                .map(|(name, value)| (name.to_owned(), value.to_owned())),
        );
        env.extend(self.image.env.clone());
        let user = self
            .account
            .get()
            .map_or("user", |account| &account.name)
            .to_owned();
        for (name, value) in [("HOME", &self.spec.home), ("LOGNAME", &user), ("USER", &user)] {
            env.insert(name.into(), value.clone());
        }
        env.extend(egress::environment(&self.spec.network));
        Inside {
            home: self.spec.home.clone(),
            env,
            assets: self
                .assets()
                .map(|(name, _, inside)| (name, inside))
                .collect::<BTreeMap<_, _>>(),
        }
    }

    pub(super) fn assets(&self) -> impl Iterator<Item = (String, PathBuf, String)> {
        self.spec.assets.iter().enumerate().map(|(index, asset)| {
            let sent = self.parcels.get().and_then(|parcels| parcels.assets.get(index));
            (
                asset.name.clone(),
                asset.host_path.clone(),
                sent.map_or_else(
                    || format!("{OURS}/assets/{}", asset.name),
                    |packed| packed.below(OURS),
                ),
            )
        })
    }

    /// Has the engine make it, and starts init and relay in it.
    pub(super) async fn boot(&self, holdings: &Arc<Holdings>) -> Result<Built, SandboxError> {
        let bring = self.make(holdings, Bring::Mount).await?;
        let built = match self.start(Relay::Listens).await {
            // Podman makes a folder where it does not see what it is to mount, and then cannot run it.
            Err(error) if bring == Bring::Mount && is_about(&error, &self.program()) => {
                self.engine.remove(&self.name).await?;
                self.make(holdings, Bring::Copy).await?;
                self.start(Relay::Listens).await?
            }
            started => started?,
        };
        self.send_assets().await?;
        Ok(built)
    }

    /// Our own program in it.
    pub(super) fn program(&self) -> String {
        self.parcels.get().map_or_else(
            || format!("{OURS}/dressage-tap"),
            |parcels| parcels.tap.below(OURS),
        )
    }

    /// Has the engine make it, and puts inside what belongs there, and says how. Nothing runs yet.
    async fn make(&self, holdings: &Arc<Holdings>, mut bring: Bring) -> Result<Bring, SandboxError> {
        let client = self.engine.client().await?;
        let created = loop {
            if bring == Bring::Copy {
                self.pack().await?;
            }
            holdings.asking();
            let options = CreateContainerOptionsBuilder::new().name(&self.name).build();
            match client
                .create_container(Some(options), self.body(holdings, bring))
                .await
            {
                Ok(created) => break created,
                Err(error) => {
                    if status(&error).is_some() {
                        holdings.refused();
                    }
                    let text = said(&error);
                    // Told of paths that are on this machine: then the engine is on another, or sees other files.
                    let unseen =
                        text.contains("bind source path does not exist") || text.contains("no such file");
                    if bring == Bring::Mount && unseen {
                        bring = Bring::Copy;
                        continue;
                    }
                    return Err(self.engine.failed("make its container", error));
                }
            }
        };
        let held = Arc::clone(holdings);
        super::super::off_the_runtime("lease a sandbox", move || held.made(&created.id))
            .await?
            .map_err(|source| SandboxError::Lease {
                id: self.spec.id,
                source,
            })?;
        let accounts = self
            .image
            .accounts
            .get_or_try_init(|| self.read_accounts())
            .await?;
        let account = accounts.account(self.spec.user.as_deref()).ok_or_else(|| {
            let user = self.spec.user.as_deref().unwrap_or_default();
            SandboxError::Unavailable {
                backend: NAME,
                reason: format!("image `{}` has no user `{user}`", self.image.name),
                remedy: Some("name one of its /etc/passwd, or a number"),
            }
        })?;
        let skeleton = self.skeleton(accounts, &account, bring);
        // Made once in its life.
        let _ = self.account.set(account);
        self.upload("/", Content::Small(skeleton)).await?;
        if bring == Bring::Copy {
            // It is no longer than an answer to whether the image has it would be.
            self.send(&self.pack().await?.tap).await?;
        }
        Ok(bring)
    }

    /// The home, the user's name, and folders for what is sent.
    fn skeleton(&self, accounts: &Accounts, account: &Account, bring: Bring) -> Bytes {
        let mut archive = Archive::default();
        let home = &self.spec.home;
        // In a snapshot they are, as setup left them.
        if self.spec.snapshot.is_none() {
            archive.directory(home, 0o755, (account.user, account.group));
            if home != USUAL_HOME {
                archive.link(USUAL_HOME, home);
            }
        }
        if self.spec.user.is_none() && accounts.line_of(&USER.to_string()).is_none() {
            let ended = |text: &str| {
                let end = if text.is_empty() || text.ends_with('\n') {
                    ""
                } else {
                    "\n"
                };
                format!("{text}{end}")
            };
            if let Some(passwd) = &accounts.passwd {
                let line = format!("{}user:x:{USER}:{USER}::{home}:/bin/bash\n", ended(passwd));
                archive.file("/etc/passwd", 0o644, line.as_bytes());
            }
            if let Some(group) = accounts.group.as_ref().filter(|group| !names(group, USER)) {
                let line = format!("{}user:x:{USER}:\n", ended(group));
                archive.file("/etc/group", 0o644, line.as_bytes());
            }
        }
        if bring == Bring::Copy {
            archive.directory(OURS, 0o755, ROOT);
        }
        archive.finish()
    }

    pub(super) async fn upload(&self, place: &str, archive: Content) -> Result<(), SandboxError> {
        let options = UploadToContainerOptionsBuilder::new()
            .path(place)
            .no_overwrite_dir_non_dir("true")
            .copy_uidgid("false")
            .build();
        let archive = match archive {
            Content::Small(bytes) => bollard::body_full(bytes),
            Content::File(file) => bollard::body_try_stream(ReaderStream::with_capacity(file, 64 << 10)),
        };
        self.engine
            .client()
            .await?
            .upload_to_container(&self.name, Some(options), archive)
            .await
            .map_err(|error| self.engine.failed("put files into its container", error))
    }

    async fn read_accounts(&self) -> Result<Accounts, SandboxError> {
        Ok(Accounts {
            passwd: self.read_file("/etc/passwd").await?,
            group: self.read_file("/etc/group").await?,
        })
    }

    /// A text of the image, empty where there is none; unset where it is no plain file.
    async fn read_file(&self, path: &str) -> Result<Option<String>, SandboxError> {
        let options = DownloadFromContainerOptionsBuilder::new().path(path).build();
        let client = self.engine.client().await?;
        let mut archive = Vec::new();
        let mut pieces = client.download_from_container(&self.name, Some(options));
        loop {
            match pieces.try_next().await {
                Ok(Some(piece)) if archive.len() < MAX_ACCOUNTS_BYTES => archive.extend_from_slice(&piece),
                Ok(_) => break,
                Err(error) if status(&error) == Some(404) => return Ok(Some(String::new())),
                Err(error) => return Err(self.engine.failed("read its image's accounts", error)),
            }
        }
        Ok(first_file(&archive).map(|content| String::from_utf8_lossy(content).into_owned()))
    }

    /// Starts init in it, and the relay, and waits until both are ready.
    async fn start(&self, relay: Relay) -> Result<Built, SandboxError> {
        let failed = |source| SandboxError::Create {
            step: "start its init".into(),
            source: Some(source),
        };
        let client = self.engine.client().await?;
        let options = AttachContainerOptionsBuilder::new()
            .stream(true)
            .stdin(true)
            .stdout(true)
            .stderr(true)
            .build();
        let attached = client
            .attach_container(&self.name, Some(options))
            .await
            .map_err(|error| self.engine.failed("attach to its container", error))?;
        client
            .start_container(&self.name, None::<StartContainerOptions>)
            .await
            .map_err(|error| self.engine.failed("start its container", error))?;
        let output = Output::new(attached.output);
        let complaints = output.complaints();
        let connecting = Control::connect(self.spec.id, output, attached.input);
        let (control, _) = match tokio::time::timeout(READY_TIMEOUT, connecting).await {
            Ok(Ok(connected)) => connected,
            Ok(Err(error)) => {
                let said = complaints.text();
                let said = if said.is_empty() { error.to_string() } else { said };
                return Err(failed(io::Error::other(said)));
            }
            Err(_) => return Err(failed(io::Error::from(io::ErrorKind::TimedOut))),
        };
        let port = self.spec.relay_port.filter(|_| relay == Relay::Listens);
        let (relay, relay_address) = match port {
            Some(port) => {
                let address = format!("127.0.0.1:{port}");
                (Some(self.start_relay(&address).await?), Some(address))
            }
            None => (None, None),
        };
        let egress = match egress::address(&self.spec.network) {
            Some(address) => Some(self.start_relay(&address.to_string()).await?),
            None => None,
        };
        Ok(Built {
            body: Box::new(Contained {
                engine: self.engine.clone(),
                container: self.name.clone(),
            }),
            control: Arc::new(control),
            relay,
            egress,
            relay_address,
        })
    }

    /// Starts a relay as another user than that of programs, who can neither end it nor look into it.
    async fn start_relay(&self, address: &str) -> Result<Box<dyn Channel>, SandboxError> {
        let failed = |source| SandboxError::Create {
            step: "start its relay".into(),
            source: Some(source),
        };
        let client = self.engine.client().await?;
        let program = self.program();
        let argv = [program.as_str(), "relay", "--listen", address, "--stdio"];
        let exec = ExecConfig {
            attach_stdin: Some(true),
            attach_stdout: Some(true),
            attach_stderr: Some(true),
            tty: Some(false),
            user: Some("0:0".to_owned()),
            cmd: Some(argv.map(str::to_owned).to_vec()),
            ..ExecConfig::default()
        };
        let refused = |error| self.engine.failed("start its relay", error);
        let created = client.create_exec(&self.name, exec).await.map_err(refused)?;
        let options = bollard::exec::StartExecOptions {
            output_capacity: Some(64 << 10),
            ..Default::default()
        };
        match client
            .start_exec(&created.id, Some(options))
            .await
            .map_err(refused)?
        {
            bollard::exec::StartExecResults::Attached { output, input } => {
                let mut output = Output::new(output);
                tokio::time::timeout(READY_TIMEOUT, output.ready())
                    .await
                    .unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut)))
                    .map_err(failed)?;
                Ok(Box::new(tokio::io::join(output, input)))
            }
            bollard::exec::StartExecResults::Detached => {
                Err(failed(io::Error::from(io::ErrorKind::NotConnected)))
            }
        }
    }

    /// Sees that what stages need is in the image. Looked for once in each.
    pub(super) async fn check(&self, built: &Arc<Control>) -> Result<(), SandboxError> {
        let looked = self.image.fit.get_or_try_init(|| async {
            let env = self.inside().env;
            for folder in env.get("PATH").into_iter().flat_map(|path| path.split(':')) {
                let path = format!("{folder}/bash");
                if built.exists(Exists { path }).await? {
                    return Ok(());
                }
            }
            Err(SandboxError::Unavailable {
                backend: NAME,
                reason: format!(
                    "image `{}` has no bash, which commands are run by",
                    self.image.name
                ),
                remedy: Some("install bash in the image"),
            })
        });
        looked.await.map(|_| ())
    }
}

#[async_trait]
impl Ground for Container {
    async fn rebuild(&self, fresh: &[String]) -> Result<Built, SandboxError> {
        let fresh = self.below_home(fresh)?;
        let built = self.start(Relay::IsAbsent).await?;
        self.make_fresh(&built.control, fresh).await?;
        Ok(built)
    }

    /// Every namespace is new, and what is not the user's own was never the agent's to change; but everything is root's.
    fn separation(&self) -> Separation {
        match self.account.get() {
            Some(account) if account.user != 0 => Separation::Namespace,
            _ => Separation::None,
        }
    }

    fn backend(&self) -> &'static str {
        NAME
    }

    async fn keep(
        &self,
        id: SandboxId,
        labels: BTreeMap<String, String>,
    ) -> Result<Arc<dyn Belongings>, SandboxError> {
        self.commit(id, labels).await
    }
}

/// Whether an error of the engine names a program.
fn is_about(error: &SandboxError, program: &str) -> bool {
    let source = std::error::Error::source(error);
    error.to_string().contains(program) || source.is_some_and(|source| source.to_string().contains(program))
}
