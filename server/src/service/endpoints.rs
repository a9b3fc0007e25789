//! The endpoints of a server: connected to once, and shared by the rollouts that use them.

use super::error::{Code, ServiceError};
use super::spec::RolloutSpec;
use crate::commands::run::connect;
use crate::endpoints::probes::Probes;
use crate::endpoints::{self, Choice, Chosen};
use crate::workspace::Context;
use dressage_tap::{Endpoint, EndpointControl, Upstream};
use dressage_testkit::model::ScriptedModel;
use secrecy::ExposeSecret;
use std::collections::HashMap;
use std::sync::Arc;
use tokio::sync::Mutex;

/// Endpoints of callers' own URLs and keys that are remembered; beyond that they are connected to anew.
const REMEMBERED_MAX: usize = 256;

/// Which URLs callers may bring.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum ClientBaseUrl {
    /// Any.
    Any,
    /// Those of the origin of an endpoint that has a name here.
    Listed,
    /// None: callers choose by name.
    #[default]
    None,
}

/// The endpoints that were connected to.
#[derive(Debug)]
pub struct Endpoints {
    allowed: ClientBaseUrl,
    connected: Mutex<Connected>,
}

#[derive(Debug, Default)]
struct Connected {
    upstreams: HashMap<Chosenness, Arc<Upstream>>,
    demo: Option<(Arc<Upstream>, ScriptedModel)>,
    /// By the endpoint's name: shared by all upstreams of it, with whatever model and key.
    controls: HashMap<String, Arc<EndpointControl>>,
}

/// What makes one endpoint another. Lives in memory only; keys are hashed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Chosenness {
    name: Option<String>,
    base_url: Option<String>,
    model: Option<String>,
    key: Option<[u8; 32]>,
}

impl Endpoints {
    /// Nothing is connected to yet.
    #[must_use]
    pub fn new(allowed: ClientBaseUrl) -> Self {
        Self {
            allowed,
            connected: Mutex::default(),
        }
    }

    /// The endpoint that a spec asks for.
    ///
    /// # Errors
    /// It is unknown, lacks something, or may not be brought by a caller.
    pub async fn get(&self, spec: &RolloutSpec, context: &Context) -> Result<Arc<Upstream>, ServiceError> {
        if let Some(url) = &spec.base_url {
            self.check_url(url, context)?;
        }
        let key = spec.api_key.as_ref().map(|key| key.expose_secret());
        let chosenness = Chosenness {
            name: spec.endpoint.clone(),
            base_url: spec.base_url.clone(),
            model: spec.model.clone(),
            key: key.map(|key| <sha2::Sha256 as sha2::Digest>::digest(key).into()),
        };
        let mut connected = self.connected.lock().await;
        if let Some(upstream) = connected.upstreams.get(&chosenness) {
            return Ok(upstream.clone());
        }
        let choice = Choice {
            name: spec.endpoint.as_deref(),
            base_url: spec.base_url.as_deref(),
            model: spec.model.as_deref(),
            key_variable: None,
            key: spec
                .api_key
                .as_ref()
                .filter(|key| !key.expose_secret().is_empty()),
        };
        let endpoint = match endpoints::resolve(choice, &context.config, &context.environment)? {
            Chosen::Demo => return connected.demo().await,
            Chosen::Server(endpoint) => endpoint,
        };
        let control = match &spec.base_url {
            // Another server than the one of that name.
            Some(_) => EndpointControl::new(endpoint.limits),
            None => connected.control(&endpoint),
        };
        let upstream = Upstream::with_control(*endpoint, control)
            .map_err(|error| ServiceError::from_error(Code::EndpointUnusable, &error))?;
        Probes::of(&context.paths.cache).recall(&upstream);
        if connected.upstreams.len() >= REMEMBERED_MAX {
            // Rollouts that use them keep theirs.
            connected.upstreams.clear();
        }
        connected.upstreams.insert(chosenness, upstream.clone());
        Ok(upstream)
    }

    fn check_url(&self, url: &str, context: &Context) -> Result<(), ServiceError> {
        let refused = |message: &str, hint: &str| {
            Err(ServiceError::invalid("base_url", message).hint(Some(hint.to_owned())))
        };
        match self.allowed {
            ClientBaseUrl::Any => Ok(()),
            ClientBaseUrl::None => refused(
                "this server takes no URLs of callers",
                "choose an `endpoint` by name; `--client-base-url` of `dressage serve` allows URLs",
            ),
            ClientBaseUrl::Listed if endpoints::is_listed(url, &context.config, &context.environment) => {
                Ok(())
            }
            ClientBaseUrl::Listed => refused(
                "is not of the origin of an endpoint that this server knows",
                "choose an `endpoint` by name; `--client-base-url any` of `dressage serve` allows other URLs",
            ),
        }
    }

    /// The endpoint of a name, with its own model and key.
    ///
    /// # Errors
    /// Nothing has that name, or it cannot be used.
    pub async fn named(&self, name: &str, context: &Context) -> Result<Arc<Upstream>, ServiceError> {
        let spec = RolloutSpec {
            endpoint: Some(name.to_owned()),
            ..RolloutSpec::default()
        };
        self.get(&spec, context).await
    }

    /// Ends the scripted model, if it was started.
    pub async fn close(&self) {
        let demo = self.connected.lock().await.demo.take();
        if let Some((_, model)) = demo {
            model.shutdown().await;
        }
    }
}

impl Connected {
    fn control(&mut self, endpoint: &Endpoint) -> Arc<EndpointControl> {
        self.controls
            .entry(endpoint.name.clone())
            .or_insert_with(|| EndpointControl::new(endpoint.limits))
            .clone()
    }

    async fn demo(&mut self) -> Result<Arc<Upstream>, ServiceError> {
        if let Some((upstream, _)) = &self.demo {
            return Ok(upstream.clone());
        }
        let unusable =
            |failure: &crate::error::Failure| ServiceError::from_failure(Code::EndpointUnusable, failure);
        let (upstream, model) = connect(Chosen::Demo)
            .await
            .map_err(|failure| unusable(&failure))?;
        if let Some(model) = model {
            self.demo = Some((upstream.clone(), model));
        }
        Ok(upstream)
    }
}
