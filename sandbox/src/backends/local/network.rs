use super::skeleton::NAME_SERVER;
use crate::estate::Estate;
use crate::kernel::{ChildSetup, Death, Replaced, owning_user_namespace};
use crate::removal::through;
use crate::spawn::{Launch, OwnedChild, spawn};
use nix::errno::Errno;
use nix::sys::stat::{Mode, SFlag, mknod};
use nix::unistd::{AccessFlags, access};
use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What helpers make the network's interface with.
const TUNNEL_DEVICE: &str = "/dev/net/tun";

/// How long a helper may take to bring up the network.
const UP_TIMEOUT: Duration = Duration::from_secs(10);

/// Between two looks whether it is up.
const UP_PAUSE: Duration = Duration::from_millis(3);

/// A program that connects a network namespace to the outside without privileges.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Helper {
    /// Of the package passt.
    Pasta(PathBuf),
    /// Of the package slirp4netns.
    Slirp4netns(PathBuf),
}

impl Helper {
    /// Those that are installed, the better one first.
    pub(super) fn find() -> Vec<Self> {
        let find = |name: &str| {
            let places = ["/usr/bin", "/usr/local/bin"];
            places
                .iter()
                .map(|folder| Path::new(folder).join(name))
                .find(|path| path.exists())
        };
        find("pasta")
            .map(Self::Pasta)
            .into_iter()
            .chain(find("slirp4netns").map(Self::Slirp4netns))
            .collect()
    }

    /// For people.
    pub(super) fn describe(&self) -> String {
        let (Self::Pasta(path) | Self::Slirp4netns(path)) = self;
        path.display().to_string()
    }

    /// The command that connects a network namespace, and never the machine's loopback.
    fn command(&self, user_namespace: BorrowedFd<'_>, network_namespace: BorrowedFd<'_>) -> Command {
        let user_namespace = through(user_namespace);
        let network_namespace = through(network_namespace);
        match self {
            Self::Pasta(path) => {
                let mut command = Command::new(path);
                command
                    .args(["--foreground", "--quiet", "--config-net", "--no-map-gw"])
                    // No port is forwarded, in neither direction: by default all of them are.
                    .args(["-t", "none", "-u", "none", "-T", "none", "-U", "none"])
                    .args(["--dns-forward", NAME_SERVER, "--no-dhcp", "--no-dhcpv6"])
                    .args(["--userns", &user_namespace, "--netns", &network_namespace]);
                command
            }
            Self::Slirp4netns(path) => {
                let mut command = Command::new(path);
                command
                    .args(["--configure", "--mtu=65520", "--disable-host-loopback"])
                    .args([
                        format!("--userns-path={user_namespace}").as_str(),
                        "--netns-type=path",
                    ])
                    .args([network_namespace.as_str(), "tap0"]);
                command
            }
        }
    }
}

/// Connects a sandbox whose first process waits to go on, with the first helper that can. The helper ends with what is
/// returned, and with this process.
pub(super) async fn connect(
    helpers: &[Helper],
    cache_dir: &Path,
    init: i32,
    estate: &Arc<Estate>,
) -> io::Result<OwnedChild> {
    let mut failure = io::Error::from(io::ErrorKind::NotFound);
    for helper in helpers {
        match connect_with(helper, cache_dir, init, estate).await {
            Ok(child) => return Ok(child),
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

async fn connect_with(
    helper: &Helper,
    cache_dir: &Path,
    init: i32,
    estate: &Arc<Estate>,
) -> io::Result<OwnedChild> {
    // By descriptor: the first process may already be in a user namespace further in, which does not own the network.
    let network = OwnedFd::from(File::open(format!("/proc/{init}/ns/net"))?);
    let user = owning_user_namespace(network.as_fd())?;
    let mut command = helper.command(user.as_fd(), network.as_fd());
    command.env_clear();
    let setup = ChildSetup {
        inherited: vec![user, network],
        cgroups: estate.entrances()?,
        identity: estate.uid(),
        replaced: tunnel_device(cache_dir)?,
        death: Death::WithParent,
    };
    let mut child = spawn(Launch {
        command,
        setup,
        holds: Box::new(Arc::clone(estate)),
    })
    .await?;
    let deadline = Instant::now() + UP_TIMEOUT;
    loop {
        if is_up(init) {
            return Ok(child);
        }
        if child.has_ended() || Instant::now() > deadline {
            let complaints = child.complaints();
            return Err(io::Error::other(format!(
                "its helper did not bring it up: {complaints}"
            )));
        }
        tokio::time::sleep(UP_PAUSE).await;
    }
}

/// Why networks cannot be opened here.
#[derive(Clone, Copy, Debug)]
pub(super) struct Obstacle {
    pub(super) reason: &'static str,
    pub(super) remedy: &'static str,
}

/// Why no helper can work for this user; `None` where one can.
pub(super) fn obstacle(helpers: &[Helper]) -> Option<Obstacle> {
    if helpers.is_empty() {
        return Some(Obstacle {
            reason: "an open network needs pasta or slirp4netns, and neither is installed",
            remedy: "install one of them (apt-get install passt), or use the network `none`",
        });
    }
    let may_open = AccessFlags::R_OK | AccessFlags::W_OK;
    if !nix::unistd::geteuid().is_root() && access(TUNNEL_DEVICE, may_open).is_err() {
        return Some(Obstacle {
            reason: "an open network needs /dev/net/tun, which this user may not open",
            remedy: "let this user open it (chmod 666 /dev/net/tun), or use the network `none`",
        });
    }
    None
}

/// The device as others may open it, where this machine gives it to root alone and root's helpers run as others. Opening it
/// grants nothing: what counts is the network namespace that it is used in.
fn tunnel_device(cache_dir: &Path) -> io::Result<Option<Replaced>> {
    let metadata = std::fs::metadata(TUNNEL_DEVICE)?;
    if !nix::unistd::geteuid().is_root() || metadata.mode() & 0o006 == 0o006 {
        return Ok(None);
    }
    let node = cache_dir.join("local").join("tun");
    match mknod(
        &node,
        SFlag::S_IFCHR,
        Mode::from_bits_truncate(0o666),
        metadata.rdev(),
    ) {
        Ok(()) | Err(Errno::EEXIST) => {}
        Err(error) => return Err(error.into()),
    }
    // Whatever the process's mask left of it.
    std::fs::set_permissions(&node, std::fs::Permissions::from_mode(0o666))?;
    let by = CString::new(node.into_os_string().into_vec()).map_err(io::Error::other)?;
    let file = CString::new(TUNNEL_DEVICE).map_err(io::Error::other)?;
    Ok(Some(Replaced { by, file }))
}

/// Whether the namespace of a process has a route to anywhere.
fn is_up(process: i32) -> bool {
    let routes =
        |name: &str| std::fs::read_to_string(format!("/proc/{process}/net/{name}")).unwrap_or_default();
    // The first line is the heading; the destination of the default route is all zeros.
    routes("route")
        .lines()
        .skip(1)
        .any(|line| line.split_whitespace().nth(1) == Some("00000000"))
        || routes("ipv6_route").lines().any(|line| {
            let mut fields = line.split_whitespace();
            fields
                .next()
                .is_some_and(|to| to.bytes().all(|byte| byte == b'0'))
                && fields.next() == Some("00")
                && fields.last().is_some_and(|device| device != "lo")
        })
}
