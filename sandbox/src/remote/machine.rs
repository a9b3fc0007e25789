use super::http::{Content, HttpError};
use crate::Channel;
use async_trait::async_trait;
use bytes::Bytes;
use http::StatusCode;
use secrecy::SecretString;
use std::collections::BTreeMap;
use std::time::Duration;

/// One sandbox at a provider, as the provider's protocols have it. Nothing that has effects is repeated after it may have had them.
#[async_trait]
pub(crate) trait Machine: Send + Sync {
    /// Waits until commands run in it.
    async fn ready(&self) -> Result<(), MachineError>;

    /// Runs a short program of ours to its end, and gives all that it wrote.
    async fn run(&self, program: &Program) -> Result<Ran, MachineError>;

    /// Starts a program. One that may have been started although there is an error is for the caller to end.
    async fn start(&self, program: &Program) -> Result<Box<dyn Running>, MachineError>;

    /// Ends a process that was started: itself, not what it has started.
    async fn kill(&self, process: &str) -> Result<(), MachineError>;

    /// Writes a file, which may be there in part meanwhile; makes its parents.
    async fn upload(&self, path: &str, content: Content) -> Result<(), MachineError>;

    /// Reads a file of at most `limit` bytes.
    async fn download(&self, path: &str, limit: usize) -> Result<Bytes, MachineError>;

    /// Whether a program counts as running for as long as anything holds what it writes to: then each is run by
    /// `dressage-tap leader`.
    fn waits_for_what_is_left(&self) -> bool;

    /// Where inside a relay is to listen for the host.
    fn carrier_address(&self) -> &'static str;

    /// Dials a relay that listens there, and shows it its secret.
    async fn dial(&self, secret: &SecretString) -> Result<Box<dyn Channel>, HttpError>;

    /// Whether it lives: `Some(false)` where its provider says that it does not, `None` where nothing is known.
    async fn lives(&self) -> Option<bool>;
}

/// A program that was started.
#[async_trait]
pub(crate) trait Running: Send {
    /// By which [`Machine::kill`] ends it.
    fn id(&self) -> &str;

    /// What is said next, through losses of the connection where the provider has a way. After an error nothing more is.
    async fn next(&mut self) -> Result<Said, MachineError>;
}

/// A program for a machine.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    /// Program and arguments.
    pub(crate) argv: Vec<String>,
    /// Over the environment that it has there.
    pub(crate) env: BTreeMap<String, String>,
    /// After this long the provider may end it.
    pub(crate) lifetime: Option<Duration>,
    pub(crate) who: As,
}

/// As whom something is done in a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum As {
    /// The image's user: agents and commands.
    User,
    /// Root: what agents are not to change.
    Root,
}

/// What a program says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Said {
    Stdout(Bytes),
    Stderr(Bytes),
    Ended(Ended),
}

/// How a program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ended {
    /// Its exit code; 128 and the number of the signal that ended it.
    pub(crate) code: i32,
    pub(crate) signal: Option<i32>,
}

impl Ended {
    pub(crate) fn by(signal: i32) -> Self {
        Self {
            code: 128 + signal,
            signal: Some(signal),
        }
    }
}

/// What came of a short program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
}

/// What the program refuses that a sandbox is used by, or how a conversation with it broke.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MachineError {
    /// By its code.
    #[error("{code}: {message}")]
    Said { code: String, message: String },
    /// Otherwise.
    #[error(transparent)]
    Http(#[from] HttpError),
    /// It broke off: what came of the program is not known.
    #[error("the stream ended before the program did")]
    Cut,
    /// Nothing is there any more that would know.
    #[error("process {0} vanished: what came of it is not known")]
    Vanished(String),
}

impl MachineError {
    /// Whether it says that what was asked for is not there.
    pub(crate) fn is_not_found(&self) -> bool {
        match self {
            Self::Said { code, .. } => code == "not_found",
            Self::Http(error) => error.status() == Some(StatusCode::NOT_FOUND),
            Self::Vanished(_) => true,
            Self::Cut => false,
        }
    }

    /// Whether it may come of the end of the sandbox.
    pub(crate) fn is_unclear(&self) -> bool {
        match self {
            Self::Said { code, .. } => code == "unavailable",
            Self::Http(error) => error.is_transient(),
            Self::Cut => true,
            Self::Vanished(_) => false,
        }
    }

    /// Whether it comes of a file system without space.
    pub(crate) fn is_full_disk(&self) -> bool {
        match self {
            Self::Http(HttpError::Status { status, message }) => {
                *status == StatusCode::INSUFFICIENT_STORAGE || message.contains("(os error 28)")
            }
            _ => false,
        }
    }
}
