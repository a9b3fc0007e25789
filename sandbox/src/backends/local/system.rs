use super::skeleton::Skeleton;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Where what Dressage puts into a sandbox is.
pub(super) const OURS: &str = "/opt/dressage";

/// Programs are looked for in the system's folders first, as on any machine; ours has only what is missing there.
pub(super) const SEARCH_PATH: &str =
    "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/opt/dressage/bin";

/// The usual home: where the home is elsewhere, a link is made from here.
pub(super) const USUAL_HOME: &str = "/home/user";

/// The only entries of the machine's `/etc` that are seen inside, where it has them.
const SHARED_ETC: [&str; 8] = [
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "alternatives",
    "ssl/certs",
    "ca-certificates",
    "localtime",
    "mime.types",
];

/// Folders at the top that are links into `/usr` on merged systems.
const USR_LINKS: [&str; 6] = ["bin", "sbin", "lib", "lib32", "lib64", "libx32"];

/// Folders that a home can be neither, nor be in, nor hold.
const TAKEN: [&str; 15] = [
    "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/proc", "/dev", "/sys", "/tmp",
    "/run", "/var/tmp", OURS,
];

/// Whether a sandbox can have its home there.
pub(super) fn may_be_home(home: &str) -> bool {
    let plain = home.starts_with('/')
        && !home.contains('\0')
        && home
            .split('/')
            .skip(1)
            .all(|part| !part.is_empty() && part != "." && part != "..");
    plain
        && !TAKEN
            .iter()
            .any(|taken| Path::new(home).starts_with(taken) || Path::new(taken).starts_with(home))
        && (home == USUAL_HOME
            || !Path::new(USUAL_HOME).starts_with(home) && !Path::new(home).starts_with(USUAL_HOME))
}

/// Bubblewrap's arguments, in order.
#[derive(Debug, Default)]
pub(super) struct Arguments(pub(super) Vec<OsString>);

impl Arguments {
    pub(super) fn add<const N: usize>(&mut self, words: [&str; N]) {
        self.0.extend(words.into_iter().map(OsString::from));
    }

    /// Something of this machine, read-only.
    pub(super) fn show(&mut self, host: &Path, inside: &str) {
        self.add(["--ro-bind"]);
        self.0.push(host.into());
        self.add([inside]);
    }

    /// A new empty folder in memory.
    pub(super) fn scratch(&mut self, inside: &str, mode: &str, size_bytes: u64) {
        self.add([
            "--perms",
            mode,
            "--size",
            &size_bytes.to_string(),
            "--tmpfs",
            inside,
        ]);
    }
}

/// The machine's programs and libraries, and its few files of `/etc` and ours.
pub(super) fn show_system(arguments: &mut Arguments, skeleton: &Skeleton, open_network: bool) {
    arguments.show(Path::new("/usr"), "/usr");
    for name in USR_LINKS {
        let path = PathBuf::from(format!("/{name}"));
        let inside = format!("/{name}");
        match std::fs::read_link(&path) {
            Ok(target) => {
                arguments.add(["--symlink"]);
                arguments.0.push(target.into());
                arguments.add([&inside]);
            }
            Err(_) if path.is_dir() => arguments.show(&path, &inside),
            Err(_) => {}
        }
    }
    for name in SHARED_ETC {
        let path = Path::new("/etc").join(name);
        if path.exists() {
            arguments.show(&path, &format!("/etc/{name}"));
        }
    }
    for (name, file) in skeleton.files(open_network) {
        arguments.show(&file, &format!("/etc/{name}"));
    }
}

/// Whether the machine has a program of that name where sandboxes look for programs.
pub(super) fn has_program(name: &str) -> bool {
    SEARCH_PATH
        .split(':')
        .any(|folder| Path::new(folder).join(name).exists())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn homes_are_where_nothing_else_is() {
        for home in [
            "/home/user",
            "/root",
            "/workspace",
            "/srv/agents/one",
            "/var/lib/agent",
        ] {
            assert!(may_be_home(home), "{home}");
        }
        for home in [
            "",
            "/",
            "home/user",
            "/home",
            "/home/user/deeper",
            "/home/user/",
            "/a/../etc",
            "/a//b",
            "/a/.",
            "/usr/x",
            "/tmp",
            "/var",
            "/opt",
            "/opt/dressage/x",
            "/proc/self",
            "/x\0y",
        ] {
            assert!(!may_be_home(home), "{home}");
        }
    }
}
