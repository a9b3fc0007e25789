//! One client of a load, and its turns.

use super::super::upstream::REPLY_TOKENS;
use super::{LoadOptions, TURN_LIMIT};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper::body::Incoming;
use hyper::client::conn::http1::SendRequest;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use hyper_util::rt::TokioIo;
use memchr::memmem;
use serde_json::Value;
use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::net::TcpStream;

/// Why a turn did not pass.
#[derive(Debug, thiserror::Error)]
pub(super) enum TurnError {
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

/// A turn that passed.
#[derive(Debug, Default)]
pub(super) struct Turn {
    pub took: Duration,
    pub first_token: Duration,
    pub bytes: u64,
    pub leaked_logprobs: bool,
    pub leaked_ids: bool,
}

/// What the clients of a load share.
pub(super) struct Job {
    pub options: LoadOptions,
    pub body: Bytes,
    pub authority: String,
    pub text: String,
    pub left: Cell<usize>,
    pub deadline: Instant,
}

/// One client, until no turn is left.
pub(super) async fn client(job: Rc<Job>) -> Vec<Result<Turn, TurnError>> {
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
