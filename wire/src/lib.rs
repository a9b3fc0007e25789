//! What is said on every boundary of Dressage: tasks, calls, dialects, server-sent events, the token graph,
//! trajectories, rewards and faults.
//!
//! Pure data and parsing. Nothing here knows of tokio, files or sockets, and nothing here panics on bad input.

/// Identifiers: newtypes over UUIDv7, so that one kind of id is never taken for another.
pub mod ids;

/// What is asked for: an instruction, how to set up and verify it, the agent, sampling and limits.
pub mod task;

/// Sampling parameters, merged over their sources and set on every call.
pub mod sampling;

/// The five stages, and the events of a rollout.
pub mod event;

/// What the host and the program inside a sandbox say to each other.
pub mod control;

/// What a relay and who dials it say before their channel.
pub mod relay;

/// Server-sent events, split out of any sequence of byte chunks.
pub mod sse;

/// Where the members of a JSON text are, found without building a tree.
pub mod scan;

/// What the tap tells a dialect of a call, and what the dialect tells it back.
pub mod capture;

/// The dialects agents speak to their models: editing requests, reading and stripping replies.
pub mod dialect;

/// Times as text.
mod time;

/// What was found out about an endpoint by asking it.
pub mod probe;

/// Between other dialects and chat completions.
#[cfg(feature = "translated")]
mod translate;

/// One exchange with a model, and what was captured of it.
pub mod call;

/// A radix tree over token ids: what calls share is held once.
pub mod graph;

/// The calls of a rollout in compact form, and the sequences a trainer takes.
pub mod trajectory;

/// Rollouts in the forms in which they leave: rows of exports, and the documents that are read in again.
pub mod export;

/// Whether what was stored or exported is what it must be.
pub mod validate;

/// The reward and its evidence.
pub mod reward;

/// Whose failure it was, where, and what may help.
pub mod fault;

/// A rollout as it starts and as it ends, and the trait of whoever keeps it.
pub mod rollout;
