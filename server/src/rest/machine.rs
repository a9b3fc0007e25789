use crate::commands::doctor;
use crate::commands::sandboxes::Told;
use crate::http::{App, Path};
use crate::service::{Code, ServiceError};
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use dressage_rollout::ROLLOUT_LABEL;
use dressage_sandbox::lease::{Lease, is_alive};
use dressage_wire::ids::RolloutId;
use serde_json::{Value, json};

/// The sandboxes of this data directory, by their leases: whose they are, and whether those live. And those that are kept
/// ready.
#[utoipa::path(
    get, path = "/api/v1/sandboxes", tag = "operating", operation_id = "list_sandboxes",
    responses((status = 200, description = "Sandboxes and pools.", body = Object, example = json!({
        "sandboxes": [{
            "sandbox": "01a22b64-f8e1-7000-8202-9fedbad057e6", "backend": "local",
            "installation": "01a22b64-f89e-7000-8317-fa459f9392b6", "owner": "01a22b64-f89e-7000-8317-fa459f9392b7",
            "owner_alive": true, "rollout": "01a22b64-f8cf-7000-87a9-64ed1d00658f", "created_unix_ms": 1_796_024_367_329_u64,
            "place": null, "provider_id": null, "labels": {},
        }],
        "unreadable": [],
        "pools": [{"backend": "local", "ready": 4, "hits": 10, "misses": 2, "failures": 0}],
    })))
)]
pub async fn sandboxes(State(app): State<App>) -> Result<Json<Value>, ServiceError> {
    let data = app.service.context().paths.data.clone();
    let read = tokio::task::spawn_blocking(move || {
        let (leases, unreadable) = Lease::all(&data)?;
        let told = leases
            .iter()
            .map(|lease| json!(Told::of(lease, is_alive(&data, lease.owner))));
        let unreadable = unreadable.iter().map(|error| crate::workspace::chain(error));
        Ok((told.collect::<Vec<_>>(), unreadable.collect::<Vec<_>>()))
    });
    let (sandboxes, unreadable) = joined(read.await)?;
    let pools = app.service.config().pools.counts();
    let pools = pools.iter().map(|pool| {
        json!({
            "backend": pool.backend, "ready": pool.ready, "hits": pool.hits,
            "misses": pool.misses, "failures": pool.failures,
        })
    });
    Ok(Json(json!({
        "sandboxes": sandboxes,
        "unreadable": unreadable,
        "pools": pools.collect::<Vec<_>>(),
    })))
}

/// What reading leases came to.
fn joined<T>(
    read: Result<Result<T, dressage_sandbox::lease::LeaseError>, tokio::task::JoinError>,
) -> Result<T, ServiceError> {
    let failed =
        |error: &(dyn std::error::Error + 'static)| ServiceError::from_error(Code::StoreFailed, error);
    read.map_err(|error| failed(&error))?
        .map_err(|error| failed(&error))
}

/// Ends a sandbox: one of a dead process at once; one of a rollout of this server by cancelling that.
#[utoipa::path(
    post, path = "/api/v1/sandboxes/{id}/end", tag = "operating", operation_id = "end_sandbox",
    params(("id" = String, Path, description = "id of a sandbox")),
    responses(
        (status = 200, description = "It is ended.", body = Object, example = json!({"ended": true})),
        (status = 202, description = "Its rollout was asked to stop.", body = Object, example = json!({"ended": false})),
        (status = 404, description = "There is none of that id.", body = crate::http::ErrorBody),
        (status = 422, description = "It is another process's.", body = crate::http::ErrorBody),
        (status = 502, description = "Its backend did not end it.", body = crate::http::ErrorBody),
    )
)]
pub async fn end(State(app): State<App>, Path(id): Path<String>) -> Result<Response, ServiceError> {
    let data = app.service.context().paths.data.clone();
    let wanted = id.clone();
    let read = tokio::task::spawn_blocking(move || {
        let (leases, _) = Lease::all(&data)?;
        let found = leases
            .into_iter()
            .find(|lease| lease.sandbox.to_string() == wanted);
        Ok(found.map(|lease| (is_alive(&data, lease.owner), lease)))
    });
    let (alive, lease) = joined(read.await)?.ok_or_else(|| {
        let shown = crate::terminal::one_line(&id, 80);
        ServiceError::new(Code::UnknownSandbox, format!("no sandbox has the id `{shown}`"))
    })?;
    if !alive {
        app.service.end_sandbox(&lease.backend, lease.sandbox).await?;
        return Ok(Json(json!({"ended": true})).into_response());
    }
    let rollout = lease
        .labels
        .get(ROLLOUT_LABEL)
        .and_then(|id| id.parse::<RolloutId>().ok());
    match rollout {
        Some(rollout) if app.service.cancel(rollout).await? => {
            Ok((StatusCode::ACCEPTED, Json(json!({"ended": false}))).into_response())
        }
        _ => Err(
            ServiceError::invalid("id", "is a sandbox that a running process keeps")
                .hint(Some("it ends with its rollout, or with that process".into())),
        ),
    }
}

/// What this machine can do: folders, programs, backends, agents, as `dressage doctor --json` says it.
#[utoipa::path(
    get, path = "/api/v1/doctor", tag = "operating", operation_id = "doctor",
    responses((status = 200, description = "What was found.", body = Object, example = json!({
        "version": "0.1.0", "system": "Debian GNU/Linux 12 (bookworm), x86_64",
        "checks": [{"name": "bwrap", "state": "good", "value": "/usr/bin/bwrap", "hint": null}],
        "sandboxes": [{"name": "local", "summary": "bubblewrap on this machine", "problem": null, "hint": null, "facts": [["user", "root"]]}],
        "agents": [],
    })))
)]
pub async fn doctor(State(app): State<App>) -> Result<Json<Value>, ServiceError> {
    let found = doctor::found(app.service.context()).await;
    found
        .map(Json)
        .map_err(|error| ServiceError::from_error(Code::StoreFailed, &error))
}
