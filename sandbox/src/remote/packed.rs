use sha2::{Digest, Sha256};
use std::fs::Metadata;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

/// Held while something is packed: a hundred rollouts that begin at once pack one tree once.
static PACKING: Mutex<()> = Mutex::new(());

/// A tree or a file of this machine as an archive, by a program that both sides have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Packed {
    /// The archive: tar, compressed by gzip.
    pub(crate) archive: PathBuf,
    /// Another for other contents.
    pub(crate) mark: String,
    /// The name inside, for a file; empty for a tree.
    pub(crate) name: String,
}

/// Packs what is at `source`, or finds it packed in `cache_dir`. Blocks for as long as that takes.
pub(crate) fn pack(cache_dir: &Path, source: &Path) -> io::Result<Packed> {
    let metadata = std::fs::metadata(source)?;
    let mut hash = Sha256::new();
    let (folder, name) = if metadata.is_dir() {
        add_tree(&mut hash, source, source)?;
        (source, String::new())
    } else {
        let name = source.file_name().and_then(|name| name.to_str());
        let (Some(folder), Some(name)) = (source.parent(), name) else {
            return Err(io::Error::from(io::ErrorKind::InvalidFilename));
        };
        add(&mut hash, Path::new(name), &metadata);
        (folder, name.to_owned())
    };
    let mark: String = hash
        .finalize()
        .iter()
        .take(16)
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let packs = cache_dir.join("packed");
    let archive = packs.join(format!("{mark}.tar.gz"));
    let _packing = PACKING.lock().unwrap_or_else(PoisonError::into_inner);
    if !archive.exists() {
        std::fs::create_dir_all(&packs)?;
        // Other processes may do the same: each under a name of its own, and whoever is last replaces the same.
        let fresh = packs.join(format!("{mark}.{}.new", std::process::id()));
        let done = Command::new("tar")
            .args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner"])
            .args(["-I", "gzip -1", "-cf"])
            .arg(&fresh)
            .arg("-C")
            .arg(folder)
            .arg(if name.is_empty() { "." } else { name.as_str() })
            .stdin(Stdio::null())
            .output()?;
        if !done.status.success() {
            let _ = std::fs::remove_file(&fresh);
            let said = String::from_utf8_lossy(&done.stderr);
            return Err(io::Error::other(format!("tar: {}", said.trim())));
        }
        std::fs::rename(&fresh, &archive)?;
    }
    Ok(Packed { archive, mark, name })
}

/// Adds everything below `folder`, in one order on every machine.
fn add_tree(hash: &mut Sha256, root: &Path, folder: &Path) -> io::Result<()> {
    let mut entries: Vec<PathBuf> = std::fs::read_dir(folder)?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<io::Result<_>>()?;
    entries.sort();
    for path in entries {
        let metadata = path.symlink_metadata()?;
        add(hash, path.strip_prefix(root).unwrap_or(&path), &metadata);
        if metadata.is_symlink() {
            hash.update(std::fs::read_link(&path)?.as_os_str().as_bytes());
        } else if metadata.is_dir() {
            add_tree(hash, root, &path)?;
        }
    }
    Ok(())
}

/// What tells one version of a file from another: reading hundreds of megabytes for each sandbox would not do.
fn add(hash: &mut Sha256, path: &Path, metadata: &Metadata) {
    hash.update(path.as_os_str().as_bytes());
    hash.update([0]);
    let length = if metadata.is_dir() { 0 } else { metadata.len() };
    for number in [
        u64::from(metadata.mode()),
        length,
        metadata.mtime().unsigned_abs(),
    ] {
        hash.update(number.to_le_bytes());
    }
    hash.update(metadata.mtime_nsec().to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_is_packed_once_and_again_when_it_has_changed() {
        let folder = tempfile::tempdir().unwrap();
        let (tree, cache) = (folder.path().join("tree"), folder.path().join("cache"));
        std::fs::create_dir_all(tree.join("bin")).unwrap();
        std::fs::write(tree.join("bin/program"), "one").unwrap();
        std::os::unix::fs::symlink("bin/program", tree.join("link")).unwrap();
        let first = pack(&cache, &tree).unwrap();
        let made = std::fs::metadata(&first.archive).unwrap().modified().unwrap();
        assert_eq!(pack(&cache, &tree).unwrap(), first);
        assert_eq!(
            std::fs::metadata(&first.archive).unwrap().modified().unwrap(),
            made
        );
        std::fs::write(tree.join("bin/program"), "changed").unwrap();
        assert_ne!(pack(&cache, &tree).unwrap().mark, first.mark);
        let file = pack(&cache, &tree.join("bin/program")).unwrap();
        assert_eq!(file.name, "program");
        let listed = Command::new("tar")
            .arg("-tzf")
            .arg(&first.archive)
            .output()
            .unwrap();
        assert_eq!(
            String::from_utf8(listed.stdout).unwrap(),
            "./\n./bin/\n./bin/program\n./link\n"
        );
    }
}
