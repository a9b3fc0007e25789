//! The catalogue of endpoints, and how a choice becomes one: explicit argument, then environment, then configuration
//! file, then the catalogue's default. Names, variables and defaults are those of OpenEnv's `opencode_env`.
//!
//! Keys stay with the URL they were configured with. A URL given as an argument gets a key only where the caller names
//! one, or where it has the very origin of the endpoint named beside it; and a key of the process's environment does
//! not follow a URL that a `.env` file brought in.

use crate::config::{Config, EndpointConfig};
use crate::environment::{Environment, Origin, names};
use crate::error::{Failure, nearest};
use crate::exit::Exit;
use dressage_tap::CallLimits;
use dressage_tap::endpoint::{Endpoint, Prices, ProxyPolicy, Timeouts, with_version};
use http::Uri;
use secrecy::SecretString;
use std::time::Duration;

/// What probes found out, kept from one process to the next.
pub mod probes;

/// The endpoint that `dressage` carries itself: a scripted model, without network or key.
pub const DEMO: &str = "demo";

/// The name of an endpoint that was given as a URL alone.
pub const CUSTOM: &str = "custom";

/// An endpoint that is known by name.
#[derive(Clone, Copy, Debug)]
pub struct Shorthand {
    /// Its name.
    pub name: &'static str,
    /// The variable that holds its URL.
    pub url_variable: &'static str,
    /// The variable that holds its key.
    pub key_variable: &'static str,
    /// The variable that holds its model.
    pub model_variable: &'static str,
    /// Its URL, where there is one that everybody means.
    pub default_url: Option<&'static str>,
    /// Its key, for servers that check none.
    pub default_key: Option<&'static str>,
    /// Its model.
    pub default_model: &'static str,
    /// Whether thinking is turned off where nobody says.
    pub disable_thinking: bool,
}

/// The endpoints known by name, besides [`DEMO`].
pub const SHORTHANDS: &[Shorthand] = &[
    Shorthand {
        name: "vllm",
        url_variable: names::VLLM_URL,
        key_variable: names::VLLM_API_KEY,
        model_variable: names::VLLM_MODEL,
        default_url: None,
        default_key: Some("intercepted"),
        default_model: "Qwen/Qwen3.5-4B",
        disable_thinking: true,
    },
    Shorthand {
        name: "openai",
        url_variable: names::OPENAI_BASE_URL,
        key_variable: names::OPENAI_API_KEY,
        model_variable: names::OPENAI_MODEL,
        default_url: Some("https://api.openai.com/v1"),
        default_key: None,
        default_model: "gpt-4o-mini",
        disable_thinking: false,
    },
    Shorthand {
        name: "hf_router",
        url_variable: names::HF_ROUTER_BASE_URL,
        key_variable: names::HF_ROUTER_API_KEY,
        model_variable: names::HF_ROUTER_MODEL,
        default_url: Some("https://router.huggingface.co/v1"),
        default_key: None,
        default_model: "Qwen/Qwen3-4B-Instruct-2507:nscale",
        disable_thinking: false,
    },
];

/// What the caller asked for.
#[derive(Clone, Copy, Debug, Default)]
pub struct Choice<'a> {
    /// `--endpoint`.
    pub name: Option<&'a str>,
    /// `--base-url`.
    pub base_url: Option<&'a str>,
    /// `--model`.
    pub model: Option<&'a str>,
    /// `--api-key-env`.
    pub key_variable: Option<&'a str>,
    /// A key of the caller's own, over any that is configured.
    pub key: Option<&'a SecretString>,
}

/// What came of a choice.
#[derive(Debug)]
pub enum Chosen {
    /// The scripted model of this program.
    Demo,
    /// A server, with everything known about it.
    Server(Box<Endpoint>),
}

/// A choice does not make an endpoint.
#[derive(Debug, thiserror::Error)]
pub enum EndpointError {
    /// Nothing was chosen.
    #[error("no endpoint was chosen")]
    NoChoice,
    /// Nothing has that name.
    #[error("no endpoint is named `{name}`")]
    UnknownName {
        /// The name asked for.
        name: String,
        /// Every name there is.
        known: Vec<String>,
    },
    /// It has no URL.
    #[error("endpoint `{name}` has no URL")]
    NoUrl {
        /// Its name.
        name: String,
        /// The variable that would hold it.
        variable: Option<&'static str>,
    },
    /// It has no model.
    #[error("endpoint `{name}` has no model")]
    NoModel {
        /// Its name.
        name: String,
    },
    /// It needs a key.
    #[error("endpoint `{name}` needs a key, and {variable} is not set")]
    NoKey {
        /// Its name.
        name: String,
        /// The variable that would hold it.
        variable: String,
    },
    /// Its URL is none.
    #[error("`{url}` is not a URL of an endpoint: {reason}")]
    BadUrl {
        /// What was given, credentials left out.
        url: String,
        /// Why not.
        reason: &'static str,
    },
    /// The key and the URL come from different hands.
    #[error("the key {key_variable} of the environment is not sent to {url_variable} of the .env file")]
    MixedOrigin {
        /// The key's variable.
        key_variable: String,
        /// The URL's variable.
        url_variable: &'static str,
    },
    /// A time in the configuration file is none.
    #[error("`{key}` of endpoint `{name}` is not a number of seconds above zero")]
    BadTimeout {
        /// Its name.
        name: String,
        /// The key.
        key: &'static str,
    },
    /// A price in the configuration file is none.
    #[error("`{key}` of the prices of model `{model}` is not a number from 0 on")]
    BadPrice {
        /// The model.
        model: String,
        /// The key.
        key: &'static str,
    },
    /// The scripted model takes no settings.
    #[error("endpoint `{DEMO}` takes no {option}")]
    DemoOption {
        /// The option.
        option: &'static str,
    },
}

impl EndpointError {
    /// What to do about it.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::NoChoice => Some(format!(
                "pass `--endpoint NAME` ({}), or `--base-url URL --model MODEL`",
                SHORTHANDS
                    .iter()
                    .map(|shorthand| shorthand.name)
                    .chain([DEMO])
                    .collect::<Vec<_>>()
                    .join(", ")
            )),
            Self::UnknownName { name, known } => {
                Some(match nearest(name, known.iter().map(String::as_str)) {
                    Some(meant) => format!("did you mean `{meant}`?"),
                    None => format!(
                        "known are {}; your own go into the configuration file",
                        known.join(", ")
                    ),
                })
            }
            Self::NoUrl {
                variable: Some(variable),
                ..
            } => Some(format!("set {variable}, or pass `--base-url URL`")),
            Self::NoUrl { name, variable: None } => Some(format!(
                "set `url` under `[endpoints.{name}]` in the configuration file"
            )),
            Self::NoModel { name } if name == CUSTOM => Some("pass `--model MODEL`".into()),
            Self::NoModel { name } => Some(format!(
                "pass `--model MODEL`, or set `model` under `[endpoints.{name}]`"
            )),
            Self::NoKey { variable, .. } => Some(format!(
                "set {variable} in the environment or in a .env file; any value will do for a server that checks none"
            )),
            Self::BadUrl { .. } => Some("an endpoint's URL looks like http://localhost:8000/v1".into()),
            Self::MixedOrigin { url_variable, .. } => Some(format!(
                "put the key into the .env file as well, or export {url_variable}: a .env file that one happens \
                 to stand beside must not draw keys to its own URL"
            )),
            Self::BadTimeout { .. } | Self::BadPrice { .. } | Self::DemoOption { .. } => None,
        }
    }
}

impl From<EndpointError> for Failure {
    fn from(error: EndpointError) -> Self {
        let exit = match error {
            EndpointError::NoKey { .. } | EndpointError::NoUrl { .. } | EndpointError::NoModel { .. } => {
                Exit::EndpointUnusable
            }
            _ => Exit::BadInput,
        };
        Self::from_error(exit, &error).maybe_hint(error.hint())
    }
}

/// Every name that can be chosen.
#[must_use]
pub fn known_names(config: &Config) -> Vec<String> {
    let catalogue = SHORTHANDS.iter().map(|shorthand| shorthand.name).chain([DEMO]);
    let mut known: Vec<String> = catalogue.map(str::to_owned).collect();
    known.extend(
        config
            .endpoints
            .keys()
            .filter(|name| !known.contains(name))
            .cloned()
            .collect::<Vec<_>>(),
    );
    known
}

/// Makes an endpoint of a choice.
///
/// # Errors
/// Where nothing or something unknown was chosen, or what was chosen lacks a URL, a key or a model.
pub fn resolve(
    choice: Choice<'_>,
    config: &Config,
    environment: &Environment,
) -> Result<Chosen, EndpointError> {
    let default = config
        .defaults
        .endpoint
        .as_deref()
        .filter(|_| choice.base_url.is_none());
    let name = match (choice.name.or(default), choice.base_url) {
        (Some(name), _) => name,
        (None, Some(_)) => CUSTOM,
        (None, None) => return Err(EndpointError::NoChoice),
    };
    if name == DEMO && !config.endpoints.contains_key(DEMO) {
        return demo(choice);
    }
    let shorthand = SHORTHANDS.iter().find(|shorthand| shorthand.name == name);
    let configured = config.endpoints.get(name);
    if shorthand.is_none() && configured.is_none() && choice.name.or(default).is_some() {
        return Err(EndpointError::UnknownName {
            name: name.into(),
            known: known_names(config),
        });
    }
    let unset = EndpointConfig::default();
    let configured = configured.unwrap_or(&unset);

    let own_url = own_url(shorthand, configured, environment)?;
    let (base_url, key) = match (choice.base_url, own_url) {
        (Some(given), own_url) => {
            let base_url = checked_url(given)?;
            let same_origin = own_url
                .as_ref()
                .is_some_and(|own| origin(&own.url) == origin(&base_url));
            let key = match choice.key_variable {
                _ if choice.key.is_some() => choice.key.cloned(),
                Some(variable) => Some(named_key(name, variable, environment)?.0),
                None if same_origin => own_key(name, shorthand, configured, environment)?.map(|(key, _)| key),
                None => None,
            };
            (base_url, key)
        }
        (None, Some(own_url)) => {
            let found = match choice.key_variable {
                _ if choice.key.is_some() => choice.key.cloned().map(|key| (key, KeySource::Elsewhere)),
                Some(variable) => Some(named_key(name, variable, environment)?),
                None => own_key(name, shorthand, configured, environment)?,
            };
            if let (Some(url_variable), Some((_, KeySource::Process(key_variable)))) =
                (own_url.dot_env_variable, &found)
            {
                return Err(EndpointError::MixedOrigin {
                    key_variable: key_variable.clone(),
                    url_variable,
                });
            }
            (own_url.url, found.map(|(key, _)| key))
        }
        (None, None) => {
            let variable = shorthand.map(|shorthand| shorthand.url_variable);
            return Err(EndpointError::NoUrl {
                name: name.into(),
                variable,
            });
        }
    };
    let model = choice
        .model
        .or_else(|| shorthand.and_then(|shorthand| environment.get(shorthand.model_variable)))
        .or(configured.model.as_deref())
        .or(shorthand.map(|shorthand| shorthand.default_model))
        .filter(|model| !model.is_empty())
        .ok_or_else(|| EndpointError::NoModel { name: name.into() })?;
    // A caller's own URL is another server, whatever endpoint is named beside it.
    let replicas = match choice.base_url {
        Some(_) => Vec::new(),
        None => replicas(shorthand, configured)?,
    };
    Ok(Chosen::Server(Box::new(Endpoint {
        replicas,
        limits: CallLimits {
            at_once: configured.max_calls_at_once.map(Into::into),
            per_minute: configured.max_calls_per_minute.map(Into::into),
        },
        prices: prices(model, config)?,
        api_key: key,
        model: Some(model.into()),
        headers: configured
            .headers
            .iter()
            .map(|(header, value)| (header.clone(), value.as_str().into()))
            .collect(),
        ca_file: configured.ca_file.clone(),
        proxy: proxy(configured, environment),
        timeouts: timeouts(name, configured)?,
        sampling: configured.sampling.clone(),
        capture: configured.capture.unwrap_or_default(),
        disable_thinking: configured
            .disable_thinking
            .unwrap_or(shorthand.is_some_and(|shorthand| shorthand.disable_thinking)),
        ..Endpoint::at(name, base_url)
    })))
}

/// Whether a URL has the origin of an endpoint that has a name and a URL of its own.
#[must_use]
pub fn is_listed(url: &str, config: &Config, environment: &Environment) -> bool {
    let wanted = origin(url.trim());
    let unset = EndpointConfig::default();
    wanted.is_some()
        && known_names(config).iter().any(|name| {
            let shorthand = SHORTHANDS.iter().find(|shorthand| shorthand.name == name);
            let configured = config.endpoints.get(name).unwrap_or(&unset);
            let own = own_url(shorthand, configured, environment).ok().flatten();
            own.is_some_and(|own| origin(&own.url) == wanted)
        })
}

fn demo(choice: Choice<'_>) -> Result<Chosen, EndpointError> {
    let given = [
        ("--base-url", choice.base_url),
        ("--model", choice.model),
        ("--api-key-env", choice.key_variable),
    ];
    match given.into_iter().find(|(_, value)| value.is_some()) {
        Some((option, _)) => Err(EndpointError::DemoOption { option }),
        None => Ok(Chosen::Demo),
    }
}

/// The URL that an endpoint has by itself.
struct OwnUrl {
    url: String,
    /// The variable, where a `.env` file set it.
    dot_env_variable: Option<&'static str>,
}

fn own_url(
    shorthand: Option<&Shorthand>,
    configured: &EndpointConfig,
    environment: &Environment,
) -> Result<Option<OwnUrl>, EndpointError> {
    let from_environment = shorthand.and_then(|shorthand| {
        let (value, origin) = environment.get_with_origin(shorthand.url_variable)?;
        Some((
            value,
            (origin == Origin::DotEnv).then_some(shorthand.url_variable),
        ))
    });
    let found = from_environment
        .or(configured.url.as_deref().map(|url| (url, None)))
        .or(shorthand
            .and_then(|shorthand| shorthand.default_url)
            .map(|url| (url, None)));
    let Some((url, dot_env_variable)) = found else {
        return Ok(None);
    };
    let url = checked_url(url)?;
    let url = if shorthand.is_some() {
        with_version(&url)
    } else {
        url
    };
    Ok(Some(OwnUrl {
        url,
        dot_env_variable,
    }))
}

/// Further servers of the endpoint.
fn replicas(
    shorthand: Option<&Shorthand>,
    configured: &EndpointConfig,
) -> Result<Vec<String>, EndpointError> {
    let url = |url: &String| {
        let url = checked_url(url)?;
        Ok(if shorthand.is_some() {
            with_version(&url)
        } else {
            url
        })
    };
    configured.replicas.iter().map(url).collect()
}

fn prices(model: &str, config: &Config) -> Result<Option<Prices>, EndpointError> {
    let Some(configured) = config.prices.get(model) else {
        return Ok(None);
    };
    let price = |key, value: f64| match value {
        value if value.is_finite() && value >= 0.0 => Ok(value),
        _ => Err(EndpointError::BadPrice {
            model: model.into(),
            key,
        }),
    };
    let cached = configured
        .cached_prompt
        .map(|value| price("cached_prompt", value));
    Ok(Some(Prices {
        prompt: price("prompt", configured.prompt)?,
        cached_prompt: cached.transpose()?,
        completion: price("completion", configured.completion)?,
    }))
}

/// Where a key came from.
enum KeySource {
    /// This variable of the process's environment.
    Process(String),
    /// A `.env` file or the catalogue.
    Elsewhere,
}

fn named_key(
    name: &str,
    variable: &str,
    environment: &Environment,
) -> Result<(SecretString, KeySource), EndpointError> {
    match environment.get_with_origin(variable) {
        Some((key, Origin::Process)) => Ok((key.into(), KeySource::Process(variable.into()))),
        Some((key, Origin::DotEnv)) => Ok((key.into(), KeySource::Elsewhere)),
        None => Err(EndpointError::NoKey {
            name: name.into(),
            variable: variable.into(),
        }),
    }
}

fn own_key(
    name: &str,
    shorthand: Option<&Shorthand>,
    configured: &EndpointConfig,
    environment: &Environment,
) -> Result<Option<(SecretString, KeySource)>, EndpointError> {
    if let Some(variable) = &configured.key_variable {
        return named_key(name, variable, environment).map(Some);
    }
    let Some(shorthand) = shorthand else {
        return Ok(None);
    };
    match (
        named_key(name, shorthand.key_variable, environment),
        shorthand.default_key,
    ) {
        (Ok(found), _) => Ok(Some(found)),
        (Err(_), Some(default)) => Ok(Some((default.into(), KeySource::Elsewhere))),
        (Err(error), None) => Err(error),
    }
}

/// A URL without its trailing slashes, if it can be one of an endpoint.
fn checked_url(url: &str) -> Result<String, EndpointError> {
    let bad = |reason| {
        // What stands before an `@` may be a password.
        let shown = match (url.find("://"), url.rfind('@')) {
            (Some(scheme), Some(at)) if scheme < at => {
                format!(
                    "{}://…{}",
                    url.get(..scheme).unwrap_or(""),
                    url.get(at..).unwrap_or("")
                )
            }
            _ => url.to_owned(),
        };
        Err(EndpointError::BadUrl { url: shown, reason })
    };
    let Ok(uri) = url.trim().parse::<Uri>() else {
        return bad("it cannot be parsed");
    };
    match uri.scheme_str() {
        Some("http" | "https") => {}
        Some(_) => return bad("its scheme is neither http nor https"),
        None => return bad("it has no scheme"),
    }
    if uri
        .authority()
        .is_some_and(|authority| authority.as_str().contains('@'))
    {
        return bad("it holds credentials, which belong into an environment variable");
    }
    if uri.host().is_none_or(str::is_empty) {
        return bad("it has no host");
    }
    if uri.query().is_some() || url.contains('#') {
        return bad("it has a query or a fragment");
    }
    Ok(url.trim().trim_end_matches('/').to_owned())
}

/// Scheme, host and port of a URL.
fn origin(url: &str) -> Option<(String, String, u16)> {
    let uri: Uri = url.parse().ok()?;
    let scheme = uri.scheme_str()?.to_ascii_lowercase();
    let port = uri.port_u16().unwrap_or(if scheme == "https" { 443 } else { 80 });
    Some((scheme, uri.host()?.to_ascii_lowercase(), port))
}

fn proxy(configured: &EndpointConfig, environment: &Environment) -> ProxyPolicy {
    let secret = |value: Option<&str>| value.map(SecretString::from);
    match configured.proxy.as_deref() {
        Some("none") => ProxyPolicy::None,
        None | Some("environment") => {
            let all = environment.first_of(&[names::ALL_PROXY, "all_proxy"]);
            ProxyPolicy::Variables {
                https_proxy: secret(environment.first_of(&[names::HTTPS_PROXY, "https_proxy"]).or(all)),
                // In upper case the name is also that of a request header `Proxy` under CGI.
                http_proxy: secret(environment.get(names::HTTP_PROXY).or(all)),
                no_proxy: environment
                    .first_of(&[names::NO_PROXY, "no_proxy"])
                    .map(str::to_owned),
            }
        }
        Some(url) => ProxyPolicy::Variables {
            https_proxy: secret(Some(url)),
            http_proxy: secret(Some(url)),
            no_proxy: None,
        },
    }
}

fn timeouts(name: &str, configured: &EndpointConfig) -> Result<Timeouts, EndpointError> {
    let checked = |key, value: Option<f64>| match value {
        // A day is longer than any call; beyond it a Duration could overflow.
        Some(seconds) if !(seconds > 0.0 && seconds <= 86_400.0) => Err(EndpointError::BadTimeout {
            name: name.into(),
            key,
        }),
        _ => Ok(value.map(Duration::from_secs_f64)),
    };
    let default = Timeouts::default();
    Ok(Timeouts {
        connect: checked("connect_timeout_s", configured.connect_timeout_s)?.unwrap_or(default.connect),
        header: checked("header_timeout_s", configured.header_timeout_s)?.unwrap_or(default.header),
        idle: checked("idle_timeout_s", configured.idle_timeout_s)?.unwrap_or(default.idle),
        request: checked("request_timeout_s", configured.request_timeout_s)?.or(default.request),
    })
}

#[cfg(test)]
mod tests;
