//! What a container costs beyond the engine's own command line, and what its relay carries: medians, and lines of JSON for
//! `scripts/bench`. Needs the engine of `scripts/docker-engine`, and the program `docker`.

use dressage_sandbox::lease::Owner;
use dressage_sandbox::{
    Backend, BackendConfig, Command, DockerAccess, OutputSink, Providers, Sandbox, SandboxSpec,
};
use dressage_wire::event::OutputStream;
use futures_util::{AsyncReadExt, AsyncWriteExt};
use std::future::poll_fn;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio_util::compat::TokioAsyncReadCompatExt;
use yamux::{Config, Connection, Mode};

/// As the tests have it.
#[path = "../tests/it/spec.rs"]
mod spec;

/// An engine for containers.
#[path = "../tests/it/engine.rs"]
#[allow(clippy::unwrap_used, clippy::panic, reason = "it is the tests'")]
mod engine;

type Failure = Box<dyn std::error::Error>;

const ROUNDS: usize = 20;

/// What goes through the relay each way.
const CARRIED_BYTES: u64 = 256 << 20;

struct Nowhere;

impl OutputSink for Nowhere {
    fn write(&self, _: OutputStream, _: &[u8]) {}
}

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    times
        .get(times.len() / 2)
        .map_or(0.0, |time| time.as_secs_f64() * 1e3)
}

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
    let command = || Command {
        argv: vec!["true".into()],
        ..Command::default()
    };
    let begun = Instant::now();
    let sandbox = backend.create(spec(relay_port)).await?;
    sandbox.exec(command(), Arc::new(Nowhere)).await?;
    let both = begun.elapsed();
    let begun = Instant::now();
    sandbox.exec(command(), Arc::new(Nowhere)).await?;
    let further = begun.elapsed();
    sandbox.kill().await?;
    Ok([both, further])
}

/// Sends as much as is asked for, then counts what comes.
const CARRY: &str = "
import socket, sys
host, port = sys.argv[1].split(':')
s = socket.create_connection((host, int(port)))
block = bytes(1 << 16)
for _ in range(int(sys.argv[2]) >> 16):
    s.sendall(block)
s.shutdown(socket.SHUT_WR)
count = 0
while True:
    got = s.recv(1 << 16)
    if not got:
        break
    count += len(got)
assert count == int(sys.argv[2]), count
";

/// Bytes a second, out of the container and into it.
async fn relayed(sandbox: &dyn Sandbox) -> Result<[f64; 2], Failure> {
    let channel = sandbox.open_relay().await?;
    let carrying = tokio::spawn(async move {
        let mut connection = Connection::new(channel.compat(), Config::default(), Mode::Server);
        let mut times = None;
        while let Some(Ok(mut stream)) = poll_fn(|context| connection.poll_next_inbound(context)).await {
            times = Some(tokio::spawn(async move {
                let mut block = vec![0; 1 << 16];
                let begun = Instant::now();
                while matches!(stream.read(&mut block).await, Ok(1..)) {}
                let out = begun.elapsed();
                let begun = Instant::now();
                for _ in 0..CARRIED_BYTES >> 16 {
                    stream.write_all(&block).await?;
                }
                stream.close().await?;
                Ok::<_, std::io::Error>([out, begun.elapsed()])
            }));
        }
        times
    });
    let address = sandbox.relay_address().ok_or("it has no relay")?;
    let argv = ["python3", "-c", CARRY, &address, &CARRIED_BYTES.to_string()];
    let command = Command {
        argv: argv.map(str::to_owned).to_vec(),
        ..Command::default()
    };
    let exit = sandbox.exec(command, Arc::new(Nowhere)).await?;
    if exit.code != 0 {
        return Err(format!("what sends and counts ended with {}", exit.code).into());
    }
    sandbox.kill().await?;
    let times = carrying.await?.ok_or("nothing came through the relay")?.await??;
    Ok(times.map(|time| CARRIED_BYTES as f64 / time.as_secs_f64()))
}

fn main() -> Result<(), Failure> {
    let tap_binary = std::env::var_os("DRESSAGE_TAP_BINARY").ok_or("DRESSAGE_TAP_BINARY is not set")?;
    let Some(host) = engine::engine() else {
        return Ok(());
    };
    let folder = tempfile::tempdir()?;
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755))?;
    let config = BackendConfig {
        data_dir: folder.path().join("data"),
        cache_dir: folder.path().join("cache"),
        tap_binary: tap_binary.into(),
        bubblewrap: None,
        ripgrep: None,
        owner: Arc::new(Owner::acquire(&folder.path().join("data"))?),
        providers: Providers {
            docker: DockerAccess {
                host: Some(host.to_owned()),
                image: Some(engine::IMAGE.to_owned()),
            },
            ..Providers::default()
        },
    };
    let backend = (dressage_sandbox::by_name("docker")?.make)(&config)?;
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
    let [line, plain, further, with_relay] = [line, plain, further, with_relay].map(median);
    println!(
        "median of {ROUNDS}, ms: create and a command by the command line {line:.1}, by the backend {plain:.1}"
    );
    println!("with a relay {with_relay:.1}; a further command {further:.1}");
    let beyond = plain - line;
    println!(r#"{{"metric": "docker_beyond_command_line_ms", "value": {beyond:.2}, "at_most": 20}}"#);
    println!(r#"{{"metric": "docker_boot_with_relay_median_ms", "value": {with_relay:.2}}}"#);
    println!(r#"{{"metric": "docker_command_median_ms", "value": {further:.2}}}"#);
    let [out, into] = runtime.block_on(async {
        let sandbox = backend.create(spec(Some(7000))).await?;
        relayed(&*sandbox).await
    })?;
    for (name, rate) in [("out", out), ("in", into)] {
        let megabytes = rate / 1e6;
        println!(r#"{{"metric": "docker_relay_{name}_mb_per_s", "value": {megabytes:.1}, "at_least": 50}}"#);
    }
    Ok(())
}
