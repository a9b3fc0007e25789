use crate::relay::{ASK, answer};
use crate::world::{World, containers, python, spec, spec_for, stdout_of};
use dressage_sandbox::SandboxError;

/// Backends that can hold a sandbox to some hosts.
const HOLDING: [&str; 2] = ["local", "docker"];

const ALLOW: &str = "allow:index.example,*.example.org:8443";

#[tokio::test]
async fn a_sandbox_of_some_hosts_reaches_who_serves_its_way_out_and_nobody_else() {
    let world = World::new();
    for backend in world.backends() {
        if !HOLDING.contains(&backend.name()) {
            continue;
        }
        let mut spec = spec();
        spec.relay_port = Some(7000);
        spec.network = ALLOW.parse().unwrap();
        let sandbox = backend.create(spec).await.unwrap();
        let relay = tokio::spawn(answer(sandbox.open_relay().await.unwrap()));
        // One at first, and one after each separation.
        for round in 0..2 {
            let serving = tokio::spawn(answer(sandbox.open_egress().await.unwrap()));
            let proxy = "
import os
names = ['http_proxy', 'https_proxy', 'all_proxy']
values = {os.environ[each] for name in names for each in (name, name.upper())}
assert os.environ['no_proxy'] == os.environ['NO_PROXY'] == 'localhost,127.0.0.1,::1'
print(values.pop().removeprefix('http://')); assert not values";
            let proxy = stdout_of(&*sandbox, python(proxy)).await;
            let mut ask = python(ASK);
            ask.argv.push(proxy);
            assert_eq!(
                stdout_of(&*sandbox, ask).await,
                "answered",
                "{} {round}",
                backend.name()
            );
            let direct = "
import socket
for address in [('1.1.1.1', 443), ('127.0.0.2', 80), ('169.254.169.254', 80)]:
    try:
        socket.create_connection(address, 2)
        print('connected to', address)
    except OSError:
        pass
try:
    print(socket.getaddrinfo('index.example', 443))
except socket.gaierror:
    pass
print(sorted(line.split(':')[0].strip() for line in open('/proc/net/dev').readlines()[2:]))";
            assert_eq!(stdout_of(&*sandbox, python(direct)).await, "['lo']");
            sandbox.separate(&[]).await.unwrap();
            serving.await.unwrap();
        }
        relay.await.unwrap();
        let waiting = tokio::spawn({
            let sandbox = sandbox.clone();
            async move {
                let unused = sandbox.open_egress().await;
                drop(unused);
                sandbox.open_egress().await.err()
            }
        });
        tokio::task::yield_now().await;
        sandbox.kill().await.unwrap();
        let gone = waiting.await.unwrap().unwrap();
        assert!(matches!(gone, SandboxError::Gone { .. }), "{gone}");
    }
}

#[tokio::test]
async fn without_hosts_there_is_no_way_out_and_nobody_is_told_of_one() {
    let world = World::new();
    for sandbox in world.sandboxes_everywhere().await {
        let gone = sandbox.open_egress().await.err().unwrap();
        assert!(matches!(gone, SandboxError::Gone { .. }), "{gone}");
        let told = "
import os
print([name for name in os.environ if 'proxy' in name.lower()])";
        assert_eq!(stdout_of(&*sandbox, python(told)).await, "[]");
        sandbox.kill().await.unwrap();
    }
}

#[tokio::test]
async fn a_backend_that_cannot_hold_to_it_refuses_before_anything_is_made() {
    let world = World::new();
    let mut refused = Vec::new();
    for backend in world.everywhere() {
        if HOLDING.contains(&backend.name()) {
            continue;
        }
        let mut spec = spec_for(&*backend);
        spec.network = ALLOW.parse().unwrap();
        let id = spec.id;
        let error = backend.create(spec).await.err().unwrap();
        assert!(matches!(error, SandboxError::Unsupported { .. }), "{error}");
        assert_eq!(
            error.to_string(),
            format!(
                "backend `{}` cannot provide a network of some hosts only, which needs backend local or docker",
                backend.name()
            )
        );
        assert_eq!(world.names("leases"), Vec::<String>::new());
        assert_eq!(containers(id).await, []);
        refused.push(backend.name());
    }
    for name in ["process", "e2b", "huggingface"] {
        assert!(refused.contains(&name), "{name}");
    }
}
