//! Sandboxes of bubblewrap: every namespace unshared, a read-only system, one writable home.
//!
//! Bubblewrap maps one user id, and started by root that would be root on this machine; hence root becomes an
//! unprivileged user, one a sandbox, before. What a sandbox sees of the machine is `/usr` and what `system` names, nothing
//! else.

/// What of this machine is seen inside.
mod system;

/// The files of `/etc` that are ours.
mod skeleton;

/// Starts bubblewrap with init in it.
mod boot;

/// Networks for sandboxes that may reach the outside.
mod network;

/// Copies homes.
mod copy;

/// What this machine can do.
mod check;

use crate::cgroup::Hierarchies;
use crate::controlled::ControlledSandbox;
use crate::estate::{Estate, Identity, check_size};
use crate::{Backend, BackendConfig, Report, Sandbox, SandboxError, SandboxSpec};
use async_trait::async_trait;
use boot::Bubble;
use dressage_wire::ids::SandboxId;
use dressage_wire::task::NetworkPolicy;
use std::collections::BTreeMap;
use std::sync::Arc;

const NAME: &str = "local";

pub(super) fn make(config: &BackendConfig) -> Result<Arc<dyn Backend>, SandboxError> {
    let machine = check::Machine::look(config)?;
    Ok(Arc::new(Local {
        config: config.clone(),
        machine: Arc::new(machine),
        hierarchies: Hierarchies::detect(),
    }))
}

pub(super) fn probe(config: &BackendConfig) -> Report {
    check::report(config)
}

struct Local {
    config: BackendConfig,
    machine: Arc<check::Machine>,
    hierarchies: Hierarchies,
}

#[async_trait]
impl Backend for Local {
    fn name(&self) -> &'static str {
        NAME
    }

    fn gives_home(&self, home: &str) -> bool {
        system::may_be_home(home)
    }

    fn keeps_snapshots(&self) -> bool {
        true
    }

    async fn create(&self, spec: SandboxSpec) -> Result<Arc<dyn Sandbox>, SandboxError> {
        self.check(&spec)?;
        let snapshot = spec
            .snapshot
            .as_ref()
            .map(|snapshot| snapshot.id_in(NAME))
            .transpose()?;
        let (owner, hierarchies, leased, machine) = (
            Arc::clone(&self.config.owner),
            self.hierarchies.clone(),
            spec.clone(),
            Arc::clone(&self.machine),
        );
        let estate = super::off_the_runtime("make its home", move || {
            let estate = Estate::make(&owner, NAME, &leased, Identity::Own, &hierarchies)?;
            if let Some(snapshot) = snapshot {
                machine.copy_home(&estate.home_of(snapshot), &estate)?;
            }
            Ok::<_, SandboxError>(estate)
        })
        .await??;
        let estate = Arc::new(estate);
        let bubble = Bubble::new(
            Arc::clone(&self.machine),
            spec.clone(),
            Arc::clone(&estate),
            &self.hierarchies,
        );
        let built = bubble.build(&[], boot::Relay::Listens).await?;
        let inside = bubble.inside();
        Ok(Arc::new(ControlledSandbox::new(
            &spec,
            inside,
            built,
            estate,
            Box::new(bubble),
        )))
    }

    async fn list(&self, labels: &BTreeMap<String, String>) -> Result<Vec<SandboxId>, SandboxError> {
        super::list_leased(&self.config, NAME, labels.clone()).await
    }

    async fn delete(&self, id: SandboxId) -> Result<(), SandboxError> {
        super::delete_leased(&self.config, NAME, id).await
    }
}

impl Local {
    fn check(&self, spec: &SandboxSpec) -> Result<(), SandboxError> {
        let unsupported = |what: String| SandboxError::Unsupported { backend: NAME, what };
        check_size(NAME, spec.size)?;
        if spec.image.is_some() {
            return Err(unsupported("an image: its system is that of this machine".into()));
        }
        super::refuse_containers(NAME, spec)?;
        if !system::may_be_home(&spec.home) {
            return Err(unsupported(format!("a home at `{}`", spec.home)));
        }
        for asset in &spec.assets {
            self.machine.check_asset(asset)?;
        }
        if spec.network == NetworkPolicy::Open
            && let Some(obstacle) = network::obstacle(&self.machine.network)
        {
            return Err(SandboxError::Unavailable {
                backend: NAME,
                reason: obstacle.reason.to_owned(),
                remedy: Some(obstacle.remedy),
            });
        }
        Ok(())
    }
}
