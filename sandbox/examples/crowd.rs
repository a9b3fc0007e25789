//! Many sandboxes at once at each provider: all are asked for together, run a program, and are ended. Fails where any of that does, or where
//! one is left. Lines of JSON for `scripts/bench`.
//!
//! Providers are played by the tests' own programs, on this machine, or by whatever DRESSAGE_TEST_E2B_URL and DRESSAGE_TEST_HF_URL
//! name. The argument is how many, 200 without one.

use dressage_sandbox::{Backend, by_name};
use futures_util::future::try_join_all;
use providers::{providers, spec};
use std::sync::Arc;
use std::time::Instant;
use support::{Failure, Nowhere, config, median_ms, nothing};

#[allow(dead_code, reason = "each program needs some of it")]
mod support;

#[path = "support/providers.rs"]
mod providers;

/// Medians of a boot and a program, and seconds until the last had ended.
async fn crowd(backend: &dyn Backend, many: usize) -> Result<[f64; 3], Failure> {
    let begun = Instant::now();
    let booted = try_join_all((0..many).map(|_| async {
        let begun = Instant::now();
        let sandbox = backend.create(spec(backend)).await?;
        Ok::<_, Failure>((sandbox, begun.elapsed()))
    }));
    let (sandboxes, boots): (Vec<_>, Vec<_>) = booted.await?.into_iter().unzip();
    let commands = try_join_all(sandboxes.iter().map(|sandbox| async {
        let begun = Instant::now();
        let exit = sandbox.exec(nothing(), Arc::new(Nowhere)).await?;
        match exit.code {
            0 => Ok(begun.elapsed()),
            code => Err(Failure::from(format!(
                "a program that does nothing ended with {code}"
            ))),
        }
    }));
    let commands = commands.await?;
    try_join_all(sandboxes.iter().map(|sandbox| sandbox.kill())).await?;
    Ok([
        median_ms(boots),
        median_ms(commands),
        begun.elapsed().as_secs_f64(),
    ])
}

fn main() -> Result<(), Failure> {
    let many = std::env::args()
        .nth(1)
        .map_or(Ok(200), |many| many.parse::<usize>())?;
    let folder = tempfile::tempdir()?;
    let config = config(folder.path(), providers())?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    for name in ["e2b", "huggingface"] {
        let backend = (by_name(name)?.make)(&config)?;
        let [boot, command, all] = runtime.block_on(crowd(&*backend, many))?;
        let left = std::fs::read_dir(config.data_dir.join("leases"))?.count();
        if left > 0 {
            return Err(format!("{left} of {many} sandboxes of {name} are still leased").into());
        }
        println!("{name}: {many} at once, median of a boot {boot:.0} ms, of a program {command:.0} ms");
        println!(r#"{{"metric": "{name}_crowd_{many}_s", "value": {all:.2}}}"#);
    }
    Ok(())
}
