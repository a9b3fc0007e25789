//! MCP proper: streamable HTTP on `/mcp`, and standard input and output under `dressage mcp`.
//!
//! `/mcp` is OpenEnv's too. One rule decides (`is_mcp`): a request is MCP where its `Accept` names `text/event-stream`, or
//! where it carries a session or protocol version of MCP; all else is OpenEnv's JSON-RPC. docs/mcp.md has the table.

/// The tools.
mod tools;

/// What is at `/mcp`.
pub mod route;

use crate::http::BODY_MAX;
use crate::service::Service;
use axum::http::{HeaderMap, header};
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, Implementation, ListToolsResult, PaginatedRequestParams,
    ProgressNotificationParam, ServerCapabilities, ServerConfig, Tool,
};
use rmcp::service::RequestContext;
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use rmcp::{ErrorData, RoleServer, ServerHandler};
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// The service behind `/mcp`.
pub type McpService = StreamableHttpService<Mcp, LocalSessionManager>;

/// Whether a request to `/mcp` is one of MCP, and not of OpenEnv.
#[must_use]
pub fn is_mcp(headers: &HeaderMap) -> bool {
    let accepts_stream = headers.get_all(header::ACCEPT).iter().any(|value| {
        let value = value.to_str().unwrap_or("");
        value.split(',').any(|range| {
            range
                .split(';')
                .next()
                .unwrap_or("")
                .trim()
                .eq_ignore_ascii_case("text/event-stream")
        })
    });
    accepts_stream || headers.contains_key("mcp-session-id") || headers.contains_key("mcp-protocol-version")
}

/// Makes the service behind `/mcp`. Host and Origin were checked before, as for every route.
pub fn http(service: Service, stopping: CancellationToken) -> McpService {
    let config = StreamableHttpServerConfig::default()
        .disable_allowed_hosts()
        .with_max_request_body_bytes(BODY_MAX)
        .with_cancellation_token(stopping);
    StreamableHttpService::new(
        move || Ok(Mcp::new(service.clone())),
        Arc::new(LocalSessionManager::default()),
        config,
    )
}

/// The MCP server.
#[derive(Clone)]
pub struct Mcp {
    service: Service,
}

impl Mcp {
    /// Over an engine.
    #[must_use]
    pub fn new(service: Service) -> Self {
        Self { service }
    }
}

impl ServerHandler for Mcp {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
            .with_server_info(Implementation::new("dressage", env!("CARGO_PKG_VERSION")))
            .with_instructions(
                "Runs coding agents as rollouts. `run_rollout` waits for the end; where a rollout may take longer than your \
                 tool timeout, use `start_rollout` and ask with `get_rollout` (`wait_s`) until `state` is `finished`.",
            )
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(tools::all()))
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        tools::all().into_iter().find(|tool| tool.name == name)
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let progress = Progress {
            token: context.meta.get_progress_token(),
            context: &context,
        };
        let arguments = request.arguments.unwrap_or_default();
        tools::call(&self.service, &request.name, arguments, progress)
            .await
            .map(Into::into)
    }
}

/// How long a client may take to be told something: one that has gone never takes it.
const PATIENCE: Duration = Duration::from_secs(1);

/// Tells the client how far a call is.
struct Progress<'a> {
    token: Option<rmcp::model::ProgressToken>,
    context: &'a RequestContext<RoleServer>,
}

impl Progress<'_> {
    /// False where the client does not listen: it need not be told more.
    async fn tell(&self, progress: f64, message: String) -> bool {
        let Some(token) = &self.token else { return false };
        let told = ProgressNotificationParam::new(token.clone(), progress).with_message(message);
        let telling = self.context.peer.notify_progress(told);
        tokio::time::timeout(PATIENCE, telling)
            .await
            .is_ok_and(|told| told.is_ok())
    }

    /// Returns when the client wants the call no longer.
    async fn cancelled(&self) {
        self.context.ct.cancelled().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_rule_decides_what_speaks_mcp() {
        let headers = |pairs: &[(&'static str, &'static str)]| -> HeaderMap {
            pairs
                .iter()
                .map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()))
                .collect()
        };
        for mcp in [
            &[("accept", "application/json, text/event-stream")][..],
            &[("accept", "Text/Event-Stream;q=0.9")],
            &[("accept", "*/*"), ("mcp-session-id", "x")],
            &[("mcp-protocol-version", "2025-06-18")],
        ] {
            assert!(is_mcp(&headers(mcp)), "{mcp:?}");
        }
        for openenv in [
            &[][..],
            &[("accept", "*/*")],
            &[("accept", "application/json")],
            &[("accept", "text/html")],
        ] {
            assert!(!is_mcp(&headers(openenv)), "{openenv:?}");
        }
    }
}
