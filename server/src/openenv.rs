//! What OpenEnv clients speak: the surface of OpenEnv's `opencode_env`, for clients of every version at once.
//!
//! Old clients do everything over one socket `/ws`; new ones make a session with `POST /mcp`, attach a socket to it, and
//! call tools with further posts. Both act on one [`environment::Environment`]. Forms and texts are those that a server of
//! `openenv` 0.10.0 sends.

/// One environment: an episode, and the tool.
mod environment;

/// The tool `run_rollout`.
mod tool;

/// Its result.
mod result;

/// Whether clients of sockets are still there.
mod pulse;

/// Sessions and their capacity.
mod sessions;

/// Plain HTTP.
pub mod plain;

/// JSON-RPC, on `POST /mcp` and on sockets.
mod rpc;

/// Sockets.
mod socket;

/// What is wrong with a request, in the words of OpenEnv's server.
mod problems;

pub use pulse::PING;
pub use rpc::post as rpc;
pub use sessions::Sessions;
pub use socket::rpc as rpc_socket;

use crate::http::App;
use axum::Router;
use axum::response::Response;
use axum::routing::{any, get, post};

/// The name of the environment.
pub const NAME: &str = "opencode_env";

/// How much of the surface there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EnvMode {
    /// All of it.
    Simulation,
    /// Without `/reset`, `/step` and `/state`.
    Production,
}

/// The routes.
pub fn router(mode: EnvMode) -> Router<App> {
    let router = Router::new()
        .route(
            "/health",
            get(plain::health)
                .head(plain::wrong_method)
                .fallback(plain::wrong_method),
        )
        .route("/metadata", get(plain::metadata))
        .route("/schema", get(plain::schema))
        .route("/list_environments", get(plain::environments))
        .route("/{name}/splits", get(plain::splits))
        .route("/{name}/tasks", post(plain::tasks))
        .route("/{name}/num_tasks", post(plain::num_tasks))
        .route("/{name}/task", post(plain::task))
        .route("/{name}/task_range", post(plain::task_range))
        .route("/ws", get(socket::environment))
        .route("/mcp", any(crate::mcp::route::route));
    match mode {
        EnvMode::Simulation => router
            .route("/state", get(plain::state))
            .route("/reset", post(plain::reset))
            .route("/step", post(plain::step)),
        EnvMode::Production => router,
    }
}

/// An answer that says no more than its status, as FastAPI words it.
pub fn detail(status: axum::http::StatusCode, detail: &str) -> Response {
    use axum::response::IntoResponse;
    (status, axum::Json(serde_json::json!({ "detail": detail }))).into_response()
}
