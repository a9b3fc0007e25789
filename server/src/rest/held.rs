use super::records;
use crate::http::{App, JsonBody, Path, body};
use crate::service::{Code, ServiceError, View};
use axum::Json;
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use dressage_rollout::{FinishRequest, HeldCommand, HoldError};
use dressage_sandbox::SandboxError;
use dressage_wire::reward::CommandResult;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::time::Duration;

/// Seconds that a command may take, where nobody says.
const EXEC_TIMEOUT_S: f64 = 120.0;

/// The mode of files that callers write.
const FILE_MODE: u32 = 0o644;

/// A command to run.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ExecRequest {
    /// The shell text, run as a verify command would be.
    #[schema(example = "python -m pytest -q")]
    pub command: String,
    /// Seconds that it may take; default 120.
    #[serde(default)]
    pub timeout_s: Option<f64>,
    /// Further environment variables.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// The working directory, where it is not to be the task's.
    #[serde(default)]
    pub cwd: Option<String>,
}

/// The caller's verdict.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FinishBody {
    /// The reward, in the task's range; null where the caller has none: what verify said stands, if it ran.
    #[schema(example = 0.5)]
    pub reward: Option<f64>,
    /// What it rests on, kept beside it.
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    pub detail: Option<serde_json::Map<String, serde_json::Value>>,
}

pub(super) fn read_body<T: serde::de::DeserializeOwned>(body: JsonBody) -> Result<T, ServiceError> {
    // A list would be taken for the members in their order.
    if !body.value.is_object() {
        return Err(ServiceError::invalid("", "the body is not an object"));
    }
    serde_path_to_error::deserialize(body.value).map_err(|error| {
        let path = error.path().to_string();
        ServiceError::invalid(
            if path == "." { String::new() } else { path },
            error.into_inner().to_string(),
        )
    })
}

/// Runs a command in a held sandbox.
#[utoipa::path(
    post, path = "/api/v1/rollouts/{id}/exec", tag = "held", operation_id = "exec",
    params(("id" = String, Path, description = "id of a rollout that is held")),
    request_body = ExecRequest,
    responses(
        (status = 200, description = "What came of it, whatever its exit code: 124 after its time was over, 128 + n after signal n, -1 where it could not be started, such as where the working directory is a file.",
            body = Object, example = json!({
                "command": "python -m pytest -q", "exit_code": 1, "signal": null, "timed_out": false, "stdout": "1 failed, 2 passed in 0.31s\n",
                "stderr": "", "output_bytes": 28, "duration_ms": 812,
            })),
        (status = 404, description = "There is no such rollout.", body = crate::http::ErrorBody),
        (status = 409, description = "It is not held.", body = crate::http::ErrorBody),
        (status = 422, description = "The request is wrong.", body = crate::http::ErrorBody),
        (status = 502, description = "The sandbox did not do it.", body = crate::http::ErrorBody),
    )
)]
pub async fn exec(
    State(app): State<App>,
    Path(id): Path<String>,
    body: JsonBody,
) -> Result<Json<CommandResult>, ServiceError> {
    let id = app.service.find(&id).await?;
    let request: ExecRequest = read_body(body)?;
    let seconds = request.timeout_s.unwrap_or(EXEC_TIMEOUT_S);
    if !(seconds > 0.0 && seconds <= 86_400.0) {
        return Err(ServiceError::invalid(
            "timeout_s",
            "is not between 0 and 86400 seconds",
        ));
    }
    check_command(&request)?;
    let held = app.service.held(id).await?;
    let command = HeldCommand {
        command: request.command,
        env: request.env,
        cwd: request.cwd,
        timeout: Some(Duration::from_secs_f64(seconds)),
    };
    held.exec(command).await.map(Json).map_err(failed)
}

/// What no program can be started with.
fn check_command(request: &ExecRequest) -> Result<(), ServiceError> {
    let zero = |place: String| Err(ServiceError::invalid(place, "holds a zero byte"));
    if request.command.contains('\0') {
        return zero("command".into());
    }
    if request.cwd.as_ref().is_some_and(|cwd| cwd.contains('\0')) {
        return zero("cwd".into());
    }
    for (name, value) in &request.env {
        if name.is_empty() || name.contains(['=', '\0']) {
            return Err(ServiceError::invalid(
                "env",
                format!("{name:?} cannot be the name of a variable"),
            ));
        }
        if value.contains('\0') {
            return zero(format!("env.{name}"));
        }
    }
    Ok(())
}

/// Ends a hold with the caller's verdict.
#[utoipa::path(
    post, path = "/api/v1/rollouts/{id}/finish", tag = "held", operation_id = "finish",
    params(("id" = String, Path, description = "id of a rollout that is held")),
    request_body = FinishBody,
    responses(
        (status = 202, description = "The verdict was taken; the rollout is collected and ends.", body = View),
        (status = 404, description = "There is no such rollout.", body = crate::http::ErrorBody),
        (status = 409, description = "It is not held.", body = crate::http::ErrorBody),
        (status = 422, description = "The reward is not a finite number in the task's range.", body = crate::http::ErrorBody),
    )
)]
pub async fn finish(
    State(app): State<App>,
    Path(id): Path<String>,
    body: JsonBody,
) -> Result<Response, ServiceError> {
    let id = app.service.find(&id).await?;
    let request: FinishBody = read_body(body)?;
    let held = app.service.held(id).await?;
    let finish = FinishRequest {
        reward: request.reward,
        detail: request.detail,
    };
    held.finish(finish).await.map_err(failed)?;
    Ok((StatusCode::ACCEPTED, Json(app.service.get(id).await?)).into_response())
}

/// A file: of a held sandbox as it is there, of a rollout that is over as it was collected.
#[utoipa::path(
    get, path = "/api/v1/rollouts/{id}/files/{path}", tag = "records", operation_id = "read_file",
    params(
        ("id" = String, Path, description = "id of a rollout"),
        ("path" = String, Path, description = "path below the working directory; in a held sandbox one that begins with `/` (`%2F`) is absolute"),
    ),
    responses(
        (status = 200, description = "Its content.", content_type = "application/octet-stream", body = Vec<u8>),
        (status = 404, description = "There is no such rollout or file.", body = crate::http::ErrorBody),
        (status = 409, description = "It is neither held nor over.", body = crate::http::ErrorBody),
        (status = 422, description = "The path leads elsewhere, is none of a regular file, cannot be read, or the file has over 64 MiB.", body = crate::http::ErrorBody),
        (status = 502, description = "The sandbox did not do it.", body = crate::http::ErrorBody),
    )
)]
pub async fn read(
    State(app): State<App>,
    Path((id, path)): Path<(String, String)>,
) -> Result<Response, ServiceError> {
    let id = app.service.find(&id).await?;
    check_path(&path)?;
    match app.service.held(id).await {
        Ok(held) => {
            let content = held.read_file(path.as_str()).await.map_err(failed)?;
            let headers = [
                (header::CONTENT_TYPE, "application/octet-stream"),
                (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
            ];
            Ok((headers, content).into_response())
        }
        Err(error) if error.code == Code::NotHeld => records::collected(&app, id, &path).await,
        Err(error) => Err(error),
    }
}

/// Writes a file into a held sandbox.
#[utoipa::path(
    put, path = "/api/v1/rollouts/{id}/files/{path}", tag = "held", operation_id = "write_file",
    params(
        ("id" = String, Path, description = "id of a rollout that is held"),
        ("path" = String, Path, description = "path below the working directory; one that begins with `/` (`%2F`) is absolute"),
    ),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses(
        (status = 204, description = "It is written; folders were made."),
        (status = 404, description = "There is no such rollout.", body = crate::http::ErrorBody),
        (status = 409, description = "It is not held.", body = crate::http::ErrorBody),
        (status = 413, description = "The file is too large.", body = crate::http::ErrorBody),
        (status = 422, description = "The path leads elsewhere, or no file can be written there.", body = crate::http::ErrorBody),
        (status = 502, description = "The sandbox did not do it.", body = crate::http::ErrorBody),
    )
)]
pub async fn write(
    State(app): State<App>,
    Path((id, path)): Path<(String, String)>,
    request: Request,
) -> Result<StatusCode, ServiceError> {
    let id = app.service.find(&id).await?;
    check_path(&path)?;
    let held = app.service.held(id).await?;
    let content = body::bytes(request, &app).await?;
    held.write_file(path, content, FILE_MODE).await.map_err(failed)?;
    Ok(StatusCode::NO_CONTENT)
}

fn check_path(path: &str) -> Result<(), ServiceError> {
    let leads_away = path.split('/').any(|part| part == "..");
    if path.is_empty() || leads_away || path.contains('\0') {
        return Err(ServiceError::invalid("path", "leads elsewhere"));
    }
    Ok(())
}

fn failed(error: HoldError) -> ServiceError {
    let said = crate::workspace::chain(&error);
    match error {
        HoldError::NotHeld { .. } | HoldError::Unknown(_) | HoldError::Released { .. } => {
            ServiceError::new(Code::NotHeld, said)
        }
        HoldError::Reward { .. } => ServiceError::invalid("reward", said),
        HoldError::DetailTooLarge { .. } => ServiceError::invalid("detail", said),
        HoldError::Sandbox(error) => refused(&error, said),
        HoldError::Unresponsive { .. } => ServiceError::new(Code::SandboxFailed, said),
    }
}

/// What a sandbox did not do: for want of what the caller named, which is the caller's to change, or by its own failure.
fn refused(error: &SandboxError, said: String) -> ServiceError {
    match error {
        SandboxError::NotFound { .. } => ServiceError::new(Code::UnknownFile, said),
        SandboxError::NotRegular { .. } => ServiceError::invalid("path", said),
        SandboxError::TooLarge { .. } => ServiceError::invalid("path", said).hint(Some(
            "read it in parts with `exec`, such as `head -c`, or pack it there".into(),
        )),
        SandboxError::Operation {
            errno: Some(errno), ..
        } if is_of_the_path(*errno) => ServiceError::invalid("path", said),
        _ => ServiceError::new(Code::SandboxFailed, said),
    }
}

/// Whether the system's error says that this path cannot be read or written, and another could.
fn is_of_the_path(errno: i32) -> bool {
    use nix::errno::Errno;
    matches!(
        Errno::from_raw(errno),
        Errno::EACCES
            | Errno::EPERM
            | Errno::EROFS
            | Errno::EISDIR
            | Errno::ENOTDIR
            | Errno::ENOTEMPTY
            | Errno::EEXIST
            | Errno::ELOOP
            | Errno::ENAMETOOLONG
            | Errno::EINVAL
            | Errno::ENXIO
            | Errno::ETXTBSY
            | Errno::EBUSY
            | Errno::E2BIG
    )
}
