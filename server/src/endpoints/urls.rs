use super::catalogue::Shorthand;
use super::error::EndpointError;
use crate::config::EndpointConfig;
use crate::environment::{Environment, Origin};
use dressage_tap::endpoint::with_version;
use http::Uri;

/// The URL that an endpoint has by itself.
pub struct OwnUrl {
    /// The URL.
    pub url: String,
    /// The variable, where a `.env` file set it.
    pub dot_env_variable: Option<&'static str>,
}

/// The URL of the environment, else of the configuration file, else of the catalogue.
///
/// # Errors
/// It is no URL of an endpoint.
pub fn own_url(
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
    Ok(Some(OwnUrl {
        url: server_url(shorthand, url)?,
        dot_env_variable,
    }))
}

/// Further servers of the endpoint.
///
/// # Errors
/// One is no URL of an endpoint.
pub fn replicas(
    shorthand: Option<&Shorthand>,
    configured: &EndpointConfig,
) -> Result<Vec<String>, EndpointError> {
    let replicas = configured.replicas.iter();
    replicas.map(|url| server_url(shorthand, url)).collect()
}

/// The URL of one of an endpoint's servers; of those known by name it may lack the version.
fn server_url(shorthand: Option<&Shorthand>, url: &str) -> Result<String, EndpointError> {
    let url = checked_url(url)?;
    Ok(match shorthand {
        Some(_) => with_version(&url),
        None => url,
    })
}

/// A URL without its trailing slashes, if it can be one of an endpoint.
///
/// # Errors
/// It cannot.
pub fn checked_url(url: &str) -> Result<String, EndpointError> {
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
pub fn origin(url: &str) -> Option<(String, String, u16)> {
    let uri: Uri = url.parse().ok()?;
    let scheme = uri.scheme_str()?.to_ascii_lowercase();
    let port = uri.port_u16().unwrap_or(if scheme == "https" { 443 } else { 80 });
    Some((scheme, uri.host()?.to_ascii_lowercase(), port))
}
