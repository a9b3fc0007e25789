//! The static program `dressage-tap`, carried inside this one and written out where sandboxes can run it.

use sha2::{Digest, Sha256};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

const BYTES: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/dressage-tap"));

/// The program could not be written out.
#[derive(Debug, thiserror::Error)]
#[error("dressage-tap could not be written to `{}`", path.display())]
pub struct EmbeddedError {
    /// Where it was to go.
    pub path: PathBuf,
    /// Why not.
    #[source]
    pub source: std::io::Error,
}

/// Writes the program to `<cache>/bin/dressage-tap-<hash>` unless that is there, and returns its path. Processes that
/// do so at once each write a file of their own and rename it over the same name.
///
/// # Errors
/// Where the folder cannot be made or the file not be written.
pub fn unpack(cache: &Path) -> Result<PathBuf, EmbeddedError> {
    let hash: String = Sha256::digest(BYTES)
        .iter()
        .take(8)
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let folder = cache.join("bin");
    let path = folder.join(format!("dressage-tap-{hash}"));
    // Its length tells a whole file from the rest of a disk that was full; only the owner of the cache can write there.
    let whole = path.symlink_metadata().is_ok_and(|found| {
        found.is_file() && found.size() == BYTES.len() as u64 && found.permissions().mode() & 0o111 == 0o111
    });
    if whole {
        return Ok(path);
    }
    let failed = |source| EmbeddedError {
        path: path.clone(),
        source,
    };
    std::fs::create_dir_all(&folder).map_err(failed)?;
    let mut file = tempfile::Builder::new()
        .prefix(".dressage-tap-")
        .tempfile_in(&folder)
        .map_err(failed)?;
    file.write_all(BYTES).map_err(failed)?;
    file.as_file()
        .set_permissions(std::fs::Permissions::from_mode(0o755))
        .map_err(failed)?;
    file.as_file().sync_all().map_err(failed)?;
    file.persist(&path).map_err(|error| failed(error.error))?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_damaged_copy_is_replaced_and_a_whole_one_kept() {
        let cache = tempfile::tempdir().unwrap();
        let path = unpack(cache.path()).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), BYTES);
        let inode = path.metadata().unwrap().ino();
        assert_eq!(unpack(cache.path()).unwrap().metadata().unwrap().ino(), inode);
        std::fs::write(&path, b"half").unwrap();
        assert_eq!(std::fs::read(unpack(cache.path()).unwrap()).unwrap(), BYTES);
        assert_eq!(std::fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
    }
}
