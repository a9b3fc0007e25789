use super::span::SCOPE;
use crate::environment::{Environment, names};
use http::{HeaderMap, HeaderName, HeaderValue, Uri};
use std::time::Duration;

/// Where a collector listens where nobody says (OTLP specification, exporter configuration).
const DEFAULT_ENDPOINT: &str = "http://localhost:4318";

/// Milliseconds that a request may take where nobody says (the same).
const DEFAULT_TIMEOUT_MS: u64 = 10_000;

/// Milliseconds after which a batch is sent that is not full, where nobody says (SDK specification, batch processor).
const DEFAULT_DELAY_MS: u64 = 5_000;

/// The form of what is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// `http/protobuf`.
    Protobuf,
    /// `http/json`.
    Json,
}

/// Where spans go. Headers hold keys: there is no way to print this.
pub struct Settings {
    pub(super) url: Uri,
    pub(super) headers: HeaderMap,
    pub(super) encoding: Encoding,
    pub(super) timeout: Duration,
    pub(super) delay: Duration,
    /// What the spans are of: names and values.
    pub(super) resource: Vec<(String, String)>,
}

/// The variables ask for what cannot be done. Values are not repeated: some are keys.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// Not among the exporters.
    #[error(
        "{} names an exporter other than `otlp` and `none`",
        names::OTEL_TRACES_EXPORTER
    )]
    Exporter,
    /// No URL that spans can be sent to.
    #[error("{0} is no http:// or https:// URL without credentials")]
    Url(&'static str),
    /// Not among the protocols.
    #[error("{0} names a protocol other than `http/protobuf` and `http/json`")]
    Protocol(&'static str),
    /// No `name=value,name=value`.
    #[error("{0} is no list of `name=value`, separated by commas, with other characters as %XX")]
    List(&'static str),
    /// No count of milliseconds.
    #[error("{0} is no count of milliseconds")]
    Milliseconds(&'static str),
}

impl Settings {
    /// What the environment says; `None` where no traces are asked for.
    ///
    /// # Errors
    /// What is asked for cannot be done.
    pub fn read(environment: &Environment) -> Result<Option<Self>, SettingsError> {
        let is_off = environment
            .get(names::OTEL_SDK_DISABLED)
            .is_some_and(|value| value.eq_ignore_ascii_case("true"));
        let exporter = environment.get(names::OTEL_TRACES_EXPORTER);
        let general = environment.get(names::OTEL_ENDPOINT);
        let own = environment.get(names::OTEL_TRACES_ENDPOINT);
        match exporter {
            _ if is_off => return Ok(None),
            Some("none") => return Ok(None),
            Some("otlp") => {}
            Some(_) => return Err(SettingsError::Exporter),
            None if general.is_none() && own.is_none() => return Ok(None),
            None => {}
        }
        let url = match own {
            Some(own) => url(names::OTEL_TRACES_ENDPOINT, own)?,
            None => {
                let base = general.unwrap_or(DEFAULT_ENDPOINT).trim_end_matches('/');
                url(names::OTEL_ENDPOINT, &format!("{base}/v1/traces"))?
            }
        };
        let mut headers = HeaderMap::new();
        // Those for traces alone come last, and replace what was there.
        for variable in [names::OTEL_HEADERS, names::OTEL_TRACES_HEADERS] {
            for (name, value) in list(environment, variable)? {
                let name: HeaderName = name.parse().map_err(|_| SettingsError::List(variable))?;
                let mut value: HeaderValue = value.parse().map_err(|_| SettingsError::List(variable))?;
                value.set_sensitive(true);
                headers.insert(name, value);
            }
        }
        let (protocol, variable) = first(environment, [names::OTEL_TRACES_PROTOCOL, names::OTEL_PROTOCOL]);
        let encoding = match protocol {
            None | Some("http/protobuf") => Encoding::Protobuf,
            Some("http/json") => Encoding::Json,
            Some(_) => return Err(SettingsError::Protocol(variable)),
        };
        Ok(Some(Self {
            url,
            headers,
            encoding,
            timeout: milliseconds(
                environment,
                [names::OTEL_TRACES_TIMEOUT, names::OTEL_TIMEOUT],
                DEFAULT_TIMEOUT_MS,
            )?,
            delay: milliseconds(
                environment,
                [names::OTEL_DELAY, names::OTEL_DELAY],
                DEFAULT_DELAY_MS,
            )?,
            resource: resource(environment)?,
        }))
    }
}

/// The first of two variables that is set; the latter's name where none is.
fn first<'a>(environment: &'a Environment, variables: [&'static str; 2]) -> (Option<&'a str>, &'static str) {
    let [own, general] = variables;
    match environment.get(own) {
        Some(value) => (Some(value), own),
        None => (environment.get(general), general),
    }
}

fn milliseconds(
    environment: &Environment,
    variables: [&'static str; 2],
    default: u64,
) -> Result<Duration, SettingsError> {
    let (value, variable) = first(environment, variables);
    let count = match value {
        None => default,
        Some(value) => value
            .trim()
            .parse()
            .map_err(|_| SettingsError::Milliseconds(variable))?,
    };
    Ok(Duration::from_millis(count))
}

fn url(variable: &'static str, text: &str) -> Result<Uri, SettingsError> {
    let url: Uri = text.trim().parse().map_err(|_| SettingsError::Url(variable))?;
    let is_http = matches!(url.scheme_str(), Some("http" | "https"));
    let has_credentials = url
        .authority()
        .is_some_and(|authority| authority.as_str().contains('@'));
    match is_http && url.host().is_some() && !has_credentials {
        true => Ok(url),
        false => Err(SettingsError::Url(variable)),
    }
}

/// What the spans are of. OTEL_SERVICE_NAME stands over a `service.name` among the attributes.
fn resource(environment: &Environment) -> Result<Vec<(String, String)>, SettingsError> {
    let mut resource = list(environment, names::OTEL_RESOURCE_ATTRIBUTES)?;
    let known = |resource: &[(String, String)], wanted: &str| resource.iter().any(|(name, _)| name == wanted);
    if let Some(name) = environment.get(names::OTEL_SERVICE_NAME) {
        resource.retain(|(known, _)| known != "service.name");
        resource.push(("service.name".into(), name.into()));
    }
    for (name, value) in [
        ("service.name", SCOPE),
        ("service.version", env!("CARGO_PKG_VERSION")),
    ] {
        if !known(&resource, name) {
            resource.push((name.into(), value.into()));
        }
    }
    Ok(resource)
}

/// The pairs of a variable, as in a `baggage` header of the W3C: values are percent-encoded.
fn list(environment: &Environment, variable: &'static str) -> Result<Vec<(String, String)>, SettingsError> {
    let text = environment.get(variable).unwrap_or_default();
    let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
    let pair = |item: &str| {
        let (name, value) = item.split_once('=')?;
        let name = name.trim();
        (!name.is_empty()).then(|| Some((name.to_owned(), decode(value.trim())?)))?
    };
    items
        .map(|item| pair(item).ok_or(SettingsError::List(variable)))
        .collect()
}

/// Takes percent-encoding away; `None` where it is broken.
fn decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
        let (high, low) = (digit(rest.next())?, digit(rest.next())?);
        bytes.push(u8::try_from(high << 4 | low).ok()?);
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Option<Settings>, SettingsError> {
        Settings::read(&Environment::of(variables, &[]))
    }

    #[track_caller]
    fn settings(variables: &[(&str, &str)]) -> Settings {
        read(variables).ok().flatten().unwrap()
    }

    #[test]
    fn traces_are_sent_where_a_collector_is_named_and_not_switched_off() {
        assert!(read(&[]).unwrap().is_none());
        assert!(read(&[("OTEL_SERVICE_NAME", "x")]).unwrap().is_none());
        let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318/");
        assert_eq!(settings(&[endpoint]).url, "http://collector:4318/v1/traces");
        let own = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "https://other/otlp");
        assert_eq!(settings(&[endpoint, own]).url, "https://other/otlp");
        let asked = settings(&[("OTEL_TRACES_EXPORTER", "otlp")]);
        assert_eq!(asked.url, "http://localhost:4318/v1/traces");
        assert_eq!(
            (asked.timeout, asked.delay),
            (Duration::from_secs(10), Duration::from_secs(5))
        );
        for off in [("OTEL_TRACES_EXPORTER", "none"), ("OTEL_SDK_DISABLED", "TRUE")] {
            assert!(read(&[endpoint, off]).unwrap().is_none());
        }
    }

    #[test]
    fn headers_and_attributes_are_lists_with_percent_encoded_values() {
        let made = settings(&[
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "api-key=a%20b%3D, x-general = 1,"),
            ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "X-General=2"),
            (
                "OTEL_RESOURCE_ATTRIBUTES",
                "service.name=over,deployment.environment.name=prod%2C1",
            ),
            ("OTEL_SERVICE_NAME", "trainer"),
            ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/json"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "250"),
        ]);
        assert_eq!(made.headers.get("api-key").unwrap(), "a b=");
        assert_eq!(
            made.headers.get_all("x-general").iter().collect::<Vec<_>>(),
            ["2"]
        );
        let resource: Vec<_> = made
            .resource
            .iter()
            .map(|(name, value)| (&**name, &**value))
            .collect();
        let version = ("service.version", env!("CARGO_PKG_VERSION"));
        assert_eq!(
            resource,
            [
                ("deployment.environment.name", "prod,1"),
                ("service.name", "trainer"),
                version
            ]
        );
        assert_eq!(
            (made.encoding, made.timeout),
            (Encoding::Json, Duration::from_millis(250))
        );
    }

    #[test]
    fn what_cannot_be_done_is_named_without_its_value() {
        let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c");
        for (name, value) in [
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4317"),
            (
                "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
                "http://me:secret@c/v1/traces",
            ),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "secret"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "a b=secret"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "a=%zz"),
            ("OTEL_RESOURCE_ATTRIBUTES", "=secret"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "10s"),
            ("OTEL_TRACES_EXPORTER", "console"),
        ] {
            let error = read(&[endpoint, (name, value)]).err().unwrap().to_string();
            assert!(error.contains(name), "{error}");
            assert!(!error.contains("secret"), "{error}");
        }
    }
}
