//! What the relay of each backend carries, both ways, and how long a byte takes there and back: lines of JSON for `scripts/bench`.
//!
//! Providers are played by the tests' own programs, on this machine, or by whatever DRESSAGE_TEST_E2B_URL and DRESSAGE_TEST_HF_URL
//! name. Arguments are the names of backends; all of them without any.

use dressage_sandbox::{Command, OutputSink, Sandbox, by_name};
use dressage_wire::event::OutputStream;
use futures_util::{AsyncReadExt, AsyncWriteExt};
use providers::{providers, spec};
use std::future::poll_fn;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use support::{Failure, config};
use tokio_util::compat::TokioAsyncReadCompatExt;
use yamux::{Config, Connection, Mode, Stream};

#[allow(dead_code, reason = "each program needs some of it")]
mod support;

#[path = "support/providers.rs"]
mod providers;

/// What goes through the relay each way.
const CARRIED_BYTES: u64 = 256 << 20;

/// How often a byte goes there and back.
const ROUNDS: usize = 2000;

/// What is wanted of each: bytes a second, and milliseconds there and back.
const WANTED: [(&str, f64, Option<f64>); 4] = [
    ("local", 500e6, Some(1.0)),
    ("docker", 50e6, Some(2.0)),
    ("e2b", 50e6, None),
    ("huggingface", 50e6, None),
];

/// Sends a byte and waits for it, again and again; on a second connection sends as much as is asked for, then counts what comes. Says what the
/// first took in the middle, in seconds.
const CARRY: &str = "
import socket, sys, time
host, port = sys.argv[1].split(':')
def connect():
    s = socket.create_connection((host, int(port)))
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return s
s = connect()
s.sendall(b'p')
times = []
for _ in range(int(sys.argv[3])):
    begun = time.perf_counter()
    s.sendall(b'x')
    assert s.recv(1) == b'x'
    times.append(time.perf_counter() - begun)
s.close()
s = connect()
s.sendall(b'c')
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
print(sorted(times)[len(times) // 2])
";

/// What a program writes to its standard output.
#[derive(Default)]
struct Said(Mutex<Vec<u8>>);

impl OutputSink for Said {
    fn write(&self, _: OutputStream, bytes: &[u8]) {
        if let Ok(mut said) = self.0.lock() {
            said.extend_from_slice(bytes);
        }
    }
}

/// What became of a stream: how long its bytes took, out of the sandbox and into it.
type Carried = Result<Option<[Duration; 2]>, std::io::Error>;

async fn carry(mut stream: Stream) -> Carried {
    let mut block = vec![0; 1 << 16];
    let mut kind = [0];
    stream.read_exact(&mut kind).await?;
    if kind == *b"p" {
        let mut byte = [0];
        while stream.read(&mut byte).await? == 1 {
            stream.write_all(&byte).await?;
            stream.flush().await?;
        }
        return Ok(None);
    }
    let begun = Instant::now();
    while stream.read(&mut block).await? > 0 {}
    let out = begun.elapsed();
    let begun = Instant::now();
    for _ in 0..CARRIED_BYTES >> 16 {
        stream.write_all(&block).await?;
    }
    stream.close().await?;
    Ok(Some([out, begun.elapsed()]))
}

/// Bytes a second, out of the sandbox and into it; milliseconds that a byte takes there and back.
async fn relayed(sandbox: &dyn Sandbox) -> Result<[f64; 3], Failure> {
    let channel = sandbox.open_relay().await?;
    let carrying = tokio::spawn(async move {
        let mut connection = Connection::new(channel.compat(), Config::default(), Mode::Server);
        let mut streams = Vec::new();
        while let Some(Ok(stream)) = poll_fn(|context| connection.poll_next_inbound(context)).await {
            streams.push(tokio::spawn(carry(stream)));
        }
        streams
    });
    let address = sandbox.relay_address().ok_or("it has no relay")?;
    let argv = [
        "python3",
        "-c",
        CARRY,
        &address,
        &CARRIED_BYTES.to_string(),
        &ROUNDS.to_string(),
    ];
    let command = Command {
        argv: argv.map(str::to_owned).to_vec(),
        ..Command::default()
    };
    let said = Arc::new(Said::default());
    let exit = sandbox.exec(command, Arc::clone(&said) as _).await?;
    let said = String::from_utf8(std::mem::take(&mut *said.0.lock().map_err(|_| "poisoned")?))?;
    if exit.code != 0 {
        return Err(format!("what sends and counts ended with {}: {said}", exit.code).into());
    }
    sandbox.kill().await?;
    for stream in carrying.await? {
        if let Some(times) = stream.await?? {
            let [out, into] = times.map(|time| CARRIED_BYTES as f64 / time.as_secs_f64());
            return Ok([out, into, said.trim().parse::<f64>()? * 1e3]);
        }
    }
    Err("nothing came through the relay".into())
}

fn main() -> Result<(), Failure> {
    let asked: Vec<String> = std::env::args().skip(1).collect();
    let folder = tempfile::tempdir()?;
    let config = config(folder.path(), providers())?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    for (name, at_least, at_most) in WANTED {
        if !asked.is_empty() && !asked.iter().any(|asked| asked == name) {
            continue;
        }
        if name == "docker" && config.providers.docker.host.is_none() {
            continue;
        }
        let backend = (by_name(name)?.make)(&config)?;
        let [out, into, there_and_back] = runtime.block_on(async {
            let sandbox = backend.create(spec(&*backend)).await?;
            relayed(&*sandbox).await
        })?;
        for (way, rate) in [("out", out), ("in", into)] {
            let [megabytes, goal] = [rate, at_least].map(|rate| rate / 1e6);
            println!(
                r#"{{"metric": "{name}_relay_{way}_mb_per_s", "value": {megabytes:.1}, "at_least": {goal}}}"#
            );
        }
        let goal = at_most.map_or_else(String::new, |goal| format!(r#", "at_most": {goal}"#));
        println!(r#"{{"metric": "{name}_relay_added_ms", "value": {there_and_back:.3}{goal}}}"#);
    }
    Ok(())
}
