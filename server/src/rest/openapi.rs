//! The OpenAPI document, made from the handlers.

use crate::http::App;
use axum::Json;
use axum::extract::State;
use std::sync::LazyLock;
use utoipa::openapi::example::ExampleBuilder;
use utoipa::openapi::{ContentBuilder, RefOr, ResponseBuilder};
use utoipa::{Modify, OpenApi};

/// Everything that this server answers over HTTP.
#[derive(Debug, OpenApi)]
#[openapi(
    info(
        title = "Dressage",
        description = "Real coding agents, run as reinforcement-learning rollouts: REST with live events under /api/v1, and the surface of OpenEnv's opencode_env. Examples of what was recorded are real answers, whose long lists and texts are cut."
    ),
    paths(
        super::rollouts::submit,
        super::rollouts::list,
        super::rollouts::get,
        super::rollouts::cancel,
        super::groups::list,
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
        super::machine::sandboxes,
        super::machine::end,
        super::machine::doctor,
        super::catalogue::presets,
        super::tasks::list,
        super::tasks::get,
        super::tasks::read,
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
    components(schemas(crate::http::ErrorBody, dressage_wire::event::RolloutEvent)),
    modifiers(&Everywhere, &Examples),
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

/// Answers of a real server, one of each kind, which a test holds against the schemas. Set `UPDATE_EXAMPLES` for the test
/// `what_was_recorded_is_of_the_types_that_the_document_names`, and it records them anew.
#[derive(Debug)]
struct Examples;

/// Each with the path that answers so, and a name where it answers in several forms.
const EXAMPLES: &[(&str, Option<&str>, &str)] = &[
    (
        "/api/v1/rollouts/{id}/calls",
        None,
        include_str!("examples/calls.json"),
    ),
    (
        "/api/v1/rollouts/{id}/calls/{index}",
        None,
        include_str!("examples/turn.json"),
    ),
    (
        "/api/v1/rollouts/{id}/trajectory",
        Some("native"),
        include_str!("examples/native.json"),
    ),
    (
        "/api/v1/rollouts/{id}/trajectory",
        Some("training"),
        include_str!("examples/training.json"),
    ),
    (
        "/api/v1/rollouts/{id}/events",
        None,
        include_str!("examples/event.json"),
    ),
];

impl Modify for Examples {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        for (path, name, text) in EXAMPLES {
            let operation = document
                .paths
                .paths
                .get_mut(*path)
                .and_then(|item| item.get.as_mut());
            let answer = operation.and_then(|operation| operation.responses.responses.get_mut("200"));
            let (Some(RefOr::T(answer)), Ok(example)) = (answer, serde_json::from_str(text)) else {
                continue;
            };
            for content in answer.content.values_mut() {
                let RefOr::T(content) = content else { continue };
                let value = Some(serde_json::Value::clone(&example));
                match name {
                    None => content.example = value,
                    Some(name) => {
                        let example = ExampleBuilder::new().value(value).build();
                        content.examples.insert((*name).to_owned(), example.into());
                    }
                }
            }
        }
    }
}

/// `GET /openapi.json`.
pub async fn json(State(_): State<App>) -> Json<&'static utoipa::openapi::OpenApi> {
    static DOCUMENT: LazyLock<utoipa::openapi::OpenApi> = LazyLock::new(Document::openapi);
    Json(&DOCUMENT)
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
