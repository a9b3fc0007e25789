//! How long a sandbox of each backend takes to boot, to run a command, and to be gone: the median of 100, one at a time.
//!
//! Needs DRESSAGE_TAP_BINARY, the static `dressage-tap`. The lines of JSON are for `make bench`.

use dressage_sandbox::lease::Owner;
use dressage_sandbox::{
    Backend, BackendConfig, Command, OutputSink, PoolConfig, Pools, SandboxSpec, registry,
};
use dressage_wire::event::OutputStream;
use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

const ROUNDS: usize = 100;

struct Nowhere;

impl OutputSink for Nowhere {
    fn write(&self, _: OutputStream, _: &[u8]) {}
}

/// As the tests have it.
#[path = "../tests/it/spec.rs"]
mod spec;

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

async fn measure(backend: &dyn Backend) -> Result<[Duration; 3], Box<dyn std::error::Error>> {
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
        let command = Command {
            argv: vec!["/usr/bin/true".into()],
            ..Command::default()
        };
        sandbox.exec(command, Arc::new(Nowhere)).await?;
        run.push(begun.elapsed());
        let begun = Instant::now();
        sandbox.kill().await?;
        end.push(begun.elapsed());
    }
    Ok([median(boot), median(run), median(end)])
}

/// As [`measure`] does it for boots, of sandboxes that are ready.
async fn measure_ready(backend: &Arc<dyn Backend>) -> Result<Duration, Box<dyn std::error::Error>> {
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
    Ok(median(boot))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let tap_binary = std::env::var_os("DRESSAGE_TAP_BINARY").ok_or("DRESSAGE_TAP_BINARY is not set")?;
    let folder = tempfile::tempdir()?;
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755))?;
    let config = BackendConfig {
        data_dir: folder.path().join("data"),
        cache_dir: folder.path().join("cache"),
        tap_binary: tap_binary.into(),
        bubblewrap: None,
        ripgrep: None,
        owner: Arc::new(Owner::acquire(&folder.path().join("data"))?),
        providers: Default::default(),
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    println!("median of {ROUNDS}   boot      command   end");
    for entry in registry()
        .iter()
        .filter(|entry| matches!(entry.name, "local" | "process"))
    {
        let backend = (entry.make)(&config)?;
        let [boot, run, end] = runtime.block_on(measure(&*backend))?;
        println!("{:<15} {boot:>8.1?}  {run:>8.1?}  {end:>8.1?}", entry.name);
        let goal = if entry.name == "local" {
            r#", "at_most": 50"#
        } else {
            ""
        };
        let boot_ms = boot.as_secs_f64() * 1e3;
        println!(
            r#"{{"metric": "{}_boot_median_ms", "value": {boot_ms:.2}{goal}}}"#,
            entry.name
        );
        let ready = runtime.block_on(measure_ready(&backend))?;
        println!("{:<15} {ready:>8.1?}  of one that is ready", "");
        let ready_ms = ready.as_secs_f64() * 1e3;
        println!(
            r#"{{"metric": "{}_boot_ready_median_ms", "value": {ready_ms:.2}}}"#,
            entry.name
        );
    }
    Ok(())
}
