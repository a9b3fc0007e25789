//! `dressage-tap guard`: stands between init and one program, so that everything the program starts stays in one tree.
//!
//! It is the subreaper of the program's descendants: one that forks twice, or starts a session of its own, is still
//! below the guard in `/proc`, and init can end it. It makes itself non-dumpable, hence the program, which has the same user
//! id, can kill it but not look into it or steer it; init notices a guard that was killed.
//!
//! It reports on a pipe: `S` when the program runs, `F` with an error number when it could not be started, then `E` with an
//! exit code or `K` with a signal. Each report is a letter and an `i32`, little endian.

use nix::errno::Errno;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, getppid};
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

/// What the kernel adds to a program's badness when memory runs out, so that it goes before init and the guard.
const OUT_OF_MEMORY_SCORE: &str = "300";

/// How long it is waited for room for a process. The dead count against the sandbox's limit until the kernel has done with
/// them, so that after the end of many there may be none for a moment: on a machine with ten times the work that it can do,
/// more than two seconds were seen.
pub(crate) const ROOM_WAIT: Duration = Duration::from_secs(15);

/// Between two tries.
pub(crate) const ROOM_PAUSE: Duration = Duration::from_millis(10);

/// Length of a report in bytes.
pub(crate) const REPORT_BYTES: usize = 5;

/// What a guard reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Report {
    /// The program runs.
    Started,
    /// It could not be started; the system's error number.
    Failed(i32),
    /// It exited.
    Exited(i32),
    /// A signal ended it.
    Killed(i32),
}

impl Report {
    pub(crate) fn to_bytes(self) -> [u8; REPORT_BYTES] {
        let (letter, number) = match self {
            Self::Started => (b'S', 0),
            Self::Failed(errno) => (b'F', errno),
            Self::Exited(code) => (b'E', code),
            Self::Killed(signal) => (b'K', signal),
        };
        let [a, b, c, d] = i32::to_le_bytes(number);
        [letter, a, b, c, d]
    }

    pub(crate) fn from_bytes([letter, number @ ..]: [u8; REPORT_BYTES]) -> Option<Self> {
        let number = i32::from_le_bytes(number);
        match letter {
            b'S' => Some(Self::Started),
            b'F' => Some(Self::Failed(number)),
            b'E' => Some(Self::Exited(number)),
            b'K' => Some(Self::Killed(number)),
            _ => None,
        }
    }
}

/// Runs `guard STATUS_FD CWD PROGRAM [ARGUMENT...]`. Started by init alone.
#[must_use]
pub fn main(arguments: Vec<OsString>) -> ExitCode {
    let mut arguments = arguments.into_iter();
    let status_fd = arguments.next().and_then(|text| text.to_str()?.parse().ok());
    let (Some(status_fd), Some(cwd), Some(program)) = (status_fd, arguments.next(), arguments.next()) else {
        eprintln!("usage: dressage-tap guard STATUS_FD CWD PROGRAM [ARGUMENT...]");
        return ExitCode::from(2);
    };
    let Ok(status) = crate::inherited::take(status_fd) else {
        eprintln!("dressage-tap guard: no status pipe at descriptor {status_fd}");
        return ExitCode::from(2);
    };
    let mut status = File::from(status);
    let mut command = Command::new(program);
    // A group of its own: `kill 0` in the program does not reach the guard.
    command.args(arguments).process_group(0);
    let init = getppid();
    let report = match start(&mut command, &cwd) {
        Ok(root) => {
            // Nobody reads any more once init is gone, and the kernel then ends the guard too, or init's end did.
            let _ = status.write_all(&Report::Started.to_bytes());
            wait_for(root, init)
        }
        Err(error) => Report::Failed(error.raw_os_error().unwrap_or(libc::EINVAL)),
    };
    let _ = status.write_all(&report.to_bytes());
    ExitCode::SUCCESS
}

fn start(command: &mut Command, cwd: &OsString) -> io::Result<Pid> {
    // While still dumpable: afterwards the file belongs to another user.
    let _ = std::fs::write("/proc/self/oom_score_adj", OUT_OF_MEMORY_SCORE);
    nix::sys::prctl::set_dumpable(false)?;
    nix::sys::prctl::set_child_subreaper(true)?;
    std::fs::create_dir_all(cwd)?;
    command.current_dir(cwd);
    let deadline = Instant::now() + ROOM_WAIT;
    let child = loop {
        match command.spawn() {
            Err(error) if is_for_want_of_room(&error) && Instant::now() < deadline => {
                std::thread::sleep(ROOM_PAUSE)
            }
            spawned => break spawned?,
        }
    };
    // Waited for below, together with what it leaves behind; dropping the handle does nothing.
    i32::try_from(child.id())
        .map(Pid::from_raw)
        .map_err(io::Error::other)
}

/// Whether a process could not be made since there are as many as there may be.
pub(crate) fn is_for_want_of_room(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EAGAIN)
}

/// What a guard waits for: the end of a child, and that of init.
fn signals() -> SigSet {
    SigSet::from_iter([Signal::SIGCHLD, Signal::SIGTERM])
}

/// Waits for the program, and meanwhile for descendants whose parents have ended. When init ends first, which in a pid
/// namespace cannot be, so does everything below.
fn wait_for(root: Pid, init: Pid) -> Report {
    // Only now: the program would have inherited what is blocked.
    let listening = signals()
        .thread_block()
        .and_then(|()| nix::sys::prctl::set_pdeathsig(Signal::SIGTERM));
    if let Err(error) = listening {
        return Report::Failed(error as i32);
    }
    loop {
        match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::Exited(pid, code)) if pid == root => return Report::Exited(code),
            Ok(WaitStatus::Signaled(pid, signal, _)) if pid == root => return Report::Killed(signal as i32),
            Ok(WaitStatus::StillAlive) => {
                // SIGTERM may come from the program too; only the parent tells.
                if getppid() != init {
                    crate::init::end_below_here();
                    return Report::Killed(libc::SIGKILL);
                }
                let _ = signals().wait();
            }
            Ok(_) | Err(Errno::EINTR) => {}
            // Cannot be: the program is a child until it is waited for here.
            Err(error) => return Report::Failed(error as i32),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_survive_the_pipe() {
        for report in [
            Report::Started,
            Report::Failed(2),
            Report::Exited(255),
            Report::Killed(9),
        ] {
            assert_eq!(Report::from_bytes(report.to_bytes()), Some(report));
        }
        assert_eq!(Report::from_bytes(*b"X0000"), None);
    }
}
