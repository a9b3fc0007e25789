//! Ctrl-C: the first stops admitting, cancels and cleans up, the second hurries, the third ends the process at once
//! and leaves the rest to the sweep of the next start.

use crate::exit::Exit;
use crate::terminal::Terminal;
use dressage_rollout::Supervisor;
use std::io;
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// How often it is said what is left.
const REMINDER: Duration = Duration::from_secs(5);

/// Listens for SIGINT, SIGTERM and SIGHUP. Cancelled at the first of them.
///
/// # Errors
/// Where the system refuses the handlers.
pub fn listen(supervisor: &Supervisor, terminal: &Terminal) -> io::Result<CancellationToken> {
    let mut signals = Signals::new()?;
    let (supervisor, terminal) = (supervisor.clone(), terminal.clone());
    let interrupted = CancellationToken::new();
    let cancelled = interrupted.clone();
    tokio::spawn(async move {
        signals.next().await;
        cancelled.cancel();
        supervisor.stop_admitting();
        supervisor.cancel_all();
        terminal.note(format!(
            "stopping: {} cancelled and cleaned up; again to hurry",
            rollouts_are(supervisor.live().borrow().len())
        ));
        signals.hurry_and_end(&supervisor, &terminal).await;
    });
    Ok(interrupted)
}

/// Listens for the same signals for a server. Cancelled at the first of them: what waits and runs may then end within
/// `grace`; the second cancels it, the third hurries, the fourth ends the process at once.
///
/// # Errors
/// Where the system refuses the handlers.
pub fn listen_serving(
    supervisor: &Supervisor,
    grace: Duration,
    terminal: &Terminal,
) -> io::Result<CancellationToken> {
    let mut signals = Signals::new()?;
    let (supervisor, terminal) = (supervisor.clone(), terminal.clone());
    let stop = CancellationToken::new();
    let stopped = stop.clone();
    tokio::spawn(async move {
        signals.next().await;
        supervisor.stop_admitting();
        stopped.cancel();
        let live = supervisor.live().borrow().len();
        if live > 0 {
            terminal.note(format!(
                "stopping: {} left, with {} s to end; again to cancel",
                rollouts_are(live),
                grace.as_secs()
            ));
        }
        signals.next_reminding(&supervisor, &terminal).await;
        supervisor.cancel_all();
        terminal.note("stopping: what was left is cancelled and cleaned up; again to hurry");
        signals.hurry_and_end(&supervisor, &terminal).await;
    });
    Ok(stop)
}

fn rollouts_are(count: usize) -> String {
    if count == 1 {
        "1 rollout is".into()
    } else {
        format!("{count} rollouts are")
    }
}

/// What ends a program.
pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
}

impl Signals {
    /// Listens from now on.
    ///
    /// # Errors
    /// Where the system refuses the handlers.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    /// Waits for one.
    pub async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
            _ = self.hangup.recv() => {}
        }
    }

    /// The last two: the next one hurries, the one after it ends the process.
    async fn hurry_and_end(&mut self, supervisor: &Supervisor, terminal: &Terminal) {
        self.next_reminding(supervisor, terminal).await;
        supervisor.hurry();
        terminal
            .note("hurrying: what is left of sandboxes is removed at the next start; again to end at once");
        self.next_reminding(supervisor, terminal).await;
        std::process::exit(Exit::Interrupted.code().into());
    }

    /// Waits for the next one, and says meanwhile what is left to clean up.
    async fn next_reminding(&mut self, supervisor: &Supervisor, terminal: &Terminal) {
        loop {
            match tokio::time::timeout(REMINDER, self.next()).await {
                Ok(()) => return,
                Err(_) => {
                    let live = supervisor.live().borrow().len();
                    if live > 0 {
                        terminal.note(format!("stopping: {} still being cleaned up", rollouts_are(live)));
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_rollout_is_and_others_are() {
        assert_eq!(
            [0, 1, 2].map(rollouts_are),
            ["0 rollouts are", "1 rollout is", "2 rollouts are"]
        );
    }
}
