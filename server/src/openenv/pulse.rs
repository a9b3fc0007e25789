//! Whether the client of a socket is still there: one whose machine has vanished, or that is frozen, says nothing more,
//! and would keep its place for ever.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

/// How often a client is asked where nobody says.
pub const PING: Duration = Duration::from_secs(20);

/// How often it may be asked in vain: with [`PING`] two minutes, six times as long as uvicorn, which OpenEnv's servers run
/// on, waits for a pong. Clients whose event loop is busy with something else answer late.
const UNANSWERED: u32 = 6;

/// What is known of a client's answers to pings.
#[derive(Debug, Default)]
pub struct Pulse {
    unanswered: AtomicU32,
    unread: AtomicBool,
}

impl Pulse {
    /// Something came of the client. A pong may be overtaken by what it was sent before it; that counts as well.
    pub fn heard(&self) {
        self.unanswered.store(0, Ordering::Relaxed);
    }

    /// Whether what comes of the client is left unread for now, answers to pings included.
    pub fn leave_unread(&self, unread: bool) {
        self.unread.store(unread, Ordering::Relaxed);
    }

    /// Whether to ask once more; the client is gone if not.
    pub fn ask(&self) -> bool {
        self.unread.load(Ordering::Relaxed) || self.unanswered.fetch_add(1, Ordering::Relaxed) < UNANSWERED
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_answers_is_asked_for_ever_and_who_does_not_six_times() {
        let pulse = Pulse::default();
        for _ in 0..100 {
            assert!(pulse.ask());
            pulse.heard();
        }
        for _ in 0..UNANSWERED {
            assert!(pulse.ask());
        }
        assert!(!pulse.ask());
    }

    #[test]
    fn who_is_not_listened_to_is_not_given_up() {
        let pulse = Pulse::default();
        pulse.leave_unread(true);
        for _ in 0..100 {
            assert!(pulse.ask());
        }
        pulse.leave_unread(false);
        assert!(pulse.ask());
    }
}
