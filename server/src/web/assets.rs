use flate2::Compression;
use flate2::write::GzEncoder;
use sha2::{Digest, Sha256};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::Write as _;
use std::sync::{Arc, LazyLock, OnceLock};

/// Name and bytes of each file, by name.
static EMBEDDED: &[(&str, &[u8])] = include!(concat!(env!("OUT_DIR"), "/page.rs"));

/// Where files are read from while the page is worked on.
#[cfg(debug_assertions)]
const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../ui/page");

/// The files of the page.
#[derive(Debug)]
pub struct Assets {
    files: BTreeMap<Cow<'static, str>, File>,
    version: String,
    may_change: bool,
}

#[derive(Debug)]
struct File {
    bytes: Cow<'static, [u8]>,
    /// Made when it is asked for first; `None` where that is no gain.
    gzip: OnceLock<Option<Vec<u8>>>,
}

/// A file as it is sent.
#[derive(Debug)]
pub struct Encoded {
    /// The bytes.
    pub bytes: Vec<u8>,
    /// Whether they are compressed.
    pub is_gzip: bool,
    /// What tells them from others.
    pub tag: String,
}

impl Assets {
    /// The files as they are now: those that this program carries; where it was built for work on it, those on disk.
    pub fn now() -> Arc<Self> {
        static CARRIED: LazyLock<Arc<Assets>> = LazyLock::new(|| Arc::new(Assets::carried()));
        #[cfg(debug_assertions)]
        if let Ok(read) = Self::read(std::path::Path::new(FOLDER)) {
            return Arc::new(read);
        }
        CARRIED.clone()
    }

    fn carried() -> Self {
        let files = EMBEDDED
            .iter()
            .map(|&(name, bytes)| (Cow::Borrowed(name), Cow::Borrowed(bytes)));
        Self::of(files, false)
    }

    fn of(files: impl Iterator<Item = (Cow<'static, str>, Cow<'static, [u8]>)>, may_change: bool) -> Self {
        let files: BTreeMap<_, _> = files
            .map(|(name, bytes)| {
                let gzip = OnceLock::new();
                (name, File { bytes, gzip })
            })
            .collect();
        let mut hash = Sha256::new();
        for (name, file) in &files {
            hash.update(name.as_bytes());
            hash.update([0]);
            hash.update(Sha256::digest(&file.bytes));
        }
        let version = hash
            .finalize()
            .iter()
            .take(8)
            .fold(String::new(), |mut text, byte| {
                // A string takes everything.
                _ = write!(text, "{byte:02x}");
                text
            });
        Self {
            files,
            version,
            may_change,
        }
    }

    #[cfg(debug_assertions)]
    fn read(folder: &std::path::Path) -> std::io::Result<Self> {
        fn collect(
            folder: &std::path::Path,
            before: &str,
            files: &mut Vec<(Cow<'static, str>, Cow<'static, [u8]>)>,
        ) -> std::io::Result<()> {
            for entry in std::fs::read_dir(folder)? {
                let entry = entry?;
                let name = format!("{before}{}", entry.file_name().to_string_lossy());
                if entry.file_type()?.is_dir() {
                    collect(&entry.path(), &format!("{name}/"), files)?;
                } else {
                    files.push((name.into(), std::fs::read(entry.path())?.into()));
                }
            }
            Ok(())
        }
        let mut files = Vec::new();
        collect(folder, "", &mut files)?;
        Ok(Self::of(files.into_iter(), true))
    }

    /// Changes with the content of any of them.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Whether what has an address now may have another content later.
    pub fn may_change(&self) -> bool {
        self.may_change
    }

    /// Their names, in order.
    #[cfg(test)]
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.files.keys().map(|name| &**name)
    }

    /// Modules and what they import, and so on, by name; those that are not there are left out. What is imported while the page
    /// is shown already, `import("…")`, is not among them.
    pub fn modules(&self, from: &[String]) -> Vec<&str> {
        let mut found = BTreeSet::new();
        let mut left = from.to_vec();
        while let Some(wanted) = left.pop() {
            let Some((name, file)) = self.files.get_key_value(wanted.as_str()) else {
                continue;
            };
            if found.insert(&**name) {
                let text = String::from_utf8_lossy(&file.bytes);
                let paths = text
                    .split("from \"")
                    .skip(1)
                    .filter_map(|part| part.split('"').next());
                left.extend(paths.filter_map(|path| resolved(name, path)));
            }
        }
        found.into_iter().collect()
    }

    /// The bytes of one.
    pub fn get(&self, name: &str) -> Option<&[u8]> {
        self.files.get(name).map(|file| &*file.bytes)
    }

    /// One as it is sent.
    pub fn encoded(&self, name: &str, takes_gzip: bool) -> Option<Encoded> {
        let file = self.files.get(name)?;
        let gzip = if takes_gzip && !self.may_change {
            file.gzip.get_or_init(|| gzip(&file.bytes)).as_ref()
        } else {
            None
        };
        let hash = Sha256::digest(&file.bytes);
        let mut tag = String::from("\"");
        for byte in hash.iter().take(8) {
            _ = write!(tag, "{byte:02x}");
        }
        tag.push_str(if gzip.is_some() { "-gzip\"" } else { "\"" });
        Some(Encoded {
            bytes: gzip.cloned().unwrap_or_else(|| file.bytes.to_vec()),
            is_gzip: gzip.is_some(),
            tag,
        })
    }
}

/// The name of a file that another imports by a relative path.
fn resolved(from: &str, path: &str) -> Option<String> {
    let mut folders: Vec<&str> = from.split('/').collect();
    folders.pop();
    for part in path.split('/') {
        match part {
            "." => {}
            ".." => _ = folders.pop()?,
            part => folders.push(part),
        }
    }
    path.starts_with('.').then(|| folders.join("/"))
}

/// Compressed; `None` where that is no gain.
fn gzip(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    // Writing to memory does not fail.
    encoder.write_all(bytes).ok()?;
    let packed = encoder.finish().ok()?;
    (packed.len() < bytes.len()).then_some(packed)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes that all files may have when they are sent compressed.
    const ALL_MAX: usize = 300_000;

    #[test]
    fn all_files_are_carried_and_small() {
        let (carried, read) = (
            Assets::carried(),
            Assets::read(std::path::Path::new(FOLDER)).unwrap(),
        );
        assert_eq!(carried.version(), read.version());
        let sizes = carried
            .names()
            .map(|name| carried.encoded(name, true).unwrap().bytes.len());
        let all: usize = sizes.sum();
        assert!(all < ALL_MAX, "{all} bytes");
        assert_ne!(all, 0);
    }

    #[test]
    fn no_file_makes_markup_of_text() {
        let carried = Assets::carried();
        for name in carried.names().filter(|name| name.ends_with(".js")) {
            let text = String::from_utf8_lossy(carried.get(name).unwrap()).into_owned();
            for forbidden in [
                "innerHTML",
                "outerHTML",
                "insertAdjacentHTML",
                "document.write",
                "DOMParser",
                "createContextualFragment",
                "eval(",
                "new Function",
                "srcdoc",
            ] {
                assert!(!text.contains(forbidden), "{name}: {forbidden}");
            }
        }
        let index = String::from_utf8_lossy(carried.get("index.html").unwrap()).into_owned();
        assert!(!index.contains("<style") && !index.contains(" style=") && !index.contains(" onclick="));
    }

    #[test]
    fn what_is_imported_is_there() {
        let carried = Assets::carried();
        let mut imports = 0;
        for name in carried.names().filter(|name| name.ends_with(".js")) {
            let text = String::from_utf8_lossy(carried.get(name).unwrap()).into_owned();
            let at = url::Url::parse("http://x/").unwrap().join(name).unwrap();
            let later = text.split("import(\"").skip(1);
            for part in text.split("from \"").skip(1).chain(later) {
                let Some((path, _)) = part.split_once('"') else {
                    continue;
                };
                if path.starts_with('.') {
                    let found = at.join(path).unwrap();
                    assert!(carried.get(&found.path()[1..]).is_some(), "{name} imports {path}");
                    imports += 1;
                }
            }
        }
        assert!(imports > 10, "{imports}");
    }
}
