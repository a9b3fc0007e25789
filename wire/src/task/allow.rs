use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// Ports that a host without one may be reached at: those of HTTP and HTTPS.
const USUAL_PORTS: [u16; 2] = [80, 443];

/// A host that a sandbox may reach: `HOST`, `HOST:PORT`, `*.HOST` for every name below one, or an address, that of IPv6 with a
/// port in brackets. Without a port it may be reached at 80 and 443.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct AllowedHost {
    hosts: Hosts,
    port: Option<u16>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Hosts {
    This(Host),
    /// All names below this one.
    Below(String),
}

/// A host as somebody names it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Host {
    /// A name of the DNS, in lower case, without a dot at the end. Never what a resolver would take for an address.
    Name(String),
    /// An address. One of IPv4 that is written as one of IPv6 is one of IPv4 here.
    Address(IpAddr),
}

/// A host and a port, as a client of a proxy names what it wants to reach.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Target {
    /// The host.
    pub host: Host,
    /// The port.
    pub port: u16,
}

/// A text names no host that could be allowed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AllowedHostError {
    /// Nothing, or what no name is.
    #[error(
        "`{0}` is neither an address nor the name of a host: letters, digits, `-`, `_` and dots, after `*.` where all names \
         below are meant"
    )]
    BadName(String),
    /// An address that is not that of one host.
    #[error("`{0}` is not the address of one host")]
    BadAddress(String),
    /// What follows the colon is no port.
    #[error("`{0}` has no port between 1 and 65535 after the colon")]
    BadPort(String),
    /// Every name of a whole top-level domain.
    #[error("`{0}` would allow a whole top-level domain")]
    TooWide(String),
}

/// A text names nothing that could be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TargetError {
    /// `name@host`: what stands before the host is easily taken for it.
    #[error("something stands before the host, which is never passed on")]
    Userinfo,
    /// The host is none.
    #[error("the host is neither a name nor an address")]
    BadHost,
    /// The port is none.
    #[error("there is no port between 1 and 65535")]
    BadPort,
}

impl AllowedHost {
    /// Whether it is among what this allows.
    #[must_use]
    pub fn allows(&self, target: &Target) -> bool {
        let is_host = match (&self.hosts, &target.host) {
            (Hosts::This(this), host) => this == host,
            (Hosts::Below(name), Host::Name(host)) => host
                .strip_suffix(name.as_str())
                .and_then(|above| above.strip_suffix('.'))
                .is_some_and(|above| !above.is_empty()),
            (Hosts::Below(_), Host::Address(_)) => false,
        };
        let is_port = match self.port {
            Some(only) => target.port == only,
            None => USUAL_PORTS.contains(&target.port),
        };
        is_host && is_port
    }

    /// The address that it is, where it is one.
    #[must_use]
    pub fn address(&self) -> Option<IpAddr> {
        match &self.hosts {
            Hosts::This(Host::Address(address)) => Some(*address),
            Hosts::This(Host::Name(_)) | Hosts::Below(_) => None,
        }
    }
}

impl Target {
    /// What the authority of a request is, `HOST:PORT`, or `HOST` where there is a usual port.
    ///
    /// # Errors
    /// It is none, or says more than that.
    pub fn parse(authority: &str, usual_port: Option<u16>) -> Result<Self, TargetError> {
        if authority.contains('@') {
            return Err(TargetError::Userinfo);
        }
        let (text, port) = split(authority).ok_or(TargetError::BadHost)?;
        let port = match port {
            Some(text) => port_of(text),
            None => usual_port,
        };
        Ok(Self {
            host: Host::parse(text).ok_or(TargetError::BadHost)?,
            port: port.ok_or(TargetError::BadPort)?,
        })
    }
}

impl Host {
    /// A name, or an address; one of IPv6 is in brackets.
    fn parse(text: &str) -> Option<Self> {
        if let Some(inner) = text.strip_prefix('[') {
            let address: Ipv6Addr = inner.strip_suffix(']')?.parse().ok()?;
            return Some(Self::Address(IpAddr::V6(address).to_canonical()));
        }
        if let Ok(address) = text.parse::<Ipv4Addr>() {
            return Some(Self::Address(IpAddr::V4(address)));
        }
        let name = text.strip_suffix('.').unwrap_or(text).to_ascii_lowercase();
        is_name(&name).then_some(Self::Name(name))
    }
}

/// The host, and what stands for the port.
fn split(text: &str) -> Option<(&str, Option<&str>)> {
    let end_of_host = if text.starts_with('[') {
        text.find(']')? + 1
    } else {
        text.find(':').unwrap_or(text.len())
    };
    match text.split_at_checked(end_of_host)? {
        (host, "") => Some((host, None)),
        (host, rest) => Some((host, Some(rest.strip_prefix(':')?))),
    }
}

/// A port is digits: what else a number may be written with is none of it.
fn port_of(text: &str) -> Option<u16> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    let port = digits.then(|| text.parse().ok())??;
    (port > 0).then_some(port)
}

fn is_name(name: &str) -> bool {
    let is_label = |label: &str| {
        let usual = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        (1..=63).contains(&label.len())
            && label.bytes().all(usual)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    name.len() <= 253 && name.split('.').all(is_label) && !ends_in_number(name)
}

/// What resolvers take for an address in an older spelling, such as `127.1` and `0x7f000001`. No top-level domain is like that.
fn ends_in_number(name: &str) -> bool {
    let last = name.rsplit('.').next().unwrap_or_default();
    let hexadecimal = last
        .strip_prefix("0x")
        .is_some_and(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()));
    hexadecimal || last.bytes().all(|byte| byte.is_ascii_digit())
}

fn is_of_one_host(address: IpAddr) -> bool {
    let broadcast = address == IpAddr::V4(Ipv4Addr::BROADCAST);
    !(address.is_unspecified() || address.is_multicast() || broadcast)
}

impl FromStr for AllowedHost {
    type Err = AllowedHostError;

    fn from_str(text: &str) -> Result<Self, AllowedHostError> {
        let bad_name = || AllowedHostError::BadName(text.into());
        let bare: Option<Ipv6Addr> = text.parse().ok();
        let (host, port) = match &bare {
            Some(_) => (None, None),
            None => split(text)
                .map(|(host, port)| (Some(host), port))
                .ok_or_else(bad_name)?,
        };
        let port = match port {
            None => None,
            Some(port) => Some(port_of(port).ok_or_else(|| AllowedHostError::BadPort(text.into()))?),
        };
        let host = host.unwrap_or_default();
        let (above, host) = match host.strip_prefix("*.") {
            Some(above) => (true, above),
            None => (false, host),
        };
        let host = match bare {
            Some(address) => Host::Address(IpAddr::V6(address).to_canonical()),
            None => Host::parse(host).ok_or_else(bad_name)?,
        };
        let hosts = match (above, host) {
            (true, Host::Name(name)) if name.contains('.') => Hosts::Below(name),
            (true, Host::Name(_)) => return Err(AllowedHostError::TooWide(text.into())),
            (true, Host::Address(_)) => return Err(bad_name()),
            (false, Host::Address(address)) if !is_of_one_host(address) => {
                return Err(AllowedHostError::BadAddress(text.into()));
            }
            (false, host) => Hosts::This(host),
        };
        Ok(Self { hosts, port })
    }
}

impl TryFrom<String> for AllowedHost {
    type Error = AllowedHostError;

    fn try_from(text: String) -> Result<Self, AllowedHostError> {
        text.parse()
    }
}

impl From<AllowedHost> for String {
    fn from(host: AllowedHost) -> Self {
        host.to_string()
    }
}

impl fmt::Display for AllowedHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.hosts {
            Hosts::This(host) => write!(f, "{host}")?,
            Hosts::Below(name) => write!(f, "*.{name}")?,
        }
        match self.port {
            Some(port) => write!(f, ":{port}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::Address(IpAddr::V4(address)) => write!(f, "{address}"),
            Self::Address(IpAddr::V6(address)) => write!(f, "[{address}]"),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

#[cfg(test)]
mod tests;
