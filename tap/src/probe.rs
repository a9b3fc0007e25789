//! What an endpoint returns, found out by asking it: a few small calls, made like any agent's through a session of their
//! own, so that what is found out is what capture will find.

use crate::answer::chain;
use crate::endpoint::{Endpoint, EndpointError, Operation};
use crate::random::NoRandomness;
use crate::session::{Session, SessionConfig};
use crate::sink::CallSink;
use crate::upstream::Upstream;
use bytes::Bytes;
use dressage_wire::call::{Call, CallEnd, Flag};
use dressage_wire::ids::RolloutId;
use dressage_wire::probe::{Alternative, LogprobsKind, PROBE_VERSION, ProbeReport, ProbedReply};
use dressage_wire::task::CaptureMode;
use http::{HeaderMap, Method, Request};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::rt::TokioIo;
use secrecy::ExposeSecret;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::mpsc;

/// How long one call may take: a cold server compiles and loads before its first reply.
const PATIENCE: Duration = Duration::from_secs(180);

/// More than any list of models.
const LIST_MAX_BYTES: usize = 16 << 20;

/// Alternatives asked for; routers allow no more.
const ALTERNATIVES: u32 = 5;

/// The temperature that is compared with 1.
const TEMPERATURE: f64 = 2.0;

/// Why nothing could be found out.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// The endpoint cannot be used as configured.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// The system gave no random numbers.
    #[error(transparent)]
    NoRandomness(#[from] NoRandomness),
    /// No call was answered.
    #[error("endpoint `{endpoint}` answers no calls: {message}")]
    NoReply {
        /// Its name.
        endpoint: String,
        /// What came instead.
        message: String,
        /// What may help.
        hint: Option<String>,
    },
}

/// Asks an endpoint for what it returns: six calls of at most a few hundred tokens, and its list of models.
///
/// # Errors
/// Where not even a plain call is answered.
pub async fn probe(endpoint: &Endpoint) -> Result<ProbeReport, ProbeError> {
    let upstream = Upstream::new(endpoint.clone())?;
    let prober = Prober::open(upstream)?;
    let model = endpoint.model.clone().unwrap_or_default();

    let whole = prober.ask(&plain(&model, false)).await;
    if let Err(message) = whole.succeeded() {
        return Err(ProbeError::NoReply {
            endpoint: endpoint.name.clone(),
            message,
            hint: whole.call.and_then(|call| call.meta.hint),
        });
    }
    let stream = prober.ask(&plain(&model, true)).await;
    let whole_with_tools = prober.ask(&with_tools(&model, false)).await;
    let stream_with_tools = prober.ask(&with_tools(&model, true)).await;
    let at_one = prober.ask(&one_token(&model, 1.0)).await;
    let at_temperature = prober.ask(&one_token(&model, TEMPERATURE)).await;
    let changes = prober.upstream.refusals(&model);
    prober.close().await;

    let replies = [&whole, &stream, &whole_with_tools, &stream_with_tools];
    let mut report = ProbeReport {
        version: PROBE_VERSION,
        base_url: prober.upstream.base_url().to_owned(),
        answered_as: whole.call.as_ref().and_then(|call| call.meta.model.clone()),
        model,
        probed_unix_ms: now_unix_ms(),
        whole: whole.probed(),
        stream: stream.probed(),
        whole_with_tools: whole_with_tools.probed(),
        stream_with_tools: stream_with_tools.probed(),
        tool_called: whole_with_tools.called_tool() && stream_with_tools.called_tool(),
        logprobs: kind(&at_one, &at_temperature),
        changes,
        context_length: context_length(endpoint).await,
        reasoning_member: replies.iter().find_map(|reply| reply.reasoning_member()),
        capture: CaptureMode::Stream,
        notes: Vec::new(),
    };
    report.capture = report.advise();
    report.notes = notes(&report);
    Ok(report)
}

fn plain(model: &str, stream: bool) -> Value {
    json!({
        "model": model, "stream": stream, "temperature": 1.0, "max_tokens": 64,
        "messages": [{"role": "user", "content": "Count from one to five, in words."}],
    })
}

fn with_tools(model: &str, stream: bool) -> Value {
    json!({
        "model": model, "stream": stream, "temperature": 1.0, "max_tokens": 256,
        "messages": [{"role": "user", "content": "Call the tool `add` with a = 2 and b = 3."}],
        "tools": [{"type": "function", "function": {
            "name": "add", "description": "Adds two numbers.",
            "parameters": {
                "type": "object", "required": ["a", "b"],
                "properties": {"a": {"type": "number"}, "b": {"type": "number"}},
            },
        }}],
    })
}

fn one_token(model: &str, temperature: f64) -> Value {
    json!({
        "model": model, "stream": false, "temperature": temperature, "max_tokens": 1,
        "messages": [{"role": "user", "content": "Name an animal."}],
    })
}

/// Makes calls, one after the other.
struct Prober {
    upstream: Arc<Upstream>,
    session: Arc<Session>,
    calls: tokio::sync::Mutex<mpsc::UnboundedReceiver<Call>>,
}

struct Calls(mpsc::UnboundedSender<Call>);

impl CallSink for Calls {
    fn finished(&self, call: Call) {
        // The other side goes away only when nobody wants to know any more.
        let _ = self.0.send(call);
    }
}

/// What came of a call.
struct Reply {
    call: Option<Call>,
    /// Why there is none.
    failure: Option<String>,
}

impl Prober {
    fn open(upstream: Arc<Upstream>) -> Result<Self, NoRandomness> {
        let (sender, calls) = mpsc::unbounded_channel();
        let mut config = SessionConfig::new(RolloutId::new(), upstream.clone());
        config.top_logprobs = ALTERNATIVES;
        config.capture = CaptureMode::Stream;
        let session = Session::new(config, Arc::new(Calls(sender)))?;
        session.open();
        Ok(Self {
            upstream,
            session,
            calls: tokio::sync::Mutex::new(calls),
        })
    }

    async fn ask(&self, body: &Value) -> Reply {
        let asked = tokio::time::timeout(PATIENCE, self.exchange(body)).await;
        match asked.unwrap_or_else(|_| Err(format!("no reply within {} s", PATIENCE.as_secs()))) {
            Ok(call) => Reply {
                call: Some(call),
                failure: None,
            },
            Err(failure) => Reply {
                call: None,
                failure: Some(failure),
            },
        }
    }

    async fn exchange(&self, body: &Value) -> Result<Call, String> {
        let (near, far) = tokio::io::duplex(64 << 10);
        let serving = tokio::spawn(self.session.clone().serve_connection(far));
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(near))
            .await
            .map_err(|error| chain(&error))?;
        let connection = tokio::spawn(connection);
        let request = Request::post("/v1/chat/completions")
            .header("host", "localhost")
            .header("content-type", "application/json")
            .header(
                "authorization",
                format!("Bearer {}", self.session.token().expose_secret()),
            )
            .body(Full::new(Bytes::from(body.to_string())))
            .map_err(|error| chain(&error))?;
        let response = sender
            .send_request(request)
            .await
            .map_err(|error| chain(&error))?;
        // What was captured says more than what the agent gets, but it has to be read for the call to end.
        let _ = response.into_body().collect().await;
        let call = self.calls.lock().await.recv().await;
        connection.abort();
        serving.abort();
        call.ok_or_else(|| "the call was not recorded".to_owned())
    }

    async fn close(&self) {
        self.session.close().await;
    }
}

impl Reply {
    /// Else what went wrong.
    fn succeeded(&self) -> Result<(), String> {
        match &self.call {
            Some(call) if call.meta.end == CallEnd::Complete => Ok(()),
            Some(call) => Err(call
                .meta
                .error
                .clone()
                .unwrap_or_else(|| format!("the call ended as {:?}", call.meta.end))),
            None => Err(self.failure.clone().unwrap_or_default()),
        }
    }

    fn probed(&self) -> ProbedReply {
        let error = self.succeeded().err();
        let meta = self
            .call
            .as_ref()
            .map(|call| &call.meta)
            .filter(|_| error.is_none());
        ProbedReply {
            level: meta.map_or(dressage_wire::call::CaptureLevel::Text, |meta| meta.level),
            flags: meta.map_or_else(Vec::new, |meta| {
                let told = |flag: &&Flag| !matches!(flag, Flag::SamplingDefaulted);
                meta.flags.iter().filter(told).copied().collect()
            }),
            error,
        }
    }

    fn message(&self) -> Option<Value> {
        let response: Value = serde_json::from_slice(&self.call.as_ref()?.response).ok()?;
        Some(response.pointer("/choices/0/message")?.clone())
    }

    fn called_tool(&self) -> bool {
        let calls = self
            .message()
            .and_then(|message| message.get("tool_calls").cloned());
        calls.is_some_and(|calls| calls.as_array().is_some_and(|calls| !calls.is_empty()))
    }

    fn reasoning_member(&self) -> Option<String> {
        let message = self.message()?;
        let there = |name: &&str| {
            let text = message.get(*name).and_then(Value::as_str);
            text.is_some_and(|text| !text.is_empty())
        };
        ["reasoning", "reasoning_content"]
            .into_iter()
            .find(there)
            .map(str::to_owned)
    }

    /// The alternatives for the first token.
    fn alternatives(&self) -> Vec<Alternative> {
        let first = self.call.as_ref().and_then(|call| call.completions.first());
        let first = first.and_then(|completion| completion.top_logprobs.first());
        let named = first.into_iter().flatten();
        named.map(|one| (one.token.clone(), one.logprob)).collect()
    }

    /// Whether the endpoint took the temperature.
    fn heated(&self) -> bool {
        let sampling = self.call.as_ref().map(|call| &call.meta.sampling);
        sampling.is_some_and(|sampling| sampling.temperature == Some(TEMPERATURE))
    }
}

fn kind(at_one: &Reply, at_temperature: &Reply) -> LogprobsKind {
    let (one, other) = (at_one.alternatives(), at_temperature.alternatives());
    match LogprobsKind::tell(&one, &other, TEMPERATURE) {
        LogprobsKind::Raw | LogprobsKind::Processed if !at_temperature.heated() => LogprobsKind::Unknown,
        told => told,
    }
}

/// What the endpoint's list of models says of the model. vLLM and SGLang say `max_model_len`, OpenRouter
/// `context_length`, Groq `context_window`.
async fn context_length(endpoint: &Endpoint) -> Option<u64> {
    let upstream = Upstream::new(endpoint.clone()).ok()?;
    let response = upstream
        .send(
            0,
            Method::GET,
            Operation::OfApi("/models"),
            HeaderMap::new(),
            Bytes::new(),
        )
        .await
        .ok()?;
    let reading = Limited::new(response.into_body(), LIST_MAX_BYTES).collect();
    let body = tokio::time::timeout(PATIENCE, reading)
        .await
        .ok()?
        .ok()?
        .to_bytes();
    let list: Value = serde_json::from_slice(&body).ok()?;
    let listed = list.get("data")?.as_array()?;
    let model = endpoint.model.as_deref();
    let named = |entry: &&Value| model.is_none() || entry.get("id").and_then(Value::as_str) == model;
    let entry = listed.iter().find(named)?;
    ["max_model_len", "context_length", "context_window"]
        .iter()
        .find_map(|name| entry.get(*name)?.as_u64())
}

fn notes(report: &ProbeReport) -> Vec<String> {
    let mut notes = Vec::new();
    if let Some(error) = &report.whole_with_tools.error {
        notes.push(format!(
            "requests with tools are refused, without which agents do nothing: {error} (vLLM needs \
             --enable-auto-tool-choice and --tool-call-parser)"
        ));
    } else if !report.tool_called {
        notes.push(
            "the model called no tool when asked to, so the tokens of tool calls were not looked at".into(),
        );
    }
    match report.logprobs {
        LogprobsKind::Raw => notes.push(
            "log-probabilities are those before temperature: turns that are not sampled plainly are not trained \
             (vLLM: --logprobs-mode processed_logprobs)"
                .into(),
        ),
        LogprobsKind::None => notes.push("there are no log-probabilities".into()),
        LogprobsKind::Processed | LogprobsKind::Unknown => {}
    }
    if report.capture == CaptureMode::Buffer {
        notes.push(
            "streams lack what whole replies have: with `capture = \"auto\"` whole replies are asked for"
                .into(),
        );
    }
    notes
}

fn now_unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
