use super::settings::{Encoding, Settings};
use super::span::Span;
use super::{json, protobuf};
use crate::workspace::chain;
use bytes::Bytes;
use http::header::{CONTENT_TYPE, RETRY_AFTER, USER_AGENT};
use http::{HeaderMap, HeaderValue, Request, StatusCode, Uri};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Spans that wait to be sent; one that finds no room is dropped (SDK specification, batch processor).
const WAITING: usize = 2048;

/// Spans in a request (the same).
const BATCH: usize = 512;

/// How often a batch is sent before it is given up.
const ATTEMPTS: u32 = 4;

/// The first pause between two attempts; each is twice the one before it.
const FIRST_PAUSE: Duration = Duration::from_secs(1);

/// The longest pause, also where a collector asks for a longer one.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// Bytes of a reply that are read; what a collector says of spans it did not take is not acted on.
const REPLY_MAX: usize = 64 << 10;

/// Sends spans to a collector, from a task of its own.
pub struct Exporter {
    queue: mpsc::Sender<Span>,
    dropped: Arc<AtomicU64>,
    stop: CancellationToken,
    task: Mutex<Option<JoinHandle<()>>>,
}

impl Exporter {
    /// Starts the task. Connects to nothing until there is something to send.
    #[must_use]
    pub fn start(settings: Settings) -> Arc<Self> {
        let (queue, waiting) = mpsc::channel(WAITING);
        let (dropped, stop) = (Arc::<AtomicU64>::default(), CancellationToken::new());
        let sender = Sender {
            waiting,
            dropped: dropped.clone(),
            stop: stop.clone(),
            collector: Collector::new(
                settings.url,
                settings.headers,
                settings.encoding,
                settings.timeout,
            ),
            encoding: settings.encoding,
            resource: settings.resource,
            delay: settings.delay,
            failing: false,
        };
        Arc::new(Self {
            queue,
            dropped,
            stop,
            task: Mutex::new(Some(tokio::spawn(sender.run()))),
        })
    }

    /// Takes a span. Never waits; where too many do, it is dropped and counted.
    pub fn take(&self, span: Span) {
        if self.queue.try_send(span).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Sends what waits, as far as that is done within a time, and ends.
    pub async fn close(&self, within: Duration) {
        self.stop.cancel();
        let task = self.task.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(mut task) = task else { return };
        if tokio::time::timeout(within, &mut task).await.is_err() {
            task.abort();
            tracing::warn!("traces were not sent in time, and the last of them are lost");
        }
    }
}

/// What the task has.
struct Sender {
    waiting: mpsc::Receiver<Span>,
    dropped: Arc<AtomicU64>,
    stop: CancellationToken,
    collector: Collector,
    encoding: Encoding,
    resource: Vec<(String, String)>,
    delay: Duration,
    /// The last batch could not be sent: said once, and not for each batch.
    failing: bool,
}

impl Sender {
    async fn run(mut self) {
        while let Some(batch) = self.gather().await {
            self.send(&batch).await;
        }
    }

    /// The next batch: full, or what came within the delay; `None` when all is sent and nothing more is wanted.
    async fn gather(&mut self) -> Option<Vec<Span>> {
        let mut batch = Vec::new();
        tokio::select! {
            biased;
            span = self.waiting.recv() => batch.push(span?),
            () = self.stop.cancelled() => return None,
        }
        let due = tokio::time::sleep(self.delay);
        tokio::pin!(due);
        while batch.len() < BATCH {
            tokio::select! {
                biased;
                Some(span) = self.waiting.recv() => batch.push(span),
                () = self.stop.cancelled() => break,
                () = &mut due => break,
            }
        }
        Some(batch)
    }

    async fn send(&mut self, batch: &[Span]) {
        let dropped = self.dropped.swap(0, Ordering::Relaxed);
        if dropped > 0 {
            tracing::warn!(
                trace.spans = dropped,
                "spans were dropped, since too many waited to be sent"
            );
        }
        let body: Bytes = match self.encoding {
            Encoding::Protobuf => protobuf::request(&self.resource, batch),
            Encoding::Json => json::request(&self.resource, batch),
        }
        .into();
        let mut pause = FIRST_PAUSE;
        for attempt in 1..=ATTEMPTS {
            // Who is about to end tries each batch once.
            let is_last = attempt == ATTEMPTS || self.stop.is_cancelled();
            match self.collector.post(body.clone()).await {
                Ok(()) => return self.went_well(),
                Err(refusal) if is_last || !refusal.is_passing() => return self.lost(batch.len(), &refusal),
                Err(refusal) => {
                    let wait = refusal.retry_after().unwrap_or(pause).min(LONGEST_PAUSE);
                    tokio::select! {
                        biased;
                        () = self.stop.cancelled() => {}
                        () = tokio::time::sleep(wait) => {}
                    }
                    pause *= 2;
                }
            }
        }
    }

    fn went_well(&mut self) {
        if std::mem::take(&mut self.failing) {
            tracing::info!("traces are sent again");
        }
    }

    fn lost(&mut self, spans: usize, refusal: &Refusal) {
        if !std::mem::replace(&mut self.failing, true) {
            tracing::warn!(trace.spans = spans, error = %chain(refusal), "traces could not be sent, and are lost until they can");
        }
    }
}

/// The collector.
struct Collector {
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    url: Uri,
    headers: HeaderMap,
    timeout: Duration,
}

/// Why a batch was not taken.
#[derive(Debug, thiserror::Error)]
enum Refusal {
    #[error("the collector could not be reached")]
    Unreachable(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("the collector did not answer within {} ms", .0.as_millis())]
    Silent(Duration),
    #[error("the collector answered {status}")]
    Status {
        status: StatusCode,
        retry_after: Option<Duration>,
    },
}

impl Refusal {
    /// Whether the same batch may be taken later (OTLP specification, failures of OTLP/HTTP).
    fn is_passing(&self) -> bool {
        match self {
            Self::Unreachable(_) | Self::Silent(_) => true,
            Self::Status { status, .. } => matches!(status.as_u16(), 429 | 502 | 503 | 504),
        }
    }

    fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Status { retry_after, .. } => *retry_after,
            Self::Unreachable(_) | Self::Silent(_) => None,
        }
    }
}

impl Collector {
    fn new(url: Uri, mut headers: HeaderMap, encoding: Encoding, timeout: Duration) -> Self {
        let mut connector = HttpConnector::new();
        connector.enforce_http(false);
        connector.set_connect_timeout(Some(timeout));
        let connector = HttpsConnectorBuilder::new()
            .with_webpki_roots()
            .https_or_http()
            .enable_http1()
            .wrap_connector(connector);
        headers.insert(
            CONTENT_TYPE,
            HeaderValue::from_static(match encoding {
                Encoding::Protobuf => "application/x-protobuf",
                Encoding::Json => "application/json",
            }),
        );
        let name = HeaderValue::from_static(concat!("dressage/", env!("CARGO_PKG_VERSION")));
        headers.entry(USER_AGENT).or_insert(name);
        Self {
            client: Client::builder(TokioExecutor::new())
                .pool_timer(TokioTimer::new())
                .build(connector),
            url,
            headers,
            timeout,
        }
    }

    async fn post(&self, body: Bytes) -> Result<(), Refusal> {
        let mut request = Request::post(self.url.clone())
            .body(Full::new(body))
            .map_err(|error| Refusal::Unreachable(error.into()))?;
        request.headers_mut().extend(self.headers.clone());
        let exchange = async {
            let reply = self.client.request(request).await;
            let (head, body) = reply
                .map_err(|error| Refusal::Unreachable(error.into()))?
                .into_parts();
            // Read, so that the connection can be used again; whether it comes whole makes no difference.
            _ = Limited::new(body, REPLY_MAX).collect().await;
            if head.status.is_success() {
                return Ok(());
            }
            let after = head
                .headers
                .get(RETRY_AFTER)
                .and_then(|value| value.to_str().ok()?.parse().ok());
            Err(Refusal::Status {
                status: head.status,
                retry_after: after.map(Duration::from_secs),
            })
        };
        match tokio::time::timeout(self.timeout, exchange).await {
            Ok(done) => done,
            Err(_) => Err(Refusal::Silent(self.timeout)),
        }
    }
}
