use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, open, openat, renameat};
use nix::sys::stat::{Mode, SFlag, fstatat};
use nix::unistd::{UnlinkatFlags, unlinkat};
use std::ffi::{CString, OsStr};
use std::fs::Permissions;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Removes a directory and all that is in it: links are removed, not followed; directories without permissions are
/// given them. A tree of any depth takes neither stack nor file descriptors: what is below is moved up first, into a
/// folder beside `path` named `*.removing`, which a later call empties if this one is cut short. Nothing may be changing the
/// tree meanwhile. Nothing at `path` is success.
///
/// # Errors
/// The first thing that could not be removed.
pub(crate) fn remove_tree(path: &Path) -> io::Result<()> {
    let mut bin_name = path.as_os_str().to_owned();
    bin_name.push(".removing");
    let bin_path = Path::new(&bin_name);
    let there = path.symlink_metadata().is_ok();
    if !there && bin_path.symlink_metadata().is_err() {
        return Ok(());
    }
    match std::fs::create_dir(bin_path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let bin = open_directory(bin_path)?;
    // Numbers left by a call that was cut short are below those given now.
    let mut next = std::fs::read_dir(bin_path)?
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<u64>().ok())
        .max()
        .map_or(0, |number| number + 1);
    if there {
        std::fs::set_permissions(path, Permissions::from_mode(0o700))?;
        std::fs::rename(path, bin_path.join(next.to_string()))?;
        next += 1;
    }
    loop {
        let names: Vec<CString> = std::fs::read_dir(bin_path)?
            .map(|entry| c_string(&entry?.file_name()))
            .collect::<io::Result<_>>()?;
        if names.is_empty() {
            break;
        }
        for name in names {
            empty(&bin, &name, &mut next)?;
            unlinkat(&bin, name.as_c_str(), UnlinkatFlags::RemoveDir)?;
        }
    }
    std::fs::remove_dir(bin_path)
}

/// Empties a directory in `bin`: unlinks what is no directory, and moves what is one up into `bin`.
fn empty(bin: &OwnedFd, name: &CString, next: &mut u64) -> io::Result<()> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let directory = openat(bin, name.as_c_str(), flags, Mode::empty())?;
    for entry in std::fs::read_dir(through(directory.as_fd()))? {
        let name = c_string(&entry?.file_name())?;
        match unlinkat(&directory, name.as_c_str(), UnlinkatFlags::NoRemoveDir) {
            Ok(()) | Err(Errno::ENOENT) => continue,
            Err(Errno::EISDIR | Errno::EPERM) => {}
            Err(error) => return Err(error.into()),
        }
        match unlinkat(&directory, name.as_c_str(), UnlinkatFlags::RemoveDir) {
            Ok(()) => continue,
            Err(Errno::ENOTEMPTY | Errno::EEXIST) => {}
            Err(error) => return Err(error.into()),
        }
        allow(directory.as_fd(), &name)?;
        let number = c_string(OsStr::new(&next.to_string()))?;
        renameat(&directory, name.as_c_str(), bin, number.as_c_str())?;
        *next += 1;
    }
    Ok(())
}

/// Gives the owner every permission on a directory: opening it needs them, and so does moving it, which writes its `..`.
fn allow(parent: BorrowedFd<'_>, name: &CString) -> io::Result<()> {
    let stat = fstatat(parent, name.as_c_str(), AtFlags::AT_SYMLINK_NOFOLLOW)?;
    if stat.st_mode & SFlag::S_IFMT.bits() == SFlag::S_IFDIR.bits() && stat.st_mode & 0o700 != 0o700 {
        let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let directory = openat(parent, name.as_c_str(), flags, Mode::empty())?;
        std::fs::set_permissions(through(directory.as_fd()), Permissions::from_mode(0o700))?;
    }
    Ok(())
}

fn open_directory(path: &Path) -> Result<OwnedFd, Errno> {
    open(
        path,
        OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC,
        Mode::empty(),
    )
}

/// The path by which an open file can be reached, whatever it is called.
pub(crate) fn through(file: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

fn c_string(name: &OsStr) -> io::Result<CString> {
    CString::new(name.as_bytes()).map_err(io::Error::other)
}

#[cfg(test)]
mod tests;
