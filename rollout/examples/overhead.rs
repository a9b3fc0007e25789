//! What the engine adds to an agent's own time, one rollout at a time and 64 at once, as lines of JSON.
//!
//! The scripted agent makes two calls and runs one command. Arguments: how many rollouts are run 64 at once (256 if left
//! out). The program fails if any rollout ends otherwise than with reward 1.

#![allow(
    missing_docs,
    dead_code,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a benchmark ends at the first surprise, and shares the tests' world"
)]

#[path = "../../sandbox/tests/it/engine.rs"]
mod engine;

#[path = "../../sandbox/tests/it/fake.rs"]
mod played;

#[path = "../tests/it/world.rs"]
mod world;

use std::time::Instant;
use world::{Done, World, WorldPlan, shell, task};

const AT_ONCE: usize = 64;
const ALONE: usize = 20;

fn main() {
    let count = std::env::args()
        .skip(1)
        .find_map(|argument| argument.parse().ok())
        .unwrap_or(256);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let world = World::planned(WorldPlan {
            script: shell("echo done > done.txt"),
            concurrency: AT_ONCE,
            ..WorldPlan::default()
        })
        .await;
        let request = || world.request(task(&["grep -q done done.txt"]));

        let mut overheads = Vec::new();
        for _ in 0..ALONE {
            let since = Instant::now();
            let done = world.run_request(request()).await;
            check(&done);
            let agent_ms = done.outcome.agent.as_ref().unwrap().duration_ms;
            overheads.push(since.elapsed().as_secs_f64() * 1e3 - agent_ms as f64);
        }
        overheads.sort_by(f64::total_cmp);
        println!(
            r#"{{"metric": "alone_beyond_agent_median_ms", "value": {:.1}, "at_most": 200}}"#,
            overheads[ALONE / 2]
        );

        let since = Instant::now();
        let mut handles = Vec::new();
        for _ in 0..count {
            handles.push(world.supervisor.submit(request()).await.unwrap());
        }
        for handle in handles {
            check(&Done::of(handle).await);
        }
        let each_ms = since.elapsed().as_secs_f64() * 1e3 / count as f64;
        println!(r#"{{"metric": "64_at_once_each_ms", "value": {each_ms:.1}, "at_most": 200}}"#);
        println!(r#"{{"metric": "64_at_once_rollouts", "value": {count}}}"#);
    });
}

fn check(done: &Done) {
    assert_eq!(done.reward(), Some(1.0), "{:?}", done.outcome);
}
