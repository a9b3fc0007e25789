//! How long a `local` sandbox takes to boot, to separate and to go: medians over 100, as lines of JSON.

#![allow(
    missing_docs,
    dead_code,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a benchmark ends at the first surprise, and shares the tests' world"
)]

#[path = "../tests/it/world.rs"]
mod world;

use std::time::{Duration, Instant};

const SANDBOXES: usize = 100;

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let world = world::World::new();
        let backend = world.backend("local");
        let (mut boots, mut separations, mut kills) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..SANDBOXES {
            let since = Instant::now();
            let mut spec = world::spec();
            spec.relay_port = Some(7000);
            let sandbox = backend.create(spec).await.unwrap();
            boots.push(since.elapsed());
            let since = Instant::now();
            sandbox
                .separate(&["/home/user/logs/verifier".into()])
                .await
                .unwrap();
            separations.push(since.elapsed());
            let since = Instant::now();
            sandbox.kill().await.unwrap();
            kills.push(since.elapsed());
        }
        println!(
            r#"{{"metric": "boot_median_ms", "value": {:.2}, "at_most": 50}}"#,
            median_ms(boots)
        );
        println!(
            r#"{{"metric": "separate_median_ms", "value": {:.2}}}"#,
            median_ms(separations)
        );
        println!(
            r#"{{"metric": "kill_median_ms", "value": {:.2}}}"#,
            median_ms(kills)
        );
    });
}

fn median_ms(mut times: Vec<Duration>) -> f64 {
    times.sort();
    times[times.len() / 2].as_secs_f64() * 1e3
}
