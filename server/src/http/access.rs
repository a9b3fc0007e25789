//! Who may ask: every request passes here first, on every route, method and socket.
//!
//! A server on loopback is reachable by every page that a browser on this machine shows: through DNS names that lead to
//! 127.0.0.1 (so `Host` must be one of ours), and through requests of other origins (so `Origin`, where it is sent, must
//! be ours). Beyond loopback a key is needed as well.

use super::App;
use crate::service::{Code, ServiceError};
use axum::extract::{Request, State};
use axum::http::uri::{Authority, PathAndQuery};
use axum::http::{HeaderMap, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use secrecy::{ExposeSecret, SecretString};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

/// Routes that take no key: whoever starts servers asks them whether one is there.
const OPEN_PATHS: &[&str] = &["/health", "/ready"];

/// Whether a path takes no key.
fn is_open(path: &str) -> bool {
    OPEN_PATHS.contains(&path) || crate::web::is_of_page(path)
}

/// What stands before a key in a path, for clients that cannot send headers.
pub const KEY_PREFIX: &str = "/k/";

/// Who may ask, as configured.
#[derive(Clone, Debug, Default)]
pub struct AccessConfig {
    /// Hosts that the server answers for besides loopback names: `name` or `name:port`.
    pub hosts: Vec<String>,
    /// Keys, any of which opens everything; without one no key is asked for.
    pub keys: Vec<SecretString>,
}

/// Who may ask.
#[derive(Debug)]
pub struct Access {
    hosts: Vec<String>,
    /// Hashed, so that comparing takes the same time whatever the length.
    keys: Vec<[u8; 32]>,
}

impl Access {
    /// Made from the configuration.
    #[must_use]
    pub fn new(config: &AccessConfig) -> Self {
        let hash = |key: &SecretString| Sha256::digest(key.expose_secret()).into();
        Self {
            hosts: config
                .hosts
                .iter()
                .map(|host| host.to_ascii_lowercase())
                .collect(),
            keys: config.keys.iter().map(hash).collect(),
        }
    }

    /// Whether a key is asked for.
    #[must_use]
    pub fn has_keys(&self) -> bool {
        !self.keys.is_empty()
    }

    fn is_key(&self, given: &str) -> bool {
        let given: [u8; 32] = Sha256::digest(given).into();
        // All are compared, so that the time tells nothing of which.
        let found = self
            .keys
            .iter()
            .fold(0, |found, key| found | key.ct_eq(&given).unwrap_u8());
        found == 1
    }

    /// Whether the server answers for this `Host`.
    fn is_host(&self, host: &str) -> bool {
        let Ok(authority) = host.parse::<Authority>() else {
            return false;
        };
        if authority.as_str().contains('@') {
            return false;
        }
        let name = authority.host().to_ascii_lowercase();
        if matches!(name.as_str(), "localhost" | "127.0.0.1" | "[::1]") {
            return true;
        }
        let whole = authority.as_str().to_ascii_lowercase();
        self.hosts.iter().any(|host| *host == name || *host == whole)
    }

    fn check_host(&self, headers: &HeaderMap, uri: &Uri) -> Result<String, ServiceError> {
        let host = match headers.get(header::HOST) {
            Some(host) => host.to_str().ok().map(str::to_owned),
            None => uri.authority().map(ToString::to_string),
        };
        match host {
            Some(host) if self.is_host(&host) => Ok(host),
            host => Err(ServiceError::new(
                Code::ForbiddenHost,
                format!(
                    "this server does not answer for host `{}`",
                    crate::terminal::one_line(&host.unwrap_or_default(), 100)
                ),
            )
            .hint(Some(
                "name the host with `--allow-host` of `dressage serve`".into(),
            ))),
        }
    }

    /// Whether a request that names an origin comes from a page of this server.
    fn check_origin(&self, headers: &HeaderMap, host: &str) -> Result<(), ServiceError> {
        let Some(origin) = headers.get(header::ORIGIN) else {
            return Ok(());
        };
        let own = origin.to_str().ok().and_then(|origin| {
            let rest = origin
                .strip_prefix("http://")
                .or_else(|| origin.strip_prefix("https://"))?;
            Some(rest.eq_ignore_ascii_case(host))
        });
        match own {
            Some(true) => Ok(()),
            _ => Err(ServiceError::new(
                Code::ForbiddenOrigin,
                "the request comes from a page of another origin",
            )),
        }
    }

    fn check_key(&self, headers: &HeaderMap, in_path: Option<&str>, path: &str) -> Result<(), ServiceError> {
        if !self.has_keys() || is_open(path) {
            return Ok(());
        }
        let bearer = headers
            .get(header::AUTHORIZATION)
            .and_then(|value| value.to_str().ok())
            .and_then(|value| {
                value
                    .strip_prefix("Bearer ")
                    .or_else(|| value.strip_prefix("bearer "))
            });
        let header = headers.get("x-api-key").and_then(|value| value.to_str().ok());
        let given = bearer.or(header).or(in_path);
        match given.map(|key| self.is_key(key.trim())) {
            Some(true) => Ok(()),
            Some(false) => Err(ServiceError::new(Code::Unauthorized, "the API key is wrong")),
            None => Err(
                ServiceError::new(Code::Unauthorized, "an API key is missing").hint(Some(
                    "send `Authorization: Bearer KEY`, or put `/k/KEY` before the path".into(),
                )),
            ),
        }
    }
}

/// Lets a request through, or answers it. A key in the path is cut out before anything else sees the path.
pub async fn guard(State(app): State<App>, mut request: Request, next: Next) -> Response {
    let key = cut_key(&mut request);
    let (headers, path) = (request.headers(), request.uri().path());
    let checked = app
        .access
        .check_host(headers, request.uri())
        .and_then(|host| app.access.check_origin(headers, &host))
        .and_then(|()| app.access.check_key(headers, key.as_deref(), path));
    match checked {
        Ok(()) => next.run(request).await,
        Err(error) => error.into_response(),
    }
}

/// Takes `/k/KEY` from the start of the path.
fn cut_key(request: &mut Request) -> Option<String> {
    let rest = request.uri().path().strip_prefix(KEY_PREFIX)?;
    let (key, path) = rest.split_once('/').unwrap_or((rest, ""));
    let key = key.to_owned();
    let path = match request.uri().query() {
        Some(query) => format!("/{path}?{query}"),
        None => format!("/{path}"),
    };
    let mut parts = request.uri().clone().into_parts();
    parts.path_and_query = PathAndQuery::try_from(path).ok();
    *request.uri_mut() = Uri::from_parts(parts).unwrap_or_default();
    Some(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access(hosts: &[&str], keys: &[&str]) -> Access {
        Access::new(&AccessConfig {
            hosts: hosts.iter().map(|&host| host.to_owned()).collect(),
            keys: keys.iter().map(|&key| SecretString::from(key)).collect(),
        })
    }

    #[test]
    fn loopback_names_and_named_hosts_are_answered_for_and_no_others() {
        let access = access(&["gpu-7", "lab.example:8000"], &[]);
        for host in [
            "localhost",
            "localhost:8000",
            "LOCALHOST:1",
            "127.0.0.1:8000",
            "[::1]:80",
            "gpu-7:99",
            "lab.example:8000",
        ] {
            assert!(access.is_host(host), "{host}");
        }
        for host in [
            "evil.example",
            "127.0.0.1.evil.example",
            "localhost.evil.example",
            "lab.example",
            "lab.example:1",
            "x@localhost",
            "",
            "127.0.0.2",
            "0.0.0.0",
            "[::]",
        ] {
            assert!(!access.is_host(host), "{host}");
        }
    }

    #[test]
    fn a_request_of_another_origin_is_refused() {
        let access = access(&[], &[]);
        let origin = |origin: &'static str| {
            let headers = HeaderMap::from_iter([(header::ORIGIN, origin.parse().unwrap())]);
            access.check_origin(&headers, "localhost:8000").is_ok()
        };
        assert!(origin("http://localhost:8000") && origin("https://localhost:8000"));
        for foreign in [
            "http://localhost:8001",
            "http://127.0.0.1:8000",
            "http://evil.example",
            "null",
            "file://",
            "localhost:8000",
        ] {
            assert!(!origin(foreign), "{foreign}");
        }
        assert!(access.check_origin(&HeaderMap::new(), "localhost:8000").is_ok());
    }

    #[test]
    fn any_of_several_keys_opens_by_header_or_path() {
        let access = access(&[], &["one", "two"]);
        let bearer =
            |value: &'static str| HeaderMap::from_iter([(header::AUTHORIZATION, value.parse().unwrap())]);
        assert!(access.check_key(&bearer("Bearer one"), None, "/step").is_ok());
        assert!(access.check_key(&HeaderMap::new(), Some("two"), "/step").is_ok());
        for open in ["/health", "/web", "/web/rollouts/1", "/"] {
            assert!(access.check_key(&HeaderMap::new(), None, open).is_ok(), "{open}");
        }
        for (headers, in_path) in [
            (bearer("Bearer three"), None),
            (bearer("one"), None),
            (HeaderMap::new(), Some("")),
            (HeaderMap::new(), None),
        ] {
            let error = access.check_key(&headers, in_path, "/step").unwrap_err();
            assert_eq!(error.code, Code::Unauthorized);
        }
    }

    #[test]
    fn a_key_in_the_path_is_cut_out() {
        for (uri, key, rest) in [
            ("/k/secret/ws?session_id=1", Some("secret"), "/ws?session_id=1"),
            ("/k/secret", Some("secret"), "/"),
            ("/keys", None, "/keys"),
        ] {
            let mut request = Request::builder()
                .uri(uri)
                .body(axum::body::Body::empty())
                .unwrap();
            assert_eq!(cut_key(&mut request).as_deref(), key);
            assert_eq!(request.uri(), rest);
        }
    }
}
