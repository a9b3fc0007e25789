//! The benchmark's upstream: renders a reply once for each shape of request, then only copies it out.

use clap::Parser;
use dressage_testkit::bench::{process, upstream};
use std::process::ExitCode;

/// A model endpoint that only copies bytes.
#[derive(Debug, Parser)]
struct Options {
    /// Port of 127.0.0.1.
    #[arg(long, default_value_t = 9100)]
    port: u16,
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
        upstream::serve(listener).await
    };
    match served.await {
        Ok(never) => match never {},
        Err(error) => {
            eprintln!("error: cannot serve on port {}: {error}", options.port);
            ExitCode::FAILURE
        }
    }
}
