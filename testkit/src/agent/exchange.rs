//! One exchange with the model: a conversation goes out, a turn comes in.

use super::AgentOptions;
use super::http;
use serde_json::{Value, json};
use std::io::{self, BufRead, Read};

/// What the model said.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct ModelTurn {
    /// Its text.
    pub content: String,
    /// Its reasoning.
    pub reasoning: String,
    /// The tools it calls.
    pub tool_calls: Vec<ModelCall>,
    /// Why it ended.
    pub finish_reason: String,
    /// What the endpoint counted: prompt and completion tokens.
    pub tokens: (u64, u64),
}

/// A tool call the model made.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct ModelCall {
    /// The model's id for it.
    pub id: String,
    /// Name of the tool.
    pub name: String,
    /// The text of its arguments, as it came.
    pub arguments: String,
}

/// Why an exchange failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum ExchangeError {
    /// The endpoint could not be reached, or the connection broke.
    #[error("cannot exchange with the model at {url}: {source}")]
    Connection {
        /// Where it was to be.
        url: String,
        /// What broke.
        source: io::Error,
    },
    /// It answered with an error.
    #[error("{message}")]
    Status {
        /// HTTP status.
        status: u16,
        /// The message of its body, or the body.
        message: String,
        /// The body.
        body: String,
    },
    /// An event is no JSON.
    #[error("JSON parsing failed: {source}")]
    BadEvent {
        /// What the parser says.
        source: serde_json::Error,
    },
    /// An event says what went wrong.
    #[error("{message}")]
    ErrorEvent {
        /// Its message.
        message: String,
    },
    /// The stream ended in the middle of a turn.
    #[error("the stream ended without a finish reason")]
    Unfinished,
}

impl ExchangeError {
    /// Whether the same request may succeed when made again.
    pub(super) fn is_retryable(&self) -> bool {
        match self {
            Self::Connection { .. } | Self::ErrorEvent { .. } => true,
            Self::Status { status, .. } => *status == 429 || *status >= 500,
            Self::BadEvent { .. } | Self::Unfinished => false,
        }
    }

    /// The HTTP status, where there was one.
    pub(super) fn status(&self) -> Option<u16> {
        match self {
            Self::Status { status, .. } => Some(*status),
            _ => None,
        }
    }
}

/// Who a call says it is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Signs<'a> {
    /// OpenCode, in this session.
    OpenCode {
        /// The session's id.
        session: &'a str,
    },
    /// `curl`.
    Curl,
}

/// Asks for the next turn.
pub(super) fn ask(
    options: &AgentOptions,
    signs: Signs<'_>,
    messages: &[Value],
    tools: &Value,
) -> Result<ModelTurn, ExchangeError> {
    let mut body = json!({
        "model": options.model, "max_tokens": 32_000, "messages": messages, "tools": tools, "tool_choice": "auto",
        "stream": true, "stream_options": {"include_usage": true},
    });
    let url = format!("{}/chat/completions", options.base_url.trim_end_matches('/'));
    let authorization = format!("Bearer {}", options.api_key);
    let mut headers = vec![("authorization", authorization.as_str())];
    match signs {
        Signs::OpenCode { session } => headers.extend([
            (
                "user-agent",
                "opencode/1.18.33 ai-sdk/provider-utils/4.0.23 runtime/bun/1.3.14",
            ),
            ("x-session-id", session),
            ("x-session-affinity", session),
        ]),
        Signs::Curl => {
            headers.extend([("user-agent", "curl/8.5.0"), ("accept", "*/*")]);
            body = json!({"model": options.model, "messages": messages, "stream": true});
        }
    }
    let connection = |source| ExchangeError::Connection {
        url: url.clone(),
        source,
    };
    let mut response = http::post(&url, &headers, &body.to_string()).map_err(connection)?;
    if !(200..300).contains(&response.status) {
        let mut body = Vec::new();
        response
            .body
            .take(1 << 20)
            .read_to_end(&mut body)
            .map_err(connection)?;
        let body = String::from_utf8_lossy(&body).into_owned();
        let parsed: Value = serde_json::from_str(&body).unwrap_or_default();
        let message = parsed
            .pointer("/error/message")
            .or(parsed.get("error"))
            .and_then(Value::as_str);
        return Err(ExchangeError::Status {
            status: response.status,
            message: message.unwrap_or(&body).into(),
            body,
        });
    }
    let mut turn = ModelTurn::default();
    let mut line = Vec::new();
    loop {
        line.clear();
        if response.body.read_until(b'\n', &mut line).map_err(connection)? == 0 {
            break;
        }
        let Some(data) = line.trim_ascii().strip_prefix(b"data:") else {
            continue;
        };
        if data.trim_ascii() == b"[DONE]" {
            break;
        }
        let event = serde_json::from_slice(data).map_err(|source| ExchangeError::BadEvent { source })?;
        turn.add(&event)?;
    }
    if turn.finish_reason.is_empty() {
        Err(ExchangeError::Unfinished)
    } else {
        Ok(turn)
    }
}

impl ModelTurn {
    fn add(&mut self, event: &Value) -> Result<(), ExchangeError> {
        if let Some(error) = event.get("error") {
            let message = error["message"]
                .as_str()
                .map_or_else(|| error.to_string(), str::to_owned);
            return Err(ExchangeError::ErrorEvent { message });
        }
        if let Some(usage) = event.get("usage").filter(|usage| usage.is_object()) {
            let count = |name: &str| usage[name].as_u64().unwrap_or(0);
            self.tokens = (count("prompt_tokens"), count("completion_tokens"));
        }
        let Some(choice) = event.pointer("/choices/0") else {
            return Ok(());
        };
        let delta = &choice["delta"];
        self.content
            .push_str(delta["content"].as_str().unwrap_or_default());
        let reasoning = ["reasoning_content", "reasoning"]
            .iter()
            .find_map(|name| delta[*name].as_str());
        self.reasoning.push_str(reasoning.unwrap_or_default());
        for part in delta["tool_calls"].as_array().into_iter().flatten() {
            self.add_call(part);
        }
        if let Some(reason) = choice["finish_reason"].as_str() {
            self.finish_reason = reason.into();
        }
        Ok(())
    }

    fn add_call(&mut self, part: &Value) {
        let index = part["index"]
            .as_u64()
            .and_then(|index| usize::try_from(index).ok())
            .unwrap_or(0);
        // A model that numbers its calls wildly gets no room for the numbers it left out.
        let index = index.min(self.tool_calls.len());
        if index == self.tool_calls.len() {
            self.tool_calls.push(ModelCall::default());
        }
        if let Some(call) = self.tool_calls.get_mut(index) {
            let text = |pointer: &str| part.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
            call.id.push_str(text("/id"));
            call.name.push_str(text("/function/name"));
            call.arguments.push_str(text("/function/arguments"));
        }
    }
}
