use super::export::{BodyWriter, PIECE, streamed};
use crate::http::{App, Path};
use crate::selection;
use crate::service::{Code, Detail, ServiceError, Turn};
use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::{RawQuery, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use dressage_rollout::SoFar;
use dressage_store::{StoreError, Transcript};
use dressage_wire::call::{CallMeta, CallSummary};
use dressage_wire::export::{Shape, native};
use dressage_wire::ids::RolloutId;
use dressage_wire::trajectory::{CallRecord, CallView, Explanation, Keep, PrefixBreak, Selection, Untrained};
use serde::de::IntoDeserializer;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::io::Write as _;

/// The version of trajectories in the form `training`.
pub const TRAINING_SCHEMA_VERSION: u32 = 1;

/// The calls of a rollout, without what was said.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct Calls {
    /// In the order of recording.
    pub calls: Vec<Call>,
}

/// A call.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct Call {
    /// Its numbers, with flags that were given when all calls were known.
    #[serde(flatten)]
    pub summary: CallSummary,
    /// Whether it can be trained on.
    pub trainable: bool,
    /// Why not, where it cannot.
    pub untrained: Option<Untrained>,
    /// The call whose conversation it goes on from.
    pub continues: Option<u32>,
    /// How its prompt differs from that call's prompt and reply, where it does.
    #[serde(rename = "break")]
    pub broken: Option<PrefixBreak>,
    /// What made it differ.
    pub explanation: Option<Explanation>,
    /// Everything else that is known of it, such as `untranslated`: what of the request could not be carried over.
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
    let calls = app
        .service
        .store()
        .with_source(id, Selection::default(), |source| {
            let calls = source.trajectory.calls().zip(source.trajectory.summaries());
            let call = |((call, summary), record): ((CallView<'_>, CallSummary), &CallRecord)| Call {
                summary,
                trainable: call.trainable,
                untrained: call.untrained,
                continues: call.continues,
                broken: call.prefix_break.cloned(),
                explanation: source.explain(record),
                meta: call.meta.clone(),
            };
            calls.zip(source.records).map(call).collect::<Vec<Call>>()
        });
    let calls = known(calls.await)?.unwrap_or_default();
    Ok(Json(Calls { calls }))
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
        (status = 200, description = "The call, as a turn.", body = Turn),
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

/// A trajectory in the form `training`.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct TrainingTrajectory {
    /// [`TRAINING_SCHEMA_VERSION`].
    pub schema_version: u32,
    /// Whose.
    pub rollout: RolloutId,
    /// In the order of recording.
    pub turns: Vec<Turn>,
}

/// A trajectory in one of its forms.
#[derive(utoipa::ToSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "it describes what is written piece by piece")]
enum TrajectoryAnswer {
    /// With `format=native`, or none.
    Native(Box<dressage_wire::export::native::Document<'static>>),
    /// With `format=training`.
    Training(TrainingTrajectory),
}

/// In which form a trajectory is wanted.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Format {
    #[default]
    Native,
    Training,
}

/// Reads what stands behind the path. The second is what becomes of the sequences of a native document.
fn query_of(query: &str) -> Result<(Format, Keep, Selection), ServiceError> {
    let (mut format, mut sequences, mut wanted) = (Format::default(), Keep::default(), Selection::default());
    for (key, value) in form_urlencoded::parse(query.as_bytes()) {
        match &*key {
            "format" => {
                format = Format::deserialize((&*value).into_deserializer()).map_err(
                    |error: serde::de::value::Error| {
                        ServiceError::invalid("format", error.to_string())
                            .hint(Some("known are native, training".into()))
                    },
                )?;
            }
            "sequences" => {
                sequences = value
                    .parse()
                    .map_err(|error| ServiceError::invalid("sequences", format!("{error}")))?;
            }
            other => match selection::set(&mut wanted, other, &value) {
                Some(set) => set.map_err(|problem| ServiceError::invalid(other, problem))?,
                None => {
                    let known = format!("known are format, sequences, {}", selection::KEYS.join(", "));
                    return Err(ServiceError::invalid(other, "unknown key").hint(Some(known)));
                }
            },
        }
    }
    Ok((format, sequences, wanted))
}

/// The trajectory of a rollout: `native` (everything; docs/export.md), or `training` (every turn with its whole prompt,
/// request and reply). Sent as it is made, however large.
#[utoipa::path(
    get, path = "/api/v1/rollouts/{id}/trajectory", tag = "records", operation_id = "get_trajectory",
    params(
        ("id" = String, Path, description = "id of a rollout"),
        ("format" = Option<String>, Query, description = "`native` (default) or `training`"),
        ("train" = Option<String>, Query, description = "what is trained, with commas: `agent` (default), `subagent`, `title`, `summary`"),
        ("truncated" = Option<String>, Query, description = "turns that a token limit ended: `keep` (default) or `drop`"),
        ("subagent_reward" = Option<String>, Query, description = "`shared` (default) or `none`"),
        ("top_logprobs" = Option<String>, Query, description = "alternatives, where native: `keep` (default) or `drop`"),
        ("sequences" = Option<String>, Query, description = "sequences, where native: `keep` (default), or `drop`, which leaves the list empty"),
    ),
    responses(
        (status = 200, description = "The trajectory.", body = TrajectoryAnswer),
        (status = 404, description = "There is no such rollout.", body = crate::http::ErrorBody),
        (status = 422, description = "A key or value is wrong.", body = crate::http::ErrorBody),
    )
)]
pub async fn trajectory(
    State(app): State<App>,
    Path(id): Path<String>,
    RawQuery(query): RawQuery,
) -> Result<Response, ServiceError> {
    let (format, sequences, selection) = query_of(query.as_deref().unwrap_or(""))?;
    let id = app.service.find(&id).await?;
    let body = match format {
        Format::Native if sequences == Keep::Drop => {
            let written = app.service.store().with_source(id, selection, |source| {
                serde_json::to_vec(&native::without_sequences(source))
            });
            let written = written.await?;
            written
                .map(Body::from)
                .map_err(|error| ServiceError::from_error(Code::StoreFailed, &error))?
        }
        Format::Native => streamed(move |writer| async move {
            let store = app.service.store();
            store.export_rollout(id, Shape::Native, selection, writer).await
        }),
        Format::Training => {
            let Some(mut transcript) = known(app.service.store().transcript(id).await)? else {
                let empty = TrainingTrajectory {
                    schema_version: TRAINING_SCHEMA_VERSION,
                    rollout: id,
                    turns: Vec::new(),
                };
                return Ok(Json(empty).into_response());
            };
            transcript.select(selection);
            streamed(move |writer| async move {
                let written = tokio::task::spawn_blocking(move || write_turns(writer, &transcript, id)).await;
                let written = written.unwrap_or_else(|error| Err(std::io::Error::other(error)));
                written.map_err(|source| StoreError::Export { rollout: id, source })
            })
        }
    };
    Ok(([(header::CONTENT_TYPE, "application/json")], body).into_response())
}

fn write_turns(writer: BodyWriter, transcript: &Transcript, id: RolloutId) -> std::io::Result<()> {
    let mut writer = std::io::BufWriter::with_capacity(PIECE, writer);
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
