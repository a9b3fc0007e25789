use std::fs::{DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The name of the machine inside.
pub(super) const HOSTNAME: &str = "dressage";

/// Where a network helper answers questions about names.
pub(super) const NAME_SERVER: &str = "10.0.2.3";

const FILES: [(&str, &str); 6] = [
    (
        "passwd",
        "root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000:user:/home/user:/bin/bash\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
    ),
    ("group", "root:x:0:\nuser:x:1000:\nnogroup:x:65534:\n"),
    (
        "hosts",
        "127.0.0.1 localhost dressage\n::1 localhost ip6-localhost ip6-loopback\n",
    ),
    (
        "nsswitch.conf",
        "passwd: files\ngroup: files\nhosts: files dns\nnetworks: files\nprotocols: files\nservices: files\n",
    ),
    ("resolv.conf", "# no network\n"),
    ("resolv.conf.open", "nameserver 10.0.2.3\n"),
];

/// The files of `/etc` that are written by us, the same for every sandbox, under the cache folder.
#[derive(Debug)]
pub(super) struct Skeleton {
    folder: PathBuf,
}

impl Skeleton {
    /// Writes them where they are not there as they should be.
    pub(super) fn make(cache_dir: &Path) -> io::Result<Self> {
        let folder = cache_dir.join("local").join("etc");
        DirBuilder::new().recursive(true).mode(0o755).create(&folder)?;
        for (name, content) in FILES {
            let path = folder.join(name);
            if std::fs::read_to_string(&path).is_ok_and(|found| found == content) {
                continue;
            }
            // Another process may be reading it: it is replaced at one stroke.
            let fresh = folder.join(format!("{name}.{}", std::process::id()));
            let mut file = OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(true)
                .mode(0o644)
                .open(&fresh)?;
            file.write_all(content.as_bytes())?;
            std::fs::rename(&fresh, &path)?;
        }
        Ok(Self { folder })
    }

    /// Name under `/etc`, and where it is on this machine.
    pub(super) fn files(&self, open_network: bool) -> impl Iterator<Item = (&'static str, PathBuf)> {
        let resolver = if open_network {
            "resolv.conf.open"
        } else {
            "resolv.conf"
        };
        ["passwd", "group", "hosts", "nsswitch.conf"]
            .into_iter()
            .map(|name| (name, self.folder.join(name)))
            .chain([("resolv.conf", self.folder.join(resolver))])
    }
}
