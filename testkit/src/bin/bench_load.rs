//! The benchmark's load generator: makes a load and prints what it came to, as a line of JSON.

use clap::Parser;
use dressage_testkit::bench::load::{LoadOptions, run};
use std::io::Write as _;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

/// A closed loop of clients that check every turn.
#[derive(Debug, Parser)]
struct Options {
    /// Where to ask.
    #[arg(long, default_value = "127.0.0.1:9100")]
    address: SocketAddr,
    /// Bearer token.
    #[arg(long, default_value = "sk-bench")]
    api_key: String,
    /// Ask for streams.
    #[arg(long)]
    stream: bool,
    /// Ask for log-probabilities and ids, where nothing in between does.
    #[arg(long)]
    ask_for_tokens: bool,
    /// Connections at once.
    #[arg(long, default_value_t = 16)]
    connections: usize,
    /// Turns over all connections.
    #[arg(long, default_value_t = 600)]
    turns: usize,
    /// No turn is begun after this.
    #[arg(long, default_value_t = 30.0)]
    limit_s: f64,
    /// Bytes of the prompt.
    #[arg(long, default_value_t = 16_384)]
    prompt_bytes: usize,
    /// The process whose tree is watched.
    #[arg(long)]
    watch: Option<u32>,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let options = Options::parse();
    let report = run(LoadOptions {
        address: options.address,
        api_key: options.api_key,
        streamed: options.stream,
        ask_for_tokens: options.ask_for_tokens,
        connections: options.connections,
        turns: options.turns,
        limit: Duration::try_from_secs_f64(options.limit_s).unwrap_or(Duration::MAX),
        prompt_bytes: options.prompt_bytes,
        watched: options.watch,
    })
    .await;
    let line = serde_json::to_string(&report).unwrap_or_default();
    let printed = writeln!(std::io::stdout(), "{line}");
    if printed.is_ok() && report.errors == 0 && report.turns > 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
