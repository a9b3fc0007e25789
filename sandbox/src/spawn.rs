use crate::kernel::{ChildSetup, kill_process, open_process, set_up};
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::sync::{OnceLock, mpsc};
use tokio::sync::oneshot;

/// What is kept of what a program that failed wrote.
const MAX_COMPLAINT_BYTES: usize = 2048;

/// How long a killed process may take to end.
const KILLED_MS: u16 = 10_000;

/// A program to be started by the [spawner](spawn).
pub(crate) struct Launch {
    /// Program, arguments, environment. Its own process group, so that Ctrl-C at a terminal does not reach it.
    pub(crate) command: Command,
    /// What it does to itself before it becomes the program.
    pub(crate) setup: ChildSetup,
    /// Held until it runs, or is known not to: what must not be removed under its feet.
    pub(crate) holds: Box<dyn std::any::Any + Send>,
}

/// A child that is killed and waited for, with its own children, when it is dropped.
#[derive(Debug)]
pub(crate) struct OwnedChild(Option<Child>);

impl OwnedChild {
    pub(crate) fn pid(&self) -> Option<i32> {
        self.0.as_ref().and_then(|child| i32::try_from(child.id()).ok())
    }

    /// Whether it has ended.
    pub(crate) fn has_ended(&mut self) -> bool {
        self.0
            .as_mut()
            .is_none_or(|child| !matches!(child.try_wait(), Ok(None)))
    }

    /// What it has written to standard error by now, cut to a few lines. Does not wait for more.
    pub(crate) fn complaints(&mut self) -> String {
        let Some(mut stderr) = self.0.as_mut().and_then(|child| child.stderr.take()) else {
            return String::new();
        };
        let mut text = vec![0; MAX_COMPLAINT_BYTES];
        let read = fcntl(&stderr, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))
            .map_err(io::Error::from)
            .and_then(|_| stderr.read(&mut text))
            .unwrap_or(0);
        text.truncate(read);
        String::from_utf8_lossy(&text).trim().to_owned()
    }
}

impl Drop for OwnedChild {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take()
            && matches!(child.try_wait(), Ok(None))
            && let Ok(pid) = i32::try_from(child.id())
        {
            end_with_children(Pid::from_raw(pid));
        }
    }
}

/// Kills a child of this process and its children, and waits for all of them. Bubblewrap's own child is told of its parent's
/// death by the kernel, but a moment after it was made not yet, and it would wait for ever.
fn end_with_children(pid: Pid) {
    // Stopped first, so that it makes no more of them meanwhile.
    let _ = kill(pid, Signal::SIGSTOP);
    let children = match waitpid(pid, Some(WaitPidFlag::WUNTRACED)) {
        Ok(WaitStatus::Stopped(..)) => children_of(pid),
        // It ended by itself, which took care of its children.
        _ => return,
    };
    let _ = kill(pid, Signal::SIGKILL);
    for child in &children {
        let _ = kill_process(child.as_fd());
    }
    let _ = waitpid(pid, None);
    for child in &children {
        let mut fds = [PollFd::new(child.as_fd(), PollFlags::POLLIN)];
        let _ = poll(&mut fds, PollTimeout::from(KILLED_MS));
    }
}

/// Descriptors of the children of a process that is stopped.
fn children_of(parent: Pid) -> Vec<OwnedFd> {
    let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    all.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok())
        .filter(|pid| parent_of(*pid) == Some(parent.as_raw()))
        .filter_map(|pid| open_process(Pid::from_raw(pid)).ok())
        .collect()
}

fn parent_of(pid: i32) -> Option<i32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name is in parentheses and may hold anything; state and parent follow.
    stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
}

type Job = (Launch, oneshot::Sender<io::Result<OwnedChild>>);

/// Starts a program from one thread that lives as long as the process.
///
/// A child's parent-death signal fires when the *thread* that started it ends, and threads of a runtime's pool end
/// when they are idle: sandboxes would die at random.
pub(crate) async fn spawn(launch: Launch) -> io::Result<OwnedChild> {
    static SPAWNER: OnceLock<mpsc::Sender<Job>> = OnceLock::new();
    let jobs = match SPAWNER.get() {
        Some(jobs) => jobs,
        None => {
            let (sender, receiver) = mpsc::channel();
            std::thread::Builder::new()
                .name("spawner".into())
                .spawn(move || run(&receiver))?;
            // If another thread was first, this one's spawner ends with its sender, having started nothing.
            SPAWNER.get_or_init(|| sender)
        }
    };
    let (reply, child) = oneshot::channel();
    jobs.send((launch, reply))
        .map_err(|_| io::Error::other("the spawner thread has ended"))?;
    child
        .await
        .map_err(|_| io::Error::other("the spawner thread has ended"))?
}

fn run(jobs: &mpsc::Receiver<Job>) {
    while let Ok((launch, reply)) = jobs.recv() {
        let Launch {
            mut command,
            setup,
            holds,
        } = launch;
        set_up(&mut command, setup);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let child = command.spawn().map(|child| OwnedChild(Some(child)));
        // With it go this side's copies of what the child inherited.
        drop(command);
        // If nobody waits any more, the child ends here, before what it stands on is let go.
        let _ = reply.send(child);
        drop(holds);
    }
}
