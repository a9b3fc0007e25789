use crate::connect::Connector;
use crate::endpoint::{BaseUrl, Endpoint, EndpointError, Operation};
use crate::failure::SendError;
use crate::session::lock;
use bytes::Bytes;
use http::header::PROXY_AUTHORIZATION;
use http::{HeaderMap, HeaderValue, Method, Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use std::cmp::Reverse;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Mutex;
use std::time::Duration;
use tokio::time::Instant;

/// Idle connections are given up before servers do so: uvicorn, which vLLM and SGLang run on, closes them after five
/// seconds, and a request sent into that close fails.
const POOL_IDLE: Duration = Duration::from_secs(4);

/// How long a server to which no connection could be made is left alone, if there is another.
const REST: Duration = Duration::from_secs(15);

/// The servers of an endpoint, all with the same model: which one a request goes to, and to which else where no
/// connection can be made. What has been sent is never sent again: only who was not reached is passed over.
pub(crate) struct Replicas {
    /// At least one.
    first: Replica,
    more: Vec<Replica>,
}

struct Replica {
    url: BaseUrl,
    client: Client<Connector, Full<Bytes>>,
    /// The proxy's, where one without a tunnel leads there.
    proxy_authorization: Option<HeaderValue>,
    rests_until: Mutex<Option<Instant>>,
}

impl Replicas {
    pub(crate) fn new(endpoint: &Endpoint) -> Result<Self, EndpointError> {
        let more: Result<_, _> = endpoint
            .replicas
            .iter()
            .map(|url| Replica::new(endpoint, url))
            .collect();
        Ok(Self {
            first: Replica::new(endpoint, &endpoint.base_url)?,
            more: more?,
        })
    }

    pub(crate) fn first_url(&self) -> &str {
        self.first.url.as_str()
    }

    /// Sends a request and waits for the head of the reply.
    pub(crate) async fn send(
        &self,
        affinity: u64,
        method: &Method,
        operation: Operation<'_>,
        headers: &HeaderMap,
        body: &Bytes,
    ) -> Result<Response<Incoming>, SendError> {
        if self.more.is_empty() || cfg!(not(feature = "shared")) {
            return self.first.send(method, operation, headers, body).await;
        }
        let mut failed = None;
        for replica in self.order(affinity) {
            match replica.send(method, operation, headers, body).await {
                Err(error @ SendError::Connect(_)) => {
                    tracing::warn!(
                        endpoint.base_url = replica.url.as_str(),
                        "no connection could be made; another server of the endpoint is tried"
                    );
                    *lock(&replica.rests_until) = Some(Instant::now() + REST);
                    failed.get_or_insert(error);
                }
                done => {
                    lock(&replica.rests_until).take();
                    return done;
                }
            }
        }
        // There is at least one, so at least one has failed.
        Err(failed.unwrap_or(SendError::NoServer))
    }

    /// Those that do not rest first; each group by a hash of server and affinity (rendezvous hashing), so that a server
    /// more or less moves no sessions but its own.
    fn order(&self, affinity: u64) -> Vec<&Replica> {
        let now = Instant::now();
        let mut order: Vec<&Replica> = std::iter::once(&self.first).chain(&self.more).collect();
        order.sort_by_cached_key(|replica| {
            let rests = lock(&replica.rests_until).is_some_and(|until| until > now);
            let mut hasher = DefaultHasher::new();
            (affinity, replica.url.as_str()).hash(&mut hasher);
            (rests, Reverse(hasher.finish()))
        });
        order
    }
}

impl Replica {
    fn new(endpoint: &Endpoint, url: &str) -> Result<Self, EndpointError> {
        let url = BaseUrl::parse(endpoint, url)?;
        let connector = Connector::new(endpoint, &url)?;
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .timer(TokioTimer::new())
            .pool_idle_timeout(POOL_IDLE)
            .build(connector);
        Ok(Self {
            proxy_authorization: Connector::proxy_authorization(endpoint, &url),
            url,
            client,
            rests_until: Mutex::default(),
        })
    }

    async fn send(
        &self,
        method: &Method,
        operation: Operation<'_>,
        headers: &HeaderMap,
        body: &Bytes,
    ) -> Result<Response<Incoming>, SendError> {
        let mut request = Request::new(Full::new(body.clone()));
        *request.method_mut() = method.clone();
        *request.uri_mut() = self.url.join(operation).map_err(SendError::Path)?;
        request.headers_mut().clone_from(headers);
        if let Some(authorization) = &self.proxy_authorization {
            request
                .headers_mut()
                .insert(PROXY_AUTHORIZATION, authorization.clone());
        }
        self.client.request(request).await.map_err(SendError::from_client)
    }
}
