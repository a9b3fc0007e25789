//! Backends anywhere: an engine for containers, and providers that are played.

use dressage_sandbox::{Backend, DockerAccess, Providers, SandboxSpec};
use dressage_wire::task::NetworkPolicy;
use fake::Fake;

/// As the tests have it.
#[path = "../../tests/it/spec.rs"]
mod spec;

/// An engine for containers.
#[path = "../../tests/it/engine.rs"]
#[allow(clippy::unwrap_used, clippy::panic, reason = "it is the tests'")]
mod engine;

/// Providers that are played here.
#[path = "../../tests/it/fake.rs"]
#[allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    dead_code,
    reason = "it is the tests'"
)]
mod fake;

/// The providers that are played here, but where the environment names others.
pub fn providers() -> Providers {
    let mut providers = Fake::start().providers();
    if let Some(host) = engine::engine() {
        providers.docker = DockerAccess {
            host: Some(host.to_owned()),
            image: Some(engine::IMAGE.to_owned()),
        };
    }
    fake::named(providers)
}

/// A small sandbox with a relay.
pub fn spec(backend: &dyn Backend) -> SandboxSpec {
    SandboxSpec {
        relay_port: Some(7000),
        network: match backend.name() {
            "huggingface" => NetworkPolicy::Open,
            _ => NetworkPolicy::None,
        },
        ..spec::spec()
    }
}
