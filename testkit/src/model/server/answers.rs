//! Answers: documents, and what faults answer in the model's place.

use super::super::body::CutOnPurpose;
use crate::fault::Fault;
use bytes::Bytes;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper::header::{CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue, ORIGIN};
use hyper::{Response, StatusCode};
use std::time::Duration;

/// An answer whose body may be played in time.
pub(super) type Answer = Response<BoxBody<Bytes, CutOnPurpose>>;

/// What faults answer in the model's place. Silence before the headers is kept here.
pub(super) async fn instead(faults: &[Fault], body: &[u8]) -> Option<Answer> {
    for fault in faults {
        match fault {
            Fault::StallBeforeHeaders { ms } => tokio::time::sleep(Duration::from_millis(*ms)).await,
            Fault::Answer {
                status,
                content_type,
                body,
                headers,
            } => {
                let mut answer = full(*status, content_type, Bytes::from(body.clone()));
                for (name, value) in headers {
                    let name = HeaderName::from_bytes(name.as_bytes());
                    if let (Ok(name), Ok(value)) = (name, HeaderValue::from_str(value)) {
                        answer.headers_mut().append(name, value);
                    }
                }
                return Some(answer);
            }
            Fault::Refuse { field } => {
                let request: serde_json::Value = serde_json::from_slice(body).unwrap_or_default();
                if request.get(field).is_some() {
                    let error = serde_json::json!({
                        "message": format!("Unsupported parameter: '{field}' is not supported with this model."),
                        "type": "invalid_request_error", "param": field, "code": "unsupported_parameter",
                    });
                    return Some(json(400, serde_json::json!({ "error": error }).to_string()));
                }
            }
            _ => {}
        }
    }
    None
}

/// Whether a request names this machine's loopback as its host and, where it names an origin, as that too: a page in a
/// browser of this machine can do neither.
pub(super) fn is_from_here(headers: &HeaderMap) -> bool {
    let is_loopback = |authority: &str| {
        let name = authority.rsplit_once(':').map_or(authority, |(name, port)| {
            if port.bytes().all(|byte| byte.is_ascii_digit()) {
                name
            } else {
                authority
            }
        });
        matches!(name, "localhost" | "127.0.0.1" | "[::1]")
    };
    let host = headers
        .get(HOST)
        .and_then(|host| host.to_str().ok())
        .is_some_and(is_loopback);
    let origin = headers.get(ORIGIN).is_none_or(|origin| {
        let origin = origin
            .to_str()
            .ok()
            .and_then(|origin| origin.strip_prefix("http://"));
        origin.is_some_and(is_loopback)
    });
    host && origin
}

/// A document of JSON.
pub(super) fn json(status: u16, body: impl Into<String>) -> Answer {
    full(status, "application/json", Bytes::from(body.into()))
}

/// A whole body.
pub(super) fn full(status: u16, content_type: &str, body: Bytes) -> Answer {
    response(
        status,
        content_type,
        Full::new(body).map_err(|never| match never {}).boxed(),
    )
}

/// Any body.
pub(super) fn response(status: u16, content_type: &str, body: BoxBody<Bytes, CutOnPurpose>) -> Answer {
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or_default();
    if let Ok(value) = HeaderValue::from_str(content_type) {
        response.headers_mut().insert(CONTENT_TYPE, value);
    }
    response
}
