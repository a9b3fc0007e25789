//! Anthropic Messages, as Claude Code and Anthropic's SDKs speak it (API version 2023-06-01).
//!
//! Answered through chat completions: vLLM 0.32's own `/v1/messages` returns no token ids. Facts about the dialect are
//! those of the SDK `anthropic` 2.14 for Python and of Claude Code 2.1.

/// From a request to one in chat completions.
mod request;

/// Tools and how they are chosen.
mod tools;

/// A reply, whole.
mod document;

/// A reply as it comes.
mod stream;

/// Errors, lists and counts.
mod answer;

/// What of a body is stored once, and what tells messages apart.
mod shape;

use super::{Asked, ModelEntry, SideRoute, Target};
use crate::call::DialectName;
use crate::capture::{RequestError, RequestFacts};
use crate::dialect::chat::UPSTREAM_PATH;
use crate::trajectory::BodyShape;
use crate::translate::{ChatRequest, Fields, Lost, Reply, Translated, Translation, Writer};
use serde_json::{Map, Value, json};

/// Anthropic Messages.
pub static DIALECT: Translated = Translated(&Messages);

struct Messages;

impl Translation for Messages {
    fn name(&self) -> DialectName {
        DialectName::Messages
    }

    fn route(&self, asked: &Asked<'_>) -> Option<Target> {
        let ours = matches!(asked.path, "/v1/messages" | "/messages");
        (asked.method == "POST" && ours).then(target)
    }

    fn side_route(&self, asked: &Asked<'_>) -> Option<SideRoute> {
        let path = asked.path.strip_prefix("/v1").unwrap_or(asked.path);
        match asked.method {
            "POST" if path == "/messages/count_tokens" => Some(SideRoute::CountTokens(target())),
            // OpenAI's list has the same path.
            "GET" => {
                (asked.header)("anthropic-version")?;
                let model = path.strip_prefix("/models")?;
                match model.strip_prefix('/') {
                    None if model.is_empty() => Some(SideRoute::Models),
                    Some(model) if !model.is_empty() => Some(SideRoute::Model(model.to_owned())),
                    _ => None,
                }
            }
            _ => None,
        }
    }

    fn not_in_retry_key(&self) -> &'static [&'static str] {
        // The system prompt is put back without what changes in it.
        &["stream", "max_tokens", "system"]
    }

    fn more_of_retry_key(&self, fields: &Fields<'_>) -> String {
        request::steady_system(fields)
    }

    fn request(&self, _: &Target, fields: Fields<'_>, lost: &mut Lost) -> Result<ChatRequest, RequestError> {
        request::translate(fields, lost)
    }

    fn handed_back(&self, mut reply: Map<String, Value>) -> Option<Map<String, Value>> {
        let content = reply.shift_remove("content")?;
        let message = json!({"role": "assistant", "content": content});
        Some(Map::from_iter([("messages".to_owned(), json!([message]))]))
    }

    fn document(&self, reply: &Reply, _: &RequestFacts) -> Vec<u8> {
        document::whole(reply).into_bytes()
    }

    fn writer(&self, _: &RequestFacts) -> Box<dyn Writer> {
        Box::new(stream::MessagesStream)
    }

    fn error_body(&self, status: u16, message: &str) -> Vec<u8> {
        answer::error(status, message).into_bytes()
    }

    fn keep_alive(&self) -> &'static [u8] {
        b"event: ping\ndata: {\"type\":\"ping\"}\n\n"
    }

    fn token_count(&self, tokens: u64) -> Option<Vec<u8>> {
        Some(format!("{{\"input_tokens\":{tokens}}}").into_bytes())
    }

    fn models(&self, models: &[ModelEntry]) -> Option<Vec<u8>> {
        Some(answer::models(models).into_bytes())
    }

    fn model(&self, model: &ModelEntry) -> Option<Vec<u8>> {
        Some(answer::model(model).into_bytes())
    }

    fn shape(&self) -> &'static BodyShape {
        &shape::SHAPE
    }
}

fn target() -> Target {
    Target {
        upstream_path: UPSTREAM_PATH,
        ..Target::default()
    }
}
