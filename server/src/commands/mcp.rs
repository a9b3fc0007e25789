//! `dressage mcp`: MCP on standard input and output, for clients that start their servers themselves.

use super::run::{DEFAULT_SANDBOX, sandboxes};
use crate::error::Failure;
use crate::exit::Exit;
use crate::interrupt;
use crate::mcp::Mcp;
use crate::service::{ClientBaseUrl, Service, ServiceConfig};
use crate::workspace::Context;
use dressage_rollout::QueueLimits;
use rmcp::ServiceExt;
use std::sync::Arc;
use std::time::Duration;

/// How long rollouts may take to end when the client has gone.
const GRACE: Duration = Duration::ZERO;

/// What it takes.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// The sandbox backend of rollouts that name none.
    #[arg(long, value_name = "NAME", help = sandboxes())]
    pub sandbox: Option<String>,
    /// Rollouts at once.
    #[arg(long, value_name = "COUNT", default_value_t = 4)]
    pub concurrency: usize,
}

/// Speaks until the client goes.
///
/// # Errors
/// Where the engine cannot be started.
pub async fn run(arguments: &Arguments, context: &Context) -> Result<Exit, Failure> {
    let sandbox = arguments
        .sandbox
        .as_deref()
        .or(context.config.defaults.sandbox.as_deref());
    let config = ServiceConfig {
        backend: sandbox.unwrap_or(DEFAULT_SANDBOX).to_owned(),
        // No agent can reach standard input.
        shared: dressage_sandbox::registry()
            .iter()
            .map(|entry| entry.name)
            .collect(),
        limits: QueueLimits::of(arguments.concurrency.max(1)),
        // Whoever started this program may use what its environment holds.
        client_base_url: ClientBaseUrl::Any,
    };
    let service = Service::start(Arc::new(context.clone()), config).await?;
    let stop = interrupt::listen_serving(service.supervisor(), GRACE, &context.terminal)
        .map_err(|error| Failure::from_error(Exit::MachineLacks, &error))?;
    let failed = |error: &(dyn std::error::Error + 'static)| Failure::from_error(Exit::MachineLacks, error);
    let running = Mcp::new(service.clone()).serve(rmcp::transport::stdio()).await;
    let ended = match running {
        Ok(running) => tokio::select! {
            ended = running.waiting() => ended.map(drop).map_err(|error| failed(&error)),
            () = stop.cancelled() => Ok(()),
        },
        Err(error) => Err(failed(&error)),
    };
    service.shutdown(GRACE).await;
    ended.map(|()| Exit::Done)
}
