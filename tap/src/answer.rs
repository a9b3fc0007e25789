use crate::reply::ReplyBody;
use crate::session::{Access, Session};
use bytes::Bytes;
use dressage_wire::capture::StreamForm;
use dressage_wire::dialect::Dialect;
use http::header::{
    AUTHORIZATION, CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, SET_COOKIE, UPGRADE,
};
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use std::error::Error;

/// Headers of the agent that the endpoint gets: those that route, trace and negotiate. Credentials and whatever else a
/// sandbox may send are not for an endpoint that holds the operator's key.
const PASSED_UP: [&str; 9] = [
    "accept",
    "user-agent",
    "openai-beta",
    "traceparent",
    "tracestate",
    "x-request-id",
    "x-client-request-id",
    "x-session-affinity",
    "x-session-id",
];

/// Headers of the endpoint that are about its connection, its encoding of the body or its browser sessions.
const NOT_PASSED_DOWN: [HeaderName; 7] = [
    CONNECTION,
    CONTENT_ENCODING,
    CONTENT_LENGTH,
    SET_COOKIE,
    UPGRADE,
    http::header::TRANSFER_ENCODING,
    http::header::TRAILER,
];

/// Status and headers of a reply to the agent.
#[derive(Clone, Debug)]
pub(crate) struct ReplyHead {
    status: StatusCode,
    headers: HeaderMap,
}

impl ReplyHead {
    /// Those of the endpoint's reply, without what is between it and us.
    pub(crate) fn of<B>(response: &Response<B>) -> Self {
        let mut headers = HeaderMap::with_capacity(response.headers().len());
        for (name, value) in response.headers() {
            let unwanted = NOT_PASSED_DOWN.contains(name)
                || matches!(
                    name.as_str(),
                    "keep-alive" | "alt-svc" | "proxy-connection" | "proxy-authenticate"
                );
            if !unwanted {
                headers.append(name.clone(), value.clone());
            }
        }
        Self {
            status: response.status(),
            headers,
        }
    }

    pub(crate) fn json(status: StatusCode) -> Self {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        Self { status, headers }
    }

    /// Of a reply of our own: a stream of that form, or a document.
    pub(crate) fn ok(stream: Option<StreamForm>) -> Self {
        let head = Self::json(StatusCode::OK);
        match stream {
            Some(form) => head.stream(form),
            None => head,
        }
    }

    /// The same over a document that we wrote.
    pub(crate) fn document(self) -> Self {
        self.of_type("application/json")
    }

    /// The same over the endpoint's stream, which the agent may get in another form.
    pub(crate) fn written_as(self, form: StreamForm) -> Self {
        match form {
            StreamForm::Events => self,
            StreamForm::Array => self.stream(form),
        }
    }

    /// The same over a stream that we wrote.
    pub(crate) fn stream(self, form: StreamForm) -> Self {
        match form {
            StreamForm::Events => self.of_type("text/event-stream; charset=utf-8"),
            StreamForm::Array => self.of_type("application/json"),
        }
    }

    fn of_type(mut self, content_type: &'static str) -> Self {
        self.headers
            .insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
        self
    }

    pub(crate) fn status(&self) -> StatusCode {
        self.status
    }

    #[cfg(feature = "translated")]
    pub(crate) fn with(mut self, name: &'static str, value: &'static str) -> Self {
        self.headers
            .insert(HeaderName::from_static(name), HeaderValue::from_static(value));
        self
    }

    pub(crate) fn respond(self, body: ReplyBody) -> Response<ReplyBody> {
        let mut response = Response::new(body);
        *response.status_mut() = self.status;
        *response.headers_mut() = self.headers;
        response
    }
}

/// The agent's headers that go to the endpoint.
pub(crate) fn passed_up(agent: &HeaderMap) -> HeaderMap {
    let mut headers = HeaderMap::with_capacity(2 * PASSED_UP.len());
    for name in PASSED_UP {
        if let Some(value) = agent.get(name) {
            headers.insert(HeaderName::from_static(name), value.clone());
        }
    }
    headers
}

/// The credential that a request carries, wherever its dialect puts it.
pub(crate) fn credential(headers: &HeaderMap) -> Option<&[u8]> {
    let bearer = headers
        .get(AUTHORIZATION)
        .map(HeaderValue::as_bytes)
        .and_then(|value| {
            let (scheme, token) = value.split_at_checked(7)?;
            scheme.eq_ignore_ascii_case(b"bearer ").then_some(token)
        });
    bearer.or_else(|| {
        let header = headers
            .get("x-api-key")
            .or_else(|| headers.get("x-goog-api-key"))?;
        Some(header.as_bytes())
    })
}

/// Whether a request may pass: it has the token, and it is the agent stage.
pub(crate) fn is_authorised(session: &Session, headers: &HeaderMap) -> bool {
    session.is_open()
        && match session.config.access {
            Access::Anyone => true,
            Access::Token => credential(headers).is_some_and(|given| session.is_token(given.trim_ascii())),
        }
}

/// The same answer for no token, a wrong one, and a right one at the wrong time.
pub(crate) fn unauthorised(dialect: Option<&dyn Dialect>) -> Response<ReplyBody> {
    const MESSAGE: &str =
        "this is no valid key here and now: a rollout's key is good for its agent, in its agent stage only";
    match dialect {
        Some(dialect) => error(dialect, StatusCode::UNAUTHORIZED, MESSAGE),
        None => plain(StatusCode::UNAUTHORIZED, MESSAGE),
    }
}

/// A document of our own.
#[cfg(feature = "translated")]
pub(crate) fn document(body: Bytes) -> Response<ReplyBody> {
    ReplyHead::json(StatusCode::OK).respond(ReplyBody::Local(Some(body)))
}

/// An error of our own, in the caller's dialect.
pub(crate) fn error(dialect: &dyn Dialect, status: StatusCode, message: &str) -> Response<ReplyBody> {
    let body = error_body(dialect, status, message);
    ReplyHead::json(status).respond(ReplyBody::Local(Some(body)))
}

/// An error of our own to a request of no dialect.
pub(crate) fn plain(status: StatusCode, message: &str) -> Response<ReplyBody> {
    plain_with_hint(status, message, None)
}

/// The same, with what may help in a member of its own.
pub(crate) fn plain_with_hint(status: StatusCode, message: &str, hint: Option<&str>) -> Response<ReplyBody> {
    let mut error =
        serde_json::json!({"message": message, "type": kind(status), "param": null, "code": status.as_u16()});
    if let (Some(hint), Some(members)) = (hint, error.as_object_mut()) {
        members.insert("hint".into(), hint.into());
    }
    let body = serde_json::json!({"error": error}).to_string();
    ReplyHead::json(status).respond(ReplyBody::Local(Some(body.into())))
}

pub(crate) fn error_body(dialect: &dyn Dialect, status: StatusCode, message: &str) -> Bytes {
    dialect.error_body(status.as_u16(), message, kind(status))
}

fn kind(status: StatusCode) -> &'static str {
    match status {
        StatusCode::UNAUTHORIZED => "authentication_error",
        status if status.is_client_error() => "invalid_request_error",
        _ => "upstream_error",
    }
}

/// An error and its causes in one line.
pub(crate) fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}
