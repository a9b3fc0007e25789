use super::LONGEST_WAIT;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// Servers are asked in turn; the C library takes three as well.
const MOST_SERVERS: usize = 3;

/// What `/etc/resolv.conf` says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Config {
    pub(super) servers: Vec<SocketAddr>,
    search: Vec<String>,
    dots: usize,
    pub(super) timeout: Duration,
    pub(super) attempts: usize,
}

impl Config {
    pub(super) fn parse(text: &str) -> Self {
        let mut config = Self {
            servers: Vec::new(),
            search: Vec::new(),
            dots: 1,
            timeout: Duration::from_secs(5),
            attempts: 2,
        };
        for line in text.lines() {
            let mut words = line
                .split(['#', ';'])
                .next()
                .unwrap_or_default()
                .split_ascii_whitespace();
            match words.next() {
                Some("nameserver") => config.servers.extend(words.next().and_then(server)),
                // The last of these lines counts.
                Some("search" | "domain") => config.search = words.map(str::to_owned).collect(),
                Some("options") => words.for_each(|option| config.option(option)),
                _ => {}
            }
        }
        config.servers.truncate(MOST_SERVERS);
        config
    }

    fn option(&mut self, option: &str) {
        let Some((name, value)) = option.split_once(':') else {
            return;
        };
        let Ok(value) = value.parse::<u32>() else { return };
        match name {
            "ndots" => self.dots = value.min(15) as usize,
            "timeout" => self.timeout = Duration::from_secs(value.max(1).into()).min(LONGEST_WAIT),
            "attempts" => self.attempts = value.clamp(1, 5) as usize,
            _ => {}
        }
    }

    /// The names to ask for, in order: a name with few dots is one of this site's first.
    pub(super) fn full_names(&self, host: &str) -> Vec<String> {
        if let Some(full) = host.strip_suffix('.') {
            return vec![full.to_owned()];
        }
        let searched = self
            .search
            .iter()
            .map(|domain| format!("{host}.{}", domain.trim_end_matches('.')));
        if host.matches('.').count() >= self.dots {
            std::iter::once(host.to_owned()).chain(searched).collect()
        } else {
            searched.chain(std::iter::once(host.to_owned())).collect()
        }
    }
}

/// An IPv6 address may name the interface behind `%`, which only link-local ones need.
fn server(word: &str) -> Option<SocketAddr> {
    let address: IpAddr = word.split('%').next()?.parse().ok()?;
    Some(SocketAddr::new(address, 53))
}

/// What `/etc/hosts` says of a host. Names of loopback are known without it.
pub(super) fn hosts(text: &str, host: &str) -> Vec<IpAddr> {
    let host = host.trim_end_matches('.');
    let lines = text.lines().filter_map(|line| {
        let mut words = line.split('#').next()?.split_ascii_whitespace();
        let address: IpAddr = words.next()?.parse().ok()?;
        words
            .any(|name| name.eq_ignore_ascii_case(host))
            .then_some(address)
    });
    let found: Vec<IpAddr> = lines.collect();
    let local = host
        .rsplit('.')
        .next()
        .is_some_and(|last| last.eq_ignore_ascii_case("localhost"));
    if found.is_empty() && local {
        vec![IpAddr::from([127, 0, 0, 1])]
    } else {
        found
    }
}
