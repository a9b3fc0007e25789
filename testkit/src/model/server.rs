//! The HTTP server of the scripted model.

/// Documents, and what faults answer in the model's place.
mod answers;

use super::body::Played;
use super::choice::Choice;
use super::render::Reply;
use super::request::{ChatRequest, Refusal, TokenizeRequest, read_detokenize};
use super::sample::{mix, sampled_ids};
use super::script::{Conversation, Script};
use super::template::render;
use super::{PresetScript, Tokenizer, playback};
use crate::fault::{Fault, FaultPlan};
use answers::{Answer, full, instead, is_from_here, json, response};
use bytes::Bytes;
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, HeaderMap};
use hyper::service::service_fn;
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::{JoinHandle, JoinSet};

/// Largest request body that is read.
const BODY_LIMIT_BYTES: usize = 64 << 20;

/// How the scripted model answers.
#[derive(Clone, Debug)]
pub struct ScriptedModelConfig {
    /// The one model there is.
    pub model: String,
    /// The key to ask for; none is asked for if unset.
    pub api_key: Option<String>,
    /// What it says.
    pub script: Arc<dyn Script>,
    /// What goes wrong.
    pub faults: FaultPlan,
    /// Tokens of prompt and completion together.
    pub max_model_len: usize,
    /// Seed of the log-probabilities, together with that of the request.
    pub seed: u64,
    /// Whether requests and replies are kept for [`ScriptedModel::received`] and [`ScriptedModel::sent`].
    pub keep_requests: KeepRequests,
}

impl Default for ScriptedModelConfig {
    fn default() -> Self {
        Self {
            model: "scripted".into(),
            api_key: None,
            script: Arc::new(PresetScript),
            faults: FaultPlan::default(),
            max_model_len: 131_072,
            seed: 0,
            keep_requests: KeepRequests::No,
        }
    }
}

/// Whether requests and replies are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KeepRequests {
    /// They are forgotten.
    #[default]
    No,
    /// They are kept until the server is dropped.
    Yes,
}

/// A chat completion that was asked for.
#[derive(Clone, Debug)]
pub struct Received {
    /// Headers of the request.
    pub headers: HeaderMap,
    /// Its body.
    pub body: Bytes,
}

/// A reply to a chat completion, by its tokens, before anything of the [`FaultPlan`] happened to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sent {
    /// Ids of the prompt.
    pub prompt_token_ids: Vec<u32>,
    /// Ids of each choice.
    pub completion_token_ids: Vec<Vec<u32>>,
}

/// A running scripted model. Dropped, it stops at once and closes its connections.
#[derive(Debug)]
pub struct ScriptedModel {
    address: SocketAddr,
    state: Arc<State>,
    accepting: JoinHandle<()>,
}

/// Serves the scripted model on a listener until the handle is shut down or dropped.
///
/// # Errors
/// Where the listener does not know its own address.
pub fn serve(listener: TcpListener, config: ScriptedModelConfig) -> std::io::Result<ScriptedModel> {
    let address = listener.local_addr()?;
    let state = Arc::new(State {
        config,
        calls: AtomicU64::new(0),
        received: Mutex::default(),
        sent: Mutex::default(),
    });
    let accepting = tokio::spawn(accept(listener, state.clone()));
    Ok(ScriptedModel {
        address,
        state,
        accepting,
    })
}

impl ScriptedModel {
    /// Serves on an ephemeral port of 127.0.0.1.
    ///
    /// # Errors
    /// Where no port is to be had.
    pub async fn start(config: ScriptedModelConfig) -> std::io::Result<Self> {
        serve(TcpListener::bind(("127.0.0.1", 0)).await?, config)
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The base URL for OpenAI clients, `/v1` included.
    #[must_use]
    pub fn base_url(&self) -> String {
        format!("http://{}/v1", self.address)
    }

    /// Number of chat completions that were asked for.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.state.calls.load(Ordering::Relaxed)
    }

    /// The chat completions that were asked for, in order of arrival; empty unless they are kept.
    #[must_use]
    pub fn received(&self) -> Vec<Received> {
        lock(&self.state.received).clone()
    }

    /// What was sent in reply to those that were not refused, in the order of sending; empty unless it is kept.
    #[must_use]
    pub fn sent(&self) -> Vec<Sent> {
        lock(&self.state.sent).clone()
    }

    /// Stops, and waits until every connection is closed.
    pub async fn shutdown(mut self) {
        self.accepting.abort();
        // The only error is that it was aborted.
        let _ = (&mut self.accepting).await;
    }
}

impl Drop for ScriptedModel {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

#[derive(Debug)]
struct State {
    config: ScriptedModelConfig,
    calls: AtomicU64,
    received: Mutex<Vec<Received>>,
    sent: Mutex<Vec<Sent>>,
}

async fn accept(listener: TcpListener, state: Arc<State>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            biased;
            Some(_) = connections.join_next() => {}
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => drop(connections.spawn(serve_connection(stream, state.clone()))),
                Err(error) => {
                    // Out of file descriptors, most likely: wait for connections to close rather than spin.
                    tracing::warn!(%error, "scripted model cannot accept a connection");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            },
        }
    }
}

async fn serve_connection(stream: TcpStream, state: Arc<State>) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "cannot set TCP_NODELAY");
    }
    let reset = Arc::new(Notify::new());
    let service = {
        let reset = reset.clone();
        service_fn(move |request| answer(request, state.clone(), reset.clone()))
    };
    let mut connection =
        hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service);
    tokio::select! {
        biased;
        () = reset.notified() => {
            let stream = connection.into_parts().io.into_inner();
            if let Err(error) = stream.set_zero_linger() {
                tracing::debug!(%error, "cannot reset the connection");
            }
        }
        ended = &mut connection => {
            if let Err(error) = ended {
                tracing::debug!(%error, "a connection of the scripted model ended early");
            }
        }
    }
}

async fn answer(
    request: Request<Incoming>,
    state: Arc<State>,
    reset: Arc<Notify>,
) -> Result<Answer, Infallible> {
    if !is_from_here(request.headers()) {
        return Ok(json(403, r#"{"error":"Forbidden"}"#));
    }
    let path = request.uri().path().to_owned();
    if path.starts_with("/v1/") && !state.is_authorized(request.headers()) {
        return Ok(json(401, r#"{"error":"Unauthorized"}"#));
    }
    let is_get = request.method() == Method::GET;
    let is_post = request.method() == Method::POST;
    Ok(match path.as_str() {
        "/health" if is_get => full(200, "text/plain", Bytes::new()),
        "/v1/models" if is_get => json(200, state.models()),
        "/v1/chat/completions" | "/tokenize" | "/detokenize" if is_post => {
            let (head, body) = request.into_parts();
            match Limited::new(body, BODY_LIMIT_BYTES).collect().await {
                Err(_) => json(
                    413,
                    r#"{"error":{"message":"Request body too large","type":"BadRequestError","param":null,"code":413}}"#,
                ),
                Ok(body) => {
                    let body = body.to_bytes();
                    let answered = match path.as_str() {
                        "/tokenize" => state.tokenize(&body),
                        "/detokenize" => detokenize(&body),
                        _ => state.chat(head.headers, body, reset).await,
                    };
                    answered.unwrap_or_else(|refusal| json(refusal.status, refusal.body()))
                }
            }
        }
        "/health" | "/v1/models" | "/v1/chat/completions" | "/tokenize" | "/detokenize" => {
            json(405, r#"{"detail":"Method Not Allowed"}"#)
        }
        _ => json(404, r#"{"detail":"Not Found"}"#),
    })
}

impl State {
    fn is_authorized(&self, headers: &HeaderMap) -> bool {
        let Some(key) = &self.config.api_key else {
            return true;
        };
        let sent = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
        sent.and_then(|value| value.strip_prefix("Bearer ")) == Some(key)
    }

    fn models(&self) -> String {
        let (model, created) = (&self.config.model, unix_time().as_secs());
        let card = serde_json::json!({
            "id": model, "object": "model", "created": created, "owned_by": "vllm", "root": model, "parent": null,
            "max_model_len": self.config.max_model_len, "permission": [],
        });
        serde_json::json!({"object": "list", "data": [card]}).to_string()
    }

    fn tokenize(&self, body: &[u8]) -> Result<Answer, Refusal> {
        let request = TokenizeRequest::read(body)?;
        let ids = Tokenizer::get().encode(&request.text);
        let text =
            |id: &u32| String::from_utf8_lossy(Tokenizer::get().bytes(*id).unwrap_or_default()).into_owned();
        let texts = request
            .token_strs
            .then(|| ids.iter().map(text).collect::<Vec<_>>());
        let document = serde_json::json!({
            "count": ids.len(), "max_model_len": self.config.max_model_len, "tokens": ids, "token_strs": texts,
        });
        Ok(json(200, document.to_string()))
    }

    async fn chat(&self, headers: HeaderMap, body: Bytes, reset: Arc<Notify>) -> Result<Answer, Refusal> {
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        if self.config.keep_requests == KeepRequests::Yes {
            let received = Received {
                headers,
                body: body.clone(),
            };
            lock(&self.received).push(received);
        }
        let faults: Vec<Fault> = self.config.faults.of_call(call).cloned().collect();
        if let Some(answer) = instead(&faults, &body).await {
            return Ok(answer);
        }
        let request = ChatRequest::read(&body, &self.config.model)?;
        let prompt_ids =
            Tokenizer::get().encode(&render(&request.messages, &request.tools, request.generation));
        let room = request.room(prompt_ids.len(), self.config.max_model_len)?;
        let turn = self.config.script.next_turn(&Conversation::new(&request));
        let ids = sampled_ids(&turn, &request);
        let choice = |index| Choice::sample(&request, index, &ids, room);
        let now = unix_time();
        let reply = Reply {
            id: format!("chatcmpl-{:016x}", mix(now.as_nanos() as u64 ^ mix(call))),
            created: now.as_secs(),
            model: &self.config.model,
            seed: self.config.seed,
            request: &request,
            prompt_ids: &prompt_ids,
            choices: (0..request.choices).map(choice).collect(),
            faults,
        };
        if self.config.keep_requests == KeepRequests::Yes {
            lock(&self.sent).push(Sent {
                prompt_token_ids: prompt_ids.clone(),
                completion_token_ids: reply.choices.iter().map(|choice| choice.ids.clone()).collect(),
            });
        }
        if request.stream {
            let steps = playback::stream(reply.events(), &reply.faults, &turn);
            let body = Played::stream(steps, reset).boxed();
            return Ok(response(200, "text/event-stream; charset=utf-8", body));
        }
        let (length, steps) = playback::document(reply.document(), &reply.faults, &turn);
        Ok(response(
            200,
            "application/json",
            Played::document(length, steps, reset).boxed(),
        ))
    }
}

fn detokenize(body: &[u8]) -> Result<Answer, Refusal> {
    let bytes = Tokenizer::get().decode(&read_detokenize(body)?);
    Ok(json(
        200,
        serde_json::json!({"prompt": String::from_utf8_lossy(&bytes)}).to_string(),
    ))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn unix_time() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}
