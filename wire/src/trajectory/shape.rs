use crate::call::DialectName;
use crate::dialect::named;
use crate::trajectory::ContentHash;

/// How the bodies of a dialect are taken apart, and what of a message tells it from others.
pub struct BodyShape {
    /// The request's member that holds the array of messages.
    pub messages: &'static str,
    /// The request's member that holds the array of tools.
    pub tools: &'static str,
    /// A message without what an agent changes from request to request though the conversation goes on; `None` where
    /// it has no such thing.
    pub canonical: fn(&str) -> Option<String>,
    /// Tells the assistant's turns of a conversation apart, in what agents leave as it is: text and tool-call ids.
    /// Of a message of a request; `None` where it is not the assistant's.
    pub turn: fn(&str) -> Option<ContentHash>,
    /// The same of a reply in the dialect's unary form.
    pub reply: fn(&[u8]) -> Option<ContentHash>,
}

/// Takes nothing out of a body.
static WHOLE: BodyShape = BodyShape {
    messages: "",
    tools: "",
    canonical: |_| None,
    turn: |_| None,
    reply: |_| None,
};

/// The shape of a dialect's bodies. Those of a dialect that is not in the registry are kept whole.
pub(crate) fn of(dialect: DialectName) -> &'static BodyShape {
    named(dialect).map_or(&WHOLE, |entry| entry.shape())
}
