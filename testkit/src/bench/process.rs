//! Programs under measurement: started, watched, ended.

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// A program that runs until this is dropped.
#[derive(Debug)]
pub struct Program {
    child: Child,
}

impl Program {
    /// Starts a program; what it prints goes to `log`.
    ///
    /// # Errors
    /// Where the log cannot be opened or the program cannot be started.
    pub fn start(mut command: Command, log: &Path) -> io::Result<Self> {
        let log = std::fs::OpenOptions::new().create(true).append(true).open(log)?;
        // Its standard input is a pipe that closes when this process ends, whatever ends it.
        command.stdin(Stdio::piped()).stdout(log.try_clone()?).stderr(log);
        Ok(Self {
            child: command.spawn()?,
        })
    }

    /// Its process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Whether it has ended by itself.
    ///
    /// # Errors
    /// Where the system does not tell.
    pub fn has_ended(&mut self) -> io::Result<bool> {
        Ok(self.child.try_wait()?.is_some())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // Both fail only where it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Ends this process once its standard input ends: a program that another one starts should not outlive it.
pub fn end_with_standard_input() {
    std::thread::spawn(|| {
        let _ = io::copy(&mut io::stdin().lock(), &mut io::sink());
        std::process::exit(0);
    });
}

/// A port of 127.0.0.1 that was free a moment ago.
///
/// # Errors
/// Where none is.
pub fn free_port() -> io::Result<SocketAddr> {
    TcpListener::bind(("127.0.0.1", 0))?.local_addr()
}

/// Keeps threads on one processor for as long as this lives.
#[derive(Debug)]
pub struct OneProcessor {
    /// Where each was allowed to run before.
    before: Vec<(Pid, CpuSet)>,
}

impl OneProcessor {
    /// Keeps this thread, with all that it starts from now on, and the threads of a process on the first processor that
    /// this thread may use.
    ///
    /// # Errors
    /// Where the system does not allow it.
    pub fn keep(process: u32) -> io::Result<Self> {
        let this_thread = Pid::from_raw(0);
        let allowed = sched_getaffinity(this_thread)?;
        let mut one = CpuSet::new();
        if let Some(first) = (0..CpuSet::count()).find(|&number| allowed.is_set(number).unwrap_or(false)) {
            one.set(first)?;
        }
        let mut kept = Self { before: Vec::new() };
        let mut threads = vec![this_thread];
        for thread in std::fs::read_dir(format!("/proc/{process}/task"))? {
            threads.extend(
                thread?
                    .file_name()
                    .to_str()
                    .and_then(|id| id.parse().ok())
                    .map(Pid::from_raw),
            );
        }
        for thread in threads {
            kept.before.push((thread, sched_getaffinity(thread)?));
            sched_setaffinity(thread, &one)?;
        }
        Ok(kept)
    }
}

impl Drop for OneProcessor {
    fn drop(&mut self) {
        for (thread, allowed) in &self.before {
            // Fails only where the thread has ended.
            let _ = sched_setaffinity(*thread, allowed);
        }
    }
}

/// What a process and its descendants have used.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TreeUsage {
    /// Processor seconds of its threads, as the scheduler counts them; where it does not, in ticks of 10 ms.
    pub cpu_s: f64,
    /// Resident memory.
    pub rss_kb: u64,
}

/// What a process and its descendants have used so far; nothing where there is no such process.
#[must_use]
pub fn tree_usage(root: u32) -> TreeUsage {
    let mut usage = TreeUsage::default();
    let mut left = vec![root];
    while let Some(id) = left.pop() {
        let read = |name: &str| std::fs::read_to_string(format!("/proc/{id}/{name}")).unwrap_or_default();
        let mut on_cpu_ns = None;
        for thread in std::fs::read_dir(format!("/proc/{id}/task"))
            .into_iter()
            .flatten()
            .flatten()
        {
            let read = |name: &str| std::fs::read_to_string(thread.path().join(name)).unwrap_or_default();
            if let Some(ns) = first_number(&read("schedstat")) {
                *on_cpu_ns.get_or_insert(0) += ns;
            }
            left.extend(
                read("children")
                    .split_whitespace()
                    .filter_map(|child| child.parse::<u32>().ok()),
            );
        }
        usage.cpu_s += on_cpu_ns.map_or_else(|| ticked_s(&read("stat")), |ns| ns as f64 / 1e9);
        let rss = read("status");
        let rss = rss.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        usage.rss_kb += rss.and_then(first_number).unwrap_or(0);
    }
    usage
}

fn first_number(text: &str) -> Option<u64> {
    text.split_whitespace().next()?.parse().ok()
}

/// Seconds in user and kernel mode of `/proc/PID/stat`: its fields 14 and 15, in ticks of 10 ms.
fn ticked_s(stat: &str) -> f64 {
    let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let ticks = after_name
        .split_whitespace()
        .skip(11)
        .take(2)
        .filter_map(|field| field.parse::<f64>().ok());
    ticks.sum::<f64>() / 100.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_read_after_a_name_with_spaces_and_brackets() {
        assert_eq!(
            ticked_s("7 (a) b) S 1 7 7 0 -1 4194304 100 0 0 0 150 50 0 0 20 0 1 0 5"),
            2.0
        );
    }

    #[test]
    fn threads_are_kept_on_one_processor_and_then_free_again() {
        let processors = |thread: Pid| {
            let set = sched_getaffinity(thread).unwrap();
            (0..CpuSet::count())
                .filter(|&number| set.is_set(number).unwrap())
                .collect::<Vec<_>>()
        };
        let mut other = Command::new("sleep").arg("60").spawn().unwrap();
        let both = [
            Pid::from_raw(0),
            Pid::from_raw(i32::try_from(other.id()).unwrap()),
        ];
        let before = both.map(processors);
        let kept = OneProcessor::keep(other.id()).unwrap();
        assert_eq!(
            both.map(processors),
            [before[0][..1].to_vec(), before[0][..1].to_vec()]
        );
        drop(kept);
        assert_eq!(both.map(processors), before);
        other.kill().unwrap();
        other.wait().unwrap();
    }

    #[test]
    fn this_process_has_used_something_and_one_that_is_not_there_nothing() {
        let usage = tree_usage(std::process::id());
        assert!(usage.rss_kb > 100, "{usage:?}");
        assert_eq!(tree_usage(u32::MAX), TreeUsage::default());
    }
}
