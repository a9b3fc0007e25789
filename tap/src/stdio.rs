use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::stat::{SFlag, fstat};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream as StdUnixStream;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixStream;
use tokio::net::unix::pipe;

/// What is read from. A pointer: whatever is done with it is in the program once only.
pub(crate) type Reader = Box<dyn AsyncRead + Send + Unpin>;

/// What is written to.
pub(crate) type Writer = Box<dyn AsyncWrite + Send + Unpin>;

/// Standard input and output, pipes or sockets, as streams. Nothing else may read or write them.
pub(crate) fn take() -> io::Result<(Reader, Writer)> {
    let stdin = nonblocking(io::stdin().as_fd().try_clone_to_owned()?)?;
    let stdout = nonblocking(io::stdout().as_fd().try_clone_to_owned()?)?;
    let reader: Reader = if is_socket(&stdin)? {
        Box::new(socket(stdin)?)
    } else {
        Box::new(pipe::Receiver::from_owned_fd(stdin)?)
    };
    let writer: Writer = if is_socket(&stdout)? {
        Box::new(socket(stdout)?)
    } else {
        Box::new(pipe::Sender::from_owned_fd(stdout)?)
    };
    Ok((reader, writer))
}

/// Makes a descriptor one that the runtime can wait for.
pub(crate) fn nonblocking(fd: OwnedFd) -> io::Result<OwnedFd> {
    fcntl(&fd, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    Ok(fd)
}

fn socket(fd: OwnedFd) -> io::Result<UnixStream> {
    UnixStream::from_std(StdUnixStream::from(fd))
}

fn is_socket(fd: &OwnedFd) -> io::Result<bool> {
    let kind = SFlag::from_bits_truncate(fstat(fd)?.st_mode) & SFlag::S_IFMT;
    Ok(kind == SFlag::S_IFSOCK)
}
