use crate::http::{App, Path};
use crate::service::{Code, Detail, ServiceError, Turn};
use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::{Query, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use dressage_rollout::SoFar;
use dressage_store::Transcript;
use dressage_wire::call::{CallMeta, CallSummary};
use dressage_wire::ids::RolloutId;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::io::Write as _;
use tokio_util::io::{ReaderStream, SyncIoBridge};

/// The version of trajectories in the form `training`.
pub const TRAINING_SCHEMA_VERSION: u32 = 1;

/// Bytes between what writes a trajectory and what sends it.
const PIPE: usize = 64 << 10;

/// The calls of a rollout, without what was said.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct Calls {
    /// In the order of recording.
    #[schema(value_type = Vec<Object>)]
    pub calls: Vec<Call>,
}

/// A call.
#[derive(Debug, Serialize)]
pub struct Call {
    /// Its numbers, with flags that were given when all calls were known.
    #[serde(flatten)]
    pub summary: CallSummary,
    /// Whether it can be trained on.
    pub trainable: bool,
    /// The call whose conversation it goes on from.
    pub continues: Option<u32>,
    /// Everything else that is known of it.
    pub meta: CallMeta,
}

/// The calls of a rollout: numbers, flags, sampling, without what was said.
#[utoipa::path(
    get, path = "/api/v1/rollouts/{id}/calls", tag = "records", operation_id = "list_calls",
    params(("id" = String, Path, description = "id of a rollout")),
    responses(
        (status = 200, description = "The calls, also of a rollout that runs.", body = Calls),
        (status = 404, description = "There is no such rollout.", body = crate::http::ErrorBody),
    )
)]
pub async fn calls(State(app): State<App>, Path(id): Path<String>) -> Result<Json<Calls>, ServiceError> {
    let id = app.service.find(&id).await?;
    let Some(trajectory) = known(app.service.store().trajectory(id).await)? else {
        return Ok(Json(Calls { calls: Vec::new() }));
    };
    let calls = trajectory
        .calls()
        .zip(trajectory.summaries())
        .map(|(call, summary)| Call {
            summary,
            trainable: call.trainable,
            continues: call.continues,
            meta: call.meta.clone(),
        });
    Ok(Json(Calls {
        calls: calls.collect(),
    }))
}

/// What waits has no calls, and is in no table of those that have.
fn known<T>(read: Result<T, dressage_store::StoreError>) -> Result<Option<T>, ServiceError> {
    match read {
        Ok(value) => Ok(Some(value)),
        Err(dressage_store::StoreError::NotFound { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// A call whole: request, reply, ids, log-probabilities, loss mask.
#[utoipa::path(
    get, path = "/api/v1/rollouts/{id}/calls/{index}", tag = "records", operation_id = "get_call",
    params(("id" = String, Path, description = "id of a rollout"), ("index" = u32, Path, description = "index of a call")),
    responses(
        (status = 200, description = "The call, as a turn.", body = Object),
        (status = 404, description = "There is no such rollout or call.", body = crate::http::ErrorBody),
    )
)]
pub async fn call(
    State(app): State<App>,
    Path((id, index)): Path<(String, String)>,
) -> Result<Json<Turn>, ServiceError> {
    let id = app.service.find(&id).await?;
    let unknown = || {
        ServiceError::new(
            Code::UnknownCall,
            format!(
                "rollout {id} has no call `{}`",
                crate::terminal::one_line(&index, 20)
            ),
        )
    };
    let number: u32 = index.parse().map_err(|_| unknown())?;
    let transcript = known(app.service.store().transcript(id).await)?.ok_or_else(unknown)?;
    Turn::one(&transcript, id, number).map(Json).ok_or_else(unknown)
}

/// In which form a trajectory is wanted.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Format {
    #[default]
    Native,
    Training,
}

/// What stands behind the path.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrajectoryQuery {
    #[serde(default)]
    format: Format,
}

/// The trajectory of a rollout: `native` (calls as deltas, contents once; `docs/design/token-deltas.md`), or `training`
/// (every turn with its whole prompt, request and reply). Sent as it is made, however large.
#[utoipa::path(
    get, path = "/api/v1/rollouts/{id}/trajectory", tag = "records", operation_id = "get_trajectory",
    params(
        ("id" = String, Path, description = "id of a rollout"),
        ("format" = Option<String>, Query, description = "`native` (default) or `training`"),
    ),
    responses(
        (status = 200, description = "The trajectory.", body = Object),
        (status = 404, description = "There is no such rollout.", body = crate::http::ErrorBody),
        (status = 422, description = "The format is unknown.", body = crate::http::ErrorBody),
    )
)]
pub async fn trajectory(
    State(app): State<App>,
    Path(id): Path<String>,
    query: Result<Query<TrajectoryQuery>, axum::extract::rejection::QueryRejection>,
) -> Result<Response, ServiceError> {
    let Query(query) = query.map_err(|error| {
        ServiceError::invalid("format", error.body_text()).hint(Some("known are native, training".into()))
    })?;
    let id = app.service.find(&id).await?;
    let (writer, reader) = tokio::io::duplex(PIPE);
    let writer = SyncIoBridge::new(writer);
    match query.format {
        Format::Native => {
            let store = app.service.clone();
            tokio::spawn(async move {
                if let Err(error) = store.store().export_trajectory(id, writer).await {
                    tracing::warn!(rollout.id = %id, error = %crate::workspace::chain(&error), "a trajectory was not sent whole");
                }
            });
        }
        Format::Training => {
            let Some(transcript) = known(app.service.store().transcript(id).await)? else {
                return Ok(Json(
                    json!({"schema_version": TRAINING_SCHEMA_VERSION, "rollout": id, "turns": []}),
                )
                .into_response());
            };
            tokio::task::spawn_blocking(move || {
                if let Err(error) = write_turns(writer, &transcript, id) {
                    tracing::debug!(rollout.id = %id, %error, "a trajectory was not sent whole");
                }
            });
        }
    }
    let body = Body::from_stream(ReaderStream::with_capacity(reader, PIPE));
    Ok(([(header::CONTENT_TYPE, "application/json")], body).into_response())
}

fn write_turns(
    writer: SyncIoBridge<tokio::io::DuplexStream>,
    transcript: &Transcript,
    id: RolloutId,
) -> std::io::Result<()> {
    let mut writer = std::io::BufWriter::with_capacity(PIPE, writer);
    write!(
        writer,
        r#"{{"schema_version":{TRAINING_SCHEMA_VERSION},"rollout":"{id}","turns":["#
    )?;
    for (position, turn) in Turn::all(transcript, id, Detail::Full).enumerate() {
        if position > 0 {
            writer.write_all(b",")?;
        }
        serde_json::to_writer(&mut writer, &turn)?;
    }
    writer.write_all(b"]}")?;
    writer.flush()
}

/// What programs of a rollout wrote: the ends of their output. There once it is over; of one that is held, up to its hold.
#[utoipa::path(
    get, path = "/api/v1/rollouts/{id}/logs", tag = "records", operation_id = "get_logs",
    params(("id" = String, Path, description = "id of a rollout")),
    responses(
        (status = 200, description = "The ends of what the agent and the commands wrote; null where there is none yet.",
            body = Object, example = json!({
                "agent": "…", "setup": [], "warnings": [],
                "verify": [{"command": "test -f hello.txt", "exit_code": 0, "signal": null, "timed_out": false, "stdout": "", "stderr": "", "output_bytes": 0, "duration_ms": 3}],
            })),
        (status = 404, description = "There is no such rollout.", body = crate::http::ErrorBody),
    )
)]
pub async fn logs(
    State(app): State<App>,
    Path(id): Path<String>,
) -> Result<Json<serde_json::Value>, ServiceError> {
    let id = app.service.find(&id).await?;
    let outcome = app.service.get(id).await?.outcome;
    let said = match outcome {
        Some(outcome) => Some(SoFar {
            setup: outcome.setup,
            agent: outcome.agent,
            verify: outcome.reward.map(|reward| reward.commands),
            warnings: outcome.warnings,
        }),
        None => app.service.held(id).await.ok().map(|held| held.so_far().clone()),
    };
    let said = said.as_ref();
    Ok(Json(json!({
        "agent": said.and_then(|said| said.agent.as_ref()).map(|agent| &agent.log_tail),
        "setup": said.map(|said| &said.setup),
        "verify": said.and_then(|said| said.verify.as_ref()),
        "warnings": said.map(|said| &said.warnings),
    })))
}

/// A file as it was collected.
pub async fn collected(app: &App, id: RolloutId, path: &str) -> Result<Response, ServiceError> {
    let outcome = app.service.get(id).await?.outcome;
    let mut outcome = outcome.ok_or_else(|| {
        ServiceError::new(
            Code::NotHeld,
            format!("rollout {id} is not over, and its sandbox is not held"),
        )
    })?;
    let content = outcome.files.remove(path).ok_or_else(|| {
        let path = crate::terminal::one_line(path, 200);
        let known = outcome.files_extra.iter().any(|extra| extra == &path);
        ServiceError::new(Code::UnknownFile, format!("rollout {id} has no file `{path}`"))
            .hint(known.then(|| "it was there, but not collected: too large, too many, or no text".into()))
    })?;
    // An agent wrote it: nothing that a browser would run.
    let headers = [
        (header::CONTENT_TYPE, "text/plain; charset=utf-8"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::CONTENT_DISPOSITION, "attachment"),
    ];
    Ok((headers, Bytes::from(content)).into_response())
}
