//! The benchmark's byte copy: a reverse proxy that changes nothing.

use clap::Parser;
use dressage_testkit::bench::{floor, process};
use std::net::SocketAddr;
use std::process::ExitCode;

/// A proxy that copies bytes and nothing else.
#[derive(Debug, Parser)]
struct Options {
    /// Port of 127.0.0.1.
    #[arg(long, default_value_t = 9200)]
    port: u16,
    /// Address of the upstream.
    #[arg(long, default_value = "127.0.0.1:9100")]
    upstream: SocketAddr,
    /// End when standard input ends.
    #[arg(long)]
    end_with_input: bool,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let options = Options::parse();
    if options.end_with_input {
        process::end_with_standard_input();
    }
    let served = async {
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", options.port)).await?;
        floor::serve(listener, options.upstream).await
    };
    match served.await {
        Ok(never) => match never {},
        Err(error) => {
            eprintln!("error: cannot serve on port {}: {error}", options.port);
            ExitCode::FAILURE
        }
    }
}
