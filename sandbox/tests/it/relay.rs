use crate::world::{World, python, spec, stdout_of};
use dressage_sandbox::{Channel, SandboxError};
use futures_util::{AsyncReadExt, AsyncWriteExt};
use std::future::poll_fn;
use tokio_util::compat::TokioAsyncReadCompatExt;
use yamux::{Config, Connection, Mode};

/// Answers each connection of an agent with what it said, reversed.
pub async fn answer(channel: Box<dyn Channel>) {
    let mut connection = Connection::new(channel.compat(), Config::default(), Mode::Server);
    while let Some(Ok(mut stream)) = poll_fn(|context| connection.poll_next_inbound(context)).await {
        tokio::spawn(async move {
            let mut said = Vec::new();
            stream.read_to_end(&mut said).await.unwrap();
            said.reverse();
            stream.write_all(&said).await.unwrap();
            stream.close().await.unwrap();
        });
    }
}

pub const ASK: &str = "
import socket, sys
host, port = sys.argv[1].split(':')
def ask(text):
    s = socket.create_connection((host, int(port)), 20)
    s.sendall(text)
    s.shutdown(socket.SHUT_WR)
    return b''.join(iter(lambda: s.recv(65536), b''))
for n in range(20):
    assert ask(b'abc' * n) == b'cba' * n
big = bytes(range(256)) * 8192
assert ask(big) == big[::-1]
print('answered')";

#[tokio::test]
async fn without_a_network_calls_reach_the_host_through_the_relay() {
    let world = World::new();
    for backend in world.backends() {
        let mut spec = spec();
        spec.relay_port = Some(7000);
        let sandbox = backend.create(spec).await.unwrap();
        let address = sandbox.relay_address().unwrap();
        if backend.name() != "process" {
            assert_eq!(address, "127.0.0.1:7000");
        }
        let answering = tokio::spawn(answer(sandbox.open_relay().await.unwrap()));
        let mut ask = python(ASK);
        ask.argv.push(address);
        assert_eq!(stdout_of(&*sandbox, ask).await, "answered");
        assert!(
            matches!(
                sandbox.open_relay().await.err().unwrap(),
                SandboxError::Gone { .. }
            ),
            "once only"
        );
        sandbox.kill().await.unwrap();
        answering.await.unwrap();
    }
}

#[tokio::test]
async fn two_sandboxes_have_relays_of_their_own() {
    let world = World::new();
    for backend in world.backends() {
        let mut addresses = Vec::new();
        let mut sandboxes = Vec::new();
        for _ in 0..2 {
            let mut spec = spec();
            spec.relay_port = Some(7000);
            let sandbox = backend.create(spec).await.unwrap();
            addresses.push(sandbox.relay_address().unwrap());
            sandboxes.push(sandbox);
        }
        assert_eq!(addresses[0] == addresses[1], backend.name() != "process");
        for sandbox in sandboxes {
            let answering = tokio::spawn(answer(sandbox.open_relay().await.unwrap()));
            let mut ask = python(ASK);
            ask.argv.push(sandbox.relay_address().unwrap());
            assert_eq!(stdout_of(&*sandbox, ask).await, "answered");
            sandbox.kill().await.unwrap();
            answering.await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_sandbox_without_a_relay_says_so() {
    let world = World::new();
    for sandbox in world.sandboxes().await {
        assert_eq!(sandbox.relay_address(), None);
        assert!(matches!(
            sandbox.open_relay().await.err().unwrap(),
            SandboxError::Gone { .. }
        ));
    }
}

#[test]
fn the_secret_of_a_relay_that_is_dialled_is_in_no_environment() {
    use std::io::{BufRead, BufReader};
    const SECRET: &str = "0123456789abcdef0123456789abcdef";
    let start = |secret: &str| {
        std::process::Command::new(crate::world::tap_binary())
            .args(["relay", "--listen", "127.0.0.1:0", "--dialled", "127.0.0.1:0"])
            .env_clear()
            .env("A", "a")
            .env("DRESSAGE_RELAY_SECRET", secret)
            .env("Z", "z")
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .unwrap()
    };
    let mut relay = start(SECRET);
    let mut ready = String::new();
    BufReader::new(relay.stdout.take().unwrap())
        .read_line(&mut ready)
        .unwrap();
    let environment = std::fs::read(format!("/proc/{}/environ", relay.id()));
    relay.kill().unwrap();
    relay.wait().unwrap();
    assert_eq!(ready, "ready\n");
    match environment {
        Ok(environment) => {
            let environment = String::from_utf8(environment).unwrap();
            assert!(environment.contains("A=a\0") && environment.contains("\0Z=z"));
            assert!(!environment.contains(SECRET), "{environment:?}");
        }
        // Whoever is not root cannot look at all.
        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied),
    }
    let short = start("short").wait_with_output().unwrap();
    assert!(!short.status.success());
    assert!(String::from_utf8_lossy(&short.stderr).contains("at least 32 bytes"));
}
