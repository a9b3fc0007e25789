//! The configuration file: TOML, every key known by name, so that a misspelt one is an error and not a surprise.

/// The keys, for people.
mod keys;

use crate::error::nearest;
use crate::service::ClientBaseUrl;
use dressage_sandbox::AgentUser;
use dressage_wire::sampling::Sampling;
use dressage_wire::task::{CaptureMode, SnapshotWhen, VerifyIn};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::num::{NonZeroU32, NonZeroUsize};
use std::path::{Path, PathBuf};

pub use keys::{KEYS, TABLES};

/// What the file can say.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Used where no option says otherwise.
    pub defaults: Defaults,
    /// What `dressage serve` does where neither options nor the environment say otherwise.
    pub serve: Serve,
    /// Endpoints by name: the user's own, or changes to those of the catalogue.
    pub endpoints: BTreeMap<String, EndpointConfig>,
    /// Prices by model.
    pub prices: BTreeMap<String, PricesConfig>,
    /// Providers of sandboxes.
    pub sandboxes: SandboxesConfig,
}

/// Providers of sandboxes.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SandboxesConfig {
    /// For the backend `docker`.
    pub docker: DockerConfig,
    /// For the backend `e2b`.
    pub e2b: E2bConfig,
    /// For the backend `huggingface`.
    pub huggingface: HuggingFaceConfig,
}

/// Where containers are made, and of what.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DockerConfig {
    /// The engine.
    pub host: Option<String>,
    /// The image of sandboxes that name none.
    pub image: Option<String>,
}

/// A deployment of E2B.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct E2bConfig {
    /// Its domain.
    pub domain: Option<String>,
    /// URL of its control plane.
    pub api_url: Option<String>,
    /// One URL for the inside of all sandboxes.
    pub sandbox_url: Option<String>,
    /// Whom agents are.
    pub agent_user: Option<AgentUser>,
}

/// Jobs at Hugging Face.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HuggingFaceConfig {
    /// URL of the hub.
    pub endpoint: Option<String>,
    /// Who pays.
    pub namespace: Option<String>,
    /// Kind of machine.
    pub flavor: Option<String>,
    /// Whom agents are.
    pub agent_user: Option<AgentUser>,
}

/// Used where no option says otherwise.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Defaults {
    /// As `--endpoint`.
    pub endpoint: Option<String>,
    /// As `--sandbox`.
    pub sandbox: Option<String>,
    /// As `--verify-in`.
    pub verify_in: Option<VerifyIn>,
    /// As `--snapshot`.
    pub snapshot: Option<SnapshotWhen>,
    /// As `--concurrency`.
    pub concurrency: Option<usize>,
    /// As `--warm`.
    pub warm: BTreeMap<String, usize>,
    /// As `--warm-max-age`.
    pub warm_max_age_s: Option<f64>,
}

/// What `dressage serve` does where neither options nor the environment say otherwise.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Serve {
    /// As `--host`.
    pub host: Option<String>,
    /// As `--port`.
    pub port: Option<u16>,
    /// As `--api-keys`.
    pub api_keys: Option<PathBuf>,
    /// As `--open`.
    pub open: bool,
    /// As `--allow-host`.
    pub allow_hosts: Vec<String>,
    /// As `--client-base-url`.
    pub client_base_url: Option<ClientBaseUrl>,
    /// As `--allow-backend`.
    pub allow_backends: Vec<String>,
    /// As `--allow-address`.
    pub allow_addresses: Vec<String>,
    /// As `--tasks`.
    pub tasks: Option<PathBuf>,
    /// As `--queue`.
    pub queue: Option<usize>,
    /// As `--backend-limit`.
    pub backend_limits: BTreeMap<String, NonZeroUsize>,
    /// As `--endpoint-limit`.
    pub endpoint_limits: BTreeMap<String, NonZeroUsize>,
    /// As `--max-sessions`.
    pub max_sessions: Option<usize>,
    /// As `--socket-ping`.
    pub socket_ping_s: Option<f64>,
    /// As `--keep-abandoned`.
    pub keep_abandoned: bool,
    /// As `--grace`.
    pub grace_s: Option<f64>,
}

/// One endpoint.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EndpointConfig {
    /// Its URL, up to and with `/v1`.
    pub url: Option<String>,
    /// The environment variable that holds its key.
    pub key_variable: Option<String>,
    /// URLs of further servers with the same model.
    pub replicas: Vec<String>,
    /// The model asked for.
    pub model: Option<String>,
    /// Headers sent with every call.
    pub headers: BTreeMap<String, String>,
    /// PEM file of certificates trusted besides the public ones.
    pub ca_file: Option<PathBuf>,
    /// A proxy's URL, `environment`, or `none`.
    pub proxy: Option<String>,
    /// Seconds for a connection to be there.
    pub connect_timeout_s: Option<f64>,
    /// Seconds from a request to the head of its reply.
    pub header_timeout_s: Option<f64>,
    /// Seconds between two pieces of a reply.
    pub idle_timeout_s: Option<f64>,
    /// Seconds for a call as a whole.
    pub request_timeout_s: Option<f64>,
    /// Sampling parameters, under those of tasks and options.
    pub sampling: Sampling,
    /// How the endpoint is asked.
    pub capture: Option<CaptureMode>,
    /// Whether thinking is turned off through the chat template.
    pub disable_thinking: Option<bool>,
    /// Calls at once, of all rollouts.
    pub max_calls_at_once: Option<NonZeroU32>,
    /// Calls begun within any minute, of all rollouts.
    pub max_calls_per_minute: Option<NonZeroU32>,
}

/// What a million tokens of a model cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PricesConfig {
    /// Tokens of prompts.
    pub prompt: f64,
    /// Of these, tokens from the server's cache.
    pub cached_prompt: Option<f64>,
    /// Sampled tokens.
    pub completion: f64,
}

/// A configuration file could not be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// It could not be read.
    #[error("configuration file `{}` could not be read", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
    /// It is no TOML, or says what a configuration cannot say.
    #[error("configuration file `{}` is not valid", path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// Where and why.
        #[source]
        source: Box<toml::de::Error>,
    },
}

impl ConfigError {
    /// The key that was meant, for an unknown one.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Read { .. } => None,
            Self::Parse { source, .. } => did_you_mean(source.message()),
        }
    }
}

impl Config {
    /// Reads a file. Paths in it are made relative to its folder.
    ///
    /// # Errors
    /// Where the file cannot be read or is not valid.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Read {
            path: path.to_owned(),
            source,
        })?;
        let mut config: Self = toml::from_str(&text).map_err(|source| ConfigError::Parse {
            path: path.to_owned(),
            source: Box::new(source),
        })?;
        let folder = path.parent().unwrap_or(Path::new("."));
        config.serve.api_keys = config.serve.api_keys.take().map(|file| folder.join(file));
        config.serve.tasks = config.serve.tasks.take().map(|tasks| folder.join(tasks));
        for endpoint in config.endpoints.values_mut() {
            endpoint.ca_file = endpoint.ca_file.take().map(|file| folder.join(file));
        }
        Ok(config)
    }
}

/// Reads the key that was meant out of serde's message about an unknown one, which lists those it knows.
fn did_you_mean(message: &str) -> Option<String> {
    let mut names = message
        .strip_prefix("unknown field ")?
        .split('`')
        .skip(1)
        .step_by(2);
    let given = names.next()?;
    let meant = nearest(given, names)?;
    Some(format!("did you mean `{meant}`?"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(text: &str) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.toml");
        std::fs::write(&path, text).unwrap();
        (folder, path)
    }

    #[test]
    fn every_example_of_the_table_is_valid() {
        let mut text = String::new();
        for &table in TABLES {
            text.push_str(&format!("[{table}]\n"));
            for key in KEYS.iter().filter(|key| key.table == table) {
                text.push_str(&format!("{} = {}\n", key.name, key.example));
            }
        }
        let (folder, path) = written(&text.replace("/etc/ssl/our-ca.pem", "our-ca.pem"));
        let config = Config::read(&path).unwrap();
        let endpoint = &config.endpoints["NAME"];
        assert_eq!(
            endpoint.ca_file.as_deref(),
            Some(folder.path().join("our-ca.pem").as_path())
        );
        assert_eq!(endpoint.sampling.temperature, Some(0.7));
    }

    #[test]
    fn an_unknown_key_is_named_with_the_nearest() {
        let (_folder, path) = written("[endpoints.mine]\nkey_varable = \"A\"\n");
        let error = Config::read(&path).unwrap_err();
        assert_eq!(error.hint().as_deref(), Some("did you mean `key_variable`?"));
        let source = std::error::Error::source(&error).unwrap().to_string();
        assert!(
            source.contains("line 2") && source.contains("key_varable"),
            "{source}"
        );
    }

    #[test]
    fn a_wrong_type_is_shown_where_it_stands() {
        let (_folder, path) = written("[defaults]\nconcurrency = \"four\"\n");
        let source = std::error::Error::source(&Config::read(&path).unwrap_err())
            .unwrap()
            .to_string();
        assert!(
            source.contains("line 2") && source.contains("invalid type: string \"four\""),
            "{source}"
        );
    }
}
