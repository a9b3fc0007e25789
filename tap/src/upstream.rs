use crate::control::EndpointControl;
use crate::endpoint::{Endpoint, EndpointError, Operation};
use crate::failure::SendError;
use crate::replicas::Replicas;
use crate::session::lock;
use bytes::{Bytes, BytesMut};
use dressage_wire::call::Change;
use dressage_wire::capture::Captured;
use dressage_wire::probe::ProbeReport;
use http::header::{ACCEPT_ENCODING, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use http::{Method, Response};
use hyper::body::Incoming;
use secrecy::ExposeSecret;
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex};
use tokio::sync::watch;

/// Models that refusals are remembered for. An agent can name any number of models.
const MODELS_REMEMBERED: usize = 256;

/// Changes remembered for one model.
const CHANGES_REMEMBERED: usize = 32;

/// What stands in the place of a key.
const REDACTED: &str = "[redacted]";

/// A model server that can be sent to: connections, credentials, and what it has refused so far.
///
/// Shared by all rollouts of an endpoint. Redirects are not followed.
pub struct Upstream {
    endpoint: Endpoint,
    replicas: Replicas,
    headers: HeaderMap,
    refusals: Mutex<HashMap<String, Vec<Change>>>,
    control: Arc<EndpointControl>,
    learning: watch::Sender<Learning>,
}

/// What is known of an endpoint by asking it.
#[derive(Default)]
struct Learning {
    report: Option<Arc<ProbeReport>>,
    underway: bool,
}

/// A probe that is under way. Dropped, it is over, with whatever was learned.
pub struct Probing {
    upstream: Arc<Upstream>,
}

impl Probing {
    /// The endpoint that is probed.
    #[must_use]
    pub fn upstream(&self) -> &Arc<Upstream> {
        &self.upstream
    }
}

impl Drop for Probing {
    fn drop(&mut self) {
        self.upstream
            .learning
            .send_modify(|learning| learning.underway = false);
    }
}

impl Upstream {
    /// Checks an endpoint and makes ready to connect; connects to nothing yet.
    ///
    /// # Errors
    /// What in its configuration cannot be used.
    pub fn new(endpoint: Endpoint) -> Result<Arc<Self>, EndpointError> {
        let control = EndpointControl::new(endpoint.limits);
        Self::with_control(endpoint, control)
    }

    /// The same, under a control that other upstreams of the endpoint (with other models, or keys) may share.
    ///
    /// # Errors
    /// What in its configuration cannot be used.
    pub fn with_control(
        endpoint: Endpoint,
        control: Arc<EndpointControl>,
    ) -> Result<Arc<Self>, EndpointError> {
        let replicas = Replicas::new(&endpoint)?;
        let headers = headers(&endpoint)?;
        Ok(Arc::new(Self {
            endpoint,
            replicas,
            headers,
            refusals: Mutex::default(),
            control,
            learning: watch::Sender::default(),
        }))
    }

    /// The endpoint as configured.
    #[must_use]
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// The first base URL, without a slash at its end. Holds no credentials.
    #[must_use]
    pub fn base_url(&self) -> &str {
        self.replicas.first_url()
    }

    /// What holds for the calls of all rollouts to it.
    #[must_use]
    pub fn control(&self) -> &Arc<EndpointControl> {
        &self.control
    }

    /// What a probe found out about it, where there was one.
    #[must_use]
    pub fn learned(&self) -> Option<Arc<ProbeReport>> {
        self.learning.borrow().report.clone()
    }

    /// Takes what a probe found out, for sessions made from now on: what was refused is not sent again, `auto` has its
    /// answer, and it is known whether log-probabilities are raw.
    pub fn learn(&self, report: ProbeReport) {
        self.remember_refusals(&report.model, &report.changes);
        self.learning
            .send_modify(|learning| learning.report = Some(Arc::new(report)));
    }

    /// Says that the caller probes it now; `None` where somebody else does.
    #[must_use]
    pub fn begin_probing(self: &Arc<Self>) -> Option<Probing> {
        let begun = self.learning.send_if_modified(|learning| {
            let begins = !learning.underway;
            learning.underway = true;
            begins
        });
        begun.then(|| Probing {
            upstream: Arc::clone(self),
        })
    }

    /// Returns when no probe is under way.
    pub async fn probed(&self) {
        // The sender is in `self`, so it cannot go away.
        let _ = self
            .learning
            .subscribe()
            .wait_for(|learning| !learning.underway)
            .await;
    }

    /// What the endpoint refused of requests for a model so far.
    #[must_use]
    pub fn refusals(&self, model: &str) -> Vec<Change> {
        lock(&self.refusals).get(model).cloned().unwrap_or_default()
    }

    /// Remembers refusals. A change to a member takes the place of an earlier one to it.
    pub(crate) fn remember_refusals(&self, model: &str, changes: &[Change]) {
        let mut refusals = lock(&self.refusals);
        if refusals.len() >= MODELS_REMEMBERED && !refusals.contains_key(model) {
            return;
        }
        let known = refusals.entry(model.to_owned()).or_default();
        for change in changes {
            known.retain(|earlier| field(earlier) != field(change));
            if known.len() < CHANGES_REMEMBERED {
                known.push(change.clone());
            }
        }
    }

    /// Sends a request and waits for the head of the reply. Requests with the same `affinity` go to the same server as
    /// long as connections to it can be made.
    pub(crate) async fn send(
        &self,
        affinity: u64,
        method: Method,
        operation: Operation<'_>,
        mut headers: HeaderMap,
        body: Bytes,
    ) -> Result<Response<Incoming>, SendError> {
        for (name, value) in &self.headers {
            headers.insert(name.clone(), value.clone());
        }
        let timeout = self.endpoint.timeouts.header;
        let sending = self.replicas.send(affinity, &method, operation, &headers, &body);
        tokio::time::timeout(timeout, sending)
            .await
            .unwrap_or(Err(SendError::HeaderTimeout(timeout)))
    }

    /// Takes the endpoint's key out of a text, should the endpoint have put it there: what it says is passed on to
    /// agents and stored.
    pub(crate) fn redact(&self, mut body: Bytes) -> Bytes {
        for secret in self.secrets() {
            if let Some(replaced) = replace(&body, secret.as_bytes()) {
                body = replaced.into();
            }
        }
        body
    }

    /// The same for what is in a buffer from `at` on.
    pub(crate) fn redact_from(&self, buffer: &mut BytesMut, at: usize) {
        for secret in self.secrets() {
            let said = buffer.get(at..).unwrap_or_default();
            if let Some(replaced) = replace(said, secret.as_bytes()) {
                buffer.truncate(at);
                buffer.extend_from_slice(&replaced);
            }
        }
    }

    /// The same for a text.
    pub(crate) fn redact_text(&self, text: &mut String) {
        for secret in self.secrets() {
            if text.contains(secret) {
                *text = text.replace(secret, REDACTED);
            }
        }
    }

    /// The same for what was captured of a reply that is an error or holds one. In a good one nothing is the endpoint's
    /// own word, and it is left as it is.
    pub(crate) fn redact_captured(&self, captured: &mut Captured) {
        captured.response = self.redact(std::mem::take(&mut captured.response));
        if let Some(error) = &mut captured.error {
            self.redact_text(error);
        }
    }

    /// Shorter ones are no secrets, and would be found everywhere.
    fn secrets(&self) -> impl Iterator<Item = &str> {
        let headers = self.endpoint.headers.iter().map(|(_, value)| value);
        let all = self.endpoint.api_key.iter().chain(headers);
        all.map(ExposeSecret::expose_secret)
            .filter(|secret| secret.len() >= 8)
    }
}

impl fmt::Debug for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Upstream")
            .field("endpoint", &self.endpoint.name)
            .field("base_url", &self.base_url())
            .finish_non_exhaustive()
    }
}

/// The member that a change is about.
fn field(change: &Change) -> &str {
    match change {
        Change::Removed { field } | Change::Limited { field, .. } => field,
        Change::Renamed { from, .. } => from,
    }
}

fn headers(endpoint: &Endpoint) -> Result<HeaderMap, EndpointError> {
    let bad = |what: String| EndpointError::BadHeader {
        endpoint: endpoint.name.clone(),
        what,
    };
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    // A compressed reply could be neither captured nor stripped as it comes.
    headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    if let Some(key) = &endpoint.api_key {
        let mut value = HeaderValue::from_str(&format!("Bearer {}", key.expose_secret()))
            .map_err(|_| bad("the API key".into()))?;
        value.set_sensitive(true);
        headers.insert(AUTHORIZATION, value);
    }
    for (name, value) in &endpoint.headers {
        let header = HeaderName::try_from(name).map_err(|_| bad(format!("header name `{name}`")))?;
        let mut value =
            HeaderValue::from_str(value.expose_secret()).map_err(|_| bad(format!("header `{name}`")))?;
        value.set_sensitive(true);
        headers.insert(header, value);
    }
    Ok(headers)
}

/// `None` where the secret is not there.
fn replace(body: &[u8], secret: &[u8]) -> Option<Vec<u8>> {
    let finder = memchr::memmem::Finder::new(secret);
    finder.find(body)?;
    let mut replaced = Vec::with_capacity(body.len());
    let mut rest = body;
    while let Some(at) = finder.find(rest) {
        let (before, after) = rest.split_at(at);
        replaced.extend_from_slice(before);
        replaced.extend_from_slice(REDACTED.as_bytes());
        rest = after.get(secret.len()..).unwrap_or_default();
    }
    replaced.extend_from_slice(rest);
    Some(replaced)
}
