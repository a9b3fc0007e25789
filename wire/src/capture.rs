//! What the tap tells a dialect about a call, and what the dialect tells it back: rules and facts of the request, what
//! was captured of the reply, what an endpoint refuses, and who made the call.
//!
//! Nothing here knows the members of any one dialect; `crate::dialect` holds those.

/// What is to be done to a request, and what came of it.
pub mod request;

/// What is needed to translate a reply back.
#[cfg(feature = "translated")]
pub mod way_back;

/// What a reply was worth.
pub mod captured;

/// What an endpoint will not take.
pub mod refusal;

/// Who made a call, told from its headers and its first words.
pub mod signs;

pub use captured::{Captured, Shown, StreamEnd, StreamError, StreamSeen};
pub use request::{Ask, Prepared, RequestError, RequestFacts, RequestRules, StreamForm};
pub use signs::{AgentSigns, AuxiliarySign, OfferedTools, classify};
#[cfg(feature = "translated")]
pub use way_back::{ToolForm, WayBack};
