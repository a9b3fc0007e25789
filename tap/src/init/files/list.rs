use super::{file_failure, not_regular, other_kind};
use dressage_wire::control::{Failure, FoundFile, List};
use std::collections::VecDeque;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

/// Directories that may wait to be looked into; a tree with more of them is reported as truncated.
const MAX_DIRECTORIES: usize = 100_000;

/// Bytes of paths after which files are sent, far below what fits into a frame.
const BATCH_BYTES: usize = 64 << 10;

/// Lists regular files level by level, links not followed, and says whether there was more. What cannot be looked into is
/// left out.
pub(super) fn list(list: &List, mut send: impl FnMut(Vec<FoundFile>)) -> Result<bool, Failure> {
    let root = PathBuf::from(&list.path);
    let metadata = std::fs::symlink_metadata(&root).map_err(|error| file_failure(&error))?;
    if !metadata.is_dir() {
        return Err(not_regular(
            other_kind(metadata.mode()).unwrap_or("a regular file"),
        ));
    }
    let mut waiting = VecDeque::from([(root, 1u32)]);
    let mut batch = Vec::new();
    let (mut batch_bytes, mut count, mut truncated) = (0, 0u64, false);
    'directories: while let Some((directory, depth)) = waiting.pop_front() {
        let Ok(entries) = std::fs::read_dir(&directory) else {
            continue;
        };
        for entry in entries.flatten() {
            let Ok(kind) = entry.file_type() else { continue };
            if kind.is_dir() && depth < list.max_depth {
                if waiting.len() >= MAX_DIRECTORIES {
                    truncated = true;
                } else {
                    waiting.push_back((entry.path(), depth + 1));
                }
            } else if kind.is_file() {
                if count == list.max_files {
                    truncated = true;
                    break 'directories;
                }
                let Ok(metadata) = entry.metadata() else { continue };
                count += 1;
                let path = entry.path().to_string_lossy().into_owned();
                batch_bytes += path.len();
                batch.push(FoundFile {
                    path,
                    size_bytes: metadata.len(),
                });
                if batch_bytes >= BATCH_BYTES {
                    send(std::mem::take(&mut batch));
                    batch_bytes = 0;
                }
            }
        }
    }
    if !batch.is_empty() {
        send(batch);
    }
    Ok(truncated)
}
