use crate::removal::through;
use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, RenameFlags, ResolveFlag, open, openat2, renameat2};
use nix::sys::stat::{Mode, mkdirat};
use nix::unistd::{Gid, Uid, fchown};
use std::ffi::{CString, OsStr};
use std::fs::Permissions;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path};

/// Makes a new, empty directory at `inside`, a path below `home`, whatever was left there: links, files, named pipes,
/// directories and things without permissions that are in the way are renamed to `NAME.aside-N`. No link is followed. Nothing
/// may be changing the home meanwhile. New directories belong to `owner`, if given.
pub(crate) fn make_fresh(home: &Path, inside: &Path, owner: Option<u32>) -> io::Result<()> {
    let path_only = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let mut folder = open(home, path_only, Mode::empty())?;
    open_up(folder.as_fd())?;
    let mut parts = inside.components().peekable();
    if parts.peek().is_none() {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    while let Some(part) = parts.next() {
        let Component::Normal(name) = part else {
            return Err(io::Error::from(io::ErrorKind::InvalidInput));
        };
        let name = c_string(name)?;
        let is_last = parts.peek().is_none();
        let found = match open_below(folder.as_fd(), &name) {
            Ok(_) if is_last => {
                move_aside(folder.as_fd(), &name)?;
                None
            }
            Ok(found) => Some(found),
            Err(Errno::ENOENT) => None,
            // A link, or something else than a directory.
            Err(Errno::ELOOP | Errno::ENOTDIR | Errno::EXDEV) => {
                move_aside(folder.as_fd(), &name)?;
                None
            }
            Err(error) => return Err(error.into()),
        };
        folder = match found {
            Some(found) => found,
            None => {
                mkdirat(folder.as_fd(), name.as_c_str(), Mode::from_bits_truncate(0o755))?;
                let made = open_below(folder.as_fd(), &name)?;
                std::fs::set_permissions(through(made.as_fd()), Permissions::from_mode(0o755))?;
                if let Some(owner) = owner {
                    let readable = open(
                        through(made.as_fd()).as_str(),
                        OFlag::O_RDONLY | OFlag::O_CLOEXEC,
                        Mode::empty(),
                    )?;
                    fchown(&readable, Some(Uid::from_raw(owner)), Some(Gid::from_raw(owner)))?;
                }
                made
            }
        };
        open_up(folder.as_fd())?;
    }
    Ok(())
}

/// Gives the owner every permission on a directory that the agent may have closed.
fn open_up(folder: BorrowedFd<'_>) -> io::Result<()> {
    let mode = std::fs::metadata(through(folder))?.permissions().mode();
    if mode & 0o700 != 0o700 {
        std::fs::set_permissions(through(folder), Permissions::from_mode(mode & 0o7777 | 0o700))?;
    }
    Ok(())
}

fn open_below(folder: BorrowedFd<'_>, name: &CString) -> Result<OwnedFd, Errno> {
    let how = OpenHow::new()
        .flags(OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC)
        .resolve(
            ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS | ResolveFlag::RESOLVE_NO_XDEV,
        );
    openat2(folder, name.as_c_str(), how)
}

fn move_aside(folder: BorrowedFd<'_>, name: &CString) -> io::Result<()> {
    for number in 1u64.. {
        // Long names are cut: what matters is that it is out of the way.
        let kept = name.as_bytes().get(..200).unwrap_or(name.as_bytes());
        let mut aside = kept.to_vec();
        aside.extend_from_slice(format!(".aside-{number}").as_bytes());
        let aside = CString::new(aside).map_err(io::Error::other)?;
        match renameat2(
            folder,
            name.as_c_str(),
            folder,
            aside.as_c_str(),
            RenameFlags::RENAME_NOREPLACE,
        ) {
            Err(Errno::EEXIST) => {}
            other => return other.map_err(io::Error::from),
        }
    }
    Ok(())
}

fn c_string(name: &OsStr) -> io::Result<CString> {
    CString::new(name.as_bytes()).map_err(io::Error::other)
}

#[cfg(test)]
mod tests;
