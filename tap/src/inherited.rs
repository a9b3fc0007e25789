#![expect(
    unsafe_code,
    reason = "a descriptor that was passed on by number can only be taken over unchecked"
)]

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use std::io;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Mutex;

/// Numbers that were taken over already.
static TAKEN: Mutex<Vec<RawFd>> = Mutex::new(Vec::new());

/// Takes over a descriptor that whoever started this program passed on by its number. It is not passed on further.
///
/// # Errors
/// Where there is no such descriptor, where it is one of the three standard ones, or where it was taken before.
pub(crate) fn take(number: RawFd) -> io::Result<OwnedFd> {
    let mut taken = TAKEN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if number <= 2 || taken.contains(&number) {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    // SAFETY: the number may name nothing; it is then only used for the call that finds out.
    let borrowed = unsafe { BorrowedFd::borrow_raw(number) };
    fcntl(borrowed, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC))?;
    taken.push(number);
    // SAFETY: it is open, and nothing here has it: callers take what they were given on their command line before they
    // open anything, and each number once.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Has every descriptor but the standard ones closed when another program is started: also those that whoever started this
/// one passed on without meaning to.
///
/// # Errors
/// Where the kernel is older than Linux 5.11.
pub(crate) fn pass_on_nothing() -> io::Result<()> {
    // SAFETY: takes three integers, and closes nothing now.
    let result = unsafe { libc::syscall(libc::SYS_close_range, 3u32, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
