use crate::Channel;
use crate::remote::carrier;
use crate::remote::http::{
    Call, Content, HttpClient, HttpError, Retry, collect, hide, parse, percent_encoded, said, secret_header,
};
use crate::remote::machine::{As, Ended, Machine, MachineError, Program, Ran, Running, Said};
use async_trait::async_trait;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use dressage_wire::relay::SECRET_HEADER;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use http::{Method, StatusCode};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;
use serde_json::{Value, json};
use std::time::Duration;

/// The port of envd in every sandbox.
const PORT: &str = "49983";

/// For an answer of one piece.
const WITHIN: Duration = Duration::from_secs(60);

/// For a file to be there, up or down.
const TRANSFER: Duration = Duration::from_secs(600);

/// Silence after which envd says that it is there, in seconds.
const KEEPALIVE_S: &str = "50";

/// Silence after which a stream is given up: two keepalives and a little.
const SILENCE: Duration = Duration::from_secs(120);

/// The longest message of a stream: output comes in pieces of 32 KiB.
const MESSAGE_BYTES: usize = 4 << 20;

/// The program inside a sandbox that E2B's sandboxes are used by.
#[derive(Clone, Debug)]
pub(super) struct Envd {
    pub(super) http: HttpClient,
    pub(super) url: String,
    pub(super) sandbox: String,
    pub(super) token: Option<SecretString>,
    /// For ports of the sandbox other than envd's.
    pub(super) traffic_token: Option<SecretString>,
}

/// Where a relay waits for the host to dial it.
const CARRIER_ADDRESS: &str = "0.0.0.0:7001";

/// The same, for the provider's proxy.
const CARRIER_PORT: u16 = 7001;

/// Tries to find a program again whose stream broke.
const RECONNECTS: u32 = 5;

/// What a stream of a process says.
#[derive(Debug, PartialEq, Eq)]
enum Heard {
    Started(u64),
    Said(Said),
}

/// A stream of a process.
struct Stream {
    /// Of the call that it answers.
    headers: HeaderMap,
    body: Incoming,
    buffer: BytesMut,
}

/// A process that is followed through losses of its stream. What it writes while nobody listens is lost: envd keeps none of it.
struct Followed {
    envd: Envd,
    stream: Stream,
    pid: String,
    tries: u32,
}

#[derive(Deserialize)]
struct Event {
    #[serde(default)]
    event: Kinds,
}

#[derive(Default, Deserialize)]
struct Kinds {
    start: Option<Start>,
    data: Option<Data>,
    end: Option<End>,
}

#[derive(Deserialize)]
struct Start {
    pid: u64,
}

#[derive(Deserialize)]
struct Data {
    stdout: Option<String>,
    stderr: Option<String>,
}

#[derive(Deserialize)]
struct End {
    #[serde(default, rename = "exitCode")]
    exit_code: i32,
    #[serde(default)]
    status: String,
}

#[derive(Deserialize)]
struct Trailer {
    error: Option<Refusal>,
}

#[derive(Deserialize)]
struct Refusal {
    code: String,
    #[serde(default)]
    message: String,
}

impl Envd {
    fn headers(&self) -> Result<HeaderMap, HttpError> {
        let mut headers = HeaderMap::new();
        headers.insert(
            HeaderName::from_static("e2b-sandbox-id"),
            HeaderValue::from_str(&self.sandbox)
                .map_err(|_| HttpError::Malformed("a sandbox's id that is none".into()))?,
        );
        headers.insert(
            HeaderName::from_static("e2b-sandbox-port"),
            HeaderValue::from_static(PORT),
        );
        if let Some(token) = &self.token {
            secret_header(&mut headers, "x-access-token", token.expose_secret())?;
        }
        Ok(headers)
    }

    /// A call with one answer. Not repeated: envd's calls have effects.
    async fn unary(&self, method: &str, body: &Value) -> Result<Value, MachineError> {
        let mut headers = self.headers()?;
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert("connect-protocol-version", HeaderValue::from_static("1"));
        let call = Call {
            method: Method::POST,
            url: format!("{}/{method}", self.url),
            headers,
            body: Bytes::from(body.to_string()).into(),
        };
        let answer = tokio::time::timeout(WITHIN, async {
            let answer = self.http.open(&call).await?;
            let status = answer.status();
            Ok((status, collect(answer.into_body(), MESSAGE_BYTES).await?))
        });
        let (status, body) = answer.await.unwrap_or(Err(HttpError::TimedOut(WITHIN)))?;
        if status.is_success() {
            Ok(parse(&body)?)
        } else {
            Err(refusal(status, &body, &call.headers))
        }
    }

    /// A call whose answer is the stream of a process. `lifetime` is how long the process may live: envd kills it then.
    async fn stream(
        &self,
        method: &str,
        body: &Value,
        lifetime: Option<Duration>,
        who: As,
    ) -> Result<Stream, MachineError> {
        let mut headers = self.headers()?;
        if who == As::Root {
            // `root:`, as envd is told of users. Without it, it is the template's.
            headers.insert(AUTHORIZATION, HeaderValue::from_static("Basic cm9vdDo="));
        }
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/connect+json"));
        headers.insert("connect-protocol-version", HeaderValue::from_static("1"));
        headers.insert("connect-accept-encoding", HeaderValue::from_static("identity"));
        headers.insert("keepalive-ping-interval", HeaderValue::from_static(KEEPALIVE_S));
        // Zero would be no limit, and more than ten digits are refused: then no header says the same.
        let ms = lifetime.map(|lifetime| lifetime.as_millis().max(1));
        if let Some(ms) = ms.filter(|ms| *ms < 10_000_000_000) {
            headers.insert(
                "connect-timeout-ms",
                HeaderValue::from(u64::try_from(ms).unwrap_or(1)),
            );
        }
        let message = body.to_string();
        let mut framed = BytesMut::with_capacity(message.len() + 5);
        framed.put_u8(0);
        framed.put_u32(u32::try_from(message.len()).map_err(|_| HttpError::TooLong(MESSAGE_BYTES))?);
        framed.put_slice(message.as_bytes());
        let call = Call {
            method: Method::POST,
            url: format!("{}/{method}", self.url),
            headers,
            body: framed.freeze().into(),
        };
        let answer = tokio::time::timeout(WITHIN, self.http.open(&call))
            .await
            .unwrap_or(Err(HttpError::TimedOut(WITHIN)))?;
        let status = answer.status();
        if !status.is_success() {
            let body = collect(answer.into_body(), MESSAGE_BYTES).await?;
            return Err(refusal(status, &body, &call.headers));
        }
        Ok(Stream {
            headers: call.headers,
            body: answer.into_body(),
            buffer: BytesMut::new(),
        })
    }

    /// Starts a program, and reads that it has.
    async fn start_stream(&self, program: &Program) -> Result<(Stream, u64), MachineError> {
        let (command, arguments) = program.argv.split_first().ok_or(MachineError::Cut)?;
        let body = json!({
            "process": { "cmd": command, "args": arguments, "envs": program.env },
            "stdin": false,
        });
        let mut stream = self
            .stream("process.Process/Start", &body, program.lifetime, program.who)
            .await?;
        match stream.next().await? {
            Heard::Started(pid) => Ok((stream, pid)),
            Heard::Said(_) => Err(MachineError::Cut),
        }
    }
}

#[async_trait]
impl Machine for Envd {
    async fn ready(&self) -> Result<(), MachineError> {
        // The answer to its creation comes when it runs.
        Ok(())
    }

    async fn run(&self, program: &Program) -> Result<Ran, MachineError> {
        let (mut stream, _) = self.start_stream(program).await?;
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        loop {
            match stream.next().await? {
                Heard::Started(_) => {}
                Heard::Said(Said::Stdout(bytes)) => stdout.extend_from_slice(&bytes),
                Heard::Said(Said::Stderr(bytes)) => stderr.extend_from_slice(&bytes),
                Heard::Said(Said::Ended(Ended { code, .. })) => {
                    return Ok(Ran { code, stdout, stderr });
                }
            }
        }
    }

    async fn start(&self, program: &Program) -> Result<Box<dyn Running>, MachineError> {
        let (stream, pid) = self.start_stream(program).await?;
        Ok(Box::new(Followed {
            envd: self.clone(),
            stream,
            pid: pid.to_string(),
            tries: 0,
        }))
    }

    async fn kill(&self, process: &str) -> Result<(), MachineError> {
        let pid: u64 = process.parse().unwrap_or_default();
        let body = json!({ "process": { "pid": pid }, "signal": "SIGNAL_SIGKILL" });
        self.unary("process.Process/SendSignal", &body).await.map(|_| ())
    }

    async fn upload(&self, path: &str, content: Content) -> Result<(), MachineError> {
        let mut headers = self.headers()?;
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
        let call = Call {
            method: Method::POST,
            url: format!("{}/files?path={}", self.url, percent_encoded(path)),
            headers,
            body: content,
        };
        // The same bytes at the same place.
        self.http
            .call(&call, Retry::Repeatable, TRANSFER, 1 << 20)
            .await?;
        Ok(())
    }

    async fn download(&self, path: &str, limit: usize) -> Result<Bytes, MachineError> {
        let call = Call {
            method: Method::GET,
            url: format!("{}/files?path={}", self.url, percent_encoded(path)),
            headers: self.headers()?,
            body: Bytes::new().into(),
        };
        let answer = self.http.call(&call, Retry::Repeatable, TRANSFER, limit).await?;
        Ok(answer.body)
    }

    /// Output comes through pipes, and envd waits for their ends before it waits for the process.
    fn waits_for_what_is_left(&self) -> bool {
        true
    }

    fn carrier_address(&self) -> &'static str {
        CARRIER_ADDRESS
    }

    async fn dial(&self, secret: &SecretString) -> Result<Box<dyn Channel>, HttpError> {
        let mut headers = self.headers()?;
        headers.remove("x-access-token");
        headers.insert(
            HeaderName::from_static("e2b-sandbox-port"),
            HeaderValue::from(CARRIER_PORT),
        );
        if let Some(token) = &self.traffic_token {
            secret_header(&mut headers, "e2b-traffic-access-token", token.expose_secret())?;
        }
        secret_header(&mut headers, SECRET_HEADER, secret.expose_secret())?;
        carrier::dial(&self.http, format!("{}/", self.url), headers).await
    }

    async fn lives(&self) -> Option<bool> {
        let mut headers = self.headers().ok()?;
        headers.remove("x-access-token");
        let call = Call {
            method: Method::GET,
            url: format!("{}/health", self.url),
            headers,
            body: Bytes::new().into(),
        };
        match self
            .http
            .call(&call, Retry::No, Duration::from_secs(5), 4096)
            .await
        {
            Ok(_) => Some(true),
            Err(HttpError::Status { message, .. }) if message.contains("was not found") => Some(false),
            Err(_) => None,
        }
    }
}

#[async_trait]
impl Running for Followed {
    fn id(&self) -> &str {
        &self.pid
    }

    async fn next(&mut self) -> Result<Said, MachineError> {
        loop {
            let error = match self.stream.next().await {
                Ok(Heard::Started(_)) => {
                    self.tries = 0;
                    continue;
                }
                Ok(Heard::Said(said)) => return Ok(said),
                Err(error) => error,
            };
            if matches!(&error, MachineError::Said { code, .. } if code == "deadline_exceeded") {
                return Ok(Said::Ended(Ended::by(libc::SIGKILL)));
            }
            if error.is_not_found() {
                return Err(MachineError::Vanished(self.pid.clone()));
            }
            self.find_again(error).await?;
        }
    }
}

impl Followed {
    async fn find_again(&mut self, error: MachineError) -> Result<(), MachineError> {
        let pid: u64 = self.pid.parse().unwrap_or_default();
        let body = json!({ "process": { "pid": pid } });
        loop {
            if self.envd.lives().await == Some(false) || self.tries >= RECONNECTS {
                return Err(error);
            }
            self.tries += 1;
            let again = self
                .envd
                .stream("process.Process/Connect", &body, None, As::User)
                .await;
            match again {
                Ok(again) => {
                    tracing::warn!("the stream of a program in a sandbox was lost, and is there again");
                    self.stream = again;
                    return Ok(());
                }
                Err(error) if error.is_not_found() => return Err(MachineError::Vanished(self.pid.clone())),
                Err(_) => tokio::time::sleep(Duration::from_millis(100 << self.tries)).await,
            }
        }
    }
}

/// Text codes are envd's; numbers, or no JSON, come of the proxy before it or of its authorization.
fn refusal(status: StatusCode, body: &[u8], headers: &HeaderMap) -> MachineError {
    match serde_json::from_slice::<Refusal>(body) {
        Ok(refusal) => MachineError::Said {
            code: refusal.code,
            message: said(body, headers),
        },
        Err(_) => MachineError::Http(HttpError::Status {
            status,
            message: said(body, headers),
        }),
    }
}

impl Stream {
    /// What is said next. The end of a stream without the end of its process is [`MachineError::Cut`].
    async fn next(&mut self) -> Result<Heard, MachineError> {
        loop {
            while let Some((flags, message)) = take_message(&mut self.buffer)? {
                if flags & 0x02 != 0 {
                    return Err(match parse::<Trailer>(&message)?.error {
                        Some(refusal) => MachineError::Said {
                            code: refusal.code,
                            message: hide(&refusal.message, &self.headers).chars().take(300).collect(),
                        },
                        None => MachineError::Cut,
                    });
                }
                if let Some(said) = read_event(&message)? {
                    return Ok(said);
                }
            }
            let frame = tokio::time::timeout(SILENCE, self.body.frame()).await;
            match frame {
                Err(_) | Ok(None | Some(Err(_))) => return Err(MachineError::Cut),
                Ok(Some(Ok(frame))) => {
                    if let Ok(data) = frame.into_data() {
                        self.buffer.extend_from_slice(&data);
                    }
                }
            }
        }
    }
}

fn take_message(buffer: &mut BytesMut) -> Result<Option<(u8, Bytes)>, HttpError> {
    let Some([flags, a, b, c, d]) = buffer.first_chunk::<5>().copied() else {
        return Ok(None);
    };
    let length = u32::from_be_bytes([a, b, c, d]) as usize;
    if length > MESSAGE_BYTES {
        return Err(HttpError::TooLong(MESSAGE_BYTES));
    }
    if flags & 0x01 != 0 {
        return Err(HttpError::Malformed("a compressed message".into()));
    }
    if buffer.len() < 5 + length {
        return Ok(None);
    }
    buffer.advance(5);
    Ok(Some((flags, buffer.split_to(length).freeze())))
}

fn read_event(message: &[u8]) -> Result<Option<Heard>, HttpError> {
    let event = parse::<Event>(message)?.event;
    let bytes = |text: String| {
        STANDARD
            .decode(text)
            .map(Bytes::from)
            .map_err(|_| HttpError::Malformed("output that is not base64".into()))
    };
    Ok(match event {
        Kinds {
            start: Some(start), ..
        } => Some(Heard::Started(start.pid)),
        Kinds { data: Some(data), .. } => match (data.stdout, data.stderr) {
            (Some(text), _) => Some(Heard::Said(Said::Stdout(bytes(text)?))),
            (None, Some(text)) => Some(Heard::Said(Said::Stderr(bytes(text)?))),
            _ => None,
        },
        Kinds { end: Some(end), .. } => Some(Heard::Said(Said::Ended(ended(&end)))),
        // Keepalives, and what later versions say.
        _ => None,
    })
}

/// A signal that ended a process shows as a negative exit code, and by its name.
fn ended(end: &End) -> Ended {
    if end.exit_code < 0 {
        return Ended::by(signal_of(&end.status).unwrap_or(libc::SIGKILL));
    }
    Ended {
        code: end.exit_code,
        signal: None,
    }
}

/// The number in `signal: killed`, by the names that Go has for signals.
fn signal_of(status: &str) -> Option<i32> {
    Some(match status.strip_prefix("signal: ")? {
        "hangup" => libc::SIGHUP,
        "interrupt" => libc::SIGINT,
        "quit" => libc::SIGQUIT,
        "illegal instruction" => libc::SIGILL,
        "aborted" => libc::SIGABRT,
        "bus error" => libc::SIGBUS,
        "floating point exception" => libc::SIGFPE,
        "killed" => libc::SIGKILL,
        "segmentation fault" => libc::SIGSEGV,
        "broken pipe" => libc::SIGPIPE,
        "alarm clock" => libc::SIGALRM,
        "terminated" => libc::SIGTERM,
        other => other
            .trim_start_matches("signal ")
            .split(' ')
            .next()?
            .parse()
            .ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The reply of the recorded exchange: `echo hi; exit 3`.
    const RECORDED: &[&str] = &[
        r#"{"event":{"start":{"pid":6231}}}"#,
        r#"{"event":{"data":{"stdout":"aGkK"}}}"#,
        r#"{"event":{"keepalive":{}}}"#,
        r#"{"event":{"end":{"exitCode":3,"exited":true,"status":"exit status 3","error":"exit status 3"}}}"#,
    ];

    #[test]
    fn any_split_of_a_stream_says_the_same() {
        let mut whole = Vec::new();
        for text in RECORDED {
            whole.push(0);
            whole.extend(u32::try_from(text.len()).unwrap().to_be_bytes());
            whole.extend(text.as_bytes());
        }
        for size in 1..whole.len() {
            let (mut buffer, mut heard) = (BytesMut::new(), Vec::new());
            for piece in whole.chunks(size) {
                buffer.extend_from_slice(piece);
                while let Some((_, message)) = take_message(&mut buffer).unwrap() {
                    heard.extend(read_event(&message).unwrap());
                }
            }
            assert_eq!(
                heard,
                [
                    Heard::Started(6231),
                    Heard::Said(Said::Stdout(Bytes::from_static(b"hi\n"))),
                    Heard::Said(Said::Ended(Ended {
                        code: 3,
                        signal: None
                    })),
                ]
            );
        }
    }

    #[test]
    fn a_code_in_words_is_envds_and_a_number_is_the_proxys() {
        let ours = refusal(
            StatusCode::NOT_FOUND,
            br#"{"code":"not_found","message":"process with pid 9 not found"}"#,
            &HeaderMap::new(),
        );
        assert!(matches!(&ours, MachineError::Said { code, .. } if code == "not_found"));
        let theirs = refusal(
            StatusCode::UNAUTHORIZED,
            br#"{"code":401,"message":"unauthorized access"}"#,
            &HeaderMap::new(),
        );
        assert!(matches!(theirs, MachineError::Http(HttpError::Status { .. })));
    }

    #[test]
    fn an_exit_code_that_is_left_out_is_zero() {
        let end = br#"{"event":{"end":{"exited":true,"status":"exit status 0"}}}"#;
        assert_eq!(
            read_event(end).unwrap(),
            Some(Heard::Said(Said::Ended(Ended {
                code: 0,
                signal: None
            })))
        );
    }
}
