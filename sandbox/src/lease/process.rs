use super::Lease;
use crate::kernel::{kill_process, open_process};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

/// How long they may take to end by themselves, all together. The first process of a sandbox that has no namespace of processes ends
/// all that is below it, which is stopped meanwhile, and would stay so if that one were killed in the midst of it.
const ENDING_TIMEOUT: Duration = Duration::from_secs(3);

/// How long killed processes may take to end, all together.
const KILLED_TIMEOUT: Duration = Duration::from_secs(10);

/// A process, told from a later one with the same number by when it started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeasedProcess {
    /// Its number.
    pub pid: i32,
    /// When it started, in clock ticks after boot.
    pub start_ticks: u64,
}

impl LeasedProcess {
    /// The process that has this number now.
    #[must_use]
    pub fn of(pid: i32) -> Option<Self> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name is in parentheses and may hold anything; field 22 is the start, the 20th after it.
        let start_ticks = stat.rsplit_once(") ")?.1.split(' ').nth(19)?.parse().ok()?;
        Some(Self { pid, start_ticks })
    }
}

/// Ends the outermost processes of sandboxes whose owner is dead, and waits until they are gone.
///
/// Nearly all have ended with their owner. What has not may be named by its lease; or it may have been killed in the making,
/// such as a child of bubblewrap that waits for a parent that died too early, in which case it has its sandbox's
/// [name](Lease::outside_name).
pub(crate) fn end_processes(leases: &[Lease]) {
    if leases.is_empty() {
        return;
    }
    let named = leases.iter().flat_map(|lease| &lease.processes);
    let named =
        named.filter_map(|process| open(process.pid, || LeasedProcess::of(process.pid) == Some(*process)));
    let names: BTreeSet<Vec<u8>> = leases
        .iter()
        .map(|lease| Lease::outside_name(lease.sandbox).into_bytes())
        .collect();
    let is_one = |pid| first_argument(pid).is_some_and(|argument| names.contains(&argument));
    let unnamed = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let unnamed = unnamed
        .filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok())
        .filter_map(|pid| open(pid, || is_one(pid)));
    let mut left: Vec<OwnedFd> = named.chain(unnamed).collect();
    wait_for(&mut left, ENDING_TIMEOUT);
    left.retain(|process| kill_process(process.as_fd()).is_ok());
    wait_for(&mut left, KILLED_TIMEOUT);
}

/// Waits until processes have ended, and leaves those that have not within that time.
fn wait_for(processes: &mut Vec<OwnedFd>, within: Duration) {
    let deadline = Instant::now() + within;
    processes.retain(|process| {
        let left = deadline.saturating_duration_since(Instant::now());
        let mut fds = [PollFd::new(process.as_fd(), PollFlags::POLLIN)];
        let ended = poll(&mut fds, PollTimeout::try_from(left).unwrap_or(PollTimeout::ZERO));
        !matches!(ended, Ok(1..))
    });
}

/// A descriptor of a process that `is_meant`, which is asked twice: it may end, and another get its number, in between.
fn open(pid: i32, is_meant: impl Fn() -> bool) -> Option<OwnedFd> {
    if !is_meant() {
        return None;
    }
    let process = open_process(Pid::from_raw(pid)).ok()?;
    is_meant().then_some(process)
}

fn first_argument(pid: i32) -> Option<Vec<u8>> {
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    line.split(|byte| *byte == 0).next().map(<[u8]>::to_vec)
}
