use super::App;
use crate::metrics;
use crate::service::{Code, Readiness, ServiceError};
use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::json;

/// Whether rollouts can be asked for now: `/health` says only that the server is there.
#[utoipa::path(
    get, path = "/ready", tag = "operating", operation_id = "ready",
    responses(
        (status = 200, description = "They can.", body = Object, example = json!({"status": "ready"})),
        (status = 503, description = "The server is stopping, or its store cannot be written.", body = Object,
            example = json!({"status": "draining"})),
    )
)]
pub async fn ready(State(app): State<App>) -> Response {
    let (status, word) = match app.service.readiness().await {
        Readiness::Ready => (StatusCode::OK, "ready"),
        Readiness::Draining => (StatusCode::SERVICE_UNAVAILABLE, "draining"),
        // What is wrong with it is in the log: this route takes no key.
        Readiness::StoreFailed => (StatusCode::SERVICE_UNAVAILABLE, "store_failed"),
    };
    (status, Json(json!({ "status": word }))).into_response()
}

/// Numbers for Prometheus; docs/metrics.md lists them.
#[utoipa::path(
    get, path = "/metrics", tag = "operating", operation_id = "metrics",
    responses((status = 200, description = "The text format of Prometheus.", content_type = "text/plain", body = String))
)]
pub async fn metrics(State(app): State<App>) -> Result<Response, ServiceError> {
    let live = app.service.live().borrow().clone();
    let now = metrics::Now {
        live: &live,
        pools: &app.service.config().pools.counts(),
        queue_limit: app.service.config().limits.waiting,
        sessions: app.openenv.sessions.counts(),
    };
    let text = app.service.metrics().text(&now);
    let text = text.map_err(|error| ServiceError::from_error(Code::StoreFailed, &error))?;
    Ok(([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], text).into_response())
}
