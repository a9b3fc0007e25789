use dressage_sandbox::{SandboxSpec, Size};
use dressage_wire::ids::SandboxId;
use dressage_wire::task::NetworkPolicy;
use std::collections::BTreeMap;
use std::time::Duration;

/// A small sandbox without a relay.
pub fn spec() -> SandboxSpec {
    SandboxSpec {
        id: SandboxId::new(),
        image: None,
        dockerfile: None,
        user: None,
        home: "/home/user".into(),
        env: BTreeMap::new(),
        network: NetworkPolicy::None,
        size: Size {
            memory_bytes: 1 << 30,
            cpus: 2.0,
            pids: 128,
        },
        assets: Vec::new(),
        labels: BTreeMap::new(),
        lifetime: Duration::from_secs(600),
        relay_port: None,
        snapshot: None,
    }
}
