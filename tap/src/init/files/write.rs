use super::file_failure;
use dressage_wire::control::{Failure, Write};
use std::ffi::OsString;
use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// A file that is being written, under another name until it is whole. Removed if it is dropped before.
#[derive(Debug)]
pub(super) struct Writing {
    file: File,
    temporary: PathBuf,
    path: PathBuf,
    mode: u32,
    finished: bool,
}

impl Writing {
    pub(super) fn begin(id: u64, write: &Write) -> Result<Self, Failure> {
        let path = PathBuf::from(&write.path);
        Self::open(id, path, write.mode).map_err(|error| file_failure(&error))
    }

    fn open(id: u64, path: PathBuf, mode: u32) -> io::Result<Self> {
        let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(io::Error::from_raw_os_error(libc::EISDIR));
        };
        // A rename onto a directory fails only at the end, after all of the content came.
        if path.symlink_metadata().is_ok_and(|metadata| metadata.is_dir()) {
            return Err(io::Error::from_raw_os_error(libc::EISDIR));
        }
        std::fs::create_dir_all(folder)?;
        let temporary = temporary_path(folder, name, id);
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&temporary)?;
        Ok(Self {
            file,
            temporary,
            path,
            mode,
            finished: false,
        })
    }

    pub(super) fn add(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.file.write_all(bytes).map_err(|error| file_failure(&error))
    }

    pub(super) fn finish(mut self) -> Result<(), Failure> {
        self.file
            .set_permissions(Permissions::from_mode(self.mode & 0o7777))
            .and_then(|()| std::fs::rename(&self.temporary, &self.path))
            .map_err(|error| file_failure(&error))?;
        self.finished = true;
        Ok(())
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        if !self.finished {
            let _ = std::fs::remove_file(&self.temporary);
        }
    }
}

/// A name beside the file. Long names are left out of it, for the longest are as long as a name may be.
fn temporary_path(folder: &Path, name: &std::ffi::OsStr, id: u64) -> PathBuf {
    let mut temporary = OsString::from(format!(".dressage-{id}-"));
    if name.len() < 100 {
        temporary.push(name);
    }
    folder.join(temporary)
}
