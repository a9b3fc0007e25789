//! How long a sandbox of each backend takes to boot, to run a command, and to be gone: the median of 100, one at a time.
//!
//! Needs DRESSAGE_TAP_BINARY, the static `dressage-tap`. The lines of JSON are for `make bench`.

use dressage_sandbox::{Backend, PoolConfig, Pools, Providers, SandboxSpec, by_name};
use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::{Duration, Instant};
use support::{Failure, Nowhere, config, median_ms, nothing};

#[allow(dead_code, reason = "each program needs some of it")]
mod support;

const ROUNDS: usize = 100;

/// As the tests have it.
#[path = "../tests/it/spec.rs"]
mod spec;

async fn measure(backend: &dyn Backend) -> Result<[f64; 3], Failure> {
    let (mut boot, mut run, mut end) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let begun = Instant::now();
        let spec = SandboxSpec {
            relay_port: Some(7000),
            ..spec::spec()
        };
        let sandbox = backend.create(spec).await?;
        boot.push(begun.elapsed());
        let begun = Instant::now();
        sandbox.exec(nothing(), Arc::new(Nowhere)).await?;
        run.push(begun.elapsed());
        let begun = Instant::now();
        sandbox.kill().await?;
        end.push(begun.elapsed());
    }
    Ok([boot, run, end].map(median_ms))
}

/// As [`measure`] does it for boots, of sandboxes that are ready.
async fn measure_ready(backend: &Arc<dyn Backend>) -> Result<f64, Failure> {
    let config = PoolConfig {
        size: NonZeroUsize::MIN,
        max_age: Duration::from_secs(600),
    };
    let pools = Pools::new(BTreeMap::from([(backend.name().to_owned(), config)]));
    let mut boot = Vec::new();
    for round in 0..=ROUNDS {
        let spec = SandboxSpec {
            relay_port: Some(7000),
            ..spec::spec()
        };
        let begun = Instant::now();
        let booted = pools.create(backend, spec).await?;
        // The first finds nothing.
        if round > 0 {
            boot.push(begun.elapsed());
        }
        booted.sandbox.kill().await?;
        while pools.counts().iter().all(|pool| pool.ready == 0) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    pools.close().await;
    Ok(median_ms(boot))
}

fn main() -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    let config = config(folder.path(), Providers::default())?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    println!("median of {ROUNDS}, ms    boot  command      end");
    for name in ["local", "process"] {
        let backend = (by_name(name)?.make)(&config)?;
        let [boot, run, end] = runtime.block_on(measure(&*backend))?;
        println!("{name:<16} {boot:>8.1} {run:>8.1} {end:>8.1}");
        let goal = if name == "local" { r#", "at_most": 50"# } else { "" };
        println!(r#"{{"metric": "{name}_boot_median_ms", "value": {boot:.2}{goal}}}"#);
        let ready = runtime.block_on(measure_ready(&backend))?;
        println!("{:<16} {ready:>8.1} of one that is ready", "");
        println!(r#"{{"metric": "{name}_boot_ready_median_ms", "value": {ready:.2}}}"#);
    }
    Ok(())
}
