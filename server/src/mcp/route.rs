use super::is_mcp;
use crate::http::{App, body};
use crate::openenv;
use axum::body::Body;
use axum::extract::{FromRequestParts, Request, State, WebSocketUpgrade};
use axum::http::{Method, StatusCode, header};
use axum::response::{IntoResponse, Response};

/// `/mcp`: a socket, MCP over streamable HTTP, or OpenEnv's JSON-RPC; docs/mcp.md says which request is which.
#[utoipa::path(
    post, path = "/mcp", tag = "openenv", operation_id = "mcp",
    request_body = Object,
    responses((status = 200, description = "A JSON-RPC reply, also to what is wrong.", body = Object))
)]
pub async fn route(State(app): State<App>, request: Request) -> Response {
    if request.headers().contains_key(header::UPGRADE) {
        let (mut parts, _) = request.into_parts();
        return match WebSocketUpgrade::from_request_parts(&mut parts, &app).await {
            Ok(upgrade) => openenv::rpc_socket(app, upgrade),
            Err(rejection) => rejection.into_response(),
        };
    }
    if is_mcp(request.headers()) {
        let ends_session = request.method() == Method::DELETE;
        let mut response = app.mcp.handle(request).await.map(Body::new);
        if ends_session && response.status() == StatusCode::ACCEPTED {
            // Clients take 200 and 204 for the end of a session, and warn of all else.
            *response.status_mut() = StatusCode::NO_CONTENT;
        }
        return response;
    }
    if request.method() != Method::POST {
        let mut response = openenv::detail(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed");
        response
            .headers_mut()
            .insert(header::ALLOW, header::HeaderValue::from_static("POST"));
        return response;
    }
    match body::bytes(request, &app).await {
        Ok(body) => openenv::rpc(app, body).await,
        Err(error) => openenv::detail(StatusCode::PAYLOAD_TOO_LARGE, &error.message),
    }
}
