use super::catalogue::{CUSTOM, DEMO, catalogue_names};
use crate::error::{Failure, nearest};
use crate::exit::Exit;

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
                catalogue_names().collect::<Vec<_>>().join(", ")
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
