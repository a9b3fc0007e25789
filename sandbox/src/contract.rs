use crate::Snapshot;
use crate::lease::LeaseError;
use async_trait::async_trait;
use bytes::Bytes;
use dressage_wire::event::OutputStream;
use dressage_wire::ids::SandboxId;
use dressage_wire::reward::Separation;
use dressage_wire::task::NetworkPolicy;
use std::collections::BTreeMap;
use std::fs::File;
use std::net::IpAddr;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};

/// What is uploaded of a file at once.
const UPLOAD_PIECE_BYTES: usize = 4 << 20;

/// Makes sandboxes. A backend guarantees that whatever it creates is under a lease before it exists, and that
/// `delete` works for a sandbox whose process is gone.
#[async_trait]
pub trait Backend: Send + Sync {
    /// Its name in the registry.
    fn name(&self) -> &'static str;

    /// Whether a sandbox can have its home at this absolute path. Where it cannot, tasks that name the path are to be
    /// refused, since commands and prompts are never rewritten; [`SandboxSpec::home`] is then not looked at.
    fn gives_home(&self, home: &str) -> bool;

    /// An address of this host that its sandboxes can connect to, for placement direct; `None` where there is none.
    fn host_address(&self) -> Option<IpAddr> {
        None
    }

    /// Whether [`Sandbox::snapshot`] of its sandboxes does something, and [`SandboxSpec::snapshot`] is looked at. A spec with a
    /// snapshot is refused otherwise.
    fn keeps_snapshots(&self) -> bool {
        false
    }

    /// Makes a sandbox and returns when its home is there and commands can run. On failure nothing remains.
    async fn create(&self, spec: SandboxSpec) -> Result<Arc<dyn Sandbox>, SandboxError>;

    /// Ids of the sandboxes that carry all of `labels`.
    async fn list(&self, labels: &BTreeMap<String, String>) -> Result<Vec<SandboxId>, SandboxError>;

    /// Ends a sandbox and removes what is left of it. Nothing there is success; one that belongs to another living
    /// process is an error.
    async fn delete(&self, id: SandboxId) -> Result<(), SandboxError>;
}

/// What a sandbox is to be.
#[derive(Clone, Debug, PartialEq)]
pub struct SandboxSpec {
    /// Chosen by the caller, so that the lease can name it before it exists.
    pub id: SandboxId,
    /// Image or template, for backends that have such.
    pub image: Option<String>,
    /// What the image is built of, for backends that build: a Dockerfile without files beside it. In the place of `image`.
    pub dockerfile: Option<String>,
    /// Who programs are in the image, by name or number, for backends with such; an ordinary user of the backend's own if unset.
    pub user: Option<String>,
    /// Home inside; `/home/user` where possible.
    pub home: String,
    /// Environment of every command.
    pub env: BTreeMap<String, String>,
    /// What it can reach. Where that is some hosts, its way to them is served by who takes [`Sandbox::open_egress`]; until then it
    /// reaches nothing. A backend that cannot hold it to that refuses, before anything is made.
    pub network: NetworkPolicy,
    /// Its size.
    pub size: Size,
    /// Read-only trees put into it: an agent's program and the like.
    pub assets: Vec<Asset>,
    /// Carried by it for as long as it lives.
    pub labels: BTreeMap<String, String>,
    /// After this it ends by itself, where the backend can do that.
    pub lifetime: Duration,
    /// Whether a relay listens in it, and where.
    pub relay_port: Option<u16>,
    /// The files that it begins with, instead of those of the image and an empty home: of a sandbox of the same backend, image,
    /// user and home.
    pub snapshot: Option<Snapshot>,
}

/// Memory, processors and processes of a sandbox.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Size {
    /// Memory in bytes.
    pub memory_bytes: u64,
    /// Processor cores.
    pub cpus: f64,
    /// Processes and threads.
    pub pids: u64,
}

/// A read-only tree or file put into a sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asset {
    /// Name by which [`Sandbox::asset_path`] finds it.
    pub name: String,
    /// Where it is on the host.
    pub host_path: PathBuf,
}

/// A place where commands run. Every operation of a killed sandbox is [`SandboxError::Gone`]. Paths that are not
/// absolute are under the home. Dropping the last handle ends the sandbox as [`Sandbox::kill`] does, in the background.
#[async_trait]
pub trait Sandbox: Send + Sync {
    /// Its id.
    fn id(&self) -> SandboxId;

    /// Its home, absolute.
    fn home(&self) -> &str;

    /// Where an asset of the spec is inside; `None` if the spec had none of that name.
    fn asset_path(&self, name: &str) -> Option<String>;

    /// The address on which its relay listens, for agents inside; `None` without a relay.
    fn relay_address(&self) -> Option<String>;

    /// Starts a program. The process ends with its tree when it is killed, when its deadline passes, and when the
    /// sandbox is killed.
    async fn start(
        &self,
        command: Command,
        output: Arc<dyn OutputSink>,
    ) -> Result<Box<dyn Process>, SandboxError>;

    /// Runs a program to its end.
    async fn exec(&self, command: Command, output: Arc<dyn OutputSink>) -> Result<Exit, SandboxError> {
        let mut process = self.start(command, output).await?;
        process.wait().await
    }

    /// Writes a file; makes its parents. `mode` is that of a new file.
    async fn write_file(&self, path: &str, content: Bytes, mode: u32) -> Result<(), SandboxError>;

    /// Writes a file of what is in one of this machine, from its start: in pieces, since it may be larger than memory. Makes its
    /// parents. Whoever else looks meanwhile may see a part of it.
    async fn upload(&self, path: &str, content: Arc<File>, mode: u32) -> Result<(), SandboxError> {
        let mut at = 0;
        loop {
            let piece = read_piece(&content, at).await?;
            let length = piece.len();
            if at == 0 {
                self.write_file(path, piece, mode).await?;
            } else if length > 0 {
                append(self, path, piece).await?;
            }
            at += length as u64;
            if length < UPLOAD_PIECE_BYTES {
                return Ok(());
            }
        }
    }

    /// Reads a regular file; links are not followed in the last part of the path. More than `limit` bytes is
    /// [`SandboxError::TooLarge`].
    async fn read_file(&self, path: &str, limit: u64) -> Result<Bytes, SandboxError>;

    /// Whether something is at `path`.
    async fn exists(&self, path: &str) -> Result<bool, SandboxError>;

    /// Regular files under `path`, links not followed, at most `max_files`, at most `max_depth` levels down.
    async fn list_files(
        &self,
        path: &str,
        max_depth: u32,
        max_files: usize,
    ) -> Result<FileList, SandboxError>;

    /// Takes the relay's channel: a byte stream on which the relay opens multiplexed streams. Once only, but where the host
    /// dials the relay: there again, after the channel was lost. [`SandboxError::Gone`] where there is none to be had.
    async fn open_relay(&self) -> Result<Box<dyn Channel>, SandboxError>;

    /// Takes the next channel on which programs in the sandbox reach the host's proxy, where the spec allows some hosts: one
    /// at first, and one after each [`Sandbox::separate`], for which this waits. Each is a byte stream as that of the relay is.
    /// [`SandboxError::Gone`] where there will be none. For one caller at a time.
    async fn open_egress(&self) -> Result<Box<dyn Channel>, SandboxError> {
        Err(SandboxError::Gone {
            id: self.id(),
            reason: "there is no way out of it".into(),
        })
    }

    /// Ends every process in the sandbox and makes what comes next separate from what was: new pid and mount
    /// namespaces or another user, a new /tmp, and a new empty directory mounted or made at each of `fresh_directories`
    /// (absolute; whatever the agent left there is moved aside, links are not followed). Says what was achieved.
    async fn separate(&self, fresh_directories: &[String]) -> Result<Separation, SandboxError>;

    /// Keeps its files as they are now, but for those in folders that are in memory, under a lease that carries `labels`; nothing
    /// of ours may be using it meanwhile, and a relay that the host dials is another when it is opened next. Processes are not kept:
    /// [`SandboxError::Unsupported`] where any run that are not ours.
    async fn snapshot(&self, _labels: &BTreeMap<String, String>) -> Result<Snapshot, SandboxError> {
        Err(SandboxError::Operation {
            operation: "keep",
            object: "the files".into(),
            message: "its backend keeps no snapshots".into(),
            errno: None,
        })
    }

    /// Has its lease carry other labels, as [`Backend::list`] finds it by. What a provider was told of it stays.
    async fn relabel(&self, labels: &BTreeMap<String, String>) -> Result<(), SandboxError>;

    /// Ends the sandbox and everything in it. Idempotent.
    async fn kill(&self) -> Result<(), SandboxError>;
}

/// A piece of a file, shorter than others at its end only.
async fn read_piece(file: &Arc<File>, at: u64) -> Result<Bytes, SandboxError> {
    let file = Arc::clone(file);
    let reading = tokio::task::spawn_blocking(move || {
        let mut piece = vec![0; UPLOAD_PIECE_BYTES];
        let mut length = 0;
        while let Some(room) = piece.get_mut(length..).filter(|room| !room.is_empty()) {
            match file.read_at(room, at + length as u64)? {
                0 => break,
                count => length += count,
            }
        }
        piece.truncate(length);
        Ok(Bytes::from(piece))
    });
    let read: std::io::Result<Bytes> = reading
        .await
        .unwrap_or_else(|error| Err(std::io::Error::other(error)));
    read.map_err(|source| SandboxError::Operation {
        operation: "read",
        object: "a file to be uploaded".into(),
        message: source.to_string(),
        errno: source.raw_os_error(),
    })
}

/// Adds to a file that is there.
async fn append<S: Sandbox + ?Sized>(sandbox: &S, path: &str, piece: Bytes) -> Result<(), SandboxError> {
    struct Unheard;
    impl OutputSink for Unheard {
        fn write(&self, _: OutputStream, _: &[u8]) {}
    }
    let command = Command {
        argv: ["sh", "-c", r#"cat >>"$1""#, "dressage", path]
            .map(str::to_owned)
            .into(),
        stdin: piece,
        ..Command::default()
    };
    let exit = sandbox.exec(command, Arc::new(Unheard)).await?;
    match exit.code {
        0 => Ok(()),
        code => Err(SandboxError::Operation {
            operation: "write",
            object: path.to_owned(),
            message: format!("exit code {code} of a program that adds to it"),
            errno: None,
        }),
    }
}

/// A byte stream to the inside of a sandbox. What comes out of it is untrusted.
pub trait Channel: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Channel for T {}

/// A program to run.
#[derive(Clone, Debug, Default)]
pub struct Command {
    /// Program and arguments.
    pub argv: Vec<String>,
    /// Over the sandbox's own environment.
    pub env: BTreeMap<String, String>,
    /// Whether `env` is the whole environment.
    pub clear_env: bool,
    /// Working directory; the home if unset. Made where it is missing.
    pub cwd: Option<String>,
    /// Written to standard input, which is then closed.
    pub stdin: Bytes,
    /// After this long the whole tree is killed and the exit is 124.
    pub timeout: Option<Duration>,
    /// Whose it is.
    pub role: Role,
}

/// Whose a program is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Role {
    /// The task's, the caller's, or ours.
    #[default]
    Task,
    /// The agent's. Where a backend has a user for agents it is that user, whose the home is meanwhile; its end is the end of
    /// everything of that user.
    Agent,
}

/// Takes what a program writes, as it comes. Must not block.
pub trait OutputSink: Send + Sync {
    /// Some bytes, in the order they were written to that stream.
    fn write(&self, stream: OutputStream, bytes: &[u8]);
}

/// A running program. Dropping this does not end it.
#[async_trait]
pub trait Process: Send + Sync {
    /// Waits for the end. Can be dropped and called again.
    async fn wait(&mut self) -> Result<Exit, SandboxError>;

    /// Ends the program and its whole tree.
    async fn kill(&mut self) -> Result<(), SandboxError>;
}

/// How a program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exit {
    /// Exit code; 124 after a timeout, 128 + n after signal n.
    pub code: i32,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// Whether its deadline passed.
    pub timed_out: bool,
    /// Wall time.
    pub duration: Duration,
}

/// What [`Sandbox::list_files`] found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileList {
    /// Absolute path and size in bytes, sorted by path.
    pub files: Vec<(String, u64)>,
    /// Whether there were more than asked for.
    pub truncated: bool,
}

/// What can go wrong with a sandbox.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// There is no backend of that name.
    #[error("no sandbox backend is named `{name}`")]
    UnknownBackend {
        /// The name asked for.
        name: String,
    },
    /// The backend cannot work on this machine.
    #[error("backend `{backend}` is not available: {reason}")]
    Unavailable {
        /// Its name.
        backend: &'static str,
        /// What is missing.
        reason: String,
        /// What would help.
        remedy: Option<&'static str>,
    },
    /// The spec asks for what the backend does not do.
    #[error("backend `{backend}` cannot provide {what}")]
    Unsupported {
        /// Its name.
        backend: &'static str,
        /// What was asked for.
        what: String,
    },
    /// It could not be made.
    #[error("sandbox could not be created: {step}")]
    Create {
        /// What failed.
        step: String,
        /// Why.
        #[source]
        source: Option<std::io::Error>,
    },
    /// Its lease could not be written.
    #[error("sandbox {id} could not be leased")]
    Lease {
        /// Which.
        id: SandboxId,
        /// Why.
        #[source]
        source: LeaseError,
    },
    /// Its processes have ended, but something of it is left; the next sweep tries again.
    #[error("sandbox {id} could not be removed entirely")]
    Left {
        /// Which.
        id: SandboxId,
        /// What is left, and why.
        #[source]
        source: Arc<LeaseError>,
    },
    /// The leases could not be read.
    #[error("the sandboxes of backend `{backend}` could not be listed")]
    List {
        /// Its name.
        backend: &'static str,
        /// Why.
        #[source]
        source: LeaseError,
    },
    /// It has ended, or its connection has.
    #[error("sandbox {id} is gone: {reason}")]
    Gone {
        /// Which.
        id: SandboxId,
        /// What is known.
        reason: String,
    },
    /// Nothing is at the path.
    #[error("no file at `{path}` in the sandbox")]
    NotFound {
        /// The path.
        path: String,
    },
    /// The path is something else than a regular file.
    #[error("`{path}` in the sandbox is {kind}, not a regular file")]
    NotRegular {
        /// The path.
        path: String,
        /// What it is.
        kind: String,
    },
    /// The file is over the limit.
    #[error("`{path}` in the sandbox has {size} bytes, over the limit of {limit}")]
    TooLarge {
        /// The path.
        path: String,
        /// Its size.
        size: u64,
        /// The limit.
        limit: u64,
    },
    /// An operation inside the sandbox failed.
    #[error("{operation} `{object}` in the sandbox: {message}")]
    Operation {
        /// What was tried.
        operation: &'static str,
        /// On what.
        object: String,
        /// What the sandbox said.
        message: String,
        /// The system's error number, where there was one.
        errno: Option<i32>,
    },
}

impl SandboxError {
    /// Whether the same operation may succeed when tried again.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Gone { .. } | Self::Create { .. })
    }

    /// What may help, where that is known.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Unavailable { remedy, .. } => remedy.map(str::to_owned),
            Self::UnknownBackend { .. } => {
                Some("`dressage doctor` lists the backends of this machine".into())
            }
            error if error.is_full_disk() => Some(
                "free some space on the file system of the data directory, or choose another with --data-dir"
                    .into(),
            ),
            _ => None,
        }
    }

    /// Whether it comes of a file system without space.
    fn is_full_disk(&self) -> bool {
        let full = |error: &std::io::Error| error.kind() == std::io::ErrorKind::StorageFull;
        let mut sources = std::iter::successors(std::error::Error::source(self), |error| error.source());
        let errno = match self {
            Self::Operation { errno, .. } => *errno,
            _ => None,
        };
        errno.is_some_and(|errno| full(&std::io::Error::from_raw_os_error(errno)))
            || sources.any(|error| error.downcast_ref().is_some_and(full))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn created(source: std::io::ErrorKind) -> SandboxError {
        SandboxError::Create {
            step: "making the home".into(),
            source: Some(source.into()),
        }
    }

    #[test]
    fn a_full_disk_has_a_hint_wherever_it_is_met() {
        let inside = SandboxError::Operation {
            operation: "write",
            object: "a".into(),
            message: "no space left on device".into(),
            errno: Some(28),
        };
        for error in [created(std::io::ErrorKind::StorageFull), inside] {
            assert!(error.hint().unwrap().contains("free some space"), "{error}");
        }
        assert_eq!(created(std::io::ErrorKind::NotFound).hint(), None);
    }
}
