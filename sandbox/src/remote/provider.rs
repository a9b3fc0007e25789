use super::http::HttpError;
use super::machine::Machine;
use super::sandbox::RemoteSandbox;
use crate::backends::{list_leased, off_the_runtime, refuse_allowed_hosts, refuse_snapshots};
use crate::lease::{HeldLease, Lease, LeaseError, SANDBOX_LABEL, find_removable};
use crate::{AgentUser, Backend, BackendConfig, Sandbox, SandboxError, SandboxSpec};
use async_trait::async_trait;
use dressage_wire::ids::SandboxId;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A provider of sandboxes: what makes, finds and ends them.
#[async_trait]
pub(crate) trait Provider: Send + Sync {
    /// The backend's name in the registry.
    fn name(&self) -> &'static str;

    /// As [`Backend::gives_home`].
    fn gives_home(&self, home: &str) -> bool;

    /// Refuses what it cannot provide, before anything is done.
    fn check(&self, spec: &SandboxSpec) -> Result<(), SandboxError>;

    /// Where its sandboxes are, without credentials: ids are those of there.
    async fn place(&self) -> Result<String, HttpError>;

    /// Makes a sandbox that carries `labels`.
    async fn create(&self, spec: &SandboxSpec, labels: BTreeMap<String, String>) -> Result<Made, HttpError>;

    /// What a refused or lost creation is to be called.
    fn create_failed(&self, error: HttpError) -> SandboxError;

    /// Ids of the sandboxes that carry all of `labels` and have not ended.
    async fn find(&self, labels: &BTreeMap<String, String>) -> Result<Vec<String>, HttpError>;

    /// Ends a sandbox; one that is not there is ended.
    async fn kill(&self, id: &str) -> Result<(), HttpError>;
}

/// A sandbox that was made.
pub(crate) struct Made {
    /// What the provider calls it.
    pub(crate) id: String,
    pub(crate) machine: Arc<dyn Machine>,
}

/// A backend over a provider.
pub(crate) struct RemoteBackend {
    pub(crate) config: BackendConfig,
    pub(crate) provider: Arc<dyn Provider>,
    /// Whom agents are.
    pub(crate) agent_user: Option<AgentUser>,
}

/// Whether it is certain that a creation did not happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Certain {
    Yes,
    No,
}

#[async_trait]
impl Backend for RemoteBackend {
    fn name(&self) -> &'static str {
        self.provider.name()
    }

    fn gives_home(&self, home: &str) -> bool {
        self.provider.gives_home(home)
    }

    async fn create(&self, spec: SandboxSpec) -> Result<Arc<dyn Sandbox>, SandboxError> {
        let backend = self.provider.name();
        if !self.provider.gives_home(&spec.home) {
            return Err(SandboxError::Unsupported {
                backend,
                what: format!("a home at `{}`", spec.home),
            });
        }
        refuse_allowed_hosts(backend, &spec)?;
        refuse_snapshots(backend, &spec)?;
        self.provider.check(&spec)?;
        let place = self.provider.place().await;
        let place = place.map_err(|error| self.provider.create_failed(error))?;
        let (owner, leased) = (Arc::clone(&self.config.owner), spec.clone());
        let lease = off_the_runtime("lease a sandbox", move || {
            HeldLease::intend(&owner, backend, &leased, &place)
        })
        .await?
        .map_err(|source| SandboxError::Lease { id: spec.id, source })?;
        let lease = Arc::new(lease);
        match self.boot(&spec, &lease).await {
            Ok(sandbox) => Ok(sandbox),
            Err((error, certain)) => {
                // The first error is told, whatever becomes of the cleaning; a lease that stays is for a sweep.
                let _ = self.remove(&lease.lease(), certain).await;
                Err(error)
            }
        }
    }

    async fn list(&self, labels: &BTreeMap<String, String>) -> Result<Vec<SandboxId>, SandboxError> {
        list_leased(&self.config, self.provider.name(), labels.clone()).await
    }

    async fn delete(&self, id: SandboxId) -> Result<(), SandboxError> {
        let left = |source| SandboxError::Left {
            id,
            source: Arc::new(source),
        };
        let owner = Arc::clone(&self.config.owner);
        let found = off_the_runtime("find a lease", move || find_removable(&owner, id))
            .await?
            .map_err(left)?;
        match found {
            Some(lease) => self.remove(&lease, Certain::No).await.map_err(left),
            None => Ok(()),
        }
    }
}

impl RemoteBackend {
    async fn boot(
        &self,
        spec: &SandboxSpec,
        lease: &Arc<HeldLease>,
    ) -> Result<Arc<dyn Sandbox>, (SandboxError, Certain)> {
        let labels = lease.lease().provider_labels();
        let made = self.provider.create(spec, labels).await.map_err(|error| {
            let certain = if error.may_have_happened() {
                Certain::No
            } else {
                Certain::Yes
            };
            (self.provider.create_failed(error), certain)
        })?;
        let (held, provider_id) = (Arc::clone(lease), made.id.clone());
        off_the_runtime("lease a sandbox", move || held.complete(&provider_id))
            .await
            .and_then(|done| done.map_err(|source| SandboxError::Lease { id: spec.id, source }))
            .map_err(|error| (error, Certain::No))?;
        let provider = Arc::clone(&self.provider);
        let mut sandbox = RemoteSandbox::new(
            spec,
            self.agent_user,
            made.machine,
            provider,
            made.id,
            Arc::clone(lease),
        );
        sandbox
            .prepare(spec, &self.config)
            .await
            .map_err(|error| (error, Certain::No))?;
        Ok(Arc::new(sandbox))
    }

    /// Removes what a lease names at the provider, then the lease.
    async fn remove(&self, lease: &Lease, certain: Certain) -> Result<(), LeaseError> {
        let failed = |source: Box<dyn std::error::Error + Send + Sync>| LeaseError::AtProvider {
            sandbox: lease.sandbox,
            backend: self.provider.name().into(),
            source,
        };
        let remote = lease.remote.as_ref();
        let place = self
            .provider
            .place()
            .await
            .map_err(|error| failed(Box::new(error)))?;
        if remote.is_some_and(|remote| remote.place != place) {
            return Err(failed(
                "it is at another address than the one that is configured".into(),
            ));
        }
        let known = remote.and_then(|remote| remote.provider_id.clone());
        let mut found = Vec::from_iter(known);
        if found.is_empty() && certain == Certain::No {
            let label = BTreeMap::from([(SANDBOX_LABEL.to_owned(), lease.sandbox.to_string())]);
            let listed = self.provider.find(&label).await;
            found = listed.map_err(|error| failed(Box::new(error)))?;
            if found.is_empty() && remote.is_some_and(|remote| remote.may_appear()) {
                return Err(failed(
                    "its creation was never answered, and may still come to be".into(),
                ));
            }
        }
        for id in found {
            self.provider
                .kill(&id)
                .await
                .map_err(|error| failed(Box::new(error)))?;
        }
        lease.clear(self.config.owner.data_dir())
    }
}
