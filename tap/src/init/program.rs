use super::children::Children;
use super::replies::Replies;
use super::tree;
use crate::guard::{REPORT_BYTES, ROOM_PAUSE, ROOM_WAIT, Report, is_for_want_of_room};
use crate::stdio::nonblocking;
use bytes::{Buf, Bytes, BytesMut};
use dressage_wire::control::{CHUNK_BYTES, Exited, Failure, FailureKind, Reply, Start};
use nix::fcntl::{FcntlArg, FdFlag, OFlag, fcntl};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, pipe2};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

/// How long output is waited for after the program has ended, while a process that it left still holds the pipe.
const LINGER: Duration = Duration::from_millis(100);

/// How long a guard has to end when its program has.
const GUARD_GRACE: Duration = Duration::from_millis(500);

/// The exit code of what was ended by its deadline, as of `timeout(1)`.
const TIMED_OUT: i32 = 124;

/// What the host says to a program that was started.
#[derive(Debug)]
pub(super) enum ToProgram {
    /// A piece of standard input; empty: the end.
    Input(Bytes),
    /// End it.
    Kill,
}

/// What a program runs in.
#[derive(Clone, Debug)]
pub(super) struct Surroundings {
    pub(super) children: Children,
    pub(super) replies: Replies,
}

/// Starts a program and tells the host everything about it, its exit last.
pub(super) async fn run(
    id: u64,
    start: Start,
    mut from_host: mpsc::UnboundedReceiver<ToProgram>,
    surroundings: Surroundings,
) {
    let Surroundings { children, replies } = surroundings;
    let deadline = start
        .timeout_ms
        .and_then(|ms| Instant::now().checked_add(Duration::from_millis(ms)));
    let room_deadline = Instant::now() + ROOM_WAIT;
    let spawned = loop {
        match Guarded::spawn(&start, &children) {
            Err(error) if is_for_want_of_room(&error) && Instant::now() < room_deadline => {
                children.reap_now();
                tokio::time::sleep(ROOM_PAUSE).await;
            }
            spawned => break spawned,
        }
    };
    let mut guarded = match spawned {
        Ok(guarded) => guarded,
        Err(error) => return replies.send(id, Reply::Failed(failure(&error))).await,
    };
    let (over, is_over) = watch::channel(false);
    let stdout = tokio::spawn(pump(
        guarded.stdout,
        is_over.clone(),
        replies.clone(),
        move |bytes| (id, Reply::Stdout(bytes)),
    ));
    let stderr = tokio::spawn(pump(guarded.stderr, is_over, replies.clone(), move |bytes| {
        (id, Reply::Stderr(bytes))
    }));
    let (input, to_write) = mpsc::unbounded_channel();
    tokio::spawn(feed(guarded.stdin, to_write));

    let mut progress = Progress::default();
    let mut status = Status {
        pipe: guarded.status,
        buffer: BytesMut::new(),
    };
    let report = loop {
        tokio::select! {
            biased;
            report = status.next() => match report {
                Some(Report::Started) => {
                    progress.started = true;
                    replies.send(id, Reply::Started).await;
                }
                report => break report,
            },
            message = from_host.recv(), if !progress.host_is_gone => match message {
                Some(ToProgram::Input(bytes)) => {
                    let _ = input.send(bytes);
                }
                Some(ToProgram::Kill) => progress.end(guarded.pid, &children).await,
                // Everything ends soon, and this with it.
                None => progress.host_is_gone = true,
            },
            () = until(deadline), if !progress.timed_out => {
                progress.timed_out = true;
                progress.end(guarded.pid, &children).await;
            }
            // Stopped or stuck, with nothing left below it.
            () = until(progress.guard_deadline) => {
                progress.guard_deadline = None;
                let _ = kill(guarded.pid, Signal::SIGKILL);
            }
        }
    };
    if let Some(Report::Failed(errno)) = report
        && !progress.started
    {
        return replies
            .send(id, Reply::Failed(failure(&io::Error::from_raw_os_error(errno))))
            .await;
    }
    if tokio::time::timeout(GUARD_GRACE, &mut guarded.ended)
        .await
        .is_err()
    {
        let _ = kill(guarded.pid, Signal::SIGKILL);
        let _ = guarded.ended.await;
    }
    if report.is_none() {
        tree::end_unguarded(&children).await;
    }
    // What was below the guard is now here; a dead process counts against the sandbox's limit until it is waited for.
    children.reap_now();
    if !progress.started {
        // The program was quicker than its guard, and ended that.
        replies.send(id, Reply::Started).await;
    }
    let _ = over.send(true);
    let _ = stdout.await;
    let _ = stderr.await;
    replies
        .send(id, Reply::Exited(exited(report, progress.timed_out)))
        .await;
}

/// How far a program has come.
#[derive(Debug, Default)]
struct Progress {
    started: bool,
    timed_out: bool,
    host_is_gone: bool,
    /// When the guard is to have told of the end that was made of its program.
    guard_deadline: Option<Instant>,
}

impl Progress {
    async fn end(&mut self, guard: Pid, children: &Children) {
        tree::end_below(guard, children).await;
        self.guard_deadline = Some(Instant::now() + GUARD_GRACE);
    }
}

fn exited(report: Option<Report>, timed_out: bool) -> Exited {
    let (code, signal) = match report {
        Some(Report::Exited(code)) => (code, None),
        Some(Report::Killed(signal)) => (128 + signal, Some(signal)),
        // The guard itself was killed.
        _ => (128 + libc::SIGKILL, Some(libc::SIGKILL)),
    };
    Exited {
        code: if timed_out { TIMED_OUT } else { code },
        signal,
        timed_out,
    }
}

pub(super) fn failure(error: &io::Error) -> Failure {
    let errno = error.raw_os_error();
    let message = match errno {
        Some(libc::EAGAIN) => "there are as many processes as there may be".into(),
        Some(errno) => nix::errno::Errno::from_raw(errno).desc().to_lowercase(),
        None => error.to_string(),
    };
    Failure {
        kind: FailureKind::Other,
        message,
        errno,
        size_bytes: 0,
    }
}

async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

/// A guard with its program, as init sees them.
struct Guarded {
    pid: Pid,
    ended: oneshot::Receiver<()>,
    stdin: pipe::Sender,
    stdout: pipe::Receiver,
    stderr: pipe::Receiver,
    status: pipe::Receiver,
}

impl Guarded {
    fn spawn(start: &Start, children: &Children) -> io::Result<Self> {
        let (program_stdin, stdin) = pipe2(OFlag::O_CLOEXEC)?;
        let (stdout, program_stdout) = pipe2(OFlag::O_CLOEXEC)?;
        let (stderr, program_stderr) = pipe2(OFlag::O_CLOEXEC)?;
        let (status, guard_status) = pipe2(OFlag::O_CLOEXEC)?;
        // Inherited by the guard alone: only this thread starts programs, and the other end of the exec is below.
        fcntl(&guard_status, FcntlArg::F_SETFD(FdFlag::empty()))?;
        let child = Command::new("/proc/self/exe")
            .arg0("dressage-tap")
            .arg("guard")
            .arg(guard_status.as_raw_fd().to_string())
            .arg(&start.cwd)
            .args(&start.argv)
            .env_clear()
            .envs(&start.env)
            .stdin(Stdio::from(program_stdin))
            .stdout(Stdio::from(program_stdout))
            .stderr(Stdio::from(program_stderr))
            .process_group(0)
            .spawn()?;
        drop(guard_status);
        let pid = i32::try_from(child.id())
            .map(Pid::from_raw)
            .map_err(io::Error::other)?;
        Ok(Self {
            pid,
            ended: children.wait_for(pid),
            stdin: pipe::Sender::from_owned_fd(nonblocking(stdin)?)?,
            stdout: pipe::Receiver::from_owned_fd(nonblocking(stdout)?)?,
            stderr: pipe::Receiver::from_owned_fd(nonblocking(stderr)?)?,
            status: pipe::Receiver::from_owned_fd(nonblocking(status)?)?,
        })
    }
}

/// The guard's reports, read so that a read that is given up loses nothing.
struct Status {
    pipe: pipe::Receiver,
    buffer: BytesMut,
}

impl Status {
    async fn next(&mut self) -> Option<Report> {
        while self.buffer.len() < REPORT_BYTES {
            if self.pipe.read_buf(&mut self.buffer).await.ok()? == 0 {
                return None;
            }
        }
        let mut report = [0; REPORT_BYTES];
        self.buffer.copy_to_slice(&mut report);
        Report::from_bytes(report)
    }
}

/// Passes on what comes out of a pipe, until its end or a while after the program's. What comes later, from services that
/// the program left, is read and dropped: a full or closed pipe would stop or kill them.
async fn pump(
    mut pipe: pipe::Receiver,
    mut over: watch::Receiver<bool>,
    replies: Replies,
    wrap: impl Fn(Bytes) -> (u64, Reply),
) {
    let mut buffer = BytesMut::new();
    let mut last: Option<Instant> = None;
    loop {
        buffer.reserve(CHUNK_BYTES / 2);
        tokio::select! {
            biased;
            read = pipe.read_buf(&mut buffer) => match read {
                Ok(0) | Err(_) => return,
                Ok(_) => {
                    let (id, reply) = wrap(buffer.split().freeze());
                    replies.send(id, reply).await;
                    // Here too: what is always ready to be read would otherwise always come first.
                    if *over.borrow() && Instant::now() >= *last.get_or_insert(Instant::now() + LINGER) {
                        break;
                    }
                }
            },
            () = told(&mut over), if last.is_none() => last = Some(Instant::now() + LINGER),
            () = until(last), if last.is_some() => break,
        }
    }
    tokio::spawn(async move {
        let mut dropped = vec![0; 16 << 10];
        while matches!(pipe.read(&mut dropped).await, Ok(1..)) {}
    });
}

async fn told(over: &mut watch::Receiver<bool>) {
    // An error means that the other side is gone, which comes to the same.
    let _ = over.wait_for(|over| *over).await;
}

/// Writes standard input and closes it. A program that does not read it is no error.
async fn feed(mut stdin: pipe::Sender, mut pieces: mpsc::UnboundedReceiver<Bytes>) {
    while let Some(piece) = pieces.recv().await {
        if piece.is_empty() || stdin.write_all(&piece).await.is_err() {
            return;
        }
    }
}
