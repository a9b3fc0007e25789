//! A file is written under another name in its folder, and gets its own when it is whole.

use crate::error::Failure;
use crate::exit::Exit;
use dressage_store::{Compression, Format};
use dressage_wire::export::Shape;
use std::fs::Permissions;
use std::io::{self, IsTerminal, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tempfile::NamedTempFile;

/// Where rows go, and how they are written there.
#[derive(Debug)]
pub struct Destination {
    /// As people read it.
    pub name: String,
    /// How rows are written.
    pub format: Format,
    /// How lines are compressed.
    pub compression: Compression,
    place: Place,
}

#[derive(Debug)]
enum Place {
    Standard,
    File(PathBuf),
}

impl Destination {
    /// Reads what was asked for.
    ///
    /// # Errors
    /// A format that standard output does not take, or a kind of URL that is not known.
    pub fn of(output: Option<&str>, shape: Shape, format: Option<Format>) -> Result<Self, Failure> {
        let Some(output) = output else {
            if format == Some(Format::Parquet) && io::stdout().is_terminal() {
                return Err(
                    Failure::input("Parquet is nothing for a terminal").hint("name a file with `--output`")
                );
            }
            return Ok(Self {
                name: "standard output".into(),
                format: format.unwrap_or_default(),
                compression: Compression::None,
                place: Place::Standard,
            });
        };
        if let Some((scheme, rest)) = output.split_once("://") {
            return match scheme {
                "file" => Self::of(Some(rest), shape, format),
                _ => Err(
                    Failure::input(format!("`{scheme}` is not a kind of URL that can be written to"))
                        .hint("known are files and file://"),
                ),
            };
        }
        let mut path = PathBuf::from(output);
        if output.ends_with('/') || path.is_dir() {
            path.push(match format.unwrap_or_default() {
                Format::Jsonl => format!("{shape}.jsonl"),
                Format::Parquet => format!("{shape}.parquet"),
            });
        }
        let (by_name, compression) = by_name(&path);
        if compression == Compression::Zstd && format == Some(Format::Parquet) {
            return Err(Failure::input("Parquet is compressed in itself").hint("leave .zst off the name"));
        }
        Ok(Self {
            name: path.display().to_string(),
            format: format.or(by_name).unwrap_or_default(),
            compression,
            place: Place::File(path),
        })
    }

    /// Whether it has a name of its own.
    #[must_use]
    pub fn is_named(&self) -> bool {
        matches!(self.place, Place::File(_))
    }

    /// Opens it.
    ///
    /// # Errors
    /// A folder that cannot be made, or a file that cannot be written.
    pub async fn open(&self) -> Result<Writer, Failure> {
        let to = match &self.place {
            Place::Standard => To::Standard(io::stdout()),
            Place::File(path) => To::File(file_beside(path).map_err(|error| self.failure(&error))?),
        };
        Ok(Writer {
            to,
            written: Arc::default(),
        })
    }

    /// Gives what is whole its name.
    ///
    /// # Errors
    /// A file that cannot be given it.
    pub async fn keep(&self, writer: Writer) -> Result<(), Failure> {
        match (writer.to, &self.place) {
            (To::File(file), Place::File(path)) => {
                let kept = file
                    .as_file()
                    .sync_all()
                    .and_then(|()| file.persist(path).map_err(|error| error.error));
                kept.map(drop).map_err(|error| self.failure(&error))
            }
            _ => Ok(()),
        }
    }

    /// It cannot be written.
    #[must_use]
    pub fn failure(&self, error: &io::Error) -> Failure {
        Failure::new(
            Exit::MachineLacks,
            format!("`{}` could not be written", self.name),
        )
        .cause(error.to_string())
    }
}

fn by_name(path: &Path) -> (Option<Format>, Compression) {
    let name = path
        .file_name()
        .map(|name| name.to_string_lossy())
        .unwrap_or_default();
    let (name, compression) = match name.strip_suffix(".zst") {
        Some(name) => (name, Compression::Zstd),
        None => (&*name, Compression::None),
    };
    let format = match name.rsplit_once('.') {
        Some((_, "parquet")) => Some(Format::Parquet),
        Some((_, "jsonl" | "json")) => Some(Format::Jsonl),
        _ => None,
    };
    (format, compression)
}

fn file_beside(path: &Path) -> io::Result<NamedTempFile> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    std::fs::create_dir_all(folder)?;
    tempfile::Builder::new()
        .prefix(".dressage-export-")
        // As any file that is made: what the umask leaves.
        .permissions(Permissions::from_mode(0o666))
        .tempfile_in(folder)
}

/// Writes to it, and counts.
#[derive(Debug)]
pub struct Writer {
    /// Bytes that were written.
    pub written: Arc<AtomicU64>,
    to: To,
}

#[derive(Debug)]
enum To {
    Standard(io::Stdout),
    /// Removed where it is dropped before it has its name.
    File(NamedTempFile),
}

impl Write for Writer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = match &mut self.to {
            To::Standard(out) => out.write(bytes)?,
            To::File(file) => file.write(bytes)?,
        };
        self.written.fetch_add(count as u64, Ordering::Relaxed);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut self.to {
            To::Standard(out) => out.flush(),
            To::File(file) => file.flush(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_says_how_it_is_written() {
        let of = |output: &str, format| {
            let made = Destination::of(Some(output), Shape::Verl, format).unwrap();
            (made.name, made.format, made.compression)
        };
        let plain = Compression::None;
        assert_eq!(of("a/b.jsonl", None), ("a/b.jsonl".into(), Format::Jsonl, plain));
        assert_eq!(
            of("b.jsonl.zst", None),
            ("b.jsonl.zst".into(), Format::Jsonl, Compression::Zstd)
        );
        assert_eq!(
            of("b.parquet", None),
            ("b.parquet".into(), Format::Parquet, plain)
        );
        assert_eq!(of("new/", None), ("new/verl.jsonl".into(), Format::Jsonl, plain));
        assert_eq!(
            of("new/", Some(Format::Parquet)),
            ("new/verl.parquet".into(), Format::Parquet, plain)
        );
        assert_eq!(
            of("file:///x/b.parquet", None),
            ("/x/b.parquet".into(), Format::Parquet, plain)
        );
        assert!(Destination::of(Some("gopher://x/y"), Shape::Verl, None).is_err());
    }
}
