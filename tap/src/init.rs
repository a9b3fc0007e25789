//! `dressage-tap init`: the first process of a sandbox, which does there what the host asks.
//!
//! It speaks the frames of `dressage_wire::control` on a socket it inherited, or, in containers, on its standard input and
//! output, and answers nobody else: it makes itself non-dumpable first, so that programs in the sandbox, which have the same
//! user id, can neither open its descriptors nor trace it; as the first process of a pid namespace it cannot be killed by them
//! either. With a socket it is also the relay, on a channel of its own. It reaps what is orphaned, ends whole trees, and ends
//! everything when the host's end closes.

/// What it is told when it is started.
mod options;

/// Children that have ended, told to who waits for them.
mod children;

/// Trees of processes, and their end.
mod tree;

/// Replies, on their way to the host.
mod replies;

/// One program, from its start to its exit.
mod program;

/// Files, on threads of their own.
mod files;

/// The requests of the host.
mod session;

pub(crate) use tree::end_below_here;

use options::Options;
use session::Connection;
use std::ffi::OsString;
use std::io;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::process::ExitCode;
use std::time::Duration;
use tokio::net::{TcpListener, UnixStream};

/// Runs `init (--control-fd NUMBER | --control-stdio) [--relay-fd NUMBER --relay-listen ADDRESS] [--egress-fd NUMBER
/// --egress-listen ADDRESS] [--max-processes N] [--max-data-bytes N] [--lifetime-ms N]`.
#[must_use]
pub fn main(arguments: Vec<OsString>) -> ExitCode {
    match Options::parse(&arguments).and_then(run) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("dressage-tap init: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: Options) -> io::Result<()> {
    nix::sys::prctl::set_dumpable(false)?;
    crate::inherited::pass_on_nothing()?;
    // Orphans come here also where this is not the first process of a namespace.
    nix::sys::prctl::set_child_subreaper(true)?;
    let control = options.control_fd.map(socket).transpose()?;
    let carried = |relay: Option<options::RelayOptions>| {
        relay
            .map(|relay| socket(relay.fd).map(|fd| (fd, relay.listen)))
            .transpose()
    };
    let (relay, egress) = (carried(options.relay)?, carried(options.egress)?);
    options.limit()?;
    // Before anything else runs here: once a sandbox is full of processes, no thread can be had.
    let files = files::Workers::start()?;
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?
        .block_on(async {
            let children = children::Children::new()?;
            let mut addresses = [None, None];
            for (carried, address) in [relay, egress].into_iter().zip(&mut addresses) {
                if let Some((channel, listen)) = carried {
                    let listener = TcpListener::bind(listen).await?;
                    *address = Some(listener.local_addr()?.to_string());
                    tokio::spawn(crate::relay::carry(UnixStream::from_std(channel)?, listener));
                }
            }
            let [address, _] = addresses;
            let connection = match control {
                Some(socket) => Connection::over(UnixStream::from_std(socket)?),
                None => Connection::over_stdio()?,
            };
            let served = session::serve(connection, files, &children, address);
            tokio::select! {
                biased;
                () = children.reap() => {}
                () = lifetime(options.lifetime) => {}
                served = served => served?,
            }
            tree::end_all(&children).await;
            Ok(())
        })
}

fn socket(number: i32) -> io::Result<StdUnixStream> {
    let socket = StdUnixStream::from(crate::inherited::take(number)?);
    socket.set_nonblocking(true)?;
    Ok(socket)
}

async fn lifetime(lifetime: Option<Duration>) {
    match lifetime {
        Some(lifetime) => tokio::time::sleep(lifetime).await,
        None => std::future::pending().await,
    }
}
