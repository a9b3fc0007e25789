//! What an agent can do wrong, on purpose.

use std::io::{self, Write};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::time::Duration;

/// What the agent does wrong on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Misbehaviour {
    /// Reads its prompt, then does nothing for ever.
    Hang,
    /// Does its work, then never exits.
    NeverExit,
    /// Is deaf to SIGTERM, and so are its children.
    IgnoreSigterm,
    /// Leaves a process in a session of its own that writes a forged reward ten times a second, for ten minutes.
    LeaveDaemon,
    /// Does its work, then exits with code 3.
    Exit3,
    /// Exits with code 0 without having asked or said anything.
    NoText,
    /// Prints 50 MB of text first.
    Spam,
    /// Makes a call without its signs first, as `curl` would.
    Foreign,
    /// Calls with a key of its own making.
    WrongKey,
    /// Does its work, then kills itself with SIGKILL.
    Crash,
}

/// Bytes that a spamming agent prints.
const SPAM_BYTES: usize = 50 << 20;

/// Kept in the variables of the agent once it is deaf to SIGTERM.
const DEAF_VARIABLE: &str = "SCRIPTED_AGENT_IS_DEAF";

impl Misbehaviour {
    /// All of them, by the names they are asked for with.
    pub const ALL: [(&'static str, Self); 10] = [
        ("hang", Self::Hang),
        ("never_exit", Self::NeverExit),
        ("ignore_sigterm", Self::IgnoreSigterm),
        ("leave_daemon", Self::LeaveDaemon),
        ("exit_3", Self::Exit3),
        ("no_text", Self::NoText),
        ("spam", Self::Spam),
        ("foreign", Self::Foreign),
        ("wrong_key", Self::WrongKey),
        ("crash", Self::Crash),
    ];

    /// The one of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL
            .iter()
            .find(|(known, _)| *known == name)
            .map(|(_, misbehaviour)| *misbehaviour)
    }
}

/// Never returns.
pub(super) fn hang() -> ! {
    loop {
        std::thread::sleep(Duration::from_secs(3600));
    }
}

/// Starts the program again, deaf to SIGTERM, unless it is so already. A shell does it: signals that are ignored stay so
/// over `exec`, and no unsafe code is needed.
pub(super) fn ignore_sigterm(variable: &dyn Fn(&str) -> Option<String>) -> io::Result<()> {
    if variable(DEAF_VARIABLE).is_some() {
        return Ok(());
    }
    let mut shell = Command::new("/bin/sh");
    shell
        .args(["-c", r#"trap "" TERM; exec "$0" "$@""#])
        .arg(std::env::current_exe()?);
    Err(shell
        .args(std::env::args_os().skip(1))
        .env(DEAF_VARIABLE, "1")
        .exec())
}

/// Leaves the daemon behind.
pub(super) fn leave_daemon() -> io::Result<()> {
    const SCRIPT: &str = r#"turn=0; mkdir -p "$HOME/logs/verifier"
while [ "$turn" -lt 6000 ]; do turn=$((turn+1)); echo 1.0 > "$HOME/logs/verifier/reward.txt"; sleep 0.1; done"#;
    let mut daemon = Command::new("setsid");
    daemon
        .args(["sh", "-c", SCRIPT])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    daemon.spawn().map(drop)
}

/// Prints far too much.
pub(super) fn spam(out: &mut dyn Write) -> io::Result<()> {
    let line = [b"spam ".repeat(200).as_slice(), b"\n"].concat();
    for _ in 0..SPAM_BYTES / line.len() {
        out.write_all(&line)?;
    }
    out.flush()
}

/// Ends this process by a signal it cannot handle.
pub(super) fn crash() -> ! {
    let own = std::process::id().to_string();
    // Where there is no `kill`, the shell has one; where there is no shell either, hanging is as bad.
    let _ = Command::new("/bin/sh")
        .args(["-c", "kill -9 \"$0\"", &own])
        .status();
    hang()
}
