//! A plain HTTP client that keeps what it received chunk by chunk.

use bytes::{Buf, Bytes};
use dressage_testkit::model::{KeepRequests, ScriptedModel, ScriptedModelConfig, ScriptedTurns, Turn};
use hyper::Method;
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use serde_json::{Value, json};
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// What came back.
#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub headers: HeaderMap,
    /// The body's HTTP chunks.
    pub chunks: Vec<Bytes>,
    /// How the body broke off, if it did.
    pub broken: Option<String>,
}

impl Reply {
    /// Reads what a connection carried until it ended, in the way told.
    fn read(mut received: Bytes, mut broken: Option<String>) -> Self {
        let head_end = memchr::memmem::find(&received, b"\r\n\r\n").expect("a whole head");
        let head = String::from_utf8(received.split_to(head_end + 4).to_vec()).unwrap();
        let mut lines = head.lines();
        let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
        let headers: HeaderMap = lines
            .filter_map(|line| line.split_once(": "))
            .map(|(name, value)| {
                (
                    name.parse::<HeaderName>().unwrap(),
                    value.parse::<HeaderValue>().unwrap(),
                )
            })
            .collect();
        let mut chunks = Vec::new();
        if let Some(length) = headers.get("content-length") {
            let length: usize = length.to_str().unwrap().parse().unwrap();
            if received.len() < length {
                broken.get_or_insert_with(|| format!("{} of {length} bytes", received.len()));
            }
            chunks.push(received);
        } else {
            loop {
                let Some(line_end) = memchr::memmem::find(&received, b"\r\n") else {
                    broken.get_or_insert_with(|| "ended inside the body".into());
                    break;
                };
                let size = received.split_to(line_end + 2);
                let size = usize::from_str_radix(std::str::from_utf8(&size).unwrap().trim_end(), 16).unwrap();
                if size == 0 {
                    break;
                }
                if received.len() < size + 2 {
                    broken.get_or_insert_with(|| "ended inside a chunk".into());
                    break;
                }
                chunks.push(received.split_to(size));
                received.advance(2);
            }
        }
        Self {
            status,
            headers,
            chunks,
            broken,
        }
    }

    pub fn text(&self) -> String {
        String::from_utf8(self.chunks.concat()).unwrap()
    }

    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text()).unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }

    /// The events of a stream without `[DONE]`, which must be there.
    pub fn events(&self) -> Vec<Value> {
        let text = self.text();
        let mut events: Vec<&str> = text
            .split_terminator("\n\n")
            .map(|e| e.strip_prefix("data: ").unwrap())
            .collect();
        assert_eq!(events.pop(), Some("[DONE]"));
        events
            .into_iter()
            .map(|event| serde_json::from_str(event).unwrap())
            .collect()
    }
}

/// A model that says these turns.
pub async fn model_of(turns: Vec<Turn>) -> ScriptedModel {
    start(ScriptedModelConfig {
        script: Arc::new(ScriptedTurns(turns)),
        ..config()
    })
    .await
}

pub fn config() -> ScriptedModelConfig {
    ScriptedModelConfig {
        model: "tiny".into(),
        keep_requests: KeepRequests::Yes,
        ..ScriptedModelConfig::default()
    }
}

pub async fn start(config: ScriptedModelConfig) -> ScriptedModel {
    ScriptedModel::start(config).await.unwrap()
}

pub async fn chat(model: &ScriptedModel, body: &Value) -> Reply {
    post(model, "/v1/chat/completions", body.to_string()).await
}

pub async fn post(model: &ScriptedModel, path: &str, body: String) -> Reply {
    send(model, Method::POST, path, &[], body).await
}

pub async fn send(
    model: &ScriptedModel,
    method: Method,
    path: &str,
    headers: &[(&str, &str)],
    body: String,
) -> Reply {
    let mut request =
        format!("{method} {path} HTTP/1.1\r\nconnection: close\r\ncontent-type: application/json\r\n");
    if !headers.iter().any(|(name, _)| *name == "host") {
        request += &format!("host: {}\r\n", model.address());
    }
    for (name, value) in headers {
        request += &format!("{name}: {value}\r\n");
    }
    request += &format!("content-length: {}\r\n\r\n{body}", body.len());
    let mut stream = TcpStream::connect(model.address()).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut received = Vec::new();
    let error = stream.read_to_end(&mut received).await.err();
    Reply::read(received.into(), error.map(|error| error.to_string()))
}

/// The tools of the recordings.
pub fn bash_tool() -> Value {
    json!({"type": "function", "function": {"name": "bash", "description": "Run a shell command", "parameters":
        {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}}})
}

/// A request for a stream with everything a capture asks for.
pub fn capturing(messages: Value) -> Value {
    json!({
        "model": "tiny", "messages": messages, "tools": [bash_tool()], "stream": true,
        "stream_options": {"include_usage": true}, "logprobs": true, "top_logprobs": 5, "return_token_ids": true,
    })
}

/// A request for a stream as an agent makes it.
pub fn plain(messages: Value) -> Value {
    json!({
        "model": "tiny", "messages": messages, "tools": [bash_tool()], "stream": true,
        "stream_options": {"include_usage": true},
    })
}
