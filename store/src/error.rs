use crate::codec::CodecError;
use dressage_wire::export::native::DocumentError;
use dressage_wire::ids::RolloutId;
use dressage_wire::trajectory::MissingContent;
use std::io;
use std::path::{Path, PathBuf};

/// Why the store could not do something. Remedies are apart, in [`StoreError::hint`].
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A file or directory beside the database.
    #[error("{operation} {path} failed")]
    File {
        /// Such as `creating`.
        operation: &'static str,
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// There is no database yet.
    #[error("there is no database at {path}")]
    Missing {
        /// Where it would be.
        path: PathBuf,
    },
    /// The database is not one of ours.
    #[error("{path} is a database of another program")]
    NotOurs {
        /// Which.
        path: PathBuf,
    },
    /// A later version has written the database.
    #[error("{path} has schema version {found}, and this program knows {known} and below")]
    NewerSchema {
        /// Which.
        path: PathBuf,
        /// Its version.
        found: i64,
        /// The latest that is known.
        known: i64,
    },
    /// An earlier version has written the database, and it was opened for reading only.
    #[error("{path} has schema version {found}, and this program reads {known}")]
    OlderSchema {
        /// Which.
        path: PathBuf,
        /// Its version.
        found: i64,
        /// The version needed.
        known: i64,
    },
    /// The database did not do as asked.
    #[error("{operation} in {path} failed: {problem}")]
    Database {
        /// What was to be done, such as `storing a call`.
        operation: &'static str,
        /// Which database.
        path: PathBuf,
        /// What kind of failure it is.
        problem: Problem,
        /// Its own words.
        source: Box<sqlx::Error>,
    },
    /// The database is no longer where it was opened, and what is written to it will not be found again.
    #[error("{operation} failed: {path} was removed or replaced while it was in use")]
    Removed {
        /// What was to be done, such as `storing a call`.
        operation: &'static str,
        /// Where it was.
        path: PathBuf,
    },
    /// The schema could not be brought up to date.
    #[error("preparing the schema of {path} failed")]
    Migrate {
        /// Which database.
        path: PathBuf,
        /// Why.
        source: Box<sqlx::migrate::MigrateError>,
    },
    /// No rollout has this id, or an id that begins so.
    #[error("there is no rollout {id}")]
    NotFound {
        /// What was asked for.
        id: String,
    },
    /// Several rollouts have an id that begins so.
    #[error("{prefix} is the beginning of {} and {} more", .first, .more)]
    Ambiguous {
        /// What was asked for.
        prefix: String,
        /// One of them.
        first: RolloutId,
        /// How many others.
        more: u64,
    },
    /// A rollout has no such call.
    #[error("rollout {rollout} has no call {index}")]
    NoSuchCall {
        /// Which rollout.
        rollout: RolloutId,
        /// The index asked for.
        index: u32,
    },
    /// A part of a request is not there.
    #[error("the request of call {index} of rollout {rollout} is not complete")]
    Incomplete {
        /// Which rollout.
        rollout: RolloutId,
        /// Which call.
        index: u32,
        /// What is missing; unset where an earlier call is.
        source: Option<MissingContent>,
    },
    /// What is stored cannot be read.
    #[error("{what} of rollout {rollout} cannot be read")]
    Unreadable {
        /// Such as `a call`.
        what: &'static str,
        /// Which rollout.
        rollout: RolloutId,
        /// Why.
        source: CodecError,
    },
    /// Something has no stored form.
    #[error("{what} of rollout {rollout} cannot be put into its stored form")]
    NotStorable {
        /// Such as `a call`.
        what: &'static str,
        /// Which rollout.
        rollout: RolloutId,
        /// Why.
        source: serde_json::Error,
    },
    /// A check found the database damaged.
    #[error("{path} is damaged: {finding}")]
    Unsound {
        /// Which database.
        path: PathBuf,
        /// What was found first.
        finding: String,
    },
    /// The outcome of a rollout was kept in a file, since the database did not take it.
    #[error("the outcome of rollout {rollout} was kept in {path}, since the database did not take it")]
    KeptAside {
        /// Which rollout.
        rollout: RolloutId,
        /// The file.
        path: PathBuf,
        /// Why the database did not.
        source: Box<StoreError>,
    },
    /// The outcome of a rollout could be kept neither in the database nor in a file.
    #[error("the outcome of rollout {rollout} could not be kept, nor written to a file ({file})")]
    NotKept {
        /// Which rollout.
        rollout: RolloutId,
        /// Why the file could not be written.
        file: io::Error,
        /// Why the database did not take it.
        source: Box<StoreError>,
    },
    /// An export could not be written.
    #[error("writing the trajectory of rollout {rollout} failed")]
    Export {
        /// Which rollout.
        rollout: RolloutId,
        /// Why.
        source: io::Error,
    },
    /// An export could not be begun or ended.
    #[error("ending an export failed")]
    ExportEnd(#[source] io::Error),
    /// A rollout that was exported elsewhere cannot be taken in.
    #[error("rollout {rollout} cannot be taken in: {problem}")]
    Import {
        /// Which rollout.
        rollout: RolloutId,
        /// Why not.
        problem: ImportProblem,
    },
    /// A document has no rollout in it that could be taken in.
    #[error("the document is of a rollout that had not begun")]
    ImportEmpty,
    /// A task of the runtime was ended from outside.
    #[error("{operation} was interrupted")]
    Interrupted {
        /// What was under way.
        operation: &'static str,
        /// By what.
        source: tokio::task::JoinError,
    },
}

/// Why a rollout cannot be taken in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ImportProblem {
    /// It was exported before it was over.
    #[error("it was exported before it was over")]
    NotOver,
    /// It refers to nothing.
    #[error(transparent)]
    Document(#[from] DocumentError),
}

/// Kinds of failure of a database.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// The file system is full.
    #[error("no space is left")]
    NoSpace,
    /// It cannot be written to.
    #[error("it is read-only")]
    ReadOnly,
    /// The file is not a SQLite database.
    #[error("the file is not a database")]
    NotADatabase,
    /// The file is damaged.
    #[error("the file is damaged")]
    Damaged,
    /// It was in use for longer than is waited.
    #[error("it stayed locked by another process")]
    Busy,
    /// It cannot be opened.
    #[error("it cannot be opened")]
    CannotOpen,
    /// Reading or writing the file failed.
    #[error("reading or writing the file failed")]
    InputOutput,
    /// Something else.
    #[error("unexpected answer")]
    Other,
}

impl StoreError {
    /// What may help, where that is known.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::File { source, path, .. } => match source.kind() {
                io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => Some(format!(
                    "make {} writable, or choose another place with --data-dir",
                    directory(path).display()
                )),
                io::ErrorKind::StorageFull => {
                    Some("free some space, or choose another place with --data-dir".into())
                }
                _ => None,
            },
            Self::Missing { .. } => {
                Some("run a rollout first, or name the data directory with --data-dir".into())
            }
            Self::NotOurs { .. } => Some("choose another place with --data-dir".into()),
            Self::NewerSchema { .. } => {
                Some("use the version of dressage that wrote it, or a later one".into())
            }
            Self::OlderSchema { .. } => {
                Some("run any dressage command that writes once to bring it up to date".into())
            }
            Self::Database { problem, path, .. } => problem.hint(path),
            Self::Removed { path, .. } => Some(format!(
                "run it again, and leave {} in place until it has ended",
                directory(path).display()
            )),
            Self::NotFound { .. } => Some("`dressage list` shows the rollouts there are".into()),
            Self::Ambiguous { .. } => Some("give more of the id".into()),
            Self::KeptAside { source, .. } => Some(format!(
                "it is taken into the database when that is opened next{}",
                source.hint().map(|hint| format!("; {hint}")).unwrap_or_default()
            )),
            Self::NotKept { source, .. } => source.hint(),
            Self::Unreadable { .. } => Some("the database was damaged or changed by another program".into()),
            Self::Unsound { path, .. } => Problem::Damaged.hint(path),
            Self::Migrate { .. }
            | Self::NotStorable { .. }
            | Self::NoSuchCall { .. }
            | Self::Incomplete { .. }
            | Self::Export { .. }
            | Self::ExportEnd(_)
            | Self::Import { .. }
            | Self::ImportEmpty
            | Self::Interrupted { .. } => None,
        }
    }

    pub(crate) fn database(operation: &'static str, path: &Path, source: sqlx::Error) -> Self {
        Self::Database {
            operation,
            path: path.to_owned(),
            problem: Problem::of(&source),
            source: Box::new(source),
        }
    }

    /// Why, in a few words, where that is known.
    pub(crate) fn reason(&self) -> Option<String> {
        match self {
            Self::Removed { path, .. } => Some(format!("{} was removed or replaced", path.display())),
            _ => match self.problem()? {
                Problem::Other => None,
                problem => Some(problem.to_string()),
            },
        }
    }

    /// The kind of failure, where it was the database's.
    #[must_use]
    pub fn problem(&self) -> Option<Problem> {
        match self {
            Self::Database { problem, .. } => Some(*problem),
            Self::KeptAside { source, .. } | Self::NotKept { source, .. } => source.problem(),
            _ => None,
        }
    }
}

fn directory(path: &Path) -> &Path {
    path.parent().unwrap_or(path)
}

impl Problem {
    /// By SQLite's primary result code, the low byte of the extended one (sqlite.org/rescode.html).
    fn of(error: &sqlx::Error) -> Self {
        match error {
            sqlx::Error::PoolTimedOut => Self::Busy,
            sqlx::Error::Io(source) if source.kind() == io::ErrorKind::StorageFull => Self::NoSpace,
            sqlx::Error::Io(_) => Self::InputOutput,
            sqlx::Error::Database(error) => {
                let code: u32 = error
                    .code()
                    .and_then(|code| code.parse().ok())
                    .unwrap_or_default();
                match code & 0xff {
                    // SQLITE_IOERR_SHMSIZE, which "may indicate that the underlying filesystem volume is out of space".
                    _ if code == 4874 => Self::NoSpace,
                    5 | 6 => Self::Busy,
                    8 => Self::ReadOnly,
                    10 => Self::InputOutput,
                    11 => Self::Damaged,
                    13 => Self::NoSpace,
                    14 => Self::CannotOpen,
                    26 => Self::NotADatabase,
                    _ => Self::Other,
                }
            }
            _ => Self::Other,
        }
    }

    fn hint(self, path: &Path) -> Option<String> {
        let directory = directory(path).display();
        match self {
            Self::NoSpace => Some(format!("free some space on the file system of {directory}")),
            Self::ReadOnly | Self::CannotOpen => Some(format!(
                "make {directory} writable, or choose another place with --data-dir"
            )),
            Self::NotADatabase | Self::Damaged => Some(format!(
                "move {} aside (what `sqlite3 ... .recover` can save is in it), or choose another place with --data-dir",
                path.display()
            )),
            Self::Busy => Some("see which other process works in that directory".into()),
            Self::InputOutput => Some(format!(
                "check the disk that {directory} is on, and limits on file sizes"
            )),
            Self::Other => None,
        }
    }
}
