//! Sandboxes of E2B, and of deployments of it: machines at a provider, used through the program `envd` in them.
//!
//! Their size is that of the template (`image` of a task; `base` if unset). Agents, and the relay that is dialled by WebSocket
//! through the provider's proxy, are uploaded unless the template has them. Verification is separated by the end of the agent's
//! processes alone. Facts about the provider are of its SDK 2.63.0 and of envd 0.6.13.

/// The control plane.
mod plane;

/// Files of sandboxes, kept as templates.
mod snapshots;

/// The inside of a sandbox.
mod envd;

/// Templates that are built.
mod template;

pub(super) use template::baker;

use crate::remote::http::{HttpError, is_quota, shown};
use crate::remote::provider::{Made, Provider, RemoteBackend};
use crate::remote::snapshot::Keeper;
use crate::{Backend, BackendConfig, Report, SandboxError, SandboxSpec};
use async_trait::async_trait;
use dressage_wire::task::NetworkPolicy;
use envd::Envd;
use http::StatusCode;
use plane::ControlPlane;
use serde_json::json;
use snapshots::Snapshots;
use std::collections::BTreeMap;
use std::sync::Arc;

const NAME: &str = "e2b";

/// The only home: that of the user of its templates.
const HOME: &str = "/home/user";

pub(super) fn make(config: &BackendConfig) -> Result<Arc<dyn Backend>, SandboxError> {
    let plane = plane(config)?;
    let snapshots = Arc::new(Snapshots(plane.unpooled()));
    Ok(Arc::new(RemoteBackend {
        config: config.clone(),
        provider: Arc::new(E2b(plane, snapshots)),
        agent_user: config.providers.e2b.agent_user,
    }))
}

fn plane(config: &BackendConfig) -> Result<ControlPlane, SandboxError> {
    let access = &config.providers.e2b;
    let key = access.api_key.clone().ok_or(SandboxError::Unavailable {
        backend: NAME,
        reason: "there is no key for it".into(),
        remedy: Some("set E2B_API_KEY to a key of your team: https://e2b.dev/dashboard"),
    })?;
    Ok(ControlPlane::new(access, key))
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

struct E2b(ControlPlane, Arc<Snapshots>);

#[async_trait]
impl Provider for E2b {
    fn name(&self) -> &'static str {
        NAME
    }

    fn gives_home(&self, home: &str) -> bool {
        home == HOME
    }

    fn check(&self, spec: &SandboxSpec) -> Result<(), SandboxError> {
        super::refuse_containers(NAME, spec)
    }

    async fn place(&self) -> Result<String, HttpError> {
        Ok(shown(&self.0.api))
    }

    fn keeper(&self) -> Option<Arc<dyn Keeper>> {
        Some(Arc::clone(&self.1) as Arc<dyn Keeper>)
    }

    async fn create(&self, spec: &SandboxSpec, labels: BTreeMap<String, String>) -> Result<Made, HttpError> {
        // Never left out: its default is 15 s in one version of the call and 300 s in the other.
        let lifetime_s = match spec.lifetime.as_secs() {
            0 => 3600,
            seconds => seconds.min(86_400),
        };
        let mut body = json!({
            "templateID": spec.image.as_deref().unwrap_or("base"),
            "timeout": lifetime_s,
            "metadata": labels,
            "envVars": spec.env,
            "allow_internet_access": spec.network == NetworkPolicy::Open,
        });
        if let (Some(_), Some(members)) = (spec.relay_port, body.as_object_mut()) {
            // Whoever is to dial a relay shows a token to the provider's proxy too.
            members.insert("network".into(), json!({ "allowPublicTraffic": false }));
        }
        let created = self.0.create(body, &spec.id.to_string()).await?;
        let url = self.0.inside(&created);
        Ok(Made {
            id: created.sandbox_id.clone(),
            machine: Arc::new(Envd {
                http: self.0.http.clone(),
                url,
                sandbox: created.sandbox_id,
                token: created.envd_access_token,
                traffic_token: created.traffic_access_token,
            }),
        })
    }

    fn create_failed(&self, error: HttpError) -> SandboxError {
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

    async fn find(&self, labels: &BTreeMap<String, String>) -> Result<Vec<String>, HttpError> {
        let listed = self.0.list(labels).await?;
        Ok(listed.into_iter().map(|(id, _)| id).collect())
    }

    async fn kill(&self, id: &str) -> Result<(), HttpError> {
        self.0.kill(id).await
    }
}
