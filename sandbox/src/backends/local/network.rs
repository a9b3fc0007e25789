use super::skeleton::NAME_SERVER;
use crate::estate::Estate;
use crate::kernel::{ChildSetup, Death};
use crate::spawn::{Launch, OwnedChild, spawn};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

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
    /// The better one of those that are installed.
    pub(super) fn find() -> Option<Self> {
        let find = |name: &str| {
            ["/usr/bin", "/usr/local/bin"]
                .iter()
                .map(|folder| Path::new(folder).join(name))
                .find(|path| path.exists())
        };
        find("pasta")
            .map(Self::Pasta)
            .or_else(|| find("slirp4netns").map(Self::Slirp4netns))
    }

    /// For people.
    pub(super) fn describe(&self) -> String {
        let (Self::Pasta(path) | Self::Slirp4netns(path)) = self;
        format!("none, open (through {})", path.display())
    }

    /// The command that connects the network namespace of `init`, and never the machine's loopback.
    fn command(&self, init: i32) -> Command {
        let user_namespace = format!("/proc/{init}/ns/user");
        let network_namespace = format!("/proc/{init}/ns/net");
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

/// Connects a sandbox whose first process waits to go on. The helper ends with what is returned, and with this process.
pub(super) async fn connect(helper: &Helper, init: i32, estate: &Arc<Estate>) -> io::Result<OwnedChild> {
    let mut command = helper.command(init);
    command.env_clear();
    let setup = ChildSetup {
        cgroups: estate.entrances()?,
        identity: estate.uid(),
        death: Death::WithParent,
        ..ChildSetup::default()
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
