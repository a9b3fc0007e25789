/// Writes a file in pieces.
mod write;

/// Reads a regular file.
mod read;

/// Lists regular files.
mod list;

use super::program::failure;
use super::replies::Replies;
use dressage_wire::control::{Done, Failure, FailureKind, Reply, Request};
use nix::sys::stat::SFlag;
use std::collections::HashMap;
use std::io;
use std::sync::mpsc;

/// Threads that wait for the disk. A slow request delays those that come to the same thread, and nothing else.
const THREADS: usize = 4;

/// Threads that do what concerns files. They are started once and for all: in a sandbox full of processes there are no
/// others to be had.
#[derive(Debug)]
pub(super) struct Workers {
    threads: Vec<mpsc::Sender<(u64, Request, Replies)>>,
}

impl Workers {
    pub(super) fn start() -> io::Result<Self> {
        let mut threads = Vec::new();
        for _ in 0..THREADS {
            let (sender, receiver) = mpsc::channel();
            std::thread::Builder::new()
                .name("files".into())
                .stack_size(256 << 10)
                .spawn(move || work(&receiver))?;
            threads.push(sender);
        }
        Ok(Self { threads })
    }

    /// Requests of one number go to one thread, hence stay in order.
    pub(super) fn hand_over(&self, id: u64, request: Request, replies: &Replies) {
        let index = usize::try_from(id % THREADS as u64).unwrap_or_default();
        if let Some(thread) = self.threads.get(index) {
            let _ = thread.send((id, request, replies.clone()));
        }
    }
}

fn work(requests: &mpsc::Receiver<(u64, Request, Replies)>) {
    let mut writes: HashMap<u64, write::Writing> = HashMap::new();
    while let Ok((id, request, replies)) = requests.recv() {
        let done = match request {
            Request::Write(write) => match write::Writing::begin(id, &write) {
                Ok(writing) => {
                    writes.insert(id, writing);
                    continue;
                }
                Err(failure) => Err(failure),
            },
            Request::Content(bytes) if bytes.is_empty() => match writes.remove(&id) {
                Some(writing) => writing.finish().map(|()| Done::default()),
                // Its beginning failed, which has been said.
                None => continue,
            },
            Request::Content(bytes) => match writes.get_mut(&id).map(|writing| writing.add(&bytes)) {
                Some(Ok(())) => {
                    replies.send_blocking(id, Reply::Acknowledged);
                    continue;
                }
                Some(Err(failure)) => {
                    writes.remove(&id);
                    Err(failure)
                }
                None => continue,
            },
            // The host gave up; what was written goes.
            Request::Kill => {
                writes.remove(&id);
                continue;
            }
            Request::Read(read) => {
                read::read(&read, |bytes| replies.send_blocking(id, Reply::Content(bytes)))
                    .map(|()| Done::default())
            }
            Request::List(list) => list::list(&list, |files| replies.send_blocking(id, Reply::Files(files)))
                .map(|truncated| Done {
                    truncated,
                    ..Done::default()
                }),
            Request::Exists(exists) => match std::fs::symlink_metadata(&exists.path) {
                Ok(_) => Ok(Done {
                    found: true,
                    ..Done::default()
                }),
                Err(error) if is_absent(&error) => Ok(Done::default()),
                Err(error) => Err(failure(&error)),
            },
            Request::Start(_) | Request::Input(_) => continue,
        };
        replies.send_blocking(
            id,
            match done {
                Ok(done) => Reply::Done(done),
                Err(failure) => Reply::Failed(failure),
            },
        );
    }
}

/// Whether the error says that nothing is at a path.
fn is_absent(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}

/// The error as the host tells them apart.
fn file_failure(error: &io::Error) -> Failure {
    match error {
        error if is_absent(error) => Failure {
            kind: FailureKind::NotFound,
            ..failure(error)
        },
        error if error.raw_os_error() == Some(libc::ELOOP) => not_regular("a symbolic link"),
        error if error.raw_os_error() == Some(libc::ENXIO) => not_regular("a socket or a device"),
        error => failure(error),
    }
}

fn not_regular(kind: &str) -> Failure {
    Failure {
        kind: FailureKind::NotRegular,
        message: kind.to_owned(),
        errno: None,
        size_bytes: 0,
    }
}

/// What is there instead of a regular file; `None` for one.
fn other_kind(mode: u32) -> Option<&'static str> {
    match SFlag::from_bits_truncate(mode) & SFlag::S_IFMT {
        SFlag::S_IFREG => None,
        SFlag::S_IFDIR => Some("a directory"),
        SFlag::S_IFLNK => Some("a symbolic link"),
        SFlag::S_IFIFO => Some("a named pipe"),
        SFlag::S_IFSOCK => Some("a socket"),
        _ => Some("a device"),
    }
}
