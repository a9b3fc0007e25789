use super::{AllowedHost, AllowedHostError};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// What a sandbox can reach besides its model.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NetworkPolicy {
    /// Its own loopback, nothing else.
    #[default]
    None,
    /// The outside network, but never the host's loopback.
    Open,
    /// These hosts, through a proxy of ours; at addresses that are not public only where such an address is one of them.
    Allow(Vec<AllowedHost>),
}

/// A text is no policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NetworkPolicyError {
    /// None that there is.
    #[error("`{0}` is neither none, open nor allow:HOST,...")]
    Unknown(String),
    /// One of the hosts is none.
    #[error(transparent)]
    Host(#[from] AllowedHostError),
}

/// `none`, `open` or `allow:HOST,...`.
impl FromStr for NetworkPolicy {
    type Err = NetworkPolicyError;

    fn from_str(text: &str) -> Result<Self, NetworkPolicyError> {
        match (text, text.strip_prefix("allow:")) {
            ("none", _) => Ok(Self::None),
            ("open", _) => Ok(Self::Open),
            (_, Some(hosts)) => {
                let hosts: Result<Vec<AllowedHost>, _> =
                    hosts.split(',').map(|host| host.trim().parse()).collect();
                Ok(Self::Allow(hosts?))
            }
            _ => Err(NetworkPolicyError::Unknown(text.into())),
        }
    }
}

impl fmt::Display for NetworkPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::Open => f.write_str("open"),
            Self::Allow(hosts) => {
                let hosts: Vec<String> = hosts.iter().map(AllowedHost::to_string).collect();
                write!(f, "allow:{}", hosts.join(","))
            }
        }
    }
}

/// Whether verify runs where setup or the agent failed. After a cancellation, or without a sandbox, it never does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VerifyWhen {
    /// After an agent that exited 0 or was ended by a budget.
    #[default]
    Completed,
    /// After a failed setup, a non-zero exit, a kill or a timeout, too.
    Always,
}

/// Whether what setup made is kept for rollouts that would run the same setup.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SnapshotWhen {
    /// Each sets up its own sandbox.
    #[default]
    Never,
    /// The first sets up, and the files are kept as they are then; sandboxes of others begin with these. Processes that setup
    /// left running would not be there.
    AfterSetup,
}

/// Where verify runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VerifyIn {
    /// In the agent's own sandbox, after its processes have ended and as far apart from what it left as the backend can.
    #[default]
    Same,
    /// In a second sandbox that is set up as the first was, into which only the outputs are copied.
    Fresh,
}

/// Where model calls go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Through the tap.
    #[default]
    TransparentProxy,
    /// Straight to the endpoint: nothing is captured, and the key is in the sandbox.
    BlackBox,
}

/// Where the tap answers the agent's calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Placement {
    /// On the host, through a relay in the sandbox.
    #[default]
    Relay,
    /// On a listener that the sandbox can route to.
    Direct,
    /// Inside the sandbox; the trace is fetched afterwards.
    InSandbox,
}

/// How the tap asks the endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum CaptureMode {
    /// As the agent asked: streamed if it streams.
    #[default]
    Stream,
    /// Never streamed upstream; a stream is replayed to an agent that wants one.
    Buffer,
    /// As a probe of the endpoint advises: `buffer` where its streams lack what whole replies have, else `stream`.
    Auto,
}
