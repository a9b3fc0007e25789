use super::watch::Told;
use crate::service::{Code, Place, ServiceError};
use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

/// Seconds after which a full queue is worth another try.
const RETRY_AFTER_S: &str = "5";

/// A failure, as every route under `/api` tells of it.
#[derive(Clone, Debug, Serialize, utoipa::ToSchema)]
pub struct ErrorBody {
    /// The failure.
    pub error: ErrorInfo,
}

/// What failed.
#[derive(Clone, Debug, Serialize, utoipa::ToSchema)]
pub struct ErrorInfo {
    /// A stable word for branching on.
    #[schema(example = "unknown_rollout")]
    pub code: &'static str,
    /// What failed, on which object.
    pub message: String,
    /// What may help.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// The places of the request that are wrong.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub details: Vec<Place>,
}

impl From<ServiceError> for ErrorBody {
    fn from(error: ServiceError) -> Self {
        Self {
            error: ErrorInfo {
                code: error.code.name(),
                message: error.message,
                hint: error.hint,
                details: error.details,
            },
        }
    }
}

impl IntoResponse for ServiceError {
    fn into_response(self) -> Response {
        let code = self.code;
        let status = StatusCode::from_u16(code.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let told = Told(self.message.clone());
        let mut response = (status, Json(ErrorBody::from(self))).into_response();
        response.extensions_mut().insert(told);
        if matches!(code, Code::QueueFull | Code::Draining) {
            response
                .headers_mut()
                .insert(header::RETRY_AFTER, HeaderValue::from_static(RETRY_AFTER_S));
        }
        if code == Code::Unauthorized {
            response
                .headers_mut()
                .insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}
