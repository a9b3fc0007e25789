use crate::lease::Owner;
use secrecy::SecretString;
use serde::Deserialize;
use std::path::PathBuf;
use std::sync::Arc;

/// What a backend is given to work with.
#[derive(Clone, Debug)]
pub struct BackendConfig {
    /// Where leases and homes are. As root, other users must be able to enter it: sandboxes run as such.
    pub data_dir: PathBuf,
    /// Where what can be made again is kept.
    pub cache_dir: PathBuf,
    /// The static program `dressage-tap`, readable by other users.
    pub tap_binary: PathBuf,
    /// The program `bwrap`; looked for in the usual places if unset.
    pub bubblewrap: Option<PathBuf>,
    /// A `rg` to give to sandboxes where the host has none in `/usr/bin`.
    pub ripgrep: Option<PathBuf>,
    /// In whose name sandboxes are made.
    pub owner: Arc<Owner>,
    /// Access to providers.
    pub providers: Providers,
}

/// Access to providers of sandboxes: addresses and keys. A key goes to the address beside it alone.
#[derive(Clone, Debug, Default)]
pub struct Providers {
    /// For the backend `docker`.
    pub docker: DockerAccess,
    /// For the backend `e2b`.
    pub e2b: E2bAccess,
    /// For the backend `huggingface`.
    pub huggingface: HuggingFaceAccess,
}

/// Where containers are made.
#[derive(Clone, Debug, Default)]
pub struct DockerAccess {
    /// The engine, as `unix:///PATH` or `tcp://HOST:PORT`: `DOCKER_HOST`. The socket of Docker or of Podman on this machine if
    /// unset.
    pub host: Option<String>,
    /// The image of sandboxes that name none.
    pub image: Option<String>,
}

/// Whom programs of agents are in sandboxes at providers. Where nothing is said: a user of their own where that can be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AgentUser {
    /// A user of their own, that nothing else is and that cannot become another; sandboxes where there is none to be had are
    /// refused.
    Own,
    /// The user of the image, as setup and verify are.
    Default,
}

/// Access to E2B, or to a deployment of it.
#[derive(Clone, Debug, Default)]
pub struct E2bAccess {
    /// The key of a team: `E2B_API_KEY` of its SDKs.
    pub api_key: Option<SecretString>,
    /// `e2b.app` if unset: `E2B_DOMAIN`.
    pub domain: Option<String>,
    /// The control plane, if not `https://api.DOMAIN`: `E2B_API_URL`.
    pub api_url: Option<String>,
    /// One address for the inside of all sandboxes, if not `https://sandbox.DOMAIN`: `E2B_SANDBOX_URL`.
    pub sandbox_url: Option<String>,
    /// Whom agents are.
    pub agent_user: Option<AgentUser>,
}

/// Access to the Jobs of Hugging Face.
#[derive(Clone, Debug, Default)]
pub struct HuggingFaceAccess {
    /// A token that may run jobs: `HF_TOKEN`.
    pub token: Option<SecretString>,
    /// The hub, if not `https://huggingface.co`: `HF_ENDPOINT`.
    pub endpoint: Option<String>,
    /// The user or organisation that pays; that of the token if unset.
    pub namespace: Option<String>,
    /// The kind of machine, `cpu-basic` if unset.
    pub flavor: Option<String>,
    /// Whom agents are.
    pub agent_user: Option<AgentUser>,
}
