//! The calls of a rollout in compact form, and the sequences a trainer takes.
//!
//! A `TrajectoryBuilder` is fed each call as it ends and gives back what is to be stored of it: message contents once,
//! token ids as what they share with an earlier call and what is new. A `Trajectory` is the same state restored from
//! the stored records. Both answer for the full ids of every call, and for the sequences. Nothing is retokenised,
//! realigned or guessed at.

/// Contents by their hash.
mod content;

/// The compact form of a call.
mod record;

/// How the bodies of a dialect are taken apart.
mod shape;

/// A request body, taken apart and put together again byte for byte.
mod request;

/// Taking calls in as they end.
mod builder;

/// Which earlier call a call goes on from.
mod lineage;

/// All calls of a rollout, held compactly.
mod held;

/// What can be said of calls only when all are known.
mod late;

/// What is trained, and why something is not.
mod selection;

/// Root-to-leaf token paths, and where each completion is trained.
mod sequence;

/// What made a prompt break.
mod explain;

pub use builder::TrajectoryBuilder;
pub use content::{BadHash, ContentHash};
pub use explain::{Explanation, MessageChange, Said};
pub use held::{CallView, Trajectory};
pub use record::{ArrayLayout, CallRecord, Delta, PrefixBreak, Recorded, RequestParts, TokenDelta};
pub use request::{MissingContent, assemble};
pub use selection::{Keep, Selection, SubagentReward, UnknownWord, Untrained};
pub use sequence::{Sequence, SequencePlan, TurnSpan};
pub use shape::BodyShape;

#[cfg(test)]
pub(crate) mod tests;
