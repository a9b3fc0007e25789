//! OpenAI chat completions, as vLLM, SGLang, llama.cpp, OpenAI and others speak it.
//!
//! A request is taken apart into its members and put together again, untouched members byte for byte. A reply is read
//! once, in place: `reply` notes where the members are that matter and takes what is captured, `strip` then cuts
//! what is not for the agent. Facts about servers are those of vLLM 0.32.0 and llama.cpp b10434, recorded in the
//! fixtures.

/// An object as its members.
mod body;

/// What the sampler is asked for.
mod sampler;

/// How a conversation begins.
mod opening;

/// Editing the request.
mod request;

/// Reading a reply, whole or an event of it.
mod reply;

/// Where the members of a reply are.
mod layout;

/// Token ids and log-probabilities of a choice.
mod tokens;

/// A message put together from its deltas.
mod message;

/// Cutting from a reply what is not for the agent.
mod strip;

/// A streamed reply.
mod stream;

/// A whole reply.
mod unary;

/// What a reply was worth, and the reply as one document.
mod assess;

/// Answers of our own.
mod answer;

/// What of a body is stored once, and what tells messages apart.
mod shape;

use super::{Asked, Dialect, ModelEntry, SideRoute, StreamCapture, Target};
use crate::call::{CallEnd, CallMeta, Change, DialectName};
use crate::capture::{
    Captured, Prepared, RequestError, RequestFacts, RequestRules, Shown, StreamForm, refusal,
};
use crate::trajectory::BodyShape;
use bytes::Bytes;

#[cfg(feature = "translated")]
pub(crate) use assess::error_message;
#[cfg(feature = "translated")]
pub(crate) use request::{edit, hex};

/// Where endpoints answer it, behind their base URL.
pub(crate) const UPSTREAM_PATH: &str = "/chat/completions";

/// OpenAI chat completions.
#[derive(Clone, Copy, Debug)]
pub struct ChatCompletions;

impl ChatCompletions {
    /// Captures a whole reply with a good status. Returns the document for an agent that wants no stream, and what was
    /// captured.
    #[must_use]
    pub fn unary(&self, body: &Bytes, facts: &RequestFacts) -> (Bytes, Captured) {
        unary::capture(body, facts)
    }

    /// The stream that says what a document of [`ChatCompletions::unary`] says; `None` where that is no reply.
    #[must_use]
    pub fn replay(&self, body: &[u8], facts: &RequestFacts) -> Option<Bytes> {
        answer::replay(body, facts)
    }
}

impl Dialect for ChatCompletions {
    fn name(&self) -> DialectName {
        DialectName::ChatCompletions
    }

    fn route(&self, asked: &Asked<'_>) -> Option<Target> {
        let ours = matches!(asked.path, "/v1/chat/completions" | "/chat/completions");
        (asked.method == "POST" && ours).then(|| Target {
            upstream_path: UPSTREAM_PATH,
            ..Target::default()
        })
    }

    fn side_route(&self, asked: &Asked<'_>) -> Option<SideRoute> {
        let path = asked.path.strip_prefix("/v1").unwrap_or(asked.path);
        let model = path.strip_prefix("/models")?;
        let reads = matches!(asked.method, "GET" | "HEAD");
        match model.strip_prefix('/') {
            None if reads && model.is_empty() => Some(SideRoute::Models),
            Some(model) if reads && !model.is_empty() => Some(SideRoute::Model(model.to_owned())),
            _ => None,
        }
    }

    fn prepare(&self, _: &Target, body: &Bytes, rules: &RequestRules) -> Result<Prepared, RequestError> {
        request::prepare(body, rules)
    }

    fn refused(&self, status: u16, body: &[u8], facts: &RequestFacts) -> Vec<Change> {
        refusal::refused(status, body, facts, &request::NEVER_CHANGED)
    }

    fn stream(&self, facts: &RequestFacts, event_limit_bytes: usize) -> Box<dyn StreamCapture> {
        Box::new(stream::ChatStream::new(facts.clone(), event_limit_bytes))
    }

    fn whole(&self, body: &Bytes, facts: &RequestFacts) -> (Shown, Captured) {
        let (document, captured) = self.unary(body, facts);
        // An error in JSON is the endpoint's to say and passes as it is. What is no JSON says that all is well and is no
        // reply: the agent must not take it for one.
        let is_json = || serde_json::from_slice::<serde::de::IgnoredAny>(body).is_ok();
        if captured.end != CallEnd::Complete && !is_json() {
            return (Shown::Nothing, captured);
        }
        let stream = facts.streamed.then(|| self.replay(&document, facts)).flatten();
        (stream.map_or(Shown::Document(document), Shown::Stream), captured)
    }

    fn refused_reply(&self, status: u16, body: &Bytes) -> (Option<Bytes>, Captured) {
        (None, assess::refused_reply(status, body))
    }

    fn error_event(&self, _: u16, message: &str, _: StreamForm) -> Bytes {
        answer::error_event(message)
    }

    fn error_body(&self, status: u16, message: &str, kind: &str) -> Bytes {
        answer::error_body(status, message, kind)
    }

    fn assistant_reply(&self, text: &str, facts: &RequestFacts, created_unix_s: u64) -> Bytes {
        answer::assistant_reply(text, facts, created_unix_s)
    }

    fn keep_alive(&self) -> Bytes {
        Bytes::from_static(b": keep-alive\n\n")
    }

    fn token_count(&self, _: u64) -> Option<Bytes> {
        None
    }

    fn to_be_counted(&self, _: &Target, body: &Bytes) -> Result<Bytes, RequestError> {
        Ok(body.clone())
    }

    fn chat_request(&self, _: &Target, body: &Bytes) -> Result<Bytes, RequestError> {
        Ok(body.clone())
    }

    fn chat_reply(&self, _: &Bytes, reply: &Bytes, _: &CallMeta, _: Option<&str>) -> Option<Bytes> {
        Some(reply.clone())
    }

    fn models(&self, _: &[ModelEntry]) -> Option<Bytes> {
        None
    }

    fn model(&self, _: &ModelEntry) -> Option<Bytes> {
        None
    }

    fn shape(&self) -> &'static BodyShape {
        &shape::SHAPE
    }
}
