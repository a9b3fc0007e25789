//! A stub resolver: `/etc/hosts`, `/etc/resolv.conf`, and questions for addresses over UDP and TCP.
//!
//! For the static program, in which the C library's own resolver would load plug-ins of whatever system it runs on. It
//! keeps nothing: connections are kept, and names are looked up for new ones only.

/// What the system says about names.
mod config;

/// Questions and answers, as bytes.
mod message;

use self::config::Config;
use self::message::{Answer, Kind};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};

/// All addresses of a host.
pub(super) async fn addresses(host: &str) -> io::Result<Vec<IpAddr>> {
    if let Ok(address) = host.parse() {
        return Ok(vec![address]);
    }
    let hosts = read("/etc/hosts").await.unwrap_or_default();
    let found = config::hosts(&hosts, host);
    if !found.is_empty() {
        return Ok(found);
    }
    let text = read("/etc/resolv.conf").await.map_err(|error| {
        io::Error::new(
            error.kind(),
            format!("no name server is known: /etc/resolv.conf cannot be read: {error}"),
        )
    })?;
    ask(&Config::parse(&text), host).await
}

async fn read(path: &str) -> io::Result<String> {
    // Both are small and in memory; a thread for this would be the only one of its kind.
    std::fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

/// Asks for a host under each of its full names, until one has an address.
async fn ask(config: &Config, host: &str) -> io::Result<Vec<IpAddr>> {
    let mut failure = io::Error::new(io::ErrorKind::NotFound, "no such host");
    for name in config.full_names(host) {
        let (v4, v6) = tokio::join!(
            question(config, &name, Kind::A),
            question(config, &name, Kind::Aaaa)
        );
        let mut found = Vec::new();
        for answer in [v4, v6] {
            match answer {
                Ok(addresses) => found.extend(addresses),
                // A server that failed is worth more to tell than a name that is not there.
                Err(error) if error.kind() != io::ErrorKind::NotFound => failure = error,
                Err(_) => {}
            }
        }
        if !found.is_empty() {
            return Ok(found);
        }
    }
    Err(failure)
}

/// Asks each server in turn, a few times.
async fn question(config: &Config, name: &str, kind: Kind) -> io::Result<Vec<IpAddr>> {
    let mut failure = io::Error::new(
        io::ErrorKind::NotFound,
        "no name server is named in /etc/resolv.conf",
    );
    for _ in 0..config.attempts {
        for server in &config.servers {
            let asked = tokio::time::timeout(config.timeout, exchange(*server, name, kind));
            match asked.await {
                Ok(Ok(Answer::Addresses(addresses))) => return Ok(addresses),
                Ok(Ok(Answer::NoSuchName)) => {
                    return Err(io::Error::new(io::ErrorKind::NotFound, "no such host"));
                }
                Ok(Ok(Answer::Failed(code))) => {
                    failure = io::Error::other(format!("name server {server} answered with error {code}"));
                }
                Ok(Ok(Answer::Truncated)) => {
                    failure = io::Error::other(format!("name server {server} gave half an answer"));
                }
                Ok(Err(error)) => {
                    failure = io::Error::new(error.kind(), format!("name server {server}: {error}"))
                }
                Err(_) => {
                    let message = format!(
                        "name server {server} did not answer in {} s",
                        config.timeout.as_secs()
                    );
                    failure = io::Error::new(io::ErrorKind::TimedOut, message);
                }
            }
        }
    }
    Err(failure)
}

async fn exchange(server: SocketAddr, name: &str, kind: Kind) -> io::Result<Answer> {
    let mut id = [0; 2];
    crate::random::fill(&mut id).map_err(io::Error::other)?;
    let id = u16::from_be_bytes(id);
    let query = message::query(id, name, kind)?;
    let any: IpAddr = if server.is_ipv4() {
        [0, 0, 0, 0].into()
    } else {
        [0u16; 8].into()
    };
    // Connected: answers of others do not get here. The kernel picks a random port.
    let socket = UdpSocket::bind((any, 0)).await?;
    socket.connect(server).await?;
    socket.send(&query).await?;
    let mut reply = [0; 1500];
    loop {
        let length = socket.recv(&mut reply).await?;
        let reply = reply.get(..length).unwrap_or_default();
        match message::answer(reply, id, &query, kind) {
            // Not ours: an answer to an earlier question, or a forgery.
            None => {}
            Some(Answer::Truncated) => return over_tcp(server, id, &query, kind).await,
            Some(answer) => return Ok(answer),
        }
    }
}

async fn over_tcp(server: SocketAddr, id: u16, query: &[u8], kind: Kind) -> io::Result<Answer> {
    let mut stream = TcpStream::connect(server).await?;
    let length = u16::try_from(query.len()).map_err(io::Error::other)?;
    let mut framed = length.to_be_bytes().to_vec();
    framed.extend_from_slice(query);
    stream.write_all(&framed).await?;
    let length = stream.read_u16().await?;
    let mut reply = vec![0; length.into()];
    stream.read_exact(&mut reply).await?;
    message::answer(&reply, id, query, kind)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "an answer to another question"))
}

/// The most that `options timeout` may say.
const LONGEST_WAIT: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests;
