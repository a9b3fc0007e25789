//! One OpenTelemetry trace for each rollout, sent over OTLP/HTTP where the usual variables name a collector.
//!
//! Spans are made of what the engine tells and records anyway (an observer and a recorder), and hold numbers, names and
//! codes: never what was said, never a key. Whoever cannot be reached costs a rollout nothing: spans wait in a queue of
//! fixed length, and what finds no room in it is dropped and counted. docs/tracing.md lists spans and attributes.
//!
//! The two encodings are written here and not by the OpenTelemetry crates: it is one message, and its stable schema is
//! less to keep up with than an SDK with a second HTTP client (docs/design/traces-without-an-sdk.md).

/// Where spans go, as the environment has it.
mod settings;

/// Spans as data.
mod span;

/// The names of attributes.
mod names;

/// Rollouts as spans.
mod rollouts;

/// Calls as spans.
mod calls;

/// Their binary form.
mod protobuf;

/// Their JSON form.
mod json;

/// Sending them.
mod export;

pub use export::Exporter;
pub use rollouts::{Traced, Traces};
pub use settings::Settings;
