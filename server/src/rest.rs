//! REST under `/api/v1`: a file a resource.

use crate::http::App;
use axum::Router;

/// The routes.
pub fn router() -> Router<App> {
    Router::new()
}
