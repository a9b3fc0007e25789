use super::NAME;
use super::check::Machine;
use super::network;
use super::skeleton::HOSTNAME;
use super::system::{Arguments, OURS, SEARCH_PATH, USUAL_HOME, has_program, show_system};
use crate::backends::off_the_runtime;
use crate::cgroup::{Controller, Hierarchies};
use crate::controlled::{Built, Ground, Inside};
use crate::egress;
use crate::estate::Estate;
use crate::fresh::make_fresh;
use crate::launch::{OwnLimits, Wiring};
use crate::life::Belongings;
use crate::processes::Ending;
use crate::removal::through;
use crate::spawn::OwnedChild;
use crate::{SandboxError, SandboxSpec};
use async_trait::async_trait;
use dressage_wire::ids::SandboxId;
use dressage_wire::reward::Separation;
use dressage_wire::task::NetworkPolicy;
use nix::fcntl::OFlag;
use nix::unistd::pipe2;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;

/// How long bubblewrap may take to make its namespaces.
const NAMESPACES_TIMEOUT: Duration = Duration::from_secs(30);

/// More than what bubblewrap says about itself; what comes after is not looked at.
const MAX_INFO_BYTES: usize = 4096;

/// A sandbox's namespaces, made as often as needed over one home.
pub(super) struct Bubble {
    machine: Arc<Machine>,
    spec: SandboxSpec,
    estate: Arc<Estate>,
    limits: OwnLimits,
    until: Option<Instant>,
}

/// Whether the relay listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Relay {
    /// On the port of the spec, if that has one.
    Listens,
    /// Not at all.
    IsAbsent,
}

impl Bubble {
    pub(super) fn new(
        machine: Arc<Machine>,
        spec: SandboxSpec,
        estate: Arc<Estate>,
        hierarchies: &Hierarchies,
    ) -> Self {
        let own = |controller, value| (!hierarchies.limits(controller)).then_some(value);
        let limits = OwnLimits {
            processes: own(Controller::Pids, spec.size.pids),
            data_bytes: own(Controller::Memory, spec.size.memory_bytes),
        };
        let until = (!spec.lifetime.is_zero())
            .then(|| Instant::now().checked_add(spec.lifetime))
            .flatten();
        Self {
            machine,
            spec,
            estate,
            limits,
            until,
        }
    }

    /// Where things are inside.
    pub(super) fn inside(&self) -> Inside {
        let env = [
            ("HOME", self.spec.home.as_str()),
            ("LANG", "C.UTF-8"),
            ("LOGNAME", "user"),
            ("PATH", SEARCH_PATH),
            ("SHELL", "/bin/bash"),
            ("USER", "user"),
        ];
        Inside {
            home: self.spec.home.clone(),
            env: env
                .into_iter()
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .chain(egress::environment(&self.spec.network))
                .collect(),
            assets: self
                .assets()
                .map(|(name, _, inside)| (name, inside))
                .collect::<BTreeMap<_, _>>(),
        }
    }

    fn assets(&self) -> impl Iterator<Item = (String, PathBuf, String)> {
        self.spec.assets.iter().map(|asset| {
            (
                asset.name.clone(),
                asset.host_path.clone(),
                format!("{OURS}/assets/{}", asset.name),
            )
        })
    }

    /// Makes the namespaces with an init in them; each of `fresh` is a new folder in memory.
    pub(super) async fn build(&self, fresh: &[PathBuf], relay: Relay) -> Result<Built, SandboxError> {
        let failed = |step: &'static str| {
            move |source: io::Error| SandboxError::Create {
                step: step.to_owned(),
                source: Some(source),
            }
        };
        let listen = self
            .spec
            .relay_port
            .filter(|_| relay == Relay::Listens)
            .map(|port| SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port));
        let left = self.until.map(|until| {
            until
                .saturating_duration_since(Instant::now())
                .max(Duration::from_millis(1))
        });
        let egress = egress::address(&self.spec.network);
        let mut wiring =
            Wiring::new(listen, egress, left, self.limits).map_err(failed("connect its init"))?;
        let (info, their_info) = info_pipe().map_err(failed("make a pipe"))?;
        let (their_gate, gate) = pipe2(OFlag::O_CLOEXEC)
            .map_err(io::Error::from)
            .map_err(failed("make a pipe"))?;
        let open = self.spec.network == NetworkPolicy::Open;

        let mut command = Command::new(&self.machine.bubblewrap);
        command
            .args(self.arguments(fresh).0)
            .arg("--info-fd")
            .arg(their_info.as_raw_fd().to_string());
        let mut inherited = vec![their_info];
        if open {
            command.arg("--block-fd").arg(their_gate.as_raw_fd().to_string());
            inherited.push(their_gate);
        }
        command
            .arg("--")
            .arg(format!("{OURS}/dressage-tap"))
            .args(wiring.arguments());
        let mut bubble = wiring
            .start(command, &self.estate, inherited)
            .await
            .map_err(failed("start bubblewrap"))?;
        let init = first_process(info, &mut bubble)
            .await
            .map_err(failed("make its namespaces"))?;
        let outermost = bubble.pid();
        let mut body = wiring
            .body(init, Ending::WithInit, bubble, &self.estate)
            .map_err(failed("make its namespaces"))?;
        if open {
            let connected =
                network::connect(&self.machine.network, &self.machine.cache_dir, init, &self.estate)
                    .await
                    .map_err(failed("open its network"))?;
            body.add(connected);
            nix::unistd::write(&gate, b"0")
                .map_err(io::Error::from)
                .map_err(failed("open its network"))?;
        }
        let built = wiring.connect(self.spec.id, body).await?;
        let pids: Vec<i32> = outermost.into_iter().chain([init]).collect();
        self.estate
            .name_processes(&pids)
            .map_err(|source| SandboxError::Lease {
                id: self.spec.id,
                source,
            })?;
        Ok(built)
    }

    fn arguments(&self, fresh: &[PathBuf]) -> Arguments {
        let mut arguments = Arguments::default();
        arguments.add([
            "--unshare-user",
            "--unshare-ipc",
            "--unshare-pid",
            "--unshare-net",
            "--unshare-uts",
        ]);
        arguments.add([
            "--unshare-cgroup",
            "--die-with-parent",
            "--new-session",
            "--as-pid-1",
        ]);
        if self.machine.forbids_user_namespaces() {
            arguments.add(["--disable-userns"]);
        }
        arguments.add([
            "--cap-drop",
            "ALL",
            "--uid",
            "1000",
            "--gid",
            "1000",
            "--hostname",
            HOSTNAME,
            "--clearenv",
        ]);
        let memory = self.spec.size.memory_bytes;
        show_system(
            &mut arguments,
            &self.machine.skeleton,
            self.spec.network == NetworkPolicy::Open,
        );
        arguments.add(["--proc", "/proc", "--dev", "/dev"]);
        // Files here count as memory: full, they must leave some to the programs, and to init.
        arguments.scratch("/tmp", "1777", memory / 2);
        arguments.scratch("/var/tmp", "1777", memory / 8);
        arguments.scratch("/run", "0755", memory / 8);
        arguments.show(&self.machine.tap_binary, &format!("{OURS}/dressage-tap"));
        if has_program("python3") && !has_program("python") {
            arguments.add(["--symlink", "/usr/bin/python3", &format!("{OURS}/bin/python")]);
        }
        if let Some(ripgrep) = &self.machine.ripgrep {
            arguments.show(ripgrep, &format!("{OURS}/bin/rg"));
        }
        for (_, host, inside) in self.assets() {
            arguments.show(&host, &inside);
        }
        arguments.add(["--bind"]);
        arguments.0.push(self.estate.home().into());
        arguments.add([&self.spec.home]);
        if self.spec.home != USUAL_HOME {
            arguments.add(["--symlink", &self.spec.home, USUAL_HOME]);
        }
        for folder in fresh {
            arguments.add(["--perms", "0755", "--size", &(memory / 8).to_string(), "--tmpfs"]);
            arguments.0.push(folder.into());
        }
        arguments.add(["--remount-ro", "/", "--chdir", "/"]);
        arguments
    }

    /// Where each of `fresh` is inside, without links, once a folder to mount it on is there.
    fn prepare(&self, fresh: &[String]) -> Result<Vec<PathBuf>, SandboxError> {
        let home = Path::new(&self.spec.home);
        fresh
            .iter()
            .map(|path| {
                let below = Path::new(path)
                    .strip_prefix(home)
                    .or_else(|_| Path::new(path).strip_prefix(USUAL_HOME))
                    .map_err(|_| SandboxError::Unsupported {
                        backend: NAME,
                        what: format!("a fresh directory outside of the home, at `{path}`"),
                    })?;
                make_fresh(self.estate.home(), below, self.estate.uid()).map_err(|source| {
                    SandboxError::Create {
                        step: format!("make `{path}` anew"),
                        source: Some(source),
                    }
                })?;
                Ok(home.join(below))
            })
            .collect()
    }
}

#[async_trait]
impl Ground for Bubble {
    async fn rebuild(&self, fresh: &[String]) -> Result<Built, SandboxError> {
        // A few system calls on a local disk: not worth a thread.
        let fresh = self.prepare(fresh)?;
        self.build(&fresh, Relay::IsAbsent).await
    }

    fn separation(&self) -> Separation {
        Separation::Namespace
    }

    fn backend(&self) -> &'static str {
        NAME
    }

    async fn keep(
        &self,
        id: SandboxId,
        labels: BTreeMap<String, String>,
    ) -> Result<Arc<dyn Belongings>, SandboxError> {
        let (machine, estate) = (Arc::clone(&self.machine), Arc::clone(&self.estate));
        off_the_runtime("keep its home", move || {
            let kept = estate.for_snapshot(id, labels)?;
            machine.copy_home(estate.home(), &kept)?;
            Ok::<_, SandboxError>(Arc::new(kept) as Arc<dyn Belongings>)
        })
        .await?
    }
}

/// What bubblewrap tells about itself, and where it writes that. It gets a reading end as well: writing to a pipe that nobody
/// reads, because this process was killed, would end it, between making its own child and telling that to go on; the child
/// would wait for ever. As it is both go on, and find out as soon as init looks for its control connection.
fn info_pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let (ours, theirs) = pipe2(OFlag::O_CLOEXEC)?;
    let both_ends = File::options()
        .read(true)
        .write(true)
        .open(through(theirs.as_fd()))?;
    Ok((ours, both_ends.into()))
}

#[derive(Deserialize)]
struct Info {
    #[serde(rename = "child-pid")]
    child_pid: i32,
}

/// The number of the first process in the new namespaces, which bubblewrap tells once they are made.
async fn first_process(info: OwnedFd, bubble: &mut OwnedChild) -> io::Result<i32> {
    nix::fcntl::fcntl(&info, nix::fcntl::FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    let mut info = pipe::Receiver::from_owned_fd(info)?;
    let mut text = Vec::new();
    let told = tokio::time::timeout(NAMESPACES_TIMEOUT, async {
        loop {
            if let Ok(info) = serde_json::from_slice::<Info>(&text) {
                return Ok(info.child_pid);
            }
            if info.read_buf(&mut text).await? == 0 || text.len() > MAX_INFO_BYTES {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof));
            }
        }
    })
    .await
    .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?;
    told.map_err(|error| {
        let complaints = bubble.complaints();
        if complaints.is_empty() {
            error
        } else {
            io::Error::other(complaints)
        }
    })
}
