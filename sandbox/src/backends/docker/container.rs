use super::NAME;
use super::archive::{Archive, ROOT, first_file, fits};
use super::engine::{Engine, said, status};
use super::holdings::{Contained, Holdings, container_name};
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
use bollard::models::{
    ContainerCreateBody, ExecConfig, HealthConfig, HostConfig, HostConfigLogConfig, Mount, MountType,
};
use bollard::query_parameters::{
    AttachContainerOptionsBuilder, CreateContainerOptionsBuilder, DownloadFromContainerOptionsBuilder,
    StartContainerOptions, UploadToContainerOptionsBuilder,
};
use bytes::Bytes;
use dressage_wire::control::{Exists, Start};
use dressage_wire::ids::SandboxId;
use dressage_wire::reward::Separation;
use dressage_wire::task::NetworkPolicy;
use futures_util::TryStreamExt;
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio_util::io::ReaderStream;

/// Where what Dressage puts into a container is, and what an image may have of it.
pub(super) const OURS: &str = scripts::BAKED;

/// The usual home: where the home is elsewhere, a link is made from here.
const USUAL_HOME: &str = "/home/user";

/// The user and group of programs where none of the image's is asked for: one to whom no image gives files, unlike 1000.
const USER: u32 = 61_000;

/// Where programs are looked for if the image does not say.
const SEARCH_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The most that is read of a file of accounts.
const MAX_ACCOUNTS_BYTES: usize = 1 << 20;

/// Makes directories anew, of which none is another's: `HOME PATH...`, every path below the home. What is in the way is
/// renamed to `NAME.aside-N`; no link is followed. Nothing else runs meanwhile.
const FRESH: &str = r#"
umask 022
home=$1; shift
chmod u+rwx "$home" || exit 1
for path in "$@"; do
  at=$home; rest=${path#"$home"/}
  while [ -n "$rest" ]; do
    at=$at/${rest%%/*}
    case $rest in */*) rest=${rest#*/} ;; *) rest= ;; esac
    if [ -L "$at" ] || { [ -e "$at" ] && { [ -z "$rest" ] || [ ! -d "$at" ]; }; }; then
      number=1
      while [ -e "$at.aside-$number" ] || [ -L "$at.aside-$number" ]; do number=$((number + 1)); done
      mv "$at" "$at.aside-$number" || exit 1
    fi
    if [ -d "$at" ]; then chmod u+rwx "$at" || [ -w "$at" ] || exit 1; else mkdir "$at" || exit 1; fi
  done
done
"#;

/// What programs of root may do besides, for packages to be installed: no more than with files and users of the container.
const CAPABILITIES_OF_ROOT: [&str; 7] = [
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "SETGID",
    "SETUID",
];

/// The files of an image that name its users and groups; unset where they are no plain files.
pub(super) struct Accounts {
    passwd: Option<String>,
    group: Option<String>,
}

/// Who programs are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Account {
    name: String,
    user: u32,
    group: u32,
}

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
enum Bring {
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

    fn assets(&self) -> impl Iterator<Item = (String, PathBuf, String)> {
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
    fn program(&self) -> String {
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

    fn body(&self, holdings: &Holdings, bring: Bring) -> ContainerCreateBody {
        let memory = i64::try_from(self.spec.size.memory_bytes).unwrap_or(i64::MAX);
        let scratch =
            |mode: &str, part: i64| format!("rw,exec,nosuid,nodev,mode={mode},size={}", memory / part);
        // Files here count as memory: full, they must leave some to the programs, and to init. They are new each time it is
        // started, unlike what the rest of the container has.
        let tmpfs = HashMap::from([
            ("/tmp".to_owned(), scratch("1777", 2)),
            ("/var/tmp".to_owned(), scratch("1777", 8)),
            ("/run".to_owned(), scratch("0755", 8)),
        ]);
        let shown = [(self.tap_binary.clone(), self.program())]
            .into_iter()
            .chain(self.assets().map(|(_, host, inside)| (host, inside)));
        let mounts = shown
            .filter(|_| bring == Bring::Mount)
            .map(|(host, inside)| Mount {
                target: Some(inside),
                source: Some(host.to_string_lossy().into_owned()),
                typ: Some(MountType::BIND),
                read_only: Some(true),
                ..Mount::default()
            });
        let network = match self.spec.network {
            NetworkPolicy::None | NetworkPolicy::Allow(_) => "none",
            NetworkPolicy::Open => "default",
        };
        let host_config = HostConfig {
            memory: Some(memory),
            // Memory and swap together: no swap.
            memory_swap: Some(memory),
            // Not as a number of processors, of which an engine refuses more than the machine has.
            cpu_period: Some(100_000),
            cpu_quota: Some((self.spec.size.cpus * 100_000.0) as i64),
            pids_limit: Some(i64::try_from(self.spec.size.pids).unwrap_or(i64::MAX)),
            network_mode: Some(network.to_owned()),
            cap_drop: Some(vec!["ALL".to_owned()]),
            cap_add: self
                .is_root_by_name()
                .then(|| CAPABILITIES_OF_ROOT.map(str::to_owned).to_vec()),
            security_opt: Some(vec!["no-new-privileges".to_owned()]),
            tmpfs: Some(tmpfs),
            mounts: Some(mounts.collect()),
            // Init answers on its standard output; an engine would keep all of it.
            log_config: Some(HostConfigLogConfig {
                typ: Some("none".to_owned()),
                config: None,
            }),
            ..HostConfig::default()
        };
        let mut command = vec!["init".to_owned(), "--control-stdio".to_owned()];
        if !self.spec.lifetime.is_zero() {
            let lifetime_ms = u64::try_from(self.spec.lifetime.as_millis()).unwrap_or(u64::MAX);
            command.extend(["--lifetime-ms".to_owned(), lifetime_ms.to_string()]);
        }
        ContainerCreateBody {
            image: Some(self.image.id.clone()),
            hostname: Some("sandbox".to_owned()),
            user: Some(self.spec.user.clone().unwrap_or_else(|| format!("{USER}:{USER}"))),
            entrypoint: Some(vec![self.program()]),
            cmd: Some(command),
            working_dir: Some("/".to_owned()),
            open_stdin: Some(true),
            // When this process ends, so does the input of init, and with it everything.
            stdin_once: Some(true),
            attach_stdin: Some(true),
            attach_stdout: Some(true),
            attach_stderr: Some(true),
            tty: Some(false),
            // One of the image's would run beside the agent.
            healthcheck: Some(HealthConfig {
                test: Some(vec!["NONE".to_owned()]),
                ..HealthConfig::default()
            }),
            labels: Some(holdings.labels().into_iter().collect()),
            host_config: Some(host_config),
            ..ContainerCreateBody::default()
        }
    }

    /// Whether programs are root, as far as the text says that.
    fn is_root_by_name(&self) -> bool {
        matches!(self.spec.user.as_deref(), Some("root" | "0"))
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

    /// Each of `fresh` as a path below the home.
    fn below_home(&self, fresh: &[String]) -> Result<Vec<String>, SandboxError> {
        let home = Path::new(&self.spec.home);
        let below = |path: &String| {
            let below = Path::new(path)
                .strip_prefix(home)
                .or_else(|_| Path::new(path).strip_prefix(USUAL_HOME))
                .ok()?;
            let plain = below
                .components()
                .all(|part| matches!(part, Component::Normal(_)));
            let there = below.components().next().is_some();
            (plain && there).then(|| home.join(below).to_string_lossy().into_owned())
        };
        fresh
            .iter()
            .map(|path| {
                below(path).ok_or_else(|| SandboxError::Unsupported {
                    backend: NAME,
                    what: format!("a fresh directory outside of the home, at `{path}`"),
                })
            })
            .collect()
    }

    /// Makes directories anew, before anything else runs.
    async fn make_fresh(&self, control: &Arc<Control>, fresh: Vec<String>) -> Result<(), SandboxError> {
        let failed = |source| SandboxError::Create {
            step: "make directories anew".into(),
            source: Some(source),
        };
        let script = [
            "bash",
            "--noprofile",
            "--norc",
            "-c",
            FRESH,
            "dressage",
            &self.spec.home,
        ];
        let start = Start {
            argv: script
                .iter()
                .map(|word| (*word).to_owned())
                .chain(fresh)
                .collect(),
            env: BTreeMap::from([("PATH".to_owned(), SEARCH_PATH.to_owned())]),
            cwd: "/".to_owned(),
            timeout_ms: Some(u64::try_from(Duration::from_secs(60).as_millis()).unwrap_or(u64::MAX)),
        };
        let said = Arc::new(super::stream::Complaints::default());
        let mut process = control.start(start, Bytes::new(), said.clone()).await?;
        let exit = crate::Process::wait(&mut process).await?;
        if exit.code == 0 {
            Ok(())
        } else {
            Err(failed(io::Error::other(said.text())))
        }
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

impl Accounts {
    /// Who a user is, given by name or number; our own if none is given. `None` where a name is nobody's.
    fn account(&self, user: Option<&str>) -> Option<Account> {
        let own = USER.to_string();
        if let Some(found) = self.line_of(user.unwrap_or(&own)) {
            return Some(found);
        }
        let number = user.unwrap_or(&own).parse().ok()?;
        Some(Account {
            name: "user".into(),
            user: number,
            // As engines have it for a number that is nobody's.
            group: if user.is_some() { 0 } else { USER },
        })
    }

    /// The line of a name or number. Ours is in a group of its own whatever that says.
    fn line_of(&self, user: &str) -> Option<Account> {
        let mut lines = self.passwd.as_deref()?.lines();
        lines.find_map(|line| {
            let fields: Vec<&str> = line.split(':').collect();
            let &[name, _, number, group, ..] = fields.as_slice() else {
                return None;
            };
            let account = Account {
                name: name.to_owned(),
                user: number.parse().ok()?,
                group: group.parse().ok()?,
            };
            (name == user || number == user).then_some(account)
        })
    }
}

/// Whether an error of the engine names a program.
fn is_about(error: &SandboxError, program: &str) -> bool {
    let source = std::error::Error::source(error);
    error.to_string().contains(program) || source.is_some_and(|source| source.to_string().contains(program))
}

/// Whether a file of accounts has a number.
fn names(file: &str, number: u32) -> bool {
    let number = number.to_string();
    file.lines().any(|line| line.split(':').nth(2) == Some(&number))
}

/// Folders that a home can be neither, nor be in, nor hold.
const TAKEN: [&str; 14] = [
    "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/proc", "/dev", "/sys", "/tmp",
    "/run", "/var",
];

/// Whether a sandbox can have its home there.
pub(super) fn may_be_home(home: &str) -> bool {
    let plain = home.starts_with('/')
        && fits(home)
        && !home.contains(['\0', ':', '\n'])
        && home
            .split('/')
            .skip(1)
            .all(|part| !part.is_empty() && part != "." && part != "..");
    plain
        && !TAKEN
            .iter()
            .chain([&OURS])
            .any(|taken| Path::new(home).starts_with(taken) || Path::new(taken).starts_with(home))
        && (home == USUAL_HOME
            || !Path::new(USUAL_HOME).starts_with(home) && !Path::new(home).starts_with(USUAL_HOME))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_found_by_name_and_by_number_and_ours_needs_no_line() {
        let accounts = Accounts {
            passwd: Some(
                "root:x:0:0:root:/root:/bin/bash\nnode:x:1001:1002::/home/node:/bin/sh\nbroken".into(),
            ),
            group: None,
        };
        let of = |user| {
            accounts
                .account(user)
                .map(|found| (found.name, found.user, found.group))
        };
        assert_eq!(of(Some("root")), Some(("root".into(), 0, 0)));
        assert_eq!(of(Some("node")), Some(("node".into(), 1001, 1002)));
        assert_eq!(of(Some("1001")), Some(("node".into(), 1001, 1002)));
        assert_eq!(of(Some("77")), Some(("user".into(), 77, 0)));
        assert_eq!(of(Some("nobody")), None);
        assert_eq!(of(None), Some(("user".into(), 61_000, 61_000)));
    }

    #[test]
    fn a_home_is_neither_the_systems_nor_above_it() {
        for home in ["/home/user", "/root", "/workspace/agent", "/srv/home"] {
            assert!(may_be_home(home), "{home}");
        }
        for home in [
            "/",
            "",
            "home",
            "/etc",
            "/usr/x",
            "/opt",
            "/opt/dressage/x",
            "/tmp/x",
            "/home",
            "/home/user/x",
            "/a/../b",
        ] {
            assert!(!may_be_home(home), "{home}");
        }
    }
}
