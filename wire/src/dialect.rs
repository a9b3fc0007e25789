//! The dialects agents speak to their models: how a request is edited, how a reply is captured and stripped, and how an
//! answer of our own looks.
//!
//! A dialect is one file here and one row of `DIALECTS`; nothing else matches on which dialect a call is in. What is
//! cut or replaced is cut or replaced in the raw bytes: what is not ours passes as it came.

/// OpenAI chat completions.
pub mod chat;

use crate::call::{Change, DialectName};
use crate::capture::{
    Captured, Prepared, RequestError, RequestFacts, RequestRules, StreamEnd, StreamError, StreamSeen,
};
use crate::trajectory::BodyShape;
use bytes::{Bytes, BytesMut};

/// Every dialect that is understood.
pub static DIALECTS: &[&dyn Dialect] = &[&chat::ChatCompletions];

/// A dialect agents speak to their models.
pub trait Dialect: Send + Sync {
    /// Its name.
    fn name(&self) -> DialectName;

    /// What to append to the endpoint's base URL for a request to `path` (without its query), where this dialect
    /// answers it.
    fn upstream_path(&self, method: &str, path: &str) -> Option<&'static str>;

    /// Edits a request by the rules.
    ///
    /// # Errors
    /// A body that cannot be sent on; the agent is to be told, with status 400.
    fn prepare(&self, body: &Bytes, rules: &RequestRules) -> Result<Prepared, RequestError>;

    /// Which changes make a request acceptable that was answered with this status and body; empty where it was refused
    /// for another reason. Changes concern only members that were sent, and never the model, messages, tools or stream.
    fn refused(&self, status: u16, body: &[u8], facts: &RequestFacts) -> Vec<Change>;

    /// Starts to capture a streamed reply with a good status.
    fn stream(&self, facts: &RequestFacts, event_limit_bytes: usize) -> Box<dyn StreamCapture>;

    /// Captures a whole reply with a good status. Returns the body for the agent and what was captured.
    fn unary(&self, body: &Bytes, facts: &RequestFacts) -> (Bytes, Captured);

    /// Captures a reply with a bad status; the agent gets the body as it is.
    fn refused_reply(&self, status: u16, body: &Bytes) -> Captured;

    /// The stream that says what a whole reply (the agent's body of [`Dialect::unary`]) says; `None` where that is no
    /// reply of this dialect, and is to be passed on as it is.
    fn replay(&self, body: &[u8], facts: &RequestFacts) -> Option<Bytes>;

    /// The event that tells an agent its stream has failed.
    fn error_event(&self, message: &str) -> Bytes;

    /// The body of an error reply of our own. `kind` is the dialect's word for it, such as `invalid_request_error`.
    fn error_body(&self, status: u16, message: &str, kind: &str) -> Bytes;

    /// A valid, non-empty answer of the assistant in the form the agent asked for, stream or whole.
    fn assistant_reply(&self, text: &str, facts: &RequestFacts, created_unix_s: u64) -> Bytes;

    /// What keeps a stream alive without saying anything.
    fn keep_alive(&self) -> Bytes;

    /// How its bodies are taken apart to be stored, and its messages told apart.
    fn shape(&self) -> &'static BodyShape;
}

/// Captures a streamed reply as it comes, and gives what the agent is to see of it.
///
/// What can be forwarded is forwarded by the same `push`, event by event. One event may be held back: the one with a
/// finish_reason, until the next event or the end, since members of an event that is not for the agent move into it.
pub trait StreamCapture: Send {
    /// Takes a chunk of the reply's body, cut anywhere, and appends what the agent is to get now.
    ///
    /// # Errors
    /// The stream cannot be read on; `finish` is to be called with [`StreamEnd::Cut`].
    fn push(&mut self, chunk: &[u8], out: &mut BytesMut) -> Result<(), StreamError>;

    /// Whether an event is held back that [`StreamCapture::release`] would give; for when the endpoint is silent.
    fn holds(&self) -> bool;

    /// Appends the event held back, if there is one, without what might have moved into it.
    fn release(&mut self, out: &mut BytesMut);

    /// What has been seen so far.
    fn seen(&self) -> StreamSeen;

    /// Ends the capture. Appends what was held back; never the dialect's last event unless the endpoint sent it after
    /// a whole turn, so where [`Captured::end`] is not `Complete` and no error event was seen, an error event or a
    /// reset connection is the caller's to send.
    fn finish(self: Box<Self>, end: StreamEnd, out: &mut BytesMut) -> Captured;
}

/// The dialect that answers a request, and what to append to the endpoint's base URL for it. The path is without query.
#[must_use]
pub fn route(method: &str, path: &str) -> Option<(&'static dyn Dialect, &'static str)> {
    DIALECTS
        .iter()
        .find_map(|dialect| Some((*dialect, dialect.upstream_path(method, path)?)))
}
