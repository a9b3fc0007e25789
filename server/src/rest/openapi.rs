//! The OpenAPI document, made from the handlers.

use crate::http::App;
use axum::Json;
use axum::extract::State;
use utoipa::OpenApi;

/// Everything that this server answers over HTTP.
#[derive(Debug, OpenApi)]
#[openapi(
    info(
        title = "Dressage",
        description = "Real coding agents, run as reinforcement-learning rollouts: REST with live events under /api/v1, and the surface of OpenEnv's opencode_env."
    ),
    paths(
        super::rollouts::submit,
        super::rollouts::list,
        super::rollouts::get,
        super::rollouts::cancel,
        super::records::calls,
        super::records::call,
        super::records::trajectory,
        super::records::logs,
        super::events::of_rollout,
        super::events::of_all,
        super::held::exec,
        super::held::read,
        super::held::write,
        super::held::finish,
        super::catalogue::endpoints,
        super::catalogue::agents,
        super::catalogue::backends,
        super::catalogue::presets,
        super::catalogue::queue,
        crate::openenv::plain::health,
        crate::openenv::plain::metadata,
        crate::openenv::plain::schema,
        crate::openenv::plain::environments,
        crate::openenv::plain::splits,
        crate::openenv::plain::tasks,
        crate::openenv::plain::num_tasks,
        crate::openenv::plain::task,
        crate::openenv::plain::task_range,
        crate::openenv::plain::state,
        crate::openenv::plain::reset,
        crate::openenv::plain::step,
        crate::mcp::route::route,
        crate::http::operating::ready,
        crate::http::operating::metrics,
    ),
    components(schemas(crate::http::ErrorBody)),
    tags(
        (name = "rollouts", description = "Asking for rollouts, and what comes of them."),
        (name = "records", description = "What was recorded of a rollout."),
        (name = "events", description = "What happens, as it happens."),
        (name = "held", description = "A sandbox that is kept after the agent, for the caller's own verifier."),
        (name = "catalogue", description = "What there is to choose from."),
        (name = "openenv", description = "The surface of OpenEnv's opencode_env."),
        (name = "operating", description = "What those who operate the server look at."),
    )
)]
pub struct Document;

/// `GET /openapi.json`.
pub async fn json(State(_): State<App>) -> Json<utoipa::openapi::OpenApi> {
    Json(Document::openapi())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_is_the_one_that_was_reviewed() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/openapi.json");
        let mut made = serde_json::to_string_pretty(&Document::openapi()).unwrap();
        made.push('\n');
        if std::env::var_os("UPDATE_DOCS").is_some() {
            std::fs::write(path, &made).unwrap();
        }
        let reviewed = std::fs::read_to_string(path).unwrap_or_default();
        assert!(
            reviewed == made,
            "server/tests/openapi.json is stale: run `UPDATE_DOCS=1 cargo test -p dressage openapi`, and look at what changed"
        );
    }
}
