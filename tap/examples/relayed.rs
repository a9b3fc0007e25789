//! The tap behind a relay, as a rollout in a sandbox has it, for `make bench`: `relayed --port PORT --upstream URL --tap
//! DRESSAGE_TAP`. A `dressage-tap relay` listens on the port of 127.0.0.1; this process answers what it carries.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a program for measuring ends at the first surprise"
)]

use dressage_tap::session::Access;
use dressage_tap::{CallSink, Endpoint, Session, SessionConfig, Upstream};
use dressage_wire::call::Call;
use dressage_wire::ids::{CallId, RolloutId};
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command};
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

/// What is measured is the way of the calls; where they end is the engine's.
struct Nowhere;

impl CallSink for Nowhere {
    fn started(&self, _call: CallId) {}

    fn finished(&self, _call: Call) {}
}

fn main() {
    let (mut port, mut upstream, mut tap) = (None, None, None);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let value = arguments.next();
        match argument.as_str() {
            "--port" => port = value,
            "--upstream" => upstream = value,
            "--tap" => tap = value,
            _ => panic!("usage: relayed --port PORT --upstream URL --tap DRESSAGE_TAP"),
        }
    }
    let (ours, theirs) = UnixStream::pair().unwrap();
    let mut relay = start_relay(&tap.expect("--tap"), &port.expect("--port"), theirs);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let upstream = Upstream::new(Endpoint::at("bench", upstream.expect("--upstream"))).unwrap();
        let config = SessionConfig {
            access: Access::Anyone,
            top_logprobs: 5,
            ..SessionConfig::new(RolloutId::new(), upstream)
        };
        let session = Session::new(config, Arc::new(Nowhere)).unwrap();
        session.open();
        ours.set_nonblocking(true).unwrap();
        let channel = tokio::net::UnixStream::from_std(ours).unwrap();
        session.serve_channel(channel, CancellationToken::new()).await;
    });
    let _ = relay.kill();
    let _ = relay.wait();
}

/// The relay ends with the channel, and so with this process.
fn start_relay(tap: &str, port: &str, channel: UnixStream) -> Child {
    fcntl(&channel, FcntlArg::F_SETFD(FdFlag::empty())).unwrap();
    let number = channel.as_raw_fd().to_string();
    Command::new(tap)
        .args(["relay", "--listen", &format!("127.0.0.1:{port}"), "--fd", &number])
        .spawn()
        .unwrap()
}
