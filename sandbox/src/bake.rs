//! Images with what sandboxes need in them: `dressage-tap`, and the trees of agents.
//!
//! They are in `/opt/dressage`, each in a folder that is called by a mark of its contents, and root's alone. A sandbox of such an
//! image is sent nothing that is there; of another version, or where others could have written, it is sent its own.

/// What an image is built of, as a folder.
mod context;

pub use context::{DOCKERFILE, write_context};

pub(crate) use context::{archive_name, dockerfile};

use crate::remote::packed::{Packed, pack};
use crate::{Asset, SandboxError};
use async_trait::async_trait;
use std::io;
use std::path::{Path, PathBuf};

/// What is to be built.
#[derive(Clone, Debug, Default)]
pub struct Recipe {
    /// What the image is called.
    pub name: String,
    /// The image that it is made from; one of the baker's choice if unset.
    pub from: Option<String>,
    /// What is put into it besides `dressage-tap`, by names for people.
    pub contents: Vec<Asset>,
    /// Processors of its sandboxes, where the image decides on them.
    pub cpus: Option<u32>,
    /// Memory of its sandboxes, likewise.
    pub memory_mb: Option<u32>,
}

/// An image that was built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Baked {
    /// By which tasks name it.
    pub image: String,
    /// What the provider calls it, where that is another name.
    pub template: Option<String>,
    /// What the provider calls the build.
    pub build: Option<String>,
    /// What was sent for it, in bytes. What was there already is not sent.
    pub sent_bytes: u64,
}

/// What happens meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BakeEvent<'a> {
    /// Something goes out.
    Sending {
        /// What.
        what: &'a str,
        /// How long it is.
        bytes: u64,
    },
    /// Something is there already.
    IsThere {
        /// What.
        what: &'a str,
    },
    /// It is being built.
    Building {
        /// What becomes of that if nobody waits for it.
        unattended: &'a str,
    },
    /// The build says something.
    Line(&'a str),
}

/// Who hears of it.
pub type Hearing<'a> = &'a (dyn Fn(BakeEvent<'_>) + Send + Sync);

/// Builds images for a backend.
#[async_trait]
pub trait Baker: Send + Sync {
    /// Builds one. It may go on where this is dropped: [`BakeEvent::Building`] says so.
    async fn bake(&self, recipe: &Recipe, heard: Hearing<'_>) -> Result<Baked, BakeError>;
}

/// Why there is no image.
#[derive(Debug, thiserror::Error)]
pub enum BakeError {
    /// What goes into it could not be packed.
    #[error("what goes into the image could not be packed")]
    Pack(#[source] io::Error),
    /// A file could not be written.
    #[error("`{}` could not be written", path.display())]
    Write {
        /// Which.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// Where a file is to be written there is another that is none of ours.
    #[error("`{}` is none that this program has written, and is left alone", .0.display())]
    Occupied(PathBuf),
    /// A name that no image has.
    #[error("`{0}` can be no image's name")]
    Name(String),
    /// The backend cannot build.
    #[error(transparent)]
    Backend(#[from] SandboxError),
    /// It could not be asked, or refused.
    #[error("backend `{backend}` could not {operation}")]
    Failed {
        /// Its name.
        backend: &'static str,
        /// What was asked of it.
        operation: String,
        /// Why not.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
        /// What would help.
        remedy: Option<&'static str>,
    },
    /// A step of the build failed.
    #[error("the build failed at {step}: {reason}")]
    Step {
        /// Which.
        step: String,
        /// What was said of it.
        reason: String,
    },
    /// It was begun, and how it goes cannot be asked any more.
    #[error("how {build} ends is not known")]
    Unwatched {
        /// Which.
        build: String,
        /// Why not.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl BakeError {
    /// What may help.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Pack(_) => Some("the cache directory must be writable and have space left".into()),
            Self::Occupied(_) => Some("name a folder of its own".into()),
            Self::Backend(error) => error.hint(),
            Self::Failed { remedy, .. } => remedy.map(str::to_owned),
            Self::Step { .. } => Some("the lines before it say more".into()),
            Self::Unwatched { .. } => Some("it goes on without this program".into()),
            Self::Write { .. } | Self::Name(_) => None,
        }
    }
}

/// Something that goes into an image.
pub(crate) struct Layer {
    /// For people.
    pub(crate) what: String,
    pub(crate) packed: Packed,
    pub(crate) bytes: u64,
}

/// Packs all that goes into an image, each once: what changes most often is the last.
pub(crate) async fn layers(cache: &Path, tap: &Path, recipe: &Recipe) -> Result<Vec<Layer>, BakeError> {
    let (cache, tap, contents) = (cache.to_owned(), tap.to_owned(), recipe.contents.clone());
    tokio::task::spawn_blocking(move || pack_all(&cache, &tap, &contents))
        .await
        .unwrap_or_else(|error| Err(io::Error::other(error)))
        .map_err(BakeError::Pack)
}

fn pack_all(cache: &Path, tap: &Path, contents: &[Asset]) -> io::Result<Vec<Layer>> {
    let sources = contents
        .iter()
        .map(|asset| (asset.name.as_str(), asset.host_path.as_path()))
        .chain([("dressage-tap", tap)]);
    let mut layers: Vec<Layer> = Vec::new();
    for (what, source) in sources {
        let packed = pack(cache, source)?;
        if layers.iter().any(|layer| layer.packed.mark == packed.mark) {
            continue;
        }
        layers.push(Layer {
            what: what.to_owned(),
            bytes: packed.archive.metadata()?.len(),
            packed,
        });
    }
    Ok(layers)
}

/// A line of a build's log, as it can be shown: without what moves cursors and colours.
pub(crate) fn plain(line: &str) -> String {
    const LONGEST: usize = 2000;
    let mut plain = String::new();
    let mut characters = line.chars().take(LONGEST);
    while let Some(character) = characters.next() {
        match character {
            // The rest of a sequence that ends with a letter.
            '\u{1b}' => while characters.next().is_some_and(|next| !next.is_ascii_alphabetic()) {},
            '\t' => plain.push(' '),
            other if other.is_control() => {}
            other => plain.push(other),
        }
    }
    plain.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_a_log_moves_no_cursor() {
        assert_eq!(plain("\u{1b}[32mStep\u{1b}[0m 1\t\u{7}of 2 \r"), "Step 1 of 2");
        assert_eq!(plain(&"x".repeat(9000)).len(), 2000);
    }

    #[test]
    fn the_same_tree_under_two_names_is_packed_once() {
        let folder = tempfile::tempdir().unwrap();
        let (tap, tree) = (folder.path().join("tap"), folder.path().join("tree"));
        std::fs::write(&tap, "a program").unwrap();
        std::fs::create_dir(&tree).unwrap();
        let asset = |name: &str| Asset {
            name: name.into(),
            host_path: tree.clone(),
        };
        let layers = pack_all(folder.path(), &tap, &[asset("one"), asset("two")]).unwrap();
        let names: Vec<&str> = layers.iter().map(|layer| layer.what.as_str()).collect();
        assert_eq!(names, ["one", "dressage-tap"]);
    }
}
