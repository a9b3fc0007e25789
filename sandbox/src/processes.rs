use crate::estate::Estate;
use crate::kernel::{kill_process, open_process};
use crate::life::{Body, on_a_thread};
use crate::spawn::OwnedChild;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::Pid;
use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

/// How long init may take to end what it looks after when it is asked to.
const ASKED_MS: u16 = 5_000;

/// How long the kernel may take to end a killed pid namespace.
const KILLED_MS: u16 = 10_000;

/// The processes of a sandbox on this machine, from init outwards. Ended, with everything in it, when it is dropped: on a thread
/// of its own, since that may take a while.
#[derive(Debug)]
pub(crate) struct Processes(Option<Running>);

#[derive(Debug)]
struct Running {
    init: OwnedFd,
    control: UnixStream,
    ending: Ending,
    children: Vec<OwnedChild>,
    // Last, so that what the processes stand on outlives them.
    _estate: Arc<Estate>,
}

/// How everything in a sandbox is ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// Init is the first process of a pid namespace: the kernel ends the rest with it.
    WithInit,
    /// Init is asked to end the rest, by the end of its control connection.
    ByInit,
}

impl Processes {
    /// `init` is the number of init on this machine, seen while it is known to live; `control` another handle of the
    /// host's end of its control connection.
    pub(crate) fn new(
        init: i32,
        control: UnixStream,
        ending: Ending,
        children: Vec<OwnedChild>,
        estate: Arc<Estate>,
    ) -> io::Result<Self> {
        let init = open_process(Pid::from_raw(init))?;
        Ok(Self(Some(Running {
            init,
            control,
            ending,
            children,
            _estate: estate,
        })))
    }

    /// Adds a program that runs beside the sandbox and ends with it.
    pub(crate) fn add(&mut self, helper: OwnedChild) {
        if let Some(running) = &mut self.0 {
            running.children.push(helper);
        }
    }

    /// What the outermost program wrote to standard error so far.
    pub(crate) fn complaints(&mut self) -> String {
        let first = self.0.as_mut().and_then(|running| running.children.first_mut());
        first.map(OwnedChild::complaints).unwrap_or_default()
    }
}

impl Body for Processes {
    fn end(mut self: Box<Self>) {
        if let Some(running) = self.0.take() {
            running.end();
        }
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        if let Some(running) = self.0.take() {
            on_a_thread(move || running.end());
        }
    }
}

impl Running {
    fn end(self) {
        let _ = self.control.shutdown(Shutdown::Both);
        if self.ending == Ending::ByInit && self.ended_within(ASKED_MS) {
            return;
        }
        // The descriptor becomes readable when the namespace's last process is gone, not when init begins to die.
        let killed = kill_process(self.init.as_fd());
        if killed.is_err() || !self.ended_within(KILLED_MS) {
            tracing::warn!("a sandbox's processes did not end after SIGKILL");
        }
    }

    fn ended_within(&self, timeout_ms: u16) -> bool {
        let mut fds = [PollFd::new(self.init.as_fd(), PollFlags::POLLIN)];
        loop {
            match poll(&mut fds, PollTimeout::from(timeout_ms)) {
                Err(nix::errno::Errno::EINTR) => {}
                Ok(0) | Err(_) => return false,
                Ok(_) => return true,
            }
        }
    }
}
