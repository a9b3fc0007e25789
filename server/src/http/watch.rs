//! What holds for every reply: it is counted and logged, and carries headers that browsers heed.

use super::App;
use super::access::KEY_PREFIX;
use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::Response;
use std::time::Instant;

/// Stands for the route of requests that have none.
const NO_ROUTE: &str = "unmatched";

/// What a failure said, for the log.
#[derive(Clone, Debug)]
pub struct Told(pub String);

/// Leaves the pattern of the route with the reply. Stands within the router, where the pattern is known.
pub async fn remember_route(request: Request, next: Next) -> Response {
    let route = request.extensions().get::<MatchedPath>().cloned();
    let mut response = next.run(request).await;
    if let Some(route) = route {
        response.extensions_mut().insert(route);
    }
    response
}

/// Counts and logs a request by the pattern of its route: paths hold ids, and may hold keys.
pub async fn watch(State(app): State<App>, request: Request, next: Next) -> Response {
    let started = Instant::now();
    let method = method_word(request.method());
    let path = request.uri().path();
    // What a key stands before is not known yet.
    let is_api = path.starts_with("/api/") || path.starts_with(KEY_PREFIX);
    let mut response = next.run(request).await;
    let took = started.elapsed();
    let route = response.extensions_mut().remove::<MatchedPath>();
    let route = route.as_ref().map_or(NO_ROUTE, MatchedPath::as_str);
    let status = response.status();
    app.service
        .metrics()
        .answered(method, route, status.as_u16(), took);
    let duration_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
    log(&response, method, route, duration_ms);
    protect(&mut response, is_api);
    response
}

fn log(response: &Response, method: &str, route: &str, duration_ms: u64) {
    let status = response.status();
    // These two are answers that the documents promise.
    let expected = matches!(
        status,
        StatusCode::NOT_IMPLEMENTED | StatusCode::SERVICE_UNAVAILABLE
    );
    let status = status.as_u16();
    if status >= 500 && !expected {
        let error = response
            .extensions()
            .get::<Told>()
            .map_or("", |told| told.0.as_str());
        tracing::warn!(
            http.method = method,
            http.route = route,
            http.status = status,
            http.duration_ms = duration_ms,
            error = error,
            "a request failed"
        );
    } else {
        tracing::debug!(
            http.method = method,
            http.route = route,
            http.status = status,
            http.duration_ms = duration_ms,
            "a request was answered"
        );
    }
}

/// Headers that browsers heed, where a handler did not choose its own.
fn protect(response: &mut Response, is_api: bool) {
    let headers = response.headers_mut();
    let mut or_else = |name, value| {
        headers.entry(name).or_insert(HeaderValue::from_static(value));
    };
    or_else(header::X_CONTENT_TYPE_OPTIONS, "nosniff");
    or_else(header::REFERRER_POLICY, "no-referrer");
    or_else(
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; frame-ancestors 'none'",
    );
    if is_api {
        or_else(header::CACHE_CONTROL, "no-store");
    }
}

/// A method of a closed set, for labels.
fn method_word(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::DELETE => "DELETE",
        Method::HEAD => "HEAD",
        Method::OPTIONS => "OPTIONS",
        Method::PATCH => "PATCH",
        _ => "other",
    }
}
