use crate::address::RefusedAddress;
use crate::connect::ConnectTimeout;
use crate::resolve::ResolveError;
use crate::upstream::Upstream;
use http::StatusCode;
use std::error::Error;
use std::io;
use std::time::Duration;

/// Why an endpoint gave no reply that can be passed on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SendError {
    /// The agent's path makes no URL.
    #[error("the request's path cannot be put behind the base URL")]
    Path(#[source] http::uri::InvalidUri),
    /// The endpoint has no server at all.
    #[error("it has no server")]
    NoServer,
    /// There is no connection.
    #[error("no connection could be made")]
    Connect(#[source] hyper_util::client::legacy::Error),
    /// The connection broke before a reply.
    #[error("the connection closed before a reply")]
    Closed(#[source] hyper_util::client::legacy::Error),
    /// Nothing came in time.
    #[error("no reply within {} s", .0.as_secs_f64())]
    HeaderTimeout(Duration),
    /// The reply stopped in the middle.
    #[error("the reply stopped for {} s", .0.as_secs_f64())]
    IdleTimeout(Duration),
    /// The reply took too long altogether.
    #[error("the reply was not whole within {} s", .0.as_secs_f64())]
    RequestTimeout(Duration),
    /// The connection broke in the middle of the reply.
    #[error("the reply broke off")]
    Cut(#[source] hyper::Error),
    /// A redirect.
    #[error("it redirects to {location:?} ({status}), and redirects are not followed")]
    Redirect { status: StatusCode, location: String },
    /// Something else than JSON or a stream of events.
    #[error("it answered with {found:?} where {wanted:?} was expected")]
    ContentType { found: String, wanted: &'static str },
    /// Compressed although identity was asked for.
    #[error("it answered with content encoding {0:?}, which was not asked for")]
    Encoding(String),
    /// More than is read.
    #[error("its reply is larger than {0} bytes")]
    TooLarge(usize),
}

impl SendError {
    pub(crate) fn from_client(error: hyper_util::client::legacy::Error) -> Self {
        if error.is_connect() {
            Self::Connect(error)
        } else {
            Self::Closed(error)
        }
    }

    /// What the agent gets.
    pub(crate) fn status(&self) -> StatusCode {
        match self {
            Self::HeaderTimeout(_) | Self::IdleTimeout(_) | Self::RequestTimeout(_) => {
                StatusCode::GATEWAY_TIMEOUT
            }
            Self::Path(_) => StatusCode::BAD_REQUEST,
            _ => StatusCode::BAD_GATEWAY,
        }
    }

    /// Whether a reply had begun.
    pub(crate) fn is_cut(&self) -> bool {
        matches!(
            self,
            Self::Cut(_) | Self::IdleTimeout(_) | Self::RequestTimeout(_) | Self::TooLarge(_)
        )
    }

    /// The endpoint, what happened, and its causes. No part of it holds a key.
    pub(crate) fn message(&self, upstream: &Upstream) -> String {
        let mut message = format!(
            "endpoint `{}` ({}): {self}",
            upstream.endpoint().name,
            upstream.base_url()
        );
        let mut said = self.to_string();
        let mut cause = self.source();
        while let Some(error) = cause {
            let text = error.to_string();
            // Wrappers repeat what they wrap.
            if !said.contains(&text) && !text.starts_with("client error") {
                message.push_str(": ");
                message.push_str(&text);
                said = text;
            }
            cause = error.source();
        }
        upstream.redact_text(&mut message);
        message
    }

    /// What may help, where that is known.
    pub(crate) fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Connect(error) => connect_hint(error),
            Self::HeaderTimeout(_) => Some("is the server overloaded, or its header timeout too short?"),
            Self::Redirect { .. } => Some("put the URL that it redirects to into the base URL"),
            Self::ContentType { .. } => {
                Some("does the base URL lead to an OpenAI-compatible API? It often ends in /v1")
            }
            _ => None,
        }
    }
}

fn connect_hint(error: &(dyn Error + 'static)) -> Option<&'static str> {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if error.is::<ConnectTimeout>() {
            return Some("is the host up, and does a firewall let this through?");
        }
        if error.is::<RefusedAddress>() {
            return Some("link-local and metadata addresses are never connected to");
        }
        if error.is::<ResolveError>() {
            return match error.downcast_ref() {
                Some(ResolveError::Refused { .. }) => Some("the address it leads to is never connected to"),
                _ => Some("is the host name right?"),
            };
        }
        if error.is::<rustls::Error>() {
            return Some("is the URL's scheme right? A private certificate authority goes into ca_file");
        }
        if let Some(error) = error.downcast_ref::<io::Error>() {
            if error.kind() == io::ErrorKind::ConnectionRefused {
                return Some("is the server running, and is the port right?");
            }
            // What an I/O error wraps is not its source, but the error itself.
            if let Some(hint) = error.get_ref().and_then(|inner| connect_hint(inner)) {
                return Some(hint);
            }
        }
        cause = error.source();
    }
    None
}
