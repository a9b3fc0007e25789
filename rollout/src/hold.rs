//! A held rollout, as its caller sees it: the sandbox after the agent, for a verifier of the caller's own.
//!
//! [`Held`] only asks; the rollout's own task answers (`stages/hold.rs`), one call after another or some at once, until
//! the caller is done, the deadline passes, or the rollout is cancelled. A call whose caller goes away is still done.

use crate::supervisor::LiveState;
use bytes::Bytes;
use dressage_sandbox::{FileList, SandboxError};
use dressage_wire::event::ReleasedBy;
use dressage_wire::ids::RolloutId;
use dressage_wire::reward::{CommandResult, OverrideError};
use dressage_wire::rollout::AgentOutcome;
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

/// Calls that wait for an answer before the next caller waits.
const WAITING: usize = 16;

/// The way into a hold. Every call moves the hold's deadline, also one that fails; while one runs, no deadline passes.
/// Paths that are not absolute are below the working directory.
#[derive(Clone, Debug)]
pub struct Held {
    id: RolloutId,
    calls: mpsc::Sender<Call>,
    released: Arc<OnceLock<ReleasedBy>>,
    so_far: Arc<SoFar>,
}

/// What had come of a rollout when its hold began.
#[derive(Clone, Debug, Default)]
pub struct SoFar {
    /// Each setup command that was run.
    pub setup: Vec<CommandResult>,
    /// What the agent's program did; `None` if it was never started.
    pub agent: Option<AgentOutcome>,
    /// Each verify command that was run; `None` where the task has none.
    pub verify: Option<Vec<CommandResult>>,
    /// Things worth knowing that are no failure.
    pub warnings: Vec<String>,
}

/// A shell command of the caller's.
#[derive(Clone, Debug, Default)]
pub struct HeldCommand {
    /// The text, for `bash -c`.
    pub command: String,
    /// Over the environment that verify commands have.
    pub env: BTreeMap<String, String>,
    /// Where it starts; the working directory if unset.
    pub cwd: Option<String>,
    /// After this long its tree is killed; what a verify command has, if unset.
    pub timeout: Option<Duration>,
}

/// The end of a hold.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FinishRequest {
    /// The caller's verdict, finite and in the task's range. Without one, what verify said stands.
    pub reward: Option<f64>,
    /// Kept with the reward, at most [`dressage_wire::reward::DETAIL_MAX_BYTES`] as JSON.
    pub detail: Option<serde_json::Map<String, serde_json::Value>>,
}

impl Held {
    /// Whose sandbox it is.
    #[must_use]
    pub fn id(&self) -> RolloutId {
        self.id
    }

    /// What had come of the rollout when the hold began.
    #[must_use]
    pub fn so_far(&self) -> &SoFar {
        &self.so_far
    }

    /// Runs a command as verify commands are run: apart from what the agent left, with the environment that was recorded
    /// before there was an agent. It is told with events of stage verify.
    ///
    /// # Errors
    /// The sandbox is gone, or the hold is over. A command that fails, or cannot be started, is a result.
    pub async fn exec(&self, command: HeldCommand) -> Result<CommandResult, HoldError> {
        self.ask(|answer| Call::Exec(command, answer)).await
    }

    /// Reads a regular file of at most 64 MiB; links are not followed in the last part of the path.
    ///
    /// # Errors
    /// It cannot be read, the sandbox is gone, or the hold is over.
    pub async fn read_file(&self, path: impl Into<String>) -> Result<Bytes, HoldError> {
        let path = path.into();
        self.ask(|answer| Call::ReadFile(path, answer)).await
    }

    /// Writes a file; makes its parents. `mode` is that of a new file.
    ///
    /// # Errors
    /// It cannot be written, the sandbox is gone, or the hold is over.
    pub async fn write_file(
        &self,
        path: impl Into<String>,
        content: Bytes,
        mode: u32,
    ) -> Result<(), HoldError> {
        let path = path.into();
        self.ask(|answer| Call::WriteFile(path, content, mode, answer))
            .await
    }

    /// Whether something is at `path`.
    ///
    /// # Errors
    /// The sandbox is gone, or the hold is over.
    pub async fn exists(&self, path: impl Into<String>) -> Result<bool, HoldError> {
        let path = path.into();
        self.ask(|answer| Call::Exists(path, answer)).await
    }

    /// Regular files under `path`, with absolute paths; links are not followed.
    ///
    /// # Errors
    /// Nothing is there, the sandbox is gone, or the hold is over.
    pub async fn list(
        &self,
        path: impl Into<String>,
        max_depth: u32,
        max_files: usize,
    ) -> Result<FileList, HoldError> {
        let path = path.into();
        self.ask(|answer| Call::List(path, max_depth, max_files, answer))
            .await
    }

    /// Ends the hold. Calls that still run are given up.
    ///
    /// # Errors
    /// The reward is none, or the detail is too large: then the hold goes on. Or it is over already.
    pub async fn finish(&self, request: FinishRequest) -> Result<(), HoldError> {
        self.ask(|answer| Call::Finish(request, answer)).await
    }

    async fn ask<T>(&self, call: impl FnOnce(Answer<T>) -> Call) -> Result<T, HoldError> {
        let (answer, answered) = oneshot::channel();
        // Whether it was sent or not: a call that is not answered is dropped, and its answer with it.
        _ = self.calls.send(call(answer)).await;
        answered.await.unwrap_or_else(|_| {
            Err(HoldError::Released {
                id: self.id,
                // Unset only where the rollout's task has crashed.
                by: self.released.get().copied().unwrap_or(ReleasedBy::Cancel),
            })
        })
    }
}

/// Why a call to a held rollout did not do what it was to do.
#[derive(Debug, thiserror::Error)]
pub enum HoldError {
    /// There is none of that id, or it is over.
    #[error("rollout {0} neither waits nor runs")]
    Unknown(RolloutId),
    /// It is before its hold, behind it, or was never to be held.
    #[error("rollout {id} is not held")]
    NotHeld {
        /// Which.
        id: RolloutId,
        /// Where it is instead.
        state: LiveState,
    },
    /// The hold has ended.
    #[error("rollout {id} is held no longer, ended by {}", by.name())]
    Released {
        /// Which.
        id: RolloutId,
        /// What ended it.
        by: ReleasedBy,
    },
    /// The reward is none.
    #[error("the reward cannot be taken")]
    Reward {
        /// Why not.
        #[source]
        source: OverrideError,
    },
    /// The detail is too large.
    #[error("the detail of the reward has {bytes} bytes, over the limit of {limit}")]
    DetailTooLarge {
        /// As JSON.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// The sandbox did not do it.
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
    /// The sandbox said nothing.
    #[error("the sandbox of rollout {id} did not answer within {} s", waited.as_secs())]
    Unresponsive {
        /// Which.
        id: RolloutId,
        /// How long it was given.
        waited: Duration,
    },
}

/// Where an answer goes; its caller may have left.
pub(crate) type Answer<T> = oneshot::Sender<Result<T, HoldError>>;

/// What a caller asks for.
#[derive(Debug)]
pub(crate) enum Call {
    Exec(HeldCommand, Answer<CommandResult>),
    ReadFile(String, Answer<Bytes>),
    WriteFile(String, Bytes, u32, Answer<()>),
    Exists(String, Answer<bool>),
    List(String, u32, usize, Answer<FileList>),
    Finish(FinishRequest, Answer<()>),
}

/// The inner end of a hold. Once it is dropped, every call is answered with what ended the hold.
pub(crate) struct Calls {
    incoming: mpsc::Receiver<Call>,
    released: Arc<OnceLock<ReleasedBy>>,
}

impl Calls {
    /// A hold's two ends.
    pub(crate) fn open(id: RolloutId, so_far: SoFar) -> (Held, Self) {
        let (calls, incoming) = mpsc::channel(WAITING);
        let released = Arc::new(OnceLock::new());
        let held = Held {
            id,
            calls,
            released: released.clone(),
            so_far: Arc::new(so_far),
        };
        (held, Self { incoming, released })
    }

    /// The next call; `None` if nobody is left who could call. Can be dropped and called again.
    pub(crate) async fn next(&mut self) -> Option<Call> {
        self.incoming.recv().await
    }

    /// Takes no more calls.
    pub(crate) fn close(self, by: ReleasedBy) {
        // Set once only: it consumes this.
        _ = self.released.set(by);
    }
}
