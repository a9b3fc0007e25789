use super::children::Children;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, getpid};
use std::collections::{HashMap, HashSet};
use std::time::Duration;

/// Between two looks at a tree that is being ended.
const PAUSE: Duration = Duration::from_millis(3);

/// Looks after which a tree that does not end is given up: its processes hang in the kernel.
const MAX_PASSES: usize = 3_000;

/// Looks that have to find nothing, one after the other: what starts and ends others all the time can slip through one,
/// since `/proc` is not read at a single moment.
const QUIET_PASSES: u32 = 3;

/// Ends everything below `guard`, and lets the guard see the end of its program.
pub(super) async fn end_below(guard: Pid, children: &Children) {
    // A guard goes when its program has ended. What had slipped through until then would be below no guard, and taken for
    // a service that the program left running.
    let _ = kill(guard, Signal::SIGSTOP);
    for _ in 0..MAX_PASSES {
        if state_of(guard) != Some(State::Running) {
            break;
        }
        tokio::time::sleep(PAUSE).await;
    }
    end(children, |processes| processes.below(guard, &HashSet::new())).await;
    let _ = kill(guard, Signal::SIGCONT);
}

/// Ends every process below this one, guards included.
pub(super) async fn end_all(children: &Children) {
    end(children, |processes| processes.below(getpid(), &HashSet::new())).await;
}

/// Ends every process that is below no guard. A program that kills its own guard makes its tree indistinguishable
/// from the services that earlier programs left running; all of these go with it.
pub(super) async fn end_unguarded(children: &Children) {
    end(children, |processes| {
        let guards = processes
            .children_of(getpid())
            .filter(|pid| children.is_awaited(*pid))
            .collect();
        processes.below(getpid(), &guards)
    })
    .await;
}

/// Ends everything below this process, for a guard that has lost its init.
pub(crate) fn end_below_here() {
    let mut hunt = Hunt::default();
    for _ in 0..MAX_PASSES {
        let processes = Processes::read();
        match hunt.pass(&processes.below(getpid(), &HashSet::new()), processes.torn) {
            Pass::Over => return,
            Pass::Stopped | Pass::Quiet => {}
            Pass::Killed => std::thread::sleep(PAUSE),
        }
        while matches!(waitpid(None, Some(WaitPidFlag::WNOHANG)), Ok(status) if status != WaitStatus::StillAlive)
        {
        }
    }
}

/// Kills what `select` finds, again and again, until it finds nothing that lives.
async fn end(children: &Children, select: impl Fn(&Processes) -> Vec<Pid>) {
    let mut hunt = Hunt::default();
    for _ in 0..MAX_PASSES {
        let processes = Processes::read();
        match hunt.pass(&select(&processes), processes.torn) {
            Pass::Over => return,
            Pass::Stopped | Pass::Quiet => {}
            Pass::Killed => tokio::time::sleep(PAUSE).await,
        }
        children.reap_now();
    }
}

/// The end of processes that may start others meanwhile: all are stopped first, then all are killed.
#[derive(Debug, Default)]
struct Hunt {
    stopped: HashSet<Pid>,
    /// Looks since something was seen.
    quiet: u32,
}

/// What one look at the processes came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pass {
    /// Some were seen for the first time, and stopped.
    Stopped,
    /// None was new; all were killed.
    Killed,
    /// None was seen, and that is not believed yet.
    Quiet,
    /// There are none.
    Over,
}

impl Hunt {
    /// `torn`: there may be others than those found.
    fn pass(&mut self, found: &[Pid], torn: bool) -> Pass {
        if found.is_empty() {
            self.quiet = if torn { 0 } else { self.quiet + 1 };
            return if self.quiet < QUIET_PASSES {
                Pass::Quiet
            } else {
                Pass::Over
            };
        }
        self.quiet = 0;
        let mut fresh = false;
        for pid in found {
            if self.stopped.insert(*pid) {
                let _ = kill(*pid, Signal::SIGSTOP);
                fresh = true;
            }
        }
        if fresh {
            return Pass::Stopped;
        }
        for pid in found {
            let _ = kill(*pid, Signal::SIGKILL);
        }
        // A number may be given to another process; it is stopped anew then.
        self.stopped.clear();
        Pass::Killed
    }
}

/// The processes that live, as `/proc` shows them.
struct Processes {
    children: HashMap<Pid, Vec<Pid>>,
    /// Some have a parent that does not live. It ended while `/proc` was read, and whose they are now is not known.
    torn: bool,
}

impl Processes {
    fn read() -> Self {
        let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        Self::of(entries.filter_map(|entry| {
            let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
            let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
            let (state, parent) = parse(&stat)?;
            (state != State::Dead).then_some((Pid::from_raw(pid), parent))
        }))
    }

    /// Those that live, each with its parent. Parents are 0 where they are outside.
    fn of(living: impl Iterator<Item = (Pid, Pid)>) -> Self {
        let mut children: HashMap<Pid, Vec<Pid>> = HashMap::new();
        let mut all = HashSet::from([Pid::from_raw(0)]);
        for (pid, parent) in living {
            all.insert(pid);
            children.entry(parent).or_default().push(pid);
        }
        let torn = children.keys().any(|parent| !all.contains(parent));
        Self { children, torn }
    }

    fn children_of(&self, parent: Pid) -> impl Iterator<Item = Pid> {
        self.children.get(&parent).into_iter().flatten().copied()
    }

    /// Everything below `root`, without `except` and what is below those.
    fn below(&self, root: Pid, except: &HashSet<Pid>) -> Vec<Pid> {
        let mut found = Vec::new();
        let mut to_visit = vec![root];
        while let Some(parent) = to_visit.pop() {
            for child in self.children_of(parent).filter(|child| !except.contains(child)) {
                found.push(child);
                to_visit.push(child);
            }
        }
        found
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Or about to, or waiting for something.
    Running,
    Stopped,
    Dead,
}

/// `None` where there is no such process.
fn state_of(pid: Pid) -> Option<State> {
    let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    parse(&stat).map(|(state, _)| state)
}

/// State and parent from a line of `/proc/PID/stat`. The name in it is in parentheses and may hold anything.
fn parse(stat: &[u8]) -> Option<(State, Pid)> {
    let end_of_name = stat.iter().rposition(|byte| *byte == b')')?;
    let rest = std::str::from_utf8(stat.get(end_of_name + 1..)?).ok()?;
    let mut fields = rest.split_whitespace();
    let state = fields.next()?;
    let parent = Pid::from_raw(fields.next()?.parse().ok()?);
    let threads: u64 = fields.nth(15)?.parse().ok()?;
    // A process whose first thread has ended looks like a zombie for as long as others run.
    let state = match state {
        "Z" | "X" if threads <= 1 => State::Dead,
        "T" | "t" => State::Stopped,
        _ => State::Running,
    };
    Some((state, parent))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_parentheses_does_not_confuse() {
        let stat = b"17 (a) R 1 (b) S 5 17 17 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0";
        assert_eq!(parse(stat), Some((State::Running, Pid::from_raw(5))));
    }

    #[test]
    fn a_name_that_is_not_text_does_not_confuse() {
        assert_eq!(
            parse(b"17 (\xff\xfe) Z 5 17 17 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0"),
            Some((State::Dead, Pid::from_raw(5)))
        );
    }

    #[test]
    fn a_process_whose_first_thread_ended_lives() {
        let stat = b"17 (a) Z 5 17 17 0 -1 0 0 0 0 0 0 0 0 0 20 0 2 0";
        assert_eq!(parse(stat), Some((State::Running, Pid::from_raw(5))));
    }

    #[test]
    fn a_guarded_tree_is_left_out_with_all_that_is_below_it() {
        let pid = Pid::from_raw;
        let processes = Processes::of(
            [(1, 0), (2, 1), (3, 1), (4, 2), (5, 3)]
                .map(|(a, b)| (pid(a), pid(b)))
                .into_iter(),
        );
        assert!(!processes.torn);
        let mut below = processes.below(pid(1), &HashSet::from([pid(2)]));
        below.sort();
        assert_eq!(below, [pid(3), pid(5)]);
    }

    #[test]
    fn a_process_whose_parent_ended_while_it_was_looked_at_is_not_taken_for_none() {
        let pid = Pid::from_raw;
        // Process 4 was read as a child of 9, and 9 was dead when it was its turn: 4 is the guard's by now.
        let processes = Processes::of(
            [(1, 0), (2, 1), (4, 9)]
                .map(|(a, b)| (pid(a), pid(b)))
                .into_iter(),
        );
        let below = processes.below(pid(2), &HashSet::new());
        assert_eq!((below.as_slice(), processes.torn), ([].as_slice(), true));
        let mut hunt = Hunt::default();
        for _ in 0..5 {
            assert_eq!(hunt.pass(&below, processes.torn), Pass::Quiet);
        }
        assert_eq!(hunt.pass(&[pid(4)], false), Pass::Stopped);
        assert_eq!(hunt.pass(&[pid(4)], false), Pass::Killed);
        assert_eq!(hunt.pass(&[], false), Pass::Quiet);
        assert_eq!(hunt.pass(&[], false), Pass::Quiet);
        assert_eq!(hunt.pass(&[], false), Pass::Over);
    }
}
