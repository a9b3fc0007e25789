//! `dressage mcp`: MCP on standard input and output, for clients that start their servers themselves.

use super::run::{DEFAULT_SANDBOX, sandboxes};
use crate::error::Failure;
use crate::exit::Exit;
use crate::interrupt;
use crate::mcp::Mcp;
use crate::service::{ClientBaseUrl, Service, ServiceConfig, TaskAddresses};
use crate::warm::{self, WarmArguments};
use crate::workspace::Context;
use dressage_rollout::QueueLimits;
use rmcp::ServiceExt;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{self, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, ReadBuf};
use tokio_util::sync::CancellationToken;

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
        verify_in: context.config.defaults.verify_in,
        snapshot: context.config.defaults.snapshot,
        // No agent can reach standard input, neither from these nor by the addresses.
        shared: dressage_sandbox::registry()
            .iter()
            .map(|entry| entry.name)
            .collect(),
        addresses: TaskAddresses::Any,
        limits: QueueLimits::of(arguments.concurrency.max(1)),
        // Whoever started this program may use what its environment holds.
        client_base_url: ClientBaseUrl::Any,
        tasks: None,
        pools: warm::pools(&WarmArguments::default(), context)?,
    };
    let service = Service::start(Arc::new(context.clone()), config).await?;
    let stop = interrupt::listen_serving(service.supervisor(), GRACE, &context.terminal)
        .map_err(|error| Failure::from_error(Exit::MachineLacks, &error))?;
    let failed = |error: &(dyn std::error::Error + 'static)| Failure::from_error(Exit::MachineLacks, error);
    let over = CancellationToken::new();
    let input = Input {
        stdin: tokio::io::stdin(),
        over: over.clone(),
    };
    let running = match Mcp::new(service.clone())
        .serve((input, tokio::io::stdout()))
        .await
    {
        Ok(running) => running,
        Err(error) => {
            service.shutdown(GRACE).await;
            service.store().close().await;
            return Err(failed(&error));
        }
    };
    let waiting = running.waiting();
    tokio::pin!(waiting);
    let ended = tokio::select! {
        biased;
        // Nobody reads what calls come to, but they are answered before their server ends.
        () = over.cancelled() => tokio::join!(service.shutdown(GRACE), waiting).1,
        ended = waiting.as_mut() => {
            service.shutdown(GRACE).await;
            ended
        }
        () = stop.cancelled() => {
            service.shutdown(GRACE).await;
            return Ok(Exit::Done);
        }
    };
    ended.map(|_| Exit::Done).map_err(|error| failed(&error))
}

/// Standard input, which says when it is over: the client has gone then, and its rollouts are of use to nobody.
struct Input {
    stdin: tokio::io::Stdin,
    over: CancellationToken,
}

impl AsyncRead for Input {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut task::Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stdin).poll_read(context, buffer);
        if read.is_ready() && buffer.filled().len() == before {
            self.over.cancel();
        }
        read
    }
}
