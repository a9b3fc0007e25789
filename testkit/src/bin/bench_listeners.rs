//! Many listeners of a server's feed of events. Prints a line of JSON once all of them listen, `{"next": 0}`; reads the number up
//! to which each is to listen, on a line; and prints what they heard.

use clap::Parser;
use dressage_testkit::bench::listeners::{Heard, ListenError, Listener};
use std::io::BufRead as _;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

/// Listeners, counted.
#[derive(Debug, Parser)]
struct Options {
    /// The server.
    #[arg(long)]
    address: SocketAddr,
    /// How many listen.
    #[arg(long, default_value_t = 100)]
    count: usize,
    /// Seconds that they may take to hear the last event, once it is known.
    #[arg(long, default_value_t = 120)]
    limit_s: u64,
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<(), Box<dyn std::error::Error>> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(listen(options))
}

async fn listen(options: &Options) -> Result<(), Box<dyn std::error::Error>> {
    let mut listeners = Vec::new();
    for _ in 0..options.count {
        listeners.push(Listener::open(options.address).await?);
    }
    let next = listeners.iter().map(Listener::next).max().unwrap_or_default();
    println!("{{\"next\": {next}}}");
    let (told, end) = tokio::sync::watch::channel(None::<u64>);
    let tasks: Vec<_> = listeners
        .into_iter()
        .map(|listener| tokio::spawn(hear(listener, end.clone())))
        .collect();
    let line = tokio::task::spawn_blocking(|| std::io::stdin().lock().lines().next());
    let line = line.await?.ok_or("nobody said up to which number")??;
    told.send_replace(Some(line.trim().parse()?));
    let mut all: Vec<Heard> = Vec::new();
    for task in tasks {
        all.push(tokio::time::timeout(Duration::from_secs(options.limit_s), task).await???);
    }
    let mut delays: Vec<u32> = all.iter().flat_map(|heard| &heard.delays_ms).copied().collect();
    delays.sort_unstable();
    let at = |part: f64| {
        delays
            .get((delays.len() as f64 * part) as usize)
            .or(delays.last())
    };
    println!(
        "{}",
        serde_json::json!({
            "listeners": all.len(),
            "events_min": all.iter().map(|heard| heard.events).min(),
            "events_max": all.iter().map(|heard| heard.events).max(),
            "missing": all.iter().map(|heard| heard.missing).sum::<u64>(),
            "doubled": all.iter().map(|heard| heard.doubled).sum::<u64>(),
            "p50_ms": at(0.5),
            "p99_ms": at(0.99),
            "max_ms": delays.last(),
        })
    );
    Ok(())
}

/// Listens until a number that becomes known meanwhile.
async fn hear(
    mut listener: Listener,
    mut end: tokio::sync::watch::Receiver<Option<u64>>,
) -> Result<Heard, ListenError> {
    loop {
        let known = *end.borrow_and_update();
        match known {
            Some(end) => return listener.until(end).await,
            None => tokio::select! {
                biased;
                _ = end.changed() => {}
                heard = listener.one() => heard?,
            },
        }
    }
}
