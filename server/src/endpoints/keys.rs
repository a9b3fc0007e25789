use super::catalogue::Shorthand;
use super::error::EndpointError;
use crate::config::EndpointConfig;
use crate::environment::{Environment, Origin};
use secrecy::SecretString;

/// Where a key came from.
pub enum KeySource {
    /// This variable of the process's environment.
    Process(String),
    /// A `.env` file or the catalogue.
    Elsewhere,
}

/// The key in a variable that somebody names.
///
/// # Errors
/// The variable is not set.
pub fn named_key(
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

/// The key that an endpoint has by itself, where it has one.
///
/// # Errors
/// It needs one that is not set.
pub fn own_key(
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
