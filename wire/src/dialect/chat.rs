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

use super::{Dialect, StreamCapture};
use crate::call::{Change, DialectName};
use crate::capture::{Captured, Prepared, RequestError, RequestFacts, RequestRules, refusal};
use crate::trajectory::BodyShape;
use bytes::Bytes;

/// OpenAI chat completions.
#[derive(Clone, Copy, Debug)]
pub struct ChatCompletions;

impl Dialect for ChatCompletions {
    fn name(&self) -> DialectName {
        DialectName::ChatCompletions
    }

    fn upstream_path(&self, method: &str, path: &str) -> Option<&'static str> {
        let ours = matches!(path, "/v1/chat/completions" | "/chat/completions");
        (method == "POST" && ours).then_some("/chat/completions")
    }

    fn prepare(&self, body: &Bytes, rules: &RequestRules) -> Result<Prepared, RequestError> {
        request::prepare(body, rules)
    }

    fn refused(&self, status: u16, body: &[u8], facts: &RequestFacts) -> Vec<Change> {
        refusal::refused(status, body, facts, &request::NEVER_CHANGED)
    }

    fn stream(&self, facts: &RequestFacts, event_limit_bytes: usize) -> Box<dyn StreamCapture> {
        Box::new(stream::ChatStream::new(facts.clone(), event_limit_bytes))
    }

    fn unary(&self, body: &Bytes, facts: &RequestFacts) -> (Bytes, Captured) {
        unary::capture(body, facts)
    }

    fn refused_reply(&self, status: u16, body: &Bytes) -> Captured {
        assess::refused_reply(status, body)
    }

    fn replay(&self, body: &[u8], facts: &RequestFacts) -> Option<Bytes> {
        answer::replay(body, facts)
    }

    fn error_event(&self, message: &str) -> Bytes {
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

    fn shape(&self) -> &'static BodyShape {
        &shape::SHAPE
    }
}
