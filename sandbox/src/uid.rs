use nix::errno::Errno;
use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

/// User ids of this machine that sandboxes started by root run as, far from those that distributions give out.
const FIRST: u32 = 210_000;

/// How many there are: the sandboxes that root can have at once.
const COUNT: u32 = 20_000;

/// Where the locks on them are, for all installations of the machine.
const LOCKS: &str = "/run/dressage/uids";

/// A user id that no other sandbox of this machine has while this lives.
#[derive(Debug)]
pub(crate) struct UidLock {
    uid: u32,
    _lock: File,
}

impl UidLock {
    /// Takes a free one. Where `/run` cannot be written the locks are under `data_dir`, and hold among the processes
    /// that use it.
    pub(crate) fn take(data_dir: &Path) -> io::Result<Self> {
        // Each process goes on from where it was, so that it does not try what it holds itself again and again.
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let shared = Path::new(LOCKS);
        let own = data_dir.join("uids");
        let folder = match DirBuilder::new().recursive(true).mode(0o755).create(shared) {
            Ok(()) if nix::unistd::access(shared, nix::unistd::AccessFlags::W_OK).is_ok() => shared,
            _ => {
                DirBuilder::new().recursive(true).mode(0o700).create(&own)?;
                own.as_path()
            }
        };
        let (first, count) = mapped_range()?;
        for _ in 0..count {
            let uid = first + NEXT.fetch_add(1, Ordering::Relaxed) % count;
            let lock = OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o600)
                .open(folder.join(uid.to_string()))?;
            match lock.try_lock() {
                Ok(()) => return Ok(Self { uid, _lock: lock }),
                Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Error(error)) => return Err(error),
            }
        }
        Err(io::Error::from(Errno::EUSERS))
    }

    pub(crate) fn uid(&self) -> u32 {
        self.uid
    }
}

/// The ids to choose from. Root of a container may have few: then the upper half of its largest block.
fn mapped_range() -> io::Result<(u32, u32)> {
    let map = std::fs::read_to_string("/proc/self/uid_map")?;
    range_in(&map).ok_or_else(|| {
        io::Error::other("this root has no other users to run sandboxes as (see /proc/self/uid_map)")
    })
}

fn range_in(map: &str) -> Option<(u32, u32)> {
    let blocks: Vec<(u32, u32)> = map
        .lines()
        .filter_map(|line| {
            let mut fields = line.split_whitespace();
            let (inside, _outside, count) = (fields.next()?, fields.next()?, fields.next()?);
            Some((inside.parse().ok()?, count.parse().ok()?))
        })
        .collect();
    let holds = |block: &(u32, u32)| block.0 <= FIRST && FIRST + COUNT <= block.0.saturating_add(block.1);
    if blocks.iter().any(holds) {
        return Some((FIRST, COUNT));
    }
    let (first, count) = blocks.into_iter().max_by_key(|block| block.1)?;
    (count > 1).then(|| (first + count / 2, (count / 2).min(COUNT)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usual_machine_gives_the_usual_range() {
        assert_eq!(
            range_in("         0          0 4294967295\n"),
            Some((210_000, 20_000))
        );
    }

    #[test]
    fn root_of_a_container_gives_the_upper_half_of_what_it_has() {
        assert_eq!(range_in("0 100000 65536\n"), Some((32_768, 20_000)));
        assert_eq!(range_in("0 1000 1\n1 100000 101\n"), Some((51, 50)));
    }

    #[test]
    fn root_without_other_users_is_told_so() {
        assert_eq!(range_in("0 1000 1\n"), None);
    }
}
