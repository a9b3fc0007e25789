use crate::connect::Connector;
use crate::endpoint::{BaseUrl, Endpoint, EndpointError};
use crate::failure::SendError;
use crate::session::lock;
use bytes::{Bytes, BytesMut};
use dressage_wire::call::Change;
use dressage_wire::capture::Captured;
use http::header::{ACCEPT_ENCODING, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use http::{Method, Request, Response, Uri};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use secrecy::ExposeSecret;
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Idle connections are given up before servers do so: uvicorn, which vLLM and SGLang run on, closes them after five
/// seconds, and a request sent into that close fails.
const POOL_IDLE: Duration = Duration::from_secs(4);

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
    url: BaseUrl,
    client: Client<Connector, Full<Bytes>>,
    headers: HeaderMap,
    refusals: Mutex<HashMap<String, Vec<Change>>>,
    policy_version: Mutex<Option<String>>,
}

impl Upstream {
    /// Checks an endpoint and makes ready to connect; connects to nothing yet.
    ///
    /// # Errors
    /// What in its configuration cannot be used.
    pub fn new(endpoint: Endpoint) -> Result<Arc<Self>, EndpointError> {
        let url = BaseUrl::parse(&endpoint)?;
        let connector = Connector::new(&endpoint, &url)?;
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .timer(TokioTimer::new())
            .pool_idle_timeout(POOL_IDLE)
            .build(connector);
        let headers = headers(&endpoint, &url)?;
        Ok(Arc::new(Self {
            endpoint,
            url,
            client,
            headers,
            refusals: Mutex::default(),
            policy_version: Mutex::default(),
        }))
    }

    /// The endpoint as configured.
    #[must_use]
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// The base URL without a slash at its end. Holds no credentials.
    #[must_use]
    pub fn base_url(&self) -> &str {
        self.url.as_str()
    }

    /// Says which weights the endpoint serves from now on; put on calls when they are sent and when they end.
    pub fn set_policy_version(&self, version: Option<String>) {
        *lock(&self.policy_version) = version;
    }

    /// What [`Upstream::set_policy_version`] said last.
    #[must_use]
    pub fn policy_version(&self) -> Option<String> {
        lock(&self.policy_version).clone()
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

    /// Sends a request and waits for the head of the reply.
    pub(crate) async fn send(
        &self,
        method: Method,
        path: &str,
        agent: HeaderMap,
        body: Bytes,
    ) -> Result<Response<Incoming>, SendError> {
        let uri = self.url.join(path).map_err(SendError::Path)?;
        self.send_to(method, uri, agent, body).await
    }

    /// The same for a route that is not under the API's version, as vLLM's own are not.
    #[cfg(feature = "translated")]
    pub(crate) async fn send_beside_version(
        &self,
        method: Method,
        path: &str,
        agent: HeaderMap,
        body: Bytes,
    ) -> Result<Response<Incoming>, SendError> {
        let uri = self.url.join_beside_version(path).map_err(SendError::Path)?;
        self.send_to(method, uri, agent, body).await
    }

    async fn send_to(
        &self,
        method: Method,
        uri: Uri,
        agent: HeaderMap,
        body: Bytes,
    ) -> Result<Response<Incoming>, SendError> {
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = method;
        *request.uri_mut() = uri;
        let headers = request.headers_mut();
        *headers = agent;
        for (name, value) in &self.headers {
            headers.insert(name.clone(), value.clone());
        }
        let timeout = self.endpoint.timeouts.header;
        match tokio::time::timeout(timeout, self.client.request(request)).await {
            Err(_) => Err(SendError::HeaderTimeout(timeout)),
            Ok(Err(error)) => Err(SendError::from_client(error)),
            Ok(Ok(response)) => Ok(response),
        }
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

fn headers(endpoint: &Endpoint, url: &BaseUrl) -> Result<HeaderMap, EndpointError> {
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
    if let Some(authorization) = Connector::proxy_authorization(endpoint, url) {
        headers.insert(http::header::PROXY_AUTHORIZATION, authorization);
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
