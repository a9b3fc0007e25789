//! A file is written under another name in its folder, and gets its own when it is whole; an object in a store is there when
//! it is whole.

use crate::error::Failure;
use crate::exit::Exit;
use crate::objects::{ObjectPlace, ObjectWriter, Upload};
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
    Object(ObjectPlace),
}

/// What is being written, and what gives it its name.
#[derive(Debug)]
pub struct Opened {
    /// Takes the rows.
    pub writer: Writer,
    /// Keeps them, or not.
    pub pending: Pending,
}

/// Something that is not whole yet.
#[derive(Debug)]
pub struct Pending(Option<Upload>);

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
        let in_folder = match format.unwrap_or_default() {
            Format::Jsonl => format!("{shape}.jsonl"),
            Format::Parquet => format!("{shape}.parquet"),
        };
        if ObjectPlace::is_url(output) {
            let name = match ObjectPlace::is_folder(output) {
                true => format!("{}/{in_folder}", output.trim_end_matches('/')),
                false => output.to_owned(),
            };
            // What is wrong with the place is told before what is wrong with the name.
            let place = ObjectPlace::of(&name)?;
            let (format, compression) = way(Path::new(&name), format)?;
            return Ok(Self {
                name,
                format,
                compression,
                place: Place::Object(place),
            });
        }
        let output = output.strip_prefix("file://").unwrap_or(output);
        let mut path = PathBuf::from(output);
        if output.ends_with('/') || path.is_dir() {
            path.push(in_folder);
        }
        let (format, compression) = way(&path, format)?;
        Ok(Self {
            name: path.display().to_string(),
            format,
            compression,
            place: Place::File(path),
        })
    }

    /// Whether it has a name of its own.
    #[must_use]
    pub fn is_named(&self) -> bool {
        !matches!(self.place, Place::Standard)
    }

    /// Opens it.
    ///
    /// # Errors
    /// A folder that cannot be made, or a file or object that cannot be written.
    pub async fn open(&self) -> Result<Opened, Failure> {
        let (to, upload) = match &self.place {
            Place::Standard => (To::Standard(io::stdout()), None),
            Place::File(path) => {
                let file = file_beside(path).map_err(|error| self.failure(&error))?;
                (To::File(file), None)
            }
            Place::Object(place) => {
                let (writer, upload) = Upload::begin(place).await?;
                (To::Object(writer), Some(upload))
            }
        };
        let writer = Writer {
            to,
            written: Arc::default(),
        };
        Ok(Opened {
            writer,
            pending: Pending(upload),
        })
    }

    /// Gives what is whole its name.
    ///
    /// # Errors
    /// A file that cannot be given it, or an object that cannot be written to its end.
    pub async fn keep(&self, writer: Writer, pending: Pending) -> Result<(), Failure> {
        match (writer.to, &self.place) {
            (To::Object(writer), Place::Object(place)) => match pending.0 {
                Some(upload) => upload
                    .keep(writer)
                    .await
                    .map_err(|error| place.write_failure(&error)),
                None => Ok(()),
            },
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

    /// Leaves nothing of what was written. Gives the failure that it came by itself to, if it did.
    pub async fn abandon(&self, pending: Pending) -> Option<Failure> {
        let error = pending.0?.abandon().await?;
        match &self.place {
            Place::Object(place) => Some(place.write_failure(&error)),
            Place::Standard | Place::File(_) => None,
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

/// How it is written, as it was asked for and as the name says.
fn way(path: &Path, format: Option<Format>) -> Result<(Format, Compression), Failure> {
    let (by_name, compression) = by_name(path);
    if compression == Compression::Zstd && format == Some(Format::Parquet) {
        return Err(Failure::input("Parquet is compressed in itself").hint("leave .zst off the name"));
    }
    Ok((format.or(by_name).unwrap_or_default(), compression))
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
    /// Abandoned where its upload is dropped before it is kept.
    Object(ObjectWriter),
}

impl Write for Writer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = match &mut self.to {
            To::Standard(out) => out.write(bytes)?,
            To::File(file) => file.write(bytes)?,
            To::Object(object) => object.write(bytes)?,
        };
        self.written.fetch_add(count as u64, Ordering::Relaxed);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut self.to {
            To::Standard(out) => out.flush(),
            To::File(file) => file.flush(),
            To::Object(object) => object.flush(),
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
        for (url, name, format) in [
            ("s3://bucket", "s3://bucket/verl.jsonl", Format::Jsonl),
            ("s3://bucket/a/", "s3://bucket/a/verl.jsonl", Format::Jsonl),
            (
                "s3://bucket/a/b.parquet",
                "s3://bucket/a/b.parquet",
                Format::Parquet,
            ),
        ] {
            assert_eq!(of(url, None), (name.into(), format, plain));
        }
        assert!(Destination::of(Some("gopher://x/y"), Shape::Verl, None).is_err());
    }
}
