use std::io;
use std::net::SocketAddr;
use tokio::net::TcpSocket;

/// A port of loopback that refuses connections. It is kept for as long as this lives, so that nobody else gets it: a
/// port that was merely free a moment ago may be another test's by now.
#[derive(Debug)]
pub struct ClosedPort {
    /// Bound, and never listening.
    _socket: TcpSocket,
    address: SocketAddr,
}

impl ClosedPort {
    /// Takes one.
    ///
    /// # Errors
    /// No port could be bound.
    pub fn take() -> io::Result<Self> {
        let socket = TcpSocket::new_v4()?;
        socket.bind(([127, 0, 0, 1], 0).into())?;
        Ok(Self {
            address: socket.local_addr()?,
            _socket: socket,
        })
    }

    /// Where it is.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_port_refuses_and_is_nobody_elses() {
        let closed = ClosedPort::take().unwrap();
        let refused = std::net::TcpStream::connect(closed.address()).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
        let taken = std::net::TcpListener::bind(closed.address()).unwrap_err();
        assert_eq!(taken.kind(), io::ErrorKind::AddrInUse);
    }
}
