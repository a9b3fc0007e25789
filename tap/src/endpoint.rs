use crate::address::{AddressPolicy, RefusedAddress};
use crate::control::CallLimits;
use dressage_wire::sampling::Sampling;
use dressage_wire::task::CaptureMode;
use http::Uri;
use secrecy::SecretString;
use std::path::PathBuf;
use std::time::Duration;

/// A model server, as configured.
#[derive(Clone, Debug)]
pub struct Endpoint {
    /// Its name in the catalogue, or `custom`; named in messages.
    pub name: String,
    /// The URL that `/chat/completions` is put behind; [`with_version`] completes shorthands.
    pub base_url: String,
    /// Further URLs of servers with the same model. The calls of a session go to one of all, for the sake of its prefix
    /// cache, and to another where no connection to that one can be made.
    pub replicas: Vec<String>,
    /// Sent as bearer token, to this endpoint only.
    pub api_key: Option<SecretString>,
    /// The model to ask for over what the agent asks for; as the agent asks if unset.
    pub model: Option<String>,
    /// Sent with every request.
    pub headers: Vec<(String, SecretString)>,
    /// PEM file of further certificate authorities.
    pub ca_file: Option<PathBuf>,
    /// Which proxy leads there.
    pub proxy: ProxyPolicy,
    /// How long to wait for what.
    pub timeouts: Timeouts,
    /// Sampling parameters, under those of the task.
    pub sampling: Sampling,
    /// Whether chat templates are asked not to think.
    pub disable_thinking: bool,
    /// How to ask.
    pub capture: CaptureMode,
    /// Which addresses it may be at.
    pub address_policy: AddressPolicy,
    /// How hard it may be used.
    pub limits: CallLimits,
    /// What its tokens cost, where that is known.
    pub prices: Option<Prices>,
}

/// What a model's tokens cost, for a million of them, in a currency of the operator's choice.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prices {
    /// Tokens of prompts.
    pub prompt: f64,
    /// Of these, tokens that the server had in its cache; as `prompt` if unset.
    pub cached_prompt: Option<f64>,
    /// Sampled tokens.
    pub completion: f64,
}

impl Prices {
    /// The cost of a call of so many tokens. `cached` are of `prompt`.
    #[must_use]
    pub fn cost(&self, prompt: u64, cached: u64, completion: u64) -> f64 {
        let cached = cached.min(prompt);
        let million = |tokens: u64, price: f64| tokens as f64 / 1e6 * price;
        million(prompt - cached, self.prompt)
            + million(cached, self.cached_prompt.unwrap_or(self.prompt))
            + million(completion, self.completion)
    }
}

impl Endpoint {
    /// An endpoint at `base_url`, with defaults for the rest.
    #[must_use]
    pub fn at(name: impl Into<String>, base_url: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            base_url: base_url.into(),
            replicas: Vec::new(),
            api_key: None,
            model: None,
            headers: Vec::new(),
            ca_file: None,
            proxy: ProxyPolicy::None,
            timeouts: Timeouts::default(),
            sampling: Sampling::default(),
            disable_thinking: false,
            capture: CaptureMode::default(),
            address_policy: AddressPolicy::default(),
            limits: CallLimits::default(),
            prices: None,
        }
    }
}

/// Which HTTP proxy leads to an endpoint.
#[derive(Clone, Debug, Default)]
pub enum ProxyPolicy {
    /// None.
    #[default]
    None,
    /// What these variables say, as curl reads them. The caller read them; this package reads no environment.
    Variables {
        /// `https_proxy`: for `https` endpoints.
        https_proxy: Option<SecretString>,
        /// `http_proxy`: for `http` endpoints.
        http_proxy: Option<SecretString>,
        /// `no_proxy`: hosts, domains and networks reached directly.
        no_proxy: Option<String>,
    },
}

/// How long to wait for an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// For a connection, TLS included.
    pub connect: Duration,
    /// For the head of the reply; a unary reply starts only when all of it is sampled.
    pub header: Duration,
    /// Between two parts of a reply.
    pub idle: Duration,
    /// For the whole reply; no limit if unset.
    pub request: Option<Duration>,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(10),
            header: Duration::from_secs(600),
            idle: Duration::from_secs(300),
            request: None,
        }
    }
}

/// An endpoint that cannot be used as configured.
#[derive(Debug, thiserror::Error)]
pub enum EndpointError {
    /// The base URL is no URL.
    #[error("base URL of endpoint `{endpoint}` is not a URL")]
    BadUrl {
        /// Which endpoint.
        endpoint: String,
        /// What is wrong with it.
        #[source]
        source: http::uri::InvalidUri,
    },
    /// The base URL is of a kind that is not spoken.
    #[error("base URL of endpoint `{endpoint}` {problem}")]
    UnusableUrl {
        /// Which endpoint.
        endpoint: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// The base URL leads where nothing may be sent.
    #[error("base URL of endpoint `{endpoint}` is refused")]
    Refused {
        /// Which endpoint.
        endpoint: String,
        /// Why.
        #[source]
        source: RefusedAddress,
    },
    /// The key or a header cannot be sent.
    #[error("{what} of endpoint `{endpoint}` cannot be sent in a header")]
    BadHeader {
        /// Which endpoint.
        endpoint: String,
        /// The key, or a header by name.
        what: String,
    },
    /// The file of certificate authorities could not be read.
    #[error("ca_file `{path}` of endpoint `{endpoint}` could not be read")]
    CaFile {
        /// Which endpoint.
        endpoint: String,
        /// The file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
    /// The file of certificate authorities holds none.
    #[error("ca_file `{path}` of endpoint `{endpoint}` holds no usable PEM certificate")]
    NoCertificate {
        /// Which endpoint.
        endpoint: String,
        /// The file.
        path: PathBuf,
    },
    /// The proxy cannot be used.
    #[error("proxy for endpoint `{endpoint}` {problem}")]
    BadProxy {
        /// Which endpoint.
        endpoint: String,
        /// What is wrong with it.
        problem: &'static str,
    },
}

/// A shorthand such as `http://localhost:8000` with `/v1` put behind it, unless its path ends in a version already.
#[must_use]
pub fn with_version(url: &str) -> String {
    let url = url.trim().trim_end_matches('/');
    let last = url.rsplit('/').next().unwrap_or_default();
    if is_version(last) {
        url.to_owned()
    } else {
        format!("{url}/v1")
    }
}

/// Whether a part of a path is a version, such as `v1`.
fn is_version(part: &str) -> bool {
    part.strip_prefix('v')
        .is_some_and(|rest| rest.starts_with(|first: char| first.is_ascii_digit()))
}

/// Scheme, host and path of a base URL, checked.
#[derive(Clone, Debug)]
pub(crate) struct BaseUrl {
    /// Without a slash at its end.
    text: String,
    uri: Uri,
}

/// Where a request goes at an endpoint.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Operation<'a> {
    /// An operation of the API, such as `/chat/completions`, behind the base URL.
    OfApi(&'a str),
    /// One beside the API's version, as vLLM's own are: behind the base URL without `/v1`.
    #[cfg(feature = "translated")]
    BesideVersion(&'a str),
}

impl BaseUrl {
    /// One of the URLs of an endpoint.
    pub(crate) fn parse(endpoint: &Endpoint, text: &str) -> Result<Self, EndpointError> {
        let name = || endpoint.name.clone();
        let unusable = |problem| EndpointError::UnusableUrl {
            endpoint: name(),
            problem,
        };
        let text = text.trim().trim_end_matches('/');
        let uri: Uri = text.parse().map_err(|source| EndpointError::BadUrl {
            endpoint: name(),
            source,
        })?;
        if !matches!(uri.scheme_str(), Some("http" | "https")) {
            return Err(unusable("does not start with http:// or https://"));
        }
        let authority = uri.authority().ok_or_else(|| unusable("names no host"))?;
        if authority.host().is_empty() {
            return Err(unusable("names no host"));
        }
        if authority.as_str().contains('@') {
            return Err(unusable(
                "carries a user name or password, which belong into the key or a header",
            ));
        }
        if uri.query().is_some() {
            return Err(unusable("carries a query"));
        }
        let host = authority.host().trim_start_matches('[').trim_end_matches(']');
        if let Ok(address) = host.parse() {
            endpoint
                .address_policy
                .check(address)
                .map_err(|source| EndpointError::Refused {
                    endpoint: name(),
                    source,
                })?;
        }
        Ok(Self {
            text: text.to_owned(),
            uri,
        })
    }

    pub(crate) fn join(&self, operation: Operation<'_>) -> Result<Uri, http::uri::InvalidUri> {
        match operation {
            Operation::OfApi(path) => format!("{}{path}", self.text).parse(),
            #[cfg(feature = "translated")]
            Operation::BesideVersion(path) => {
                let base = match self.text.rsplit_once('/') {
                    Some((base, last)) if is_version(last) => base,
                    _ => &self.text,
                };
                format!("{base}{path}").parse()
            }
        }
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.text
    }

    pub(crate) fn uri(&self) -> &Uri {
        &self.uri
    }

    pub(crate) fn is_https(&self) -> bool {
        self.uri.scheme_str() == Some("https")
    }
}
