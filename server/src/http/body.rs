use crate::service::{Code, ServiceError};
use axum::body::Bytes;
use axum::extract::{FromRequest, Request};
use axum::http::{HeaderMap, StatusCode, header};
use serde_json::Value;

/// A body that is JSON, and the bytes that it was read from.
#[derive(Clone, Debug)]
pub struct JsonBody {
    /// The body.
    pub value: Value,
    /// As it was sent.
    pub bytes: Bytes,
}

impl<S: Send + Sync> FromRequest<S> for JsonBody {
    type Rejection = ServiceError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ServiceError> {
        // A page of another origin can send other types without asking first.
        if !is_json(request.headers()) {
            return Err(
                ServiceError::new(Code::UnsupportedMediaType, "the body is not announced as JSON")
                    .hint(Some("send `Content-Type: application/json`".into())),
            );
        }
        let bytes = bytes(request, state).await?;
        let value = serde_json::from_slice(&bytes).map_err(|error| {
            ServiceError::new(Code::InvalidJson, format!("the body is not JSON: {error}"))
        })?;
        Ok(Self { value, bytes })
    }
}

/// The whole of a body.
///
/// # Errors
/// It is too large, or did not arrive whole.
pub async fn bytes<S: Send + Sync>(request: Request, state: &S) -> Result<Bytes, ServiceError> {
    Bytes::from_request(request, state)
        .await
        .map_err(|rejection| match rejection.status() {
            StatusCode::PAYLOAD_TOO_LARGE => ServiceError::new(
                Code::TooLarge,
                format!("the body has more than {} bytes", super::BODY_MAX),
            ),
            _ => ServiceError::new(Code::InvalidRequest, "the body did not arrive whole"),
        })
}

fn is_json(headers: &HeaderMap) -> bool {
    let value = headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .unwrap_or("");
    let essence = value.split(';').next().unwrap_or("").trim().to_ascii_lowercase();
    essence == "application/json" || (essence.starts_with("application/") && essence.ends_with("+json"))
}
