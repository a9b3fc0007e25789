//! Between other dialects and chat completions.
//!
//! A dialect that endpoints answer without token ids is asked for in chat completions: its request is rewritten
//! (`Translation::request`), the reply is captured as every chat completion is, and what the agent would have got
//! of it in chat is written in its dialect, event by event as it comes (`Flow`, `Writer`). So capture is one
//! code for all dialects, and a dialect is what it reads and writes.
//!
//! What chat completions cannot carry is named in `RequestFacts::untranslated`; nothing is left out in silence.

/// Values of a request, as their text.
pub(crate) mod raw;

/// The members of a request, each taken once, so that what is left is known.
pub(crate) mod fields;

/// The messages of a chat completion, put together from those of another dialect.
pub(crate) mod conversation;

/// JSON text under way.
pub(crate) mod json;

/// What a chat completion says: an event of it, or all.
pub(crate) mod chunk;

/// A reply, as blocks in order.
pub(crate) mod reply;

/// A reply on its way, event by event.
pub(crate) mod flow;

/// A dialect made of a translation.
pub(crate) mod translated;

/// Parts of messages.
pub(crate) mod parts;

pub(crate) use conversation::Conversation;
pub(crate) use fields::{Fields, Lost, Objects, Said};
pub(crate) use flow::Writer;
pub(crate) use json::Json;
pub(crate) use parts::Part;
pub(crate) use raw::Raw;
pub(crate) use reply::{Block, Finish, Kind, Reply};
pub(crate) use translated::{ChatRequest, Translated, Translation};

#[cfg(test)]
mod tests;
