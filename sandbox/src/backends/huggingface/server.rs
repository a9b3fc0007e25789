use super::background::Background;
use super::jobs::{Job, Jobs};
use crate::Channel;
use crate::remote::carrier;
use crate::remote::http::{
    Call, Content, HttpClient, HttpError, Retry, collect, parse, percent_encoded, said, secret_header,
};
use crate::remote::machine::{Machine, MachineError, Program, Ran, Running};
use crate::remote::scripts;
use async_trait::async_trait;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::{Buf, Bytes, BytesMut};
use dressage_wire::relay::SECRET_HEADER;
use futures_util::{StreamExt, TryStreamExt, stream};
use http::Method;
use http::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use http_body_util::BodyExt;
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::Instant;

/// For a job to run, and its program to answer.
const START: Duration = Duration::from_secs(300);

/// Between two looks at whether the program answers, as `huggingface_hub` has them.
const LOOK: Duration = Duration::from_millis(150);

/// Between two looks at whether the job is over.
const LOOK_AT_JOB: Duration = Duration::from_secs(2);

/// The protocol that is spoken here.
const PROTOCOL: u64 = 3;

/// For an answer of one piece.
const WITHIN: Duration = Duration::from_secs(60);

/// For a process that was killed to be seen to have ended.
const KILLED: Duration = Duration::from_secs(10);

/// For a piece of a file to be there, up or down.
const TRANSFER: Duration = Duration::from_secs(600);

/// Silence after which a stream is given up: it says something every 15 s.
const SILENCE: Duration = Duration::from_secs(70);

/// The longest line of a stream, and the longest answer of one piece.
const LIMIT: usize = 16 << 20;

/// What a short program may write.
const OUTPUT_BYTES: usize = 64 << 20;

/// A file is sent in pieces over connections of their own: one alone is slow over long distances.
const PIECE_BYTES: u64 = 4 << 20;
const PIECES_AT_ONCE: usize = 8;

/// Where a relay waits for the host to dial it.
const CARRIER_ADDRESS: &str = "127.0.0.1:7001";

/// The program in a job that its sandbox is used by.
#[derive(Clone)]
pub(super) struct Server {
    jobs: Arc<Jobs>,
    job: String,
    url: String,
    token: SecretString,
    /// A connection that was proxied to a port belongs to that port from then on.
    dialling: HttpClient,
    next: Arc<AtomicU64>,
}

/// A process in the background.
#[derive(Debug, Deserialize)]
pub(super) struct Listed {
    #[serde(default)]
    id: Option<String>,
    #[serde(default)]
    pub(super) running: bool,
    /// Unset where a signal ended it.
    #[serde(default)]
    pub(super) exit_code: Option<i32>,
}

#[derive(Deserialize)]
struct Event {
    event: String,
    #[serde(default)]
    data: String,
    #[serde(default)]
    exit_code: Option<i32>,
    #[serde(default)]
    signal: Option<i32>,
    #[serde(default)]
    timed_out: bool,
}

#[derive(Deserialize)]
struct Health {
    #[serde(default)]
    protocol: Option<u64>,
}

#[derive(Deserialize)]
struct Started {
    id: String,
}

impl Server {
    pub(super) fn new(jobs: Arc<Jobs>, job: Job) -> Self {
        Self {
            jobs,
            job: job.id,
            url: job.url,
            token: job.token,
            dialling: HttpClient::unpooled(),
            next: Arc::new(AtomicU64::new(1)),
        }
    }

    /// Both tokens: the account's for the proxy, the sandbox's for the program.
    fn headers(&self) -> Result<HeaderMap, HttpError> {
        let mut headers = HeaderMap::new();
        let bearer = format!("Bearer {}", self.jobs.token.expose_secret());
        secret_header(&mut headers, "authorization", &bearer)?;
        secret_header(&mut headers, "x-sandbox-token", self.token.expose_secret())?;
        Ok(headers)
    }

    fn request(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Call, HttpError> {
        let mut headers = self.headers()?;
        let mut bytes = Bytes::new();
        if let Some(json) = body {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
            bytes = Bytes::from(json.to_string());
        }
        Ok(Call {
            method,
            url: format!("{}{path}", self.url),
            headers,
            body: bytes.into(),
        })
    }

    /// Runs a program in the foreground. What it writes is text here.
    pub(super) async fn exec(
        &self,
        argv: &[String],
        env: &BTreeMap<String, String>,
        limit: Option<Duration>,
    ) -> Result<Ran, MachineError> {
        // Always with a limit: after a lost connection nobody could find it.
        let limit = limit.unwrap_or(WITHIN);
        let body = json!({ "cmd": argv, "env": env, "timeout": limit.as_secs_f64() });
        let call = self.request(Method::POST, "/v1/exec", Some(&body))?;
        let answer = tokio::time::timeout(SILENCE, self.jobs.http.open(&call))
            .await
            .unwrap_or(Err(HttpError::TimedOut(SILENCE)))?;
        let status = answer.status();
        if !status.is_success() {
            let body = collect(answer.into_body(), LIMIT).await?;
            let message = said(&body, &call.headers);
            return Err(HttpError::Status { status, message }.into());
        }
        let mut body = answer.into_body();
        let mut lines = Lines::default();
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        loop {
            while let Some(line) = lines.take()? {
                let event: Event = parse(&line)?;
                match event.event.as_str() {
                    "stdout" => stdout.extend_from_slice(event.data.as_bytes()),
                    "stderr" => stderr.extend_from_slice(event.data.as_bytes()),
                    "exit" => {
                        return Ok(Ran {
                            code: code_of(&event),
                            stdout,
                            stderr,
                        });
                    }
                    // Its beginning, pings, and what later versions say.
                    _ => {}
                }
                if stdout.len() + stderr.len() > OUTPUT_BYTES {
                    return Err(HttpError::TooLong(OUTPUT_BYTES).into());
                }
            }
            match tokio::time::timeout(SILENCE, body.frame()).await {
                Err(_) | Ok(None | Some(Err(_))) => return Err(MachineError::Cut),
                Ok(Some(Ok(frame))) => {
                    if let Ok(data) = frame.into_data() {
                        lines.0.extend_from_slice(&data);
                    }
                }
            }
        }
    }

    /// A process in the background, by its id. `None` where the program knows of none.
    pub(super) async fn process(&self, id: &str) -> Result<Option<Listed>, MachineError> {
        let call = self.request(Method::GET, "/v1/processes", None)?;
        let answer = self
            .jobs
            .http
            .call(&call, Retry::Repeatable, WITHIN, LIMIT)
            .await?;
        let listed: Vec<Listed> = parse(&answer.body)?;
        Ok(listed.into_iter().find(|listed| listed.id.as_deref() == Some(id)))
    }
}

/// A null exit code is a signal's, or the deadline's.
fn code_of(event: &Event) -> i32 {
    match (event.timed_out, event.exit_code, event.signal) {
        (true, _, _) => 124,
        (_, Some(code), _) => code,
        (_, None, Some(signal)) => 128 + signal,
        (_, None, None) => 128 + libc::SIGKILL,
    }
}

/// Lines of a stream.
#[derive(Default)]
struct Lines(BytesMut);

impl Lines {
    fn take(&mut self) -> Result<Option<Bytes>, HttpError> {
        loop {
            let Some(end) = self.0.iter().position(|byte| *byte == b'\n') else {
                return match self.0.len() {
                    length if length > LIMIT => Err(HttpError::TooLong(LIMIT)),
                    _ => Ok(None),
                };
            };
            let line = self.0.split_to(end).freeze();
            self.0.advance(1);
            if !line.trim_ascii().is_empty() {
                return Ok(Some(line));
            }
        }
    }
}

#[async_trait]
impl Machine for Server {
    async fn ready(&self) -> Result<(), MachineError> {
        let health = self.request(Method::GET, "/health", None)?;
        let failed = |message: String| MachineError::Said {
            code: "the job did not become a sandbox".into(),
            message,
        };
        let deadline = Instant::now() + START;
        let mut look_at_job = Instant::now() + LOOK_AT_JOB;
        loop {
            let answer = self
                .jobs
                .http
                .call(&health, Retry::No, Duration::from_secs(5), 64 << 10)
                .await;
            if let Ok(answer) = answer {
                // Unset is the first.
                let protocol = parse::<Health>(&answer.body)?.protocol.unwrap_or(1);
                return if protocol >= PROTOCOL {
                    Ok(())
                } else {
                    Err(failed(format!(
                        "its program speaks protocol {protocol}, and {PROTOCOL} is needed"
                    )))
                };
            }
            if Instant::now() > look_at_job {
                if let Ok(Some(over)) = self.jobs.over(&self.job).await {
                    let words = self.jobs.last_words(&self.job).await;
                    return Err(failed(format!("{over}: {words}")));
                }
                look_at_job = Instant::now() + LOOK_AT_JOB;
            }
            if Instant::now() > deadline {
                return Err(failed(format!("no answer within {} s", START.as_secs())));
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    async fn run(&self, program: &Program) -> Result<Ran, MachineError> {
        let mut argv: Vec<String> = ["/bin/sh", "-c", scripts::AS_TEXT, "dressage"]
            .map(str::to_owned)
            .into();
        argv.extend(program.argv.iter().cloned());
        let mut ran = self.exec(&argv, &program.env, program.lifetime).await?;
        ran.stdout = decoded(&ran.stdout)?;
        Ok(ran)
    }

    async fn start(&self, program: &Program) -> Result<Box<dyn Running>, MachineError> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let folder = format!("{}/run-{number}", scripts::PUT);
        let mut env = program.env.clone();
        let mark = env.remove(scripts::TREE).unwrap_or_default();
        let mut argv: Vec<String> = ["/bin/sh", "-c", scripts::IN_BACKGROUND, "dressage"]
            .map(str::to_owned)
            .into();
        argv.extend([folder.clone(), mark.clone()]);
        argv.extend(program.argv.iter().cloned());
        let body = json!({ "cmd": argv, "env": env });
        let call = self.request(Method::POST, "/v1/processes", Some(&body))?;
        let answer = self.jobs.http.call(&call, Retry::No, WITHIN, LIMIT).await?;
        let started: Started = parse(&answer.body)?;
        Ok(Box::new(Background::new(
            self.clone(),
            started.id,
            folder,
            !mark.is_empty(),
        )))
    }

    async fn kill(&self, process: &str) -> Result<(), MachineError> {
        let path = format!("/v1/processes/{}", percent_encoded(process));
        let call = self.request(Method::DELETE, &path, None)?;
        self.jobs
            .http
            .call(&call, Retry::Repeatable, WITHIN, LIMIT)
            .await?;
        // That it is gone is what counts, and not who ended it. What holds its output keeps it in the list for 2 s.
        let deadline = Instant::now() + KILLED;
        while let Some(Listed { running: true, .. }) = self.process(process).await? {
            if Instant::now() > deadline {
                return Err(MachineError::Said {
                    code: "it still runs".into(),
                    message: process.to_owned(),
                });
            }
            tokio::time::sleep(LOOK).await;
        }
        Ok(())
    }

    async fn upload(&self, path: &str, content: Content) -> Result<(), MachineError> {
        let length = content
            .length()
            .await
            .map_err(|error| HttpError::Lost(Box::new(error)))?;
        let path = percent_encoded(path);
        let send = |content: Content, place: String| {
            let path = &path;
            async move {
                let mut call =
                    self.request(Method::PUT, &format!("/v1/files/write?path={path}{place}"), None)?;
                call.headers
                    .insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
                call.body = content;
                // The same bytes at the same place.
                self.jobs
                    .http
                    .call(&call, Retry::Repeatable, TRANSFER, LIMIT)
                    .await?;
                Ok::<(), MachineError>(())
            }
        };
        if length <= PIECE_BYTES {
            return send(content, String::new()).await;
        }
        // The first alone: it makes the file.
        send(content.part(0, PIECE_BYTES), String::new()).await?;
        let mut offset = PIECE_BYTES;
        let mut pieces = Vec::new();
        while offset < length {
            let size = PIECE_BYTES.min(length - offset);
            pieces.push(send(content.part(offset, size), format!("&offset={offset}")));
            offset += size;
        }
        stream::iter(pieces)
            .buffer_unordered(PIECES_AT_ONCE)
            .try_collect::<()>()
            .await
    }

    async fn download(&self, path: &str, limit: usize) -> Result<Bytes, MachineError> {
        let path = format!("/v1/files/read?path={}", percent_encoded(path));
        let call = self.request(Method::GET, &path, None)?;
        let answer = self
            .jobs
            .http
            .call(&call, Retry::Repeatable, TRANSFER, limit)
            .await?;
        Ok(answer.body)
    }

    /// Output goes to files.
    fn waits_for_what_is_left(&self) -> bool {
        false
    }

    fn carrier_address(&self) -> &'static str {
        CARRIER_ADDRESS
    }

    async fn dial(&self, secret: &SecretString) -> Result<Box<dyn Channel>, HttpError> {
        let mut headers = self.headers()?;
        secret_header(&mut headers, SECRET_HEADER, secret.expose_secret())?;
        let (_, port) = CARRIER_ADDRESS.split_once(':').unwrap_or_default();
        let url = format!("{}/v1/proxy/{port}/", self.url);
        carrier::dial(&self.dialling, url, headers).await
    }

    async fn lives(&self) -> Option<bool> {
        let health = self.request(Method::GET, "/health", None).ok()?;
        let within = Duration::from_secs(5);
        if self
            .jobs
            .http
            .call(&health, Retry::No, within, LIMIT)
            .await
            .is_ok()
        {
            return Some(true);
        }
        match self.jobs.over(&self.job).await {
            Ok(Some(_)) => Some(false),
            _ => None,
        }
    }
}

/// Text in base64, whose lines may be broken anywhere.
pub(super) fn decoded(text: &[u8]) -> Result<Vec<u8>, HttpError> {
    let text: Vec<u8> = text
        .iter()
        .copied()
        .filter(|byte| !byte.is_ascii_whitespace())
        .collect();
    STANDARD
        .decode(text)
        .map_err(|_| HttpError::Malformed("output that is not base64".into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_split_of_a_stream_has_the_same_lines() {
        let whole = "{\"event\":\"start\",\"pid\":1}\n\n{\"event\":\"stdout\",\"data\":\"ü\\n\"}\r\n{\"event\":\"exit\",\"exit_code\":0}\n";
        for size in 1..whole.len() {
            let (mut lines, mut heard) = (Lines::default(), Vec::new());
            for piece in whole.as_bytes().chunks(size) {
                lines.0.extend_from_slice(piece);
                while let Some(line) = lines.take().unwrap() {
                    heard.push(parse::<Event>(&line).unwrap().event);
                }
            }
            assert_eq!(heard, ["start", "stdout", "exit"]);
        }
    }

    #[test]
    fn the_end_of_a_program_is_told_by_its_code_its_signal_or_the_deadline() {
        for (text, code) in [
            (
                r#"{"event":"exit","exit_code":3,"signal":null,"timed_out":false}"#,
                3,
            ),
            (
                r#"{"event":"exit","exit_code":null,"signal":15,"timed_out":false}"#,
                143,
            ),
            (
                r#"{"event":"exit","exit_code":null,"signal":9,"timed_out":true}"#,
                124,
            ),
            // It ended by itself just after.
            (
                r#"{"event":"exit","exit_code":0,"signal":null,"timed_out":true}"#,
                124,
            ),
            (
                r#"{"event":"exit","exit_code":null,"signal":null,"timed_out":false}"#,
                137,
            ),
        ] {
            assert_eq!(code_of(&parse(text.as_bytes()).unwrap()), code, "{text}");
        }
    }
}
