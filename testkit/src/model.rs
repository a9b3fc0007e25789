//! The scripted model endpoint.
//!
//! It promises what vLLM 0.32 does: prompt ids are the tokenisation of what it *received*; sampled ids, log-probabilities
//! and the usage count agree; a stream that was asked for ids differs from a plain one only by them and by the events
//! that carry nothing else. It runs no model: a `model::Script` decides what is said, so every reply is known beforehand.

/// Text to ids and back: bytes, common pieces, special tokens.
mod tokenizer;

/// Messages and tools to the text the model sees.
mod template;

/// A request, read and checked as vLLM checks it.
mod request;

/// What the model says next.
mod script;

/// The scripts behind the preset tasks.
mod presets;

/// A turn as sampled tokens.
mod sample;

/// Sampled tokens to reasoning, content and tool calls, as they stream.
mod parser;

/// One choice of a reply, as it was sampled.
mod choice;

/// Log-probabilities as they stand in a reply.
mod logprobs;

/// The JSON of replies.
mod shape;

/// Replies as JSON: the events of a stream, or one document.
mod render;

/// Replies for the benchmark's upstream.
pub(crate) mod bench_reply;

/// What of a reply is sent when.
mod playback;

/// A reply's body, played in time.
mod body;

/// The HTTP server.
mod server;

pub use presets::PresetScript;
pub use script::{Conversation, Script, ScriptedTurns, Shell, ToolCall, Turn, Writer};
pub use server::{KeepRequests, Received, ScriptedModel, ScriptedModelConfig, Sent, serve};
pub use tokenizer::{Tokenizer, special};
