use super::environment::{Action, Environment};
use super::problems::{Problem, reset_options};
use super::{NAME, detail};
use crate::http::App;
use axum::Json;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use std::time::Duration;

/// The JSON schemas of actions, observations and states.
const SCHEMAS: &str = include_str!("schemas.json");

/// Whether the server is there.
#[utoipa::path(get, path = "/health", tag = "openenv", operation_id = "health", responses((status = 200, description = "It is.", body = Object)))]
pub async fn health() -> Json<Value> {
    Json(json!({"status": "healthy"}))
}

pub async fn wrong_method() -> Response {
    let mut response = detail(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed");
    response
        .headers_mut()
        .insert(header::ALLOW, header::HeaderValue::from_static("GET"));
    response
}

/// What the environment is.
#[utoipa::path(get, path = "/metadata", tag = "openenv", operation_id = "metadata", responses((status = 200, description = "Name, description, version.", body = Object)))]
pub async fn metadata() -> Json<Value> {
    Json(json!({
        "name": "OpenCodeEnvironment",
        "description": "OpenCodeEnvironment environment",
        "readme_content": null,
        "version": "1.0.0",
        "author": null,
        "documentation_url": null,
    }))
}

/// The JSON schemas of actions, observations and states.
#[utoipa::path(get, path = "/schema", tag = "openenv", operation_id = "schema", responses((status = 200, description = "The schemas.", body = Object)))]
pub async fn schema() -> Response {
    ([(header::CONTENT_TYPE, "application/json")], SCHEMAS).into_response()
}

/// The environments that there are.
#[utoipa::path(get, path = "/list_environments", tag = "openenv", operation_id = "list_environments", responses((status = 200, description = "Their names.", body = Vec<String>, example = json!(["opencode_env"]))))]
pub async fn environments() -> Json<Value> {
    Json(json!([NAME]))
}

/// A part of the Task API: our tasks come with the call.
fn task_api(name: &str, method: &str) -> Response {
    if name.eq_ignore_ascii_case(NAME) {
        detail(
            StatusCode::NOT_IMPLEMENTED,
            &format!("{method} is not supported for this environment"),
        )
    } else {
        detail(
            StatusCode::NOT_FOUND,
            &format!("unknown environment '{}'", crate::terminal::one_line(name, 100)),
        )
    }
}

/// Splits of tasks, of which there are none.
#[utoipa::path(get, path = "/{name}/splits", tag = "openenv", operation_id = "list_splits", params(("name" = String, Path, description = "name of the environment: `opencode_env`")), responses((status = 501, description = "Tasks come with the call here.", body = Object), (status = 404, description = "There is no environment of that name.", body = Object)))]
pub async fn splits(Path(name): Path<String>) -> Response {
    task_api(&name, "list_splits")
}

/// Tasks, of which there are none.
#[utoipa::path(post, path = "/{name}/tasks", tag = "openenv", operation_id = "list_tasks", params(("name" = String, Path, description = "name of the environment: `opencode_env`")), responses((status = 501, description = "Tasks come with the call here.", body = Object), (status = 404, description = "There is no environment of that name.", body = Object)))]
pub async fn tasks(Path(name): Path<String>) -> Response {
    task_api(&name, "list_tasks")
}

/// The number of tasks.
#[utoipa::path(post, path = "/{name}/num_tasks", tag = "openenv", operation_id = "num_tasks", params(("name" = String, Path, description = "name of the environment: `opencode_env`")), responses((status = 501, description = "Tasks come with the call here.", body = Object), (status = 404, description = "There is no environment of that name.", body = Object)))]
pub async fn num_tasks(Path(name): Path<String>) -> Response {
    task_api(&name, "num_tasks")
}

/// A task.
#[utoipa::path(post, path = "/{name}/task", tag = "openenv", operation_id = "get_task", params(("name" = String, Path, description = "name of the environment: `opencode_env`")), responses((status = 501, description = "Tasks come with the call here.", body = Object), (status = 404, description = "There is no environment of that name.", body = Object)))]
pub async fn task(Path(name): Path<String>) -> Response {
    task_api(&name, "get_task")
}

/// Tasks from one to another.
#[utoipa::path(post, path = "/{name}/task_range", tag = "openenv", operation_id = "get_task_range", params(("name" = String, Path, description = "name of the environment: `opencode_env`")), responses((status = 501, description = "Tasks come with the call here.", body = Object), (status = 404, description = "There is no environment of that name.", body = Object)))]
pub async fn task_range(Path(name): Path<String>) -> Response {
    task_api(&name, "get_task_range")
}

/// The state of an environment that nobody used: requests without a session act on one of their own.
#[utoipa::path(get, path = "/state", tag = "openenv", operation_id = "state", responses((status = 200, description = "The state.", body = Object)))]
pub async fn state() -> Json<Value> {
    let state = Environment::new().state();
    Json(json!({"episode_id": state.episode_id, "step_count": state.step_count}))
}

/// Begins an episode.
#[utoipa::path(post, path = "/reset", tag = "openenv", operation_id = "reset", request_body = Object, responses((status = 200, description = "The first observation.", body = Object), (status = 422, description = "An option is wrong.", body = Object)))]
pub async fn reset(body: Bytes) -> Response {
    let read = read(&body, true).and_then(|body| reset_options(&body, &[json!("body")]));
    match read {
        Ok(episode) => Json(Environment::new().reset(episode)).into_response(),
        Err(problems) => unprocessable(&problems),
    }
}

/// Does an action: lists tools, or uses one.
#[utoipa::path(post, path = "/step", tag = "openenv", operation_id = "step", request_body = Object, responses((status = 200, description = "An observation.", body = Object), (status = 422, description = "The action is wrong.", body = Object)))]
pub async fn step(State(app): State<App>, body: Bytes) -> Response {
    let (action, timeout) = match read(&body, false).and_then(|body| step_options(&body)) {
        Ok(read) => read,
        Err(problems) => return unprocessable(&problems),
    };
    let observation = Environment::new().step(&app, action, timeout).await;
    (
        [(header::CONTENT_TYPE, "application/json")],
        observation.into_json(true),
    )
        .into_response()
}

fn step_options(body: &Value) -> Result<(Action, Option<Duration>), Vec<Problem>> {
    let action = body
        .get("action")
        .ok_or_else(|| vec![Problem::missing(vec![json!("body"), json!("action")], body)])?;
    if !action.is_object() {
        let place = vec![json!("body"), json!("action")];
        return Err(vec![Problem::new(
            "dict_type",
            place,
            "Input should be a valid dictionary",
            action,
        )]);
    }
    let timeout = match body.get("timeout_s") {
        None | Some(Value::Null) => None,
        Some(given) => {
            let seconds = given.as_f64().filter(|&seconds| seconds > 0.0);
            let limit = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
            Some(limit.ok_or_else(|| {
                let place = vec![json!("body"), json!("timeout_s")];
                vec![
                    Problem::new("greater_than", place, "Input should be greater than 0", given)
                        .context(json!({"gt": 0})),
                ]
            })?)
        }
    };
    Ok((Action::read(action)?, timeout))
}

fn read(body: &Bytes, may_be_empty: bool) -> Result<Value, Vec<Problem>> {
    if body.is_empty() {
        return match may_be_empty {
            true => Ok(json!({})),
            false => Err(vec![Problem::new(
                "missing",
                vec![json!("body")],
                "Field required",
                &Value::Null,
            )]),
        };
    }
    let value: Value = serde_json::from_slice(body).map_err(|error| {
        let place = vec![json!("body"), json!(error.column())];
        vec![
            Problem::new("json_invalid", place, "JSON decode error", &json!({}))
                .context(json!({"error": error.to_string()})),
        ]
    })?;
    match value {
        Value::Object(_) => Ok(value),
        Value::Null if may_be_empty => Ok(json!({})),
        other => Err(vec![Problem::new(
            "model_attributes_type",
            vec![json!("body")],
            "Input should be a valid dictionary",
            &other,
        )]),
    }
}

fn unprocessable(problems: &[Problem]) -> Response {
    (
        StatusCode::UNPROCESSABLE_ENTITY,
        Json(json!({ "detail": problems })),
    )
        .into_response()
}
