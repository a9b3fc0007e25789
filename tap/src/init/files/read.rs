use super::{file_failure, not_regular, other_kind};
use bytes::Bytes;
use dressage_wire::control::{CHUNK_BYTES, Failure, FailureKind, Read};
use std::fs::OpenOptions;
use std::io::Read as _;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};

/// Reads a regular file in pieces. Never waits for whoever has the other end of a named pipe, follows no link in the last
/// part of the path, and stops at the limit however the file grows meanwhile.
pub(super) fn read(read: &Read, mut send: impl FnMut(Bytes)) -> Result<(), Failure> {
    let mut file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(&read.path)
        .map_err(|error| file_failure(&error))?;
    let metadata = file.metadata().map_err(|error| file_failure(&error))?;
    if let Some(kind) = other_kind(metadata.mode()) {
        return Err(not_regular(kind));
    }
    if metadata.len() > read.limit_bytes {
        return Err(too_large(metadata.len()));
    }
    let mut total = 0u64;
    loop {
        let mut piece = vec![0; CHUNK_BYTES];
        let count = file.read(&mut piece).map_err(|error| file_failure(&error))?;
        if count == 0 {
            return Ok(());
        }
        total += count as u64;
        if total > read.limit_bytes {
            return Err(too_large(total));
        }
        piece.truncate(count);
        send(Bytes::from(piece));
    }
}

fn too_large(size_bytes: u64) -> Failure {
    Failure {
        kind: FailureKind::TooLarge,
        message: "over the limit".into(),
        errno: None,
        size_bytes,
    }
}
