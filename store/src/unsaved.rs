use crate::error::{Problem, StoreError};
use crate::open::Store;
use dressage_wire::rollout::RolloutOutcome;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Space that is kept for outcomes when the file system is full otherwise.
const RESERVE_BYTES: usize = 1 << 20;
const RESERVE: &str = "reserve";

/// The folder for outcomes that the database would not take.
#[derive(Clone, Debug)]
pub(crate) struct Unsaved {
    folder: PathBuf,
}

impl Unsaved {
    pub(crate) fn of(data_dir: &Path) -> Self {
        Self {
            folder: data_dir.join("unsaved"),
        }
    }

    /// Takes up the space that [`Unsaved::free_space`] gives back. Where it cannot be had, outcomes do without.
    pub(crate) fn reserve_space(&self) {
        if std::fs::metadata(self.folder.join(RESERVE)).is_ok_and(|file| file.len() >= RESERVE_BYTES as u64) {
            return;
        }
        if let Err(error) = self.write(RESERVE, &vec![0; RESERVE_BYTES]) {
            tracing::debug!(error = %error, "no space reserved for outcomes");
        }
    }

    pub(crate) fn free_space(&self) {
        if let Err(error) = std::fs::remove_file(self.folder.join(RESERVE)) {
            tracing::debug!(error = %error, "no reserved space to free");
        }
    }

    /// Writes an outcome where it is found again. It is there whole or not at all.
    pub(crate) fn keep(&self, outcome: &RolloutOutcome) -> io::Result<PathBuf> {
        let text = serde_json::to_vec(outcome).map_err(io::Error::from)?;
        let name = format!("{}.json", outcome.id);
        self.write(&name, &text)?;
        Ok(self.folder.join(name))
    }

    /// Files with outcomes.
    fn files(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let paths = entries.map(|entry| entry.path());
        paths.filter(|path| path.extension().is_some_and(|extension| extension == "json")).collect()
    }

    fn write(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.folder)?;
        let half_done = self.folder.join(format!("{name}.{}.part", std::process::id()));
        let written = write_synced(&half_done, bytes).and_then(|()| std::fs::rename(&half_done, self.folder.join(name)));
        if written.is_err() && std::fs::remove_file(&half_done).is_err() {
            tracing::debug!(path = %half_done.display(), "a half-written file stays behind");
        }
        written?;
        File::open(&self.folder)?.sync_all()
    }
}

fn write_synced(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

impl Store {
    /// Stores an outcome; where the database does not take it, keeps it in a file.
    pub(crate) async fn finish_or_keep(&self, outcome: &RolloutOutcome) -> Result<(), StoreError> {
        let refused = match self.finish(outcome).await {
            Ok(()) => return Ok(()),
            Err(unknown @ StoreError::NotFound { .. }) => return Err(unknown),
            Err(refused) => refused,
        };
        if refused.problem() == Some(Problem::NoSpace) {
            self.unsaved.free_space();
            if self.finish(outcome).await.is_ok() {
                return Ok(());
            }
        }
        let source = Box::new(refused);
        let rollout = outcome.id;
        match self.unsaved.keep(outcome) {
            Ok(path) => Err(StoreError::KeptAside { rollout, path, source }),
            Err(file) => Err(StoreError::NotKept { rollout, file, source }),
        }
    }

    /// Takes in what was kept in files. What cannot be taken in stays there.
    pub(crate) async fn take_in_unsaved(&self) {
        for path in self.unsaved.files() {
            let outcome = std::fs::read(&path)
                .map_err(|error| error.to_string())
                .and_then(|text| serde_json::from_slice::<RolloutOutcome>(&text).map_err(|error| error.to_string()));
            let taken = match outcome {
                Ok(outcome) => self.finish(&outcome).await.map_err(|error| error.to_string()),
                Err(error) => Err(error),
            };
            match taken {
                Ok(()) => {
                    if let Err(error) = std::fs::remove_file(&path) {
                        tracing::warn!(path = %path.display(), error = %error, "an outcome taken in could not be removed");
                    }
                }
                Err(error) => {
                    tracing::warn!(path = %path.display(), error, "an outcome kept aside could not be taken in");
                }
            }
        }
    }
}
