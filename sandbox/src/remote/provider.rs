use super::http::HttpError;
use super::machine::Machine;
use super::sandbox::RemoteSandbox;
use super::snapshot::{self, Keeper};
use crate::backends::{list_leased, off_the_runtime, refuse_allowed_hosts, refuse_snapshots};
use crate::lease::{HeldLease, Lease, LeaseError, LeaseKind, SANDBOX_LABEL, find_removable};
use crate::{AgentUser, Backend, BackendConfig, Sandbox, SandboxError, SandboxSpec, Snapshot};
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

    /// What keeps files of its sandboxes, if anything does.
    fn keeper(&self) -> Option<Arc<dyn Keeper>> {
        None
    }

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

    fn keeps_snapshots(&self) -> bool {
        self.provider.keeper().is_some()
    }

    async fn create(&self, mut spec: SandboxSpec) -> Result<Arc<dyn Sandbox>, SandboxError> {
        let backend = self.provider.name();
        if !self.provider.gives_home(&spec.home) {
            return Err(SandboxError::Unsupported {
                backend,
                what: format!("a home at `{}`", spec.home),
            });
        }
        refuse_allowed_hosts(backend, &spec)?;
        self.provider.check(&spec)?;
        if let Some(snapshot) = &spec.snapshot {
            spec.image = Some(self.template_of(snapshot, &spec).await?);
        }
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
    /// What the provider calls a snapshot: a template, of which sandboxes are made.
    async fn template_of(&self, snapshot: &Snapshot, spec: &SandboxSpec) -> Result<String, SandboxError> {
        let backend = self.provider.name();
        if !self.keeps_snapshots() {
            refuse_snapshots(backend, spec)?;
        }
        let id = snapshot.id_in(backend)?;
        let owner = Arc::clone(&self.config.owner);
        let step = "find its snapshot";
        let found = off_the_runtime(step, move || Lease::find(owner.data_dir(), id))
            .await?
            .map_err(|source| SandboxError::List { backend, source })?;
        let named = found.and_then(|lease| lease.remote?.provider_id);
        named.ok_or_else(|| SandboxError::Create {
            step: step.into(),
            source: Some(std::io::ErrorKind::NotFound.into()),
        })
    }

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
        let failed = |source: Unremoved| LeaseError::AtProvider {
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
        match (lease.kind, self.provider.keeper()) {
            (LeaseKind::Sandbox, _) if certain == Certain::Yes => {}
            (LeaseKind::Sandbox, _) => self.end(lease).await.map_err(failed)?,
            (LeaseKind::Snapshot, Some(keeper)) => {
                snapshot::remove(&*keeper, lease).await.map_err(failed)?;
            }
            (LeaseKind::Snapshot, None) => return Err(failed("it keeps no snapshots".into())),
        }
        lease.clear(self.config.owner.data_dir())
    }

    async fn end(&self, lease: &Lease) -> Result<(), Unremoved> {
        let label = BTreeMap::from([(SANDBOX_LABEL.to_owned(), lease.sandbox.to_string())]);
        for id in named(lease, self.provider.find(&label)).await? {
            self.provider.kill(&id).await?;
        }
        Ok(())
    }
}

/// Why something at a provider was not removed.
pub(super) type Unremoved = Box<dyn std::error::Error + Send + Sync>;

/// What the provider calls that which a lease names: as it answered, or as it is found. Where nothing is found and it may still
/// come to be, that is an error.
pub(super) async fn named(
    lease: &Lease,
    find: impl Future<Output = Result<Vec<String>, HttpError>>,
) -> Result<Vec<String>, Unremoved> {
    let remote = lease.remote.as_ref();
    if let Some(known) = remote.and_then(|remote| remote.provider_id.clone()) {
        return Ok(vec![known]);
    }
    let found = find.await?;
    if found.is_empty() && remote.is_some_and(|remote| remote.may_appear()) {
        return Err("its creation was never answered, and may still come to be".into());
    }
    Ok(found)
}
