use crate::SandboxError;
use crate::estate::Estate;
use crate::kernel::{kill_process, open_process};
use crate::lease::LeaseError;
use crate::spawn::OwnedChild;
use dressage_wire::ids::SandboxId;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::Pid;
use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::watch;

/// How long init may take to end what it looks after when it is asked to.
const ASKED_MS: u16 = 5_000;

/// How long the kernel may take to end a killed pid namespace.
const KILLED_MS: u16 = 10_000;

/// The processes of a sandbox, from init outwards. Ended, with everything in it, when it is dropped: on a thread of its
/// own, since that may take a while.
#[derive(Debug)]
pub(crate) struct Body(Option<Processes>);

#[derive(Debug)]
struct Processes {
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

impl Body {
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
        Ok(Self(Some(Processes {
            init,
            control,
            ending,
            children,
            _estate: estate,
        })))
    }

    /// Adds a program that runs beside the sandbox and ends with it.
    pub(crate) fn add(&mut self, helper: OwnedChild) {
        if let Some(processes) = &mut self.0 {
            processes.children.push(helper);
        }
    }

    /// What the outermost program wrote to standard error so far.
    pub(crate) fn complaints(&mut self) -> String {
        let first = self
            .0
            .as_mut()
            .and_then(|processes| processes.children.first_mut());
        first.map(OwnedChild::complaints).unwrap_or_default()
    }

    /// Ends everything, and returns when nothing of it runs any more. Blocks.
    pub(crate) fn end(mut self) {
        if let Some(processes) = self.0.take() {
            processes.end();
        }
    }
}

impl Drop for Body {
    fn drop(&mut self) {
        if let Some(processes) = self.0.take() {
            on_a_thread(move || processes.end());
        }
    }
}

impl Processes {
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

/// Whether a sandbox still lives, and its end.
#[derive(Debug)]
pub(crate) struct Life {
    id: SandboxId,
    estate: Arc<Estate>,
    state: Arc<Mutex<State>>,
    outcome: watch::Sender<Option<Result<(), Arc<LeaseError>>>>,
}

#[derive(Debug)]
enum State {
    /// Its processes run.
    Alive(Body),
    /// They were ended, and others are being started.
    Between,
    /// It was ended, or is being ended.
    Over,
}

impl Life {
    pub(crate) fn new(id: SandboxId, estate: Arc<Estate>, body: Body) -> Self {
        Self {
            id,
            estate,
            state: Arc::new(Mutex::new(State::Alive(body))),
            outcome: watch::Sender::new(None),
        }
    }

    pub(crate) fn is_over(&self) -> bool {
        matches!(
            *self.state.lock().unwrap_or_else(PoisonError::into_inner),
            State::Over
        )
    }

    /// Takes the processes away in order to end them and start others; `None` once it is over.
    pub(crate) fn take_body(&self) -> Option<Body> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match std::mem::replace(&mut *state, State::Between) {
            State::Alive(body) => Some(body),
            other => {
                *state = other;
                None
            }
        }
    }

    /// Puts others in their place; gives them back if the sandbox was ended meanwhile.
    pub(crate) fn put_body(&self, body: Body) -> Result<(), Body> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match *state {
            State::Between => {
                *state = State::Alive(body);
                Ok(())
            }
            _ => Err(body),
        }
    }

    /// Ends the sandbox and waits until nothing of it is left. May be called any number of times, by any number at once;
    /// a caller that stops waiting stops nothing.
    pub(crate) async fn end(&self) -> Result<(), SandboxError> {
        self.begin_end();
        let mut outcome = self.outcome.subscribe();
        let result = outcome
            .wait_for(Option::is_some)
            .await
            .ok()
            .and_then(|outcome| outcome.clone());
        match result {
            None | Some(Ok(())) => Ok(()),
            Some(Err(error)) => Err(SandboxError::Left {
                id: self.id,
                source: error,
            }),
        }
    }

    /// Begins to end it. On a thread of its own, which needs no runtime and is not cancelled with one.
    pub(crate) fn begin_end(&self) {
        let before = {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *state, State::Over)
        };
        let failed_before = matches!(&*self.outcome.borrow(), Some(Err(_)));
        if matches!(before, State::Over) && !failed_before {
            return;
        }
        self.outcome.send_replace(None);
        let (estate, outcome) = (Arc::clone(&self.estate), self.outcome.clone());
        on_a_thread(move || {
            if let State::Alive(body) = before {
                body.end();
            }
            let result = estate.clear().map_err(Arc::new);
            drop(estate);
            outcome.send_replace(Some(result));
        });
    }
}

/// Runs what blocks on a thread of its own, which needs no runtime and is not cancelled with one; or here, where there are no
/// threads to be had.
fn on_a_thread(work: impl FnOnce() + Send + 'static) {
    let work = Arc::new(Mutex::new(Some(work)));
    let take = |work: &Mutex<Option<_>>| work.lock().unwrap_or_else(PoisonError::into_inner).take();
    let there = Arc::clone(&work);
    let spawned = std::thread::Builder::new().name("ending".into()).spawn(move || {
        if let Some(work) = take(&there) {
            work();
        }
    });
    if spawned.is_err()
        && let Some(work) = take(&work)
    {
        work();
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        self.begin_end();
    }
}
