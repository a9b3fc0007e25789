//! Exit codes: the one table that `--help` and docs/errors.md are made from.

use std::fmt::Write as _;

/// How the program ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Exit {
    /// All that was asked for was done.
    Done,
    /// A rollout failed, or the demo did not earn its reward.
    RolloutFailed,
    /// The command line, a file or an id that was given is wrong.
    BadInput,
    /// This machine lacks something.
    MachineLacks,
    /// The model endpoint cannot be used.
    EndpointUnusable,
    /// What was checked is damaged.
    Damaged,
    /// Stopped by Ctrl-C or SIGTERM.
    Interrupted,
}

impl Exit {
    /// Every exit, in the order of its code.
    pub const ALL: [Self; 7] = [
        Self::Done,
        Self::RolloutFailed,
        Self::BadInput,
        Self::MachineLacks,
        Self::EndpointUnusable,
        Self::Damaged,
        Self::Interrupted,
    ];

    /// The process's exit code.
    #[must_use]
    pub fn code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::RolloutFailed => 1,
            Self::BadInput => 2,
            Self::MachineLacks => 3,
            Self::EndpointUnusable => 4,
            Self::Damaged => 5,
            Self::Interrupted => 130,
        }
    }

    /// What it means, in a line.
    #[must_use]
    pub fn meaning(self) -> &'static str {
        match self {
            Self::Done => "all that was asked for was done; every rollout ended without a fault",
            Self::RolloutFailed => "a rollout failed, or the demo's reward was not 1.0",
            Self::BadInput => "the command line, a file or an id that was given is wrong",
            Self::MachineLacks => {
                "this machine lacks something: bubblewrap, the agent, disk space, a writable data directory"
            }
            Self::EndpointUnusable => "the model endpoint cannot be used: no key, no answer, no such model",
            Self::Damaged => "`dressage validate` found damage",
            Self::Interrupted => {
                "stopped by Ctrl-C or SIGTERM; the second hurries, the third ends it at once: then the next start cleans up"
            }
        }
    }

    /// The table as `--help` shows it.
    #[must_use]
    pub fn help() -> String {
        let mut text = String::from("Exit codes:\n");
        for exit in Self::ALL {
            let _ = writeln!(text, "  {:<4} {}", exit.code(), exit.meaning());
        }
        text.pop();
        text
    }
}

impl From<Exit> for std::process::ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}
