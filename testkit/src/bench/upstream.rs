//! An upstream that renders a reply once for each shape of request and then only copies it out, an event a write.

use crate::model::bench_reply::{self, Shape};
use bytes::Bytes;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Frame, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use std::collections::HashMap;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use tokio::net::{TcpListener, TcpStream};

/// Tokens of a reply that asks for no fewer.
pub const REPLY_TOKENS: usize = 200;

/// The model's name.
pub const MODEL: &str = "bench";

/// Replies by shape.
#[derive(Debug, Default)]
struct Replies {
    streams: Mutex<HashMap<Shape, Arc<[Bytes]>>>,
    documents: Mutex<HashMap<Shape, Bytes>>,
}

/// What of a request changes the reply.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Asked {
    stream: bool,
    stream_options: Option<StreamOptions>,
    logprobs: Option<bool>,
    top_logprobs: Option<usize>,
    return_token_ids: Option<bool>,
    max_tokens: Option<usize>,
    max_completion_tokens: Option<usize>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct StreamOptions {
    include_usage: bool,
}

/// Answers on a listener for ever.
///
/// # Errors
/// Where the listener fails.
pub async fn serve(listener: TcpListener) -> std::io::Result<Infallible> {
    let replies = Arc::new(Replies::default());
    loop {
        let (stream, _) = listener.accept().await?;
        tokio::spawn(serve_connection(stream, replies.clone()));
    }
}

async fn serve_connection(stream: TcpStream, replies: Arc<Replies>) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "cannot set TCP_NODELAY");
    }
    let service = service_fn(move |request| answer(request, replies.clone()));
    let connection =
        hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service);
    if let Err(error) = connection.await {
        tracing::debug!(%error, "a connection of the upstream ended early");
    }
}

type Answer = Response<BoxBody<Bytes, Infallible>>;

async fn answer(request: Request<Incoming>, replies: Arc<Replies>) -> Result<Answer, hyper::Error> {
    if request.method() == Method::GET {
        let models =
            r#"{"object":"list","data":[{"id":"bench","object":"model","created":1,"owned_by":"vllm"}]}"#;
        return Ok(match request.uri().path() {
            "/health" | "/healthz" => document(StatusCode::OK, Bytes::from_static(b"{\"status\":\"ok\"}")),
            "/v1/models" => document(StatusCode::OK, Bytes::from_static(models.as_bytes())),
            _ => not_found(),
        });
    }
    if request.uri().path() != "/v1/chat/completions" {
        return Ok(not_found());
    }
    let body = request.into_body().collect().await?.to_bytes();
    let Ok(asked) = serde_json::from_slice::<Asked>(&body) else {
        let error = r#"{"error":{"message":"no JSON","type":"Bad Request","param":null,"code":400}}"#;
        return Ok(document(
            StatusCode::BAD_REQUEST,
            Bytes::from_static(error.as_bytes()),
        ));
    };
    let tokens = asked
        .max_completion_tokens
        .or(asked.max_tokens)
        .unwrap_or(REPLY_TOKENS);
    let shape = Shape {
        tokens: tokens.clamp(1, REPLY_TOKENS),
        top_logprobs: asked
            .logprobs
            .unwrap_or(false)
            .then(|| asked.top_logprobs.unwrap_or(0).min(20)),
        token_ids: asked.return_token_ids.unwrap_or(false),
        usage: asked.stream_options.unwrap_or_default().include_usage,
    };
    Ok(if asked.stream {
        replies.stream(shape)
    } else {
        document(StatusCode::OK, replies.document(shape))
    })
}

impl Replies {
    fn stream(&self, shape: Shape) -> Answer {
        let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        let events = streams.entry(shape).or_insert_with(|| {
            let events = bench_reply::events(MODEL, shape).into_iter();
            events
                .map(|data| Bytes::from(format!("data: {data}\n\n")))
                .collect()
        });
        let body = Copied {
            events: events.clone(),
            next: 0,
            unflushed: false,
        };
        respond(StatusCode::OK, "text/event-stream; charset=utf-8", body.boxed())
    }

    fn document(&self, shape: Shape) -> Bytes {
        let mut documents = self.documents.lock().unwrap_or_else(PoisonError::into_inner);
        documents
            .entry(shape)
            .or_insert_with(|| bench_reply::document(MODEL, shape).into())
            .clone()
    }
}

/// Events that were rendered before.
struct Copied {
    events: Arc<[Bytes]>,
    next: usize,
    unflushed: bool,
}

impl Body for Copied {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.unflushed {
            // A body that is not ready makes hyper flush: one write an event, as model servers do.
            self.unflushed = false;
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let event = self.events.get(self.next).cloned();
        self.next += 1;
        self.unflushed = self.next < self.events.len();
        Poll::Ready(event.map(|event| Ok(Frame::data(event))))
    }
}

fn not_found() -> Answer {
    document(
        StatusCode::NOT_FOUND,
        Bytes::from_static(b"{\"detail\":\"Not Found\"}"),
    )
}

fn document(status: StatusCode, body: Bytes) -> Answer {
    respond(status, "application/json", Full::new(body).boxed())
}

fn respond(status: StatusCode, content_type: &'static str, body: BoxBody<Bytes, Infallible>) -> Answer {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}
