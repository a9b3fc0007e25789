use super::held::read_body;
use crate::http::{App, JsonBody, Path};
use crate::service::ServiceError;
use axum::Json;
use axum::extract::State;
use dressage_tap::Upstream;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::time::Duration;

/// Seconds that calls in flight may take to end, where nobody says.
const DRAIN_S: f64 = 600.0;

/// Seconds that can be waited for at most.
const DRAIN_MAX_S: f64 = 86_400.0;

/// An endpoint, as it is used now.
#[derive(Clone, Debug, Serialize, utoipa::ToSchema)]
pub struct EndpointView {
    /// Its name.
    #[schema(example = "vllm")]
    pub name: String,
    /// Its first URL.
    pub base_url: String,
    /// URLs of further servers with the same model.
    pub replicas: Vec<String>,
    /// The model asked for.
    pub model: Option<String>,
    /// New calls wait.
    pub paused: bool,
    /// Calls that it works on.
    pub in_flight: usize,
    /// Calls that wait to be sent.
    pub waiting: usize,
    /// Calls at once, at most.
    pub max_calls_at_once: Option<u32>,
    /// Calls begun within any minute, at most.
    pub max_calls_per_minute: Option<u32>,
    /// Which weights it serves, as the trainer said last.
    #[schema(example = "step-120")]
    pub policy_version: Option<String>,
    /// What it returns, where that was found out: see `POST /api/v1/endpoints/{name}/probe`.
    #[schema(value_type = Option<Object>)]
    pub probe: Option<Value>,
}

impl EndpointView {
    fn of(upstream: &Upstream) -> Self {
        let (endpoint, control) = (upstream.endpoint(), upstream.control());
        let (usage, limits) = (control.usage(), control.limits());
        Self {
            name: endpoint.name.clone(),
            base_url: upstream.base_url().to_owned(),
            replicas: endpoint.replicas.clone(),
            model: endpoint.model.clone(),
            paused: usage.paused,
            in_flight: usage.in_flight,
            waiting: usage.waiting,
            max_calls_at_once: limits.at_once,
            max_calls_per_minute: limits.per_minute,
            policy_version: control.policy_version(),
            // Plain data, which has a JSON form.
            probe: upstream
                .learned()
                .and_then(|report| serde_json::to_value(&*report).ok()),
        }
    }
}

/// How to pause.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PauseBody {
    /// Answer only when no call is in flight.
    pub wait: bool,
    /// Seconds to wait for that; what is in flight then goes on, and `in_flight` says how much it is.
    #[schema(default = 600.0)]
    pub timeout_s: f64,
}

impl Default for PauseBody {
    fn default() -> Self {
        Self {
            wait: false,
            timeout_s: DRAIN_S,
        }
    }
}

/// How to go on.
#[derive(Debug, Default, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ResumeBody {
    /// Which weights the endpoint serves from now on; as before if unset. Put on each call when it is sent and when it
    /// ends.
    #[schema(example = "step-121")]
    pub policy_version: Option<String>,
}

/// One endpoint, as it is used now.
#[utoipa::path(
    get, path = "/api/v1/endpoints/{name}", tag = "catalogue", operation_id = "get_endpoint",
    params(("name" = String, Path, description = "name of an endpoint")),
    responses(
        (status = 200, description = "The endpoint.", body = EndpointView),
        (status = 404, description = "There is none of that name.", body = crate::http::ErrorBody),
    )
)]
pub async fn get(
    State(app): State<App>,
    Path(name): Path<String>,
) -> Result<Json<EndpointView>, ServiceError> {
    let upstream = app.service.endpoint(&name).await?;
    Ok(Json(EndpointView::of(&upstream)))
}

/// Has new calls to an endpoint wait, of all rollouts; those in flight go on. For changing its weights. An endpoint that is
/// paused stays so until it is resumed, or the server ends.
#[utoipa::path(
    post, path = "/api/v1/endpoints/{name}/pause", tag = "catalogue", operation_id = "pause_endpoint",
    params(("name" = String, Path, description = "name of an endpoint")),
    request_body = PauseBody,
    responses(
        (status = 200, description = "It is paused.", body = EndpointView),
        (status = 404, description = "There is none of that name.", body = crate::http::ErrorBody),
    )
)]
pub async fn pause(
    State(app): State<App>,
    Path(name): Path<String>,
    body: JsonBody,
) -> Result<Json<EndpointView>, ServiceError> {
    let body: PauseBody = read_body(body)?;
    if !(body.timeout_s > 0.0 && body.timeout_s <= DRAIN_MAX_S) {
        return Err(ServiceError::invalid(
            "timeout_s",
            format!("is {}, not over 0 and at most {DRAIN_MAX_S}", body.timeout_s),
        ));
    }
    let upstream = app.service.endpoint(&name).await?;
    let control = upstream.control();
    control.pause();
    if body.wait {
        let time = Duration::from_secs_f64(body.timeout_s);
        // The view says what is in flight still.
        let _ = tokio::time::timeout(time, control.drained()).await;
    }
    Ok(Json(EndpointView::of(&upstream)))
}

/// Sends the calls that wait, and says which weights the endpoint serves from now on. One that is not paused gets the
/// version alone.
#[utoipa::path(
    post, path = "/api/v1/endpoints/{name}/resume", tag = "catalogue", operation_id = "resume_endpoint",
    params(("name" = String, Path, description = "name of an endpoint")),
    request_body = ResumeBody,
    responses(
        (status = 200, description = "It goes on.", body = EndpointView),
        (status = 404, description = "There is none of that name.", body = crate::http::ErrorBody),
    )
)]
pub async fn resume(
    State(app): State<App>,
    Path(name): Path<String>,
    body: JsonBody,
) -> Result<Json<EndpointView>, ServiceError> {
    let body: ResumeBody = read_body(body)?;
    let upstream = app.service.endpoint(&name).await?;
    let control = upstream.control();
    if let Some(version) = body.policy_version {
        control.set_policy_version(Some(version));
    }
    control.resume();
    Ok(Json(EndpointView::of(&upstream)))
}

/// Asks an endpoint what it returns for its model: token ids, log-probabilities, with tools, in streams. Six small calls.
#[utoipa::path(
    post, path = "/api/v1/endpoints/{name}/probe", tag = "catalogue", operation_id = "probe_endpoint",
    params(("name" = String, Path, description = "name of an endpoint")),
    responses(
        (status = 200, description = "The endpoint, with what was found out.", body = EndpointView),
        (status = 404, description = "There is none of that name.", body = crate::http::ErrorBody),
        (status = 422, description = "It lacks a URL, key or model, or answers no calls.", body = crate::http::ErrorBody),
    )
)]
pub async fn probe(
    State(app): State<App>,
    Path(name): Path<String>,
) -> Result<Json<EndpointView>, ServiceError> {
    let upstream = app.service.endpoint(&name).await?;
    app.service.probe(&upstream).await?;
    Ok(Json(EndpointView::of(&upstream)))
}
