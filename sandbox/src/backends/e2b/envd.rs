use super::plane::parse;
use crate::Channel;
use crate::remote::carrier;
use crate::remote::http::{
    Call, Content, HttpClient, HttpError, Retry, collect, percent_encoded, said, secret_header,
};
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

/// As whom something is done in a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum As {
    /// The template's user: agents and commands.
    User,
    /// Root: what agents are not to change.
    Root,
}

/// What a stream of a process says.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Said {
    Started(u64),
    Stdout(Bytes),
    Stderr(Bytes),
    Ended {
        code: i32,
        /// `signal: killed` and the like.
        status: String,
    },
}

/// A stream of a process.
pub(super) struct Stream {
    body: Incoming,
    buffer: BytesMut,
}

/// What envd refuses, or how a stream broke.
#[derive(Debug, thiserror::Error)]
pub(super) enum EnvdError {
    /// By its code.
    #[error("{code}: {message}")]
    Said { code: String, message: String },
    /// Otherwise.
    #[error(transparent)]
    Http(#[from] HttpError),
    /// It broke off: what came of the process is not known.
    #[error("the stream ended before the process did")]
    Cut,
}

impl EnvdError {
    pub(super) fn is(&self, wanted: &str) -> bool {
        match self {
            Self::Said { code, .. } => code == wanted,
            Self::Http(error) => wanted == "not_found" && error.status() == Some(StatusCode::NOT_FOUND),
            Self::Cut => false,
        }
    }
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

    /// A WebSocket to a port of the sandbox, on which a relay is dialled.
    pub(super) async fn dial(&self, port: u16, secret: &SecretString) -> Result<Box<dyn Channel>, HttpError> {
        let mut headers = self.headers()?;
        headers.remove("x-access-token");
        headers.insert(
            HeaderName::from_static("e2b-sandbox-port"),
            HeaderValue::from(port),
        );
        if let Some(token) = &self.traffic_token {
            secret_header(&mut headers, "e2b-traffic-access-token", token.expose_secret())?;
        }
        secret_header(&mut headers, SECRET_HEADER, secret.expose_secret())?;
        carrier::dial(&self.http, format!("{}/", self.url), headers).await
    }

    /// A call with one answer. Not repeated: envd's calls have effects.
    pub(super) async fn unary(&self, method: &str, body: &Value) -> Result<Value, EnvdError> {
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
            Err(refusal(status, &body))
        }
    }

    /// A call whose answer is the stream of a process. `lifetime` is how long the process may live: envd kills it then.
    pub(super) async fn stream(
        &self,
        method: &str,
        body: &Value,
        lifetime: Option<Duration>,
        who: As,
    ) -> Result<Stream, EnvdError> {
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
            return Err(refusal(status, &body));
        }
        Ok(Stream {
            body: answer.into_body(),
            buffer: BytesMut::new(),
        })
    }

    /// Whether a sandbox answers: `Some(false)` where E2B says that it is gone, `None` where nothing is known.
    pub(super) async fn lives(&self) -> Option<bool> {
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

    /// Writes a file: not at once, hence under another name first.
    pub(super) async fn upload(&self, path: &str, content: impl Into<Content>) -> Result<(), EnvdError> {
        let mut headers = self.headers()?;
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
        let call = Call {
            method: Method::POST,
            url: format!("{}/files?path={}", self.url, percent_encoded(path)),
            headers,
            body: content.into(),
        };
        self.http.call(&call, Retry::No, TRANSFER, 1 << 20).await?;
        Ok(())
    }

    /// Reads a file of at most `limit` bytes.
    pub(super) async fn download(&self, path: &str, limit: usize) -> Result<Bytes, EnvdError> {
        let call = Call {
            method: Method::GET,
            url: format!("{}/files?path={}", self.url, percent_encoded(path)),
            headers: self.headers()?,
            body: Bytes::new().into(),
        };
        Ok(self.http.call(&call, Retry::No, TRANSFER, limit).await?.body)
    }

    /// Type and length of what is at a path; `None` where nothing is.
    pub(super) async fn stat(&self, path: &str) -> Result<Option<(String, u64)>, EnvdError> {
        let answer = match self
            .unary("filesystem.Filesystem/Stat", &json!({ "path": path }))
            .await
        {
            Err(error) if error.is("not_found") => return Ok(None),
            answer => answer?,
        };
        let entry = answer.get("entry").cloned().unwrap_or_default();
        let is_link = entry.get("symlinkTarget").is_some_and(|target| !target.is_null());
        let kind = entry.get("type").and_then(Value::as_str).unwrap_or_default();
        let kind = if is_link { "FILE_TYPE_SYMLINK" } else { kind };
        // 64-bit numbers are texts in this JSON.
        let size = match entry.get("size") {
            Some(Value::String(text)) => text.parse().unwrap_or(0),
            Some(number) => number.as_u64().unwrap_or(0),
            None => 0,
        };
        Ok(Some((kind.to_owned(), size)))
    }
}

/// Text codes are envd's; numbers, or no JSON, come of the proxy before it or of its authorization.
fn refusal(status: StatusCode, body: &[u8]) -> EnvdError {
    match serde_json::from_slice::<Refusal>(body) {
        Ok(refusal) => EnvdError::Said {
            code: refusal.code,
            message: said(body),
        },
        Err(_) => EnvdError::Http(HttpError::Status {
            status,
            message: said(body),
        }),
    }
}

impl Stream {
    /// What is said next. The end of a stream without the end of its process is [`EnvdError::Cut`].
    pub(super) async fn next(&mut self) -> Result<Said, EnvdError> {
        loop {
            while let Some((flags, message)) = take_message(&mut self.buffer)? {
                if flags & 0x02 != 0 {
                    return Err(match parse::<Trailer>(&message)?.error {
                        Some(refusal) => EnvdError::Said {
                            code: refusal.code,
                            message: refusal.message.chars().take(300).collect(),
                        },
                        None => EnvdError::Cut,
                    });
                }
                if let Some(said) = read_event(&message)? {
                    return Ok(said);
                }
            }
            let frame = tokio::time::timeout(SILENCE, self.body.frame()).await;
            match frame {
                Err(_) | Ok(None | Some(Err(_))) => return Err(EnvdError::Cut),
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

fn read_event(message: &[u8]) -> Result<Option<Said>, HttpError> {
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
        } => Some(Said::Started(start.pid)),
        Kinds { data: Some(data), .. } => match (data.stdout, data.stderr) {
            (Some(text), _) => Some(Said::Stdout(bytes(text)?)),
            (None, Some(text)) => Some(Said::Stderr(bytes(text)?)),
            _ => None,
        },
        Kinds { end: Some(end), .. } => Some(Said::Ended {
            code: end.exit_code,
            status: end.status,
        }),
        // Keepalives, and what later versions say.
        _ => None,
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
                    Said::Started(6231),
                    Said::Stdout(Bytes::from_static(b"hi\n")),
                    Said::Ended {
                        code: 3,
                        status: "exit status 3".into()
                    },
                ]
            );
        }
    }

    #[test]
    fn a_code_in_words_is_envds_and_a_number_is_the_proxys() {
        let ours = refusal(
            StatusCode::NOT_FOUND,
            br#"{"code":"not_found","message":"process with pid 9 not found"}"#,
        );
        assert!(matches!(&ours, EnvdError::Said { code, .. } if code == "not_found"));
        let theirs = refusal(
            StatusCode::UNAUTHORIZED,
            br#"{"code":401,"message":"unauthorized access"}"#,
        );
        assert!(matches!(theirs, EnvdError::Http(HttpError::Status { .. })));
    }

    #[test]
    fn an_exit_code_that_is_left_out_is_zero() {
        let end = br#"{"event":{"end":{"exited":true,"status":"exit status 0"}}}"#;
        assert_eq!(
            read_event(end).unwrap(),
            Some(Said::Ended {
                code: 0,
                status: "exit status 0".into()
            })
        );
    }
}
