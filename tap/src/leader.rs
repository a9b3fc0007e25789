//! `dressage-tap leader`: runs a program, passes on what it writes, and ends when the program does, whatever that leaves behind.
//!
//! It is for sandboxes in which a program counts as running for as long as anything holds its output: a service that a command
//! leaves in the background would hold up whoever waits for the command. What is left writes to a program that reads and forgets
//! it, `dressage-tap drain`, and so does not die of it.
#![expect(
    unsafe_code,
    reason = "to end by a signal as the program did, it has to end by it"
)]

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigHandler, Signal, raise, signal};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, PipeReader, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitCode, ExitStatus, Stdio};

/// What is read at once.
const PIECE: usize = 64 << 10;

/// What a pipe holds at most where the system does not say, in bytes.
const PIPE_BYTES: i32 = 64 << 10;

/// Output of the program, and where it goes.
struct Outlet<W> {
    /// `None` when nothing holds the other end any more.
    from: Option<PipeReader>,
    /// `None` when nobody reads it any more: then it is forgotten.
    to: Option<W>,
}

/// Runs `leader PROGRAM [ARGUMENT...]`.
#[must_use]
pub fn main(arguments: Vec<OsString>) -> ExitCode {
    let mut arguments = arguments.into_iter();
    let Some(program) = arguments.next() else {
        eprintln!("usage: dressage-tap leader PROGRAM [ARGUMENT...]");
        return ExitCode::from(2);
    };
    match lead(&program, arguments.collect()) {
        Ok(status) => end_like(status),
        Err(error) => {
            eprintln!("dressage-tap leader: {}: {error}", program.to_string_lossy());
            // As shells have it.
            ExitCode::from(if error.kind() == io::ErrorKind::NotFound {
                127
            } else {
                126
            })
        }
    }
}

fn lead(program: &OsStr, arguments: Vec<OsString>) -> io::Result<ExitStatus> {
    let (out, out_to) = io::pipe()?;
    let (err, err_to) = io::pipe()?;
    let mut child = Command::new(program)
        .args(arguments)
        .stdout(out_to)
        .stderr(err_to)
        .spawn()?;
    let (over, ends_with_it) = io::pipe()?;
    let waiting = std::thread::spawn(move || {
        let status = child.wait();
        drop(ends_with_it);
        status
    });
    let mut out = Outlet::new(out, io::stdout());
    let mut err = Outlet::new(err, io::stderr());
    while !next(&mut out, &mut err, &over)? {}
    out.empty()?;
    err.empty()?;
    if out.from.is_some() || err.from.is_some() {
        // Where that fails what is left dies when it writes: no reason to fail what has ended well.
        let _ = leave(out.from, err.from);
    }
    waiting
        .join()
        .unwrap_or_else(|_| Err(io::Error::other("it was not waited for")))
}

/// Passes on what comes next. Says whether the program has ended.
fn next<O: Write, E: Write>(out: &mut Outlet<O>, err: &mut Outlet<E>, over: &PipeReader) -> io::Result<bool> {
    let mut looked_at = vec![PollFd::new(over.as_fd(), PollFlags::POLLIN)];
    for from in [&out.from, &err.from].into_iter().flatten() {
        looked_at.push(PollFd::new(from.as_fd(), PollFlags::POLLIN));
    }
    match poll(&mut looked_at, PollTimeout::NONE) {
        Err(Errno::EINTR) => return Ok(false),
        polled => polled?,
    };
    let mut ready = looked_at.iter().map(|one| one.any().unwrap_or_default());
    let ended = ready.next().unwrap_or_default();
    let out_ready = out.from.is_some() && ready.next().unwrap_or_default();
    let err_ready = err.from.is_some() && ready.next().unwrap_or_default();
    if out_ready {
        out.pass_on(PIECE)?;
    }
    if err_ready {
        err.pass_on(PIECE)?;
    }
    Ok(ended)
}

impl<W: Write> Outlet<W> {
    fn new(from: PipeReader, to: W) -> Self {
        Self {
            from: Some(from),
            to: Some(to),
        }
    }

    /// Reads once, at most so much, and passes it on. Says how much it was.
    fn pass_on(&mut self, most: usize) -> io::Result<usize> {
        let Some(from) = &mut self.from else {
            return Ok(0);
        };
        let mut piece = vec![0; most.min(PIECE)];
        let count = from.read(&mut piece)?;
        if count == 0 {
            self.from = None;
        }
        if let (Some(to), Some(piece)) = (&mut self.to, piece.get(..count))
            && to.write_all(piece).and_then(|()| to.flush()).is_err()
        {
            self.to = None;
        }
        Ok(count)
    }

    /// Passes on what the program had written when it ended. What is left behind may go on to write: no more than a pipe holds
    /// is the program's.
    fn empty(&mut self) -> io::Result<()> {
        let Some(from) = &self.from else {
            return Ok(());
        };
        let holds = fcntl(from, FcntlArg::F_GETPIPE_SZ).unwrap_or(PIPE_BYTES);
        let mut rest = usize::try_from(holds).unwrap_or(PIECE);
        set_waiting(from, false)?;
        while rest > 0 && self.from.is_some() {
            match self.pass_on(rest) {
                Ok(count) => rest -= count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        match &self.from {
            Some(from) => set_waiting(from, true),
            None => Ok(()),
        }
    }
}

/// Whether reads wait until there is something.
fn set_waiting(from: &PipeReader, waits: bool) -> io::Result<()> {
    let flags = if waits { OFlag::empty() } else { OFlag::O_NONBLOCK };
    fcntl(from, FcntlArg::F_SETFL(flags))?;
    Ok(())
}

/// Leaves what may still be written to a program that forgets it.
fn leave(out: Option<PipeReader>, err: Option<PipeReader>) -> io::Result<()> {
    let end = |from: Option<PipeReader>| from.map_or_else(Stdio::null, Stdio::from);
    Command::new(std::env::current_exe()?)
        .arg("drain")
        .stdin(end(out))
        .stdout(end(err))
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()
        .map(drop)
}

/// Runs `drain`: reads its standard input and its standard output, which are ends of pipes, and forgets what comes. Started by a
/// leader alone.
#[must_use]
pub fn drain() -> ExitCode {
    let ends = [
        io::stdin().as_fd().try_clone_to_owned(),
        io::stdout().as_fd().try_clone_to_owned(),
    ];
    let reading: Vec<_> = ends
        .into_iter()
        .flatten()
        .map(|end: OwnedFd| std::thread::spawn(|| io::copy(&mut File::from(end), &mut io::sink())))
        .collect();
    for end in reading {
        // There is nobody to tell.
        let _ = end.join();
    }
    ExitCode::SUCCESS
}

fn end_like(status: ExitStatus) -> ExitCode {
    if let Some(Ok(by)) = status.signal().map(Signal::try_from) {
        // SAFETY: it is set to what the system does by itself, and no handler of this program's is replaced: there are none.
        let _ = unsafe { signal(by, SigHandler::SigDfl) };
        let _ = raise(by);
    }
    let code = status.code().or(status.signal().map(|by| 128 + by));
    ExitCode::from(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1))
}
