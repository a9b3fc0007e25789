//! Sandboxes of E2B, and of deployments of it: machines at a provider, used through the program `envd` in them.
//!
//! Their size is that of the template (`image` of a task; `base` if unset). Agents, and the relay that is dialled by WebSocket
//! through the provider's proxy, are uploaded unless the template has them. Verification is separated by the end of the agent's
//! processes alone. Facts about the provider are of its SDK 2.63.0 and of envd 0.6.13.

/// The control plane.
mod plane;

/// The inside of a sandbox.
mod envd;

/// A sandbox.
mod sandbox;

/// What is done before a sandbox is handed out.
mod boot;

use crate::lease::{HeldLease, Lease, LeaseError, SANDBOX_LABEL, find_removable};
use crate::remote::http::{HttpError, is_quota};
use crate::{Backend, BackendConfig, Report, Sandbox, SandboxError, SandboxSpec};
use async_trait::async_trait;
use dressage_wire::ids::SandboxId;
use dressage_wire::task::NetworkPolicy;
use http::StatusCode;
use plane::ControlPlane;
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::Arc;

const NAME: &str = "e2b";

/// The only home: that of the user of its templates.
const HOME: &str = "/home/user";

pub(super) fn make(config: &BackendConfig) -> Result<Arc<dyn Backend>, SandboxError> {
    let access = &config.providers.e2b;
    let key = access.api_key.clone().ok_or(SandboxError::Unavailable {
        backend: NAME,
        reason: "there is no key for it".into(),
        remedy: Some("set E2B_API_KEY to a key of your team: https://e2b.dev/dashboard"),
    })?;
    Ok(Arc::new(E2b {
        config: config.clone(),
        plane: ControlPlane::new(access, key),
    }))
}

pub(super) fn probe(config: &BackendConfig) -> Report {
    let mut report = Report::default();
    if let Err(error) = make(config) {
        report.problem = Some(error.to_string());
        report.hint = error.hint();
    }
    report.fact("isolation", "a machine at a provider for each sandbox");
    report.fact("limits", "memory, processors: those of the template");
    report
}

struct E2b {
    config: BackendConfig,
    plane: ControlPlane,
}

#[async_trait]
impl Backend for E2b {
    fn name(&self) -> &'static str {
        NAME
    }

    fn gives_home(&self, home: &str) -> bool {
        home == HOME
    }

    async fn create(&self, spec: SandboxSpec) -> Result<Arc<dyn Sandbox>, SandboxError> {
        let unsupported = |what: String| SandboxError::Unsupported { backend: NAME, what };
        if spec.home != HOME {
            return Err(unsupported(format!("a home at `{}`", spec.home)));
        }
        let (owner, leased, place) = (
            Arc::clone(&self.config.owner),
            spec.clone(),
            self.plane.api.clone(),
        );
        let lease = super::off_the_runtime("lease a sandbox", move || {
            HeldLease::intend(&owner, NAME, &leased, &place)
        })
        .await?
        .map_err(|source| SandboxError::Lease { id: spec.id, source })?;
        let lease = Arc::new(lease);
        let sandbox = self.boot(&spec, &lease).await;
        match sandbox {
            Ok(sandbox) => Ok(sandbox),
            Err((error, certain)) => {
                // The first error is told, whatever becomes of the cleaning; a lease that stays is for a sweep.
                let _ = self.remove(&lease.lease(), certain).await;
                Err(error)
            }
        }
    }

    async fn list(&self, labels: &BTreeMap<String, String>) -> Result<Vec<SandboxId>, SandboxError> {
        super::list_leased(&self.config, NAME, labels.clone()).await
    }

    async fn delete(&self, id: SandboxId) -> Result<(), SandboxError> {
        let left = |source| SandboxError::Left {
            id,
            source: Arc::new(source),
        };
        let owner = Arc::clone(&self.config.owner);
        let found = super::off_the_runtime("find a lease", move || find_removable(&owner, id))
            .await?
            .map_err(left)?;
        match found {
            Some(lease) => self.remove(&lease, Certain::No).await.map_err(left),
            None => Ok(()),
        }
    }
}

/// Whether it is certain that a creation did not happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Certain {
    Yes,
    No,
}

impl E2b {
    async fn boot(
        &self,
        spec: &SandboxSpec,
        lease: &Arc<HeldLease>,
    ) -> Result<Arc<dyn Sandbox>, (SandboxError, Certain)> {
        // Never left out: its default is 15 s in one version of the call and 300 s in the other.
        let lifetime_s = match spec.lifetime.as_secs() {
            0 => 3600,
            seconds => seconds.min(86_400),
        };
        let mut body = json!({
            "templateID": spec.image.as_deref().unwrap_or("base"),
            "timeout": lifetime_s,
            "metadata": lease.lease().provider_labels(),
            "envVars": spec.env,
            "allow_internet_access": spec.network == NetworkPolicy::Open,
        });
        if let (Some(_), Some(members)) = (spec.relay_port, body.as_object_mut()) {
            // Whoever is to dial a relay shows a token to the provider's proxy too.
            members.insert("network".into(), json!({ "allowPublicTraffic": false }));
        }
        let created = self
            .plane
            .create(body, &spec.id.to_string())
            .await
            .map_err(|error| {
                let certain = if error.may_have_happened() {
                    Certain::No
                } else {
                    Certain::Yes
                };
                (create_failed(error), certain)
            })?;
        let (held, provider_id) = (Arc::clone(lease), created.sandbox_id.clone());
        super::off_the_runtime("lease a sandbox", move || held.complete(&provider_id))
            .await
            .and_then(|done| done.map_err(|source| SandboxError::Lease { id: spec.id, source }))
            .map_err(|error| (error, Certain::No))?;
        let mut sandbox = sandbox::E2bSandbox::new(spec, &self.plane, created, Arc::clone(lease));
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
            backend: NAME.into(),
            source,
        };
        let remote = lease.remote.as_ref();
        if remote.is_some_and(|remote| remote.place != self.plane.api) {
            return Err(failed(
                "it is at another address than the one that is configured".into(),
            ));
        }
        let known = remote.and_then(|remote| remote.provider_id.clone());
        let mut found = Vec::from_iter(known);
        if found.is_empty() && certain == Certain::No {
            let label = BTreeMap::from([(SANDBOX_LABEL.to_owned(), lease.sandbox.to_string())]);
            let listed = self.plane.list(&label).await;
            let listed = listed.map_err(|error| failed(Box::new(error)))?;
            found = listed.into_iter().map(|(id, _)| id).collect();
            if found.is_empty() && remote.is_some_and(|remote| remote.may_appear()) {
                return Err(failed(
                    "its creation was never answered, and may still come to be".into(),
                ));
            }
        }
        for id in found {
            self.plane
                .kill(&id)
                .await
                .map_err(|error| failed(Box::new(error)))?;
        }
        lease.clear(self.config.owner.data_dir())
    }
}

/// What a refused or lost creation is to be called.
fn create_failed(error: HttpError) -> SandboxError {
    let unavailable = |reason: String, remedy| SandboxError::Unavailable {
        backend: NAME,
        reason,
        remedy: Some(remedy),
    };
    match &error {
        HttpError::Status {
            status: StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN,
            message,
        } => unavailable(format!("it refused the key: {message}"), "check E2B_API_KEY"),
        HttpError::Status {
            status: StatusCode::NOT_FOUND,
            message,
        } => unavailable(
            format!("it has no such template: {message}"),
            "`e2b template list` shows those of your team",
        ),
        HttpError::Status {
            status: StatusCode::TOO_MANY_REQUESTS,
            message,
        } if is_quota(message) => unavailable(
            message.clone(),
            "run fewer rollouts at once, or have the limit of your plan raised",
        ),
        error if error.is_transient() => SandboxError::Create {
            step: "ask E2B for it".into(),
            source: Some(std::io::Error::other(error.to_string())),
        },
        error => SandboxError::Unavailable {
            backend: NAME,
            reason: error.to_string(),
            remedy: None,
        },
    }
}
