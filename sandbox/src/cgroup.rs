//! Control groups of version 2, version 1, or both at once ("hybrid"): limits, and an end for every process in one.
//!
//! Groups are made under the one this process is in, and only what was made here is ever touched.

/// Which hierarchies there are, and where this process is in them.
mod hierarchies;

pub(crate) use hierarchies::{Controller, Hierarchies, Hierarchy, Version};

use crate::Size;
use crate::lease::LeaseError;
use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long a group may take to empty after everything in it was killed.
const EMPTY_TIMEOUT: Duration = Duration::from_secs(10);

/// Length of a scheduling period, in microseconds: the kernel's default.
const PERIOD_US: f64 = 100_000.0;

/// The group of one sandbox: one folder a hierarchy.
#[derive(Debug, Default)]
pub(crate) struct Cgroup {
    paths: Vec<PathBuf>,
}

impl Cgroup {
    /// Where the group `name` will be; to be leased before [`Cgroup::make`]. The second version comes first: it ends
    /// everything at one stroke.
    pub(crate) fn plan(hierarchies: &Hierarchies, name: &str) -> Vec<PathBuf> {
        let (second, first): (Vec<_>, Vec<_>) = hierarchies
            .all
            .iter()
            .partition(|hierarchy| hierarchy.version == Version::Two);
        second
            .into_iter()
            .chain(first)
            .map(|hierarchy| hierarchy.parent.join(name))
            .collect()
    }

    /// Makes the group and sets its limits. Fails where one of them cannot be set.
    pub(crate) fn make(hierarchies: &Hierarchies, name: &str, size: Size) -> io::Result<Self> {
        let mut group = Self::default();
        for hierarchy in &hierarchies.all {
            let path = hierarchy.parent.join(name);
            std::fs::create_dir(&path)?;
            group.paths.push(path.clone());
            for (name, value) in limits(hierarchy, size) {
                set_limit(&path.join(name), &value)?;
            }
        }
        Ok(group)
    }

    /// The files that a process writes `0` to in order to move itself into the group.
    pub(crate) fn entrances(&self) -> io::Result<Vec<File>> {
        self.paths
            .iter()
            .map(|path| OpenOptions::new().write(true).open(path.join("cgroup.procs")))
            .collect()
    }

    /// Kills everything in a folder of a group and removes the folder. Nothing there is success.
    pub(crate) fn remove(path: &Path) -> Result<(), LeaseError> {
        let deadline = Instant::now() + EMPTY_TIMEOUT;
        let mut pause = Duration::from_millis(1);
        loop {
            match std::fs::remove_dir(path) {
                Ok(()) => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy && Instant::now() < deadline => {}
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                    return Err(LeaseError::Busy {
                        path: path.to_path_buf(),
                    });
                }
                Err(source) => {
                    return Err(LeaseError::File {
                        operation: "remove",
                        path: path.to_path_buf(),
                        source,
                    });
                }
            }
            kill_all(path);
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(50));
        }
    }
}

/// Sends SIGKILL to every process in a group.
fn kill_all(path: &Path) {
    if std::fs::write(path.join("cgroup.kill"), "1").is_ok() {
        return;
    }
    let processes = std::fs::read_to_string(path.join("cgroup.procs")).unwrap_or_default();
    // 0 stands for a process of another pid namespace, which cannot be named here.
    for pid in processes
        .lines()
        .filter_map(|line| line.parse::<i32>().ok())
        .filter(|pid| *pid > 0)
    {
        let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL);
    }
}

/// Writes one limit. Two may fail: swap is not accounted for by every kernel, and a processor quota above that of a parent
/// group is refused, where the parent's holds anyway.
fn set_limit(file: &Path, value: &str) -> io::Result<()> {
    let name = file
        .file_name()
        .and_then(|name| name.to_str())
        .unwrap_or_default();
    match std::fs::write(file, value) {
        Err(error) if error.kind() == io::ErrorKind::NotFound && SWAP_FILES.contains(&name) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::InvalidInput && name == "cpu.cfs_quota_us" => Ok(()),
        Err(error) => Err(io::Error::new(
            error.kind(),
            format!("{}: {error}", file.display()),
        )),
        Ok(()) => Ok(()),
    }
}

const SWAP_FILES: [&str; 2] = ["memory.memsw.limit_in_bytes", "memory.swap.max"];

/// Which files of a hierarchy hold the limits, with what to write, in order.
fn limits(hierarchy: &Hierarchy, size: Size) -> Vec<(&'static str, String)> {
    let memory = size.memory_bytes.to_string();
    let quota_us = (size.cpus * PERIOD_US).max(1_000.0).round();
    let mut limits = Vec::new();
    let mut add = |name, value: String| limits.push((name, value));
    for controller in &hierarchy.controllers {
        match (controller, hierarchy.version) {
            (Controller::Memory, Version::Two) => {
                add("memory.max", memory.clone());
                add("memory.swap.max", "0".into());
            }
            (Controller::Memory, Version::One) => {
                add("memory.limit_in_bytes", memory.clone());
                // Memory and swap together: it must not be below the limit of memory alone.
                add("memory.memsw.limit_in_bytes", memory.clone());
            }
            (Controller::Pids, _) => add("pids.max", size.pids.to_string()),
            (Controller::Cpu, Version::Two) => add("cpu.max", format!("{quota_us} {PERIOD_US}")),
            (Controller::Cpu, Version::One) => {
                add("cpu.cfs_period_us", PERIOD_US.to_string());
                add("cpu.cfs_quota_us", quota_us.to_string());
            }
        }
    }
    limits
}

#[cfg(test)]
mod tests;
