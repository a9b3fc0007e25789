//! Sandboxes at Hugging Face: a job for each, used through the program `sbx-server` that it runs.
//!
//! `image` of a task is one of a registry of containers, or a Space (`python:3.12` if unset); its size is that of the flavor. Commands
//! run as root of the container. The provider keeps nobody from the network, hence tasks without one are refused. The relay is
//! dialled by WebSocket through the provider's proxy. Facts about the provider are of `huggingface_hub` 2.4.0, wire protocol 3.

/// The Jobs of the hub.
mod jobs;

/// The inside of a job.
mod server;

/// Programs in the background.
mod background;

use crate::remote::http::{HttpError, shown};
use crate::remote::provider::{Made, Provider, RemoteBackend};
use crate::{Backend, BackendConfig, Report, SandboxError, SandboxSpec};
use async_trait::async_trait;
use dressage_wire::task::NetworkPolicy;
use http::StatusCode;
use jobs::Jobs;
use server::Server;
use std::collections::BTreeMap;
use std::sync::Arc;

const NAME: &str = "huggingface";

pub(super) fn make(config: &BackendConfig) -> Result<Arc<dyn Backend>, SandboxError> {
    let access = &config.providers.huggingface;
    let token = access.token.clone().ok_or(SandboxError::Unavailable {
        backend: NAME,
        reason: "there is no token for it".into(),
        remedy: Some("set HF_TOKEN to a token that may run jobs: https://huggingface.co/settings/tokens"),
    })?;
    Ok(Arc::new(RemoteBackend {
        config: config.clone(),
        provider: Arc::new(HuggingFace(Arc::new(Jobs::new(access, token)))),
        agent_user: access.agent_user,
    }))
}

pub(super) fn probe(config: &BackendConfig) -> Report {
    let mut report = Report::default();
    if let Err(error) = make(config) {
        report.problem = Some(error.to_string());
        report.hint = error.hint();
    }
    report.fact(
        "isolation",
        "a job at a provider for each sandbox, with a network",
    );
    report.fact("limits", "memory, processors: those of the flavor");
    report
}

struct HuggingFace(Arc<Jobs>);

#[async_trait]
impl Provider for HuggingFace {
    fn name(&self) -> &'static str {
        NAME
    }

    fn gives_home(&self, home: &str) -> bool {
        home.starts_with('/')
    }

    fn check(&self, spec: &SandboxSpec) -> Result<(), SandboxError> {
        if spec.network == NetworkPolicy::None {
            return Err(SandboxError::Unsupported {
                backend: NAME,
                what:
                    "a sandbox without a network: give the task `network = \"open\"`, or take another backend"
                        .into(),
            });
        }
        super::refuse_containers(NAME, spec)
    }

    async fn place(&self) -> Result<String, HttpError> {
        Ok(format!(
            "{}/{}",
            shown(&self.0.endpoint),
            self.0.namespace().await?
        ))
    }

    async fn create(&self, spec: &SandboxSpec, labels: BTreeMap<String, String>) -> Result<Made, HttpError> {
        let job = self.0.create(spec, labels).await?;
        Ok(Made {
            id: job.id.clone(),
            machine: Arc::new(Server::new(Arc::clone(&self.0), job)),
        })
    }

    fn create_failed(&self, error: HttpError) -> SandboxError {
        let unavailable = |reason: String, remedy| SandboxError::Unavailable {
            backend: NAME,
            reason,
            remedy,
        };
        match &error {
            HttpError::Status {
                status: StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN,
                message,
            } => unavailable(
                format!("it refused the token: {message}"),
                Some("check HF_TOKEN: it needs the right to run jobs in the namespace"),
            ),
            HttpError::Status {
                status: StatusCode::PAYMENT_REQUIRED,
                message,
            } => unavailable(
                format!("it wants to be paid: {message}"),
                Some("https://huggingface.co/settings/billing shows the credits of the account"),
            ),
            error if error.is_transient() => SandboxError::Create {
                step: "ask Hugging Face for a job".into(),
                source: Some(std::io::Error::other(error.to_string())),
            },
            error => unavailable(error.to_string(), None),
        }
    }

    async fn find(&self, labels: &BTreeMap<String, String>) -> Result<Vec<String>, HttpError> {
        self.0.find(labels).await
    }

    async fn kill(&self, id: &str) -> Result<(), HttpError> {
        self.0.cancel(id).await
    }
}
