//! Bodies that arrive too slowly: whoever sends one a byte at a time would hold a connection and what was read for ever.
//!
//! A body has `PATIENCE`, and a second more for each `BYTES_PER_SECOND` that arrived: however large one may be, its
//! sender has to keep that rate on average. (So does Apache's `mod_reqtimeout`: `body=20,MinRate=500` by default.) Time
//! counts only while the server waits for the next piece. Replies are not bounded so: events take hours.

use super::watch::Told;
use crate::openenv;
use crate::service::{Code, ServiceError};
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::Request;
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use hyper::body::{Frame, SizeHint};
use std::future::Future as _;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::time::{Instant, Sleep};

/// What every body has, small or large.
const PATIENCE: Duration = Duration::from_secs(20);

/// Bytes that give a body another second: a quarter of what a line of 256 kbit/s carries.
const BYTES_PER_SECOND: u64 = 8 << 10;

/// Answers 408 where a body came too slowly, whatever the handler made of the piece that it got, in the form of the
/// route; the connection ends with it.
pub async fn pace(request: Request, next: Next) -> Response {
    within(PATIENCE, request, next).await
}

async fn within(patience: Duration, request: Request, next: Next) -> Response {
    if request.body().is_end_stream() {
        return next.run(request).await;
    }
    let is_api = request.uri().path().starts_with("/api/");
    let was_slow = Arc::new(AtomicBool::new(false));
    let slow = was_slow.clone();
    let response = next
        .run(request.map(|body| Body::new(Paced::new(body, patience, slow))))
        .await;
    if !was_slow.load(Ordering::Relaxed) {
        return response;
    }
    let error = ServiceError::new(
        Code::BodyTooSlow,
        format!("the body arrived too slowly: less than {BYTES_PER_SECOND} bytes a second"),
    );
    let mut refusal = match is_api {
        true => error.into_response(),
        false => {
            let told = Told(error.message.clone());
            let mut refusal = openenv::detail(StatusCode::REQUEST_TIMEOUT, &error.message);
            refusal.extensions_mut().insert(told);
            refusal
        }
    };
    refusal
        .headers_mut()
        .insert(header::CONNECTION, HeaderValue::from_static("close"));
    refusal
}

/// Sent too slowly.
#[derive(Debug, thiserror::Error)]
#[error("the body arrived too slowly")]
struct TooSlow;

/// A body that fails where it arrives too slowly.
struct Paced {
    body: Body,
    patience: Duration,
    received: u64,
    /// Time that was waited for what arrived.
    waited: Duration,
    wait: Option<Wait>,
    slow: Arc<AtomicBool>,
}

/// The wait for the next piece.
struct Wait {
    since: Instant,
    end: Pin<Box<Sleep>>,
}

impl Paced {
    fn new(body: Body, patience: Duration, slow: Arc<AtomicBool>) -> Self {
        Self {
            body,
            patience,
            received: 0,
            waited: Duration::ZERO,
            wait: None,
            slow,
        }
    }
}

/// How long the next piece may take, after so much that came in such a time.
fn left(patience: Duration, received: u64, waited: Duration) -> Duration {
    let earned = Duration::from_millis(received.saturating_mul(1000) / BYTES_PER_SECOND);
    patience.saturating_add(earned).saturating_sub(waited)
}

impl HttpBody for Paced {
    type Data = Bytes;
    type Error = axum::BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::BoxError>>> {
        let this = self.get_mut();
        if this.slow.load(Ordering::Relaxed) {
            // It was said, and is the end.
            return Poll::Ready(None);
        }
        if let Poll::Ready(frame) = Pin::new(&mut this.body).poll_frame(context) {
            if let Some(wait) = this.wait.take() {
                this.waited = this.waited.saturating_add(wait.since.elapsed());
            }
            if let Some(Ok(frame)) = &frame {
                let length = frame.data_ref().map_or(0, Bytes::len);
                this.received = this.received.saturating_add(length as u64);
            }
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        let wait = this.wait.get_or_insert_with(|| Wait {
            since: Instant::now(),
            end: Box::pin(tokio::time::sleep(left(
                this.patience,
                this.received,
                this.waited,
            ))),
        });
        ready!(wait.end.as_mut().poll(context));
        this.slow.store(true, Ordering::Relaxed);
        Poll::Ready(Some(Err(TooSlow.into())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::JsonBody;
    use axum::Router;
    use axum::middleware;
    use axum::routing::post;
    use futures_util::{StreamExt as _, stream};
    use http_body_util::BodyExt as _;
    use hyper::service::Service as _;
    use hyper_util::service::TowerToHyperService;
    use serde_json::{Value, json};

    #[test]
    fn each_piece_gives_the_next_one_time_and_what_was_waited_takes_it() {
        let second = Duration::from_secs(1);
        let patience = 20 * second;
        assert_eq!(left(patience, 0, Duration::ZERO), patience);
        assert_eq!(left(patience, 0, 5 * second), 15 * second);
        assert_eq!(
            left(patience, 100, 20 * second),
            Duration::from_millis(12),
            "a byte now and then gives next to nothing"
        );
        assert_eq!(left(patience, 10 * BYTES_PER_SECOND, 29 * second), second);
        assert_eq!(left(patience, 10 * BYTES_PER_SECOND, 31 * second), Duration::ZERO);
        assert_eq!(
            left(patience, crate::http::BODY_MAX as u64, Duration::ZERO),
            (20 + 8192) * second
        );
        assert!(left(patience, u64::MAX, Duration::MAX).is_zero());
    }

    /// Routes that read their body, each in its way, with what is sent to them.
    async fn ask(patience: Duration, path: &str, body: Body) -> (StatusCode, Option<String>, Value) {
        let router: Router = Router::new()
            .route(
                "/api/json",
                post(|body: JsonBody| async move { body.value.to_string() }),
            )
            .route("/bytes", post(|body: Bytes| async move { body }))
            // Makes the best of what it got.
            .route(
                "/careless",
                post(|body: Body| async move { body.into_data_stream().count().await.to_string() }),
            )
            .route("/deaf", post(|| async { "null" }))
            .layer(middleware::from_fn(move |request: Request, next: Next| {
                within(patience, request, next)
            }));
        let request = Request::post(path)
            .header("content-type", "application/json")
            .body(body)
            .unwrap();
        let response = TowerToHyperService::new(router).call(request).await.unwrap();
        let status = response.status();
        let connection = response.headers().get(header::CONNECTION);
        let connection = connection.map(|value| value.to_str().unwrap().to_owned());
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        (status, connection, serde_json::from_slice(&bytes).unwrap())
    }

    /// Bytes, and nothing more, for ever.
    fn stuck(bytes: &'static [u8]) -> Body {
        let first = stream::once(async move { Ok::<_, std::io::Error>(Bytes::from_static(bytes)) });
        Body::from_stream(first.chain(stream::pending()))
    }

    #[tokio::test]
    async fn a_body_that_does_not_come_is_answered_in_the_form_of_the_route() {
        let patience = Duration::from_millis(20);
        for sent in [&b""[..], b"{\"a\":"] {
            let (status, connection, answer) = ask(patience, "/api/json", stuck(sent)).await;
            assert_eq!((status.as_u16(), connection.as_deref()), (408, Some("close")));
            assert_eq!(answer["error"]["code"], "body_too_slow");
            for path in ["/bytes", "/careless"] {
                let (status, connection, answer) = ask(patience, path, stuck(sent)).await;
                assert_eq!((status.as_u16(), connection.as_deref()), (408, Some("close")));
                assert_eq!(
                    answer,
                    json!({"detail": "the body arrived too slowly: less than 8192 bytes a second"})
                );
            }
        }
        // Who asks for none is not kept waiting.
        let (status, connection, _) = ask(patience, "/deaf", stuck(b"")).await;
        assert_eq!((status.as_u16(), connection), (200, None));
    }

    #[tokio::test]
    async fn a_body_in_pieces_arrives_whole() {
        let (sender, receiver) = tokio::sync::mpsc::channel::<Bytes>(1);
        let pieces = stream::unfold(receiver, |mut receiver| async move {
            Some((Ok::<_, std::io::Error>(receiver.recv().await?), receiver))
        });
        let sending = tokio::spawn(async move {
            for piece in ["[1", ",", "2", "]"] {
                // Each is waited for: the reader is asleep by then.
                tokio::task::yield_now().await;
                sender.send(piece.into()).await.unwrap();
            }
        });
        let hour = Duration::from_secs(3600);
        let (status, connection, answer) = ask(hour, "/api/json", Body::from_stream(pieces)).await;
        assert_eq!((status.as_u16(), connection, answer), (200, None, json!([1, 2])));
        sending.await.unwrap();
    }
}
