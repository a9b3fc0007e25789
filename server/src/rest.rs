//! REST under `/api/v1`: a file a resource.

/// Asking for rollouts, and what comes of them.
pub mod rollouts;

/// Rollouts that were asked for together.
pub mod groups;

/// What was recorded of a rollout.
pub mod records;

/// Rows for trainers.
pub mod export;

/// What happens, as it happens.
pub mod events;

/// A sandbox that is held for the caller's verifier.
pub mod held;

/// What there is to choose from.
pub mod catalogue;

/// Task files: those that are offered, and any that is sent.
pub mod tasks;

/// One endpoint: pauses, the version of its weights, what it returns.
pub mod endpoints;

/// The sandboxes that are there, and what this machine can do.
pub mod machine;

/// The OpenAPI document.
pub mod openapi;

/// The same, as a page.
pub mod reference;

use crate::http::App;
use axum::Router;
use axum::routing::{get, post};

/// The routes. A test holds them against the OpenAPI document.
pub fn router() -> Router<App> {
    Router::new()
        .route("/rollouts", post(rollouts::submit).get(rollouts::list))
        .route("/rollouts/{id}", get(rollouts::get))
        .route("/rollouts/{id}/cancel", post(rollouts::cancel))
        .route("/rollouts/{id}/calls", get(records::calls))
        .route("/rollouts/{id}/calls/{index}", get(records::call))
        .route("/rollouts/{id}/trajectory", get(records::trajectory))
        .route("/rollouts/{id}/logs", get(records::logs))
        .route("/rollouts/{id}/files/{*path}", get(held::read).put(held::write))
        .route("/rollouts/{id}/events", get(events::of_rollout))
        .route("/rollouts/{id}/exec", post(held::exec))
        .route("/rollouts/{id}/finish", post(held::finish))
        .route("/groups", get(groups::list))
        .route("/export", get(export::export))
        .route("/events", get(events::of_all))
        .route("/endpoints", get(catalogue::endpoints))
        .route("/endpoints/{name}", get(endpoints::get))
        .route("/endpoints/{name}/pause", post(endpoints::pause))
        .route("/endpoints/{name}/resume", post(endpoints::resume))
        .route("/endpoints/{name}/probe", post(endpoints::probe))
        .route("/agents", get(catalogue::agents))
        .route("/backends", get(catalogue::backends))
        .route("/sandboxes", get(machine::sandboxes))
        .route("/sandboxes/{id}/end", post(machine::end))
        .route("/doctor", get(machine::doctor))
        .route("/presets", get(catalogue::presets))
        .route("/tasks", get(tasks::list))
        .route("/tasks/{name}", get(tasks::get))
        .route("/tasks/read", post(tasks::read))
        .route("/queue", get(catalogue::queue))
        .route("/version", get(catalogue::version))
}
