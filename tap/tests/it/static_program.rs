//! The program as it is shipped: static, small, at home in an empty root. `make test` builds it and names it in
//! `DRESSAGE_TAP_BINARY`; without that these tests fail.

use crate::support::{Agent, FakeEndpoint, Script, ask, fixture};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;
use tokio::net::TcpStream;

fn binary() -> PathBuf {
    let binary = std::env::var_os("DRESSAGE_TAP_BINARY").map(PathBuf::from);
    binary.expect("DRESSAGE_TAP_BINARY is not set: run the tests with `make test`")
}

/// Runs the program with `root`, in which nothing else is, as its root.
fn start(root: &Path, endpoint: &FakeEndpoint) -> Child {
    let mut command = Command::new("unshare");
    command
        .args(["--user", "--map-root-user", "--root"])
        .arg(root)
        .arg("/dressage-tap");
    command.args([
        "proxy",
        "--port",
        "0",
        "--trace",
        "/trace.jsonl",
        "--upstream-url",
        &endpoint.base_url(),
    ]);
    command
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default());
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// The address it says it listens on.
fn address(child: &mut Child) -> String {
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    let address = line
        .trim()
        .strip_prefix("listening on http://")
        .and_then(|rest| rest.strip_suffix("/v1"));
    address.unwrap_or_else(|| panic!("{line:?}")).to_owned()
}

#[test]
fn it_has_at_most_4_mb() {
    let binary = binary();
    let bytes = std::fs::metadata(binary).unwrap().len();
    assert!(bytes <= 4_000_000, "{bytes} bytes");
}

#[tokio::test]
async fn it_needs_no_file_and_no_device_beside_itself() {
    let binary = binary();
    let root = tempfile::tempdir().unwrap();
    std::fs::copy(binary, root.path().join("dressage-tap")).unwrap();
    let endpoint =
        FakeEndpoint::start(|_, _| Script::json(200, fixture("vllm-0.32.0/hi_unary_lp5_ids.response.body")))
            .await;
    let started = Instant::now();
    let mut child = start(root.path(), &endpoint);
    let address = address(&mut child);
    let cold_start = started.elapsed();
    let mut agent = Agent::over(TcpStream::connect(address).await.unwrap(), "any").await;
    let received = agent.chat(ask(false)).await;
    let memory = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(received.status, 200);
    let trace = std::fs::read_to_string(root.path().join("trace.jsonl")).unwrap();
    assert_eq!(trace.lines().count(), 1);
    let resident = memory
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .unwrap();
    let resident_kb: u64 = resident.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(resident_kb < 10_000, "{resident_kb} kB");
    // Generous: other tests run beside this one. `make bench` has the figure.
    assert!(cold_start.as_millis() < 2_000, "{cold_start:?}");
}
