use super::check::Machine;
use super::system::{Arguments, show_system};
use crate::SandboxError;
use crate::estate::Estate;
use std::fs::Permissions;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown};
use std::path::Path;
use std::process::{Command, Stdio};

/// The bits of permissions that the system takes away from a file that gets another owner.
const TAKEN_BITS: u32 = 0o6000;

/// What is kept of what `cp` complains about.
const MAX_COMPLAINT: usize = 300;

impl Machine {
    /// Copies a home that nothing changes into that of `to`, which is empty: contents, holes, permissions, times, extended
    /// attributes, hard links, links, pipes and sockets; blocks are shared where the file system can. What belonged to the owner
    /// of the one belongs to that of the other. Blocks for as long as that takes.
    pub(super) fn copy_home(&self, from: &Path, to: &Estate) -> Result<(), SandboxError> {
        let failed = |source| SandboxError::Create {
            step: "copy the home of a snapshot".into(),
            source: Some(source),
        };
        let owner = from.symlink_metadata().map_err(failed)?.uid();
        self.copy(from, to.home()).map_err(failed)?;
        match to.uid().filter(|uid| *uid != owner) {
            Some(uid) => give(to.home(), owner, uid).map_err(failed),
            None => Ok(()),
        }
    }

    /// In namespaces where there is nothing else of this machine that a link could lead to: what ran in the sandbox may still do,
    /// hidden, and this may be root.
    fn copy(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut arguments = Arguments::default();
        arguments.add(["--die-with-parent", "--unshare-net", "--unshare-ipc"]);
        if nix::unistd::geteuid().is_root() {
            // Whatever the permissions are.
            arguments.add(["--cap-add", "ALL"]);
        }
        show_system(&mut arguments, &self.skeleton, false);
        arguments.add(["--proc", "/proc", "--dev", "/dev"]);
        arguments.show(from, "/from");
        arguments.add(["--bind"]);
        arguments.0.push(to.into());
        arguments.add(["/to", "--chdir", "/", "--", "cp", "-dR", "--reflink=auto"]);
        arguments.add([
            "--preserve=mode,ownership,timestamps,links,xattr",
            "--no-target-directory",
            "/from",
            "/to",
        ]);
        let done = Command::new(&self.bubblewrap)
            .args(arguments.0)
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("LC_ALL", "C")
            .stdin(Stdio::null())
            .output()?;
        if done.status.success() {
            return Ok(());
        }
        let complaint = String::from_utf8_lossy(&done.stderr);
        let complaint: String = complaint
            .trim()
            .chars()
            .filter(|c| !c.is_control())
            .take(MAX_COMPLAINT)
            .collect();
        Err(match complaint.contains("No space left on device") {
            true => io::Error::from_raw_os_error(libc::ENOSPC),
            false => io::Error::other(complaint),
        })
    }
}

/// Gives what belongs to one user to another, in a tree that is nobody else's yet.
fn give(path: &Path, from: u32, to: u32) -> io::Result<()> {
    let metadata = path.symlink_metadata()?;
    if metadata.uid() == from {
        let group = (metadata.gid() == from).then_some(to);
        lchown(path, Some(to), group)?;
        if metadata.is_file() && metadata.mode() & TAKEN_BITS != 0 {
            std::fs::set_permissions(path, Permissions::from_mode(metadata.mode() & 0o7777))?;
        }
    }
    if metadata.is_dir() {
        for entry in std::fs::read_dir(path)? {
            give(&entry?.path(), from, to)?;
        }
    }
    Ok(())
}
