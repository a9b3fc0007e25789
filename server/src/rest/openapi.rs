//! The OpenAPI document, made from the handlers.

use crate::http::App;
use axum::Json;
use axum::extract::State;
use utoipa::openapi::{ContentBuilder, RefOr, ResponseBuilder};
use utoipa::{Modify, OpenApi};

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
        super::export::export,
        super::events::of_rollout,
        super::events::of_all,
        super::held::exec,
        super::held::read,
        super::held::write,
        super::held::finish,
        super::catalogue::endpoints,
        super::endpoints::get,
        super::endpoints::pause,
        super::endpoints::resume,
        super::endpoints::probe,
        super::catalogue::agents,
        super::catalogue::backends,
        super::catalogue::presets,
        super::catalogue::queue,
        super::catalogue::version,
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
    modifiers(&Everywhere),
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

/// What every route under `/api` may answer, so that no handler has to say it.
#[derive(Debug)]
struct Everywhere;

/// Where an answer is possible.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Where {
    Any,
    PathWithParameters,
    Body,
    JsonBody,
}

const EVERYWHERE: &[(Where, &str, &str)] = &[
    (Where::Any, "401", "An API key is missing or wrong."),
    (Where::Any, "403", "The host or the origin is a foreign one."),
    (Where::PathWithParameters, "422", "A part of the path is no text."),
    (Where::Body, "408", "The body arrived too slowly."),
    (Where::JsonBody, "400", "The body is not JSON."),
    (Where::JsonBody, "413", "The body is too large."),
    (Where::JsonBody, "415", "The body is not announced as JSON."),
    (Where::JsonBody, "422", "The body is wrong."),
];

impl Modify for Everywhere {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let of_api = document
            .paths
            .paths
            .iter_mut()
            .filter(|(path, _)| path.starts_with("/api/"));
        for (path, item) in of_api {
            let operations = [&mut item.get, &mut item.post, &mut item.put];
            for operation in operations.into_iter().flatten() {
                let has_json = matches!(
                    &operation.request_body,
                    Some(RefOr::T(body)) if body.content.contains_key("application/json")
                );
                let may_be = |place| match place {
                    Where::Any => true,
                    Where::PathWithParameters => path.contains('{'),
                    Where::Body => operation.request_body.is_some(),
                    Where::JsonBody => has_json,
                };
                for (_, status, text) in EVERYWHERE.iter().filter(|(place, ..)| may_be(*place)) {
                    let error = utoipa::openapi::Ref::from_schema_name("ErrorBody");
                    let content = ContentBuilder::new().schema(Some(error)).build();
                    let response = ResponseBuilder::new()
                        .description(*text)
                        .content("application/json", content);
                    let answers = &mut operation.responses.responses;
                    answers
                        .entry((*status).to_owned())
                        .or_insert_with(|| response.build().into());
                }
            }
        }
    }
}

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
