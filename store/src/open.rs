use crate::error::{Problem, StoreError};
use crate::unsaved::Unsaved;
use sqlx::migrate::{MigrateError, Migrator};
use sqlx::sqlite::{
    SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteSynchronous,
};
use sqlx::{ConnectOptions, Connection};
use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;
use uuid::Uuid;

pub(crate) static MIGRATOR: Migrator = sqlx::migrate!("./migrations");

const DATABASE: &str = "dressage.db";
/// Held while a database is opened, so that two processes do not make the schema at once.
const OPENING_LOCK: &str = "dressage.db.lock";
/// `PRAGMA application_id` of our databases, set by the first migration.
const APPLICATION_ID: i64 = 1_146_242_387;
/// How long to wait while another process writes. Each of our transactions takes milliseconds.
const BUSY_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a writer waits for those of its own process, of which there may be hundreds.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(60);
const READERS: u32 = 4;

/// The database in a data directory. A clone is the same database.
#[derive(Clone, Debug)]
pub struct Store {
    /// SQLite has one writer at a time; so the pool has one connection, and waiting is fair.
    pub(crate) writer: SqlitePool,
    pub(crate) readers: SqlitePool,
    pub(crate) unsaved: Unsaved,
    path: PathBuf,
    /// Device and number of the file that was opened.
    file: Option<(u64, u64)>,
}

impl Store {
    /// Opens the database in a data directory, making both where they are not there (the directory so that others may
    /// pass through it, the database for its owner alone). Takes in outcomes that it did not take earlier.
    ///
    /// # Errors
    /// A directory that cannot be made or written; a file that is no database, another program's, damaged, or of a
    /// later version.
    pub async fn open(data_dir: &Path) -> Result<Self, StoreError> {
        let path = data_dir.join(DATABASE);
        let directory = data_dir.to_owned();
        let lock = tokio::task::spawn_blocking(move || prepare(&directory))
            .await
            .map_err(|source| StoreError::Interrupted {
                operation: "opening the database",
                source,
            })??;

        let options = options(&path)
            .journal_mode(SqliteJournalMode::Wal)
            // In WAL mode what is committed survives the death of the process; a power cut may cost the last moments,
            // never the database.
            .synchronous(SqliteSynchronous::Normal)
            .foreign_keys(true);
        let writer = connect_to_write(&path, options.clone()).await?;
        check_ours(&writer, &path, Emptiness::Allowed).await?;
        MIGRATOR
            .run(&writer)
            .await
            .map_err(|error| migration(&path, error))?;
        let readers = SqlitePoolOptions::new()
            .max_connections(READERS)
            .acquire_timeout(ACQUIRE_TIMEOUT)
            .connect_lazy_with(options.pragma("query_only", "on"));
        let store = Self {
            writer,
            readers,
            unsaved: Unsaved::of(data_dir),
            file: file_at(&path),
            path,
        };
        store.name_installation().await?;
        store.take_in_unsaved().await;
        store.unsaved.reserve_space();
        drop(lock);
        Ok(store)
    }

    /// Opens the database in a data directory for reading alone, also where nothing there can be written.
    ///
    /// # Errors
    /// As [`Store::open`]; and where there is no database, or one of an earlier version.
    pub async fn open_read_only(data_dir: &Path) -> Result<Self, StoreError> {
        let path = data_dir.join(DATABASE);
        if !path.exists() {
            return Err(StoreError::Missing { path });
        }
        let options = options(&path).read_only(true);
        let readers = match connect_to_read(&path, options.clone()).await {
            // WAL needs a file beside the database that is shared among processes. Where none can be made and nothing
            // waits in the log, nobody writes either.
            Err(StoreError::Database {
                problem: Problem::CannotOpen | Problem::ReadOnly,
                ..
            }) if log_is_empty(&path) => connect_to_read(&path, options.immutable(true)).await?,
            connected => connected?,
        };
        Ok(Self {
            writer: readers.clone(),
            readers,
            unsaved: Unsaved::of(data_dir),
            file: file_at(&path),
            path,
        })
    }

    /// Ends all connections, when what is under way is done.
    pub async fn close(&self) {
        self.readers.close().await;
        self.writer.close().await;
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The id of this data directory, made with it.
    ///
    /// # Errors
    /// A database that cannot be read.
    pub async fn installation(&self) -> Result<Uuid, StoreError> {
        let id: String = sqlx::query_scalar("SELECT id FROM installation")
            .fetch_one(&self.readers)
            .await
            .map_err(|source| self.failed("reading the installation", source))?;
        id.parse().map_err(|source| {
            self.failed(
                "reading the installation",
                sqlx::Error::Decode(Box::<uuid::Error>::new(source)),
            )
        })
    }

    pub(crate) fn failed(&self, operation: &'static str, source: sqlx::Error) -> StoreError {
        if self.is_in_place() {
            StoreError::database(operation, &self.path, source)
        } else {
            self.removed(operation)
        }
    }

    /// Whether the file that was opened is still the one at its path.
    pub(crate) fn is_in_place(&self) -> bool {
        file_at(&self.path) == self.file
    }

    pub(crate) fn removed(&self, operation: &'static str) -> StoreError {
        StoreError::Removed {
            operation,
            path: self.path.clone(),
        }
    }

    async fn name_installation(&self) -> Result<(), StoreError> {
        sqlx::query("INSERT OR IGNORE INTO installation (only_row, id, created_unix_ms) VALUES (1, ?, ?)")
            .bind(Uuid::now_v7().to_string())
            .bind(jiff::Timestamp::now().as_millisecond())
            .execute(&self.writer)
            .await
            .map_err(|source| self.failed("naming the installation", source))?;
        Ok(())
    }
}

/// Makes directory and file, and takes the lock under which a database is opened.
fn prepare(data_dir: &Path) -> Result<File, StoreError> {
    let file = |operation, path: &Path| {
        let path = path.to_owned();
        move |source: io::Error| StoreError::File {
            operation,
            path,
            source,
        }
    };
    // Sandboxes run as other users, and must be able to reach what lies in here by name.
    DirBuilder::new()
        .recursive(true)
        .mode(0o711)
        .create(data_dir)
        .map_err(file("creating", data_dir))?;
    let private = |path: &Path| {
        let options = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(path);
        options.map_err(file("opening", path))
    };
    let lock = private(&data_dir.join(OPENING_LOCK))?;
    lock.lock()
        .map_err(file("locking", &data_dir.join(OPENING_LOCK)))?;
    // SQLite would make it readable to all; what it makes beside it gets this file's mode.
    private(&data_dir.join(DATABASE))?;
    Ok(lock)
}

fn options(path: &Path) -> SqliteConnectOptions {
    SqliteConnectOptions::new()
        .filename(path)
        .busy_timeout(BUSY_TIMEOUT)
        .disable_statement_logging()
}

async fn connect_to_write(path: &Path, options: SqliteConnectOptions) -> Result<SqlitePool, StoreError> {
    SqlitePoolOptions::new()
        .max_connections(1)
        .acquire_timeout(ACQUIRE_TIMEOUT)
        // When the disk is full SQLite itself ends the transaction. sqlx (0.9.0) then fails to, takes the connection to
        // be in one for ever, and every later transaction is refused; so such a connection is replaced.
        .after_release(|connection, _| {
            Box::pin(async move {
                connection.ping().await?;
                Ok(!connection.is_in_transaction())
            })
        })
        .connect_with(options)
        .await
        .map_err(|source| StoreError::database("opening the database", path, source))
}

async fn connect_to_read(path: &Path, options: SqliteConnectOptions) -> Result<SqlitePool, StoreError> {
    let readers = SqlitePoolOptions::new()
        .max_connections(READERS)
        .acquire_timeout(ACQUIRE_TIMEOUT)
        .connect_with(options)
        .await
        .map_err(|source| StoreError::database("opening the database", path, source))?;
    check_ours(&readers, path, Emptiness::Refused).await?;
    check_version(&readers, path).await?;
    Ok(readers)
}

/// Whether a database without tables will do.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Emptiness {
    Allowed,
    Refused,
}

async fn check_ours(pool: &SqlitePool, path: &Path, emptiness: Emptiness) -> Result<(), StoreError> {
    let failed = |source| StoreError::database("opening the database", path, source);
    let id: i64 = sqlx::query_scalar("PRAGMA application_id")
        .fetch_one(pool)
        .await
        .map_err(failed)?;
    let tables: i64 = sqlx::query_scalar("SELECT count(*) FROM sqlite_schema")
        .fetch_one(pool)
        .await
        .map_err(failed)?;
    if id == APPLICATION_ID || (id == 0 && tables == 0 && emptiness == Emptiness::Allowed) {
        return Ok(());
    }
    Err(StoreError::NotOurs {
        path: path.to_owned(),
    })
}

async fn check_version(pool: &SqlitePool, path: &Path) -> Result<(), StoreError> {
    let found: i64 = sqlx::query_scalar("SELECT coalesce(max(version), 0) FROM _sqlx_migrations")
        .fetch_one(pool)
        .await
        .map_err(|source| StoreError::database("reading the schema's version", path, source))?;
    let (path, known) = (path.to_owned(), known_version());
    match found.cmp(&known) {
        std::cmp::Ordering::Less => Err(StoreError::OlderSchema { path, found, known }),
        std::cmp::Ordering::Equal => Ok(()),
        std::cmp::Ordering::Greater => Err(StoreError::NewerSchema { path, found, known }),
    }
}

fn known_version() -> i64 {
    MIGRATOR
        .iter()
        .map(|migration| migration.version)
        .max()
        .unwrap_or_default()
}

fn migration(path: &Path, error: MigrateError) -> StoreError {
    let path = path.to_owned();
    match error {
        MigrateError::VersionMissing(found) => StoreError::NewerSchema {
            path,
            found,
            known: known_version(),
        },
        MigrateError::Execute(source) | MigrateError::ExecuteMigration(source, _) => {
            StoreError::database("preparing the schema", &path, source)
        }
        source => StoreError::Migrate {
            path,
            source: Box::new(source),
        },
    }
}

fn file_at(path: &Path) -> Option<(u64, u64)> {
    let found = std::fs::metadata(path).ok()?;
    Some((found.dev(), found.ino()))
}

fn log_is_empty(path: &Path) -> bool {
    let mut log = path.as_os_str().to_owned();
    log.push("-wal");
    std::fs::metadata(PathBuf::from(log)).map_or(true, |log| log.len() == 0)
}
