use crate::engine::engine;
use crate::sandboxes::until_ready;
use crate::world::{BackendChoice, Done, World, WorldPlan, shell, task};
use dressage_sandbox::{Command, OutputSink, Sandbox, SandboxSpec, Size};
use dressage_sandbox::{PoolConfig, Pools};
use dressage_tap::egress::{Egress, Names};
use dressage_wire::event::OutputStream;
use dressage_wire::ids::RolloutId;
use dressage_wire::task::{NetworkPolicy, Task, VerifyIn};
use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::num::NonZeroUsize;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// An address of this machine's loopback that programs in a sandbox do not take for their own.
const HERE: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

/// Backends that can hold a sandbox to some hosts, as far as they are here.
fn backends() -> Vec<&'static str> {
    match engine() {
        Some(_) => vec!["local", "docker"],
        None => vec!["local"],
    }
}

/// Every name leads here.
struct Here;

impl Names for Here {
    fn addresses<'a>(
        &'a self,
        _: &'a str,
    ) -> Pin<Box<dyn Future<Output = io::Result<Vec<IpAddr>>> + Send + 'a>> {
        Box::pin(async { Ok(vec![HERE.into()]) })
    }
}

/// The port of a server that answers everything with `it works`.
async fn server() -> u16 {
    let listener = TcpListener::bind((HERE, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                let mut got = Vec::new();
                while !got.ends_with(b"\r\n\r\n")
                    && stream.read_buf(&mut got).await.is_ok_and(|read| read > 0)
                {}
                let reply = b"HTTP/1.1 200 OK\r\ncontent-length: 8\r\nconnection: close\r\n\r\nit works";
                _ = stream.write_all(reply).await;
            });
        }
    });
    port
}

#[derive(Default)]
struct Said(Mutex<Vec<u8>>);

impl OutputSink for Said {
    fn write(&self, _: OutputStream, bytes: &[u8]) {
        self.0.lock().unwrap().extend_from_slice(bytes);
    }
}

async fn run(sandbox: &dyn Sandbox, program: &[&str]) -> (i32, String) {
    let said = Arc::new(Said::default());
    let command = Command {
        argv: program.iter().map(|&part| part.to_owned()).collect(),
        ..Command::default()
    };
    let exit = sandbox.exec(command, said.clone()).await.unwrap();
    let said = String::from_utf8(said.0.lock().unwrap().clone()).unwrap();
    (exit.code, said)
}

fn allow(hosts: &[String]) -> NetworkPolicy {
    NetworkPolicy::Allow(hosts.iter().map(|host| host.parse().unwrap()).collect())
}

fn spec(network: &NetworkPolicy) -> SandboxSpec {
    let spec = crate::spec::spec();
    SandboxSpec {
        network: network.clone(),
        // For 200 connections at once, each of a thread.
        size: Size {
            pids: 512,
            ..spec.size
        },
        ..spec
    }
}

/// Asks with Python's own client, as setup commands do, and says what came.
const URLLIB: &str = "
import sys, urllib.request, urllib.error
for url in sys.argv[1:]:
    try:
        print(urllib.request.urlopen(url, timeout=20).read().decode())
    except urllib.error.HTTPError as error:
        print(error.code, error.read().decode())
    except OSError as error:
        print(error)
";

/// Speaks to the proxy itself, as bytes: what it answers to each head, to its first line.
const RAW: &str = r#"
import os, socket, sys
def ask(head):
    host, port = os.environ['http_proxy'].removeprefix('http://').split(':')
    s = socket.create_connection((host, int(port)), 20)
    try:
        s.sendall(head.encode('latin-1').decode('unicode_escape').encode('latin-1'))
        answer = b''.join(iter(lambda: s.recv(65536), b''))
    except ConnectionError:
        answer = b'(reset)'
    return answer.split(b'\r\n')[0].decode()
for head in sys.argv[1:]:
    print(ask(head))
"#;

/// Two hundred connections at once, each of which asks when all are there that find a place.
const MANY: &str = r#"
import os, sys, threading
import urllib.request
works, lock = [], threading.Lock()
def ask():
    said = urllib.request.urlopen(sys.argv[1], timeout=60).read()
    with lock:
        works.append(said == b'it works')
threads = [threading.Thread(target=ask) for _ in range(200)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(len(works), all(works))
"#;

#[tokio::test(flavor = "multi_thread")]
async fn programs_reach_the_hosts_that_are_allowed_and_no_others() {
    for name in backends() {
        let port = server().await;
        let hosts = [
            format!("plain.example:{port}"),
            format!("*.wide.example:{port}"),
            format!("{HERE}:{port}"),
            "named.example".to_owned(),
        ];
        let network = allow(&hosts);
        let NetworkPolicy::Allow(allowed) = network.clone() else {
            unreachable!()
        };
        let world = World::planned(WorldPlan {
            backend: BackendChoice::Named(name),
            ..WorldPlan::default()
        })
        .await;
        let sandbox = world.backend.create(spec(&network)).await.unwrap();
        let egress = Arc::new(Egress::resolving(RolloutId::new(), allowed, Arc::new(Here)));
        let (serving, within) = (egress.clone(), sandbox.clone());
        let serving = tokio::spawn(async move {
            while let Ok(channel) = within.open_egress().await {
                let serving = serving.clone();
                serving.serve_channel(channel, CancellationToken::new()).await;
            }
        });
        // After verification is separated there is a way out again.
        for round in 0..2 {
            let (passed, refused) = (egress.passed(), egress.refusals().count);
            let urls = [
                format!("http://plain.example:{port}/a"),
                format!("http://A.Wide.example:{port}/"),
                format!("http://{HERE}:{port}/"),
            ];
            let mut python = vec!["python3", "-c", URLLIB];
            python.extend(urls.iter().map(String::as_str));
            let (_, said) = run(&*sandbox, &python).await;
            assert_eq!(said, "it works\nit works\nit works\n", "{name} {round}");

            let evil = format!("http://evil.example:{port}/");
            let (_, said) = run(
                &*sandbox,
                &[
                    "python3",
                    "-c",
                    URLLIB,
                    "https://evil.example/",
                    &evil,
                    "http://named.example/",
                ],
            )
            .await;
            let lines: Vec<&str> = said.lines().collect();
            assert!(lines[0].contains("403"), "{said}");
            assert!(
                lines[1].contains(&format!(
                    "403 dressage: `evil.example:{port}` is not among the hosts that this sandbox may reach"
                )),
                "{said}"
            );
            assert!(
                said.contains("127.0.0.2 is not a public address"),
                "an address counts with its port alone: {said}"
            );

            let tunnel = format!(
                "CONNECT plain.example:{port} HTTP/1.1\\r\\nhost: evil.example\\r\\n\\r\\nGET / HTTP/1.1\\r\\n\\r\\n"
            );
            let long = format!("CONNECT {}.example:443 HTTP/1.1\\r\\n\\r\\n", "a".repeat(100_000));
            let close = "host: plain.example\\r\\nconnection: close\\r\\n\\r\\n";
            let heads = [
                tunnel,
                format!("GET http://evil.example/ HTTP/1.1\\r\\n{close}"),
                format!("CONNECT evil.example:443 HTTP/1.1\\r\\n{close}"),
                format!("GET http://plain.example:{port}@evil.example/ HTTP/1.1\\r\\n{close}"),
                format!("CONNECT plain.example:{port}:80 HTTP/1.1\\r\\n{close}"),
                format!("CONNECT [::ffff:127.0.0.1]:{port} HTTP/1.1\\r\\n{close}"),
                long,
                "\\x16\\x03\\x01\\x00\\r\\n\\r\\n".to_owned(),
            ];
            let mut raw = vec!["python3", "-c", RAW];
            raw.extend(heads.iter().map(String::as_str));
            let (_, said) = run(&*sandbox, &raw).await;
            let statuses: Vec<&str> = said
                .lines()
                .map(|line| line.split(' ').nth(1).unwrap_or(line))
                .collect();
            assert_eq!(
                statuses[..6],
                ["200", "403", "403", "400", "400", "403"],
                "{name}: {said}"
            );
            assert!(
                statuses[6..]
                    .iter()
                    .all(|status| ["400", "414", "431", "(reset)", ""].contains(status)),
                "{name}: {said}"
            );
            if name == "local" {
                let curl = ["curl", "--silent", "--show-error", "--max-time", "20"];
                let url = format!("http://plain.example:{port}/");
                let works = (0, "it works".to_owned());
                assert_eq!(run(&*sandbox, &[&curl[..], &[&url]].concat()).await, works);
                let tunnel = [&curl[..], &["--proxytunnel", &url]].concat();
                assert_eq!(run(&*sandbox, &tunnel).await, works);
                let (code, told) = run(&*sandbox, &[&curl[..], &["https://evil.example/"]].concat()).await;
                assert!(code != 0 && told.contains("403"), "{told}");
                // Past the proxy there is nothing.
                let past = format!("http://{HERE}:{port}/");
                let (code, _) = run(&*sandbox, &[&curl[..], &["--noproxy", "*", &past]].concat()).await;
                assert_ne!(code, 0);
                // Bash alone, without a client of HTTP.
                let bash = format!(
                    "exec 3<>/dev/tcp/127.0.0.1/7002; printf 'CONNECT plain.example:{port} HTTP/1.1\\r\\n\\r\\nGET / HTTP/1.1\\r\\n\\r\\n' >&3; \
                     grep -ao 'it works' <&3; ! timeout 2 bash -c 'exec 3<>/dev/tcp/{HERE}/{port}' 2>/dev/null && echo nowhere else"
                );
                assert_eq!(
                    run(&*sandbox, &["bash", "-c", &bash]).await,
                    (0, "it works\nnowhere else\n".to_owned())
                );
            }
            let url = format!("http://plain.example:{port}/");
            let (_, said) = run(&*sandbox, &["python3", "-c", MANY, &url]).await;
            assert_eq!(said, "200 True\n", "{name}");

            let more = if name == "local" { (3, 1) } else { (0, 0) };
            assert_eq!(egress.passed() - passed, 3 + 1 + 200 + more.0, "{name}");
            assert_eq!(egress.refusals().count - refused, 3 + 3 + more.1, "{name}");
            sandbox.separate(&[]).await.unwrap();
        }
        sandbox.kill().await.unwrap();
        serving.await.unwrap();
    }
}

/// A task whose every stage fetches from an allowed server, and whose agent tries others too.
fn fetching(port: u16, verify_in: VerifyIn) -> Task {
    let fetch = format!(
        "python3 -c 'import urllib.request as r; print(r.urlopen(\"http://{HERE}:{port}/\").read().decode())'"
    );
    let mut task = task(&[&format!(
        "test \"$(cat fetched)\" = 'it works' && test \"$({fetch})\" = 'it works'"
    )]);
    task.setup = vec![format!(
        "{fetch} > ../fetched-by-setup; grep -x 'it works' ../fetched-by-setup"
    )];
    task.network = allow(&[format!("{HERE}:{port}")]);
    task.verify_in = Some(verify_in);
    task
}

fn agent(port: u16) -> String {
    format!(
        "test -s ../fetched-by-setup && python3 - <<'END' > fetched
import urllib.request as r, urllib.error as e
print(r.urlopen('http://{HERE}:{port}/').read().decode())
for url in ['http://evil.example/', 'http://evil.example/', 'https://index.example/', 'http://169.254.169.254/']:
    try:
        r.urlopen(url)
        print('reached', url)
    except e.URLError:
        pass
END"
    )
}

const WARNING: &str = "4 connections out of the sandbox were refused, which the task does not allow: 169.254.169.254:80, \
                       evil.example:80 (2 times), index.example:443";

fn check(done: &Done, what: &str) {
    assert_eq!(done.verified(), [0], "{what}: {:?}", done.outcome);
    assert_eq!(done.reward(), Some(1.0), "{what}");
    assert_eq!(done.outcome.warnings, [WARNING], "{what}");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_stage_fetches_what_the_task_allows_and_what_it_does_not_is_a_warning() {
    for name in backends() {
        let port = server().await;
        let world = World::planned(WorldPlan {
            script: shell(&agent(port)),
            backend: BackendChoice::Named(name),
            ..WorldPlan::default()
        })
        .await;
        for verify_in in [VerifyIn::Same, VerifyIn::Fresh] {
            let done = world.run(fetching(port, verify_in)).await;
            check(&done, &format!("{name} {verify_in:?}"));
        }
        assert_eq!(world.left(), 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_that_was_ready_has_its_way_out_and_one_of_other_hosts_is_of_another_kind() {
    let port = server().await;
    let config = PoolConfig {
        size: NonZeroUsize::new(1).unwrap(),
        max_age: Duration::from_secs(600),
    };
    let pools = Pools::new(BTreeMap::from([("local".to_owned(), config)]));
    let world = World::planned(WorldPlan {
        script: shell(&agent(port)),
        pools: pools.clone(),
        ..WorldPlan::default()
    })
    .await;
    check(&world.run(fetching(port, VerifyIn::Same)).await, "cold");
    until_ready(&pools).await;
    let done = world.run(fetching(port, VerifyIn::Same)).await;
    check(&done, "warm");
    assert!(done.outcome.stages[0].warm);
    until_ready(&pools).await;
    let mut other = fetching(port, VerifyIn::Same);
    other.network = allow(&[format!("{HERE}:{port}"), "other.example".to_owned()]);
    let done = world.run(other).await;
    check(&done, "other");
    assert!(!done.outcome.stages[0].warm);
    pools.close().await;
}

#[tokio::test]
async fn a_backend_that_cannot_hold_to_it_fails_the_rollout_with_the_reason() {
    let world = World::planned(WorldPlan {
        backend: BackendChoice::Named("process"),
        ..WorldPlan::default()
    })
    .await;
    let mut task = task(&["true"]);
    task.network = "allow:index.example".parse().unwrap();
    let done = world.run(task).await;
    assert_eq!(done.code(), Some("sandbox_unavailable"), "{:?}", done.outcome);
    let fault = done.outcome.fault.unwrap();
    assert!(
        fault
            .message
            .contains("a network of some hosts only, which needs backend local or docker"),
        "{fault:?}"
    );
    assert_eq!(world.left(), 0);
}
