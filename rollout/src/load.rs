//! Task files: one file, or every one in a folder.

use dressage_wire::task::{FileContent, Task, TaskError};
use std::io::{self, Read as _};
use std::path::{Component, Path, PathBuf};

/// Bytes that a task file or one of its source files may have.
const FILE_MAX_BYTES: u64 = 256 << 20;

/// Why there are no tasks.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// A file or folder could not be read.
    #[error("`{path}` could not be read", path = path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// The name ends neither in .toml nor in .json.
    #[error("`{path}` is not a task file: its name ends neither in .toml nor in .json", path = path.display())]
    UnknownKind {
        /// Which.
        path: PathBuf,
    },
    /// A folder without any task file.
    #[error("folder `{path}` has no task file (*.toml, *.json)", path = path.display())]
    EmptyFolder {
        /// Which.
        path: PathBuf,
    },
    /// A file is not text.
    #[error("task file `{path}` is not UTF-8 text", path = path.display())]
    NotText {
        /// Which.
        path: PathBuf,
    },
    /// A file is larger than any task.
    #[error("`{path}` is over the limit of {limit} bytes", path = path.display())]
    TooLarge {
        /// Which.
        path: PathBuf,
        /// The limit.
        limit: u64,
    },
    /// The task is not a task.
    #[error("task file `{path}` is not usable", path = path.display())]
    Task {
        /// Which.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        source: TaskError,
    },
    /// A source leads out of the task file's folder.
    #[error("source `{source_path}` in task file `{path}` leads out of the file's folder", path = path.display())]
    SourceOutside {
        /// The task file.
        path: PathBuf,
        /// The source, as the task has it.
        source_path: String,
    },
}

impl LoadError {
    /// What may help, where that is known.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Task { source, .. } => source.hint(),
            Self::EmptyFolder { .. } => Some(
                "put task files directly into it, one for each task; to tell an agent of a folder, write a sentence"
                    .into(),
            ),
            Self::SourceOutside { .. } => Some("copy or move the file beside the task file".into()),
            _ => None,
        }
    }
}

/// Loads the task file at `path`, or every task file directly in the folder there, by name.
///
/// A task without an `id` gets its file's name. Files that a task refers to are read now.
///
/// # Errors
/// The first file that is not usable.
pub fn tasks(path: &Path) -> Result<Vec<(PathBuf, Task)>, LoadError> {
    let read = |source| LoadError::Read {
        path: path.to_owned(),
        source,
    };
    if !std::fs::metadata(path).map_err(read)?.is_dir() {
        return Ok(vec![(path.to_owned(), task(path)?)]);
    }
    let files = files(path).map_err(read)?;
    if files.is_empty() {
        return Err(LoadError::EmptyFolder {
            path: path.to_owned(),
        });
    }
    files
        .into_iter()
        .map(|file| task(&file).map(|task| (file, task)))
        .collect()
}

/// The task files directly in a folder, by name.
///
/// # Errors
/// Where the folder could not be read.
pub fn files(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let file = entry?.path();
        if kind(&file).is_some() && file.is_file() {
            files.push(file);
        }
    }
    files.sort();
    Ok(files)
}

fn task(path: &Path) -> Result<Task, LoadError> {
    let kind = kind(path).ok_or_else(|| LoadError::UnknownKind {
        path: path.to_owned(),
    })?;
    let bytes = read(path)?;
    let unusable = |source| LoadError::Task {
        path: path.to_owned(),
        source,
    };
    let mut task = match kind {
        Kind::Json => Task::unchecked_from_json(&bytes).map_err(unusable)?,
        Kind::Toml => {
            let text = String::from_utf8(bytes).map_err(|_| LoadError::NotText {
                path: path.to_owned(),
            })?;
            Task::unchecked_from_toml(&text).map_err(unusable)?
        }
    };
    let files = task.files.values_mut().chain(task.verify_files.values_mut());
    load_sources(path, files.chain(&mut task.dockerfile))?;
    task.validate().map_err(unusable)?;
    if task.id.is_none() {
        task.id = path.file_stem().map(|stem| stem.to_string_lossy().into_owned());
    }
    Ok(task)
}

fn load_sources<'a>(
    task_file: &Path,
    contents: impl Iterator<Item = &'a mut FileContent>,
) -> Result<(), LoadError> {
    for content in contents {
        if let FileContent::Source { source } = content {
            let bytes = read(&source_path(task_file, source)?)?;
            *content = FileContent::of(bytes);
        }
    }
    Ok(())
}

/// Where a source is: below the task file's folder, links resolved.
fn source_path(task_file: &Path, source: &str) -> Result<PathBuf, LoadError> {
    let outside = || LoadError::SourceOutside {
        path: task_file.to_owned(),
        source_path: source.to_owned(),
    };
    let plain = |part: Component<'_>| matches!(part, Component::Normal(_) | Component::CurDir);
    if source.is_empty() || !Path::new(source).components().all(plain) {
        return Err(outside());
    }
    let folder = match task_file.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let real = |path: &Path| {
        let read = |source| LoadError::Read {
            path: path.to_owned(),
            source,
        };
        path.canonicalize().map_err(read)
    };
    let found = real(&folder.join(source))?;
    if found.starts_with(real(folder)?) {
        Ok(found)
    } else {
        Err(outside())
    }
}

/// Reads a regular file; anything else (a FIFO would block) is an error.
fn read(path: &Path) -> Result<Vec<u8>, LoadError> {
    let failed = |source| LoadError::Read {
        path: path.to_owned(),
        source,
    };
    if !std::fs::metadata(path).map_err(failed)?.is_file() {
        return Err(failed(io::Error::new(
            io::ErrorKind::InvalidInput,
            "it is not a regular file",
        )));
    }
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).map_err(failed)?;
    file.take(FILE_MAX_BYTES + 1)
        .read_to_end(&mut bytes)
        .map_err(failed)?;
    if bytes.len() as u64 > FILE_MAX_BYTES {
        return Err(LoadError::TooLarge {
            path: path.to_owned(),
            limit: FILE_MAX_BYTES,
        });
    }
    Ok(bytes)
}

#[derive(Clone, Copy)]
enum Kind {
    Toml,
    Json,
}

fn kind(path: &Path) -> Option<Kind> {
    match path.extension()?.to_str()? {
        "toml" => Some(Kind::Toml),
        "json" => Some(Kind::Json),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (name, content) in files {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, content).unwrap();
        }
        folder
    }

    #[test]
    fn a_folder_gives_its_task_files_by_name_and_nothing_else() {
        let folder = folder(&[
            ("b.json", r#"{"instruction": "b", "id": "named"}"#),
            (
                "a.toml",
                "instruction = 'a'\nfiles.'x' = { source = 'data/x.bin' }",
            ),
            ("data/x.bin", "content"),
            ("data/c.toml", "no task"),
            ("README.md", "no task"),
        ]);
        let tasks = tasks(folder.path()).unwrap();
        let ids: Vec<_> = tasks
            .iter()
            .map(|(_, task)| task.id.as_deref().unwrap())
            .collect();
        assert_eq!(ids, ["a", "named"]);
        assert_eq!(tasks[0].1.files["x"], FileContent::Text("content".into()));
    }

    #[test]
    fn a_source_that_leads_out_of_the_folder_is_refused() {
        let outer = folder(&[("secret", "s"), ("in/t.toml", "instruction = 'x'")]);
        let inner = outer.path().join("in");
        std::os::unix::fs::symlink("../secret", inner.join("link")).unwrap();
        for source in ["../secret", "/etc/passwd", "", "a/../../secret", "link"] {
            let text = format!("instruction = 'x'\nfiles.'x' = {{ source = '{source}' }}");
            std::fs::write(inner.join("t.toml"), text).unwrap();
            let error = tasks(&inner.join("t.toml")).unwrap_err();
            assert!(
                matches!(error, LoadError::SourceOutside { .. }),
                "{source}: {error}"
            );
        }
    }

    #[test]
    fn what_is_no_task_file_is_an_error_that_names_the_file() {
        let folder = folder(&[
            ("t.toml", "instruction = 'x'\nverfy = []"),
            ("t.txt", ""),
            ("bad.json", "{"),
        ]);
        let error = |name: &str| tasks(&folder.path().join(name)).unwrap_err();
        assert_eq!(error("t.toml").hint().unwrap(), "did you mean `verify`?");
        assert!(matches!(error("t.txt"), LoadError::UnknownKind { .. }));
        assert!(matches!(
            error("bad.json"),
            LoadError::Task {
                source: TaskError::Json(_),
                ..
            }
        ));
        assert!(matches!(error("none.toml"), LoadError::Read { .. }));
        std::fs::create_dir(folder.path().join("empty")).unwrap();
        assert!(matches!(error("empty"), LoadError::EmptyFolder { .. }));
    }
}
