//! Ctrl-C: the first stops admitting, cancels and cleans up, the second hurries, the third ends the process at once
//! and leaves the rest to the sweep of the next start.

use crate::exit::Exit;
use crate::terminal::Terminal;
use dressage_rollout::Supervisor;
use std::io;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// Listens for SIGINT, SIGTERM and SIGHUP. Cancelled at the first of them.
///
/// # Errors
/// Where the system refuses the handlers.
pub fn listen(supervisor: &Supervisor, terminal: &Terminal) -> io::Result<CancellationToken> {
    let mut signals = Signals {
        interrupt: signal(SignalKind::interrupt())?,
        terminate: signal(SignalKind::terminate())?,
        hangup: signal(SignalKind::hangup())?,
    };
    let (supervisor, terminal) = (supervisor.clone(), terminal.clone());
    let interrupted = CancellationToken::new();
    let cancelled = interrupted.clone();
    tokio::spawn(async move {
        signals.next().await;
        cancelled.cancel();
        supervisor.stop_admitting();
        supervisor.cancel_all();
        let live = supervisor.live().borrow().len();
        let what = if live == 1 {
            "1 rollout is".to_owned()
        } else {
            format!("{live} rollouts are")
        };
        terminal.note(format!(
            "stopping: {what} cancelled and cleaned up; again to hurry"
        ));
        signals.next().await;
        supervisor.hurry();
        terminal
            .note("hurrying: what is left of sandboxes is removed at the next start; again to end at once");
        signals.next().await;
        std::process::exit(Exit::Interrupted.code().into());
    });
    Ok(interrupted)
}

struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
}

impl Signals {
    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
            _ = self.hangup.recv() => {}
        }
    }
}
