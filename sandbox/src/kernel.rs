#![expect(
    unsafe_code,
    reason = "what must be done between fork and exec, and the system calls on process descriptors, have no safe form"
)]

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::{SigHandler, SigSet, Signal};
use nix::sys::stat::{Mode, umask};
use nix::unistd::{Gid, Pid, Uid, getpid, getppid, setgid, setgroups, setuid};
use std::ffi::{CStr, CString};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

const NOTHING: Option<&CStr> = None;

/// What a child does to itself between fork and exec.
#[derive(Debug, Default)]
pub(crate) struct ChildSetup {
    /// Descriptors that survive the exec, under the numbers they have.
    pub(crate) inherited: Vec<OwnedFd>,
    /// `cgroup.procs` of the groups it moves into.
    pub(crate) cgroups: Vec<File>,
    /// The user and group that it becomes, without supplementary groups.
    pub(crate) identity: Option<u32>,
    /// A file that it finds in the place of another, in a mount namespace of its own.
    pub(crate) replaced: Option<Replaced>,
    /// Whether it dies with the thread that started it.
    pub(crate) death: Death,
}

/// A file in the place of another.
#[derive(Debug)]
pub(crate) struct Replaced {
    pub(crate) by: CString,
    pub(crate) file: CString,
}

/// Whether a child dies with the thread that started it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Death {
    /// It sees to that itself.
    #[default]
    OwnAffair,
    /// It gets SIGKILL.
    WithParent,
}

/// Has `command` do `setup` in its children, and start nothing where this process has ended. `setup` lives as long as
/// `command`.
pub(crate) fn set_up(command: &mut Command, setup: ChildSetup) {
    let parent = getpid();
    let prepare = move || {
        for file in &setup.cgroups {
            nix::unistd::write(file, b"0")?;
        }
        if let Some(Replaced { by, file }) = &setup.replaced {
            unshare(CloneFlags::CLONE_NEWNS)?;
            mount(
                NOTHING,
                c"/",
                NOTHING,
                MsFlags::MS_REC | MsFlags::MS_PRIVATE,
                NOTHING,
            )?;
            mount(
                Some(by.as_c_str()),
                file.as_c_str(),
                NOTHING,
                MsFlags::MS_BIND,
                NOTHING,
            )?;
        }
        if let Some(id) = setup.identity {
            setgroups(&[])?;
            setgid(Gid::from_raw(id))?;
            setuid(Uid::from_raw(id))?;
        }
        umask(Mode::S_IWGRP | Mode::S_IWOTH);
        default_signals()?;
        if setup.death == Death::WithParent {
            // After setuid, which clears it.
            nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)?;
        }
        // After that too: the signal tells of no death before it.
        if getppid() != parent {
            return Err(Errno::ESRCH.into());
        }
        // What this process inherited itself, or opened without care, is nobody else's business.
        close_on_exec_from(3)?;
        for fd in &setup.inherited {
            fcntl(fd, FcntlArg::F_SETFD(FdFlag::empty()))?;
        }
        Ok(())
    };
    // SAFETY: the closure makes system calls only. It does not allocate, lock or panic, so it may run after a fork of
    // a process with several threads. Errors are made from numbers, without allocation.
    unsafe {
        command.pre_exec(prepare);
    }
}

/// Undoes what this process inherited or did to its signals: a server under nohup ignores some, and an agent's programs are
/// not to.
fn default_signals() -> nix::Result<()> {
    for signal in Signal::iterator().filter(|signal| !matches!(signal, Signal::SIGKILL | Signal::SIGSTOP)) {
        // SAFETY: the default action runs no code of ours.
        unsafe { nix::sys::signal::signal(signal, SigHandler::SigDfl) }?;
    }
    SigSet::empty().thread_set_mask()
}

/// Has every descriptor from `first` on closed by an exec.
fn close_on_exec_from(first: libc::c_uint) -> io::Result<()> {
    // SAFETY: takes three integers, and closes nothing now.
    let result = unsafe {
        libc::syscall(
            libc::SYS_close_range,
            first,
            libc::c_uint::MAX,
            libc::CLOSE_RANGE_CLOEXEC,
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Opens a descriptor of a process, by which it can be waited for and signalled without being confused with another.
pub(crate) fn open_process(pid: Pid) -> io::Result<OwnedFd> {
    // SAFETY: takes two integers, and returns a new descriptor or an error.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid.as_raw(), 0) };
    let fd = RawFd::try_from(fd).map_err(io::Error::other)?;
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was just made for us, and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Sends SIGKILL to the process behind a descriptor. One that has ended is no error.
pub(crate) fn kill_process(process: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: takes integers and a null pointer, which stands for "no details".
    let result = unsafe {
        libc::syscall(
            libc::SYS_pidfd_send_signal,
            process.as_raw_fd(),
            libc::SIGKILL,
            std::ptr::null::<libc::siginfo_t>(),
            0,
        )
    };
    match result {
        0 => Ok(()),
        _ => match io::Error::last_os_error() {
            error if error.raw_os_error() == Some(libc::ESRCH) => Ok(()),
            error => Err(error),
        },
    }
}

/// The user namespace that a namespace belongs to; whoever joins it may change the namespace.
pub(crate) fn owning_user_namespace(namespace: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    // SAFETY: takes a descriptor and no pointer, and returns a new descriptor or an error.
    let fd = unsafe { libc::ioctl(namespace.as_raw_fd(), libc::NS_GET_USERNS as libc::Ioctl) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was just made for us, and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
