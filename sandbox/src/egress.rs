//! The sandbox's side of its way to hosts that its spec allows: where it listens, what programs are told of it, and the channels
//! on which the host serves it.

use crate::{Channel, SandboxError};
use dressage_wire::ids::SandboxId;
use dressage_wire::task::NetworkPolicy;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Mutex, PoisonError};
use tokio::sync::Notify;

/// Where programs in a sandbox reach the host's proxy.
const ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 7002);

/// What tells programs of a proxy. Some read the one case alone, some the other.
const PROXY_VARIABLES: [&str; 6] = [
    "http_proxy",
    "HTTP_PROXY",
    "https_proxy",
    "HTTPS_PROXY",
    "all_proxy",
    "ALL_PROXY",
];

/// What tells them of hosts that are reached without it.
const NO_PROXY_VARIABLES: [&str; 2] = ["no_proxy", "NO_PROXY"];

/// The sandbox itself: its relay, and servers that programs start.
const NOT_PROXIED: &str = "localhost,127.0.0.1,::1";

/// Where the way to the host's proxy is to listen, if there is to be one.
pub(crate) fn address(network: &NetworkPolicy) -> Option<SocketAddr> {
    matches!(network, NetworkPolicy::Allow(_)).then_some(ADDRESS)
}

/// What every command's environment has of it.
pub(crate) fn environment(network: &NetworkPolicy) -> impl Iterator<Item = (String, String)> {
    let of = |names: &'static [&'static str], value: String| {
        names.iter().map(move |name| ((*name).to_owned(), value.clone()))
    };
    address(network).into_iter().flat_map(move |address| {
        of(&PROXY_VARIABLES, format!("http://{address}"))
            .chain(of(&NO_PROXY_VARIABLES, NOT_PROXIED.to_owned()))
    })
}

/// The channels of one sandbox to the host's proxy, one after the other: each rebuilding makes a new one.
pub(crate) struct Channels {
    state: Mutex<State>,
    changed: Notify,
}

enum State {
    /// Nobody has taken it yet.
    Untaken(Box<dyn Channel>),
    /// The next comes with the next rebuilding.
    Taken,
    /// There will be no more.
    Over,
}

impl Channels {
    /// With the first, if the sandbox has a way out at all.
    pub(crate) fn new(first: Option<Box<dyn Channel>>) -> Self {
        Self {
            state: Mutex::new(first.map_or(State::Over, State::Untaken)),
            changed: Notify::new(),
        }
    }

    /// Waits for one that nobody has taken. For one caller at a time.
    pub(crate) async fn next(&self, sandbox: SandboxId) -> Result<Box<dyn Channel>, SandboxError> {
        loop {
            {
                let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
                match std::mem::replace(&mut *state, State::Taken) {
                    State::Untaken(channel) => return Ok(channel),
                    State::Taken => {}
                    State::Over => {
                        *state = State::Over;
                        return Err(SandboxError::Gone {
                            id: sandbox,
                            reason: "there is no further way out of it".into(),
                        });
                    }
                }
            }
            self.changed.notified().await;
        }
    }

    /// Takes in the one that a rebuilding made, in the place of one that nobody took.
    pub(crate) fn put(&self, channel: Option<Box<dyn Channel>>) {
        self.become_state(channel.map_or(State::Over, State::Untaken));
    }

    /// There will be no more.
    pub(crate) fn end(&self) {
        self.become_state(State::Over);
    }

    fn become_state(&self, next: State) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        // What was killed has no way out any more, whatever was rebuilt meanwhile.
        if !matches!(*state, State::Over) {
            *state = next;
        }
        drop(state);
        self.changed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    /// A channel on which `what` comes out.
    async fn saying(what: &[u8]) -> Option<Box<dyn Channel>> {
        let (mut ours, theirs) = tokio::io::duplex(16);
        ours.write_all(what).await.unwrap();
        Some(Box::new(theirs))
    }

    async fn heard(channels: &Channels) -> Vec<u8> {
        let mut heard = Vec::new();
        let mut channel = channels.next(SandboxId::new()).await.unwrap();
        channel.read_to_end(&mut heard).await.unwrap();
        heard
    }

    #[tokio::test]
    async fn each_channel_is_taken_once_and_the_last_one_made_counts() {
        let channels = Arc::new(Channels::new(saying(b"1").await));
        assert_eq!(heard(&channels).await, b"1");
        let waiting = tokio::spawn({
            let channels = Arc::clone(&channels);
            async move { heard(&channels).await }
        });
        tokio::task::yield_now().await;
        channels.put(saying(b"2").await);
        assert_eq!(waiting.await.unwrap(), b"2");
        channels.put(saying(b"3").await);
        channels.put(saying(b"4").await);
        assert_eq!(heard(&channels).await, b"4");
        channels.end();
        channels.put(saying(b"5").await);
        for channels in [&*channels, &Channels::new(None)] {
            let gone = channels.next(SandboxId::new()).await.err().unwrap();
            assert!(matches!(gone, SandboxError::Gone { .. }), "{gone}");
        }
    }

    #[test]
    fn programs_are_told_of_the_way_out_where_there_is_one() {
        let allow: NetworkPolicy = "allow:index.example".parse().unwrap();
        let told: Vec<(String, String)> = environment(&allow).collect();
        assert_eq!(told.len(), 8);
        let has = |name: &str, value: &str| told.contains(&(name.to_owned(), value.to_owned()));
        for name in PROXY_VARIABLES {
            assert!(has(name, "http://127.0.0.1:7002"), "{name}");
        }
        assert!(has("NO_PROXY", "localhost,127.0.0.1,::1"));
        for network in [NetworkPolicy::None, NetworkPolicy::Open] {
            assert_eq!(environment(&network).count(), 0);
        }
    }
}
