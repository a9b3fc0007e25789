//! A closed loop of clients: each has one connection, asks, reads the reply to its end, checks it, asks again.

use super::process::{TreeUsage, tree_usage};
use super::upstream::{MODEL, REPLY_TOKENS};
use crate::model::bench_reply;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper::body::Incoming;
use hyper::client::conn::http1::SendRequest;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use hyper_util::rt::TokioIo;
use memchr::memmem;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::net::TcpStream;
use tokio::task::{JoinSet, LocalSet};

/// Longest a turn may take.
const TURN_LIMIT: Duration = Duration::from_secs(60);

/// What load to make.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadOptions {
    /// Where to ask.
    pub address: SocketAddr,
    /// Bearer token.
    pub api_key: String,
    /// Whether replies are streamed.
    pub streamed: bool,
    /// Whether the clients themselves ask for log-probabilities and ids, as they must where nothing in between does.
    pub ask_for_tokens: bool,
    /// Connections at once.
    pub connections: usize,
    /// Turns over all connections.
    pub turns: usize,
    /// No turn is begun after this.
    pub limit: Duration,
    /// Bytes of the prompt.
    pub prompt_bytes: usize,
    /// The process whose tree is watched.
    pub watched: Option<u32>,
}

/// What the load came to.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LoadReport {
    /// Turns that passed every check.
    pub turns: usize,
    /// Turns that did not.
    pub errors: usize,
    /// What was wrong with the first of them.
    pub first_error: Option<String>,
    /// From the first request to the last reply.
    pub wall_s: f64,
    /// Turns a second.
    pub turns_per_s: f64,
    /// Half of the turns took less.
    pub turn_p50_ms: f64,
    /// 99 of 100 turns took less.
    pub turn_p99_ms: f64,
    /// From the request to the first event; half of the turns took less.
    pub first_token_p50_ms: f64,
    /// The same for 99 of 100.
    pub first_token_p99_ms: f64,
    /// Processor seconds of the watched tree for 1000 turns.
    pub cpu_s_per_1000_turns: f64,
    /// Highest memory of the watched tree.
    pub rss_peak_kb: u64,
    /// Turns in which log-probabilities reached the client.
    pub leaked_logprobs_turns: usize,
    /// Turns in which ids reached the client.
    pub leaked_ids_turns: usize,
    /// Bytes of all replies.
    pub reply_bytes: u64,
}

/// Why a turn did not pass.
#[derive(Debug, thiserror::Error)]
enum TurnError {
    #[error("cannot connect: {0}")]
    Connect(#[from] std::io::Error),
    #[error("the connection broke: {0}")]
    Connection(#[from] hyper::Error),
    #[error("the request cannot be made: {0}")]
    Request(#[from] hyper::http::Error),
    #[error("status {status}: {body}")]
    Status { status: u16, body: String },
    #[error("{events} events and {ends} ends, not {wanted} and 1")]
    Events {
        events: usize,
        ends: usize,
        wanted: usize,
    },
    #[error("the reply does not say what it should")]
    Text,
    #[error("the turn took more than {} s", TURN_LIMIT.as_secs())]
    Late,
}

#[derive(Debug, Default)]
struct Turn {
    took: Duration,
    first_token: Duration,
    bytes: u64,
    leaked_logprobs: bool,
    leaked_ids: bool,
}

struct Job {
    options: LoadOptions,
    body: Bytes,
    authority: String,
    text: String,
    left: Cell<usize>,
    deadline: Instant,
}

/// Makes the load, after a few turns to warm up, and reports on it.
pub async fn run(options: LoadOptions) -> LoadReport {
    let warm_up = LoadOptions {
        connections: 1,
        turns: 3,
        watched: None,
        ..options.clone()
    };
    make(warm_up).await;
    make(options).await
}

async fn make(options: LoadOptions) -> LoadReport {
    let begun = Instant::now();
    let before = options.watched.map(tree_usage).unwrap_or_default();
    let (connections, watched) = (options.connections, options.watched);
    let job = Rc::new(Job {
        body: request_body(&options).into(),
        authority: options.address.to_string(),
        text: bench_reply::text(REPLY_TOKENS),
        left: Cell::new(options.turns),
        deadline: begun + options.limit,
        options,
    });
    let mut peak = before;
    let mut results = Vec::new();
    let local = LocalSet::new();
    local
        .run_until(async {
            let mut clients = JoinSet::new();
            for _ in 0..connections {
                clients.spawn_local(client(job.clone()));
            }
            let mut sample = tokio::time::interval(Duration::from_millis(100));
            loop {
                tokio::select! {
                    ended = clients.join_next() => match ended {
                        Some(turns) => results.extend(turns.unwrap_or_default()),
                        None => break,
                    },
                    _ = sample.tick() => {
                        let now = watched.map(tree_usage).unwrap_or_default();
                        peak.rss_kb = peak.rss_kb.max(now.rss_kb);
                    }
                }
            }
        })
        .await;
    let wall = begun.elapsed();
    let after = watched.map(tree_usage).unwrap_or_default();
    peak.rss_kb = peak.rss_kb.max(after.rss_kb);
    report(
        results,
        wall,
        TreeUsage {
            cpu_s: after.cpu_s - before.cpu_s,
            ..peak
        },
    )
}

fn report(results: Vec<Result<Turn, TurnError>>, wall: Duration, usage: TreeUsage) -> LoadReport {
    let mut report = LoadReport {
        wall_s: wall.as_secs_f64(),
        rss_peak_kb: usage.rss_kb,
        ..LoadReport::default()
    };
    let (mut took, mut first) = (Vec::new(), Vec::new());
    for result in results {
        match result {
            Ok(turn) => {
                took.push(turn.took.as_secs_f64() * 1e3);
                first.push(turn.first_token.as_secs_f64() * 1e3);
                report.reply_bytes += turn.bytes;
                report.leaked_logprobs_turns += usize::from(turn.leaked_logprobs);
                report.leaked_ids_turns += usize::from(turn.leaked_ids);
            }
            Err(error) => {
                report.errors += 1;
                report.first_error.get_or_insert_with(|| error.to_string());
            }
        }
    }
    report.turns = took.len();
    report.turns_per_s = took.len() as f64 / report.wall_s;
    report.cpu_s_per_1000_turns = usage.cpu_s / took.len().max(1) as f64 * 1e3;
    took.sort_by(f64::total_cmp);
    first.sort_by(f64::total_cmp);
    report.turn_p50_ms = quantile(&took, 0.5);
    report.turn_p99_ms = quantile(&took, 0.99);
    report.first_token_p50_ms = quantile(&first, 0.5);
    report.first_token_p99_ms = quantile(&first, 0.99);
    report
}

/// A quantile of sorted values; 0 of none.
#[must_use]
pub fn quantile(sorted: &[f64], share: f64) -> f64 {
    let last = sorted.len().saturating_sub(1);
    sorted
        .get((last as f64 * share).round() as usize)
        .copied()
        .unwrap_or(0.0)
}

/// A request as an agent makes it: a long system prompt, a tool, a short question.
fn request_body(options: &LoadOptions) -> String {
    const SAYING: &str = "Read the file, then edit it so that the tests pass. ";
    let system = SAYING.repeat(options.prompt_bytes / SAYING.len() + 1);
    let parameters =
        json!({"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]});
    let function = json!({"name": "bash", "description": "Runs a command", "parameters": parameters});
    let mut members = serde_json::Map::new();
    let mut set = |name: &str, value: Value| drop(members.insert(name.into(), value));
    set("model", MODEL.into());
    set("max_tokens", REPLY_TOKENS.into());
    set(
        "messages",
        json!([{"role": "system", "content": system}, {"role": "user", "content": "hello 🎉"}]),
    );
    set("tools", json!([{"type": "function", "function": function}]));
    if options.streamed {
        set("stream", true.into());
        set("stream_options", json!({"include_usage": true}));
    }
    if options.ask_for_tokens {
        set("logprobs", true.into());
        set("top_logprobs", 5.into());
        set("return_token_ids", true.into());
    }
    Value::from(members).to_string()
}

async fn client(job: Rc<Job>) -> Vec<Result<Turn, TurnError>> {
    let mut turns = Vec::new();
    let mut connection = None;
    while let Some(left) = job.left.get().checked_sub(1) {
        if Instant::now() >= job.deadline {
            break;
        }
        job.left.set(left);
        // The first good reply of each client is read word by word; of those after it events are counted.
        let has_passed = turns.iter().any(Result::is_ok);
        let check = if has_passed { Check::Count } else { Check::Text };
        let turn = tokio::time::timeout(TURN_LIMIT, turn(&job, &mut connection, check)).await;
        let turn = turn.unwrap_or(Err(TurnError::Late));
        if turn.is_err() {
            connection = None;
        }
        turns.push(turn);
    }
    turns
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Check {
    Text,
    Count,
}

async fn turn(
    job: &Job,
    connection: &mut Option<SendRequest<Full<Bytes>>>,
    check: Check,
) -> Result<Turn, TurnError> {
    let is_ready = match connection.as_mut() {
        Some(sender) => sender.ready().await.is_ok(),
        None => false,
    };
    let sender = match connection.as_mut().filter(|_| is_ready) {
        Some(sender) => sender,
        None => connection.insert(connect(job.options.address).await?),
    };
    let request = Request::post("/v1/chat/completions")
        .header(HOST, &job.authority)
        .header(CONTENT_TYPE, "application/json")
        .header(AUTHORIZATION, format!("Bearer {}", job.options.api_key))
        .body(Full::new(job.body.clone()))?;
    let begun = Instant::now();
    let response = sender.send_request(request).await?;
    let status = response.status();
    if !status.is_success() {
        let body = response.into_body().collect().await?.to_bytes();
        let body = String::from_utf8_lossy(body.get(..300).unwrap_or(&body)).into_owned();
        return Err(TurnError::Status {
            status: status.as_u16(),
            body,
        });
    }
    if job.options.streamed {
        read_stream(job, response.into_body(), begun, check).await
    } else {
        read_document(job, response.into_body(), begun, check).await
    }
}

async fn connect(address: SocketAddr) -> Result<SendRequest<Full<Bytes>>, TurnError> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    tokio::task::spawn_local(connection);
    Ok(sender)
}

async fn read_document(job: &Job, body: Incoming, begun: Instant, check: Check) -> Result<Turn, TurnError> {
    let body = body.collect().await?.to_bytes();
    let took = begun.elapsed();
    if check == Check::Text {
        let document: Value = serde_json::from_slice(&body).map_err(|_| TurnError::Text)?;
        let content = document
            .pointer("/choices/0/message/content")
            .and_then(Value::as_str);
        if content != Some(&job.text) {
            return Err(TurnError::Text);
        }
    } else if !body.trim_ascii_end().ends_with(b"}") || memmem::find(&body, b"\"content\"").is_none() {
        return Err(TurnError::Text);
    }
    let mut turn = Turn {
        took,
        first_token: took,
        bytes: body.len() as u64,
        ..Turn::default()
    };
    turn.look_for_leaks(&body);
    Ok(turn)
}

async fn read_stream(job: &Job, mut body: Incoming, begun: Instant, check: Check) -> Result<Turn, TurnError> {
    let mut turn = Turn::default();
    let (mut events, mut ends) = (0_usize, 0_usize);
    let mut said = String::new();
    let mut buffer: Vec<u8> = Vec::with_capacity(16 << 10);
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame?.into_data() else { continue };
        turn.bytes += data.len() as u64;
        buffer.extend_from_slice(&data);
        let mut read = 0;
        while let Some(line) = next_line(&buffer, read) {
            read += line.len() + 1;
            let Some(data) = line.strip_prefix(b"data:").map(<[u8]>::trim_ascii) else {
                continue;
            };
            if data == b"[DONE]" {
                ends += 1;
                continue;
            }
            if events == 0 {
                turn.first_token = begun.elapsed();
            }
            events += 1;
            turn.look_for_leaks(data);
            if check == Check::Text {
                let event: Value = serde_json::from_slice(data).map_err(|_| TurnError::Text)?;
                said.push_str(
                    event
                        .pointer("/choices/0/delta/content")
                        .and_then(Value::as_str)
                        .unwrap_or_default(),
                );
            }
        }
        buffer.drain(..read);
    }
    turn.took = begun.elapsed();
    // The role, an event a token, usage.
    let wanted = REPLY_TOKENS + 2;
    if events != wanted || ends != 1 {
        return Err(TurnError::Events { events, ends, wanted });
    }
    if check == Check::Text && said != job.text {
        Err(TurnError::Text)
    } else {
        Ok(turn)
    }
}

/// The line that starts here, without its end; `None` where it is not whole.
fn next_line(buffer: &[u8], start: usize) -> Option<&[u8]> {
    let rest = buffer.get(start..)?;
    rest.get(..memchr::memchr(b'\n', rest)?)
}

impl Turn {
    /// Log-probabilities and ids are there where a member of the name has a value.
    fn look_for_leaks(&mut self, json: &[u8]) {
        let has = |member: &[u8], open: u8| {
            memmem::find_iter(json, member).any(|at| {
                let value = json
                    .get(at + member.len()..)
                    .unwrap_or_default()
                    .trim_ascii_start();
                value.first() == Some(&open)
            })
        };
        self.leaked_logprobs |= has(b"\"logprobs\":", b'{');
        self.leaked_ids |= has(b"token_ids\":", b'[');
    }
}
