use crate::error::StoreError;
use crate::open::Store;
use dressage_wire::rollout::RolloutOutcome;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Files of this size, and so many of them, are kept to be written over with outcomes when nothing else can be written.
const RESERVE_BYTES: u64 = 1 << 20;
const RESERVES: u32 = 4;

/// The folder for outcomes that the database would not take.
#[derive(Clone, Debug)]
pub(crate) struct Unsaved {
    folder: PathBuf,
    /// Whether this process has kept something there that may be taken in.
    waiting: Arc<AtomicBool>,
}

impl Unsaved {
    pub(crate) fn of(data_dir: &Path) -> Self {
        Self {
            folder: data_dir.join("unsaved"),
            waiting: Arc::default(),
        }
    }

    /// Takes up space to fall back on. Where it cannot be had, outcomes do without.
    pub(crate) fn reserve_space(&self) {
        for path in self.reserves() {
            if std::fs::metadata(&path).is_ok_and(|file| file.len() == RESERVE_BYTES) {
                continue;
            }
            // Written, not only made that long: a hole takes up no space.
            let zeros = vec![0; usize::try_from(RESERVE_BYTES).unwrap_or_default()];
            if let Err(error) = self.write_new(&path, &zeros) {
                tracing::debug!(error = %error, "no space reserved for outcomes");
                return;
            }
        }
    }

    /// Writes an outcome where it is found again. It is there whole or not at all.
    fn keep(&self, outcome: &RolloutOutcome) -> io::Result<PathBuf> {
        let text = serde_json::to_vec(outcome).map_err(io::Error::from)?;
        let path = self.folder.join(format!("{}.json", outcome.id));
        self.write_new(&path, &text)
            .or_else(|_| self.write_over_a_reserve(&path, &text))?;
        self.waiting.store(true, Ordering::Release);
        Ok(path)
    }

    /// Files with outcomes.
    fn files(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let paths = entries.map(|entry| entry.path());
        paths
            .filter(|path| path.extension().is_some_and(|extension| extension == "json"))
            .collect()
    }

    fn reserves(&self) -> impl Iterator<Item = PathBuf> + '_ {
        (0..RESERVES).map(|number| self.folder.join(format!("reserve.{number}")))
    }

    fn write_new(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.folder)?;
        let half_done = half_done(path);
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600);
        let written = options.open(&half_done).and_then(|file| fill(file, bytes));
        let moved = written.and_then(|()| std::fs::rename(&half_done, path));
        if moved.is_err() && std::fs::remove_file(&half_done).is_err() {
            tracing::debug!(path = %half_done.display(), "a half-written file stays behind");
        }
        moved?;
        File::open(&self.folder)?.sync_all()
    }

    /// Blocks that a file has can be written over when the file system has no others; freed first, they would be taken
    /// by whoever writes at that moment.
    fn write_over_a_reserve(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        if bytes.len() as u64 > RESERVE_BYTES {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let half_done = half_done(path);
        let claimed = self
            .reserves()
            .find(|reserve| std::fs::rename(reserve, &half_done).is_ok());
        claimed.ok_or(io::ErrorKind::StorageFull)?;
        fill(OpenOptions::new().write(true).open(&half_done)?, bytes)?;
        std::fs::rename(&half_done, path)?;
        File::open(&self.folder)?.sync_all()
    }
}

fn half_done(path: &Path) -> PathBuf {
    path.with_extension(format!("{}.part", std::process::id()))
}

/// Makes `bytes` the content of a file, on the disk.
fn fill(mut file: File, bytes: &[u8]) -> io::Result<()> {
    file.write_all(bytes)?;
    file.set_len(bytes.len() as u64)?;
    file.sync_all()
}

impl Store {
    /// Stores an outcome; where the database does not take it, keeps it in a file.
    pub(crate) async fn finish_or_keep(&self, outcome: &RolloutOutcome) -> Result<(), StoreError> {
        let rollout = outcome.id;
        let refused = match self.finish(outcome).await {
            Ok(()) => {
                if self.unsaved.waiting.swap(false, Ordering::AcqRel) {
                    self.take_in_unsaved().await;
                }
                return Ok(());
            }
            // Nothing could take it in later.
            Err(refused @ (StoreError::NotFound { .. } | StoreError::Removed { .. })) => return Err(refused),
            Err(refused) => Box::new(refused),
        };
        match self.unsaved.keep(outcome) {
            Ok(path) => Err(StoreError::KeptAside {
                rollout,
                path,
                source: refused,
            }),
            Err(file) => Err(StoreError::NotKept {
                rollout,
                file,
                source: refused,
            }),
        }
    }

    /// Takes in what was kept in files. What cannot be taken in stays there.
    pub(crate) async fn take_in_unsaved(&self) {
        for path in self.unsaved.files() {
            let outcome = std::fs::read(&path)
                .map_err(|error| error.to_string())
                .and_then(|text| {
                    serde_json::from_slice::<RolloutOutcome>(&text).map_err(|error| error.to_string())
                });
            let taken = match outcome {
                Ok(outcome) => self.finish(&outcome).await.map_err(|error| error.to_string()),
                Err(error) => Err(error),
            };
            match taken {
                Ok(()) => match std::fs::remove_file(&path) {
                    Ok(()) => {}
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    Err(error) => {
                        tracing::warn!(path = %path.display(), error = %error, "an outcome taken in could not be removed");
                    }
                },
                Err(error) => {
                    tracing::warn!(path = %path.display(), error, "an outcome kept aside could not be taken in");
                }
            }
        }
    }
}
