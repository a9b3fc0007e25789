use super::error::EndpointError;
use crate::config::{Config, EndpointConfig};
use crate::environment::{Environment, names};
use dressage_tap::endpoint::{Prices, ProxyPolicy, Timeouts};
use secrecy::SecretString;
use std::time::Duration;

/// What a model costs, where the file says so.
///
/// # Errors
/// A price is none.
pub fn prices(model: &str, config: &Config) -> Result<Option<Prices>, EndpointError> {
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

/// How the endpoint is reached: as the file says, else as the environment does.
pub fn proxy(configured: &EndpointConfig, environment: &Environment) -> ProxyPolicy {
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

/// How long the endpoint may take.
///
/// # Errors
/// A time is none.
pub fn timeouts(name: &str, configured: &EndpointConfig) -> Result<Timeouts, EndpointError> {
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
