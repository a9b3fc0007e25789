//! `dressage-tap relay`: listens inside the sandbox and carries each connection to the host over one channel.
//!
//! The channel is multiplexed by yamux. This side opens streams and accepts none: a stream that comes from the other side is
//! a fault, after which the channel is closed. One stream carries the bytes of one connection both ways, with the end of each
//! direction passed on by itself; a connection that breaks resets its stream. When the channel ends, so do all connections and
//! the listener; but for a carrier that the host dials (`--dialled`), where connections end and the listener waits for the next.

/// One multiplexed channel, as a handle that opens streams.
mod channel;

/// Carriers that the host dials, one at a time.
mod dialled;

/// The secret by which the host is known.
mod secret;

/// A WebSocket as a stream of bytes.
mod websocket;

/// What a WebSocket's key is answered with.
mod sha1;

pub(crate) use channel::{Carrier, Opener};

use std::ffi::OsString;
use std::io;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::Semaphore;
use tokio_util::compat::FuturesAsyncReadCompatExt;

/// Connections carried at once; further ones wait to be accepted.
pub(crate) const MOST_CONNECTIONS: usize = 128;

/// How long to wait after a failure to accept, which comes of having no descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);

/// Runs `relay --listen ADDRESS (--fd NUMBER | --stdio | --dialled ADDRESS)`: alone, for carriers such as the exec of a
/// container. With `--stdio`, `ready` is written to standard error when the address is bound. With `--dialled` the host connects by WebSocket to that address and shows the secret of the environment
/// variable [`SECRET_VARIABLE`](dressage_wire::relay::SECRET_VARIABLE); `ready` is written when both addresses are bound.
#[must_use]
pub fn main(arguments: Vec<OsString>) -> ExitCode {
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("dressage-tap relay: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &[OsString]) -> io::Result<()> {
    let usage = || {
        io::Error::new(
            io::ErrorKind::InvalidInput,
            "usage: dressage-tap relay --listen ADDRESS (--fd NUMBER | --stdio | --dialled ADDRESS)",
        )
    };
    let mut listen: Option<SocketAddr> = None;
    let mut dialled: Option<SocketAddr> = None;
    let (mut number, mut stdio) = (None, false);
    let mut rest = arguments
        .iter()
        .map(|argument| argument.to_str().unwrap_or_default());
    while let Some(argument) = rest.next() {
        match argument {
            "--listen" => listen = rest.next().and_then(|text| text.parse().ok()),
            "--fd" => number = rest.next().and_then(|text| text.parse().ok()),
            "--stdio" => stdio = true,
            "--dialled" => dialled = Some(rest.next().and_then(|text| text.parse().ok()).ok_or_else(usage)?),
            _ => return Err(usage()),
        }
    }
    let listen = listen.ok_or_else(usage)?;
    let inherited = number.map(crate::inherited::take).transpose()?;
    nix::sys::prctl::set_dumpable(false)?;
    let dialled = dialled
        .map(|address| io::Result::Ok((address, secret::Secret::take()?)))
        .transpose()?;
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?
        .block_on(async {
            let listener = TcpListener::bind(listen).await?;
            match (inherited, stdio, dialled) {
                (Some(fd), false, None) => {
                    let channel = std::os::unix::net::UnixStream::from(fd);
                    channel.set_nonblocking(true)?;
                    carry(UnixStream::from_std(channel)?, listener).await;
                    Ok(())
                }
                (None, true, None) => {
                    eprintln!("ready");
                    let (reader, writer) = crate::stdio::take()?;
                    carry(tokio::io::join(reader, writer), listener).await;
                    Ok(())
                }
                (None, false, Some((address, secret))) => {
                    let carriers = TcpListener::bind(address).await?;
                    println!("ready");
                    dialled::serve(carriers, secret, listener).await;
                    Ok(())
                }
                _ => Err(usage()),
            }
        })
}

/// Carries connections until the channel ends.
pub(crate) async fn carry(channel: impl Carrier, listener: TcpListener) {
    carry_over(Box::new(channel), &listener).await;
}

/// As [`carry`], with a listener that outlives the channel: who connects after its end waits for the next one.
async fn carry_over(channel: Box<dyn Carrier>, listener: &TcpListener) {
    let (opener, driver) = channel::multiplex(channel);
    tokio::select! {
        biased;
        () = driver => {}
        () = accept(listener, opener) => {}
    }
}

async fn accept(listener: &TcpListener, opener: Opener) {
    let places = Arc::new(Semaphore::new(MOST_CONNECTIONS));
    let mut connections = tokio::task::JoinSet::new();
    // Closed never, hence a place always comes.
    while let Ok(place) = Arc::clone(&places).acquire_owned().await {
        while connections.try_join_next().is_some() {}
        let connection = match listener.accept().await {
            Ok((connection, _)) => connection,
            Err(_) => {
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let opener = opener.clone();
        connections.spawn(async move {
            // An error is the end of one side; dropping both tells the other.
            let _ = forward(connection, &opener).await;
            drop(place);
        });
    }
}

async fn forward(mut connection: TcpStream, opener: &Opener) -> io::Result<()> {
    connection.set_nodelay(true)?;
    // A stream comes to be on the other side with its first bytes: a connection that ends without any has none.
    if connection.peek(&mut [0]).await? == 0 {
        return Ok(());
    }
    let mut stream = opener.open().await?.compat();
    tokio::io::copy_bidirectional(&mut connection, &mut stream).await?;
    Ok(())
}

#[cfg(test)]
mod tests;
