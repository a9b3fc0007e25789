//! What a container costs beyond the engine's own command line: medians, and lines of JSON for `scripts/bench`. Needs the engine of
//! `scripts/docker-engine`, and the program `docker`.

use dressage_sandbox::{Backend, DockerAccess, Providers, SandboxSpec};
use std::sync::Arc;
use std::time::{Duration, Instant};
use support::{Failure, Nowhere, config, median_ms, nothing};

#[allow(dead_code, reason = "each program needs some of it")]
mod support;

/// As the tests have it.
#[path = "../tests/it/spec.rs"]
mod spec;

/// An engine for containers.
#[path = "../tests/it/engine.rs"]
#[allow(clippy::unwrap_used, clippy::panic, reason = "it is the tests'")]
mod engine;

const ROUNDS: usize = 20;

fn docker(host: &str, arguments: &[&str]) -> Result<String, Failure> {
    let output = std::process::Command::new("docker")
        .args(["-H", host])
        .args(arguments)
        .output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned().into());
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// A container with the same limits, and a command in it, by the command line.
fn by_command_line(host: &str) -> Result<Duration, Failure> {
    let begun = Instant::now();
    let mut arguments = vec![
        "run",
        "--detach",
        "--interactive",
        "--network=none",
        "--cap-drop=ALL",
    ];
    arguments.extend([
        "--security-opt=no-new-privileges",
        "--user=1000:1000",
        "--memory=1g",
        "--pids-limit=128",
    ]);
    arguments.extend([
        "--tmpfs=/tmp",
        "--tmpfs=/var/tmp",
        "--tmpfs=/run",
        "--log-driver=none",
    ]);
    arguments.extend([engine::IMAGE, "cat"]);
    let container = docker(host, &arguments)?;
    docker(host, &["exec", &container, "true"])?;
    let took = begun.elapsed();
    docker(host, &["rm", "--force", &container])?;
    Ok(took)
}

fn spec(relay_port: Option<u16>) -> SandboxSpec {
    SandboxSpec {
        relay_port,
        ..spec::spec()
    }
}

/// The same by the backend, and how long a further command takes.
async fn by_backend(backend: &dyn Backend, relay_port: Option<u16>) -> Result<[Duration; 2], Failure> {
    let begun = Instant::now();
    let sandbox = backend.create(spec(relay_port)).await?;
    sandbox.exec(nothing(), Arc::new(Nowhere)).await?;
    let both = begun.elapsed();
    let begun = Instant::now();
    sandbox.exec(nothing(), Arc::new(Nowhere)).await?;
    let further = begun.elapsed();
    sandbox.kill().await?;
    Ok([both, further])
}

fn main() -> Result<(), Failure> {
    let Some(host) = engine::engine() else {
        return Ok(());
    };
    let folder = tempfile::tempdir()?;
    let providers = Providers {
        docker: DockerAccess {
            host: Some(host.to_owned()),
            image: Some(engine::IMAGE.to_owned()),
        },
        ..Providers::default()
    };
    let backend = (dressage_sandbox::by_name("docker")?.make)(&config(folder.path(), providers)?)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    // Once, so that neither begins cold.
    by_command_line(host)?;
    runtime.block_on(by_backend(&*backend, None))?;
    let (mut line, mut plain, mut further, mut with_relay) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    // In turns: what else the machine does is the same for all.
    for _ in 0..ROUNDS {
        line.push(by_command_line(host)?);
        let [both, more] = runtime.block_on(by_backend(&*backend, None))?;
        plain.push(both);
        further.push(more);
        let [both, _] = runtime.block_on(by_backend(&*backend, Some(7000)))?;
        with_relay.push(both);
    }
    let [line, plain, further, with_relay] = [line, plain, further, with_relay].map(median_ms);
    println!(
        "median of {ROUNDS}, ms: create and a command by the command line {line:.1}, by the backend {plain:.1}"
    );
    println!("with a relay {with_relay:.1}; a further command {further:.1}");
    let beyond = plain - line;
    println!(r#"{{"metric": "docker_beyond_command_line_ms", "value": {beyond:.2}, "at_most": 20}}"#);
    println!(r#"{{"metric": "docker_boot_with_relay_median_ms", "value": {with_relay:.2}}}"#);
    println!(r#"{{"metric": "docker_command_median_ms", "value": {further:.2}}}"#);
    Ok(())
}
