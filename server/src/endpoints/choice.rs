use super::catalogue::{CUSTOM, DEMO, known_names, shorthand};
use super::error::EndpointError;
use super::keys::{KeySource, named_key, own_key};
use super::settings::{prices, proxy, timeouts};
use super::urls::{checked_url, origin, own_url, replicas};
use crate::config::{Config, EndpointConfig};
use crate::environment::Environment;
use dressage_tap::CallLimits;
use dressage_tap::endpoint::Endpoint;
use secrecy::SecretString;

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
    let shorthand = shorthand(name);
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
            let shorthand = shorthand(name);
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
