//! Every environment variable that Dressage reads, in one table, and the one place that reads them; but for those of object
//! stores, which their client reads.
//!
//! Values come from the process's environment, then from a `.env` file in the working directory. A `.env` file is
//! data of whatever folder one happens to stand in, so it fills in only variables marked for it, never overrides, and
//! `Environment::origin` tells the two apart: a key of the user's own environment must not follow a URL of a `.env`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Whether a `.env` file may set a variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DotEnv {
    /// It may.
    Honoured,
    /// It may not: the variable decides where keys and traffic go, or belongs to the system.
    Ignored,
}

/// One variable.
#[derive(Clone, Copy, Debug)]
pub struct Variable {
    /// Its name.
    pub name: &'static str,
    /// What it sets, with its default.
    pub meaning: &'static str,
    /// Whether `.env` may set it.
    pub dot_env: DotEnv,
}

const fn variable(name: &'static str, dot_env: DotEnv, meaning: &'static str) -> Variable {
    Variable {
        name,
        meaning,
        dot_env,
    }
}

/// Names that other files of this package ask for; the table below says what each one means.
pub mod names {
    pub const DATA_DIR: &str = "DRESSAGE_DATA_DIR";
    pub const CACHE_DIR: &str = "DRESSAGE_CACHE_DIR";
    pub const CONFIG: &str = "DRESSAGE_CONFIG";
    pub const LOG: &str = "DRESSAGE_LOG";
    pub const WARM: &str = "DRESSAGE_WARM";
    pub const WARM_MAX_AGE: &str = "DRESSAGE_WARM_MAX_AGE";
    pub const API_KEYS: &str = "DRESSAGE_API_KEYS";
    pub const MAX_CONCURRENT_ENVS: &str = "MAX_CONCURRENT_ENVS";
    pub const OPENENV_MODE: &str = "OPENENV_MODE";
    pub const ENABLE_WEB_INTERFACE: &str = "ENABLE_WEB_INTERFACE";
    pub const SPACE_ID: &str = "SPACE_ID";
    pub const VLLM_URL: &str = "VLLM_URL";
    pub const VLLM_API_KEY: &str = "VLLM_API_KEY";
    pub const VLLM_MODEL: &str = "VLLM_MODEL";
    pub const OPENAI_BASE_URL: &str = "OPENAI_BASE_URL";
    pub const OPENAI_API_KEY: &str = "OPENAI_API_KEY";
    pub const OPENAI_MODEL: &str = "OPENAI_MODEL";
    pub const HF_ROUTER_BASE_URL: &str = "HF_ROUTER_BASE_URL";
    pub const HF_ROUTER_API_KEY: &str = "HF_ROUTER_API_KEY";
    pub const HF_ROUTER_MODEL: &str = "HF_ROUTER_MODEL";
    pub const DOCKER_HOST: &str = "DOCKER_HOST";
    pub const E2B_API_KEY: &str = "E2B_API_KEY";
    pub const E2B_DOMAIN: &str = "E2B_DOMAIN";
    pub const E2B_API_URL: &str = "E2B_API_URL";
    pub const E2B_SANDBOX_URL: &str = "E2B_SANDBOX_URL";
    pub const HF_TOKEN: &str = "HF_TOKEN";
    pub const HF_ENDPOINT: &str = "HF_ENDPOINT";
    pub const HTTPS_PROXY: &str = "HTTPS_PROXY";
    pub const HTTP_PROXY: &str = "http_proxy";
    pub const ALL_PROXY: &str = "ALL_PROXY";
    pub const NO_PROXY: &str = "NO_PROXY";
    pub const OTEL_ENDPOINT: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
    pub const OTEL_TRACES_ENDPOINT: &str = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT";
    pub const OTEL_HEADERS: &str = "OTEL_EXPORTER_OTLP_HEADERS";
    pub const OTEL_TRACES_HEADERS: &str = "OTEL_EXPORTER_OTLP_TRACES_HEADERS";
    pub const OTEL_PROTOCOL: &str = "OTEL_EXPORTER_OTLP_PROTOCOL";
    pub const OTEL_TRACES_PROTOCOL: &str = "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL";
    pub const OTEL_TIMEOUT: &str = "OTEL_EXPORTER_OTLP_TIMEOUT";
    pub const OTEL_TRACES_TIMEOUT: &str = "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT";
    pub const OTEL_DELAY: &str = "OTEL_BSP_SCHEDULE_DELAY";
    pub const OTEL_SERVICE_NAME: &str = "OTEL_SERVICE_NAME";
    pub const OTEL_RESOURCE_ATTRIBUTES: &str = "OTEL_RESOURCE_ATTRIBUTES";
    pub const OTEL_TRACES_EXPORTER: &str = "OTEL_TRACES_EXPORTER";
    pub const OTEL_SDK_DISABLED: &str = "OTEL_SDK_DISABLED";
    pub const HOME: &str = "HOME";
    pub const PATH: &str = "PATH";
    pub const XDG_DATA_HOME: &str = "XDG_DATA_HOME";
    pub const XDG_CACHE_HOME: &str = "XDG_CACHE_HOME";
    pub const XDG_CONFIG_HOME: &str = "XDG_CONFIG_HOME";
}

/// Every variable, in the order in which docs/configuration.md shows them.
pub const VARIABLES: &[Variable] = &[
    variable(
        names::DATA_DIR,
        DotEnv::Ignored,
        "where rollouts are kept, as `--data-dir`; default `/var/lib/dressage` for root, else `dressage` under XDG_DATA_HOME",
    ),
    variable(
        names::CACHE_DIR,
        DotEnv::Ignored,
        "where agents are installed, as `--cache-dir`; default `/var/cache/dressage` for root, else `dressage` under XDG_CACHE_HOME",
    ),
    variable(
        names::CONFIG,
        DotEnv::Ignored,
        "the configuration file, as `--config`; default `dressage/config.toml` under XDG_CONFIG_HOME, if it is there",
    ),
    variable(
        names::LOG,
        DotEnv::Honoured,
        "what is logged, as a tracing filter such as `dressage_tap=debug`; over `--verbose` and `--quiet`",
    ),
    variable(
        names::WARM,
        DotEnv::Honoured,
        "sandboxes that are kept ready, as `--warm`, separated by commas: `local=4,e2b=2`; default none",
    ),
    variable(
        names::WARM_MAX_AGE,
        DotEnv::Honoured,
        "seconds after which one that was not used ends, as `--warm-max-age`; default 600",
    ),
    variable(
        names::API_KEYS,
        DotEnv::Ignored,
        "keys that `dressage serve` asks for, separated by commas, besides those of `--api-keys`",
    ),
    variable(
        names::MAX_CONCURRENT_ENVS,
        DotEnv::Honoured,
        "OpenEnv sessions that `dressage serve` has at once, as `--max-sessions`; default 4",
    ),
    variable(
        names::OPENENV_MODE,
        DotEnv::Honoured,
        "`production` takes `/reset`, `/step` and `/state` away, as in OpenEnv; default `simulation`",
    ),
    variable(
        names::ENABLE_WEB_INTERFACE,
        DotEnv::Honoured,
        "whether `dressage serve` shows pages at `/` and `/web`, as in OpenEnv; default `true`",
    ),
    variable(
        names::SPACE_ID,
        DotEnv::Ignored,
        "set in a Space of Hugging Face: `/web` may then be shown in a frame of huggingface.co",
    ),
    variable(
        names::VLLM_URL,
        DotEnv::Honoured,
        "URL of the endpoint `vllm`; `/v1` is appended where it is absent",
    ),
    variable(
        names::VLLM_API_KEY,
        DotEnv::Honoured,
        "key of the endpoint `vllm`; default `intercepted`",
    ),
    variable(
        names::VLLM_MODEL,
        DotEnv::Honoured,
        "model of the endpoint `vllm`; default `Qwen/Qwen3.5-4B`",
    ),
    variable(
        names::OPENAI_BASE_URL,
        DotEnv::Honoured,
        "URL of the endpoint `openai`; default `https://api.openai.com/v1`",
    ),
    variable(
        names::OPENAI_API_KEY,
        DotEnv::Honoured,
        "key of the endpoint `openai`",
    ),
    variable(
        names::OPENAI_MODEL,
        DotEnv::Honoured,
        "model of the endpoint `openai`; default `gpt-4o-mini`",
    ),
    variable(
        names::HF_ROUTER_BASE_URL,
        DotEnv::Honoured,
        "URL of the endpoint `hf_router`; default `https://router.huggingface.co/v1`",
    ),
    variable(
        names::HF_ROUTER_API_KEY,
        DotEnv::Honoured,
        "key of the endpoint `hf_router`",
    ),
    variable(
        names::HF_ROUTER_MODEL,
        DotEnv::Honoured,
        "model of the endpoint `hf_router`; default `Qwen/Qwen3-4B-Instruct-2507:nscale`",
    ),
    variable(
        names::DOCKER_HOST,
        DotEnv::Ignored,
        "engine of the sandbox backend `docker`: `unix:///PATH` or `tcp://HOST:PORT`",
    ),
    variable(
        names::E2B_API_KEY,
        DotEnv::Honoured,
        "key of a team at E2B, for the sandbox backend `e2b`",
    ),
    variable(
        names::E2B_DOMAIN,
        DotEnv::Ignored,
        "domain of a deployment of E2B; default `e2b.app`",
    ),
    variable(
        names::E2B_API_URL,
        DotEnv::Ignored,
        "URL of its control plane; default `https://api.` and the domain",
    ),
    variable(
        names::E2B_SANDBOX_URL,
        DotEnv::Ignored,
        "one URL by which all of its sandboxes are reached; default `https://sandbox.` and the domain",
    ),
    variable(
        names::HF_TOKEN,
        DotEnv::Honoured,
        "token of Hugging Face that may run jobs, for the sandbox backend `huggingface`",
    ),
    variable(
        names::HF_ENDPOINT,
        DotEnv::Ignored,
        "URL of another hub; default `https://huggingface.co`",
    ),
    variable(
        names::HTTPS_PROXY,
        DotEnv::Ignored,
        "proxy for `https` endpoints (also in lower case), unless the endpoint's `proxy` says otherwise",
    ),
    variable(
        names::HTTP_PROXY,
        DotEnv::Ignored,
        "proxy for `http` endpoints; read in lower case only, as curl does",
    ),
    variable(
        names::ALL_PROXY,
        DotEnv::Ignored,
        "proxy for endpoints for which none of the above is set (also in lower case)",
    ),
    variable(
        names::NO_PROXY,
        DotEnv::Ignored,
        "hosts that are reached without a proxy: names, `.suffixes`, addresses, ranges, `*` (also in lower case)",
    ),
    variable(
        "AWS_ACCESS_KEY_ID",
        DotEnv::Ignored,
        "key for `s3://`, with AWS_SECRET_ACCESS_KEY; where neither is set, web identity (AWS_WEB_IDENTITY_TOKEN_FILE, AWS_ROLE_ARN) or what the machine of the service offers",
    ),
    variable("AWS_SECRET_ACCESS_KEY", DotEnv::Ignored, "see AWS_ACCESS_KEY_ID"),
    variable(
        "AWS_SESSION_TOKEN",
        DotEnv::Ignored,
        "token of a key for `s3://` that is for a while",
    ),
    variable(
        "AWS_REGION",
        DotEnv::Ignored,
        "region of the bucket of `s3://`; default `us-east-1`",
    ),
    variable(
        "AWS_ENDPOINT_URL",
        DotEnv::Ignored,
        "another server than Amazon's for `s3://`, such as a MinIO",
    ),
    variable(
        "AWS_ALLOW_HTTP",
        DotEnv::Ignored,
        "`true` lets `s3://` go without TLS",
    ),
    variable(
        "GOOGLE_APPLICATION_CREDENTIALS",
        DotEnv::Ignored,
        "file of credentials for `gs://`; also GOOGLE_SERVICE_ACCOUNT, or what the machine of the service offers",
    ),
    variable(
        "AZURE_STORAGE_ACCOUNT_NAME",
        DotEnv::Ignored,
        "account for `az://`",
    ),
    variable(
        "AZURE_STORAGE_ACCOUNT_KEY",
        DotEnv::Ignored,
        "key of the account for `az://`; also AZURE_STORAGE_SAS_KEY, AZURE_CLIENT_ID with AZURE_CLIENT_SECRET and AZURE_TENANT_ID, or what the machine of the service offers",
    ),
    variable(
        names::OTEL_ENDPOINT,
        DotEnv::Ignored,
        "URL of an OpenTelemetry collector that `dressage serve` and `dressage mcp` send traces to, without `/v1/traces`; none, no traces (docs/tracing.md)",
    ),
    variable(
        names::OTEL_TRACES_ENDPOINT,
        DotEnv::Ignored,
        "the same as a whole URL, before the one above",
    ),
    variable(
        names::OTEL_HEADERS,
        DotEnv::Ignored,
        "headers for the collector, such as its key: `name=value`, separated by commas, values percent-encoded",
    ),
    variable(
        names::OTEL_TRACES_HEADERS,
        DotEnv::Ignored,
        "more of them, over the ones above",
    ),
    variable(
        names::OTEL_PROTOCOL,
        DotEnv::Ignored,
        "`http/protobuf` (default) or `http/json`",
    ),
    variable(
        names::OTEL_TRACES_PROTOCOL,
        DotEnv::Ignored,
        "the same, before the one above",
    ),
    variable(
        names::OTEL_TIMEOUT,
        DotEnv::Ignored,
        "milliseconds that a request to the collector may take; default 10000",
    ),
    variable(
        names::OTEL_TRACES_TIMEOUT,
        DotEnv::Ignored,
        "the same, before the one above",
    ),
    variable(
        names::OTEL_DELAY,
        DotEnv::Ignored,
        "milliseconds that a span waits for others to be sent with; default 5000",
    ),
    variable(
        names::OTEL_SERVICE_NAME,
        DotEnv::Ignored,
        "`service.name` of the traces; default `dressage`",
    ),
    variable(
        names::OTEL_RESOURCE_ATTRIBUTES,
        DotEnv::Ignored,
        "more attributes of the service, in the form of the headers",
    ),
    variable(
        names::OTEL_TRACES_EXPORTER,
        DotEnv::Ignored,
        "`none` sends no traces; `otlp` sends them also where no collector is named, to `http://localhost:4318`",
    ),
    variable(
        names::OTEL_SDK_DISABLED,
        DotEnv::Ignored,
        "`true` sends no traces",
    ),
    variable(
        "NO_COLOR",
        DotEnv::Ignored,
        "if set, output has no colours (`--color` overrides)",
    ),
    variable(
        "CLICOLOR_FORCE",
        DotEnv::Ignored,
        "if set, output has colours also where it goes to no terminal",
    ),
    variable(
        names::HOME,
        DotEnv::Ignored,
        "the user's home, under which the XDG folders are by default",
    ),
    variable(
        names::PATH,
        DotEnv::Ignored,
        "where bwrap, npm, pasta and slirp4netns are looked for",
    ),
    variable(names::XDG_DATA_HOME, DotEnv::Ignored, "default `~/.local/share`"),
    variable(names::XDG_CACHE_HOME, DotEnv::Ignored, "default `~/.cache`"),
    variable(names::XDG_CONFIG_HOME, DotEnv::Ignored, "default `~/.config`"),
];

/// Where a value came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The environment of the process.
    Process,
    /// The `.env` file of the working directory.
    DotEnv,
}

/// A snapshot of the environment. An empty value counts as unset.
#[derive(Clone, Debug, Default)]
pub struct Environment {
    process: BTreeMap<String, String>,
    dot_env: BTreeMap<String, String>,
}

/// The environment could not be read.
#[derive(Debug, thiserror::Error)]
pub enum EnvironmentError {
    /// A `.env` file is there, and is no such thing.
    #[error("`{}` could not be read", path.display())]
    DotEnv {
        /// The file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: dotenvy::Error,
    },
}

impl Environment {
    /// The environment of this process and the `.env` file in `directory`, where there is one.
    ///
    /// # Errors
    /// Where a `.env` file is there and cannot be read or parsed.
    pub fn read(directory: &Path) -> Result<Self, EnvironmentError> {
        // Values that are not UTF-8 are no keys, URLs or models; paths among them come from options instead.
        let process = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .collect();
        let path = directory.join(".env");
        if !path.is_file() {
            return Ok(Self {
                process,
                ..Self::default()
            });
        }
        let broken = |source| EnvironmentError::DotEnv {
            path: path.clone(),
            source,
        };
        let dot_env = dotenvy::from_path_iter(&path)
            .map_err(broken)?
            .collect::<Result<_, _>>()
            .map_err(broken)?;
        Ok(Self { process, dot_env })
    }

    /// A variable's value, and where it came from. Variables that are not in the table (names that the user chose for
    /// keys) may be in `.env`.
    #[must_use]
    pub fn get_with_origin(&self, name: &str) -> Option<(&str, Origin)> {
        if let Some(value) = self.process.get(name).filter(|value| !value.is_empty()) {
            return Some((value, Origin::Process));
        }
        let ignored = VARIABLES
            .iter()
            .any(|variable| variable.name == name && variable.dot_env == DotEnv::Ignored);
        let from_file = self
            .dot_env
            .get(name)
            .filter(|value| !value.is_empty() && !ignored)?;
        Some((from_file, Origin::DotEnv))
    }

    /// A variable's value.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.get_with_origin(name).map(|(value, _)| value)
    }

    /// The first of `names` that is set in the process's environment.
    #[must_use]
    pub fn first_of(&self, names: &[&str]) -> Option<&str> {
        names.iter().find_map(|name| self.get(name))
    }

    /// An environment made of given values.
    #[cfg(test)]
    pub fn of(process: &[(&str, &str)], dot_env: &[(&str, &str)]) -> Self {
        let owned = |pairs: &[(&str, &str)]| {
            pairs
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect()
        };
        Self {
            process: owned(process),
            dot_env: owned(dot_env),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dot_env_file_never_overrides_and_never_sets_what_decides_where_keys_go() {
        let environment = Environment::of(
            &[("VLLM_URL", "http://process"), ("OPENAI_MODEL", "")],
            &[
                ("VLLM_URL", "http://file"),
                ("OPENAI_MODEL", "from-file"),
                ("HTTPS_PROXY", "http://evil"),
                ("DRESSAGE_CONFIG", "evil.toml"),
                ("MY_KEY", "k"),
            ],
        );
        assert_eq!(
            environment.get_with_origin("VLLM_URL"),
            Some(("http://process", Origin::Process))
        );
        assert_eq!(
            environment.get_with_origin("OPENAI_MODEL"),
            Some(("from-file", Origin::DotEnv))
        );
        assert_eq!(environment.get("HTTPS_PROXY"), None);
        assert_eq!(environment.get("DRESSAGE_CONFIG"), None);
        assert_eq!(environment.get("MY_KEY"), Some("k"));
    }

    #[test]
    fn a_broken_dot_env_file_is_named() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(".env"), "A='unterminated\n").unwrap();
        let error = Environment::read(folder.path()).unwrap_err();
        assert!(error.to_string().contains(".env"), "{error}");
    }
}
