//! The dialects agents speak to their models: how a request is edited, how a reply is captured and stripped, and how an
//! answer of our own looks.
//!
//! A dialect is one file here and one row of `DIALECTS`; nothing else matches on which dialect a call is in. Endpoints
//! are asked in chat completions, since what training needs comes in no other dialect. There what is cut or replaced is
//! cut or replaced in the raw bytes: what is not ours passes as it came. The other dialects are translated both ways.

/// Anthropic Messages.
#[cfg(feature = "translated")]
pub mod messages;

/// OpenAI Responses.
#[cfg(feature = "translated")]
pub mod responses;

/// Google generateContent.
#[cfg(feature = "translated")]
pub mod generate_content;

/// OpenAI chat completions.
pub mod chat;

use crate::call::{CallMeta, Change, DialectName};
use crate::capture::{
    Captured, Prepared, RequestError, RequestFacts, RequestRules, Shown, StreamEnd, StreamError, StreamForm,
    StreamSeen,
};
use crate::trajectory::BodyShape;
use bytes::{Bytes, BytesMut};

/// Every dialect that is understood. A request is for the first that takes it: routes that several have in common, such
/// as the list of models, are those of the last unless a header says otherwise.
pub static DIALECTS: &[&dyn Dialect] = &[
    #[cfg(feature = "translated")]
    &messages::DIALECT,
    #[cfg(feature = "translated")]
    &responses::DIALECT,
    #[cfg(feature = "translated")]
    &generate_content::DIALECT,
    &chat::ChatCompletions,
];

/// What the line and headers of a request say.
pub struct Asked<'a> {
    /// The method, in capitals.
    pub method: &'a str,
    /// The path, without the query.
    pub path: &'a str,
    /// The query, empty where there is none.
    pub query: &'a str,
    /// Gives the value of a header by its lower-case name.
    pub header: &'a dyn Fn(&str) -> Option<&'a str>,
}

/// Where a call goes, with what some dialects say in the path rather than in the body.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Target {
    /// What to append to the endpoint's base URL.
    pub upstream_path: &'static str,
    /// The model asked for.
    pub model: Option<String>,
    /// The stream asked for.
    pub stream: Option<StreamForm>,
}

/// What agents ask for beside calls of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SideRoute {
    /// How many tokens a request would be.
    CountTokens(Target),
    /// Which models there are.
    Models,
    /// One of them.
    Model(String),
}

/// A model, as lists of models name it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelEntry {
    /// Its name.
    pub id: String,
    /// When it was made, in seconds since the Unix epoch; 0 where that is not known.
    pub created_unix_s: u64,
    /// Tokens of prompt and completion together, where known.
    pub context_tokens: Option<u64>,
}

/// A dialect agents speak to their models.
pub trait Dialect: Send + Sync {
    /// Its name.
    fn name(&self) -> DialectName;

    /// Where a request goes that asks this dialect for a reply of a model.
    fn route(&self, asked: &Asked<'_>) -> Option<Target>;

    /// What a request asks for beside that.
    fn side_route(&self, asked: &Asked<'_>) -> Option<SideRoute>;

    /// Edits a request by the rules.
    ///
    /// # Errors
    /// A body that cannot be sent on; the agent is to be told, with status 400.
    fn prepare(&self, target: &Target, body: &Bytes, rules: &RequestRules) -> Result<Prepared, RequestError>;

    /// Which changes make a request acceptable that was answered with this status and body; empty where it was refused
    /// for another reason. Changes concern only members that were sent, and never the model, messages, tools or stream.
    fn refused(&self, status: u16, body: &[u8], facts: &RequestFacts) -> Vec<Change>;

    /// Starts to capture a streamed reply with a good status.
    fn stream(&self, facts: &RequestFacts, event_limit_bytes: usize) -> Box<dyn StreamCapture>;

    /// Captures a whole reply with a good status, and gives what the agent is to see of it in the form it asked for.
    fn whole(&self, body: &Bytes, facts: &RequestFacts) -> (Shown, Captured);

    /// Captures a reply with a bad status. Returns the body for the agent, or `None` where it gets the endpoint's.
    fn refused_reply(&self, status: u16, body: &Bytes) -> (Option<Bytes>, Captured);

    /// A stream, or the rest of one that has said nothing yet, that tells an agent of a failure.
    fn error_event(&self, status: u16, message: &str, form: StreamForm) -> Bytes;

    /// The body of an error reply of our own. `kind` is OpenAI's word for it, such as `invalid_request_error`; dialects
    /// that name errors by their status do not need it.
    fn error_body(&self, status: u16, message: &str, kind: &str) -> Bytes;

    /// A valid, non-empty answer of the assistant in the form the agent asked for, stream or whole.
    fn assistant_reply(&self, text: &str, facts: &RequestFacts, created_unix_s: u64) -> Bytes;

    /// What keeps a stream alive without saying anything.
    fn keep_alive(&self) -> Bytes;

    /// The answer to a request for a number of tokens; `None` for a dialect that has no such request.
    fn token_count(&self, tokens: u64) -> Option<Bytes>;

    /// The request in chat completions whose tokens are to be counted.
    ///
    /// # Errors
    /// As for [`Dialect::prepare`].
    fn to_be_counted(&self, target: &Target, body: &Bytes) -> Result<Bytes, RequestError>;

    /// A request as the endpoint is asked in chat completions, but for what the tap sets and asks for.
    ///
    /// # Errors
    /// As for [`Dialect::prepare`].
    fn chat_request(&self, target: &Target, body: &Bytes) -> Result<Bytes, RequestError>;

    /// A whole reply, in the dialect's unary form, as the endpoint gave it in chat completions; of what is beside its
    /// message only what `meta` and `finish_reason` say. `None` where it has no message.
    fn chat_reply(
        &self,
        request: &Bytes,
        reply: &Bytes,
        meta: &CallMeta,
        finish_reason: Option<&str>,
    ) -> Option<Bytes>;

    /// The list of these models; `None` where OpenAI's list is that of this dialect.
    fn models(&self, models: &[ModelEntry]) -> Option<Bytes>;

    /// One model of such a list.
    fn model(&self, model: &ModelEntry) -> Option<Bytes>;

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

    /// The endpoint's names for the tokens of the first choice that have come so far; none where it sends no
    /// log-probabilities.
    fn sampled(&self) -> &[String];

    /// Ends the capture, once. Appends what was held back; never the dialect's last event unless the endpoint sent it
    /// after a whole turn, so where [`Captured::end`] is not `Complete` and no error event was seen, `fail` or a reset
    /// connection is the caller's to do.
    fn finish(&mut self, end: StreamEnd, out: &mut BytesMut) -> Captured;

    /// Appends what tells the agent that its stream has failed, after `finish`.
    fn fail(&mut self, message: &str, out: &mut BytesMut);
}

/// The dialect of this name; `None` where it is not built in.
#[must_use]
pub fn named(name: DialectName) -> Option<&'static dyn Dialect> {
    DIALECTS.iter().copied().find(|dialect| dialect.name() == name)
}

/// The dialect that a request asks for a reply of a model, and where it goes.
#[must_use]
pub fn route(asked: &Asked<'_>) -> Option<(&'static dyn Dialect, Target)> {
    DIALECTS
        .iter()
        .find_map(|dialect| Some((*dialect, dialect.route(asked)?)))
}

/// The dialect that a request asks for something beside that.
#[must_use]
pub fn side_route(asked: &Asked<'_>) -> Option<(&'static dyn Dialect, SideRoute)> {
    DIALECTS
        .iter()
        .find_map(|dialect| Some((*dialect, dialect.side_route(asked)?)))
}
