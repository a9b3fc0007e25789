//! The HTTP server: one listener, one router, and what holds for every route of it.

/// Who may ask.
pub mod access;

/// The token of a server whose sandboxes can reach it.
mod token;

/// Failures as replies.
mod reply;

/// Bodies.
pub mod body;

/// How slowly bodies may arrive.
mod pace;

/// Parts of paths.
mod path;

/// Connections.
mod listen;

/// What holds for every reply.
pub mod watch;

/// Readiness and metrics.
pub mod operating;

pub use access::{Access, AccessConfig};
pub use body::JsonBody;
pub use listen::{LAST_REPLIES, Listener};
pub use path::Path;
pub use reply::ErrorBody;
pub use token::ControlToken;

use crate::mcp::McpService;
use crate::service::{Code, Service, ServiceError};
use crate::{openenv, rest, web};
use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::middleware;
use axum::response::IntoResponse;
use axum::routing::get;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Bytes that a body may have: a task with its files.
pub const BODY_MAX: usize = 64 << 20;

/// What handlers work with.
#[derive(Clone)]
pub struct App {
    /// The engine with everything around it.
    pub service: Service,
    /// Who may ask.
    pub access: Arc<Access>,
    /// What OpenEnv clients act on.
    pub openenv: OpenEnv,
    /// What MCP clients act on.
    pub mcp: McpService,
    /// Cancelled when the server stops: streams end, sockets close.
    pub stopping: CancellationToken,
    /// The sockets, which are no part of the connections that they came over.
    pub sockets: TaskTracker,
}

/// What OpenEnv clients act on.
#[derive(Clone, Debug)]
pub struct OpenEnv {
    /// Their sessions.
    pub sessions: Arc<openenv::Sessions>,
    /// How much of the surface there is.
    pub mode: openenv::EnvMode,
    /// How often clients of sockets are asked whether they are there.
    pub ping: Duration,
    /// Whether a rollout whose caller has gone is cancelled.
    pub cancel_abandoned: bool,
}

/// Every route, with what holds for all of them. The guard stands before the routes and not around each: a key that it
/// takes out of a path must be gone when the route is looked up.
pub fn router(app: App) -> Router {
    let routes = Router::new()
        .nest("/api/v1", rest::router())
        .merge(openenv::router(app.openenv.mode))
        .merge(web::router(app.service.context()))
        .route("/openapi.json", get(rest::openapi::json))
        .route("/docs", get(rest::reference::page))
        .route("/docs/style.css", get(rest::reference::style))
        .route("/ready", get(operating::ready))
        .route("/metrics", get(operating::metrics))
        .fallback(unknown_route)
        .method_not_allowed_fallback(wrong_method)
        .layer(DefaultBodyLimit::max(BODY_MAX))
        .layer(middleware::from_fn(pace::pace))
        .layer(middleware::from_fn(watch::remember_route))
        .with_state(app.clone());
    Router::new()
        .fallback_service(routes)
        .layer(middleware::from_fn_with_state(app.clone(), access::guard))
        .layer(middleware::from_fn_with_state(app, watch::watch))
}

async fn unknown_route(uri: axum::http::Uri) -> axum::response::Response {
    if !uri.path().starts_with("/api/") {
        return openenv::detail(axum::http::StatusCode::NOT_FOUND, "Not Found");
    }
    ServiceError::new(
        Code::UnknownRoute,
        format!(
            "there is nothing at `{}`",
            crate::terminal::one_line(uri.path(), 200)
        ),
    )
    .into_response()
}

async fn wrong_method(method: axum::http::Method, uri: axum::http::Uri) -> axum::response::Response {
    if !uri.path().starts_with("/api/") {
        return openenv::detail(axum::http::StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed");
    }
    let path = crate::terminal::one_line(uri.path(), 200);
    ServiceError::new(Code::MethodNotAllowed, format!("`{path}` does not take {method}")).into_response()
}
