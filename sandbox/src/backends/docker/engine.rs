use crate::{DockerAccess, SandboxError};
use bollard::errors::Error;
use bollard::query_parameters::{
    KillContainerOptionsBuilder, RemoveContainerOptionsBuilder, RemoveImageOptions,
    WaitContainerOptionsBuilder,
};
use bollard::{API_DEFAULT_VERSION, Docker};
use futures_util::StreamExt;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::OnceCell;

/// For an answer to begin. An engine on a machine under load takes seconds to start a container.
const TIMEOUT_S: u64 = 120;

/// For a killed container to be told as ended.
const KILLED_TIMEOUT: Duration = Duration::from_secs(60);

/// For the end of the containers that an image's removal waits for.
const IN_USE: Duration = Duration::from_secs(20);

/// Where engines listen, by their packages' own settings.
const USUAL_SOCKETS: [&str; 2] = ["/var/run/docker.sock", "/run/podman/podman.sock"];

/// An engine, connected to when it is used first.
#[derive(Clone)]
pub(super) struct Engine {
    address: Address,
    client: Arc<OnceCell<Docker>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Address {
    Socket(String),
    Tcp(String),
}

impl Engine {
    /// The engine that is configured, or the first of the usual ones.
    pub(super) fn find(access: &DockerAccess) -> Result<Self, SandboxError> {
        let address = match &access.host {
            Some(host) => Address::parse(host)?,
            None => {
                let there = USUAL_SOCKETS.iter().find(|path| Path::new(path).exists());
                let [usual, _] = USUAL_SOCKETS;
                Address::Socket((*there.unwrap_or(&usual)).to_owned())
            }
        };
        Ok(Self {
            address,
            client: Arc::default(),
        })
    }

    /// Its address, for leases and messages.
    pub(super) fn place(&self) -> String {
        match &self.address {
            Address::Socket(path) => format!("unix://{path}"),
            Address::Tcp(address) => format!("tcp://{address}"),
        }
    }

    /// A client that speaks a version of the API that the engine speaks.
    pub(super) async fn client(&self) -> Result<&Docker, SandboxError> {
        let connected = self.client.get_or_try_init(|| async {
            let client = match &self.address {
                Address::Socket(path) => Docker::connect_with_unix(path, TIMEOUT_S, API_DEFAULT_VERSION),
                Address::Tcp(address) => Docker::connect_with_http(address, TIMEOUT_S, API_DEFAULT_VERSION),
            };
            client?.negotiate_version().await
        });
        connected
            .await
            .map_err(|error| self.failed("connect to the engine", error))
    }

    /// Ends whatever runs in a container, and waits until it does not. One that does not run, or is not there, is no error.
    pub(super) async fn end(&self, container: &str) -> Result<(), SandboxError> {
        let client = self.client().await?;
        let options = KillContainerOptionsBuilder::new().signal("KILL").build();
        match client.kill_container(container, Some(options)).await {
            Err(error) if !matches!(status(&error), Some(404 | 409)) => {
                return Err(self.failed("end its processes", error));
            }
            _ => {}
        }
        let options = WaitContainerOptionsBuilder::new()
            .condition("not-running")
            .build();
        let mut ending = client.wait_container(container, Some(options));
        // How it ended is told as an error of its own; only its absence and a broken connection are others, and both show
        // when it is started next.
        match tokio::time::timeout(KILLED_TIMEOUT, ending.next()).await {
            Ok(_) => Ok(()),
            Err(_) => Err(SandboxError::Create {
                step: "end its processes".into(),
                source: Some(io::ErrorKind::TimedOut.into()),
            }),
        }
    }

    /// Removes a container with all that runs in it and its unnamed volumes; says whether it was there.
    pub(super) async fn remove(&self, container: &str) -> Result<bool, SandboxError> {
        let client = self.client().await?;
        let options = RemoveContainerOptionsBuilder::new().force(true).v(true).build();
        loop {
            return match client.remove_container(container, Some(options.clone())).await {
                Ok(()) => Ok(true),
                Err(error) if status(&error) == Some(404) => Ok(false),
                // Somebody else is at it: then it is waited for.
                Err(error) if status(&error) == Some(409) && said(&error).contains("already in progress") => {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                }
                Err(error) => Err(self.failed("remove its container", error)),
            };
        }
    }

    /// Removes an image by its name; says whether it was there. Where a container is made of it, the end of that is waited
    /// for, but not for long: it may have been let go together with the image.
    pub(super) async fn remove_image(&self, name: &str) -> Result<bool, SandboxError> {
        let client = self.client().await?;
        let deadline = Instant::now() + IN_USE;
        loop {
            return match client.remove_image(name, None::<RemoveImageOptions>, None).await {
                Ok(_) => Ok(true),
                Err(error) if status(&error) == Some(404) => Ok(false),
                Err(error) if status(&error) == Some(409) && Instant::now() < deadline => {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                }
                Err(error) => Err(self.failed("remove the image of a snapshot", error)),
            };
        }
    }

    /// What an error of the engine is to be called.
    pub(super) fn failed(&self, step: &str, error: Error) -> SandboxError {
        let unavailable = |reason: String, remedy| SandboxError::Unavailable {
            backend: super::NAME,
            reason,
            remedy,
        };
        let place = self.place();
        let absent = || {
            unavailable(
                format!("no engine answers at `{place}`"),
                Some("start Docker, or Podman's socket, or say with DOCKER_HOST where one listens"),
            )
        };
        let text = said(&error);
        if text.contains("no space left on device") {
            return unavailable(
                format!("the engine at `{place}` has no space left: {text}"),
                Some("`docker system df` shows what takes it, `docker system prune` frees what nothing uses"),
            );
        }
        match &error {
            Error::SocketNotFoundError(_) => return absent(),
            Error::JsonDataError { .. } | Error::JsonSerdeError { .. } | Error::APIVersionParseError {} => {
                return unavailable(
                    format!("what answers at `{place}` is no Docker engine: {text}"),
                    Some("check DOCKER_HOST"),
                );
            }
            Error::DockerResponseServerError { status_code, message } => {
                if message.trim_start().starts_with('<') {
                    return unavailable(
                        format!(
                            "what answers at `{place}` is no Docker engine: status {status_code}, a page of HTML"
                        ),
                        Some("check DOCKER_HOST"),
                    );
                }
                if (400..500).contains(status_code) && ![404, 408, 409, 429].contains(status_code) {
                    return unavailable(format!("the engine refused to {step}: {text}"), None);
                }
            }
            error => match io_kind(error) {
                Some(io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => return absent(),
                Some(io::ErrorKind::PermissionDenied) => {
                    return unavailable(
                        format!("this user may not use the engine at `{place}`"),
                        Some(
                            "add the user to the group `docker` and log in again, or run an engine without root",
                        ),
                    );
                }
                _ => {}
            },
        }
        SandboxError::Create {
            step: step.to_owned(),
            source: Some(io::Error::other(text)),
        }
    }
}

impl Address {
    fn parse(host: &str) -> Result<Self, SandboxError> {
        if let Some(path) = host.strip_prefix("unix://").filter(|path| path.starts_with('/')) {
            return Ok(Self::Socket(path.to_owned()));
        }
        let tcp = host
            .strip_prefix("tcp://")
            .or_else(|| host.strip_prefix("http://"));
        // With a name and password in it, it would be in leases and messages.
        if let Some(address) = tcp.filter(|address| !address.is_empty() && !address.contains('@')) {
            return Ok(Self::Tcp(address.trim_end_matches('/').to_owned()));
        }
        Err(SandboxError::Unavailable {
            backend: super::NAME,
            reason: "DOCKER_HOST is neither unix:///PATH nor tcp://HOST:PORT".into(),
            remedy: Some(
                "for an engine elsewhere, forward its socket: ssh -L /tmp/docker.sock:/var/run/docker.sock HOST",
            ),
        })
    }
}

/// The status of an answer that is an error.
pub(super) fn status(error: &Error) -> Option<u16> {
    match error {
        Error::DockerResponseServerError { status_code, .. } => Some(*status_code),
        _ => None,
    }
}

/// What an error says, in one line that is not long.
pub(super) fn said(error: &Error) -> String {
    let text = match error {
        Error::DockerResponseServerError { message, .. } => message.clone(),
        Error::DockerStreamError { error } => error.clone(),
        error => {
            let mut text = error.to_string();
            let mut source = std::error::Error::source(error);
            while let Some(inner) = source {
                let more = inner.to_string();
                if !text.contains(&more) {
                    text = format!("{text}: {more}");
                }
                source = inner.source();
            }
            text
        }
    };
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    line.chars()
        .filter(|character| !character.is_control())
        .take(300)
        .collect()
}

fn io_kind(error: &Error) -> Option<io::ErrorKind> {
    // It passes for what it holds, whose source is not itself.
    if let Error::IOError { err } = error {
        return Some(err.kind());
    }
    let first: &(dyn std::error::Error + 'static) = error;
    std::iter::successors(Some(first), |error| error.source())
        .find_map(|error| error.downcast_ref::<io::Error>())
        .map(io::Error::kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(host: &str) -> Result<String, String> {
        let access = DockerAccess {
            host: Some(host.to_owned()),
            ..DockerAccess::default()
        };
        Engine::find(&access)
            .map(|engine| engine.place())
            .map_err(|error| format!("{error}: {}", error.hint().unwrap()))
    }

    #[test]
    fn sockets_and_plain_tcp_are_addresses_and_nothing_else_is() {
        assert_eq!(found("unix:///run/x.sock").unwrap(), "unix:///run/x.sock");
        assert_eq!(found("tcp://host:2375/").unwrap(), "tcp://host:2375");
        for host in [
            "ssh://host",
            "unix://relative",
            "tcp://",
            "tcp://user:secret@host",
            "",
        ] {
            let error = found(host).unwrap_err();
            assert!(error.contains("ssh -L") && !error.contains("secret"), "{error}");
        }
    }

    #[test]
    fn errors_of_engines_are_told_apart() {
        let engine = Engine::find(&DockerAccess {
            host: Some("unix:///run/x.sock".into()),
            ..DockerAccess::default()
        })
        .unwrap();
        let server = |status_code, message: &str| Error::DockerResponseServerError {
            status_code,
            message: message.to_owned(),
        };
        let cases = [
            (server(502, "<html><body>Bad gateway"), false, "a page of HTML"),
            (
                server(500, "mkdir /var/lib/docker/x: no space left on device"),
                false,
                "no space left",
            ),
            (server(400, "invalid mount config"), false, "invalid mount config"),
            (server(500, "driver failed"), true, "its container"),
            (Error::RequestTimeoutError, true, "its container"),
            (
                std::io::Error::from(io::ErrorKind::PermissionDenied).into(),
                false,
                "may not use",
            ),
            (
                std::io::Error::from(io::ErrorKind::ConnectionRefused).into(),
                false,
                "no engine answers",
            ),
            (
                Error::SocketNotFoundError("/run/x.sock".into()),
                false,
                "no engine answers",
            ),
        ];
        for (error, transient, expected) in cases {
            let error = engine.failed("make its container", error);
            assert_eq!(error.is_transient(), transient, "{error}");
            assert!(error.to_string().contains(expected), "{error}");
        }
    }
}
