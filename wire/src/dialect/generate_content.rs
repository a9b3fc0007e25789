//! Google generateContent, as Gemini CLI and Google's SDKs speak it (API versions v1beta and v1).
//!
//! Answered through chat completions. The path says which model is asked for, and whether for a stream: as events
//! (`alt=sse`) or as the items of a JSON array. Members are found in camel and in snake case. Facts about the dialect
//! are those of the SDK `google-genai` 3.6 for Python and of Gemini CLI 0.61.

/// What the path says.
mod path;

/// From a request to one in chat completions.
mod request;

/// What was said so far.
mod contents;

/// Tools and how they are chosen.
mod tools;

/// Schemas in Google's form.
mod schema;

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
use crate::trajectory::BodyShape;
use crate::translate::{ChatRequest, Fields, Lost, Reply, Translated, Translation, Writer};
use serde_json::{Map, Value};

/// Google generateContent.
pub static DIALECT: Translated = Translated(&GenerateContent);

struct GenerateContent;

impl Translation for GenerateContent {
    fn name(&self) -> DialectName {
        DialectName::GenerateContent
    }

    fn route(&self, asked: &Asked<'_>) -> Option<Target> {
        path::route(asked)
    }

    fn side_route(&self, asked: &Asked<'_>) -> Option<SideRoute> {
        path::side_route(asked)
    }

    fn not_in_retry_key(&self) -> &'static [&'static str] {
        &[]
    }

    fn request(
        &self,
        target: &Target,
        fields: Fields<'_>,
        lost: &mut Lost,
    ) -> Result<ChatRequest, RequestError> {
        request::translate(target, fields, lost)
    }

    fn counted_request<'b>(&self, mut fields: Fields<'b>) -> Result<Fields<'b>, RequestError> {
        Ok(fields.object("generateContentRequest")?.unwrap_or(fields))
    }

    fn handed_back(&self, mut reply: Map<String, Value>) -> Option<Map<String, Value>> {
        let content = reply
            .get_mut("candidates")?
            .get_mut(0)?
            .get_mut("content")?
            .take();
        Some(Map::from_iter([("contents".to_owned(), content)]))
    }

    fn document(&self, reply: &Reply, _: &RequestFacts) -> Vec<u8> {
        document::whole(reply).into_bytes()
    }

    fn writer(&self, facts: &RequestFacts) -> Box<dyn Writer> {
        Box::new(stream::ContentStream::new(facts.form))
    }

    fn error_body(&self, status: u16, message: &str) -> Vec<u8> {
        answer::error(status, message).into_bytes()
    }

    /// A blank line. Google's SDKs take a comment for broken JSON (Gemini CLI 0.61); between events a line end says
    /// nothing, nor does it between the items of an array.
    fn keep_alive(&self) -> &'static [u8] {
        b"\n"
    }

    fn token_count(&self, tokens: u64) -> Option<Vec<u8>> {
        Some(format!("{{\"totalTokens\":{tokens}}}").into_bytes())
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
