use sha2::{Digest, Sha256};
use std::fs::Metadata;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

/// The length of a mark, in hexadecimal digits.
const MARK_DIGITS: usize = 32;

/// Held while something is packed: a hundred rollouts that begin at once pack one tree once.
static PACKING: Mutex<()> = Mutex::new(());

/// A tree or a file of this machine as an archive, by a program that both sides have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Packed {
    /// The archive: tar, compressed by gzip. All of it is in one folder, which is called as the mark is; it is root's, for
    /// all to read, and for nobody else to write.
    pub(crate) archive: PathBuf,
    /// Of names and contents: another for others, and the same on every machine that has the same.
    pub(crate) mark: String,
    /// The name inside, for a file; empty for a tree.
    pub(crate) name: String,
}

impl Packed {
    /// Where it is, unpacked into a folder.
    pub(crate) fn below(&self, folder: &str) -> String {
        self.within(&format!("{folder}/{}", self.mark))
    }

    /// Where it is in its own folder.
    pub(crate) fn within(&self, folder: &str) -> String {
        if self.name.is_empty() {
            folder.to_owned()
        } else {
            format!("{folder}/{}", self.name)
        }
    }
}

/// Packs what is at `source`, or finds it packed in `cache_dir`. Blocks for as long as that takes.
pub(crate) fn pack(cache_dir: &Path, source: &Path) -> io::Result<Packed> {
    let metadata = std::fs::metadata(source)?;
    let (folder, name) = if metadata.is_dir() {
        (source, String::new())
    } else {
        let name = source.file_name().and_then(|name| name.to_str());
        let (Some(folder), Some(name)) = (source.parent(), name) else {
            return Err(io::Error::from(io::ErrorKind::InvalidFilename));
        };
        (folder, name.to_owned())
    };
    let packs = cache_dir.join("packed");
    let _packing = PACKING.lock().unwrap_or_else(PoisonError::into_inner);
    std::fs::create_dir_all(&packs)?;
    let mark = marked(&packs, source, &name, &metadata)?;
    let archive = packs.join(format!("{mark}.tar.gz"));
    if !archive.exists() {
        // Other processes may do the same: each under a name of its own, and whoever is last replaces the same.
        let fresh = packs.join(format!("{mark}.{}.new", std::process::id()));
        let mut tar = Command::new("tar");
        tar.args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner"])
            .args(["--mode=u=rwX,go=rX", "--transform"])
            .arg(format!("flags=rh;s,^\\.,{mark},"))
            .args(["-I", "gzip -1", "-cf"])
            .arg(&fresh)
            .arg("-C")
            .arg(folder);
        if name.is_empty() {
            tar.arg(".");
        } else {
            tar.args(["--dereference", "--no-recursion", "."])
                .arg(format!("./{name}"));
        }
        let done = tar.stdin(Stdio::null()).output()?;
        if !done.status.success() {
            let _ = std::fs::remove_file(&fresh);
            let said = String::from_utf8_lossy(&done.stderr);
            return Err(io::Error::other(format!("tar: {}", said.trim())));
        }
        std::fs::rename(&fresh, &archive)?;
    }
    Ok(Packed { archive, mark, name })
}

/// The mark of what is at `source`. It is remembered by what tells one version of a file from another without reading it:
/// reading hundreds of megabytes for each sandbox would not do.
fn marked(packs: &Path, source: &Path, name: &str, metadata: &Metadata) -> io::Result<String> {
    let mut look = Sha256::new();
    if name.is_empty() {
        add_tree(&mut look, source, source, &mut add)?;
    } else {
        add(&mut look, source, Path::new(name), metadata)?;
    }
    let known = packs.join(format!("{}.mark", digits(look)));
    if let Ok(mark) = std::fs::read_to_string(&known)
        && mark.len() == MARK_DIGITS
        && mark.bytes().all(|digit| digit.is_ascii_hexdigit())
    {
        return Ok(mark);
    }
    let mut content = Sha256::new();
    if name.is_empty() {
        add_tree(&mut content, source, source, &mut add_content)?;
    } else {
        add_content(&mut content, source, Path::new(name), metadata)?;
    }
    let mark = digits(content);
    let fresh = known.with_extension(format!("{}.new", std::process::id()));
    std::fs::write(&fresh, &mark)?;
    std::fs::rename(&fresh, &known)?;
    Ok(mark)
}

fn digits(hash: Sha256) -> String {
    hash.finalize()
        .iter()
        .take(MARK_DIGITS / 2)
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// Adds something at a path, by its name in the tree.
type Add = dyn FnMut(&mut Sha256, &Path, &Path, &Metadata) -> io::Result<()>;

/// Adds everything below `folder`, in one order on every machine.
fn add_tree(hash: &mut Sha256, root: &Path, folder: &Path, add: &mut Add) -> io::Result<()> {
    let mut entries: Vec<PathBuf> = std::fs::read_dir(folder)?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<io::Result<_>>()?;
    entries.sort();
    for path in entries {
        let metadata = path.symlink_metadata()?;
        add(hash, &path, path.strip_prefix(root).unwrap_or(&path), &metadata)?;
        if metadata.is_dir() {
            add_tree(hash, root, &path, add)?;
        }
    }
    Ok(())
}

/// What tells one version of a file from another.
fn add(hash: &mut Sha256, path: &Path, name: &Path, metadata: &Metadata) -> io::Result<()> {
    hash.update(name.as_os_str().as_bytes());
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
    if metadata.is_symlink() {
        hash.update(std::fs::read_link(path)?.as_os_str().as_bytes());
    }
    Ok(())
}

/// What of a file is in an archive: its name, what it is, whether it can be run, and what is in it.
fn add_content(hash: &mut Sha256, path: &Path, name: &Path, metadata: &Metadata) -> io::Result<()> {
    let text = |hash: &mut Sha256, bytes: &[u8]| {
        hash.update((bytes.len() as u64).to_le_bytes());
        hash.update(bytes);
    };
    text(hash, name.as_os_str().as_bytes());
    if metadata.is_dir() {
        hash.update(b"d");
    } else if metadata.is_symlink() {
        hash.update(b"l");
        text(hash, std::fs::read_link(path)?.as_os_str().as_bytes());
    } else {
        hash.update(if metadata.mode() & 0o111 == 0 { b"f" } else { b"x" });
        hash.update(metadata.len().to_le_bytes());
        let mut file = std::fs::File::open(path)?;
        let mut piece = vec![0; 128 << 10];
        loop {
            let count = file.read(&mut piece)?;
            let Some(read) = piece.get(..count).filter(|read| !read.is_empty()) else {
                return Ok(());
            };
            hash.update(read);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(archive: &Path) -> String {
        let listed = Command::new("tar").arg("-tvzf").arg(archive).output().unwrap();
        let lines = String::from_utf8(listed.stdout).unwrap();
        let mut told = String::new();
        for line in lines.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            told.push_str(&format!("{} {} {}\n", words[0], words[1], words[5..].join(" ")));
        }
        told
    }

    #[test]
    fn a_tree_is_packed_once_and_again_when_it_has_changed() {
        let folder = tempfile::tempdir().unwrap();
        let (tree, cache) = (folder.path().join("tree"), folder.path().join("cache"));
        std::fs::create_dir_all(tree.join("bin")).unwrap();
        std::fs::write(tree.join("bin/program"), "one").unwrap();
        std::os::unix::fs::symlink("./bin/program", tree.join("link")).unwrap();
        let first = pack(&cache, &tree).unwrap();
        let made = std::fs::metadata(&first.archive).unwrap().modified().unwrap();
        assert_eq!(pack(&cache, &tree).unwrap(), first);
        assert_eq!(
            std::fs::metadata(&first.archive).unwrap().modified().unwrap(),
            made
        );
        let mark = &first.mark;
        assert_eq!(
            listed(&first.archive),
            format!(
                "drwxr-xr-x 0/0 {mark}/\ndrwxr-xr-x 0/0 {mark}/bin/\n-rw-r--r-- 0/0 {mark}/bin/program\n\
                 lrwxr-xr-x 0/0 {mark}/link -> ./bin/program\n"
            )
        );
        assert_eq!(first.below("/opt"), format!("/opt/{mark}"));
        std::fs::write(tree.join("bin/program"), "changed").unwrap();
        assert_ne!(pack(&cache, &tree).unwrap().mark, first.mark);
        let file = pack(&cache, &tree.join("bin/program")).unwrap();
        assert_eq!(file.below("/opt"), format!("/opt/{}/program", file.mark));
        assert!(listed(&file.archive).ends_with(&format!("0/0 {}/program\n", file.mark)));
    }

    #[test]
    fn the_same_has_the_same_mark_wherever_and_whenever_it_was_made() {
        let folder = tempfile::tempdir().unwrap();
        let made = |name: &str, mode: u32, content: &str, link: &str| {
            let tree = folder.path().join(name);
            std::fs::create_dir_all(tree.join("bin")).unwrap();
            let program = tree.join("bin/program");
            std::fs::write(&program, content).unwrap();
            std::fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
            std::os::unix::fs::symlink(link, tree.join("link")).unwrap();
            pack(&folder.path().join(format!("cache of {name}")), &tree)
                .unwrap()
                .mark
        };
        let one = made("one", 0o700, "a", "bin");
        let old = std::time::SystemTime::UNIX_EPOCH;
        assert_eq!(made("two", 0o755, "a", "bin"), one);
        let file = std::fs::File::open(folder.path().join("two/bin/program")).unwrap();
        file.set_modified(old).unwrap();
        assert_eq!(
            pack(&folder.path().join("third"), &folder.path().join("two"))
                .unwrap()
                .mark,
            one
        );
        let others = [
            made("content", 0o700, "b", "bin"),
            made("mode", 0o600, "a", "bin"),
            made("link", 0o700, "a", "bin/program"),
        ];
        assert!(!others.contains(&one), "{others:?}");
    }

    #[test]
    fn a_remembered_mark_that_is_none_is_made_again() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        std::fs::write(&file, "a").unwrap();
        let packed = pack(folder.path(), &file).unwrap();
        for entry in std::fs::read_dir(folder.path().join("packed")).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().unwrap() == "mark" {
                std::fs::write(path, "../x").unwrap();
            }
        }
        assert_eq!(pack(folder.path(), &file).unwrap(), packed);
    }
}
