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

/// Ends everything below `guard`, and lets the guard see the end of its program.
pub(super) async fn end_below(guard: Pid, children: &Children) {
    // A guard that the program has stopped could not wait for what is killed below.
    let _ = kill(guard, Signal::SIGCONT);
    end(children, |processes| processes.below(guard, &HashSet::new())).await;
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
        match hunt.pass(&Processes::read().below(getpid(), &HashSet::new())) {
            Pass::Over => return,
            Pass::Stopped => {}
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
        match hunt.pass(&select(&Processes::read())) {
            Pass::Over => return,
            Pass::Stopped => {}
            Pass::Killed => tokio::time::sleep(PAUSE).await,
        }
        children.reap_now();
    }
}

/// The end of processes that may start others meanwhile: all are stopped first, then all are killed.
#[derive(Debug, Default)]
struct Hunt {
    stopped: HashSet<Pid>,
}

/// What one look at the processes came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pass {
    /// Some were seen for the first time, and stopped.
    Stopped,
    /// None was new; all were killed.
    Killed,
    /// There are none.
    Over,
}

impl Hunt {
    fn pass(&mut self, found: &[Pid]) -> Pass {
        if found.is_empty() {
            return Pass::Over;
        }
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
}

impl Processes {
    fn read() -> Self {
        let mut children: HashMap<Pid, Vec<Pid>> = HashMap::new();
        for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
            let Some(pid) = entry
                .file_name()
                .to_str()
                .and_then(|name| name.parse::<i32>().ok())
            else {
                continue;
            };
            let Ok(stat) = std::fs::read(format!("/proc/{pid}/stat")) else {
                continue;
            };
            if let Some((State::Alive, parent)) = parse(&stat) {
                children.entry(parent).or_default().push(Pid::from_raw(pid));
            }
        }
        Self { children }
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
    Alive,
    Dead,
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
    let dead = matches!(state, "Z" | "X") && threads <= 1;
    Some((if dead { State::Dead } else { State::Alive }, parent))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_parentheses_does_not_confuse() {
        let stat = b"17 (a) R 1 (b) S 5 17 17 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0";
        assert_eq!(parse(stat), Some((State::Alive, Pid::from_raw(5))));
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
        assert_eq!(parse(stat), Some((State::Alive, Pid::from_raw(5))));
    }

    #[test]
    fn a_guarded_tree_is_left_out_with_all_that_is_below_it() {
        let pid = Pid::from_raw;
        let processes = Processes {
            children: HashMap::from([
                (pid(1), vec![pid(2), pid(3)]),
                (pid(2), vec![pid(4)]),
                (pid(3), vec![pid(5)]),
            ]),
        };
        let mut below = processes.below(pid(1), &HashSet::from([pid(2)]));
        below.sort();
        assert_eq!(below, [pid(3), pid(5)]);
    }
}
