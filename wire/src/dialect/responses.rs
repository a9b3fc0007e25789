//! OpenAI Responses, as Codex and OpenAI's SDKs speak it.
//!
//! Answered through chat completions: vLLM 0.32's own `/v1/responses` returns no token ids, and no log-probabilities of
//! reasoning and tool calls. Nothing is kept between calls: what would go on from a stored response is refused. Facts
//! about the dialect are those of the SDK `openai` 3.57 for Python and of Codex 0.171.

/// From a request to one in chat completions.
mod request;

/// What was said so far.
mod input;

/// Tools and how they are chosen.
mod tools;

/// Reasoning that agents hand back without reading it.
mod opaque;

/// A reply, whole.
mod document;

/// A reply as it comes.
mod stream;

/// Errors.
mod answer;

/// What of a body is stored once, and what tells messages apart.
mod shape;

use super::{Asked, ModelEntry, SideRoute, Target};
use crate::call::DialectName;
use crate::capture::{RequestError, RequestFacts};
use crate::dialect::chat::UPSTREAM_PATH;
use crate::trajectory::BodyShape;
use crate::translate::{ChatRequest, Fields, Lost, Reply, Translated, Translation, Writer};
use serde_json::{Map, Value};
use std::sync::Arc;

/// OpenAI Responses.
pub static DIALECT: Translated = Translated(&Responses);

struct Responses;

impl Translation for Responses {
    fn name(&self) -> DialectName {
        DialectName::Responses
    }

    fn route(&self, asked: &Asked<'_>) -> Option<Target> {
        let ours = matches!(asked.path, "/v1/responses" | "/responses");
        (asked.method == "POST" && ours).then(|| Target {
            upstream_path: UPSTREAM_PATH,
            ..Target::default()
        })
    }

    fn side_route(&self, _: &Asked<'_>) -> Option<SideRoute> {
        None
    }

    fn not_in_retry_key(&self) -> &'static [&'static str] {
        &["stream", "stream_options", "max_output_tokens"]
    }

    fn request(&self, _: &Target, fields: Fields<'_>, lost: &mut Lost) -> Result<ChatRequest, RequestError> {
        request::translate(fields, lost)
    }

    fn handed_back(&self, mut reply: Map<String, Value>) -> Option<Map<String, Value>> {
        let items = reply.shift_remove("output")?;
        Some(Map::from_iter([("input".to_owned(), items)]))
    }

    fn document(&self, reply: &Reply, facts: &RequestFacts) -> Vec<u8> {
        document::whole(reply, &facts.way_back).into_bytes()
    }

    fn writer(&self, facts: &RequestFacts) -> Box<dyn Writer> {
        Box::new(stream::ResponseStream::new(Arc::clone(&facts.way_back)))
    }

    fn error_body(&self, status: u16, message: &str) -> Vec<u8> {
        answer::error(status, message).into_bytes()
    }

    fn keep_alive(&self) -> &'static [u8] {
        b": keep-alive\n\n"
    }

    fn token_count(&self, _: u64) -> Option<Vec<u8>> {
        None
    }

    fn models(&self, _: &[ModelEntry]) -> Option<Vec<u8>> {
        None
    }

    fn model(&self, _: &ModelEntry) -> Option<Vec<u8>> {
        None
    }

    fn shape(&self) -> &'static BodyShape {
        &shape::SHAPE
    }
}
