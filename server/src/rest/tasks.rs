use super::held::read_body;
use crate::http::{App, JsonBody, Path};
use crate::service::{Code, ServiceError};
use axum::Json;
use axum::extract::State;
use dressage_rollout::load::{self, LoadError};
use dressage_wire::task::Task;
use serde::Deserialize;
use serde_json::{Value, json};
use std::path::PathBuf;

/// The task files that this server offers: those of the folder that `--tasks` names, as they are now.
#[utoipa::path(
    get, path = "/api/v1/tasks", tag = "catalogue", operation_id = "list_task_files",
    responses(
        (status = 200, description = "The files by name; none where no folder is named.", body = Object, example = json!({
            "tasks": [{"name": "sort.toml", "path": "/srv/tasks/sort.toml"}],
        })),
        (status = 500, description = "The folder could not be read.", body = crate::http::ErrorBody),
    )
)]
pub async fn list(State(app): State<App>) -> Result<Json<Value>, ServiceError> {
    let files = offered(&app).await?;
    let listed = files
        .iter()
        .map(|(name, path)| json!({"name": name, "path": path}));
    Ok(Json(json!({"tasks": listed.collect::<Vec<_>>()})))
}

/// One of them, read now, with its defaults as `task` of a request has it.
#[utoipa::path(
    get, path = "/api/v1/tasks/{name}", tag = "catalogue", operation_id = "get_task_file",
    params(("name" = String, Path, description = "name of a task file")),
    responses(
        (status = 200, description = "The task.", body = Object, example = json!({"task": {"instruction": "Write hello.txt.", "verify": []}})),
        (status = 404, description = "There is none of that name.", body = crate::http::ErrorBody),
        (status = 422, description = "It is no task.", body = crate::http::ErrorBody),
    )
)]
pub async fn get(State(app): State<App>, Path(name): Path<String>) -> Result<Json<Value>, ServiceError> {
    // A name is looked for among those that are offered, so that none leads out of the folder.
    let found = offered(&app).await?.into_iter().find(|(known, _)| *known == name);
    let (_, path) = found.ok_or_else(|| {
        let shown = crate::terminal::one_line(&name, 80);
        ServiceError::new(Code::UnknownTask, format!("no task file `{shown}` is offered"))
    })?;
    let read = blocking(move || load::tasks(&path)).await?;
    let mut tasks = read.map_err(|error| match &error {
        LoadError::Task { source, .. } => ServiceError::task("", source),
        _ => ServiceError::from_error(Code::InvalidRequest, &error).hint(error.hint()),
    })?;
    Ok(Json(json!({"task": tasks.pop().map(|(_, task)| task)})))
}

/// Names and paths of the files that are offered.
async fn offered(app: &App) -> Result<Vec<(String, PathBuf)>, ServiceError> {
    let Some(folder) = app.service.config().tasks.clone() else {
        return Ok(Vec::new());
    };
    let files = blocking(move || load::files(&folder)).await?;
    let files = files.map_err(|error| ServiceError::from_error(Code::StoreFailed, &error))?;
    let named = files.into_iter().filter_map(|path| {
        let name = path.file_name()?.to_str()?.to_owned();
        Some((name, path))
    });
    Ok(named.collect())
}

/// Reads files where that keeps nobody waiting.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, ServiceError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| ServiceError::from_error(Code::StoreFailed, &error))
}

/// The text of a task file.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TaskText {
    /// The text.
    #[schema(example = "instruction = \"Write hello.txt.\"")]
    pub text: String,
    /// What it is written in.
    pub format: TaskFormat,
}

/// What a task file is written in.
#[derive(Clone, Copy, Debug, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum TaskFormat {
    /// TOML.
    Toml,
    /// JSON.
    Json,
}

/// Reads a task file, and gives the task with its defaults as `task` of a request has it.
#[utoipa::path(
    post, path = "/api/v1/tasks/read", tag = "catalogue", operation_id = "read_task",
    request_body = TaskText,
    responses(
        (status = 200, description = "The task.", body = Object, example = json!({"task": {"instruction": "Write hello.txt.", "verify": []}})),
        (status = 422, description = "It is no task.", body = crate::http::ErrorBody),
    )
)]
pub async fn read(body: JsonBody) -> Result<Json<Value>, ServiceError> {
    let file: TaskText = read_body(body)?;
    let task = match file.format {
        TaskFormat::Toml => Task::from_toml(&file.text),
        TaskFormat::Json => Task::from_json(file.text.as_bytes()),
    };
    let task = task.map_err(|error| ServiceError::task("", &error))?;
    Ok(Json(json!({ "task": task })))
}
