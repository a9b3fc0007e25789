use crate::call::{CallEnd, CaptureLevel, Completion, Flag, Usage};
use bytes::Bytes;

/// What was captured of a reply.
#[derive(Clone, Debug)]
pub struct Captured {
    /// How the reply ended: `Complete`, `UpstreamError`, `UpstreamCut` or `DownstreamGone`.
    pub end: CallEnd,
    /// What went wrong, where something did.
    pub error: Option<String>,
    /// Ids of the prompt.
    pub prompt_token_ids: Option<Vec<u32>>,
    /// What was sampled, a choice each, by index.
    pub completions: Vec<Completion>,
    /// The entries of log-probabilities of the first choice as the endpoint wrote them, a JSON array; empty where they
    /// were not to be kept. What was no valid JSON is put right.
    pub entries: Bytes,
    /// What the endpoint counted.
    pub usage: Option<Usage>,
    /// The model that answered, as the endpoint names it.
    pub model: Option<String>,
    /// The reply as one JSON document in the dialect's unary form, without captured members. The body itself where it
    /// was an error; empty where nothing came.
    pub response: Bytes,
    /// What makes it less than a clean, trainable turn, as far as request and reply tell; sorted.
    pub flags: Vec<Flag>,
    /// What the capture is worth.
    pub level: CaptureLevel,
}

/// How a stream from an endpoint came to its end, as the transport saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamEnd {
    /// The body was whole by the rules of HTTP.
    EndOfBody,
    /// The connection broke, or a deadline ended it.
    Cut,
    /// The agent went away.
    DownstreamGone,
}

/// What a stream has shown so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamSeen {
    /// A first event with a choice was there: the agent has content.
    pub content: bool,
    /// Every choice asked for has its finish_reason: what follows can no longer break the turn.
    pub finished: bool,
    /// How many ids of the prompt were there.
    pub prompt_tokens: Option<u64>,
    /// The dialect's last event was there.
    pub done: bool,
    /// An error event was there.
    pub error: bool,
    /// An event was there that could not be read.
    pub malformed: bool,
    /// Where in `out`, as the last `push` left it, begins what may be an endpoint's own words rather than a reply's: the
    /// first event that was an error or could not be read, and all after it.
    pub own_words_at: Option<usize>,
}

/// A stream that cannot be read on. The call ends `UpstreamCut`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StreamError {
    /// An event is larger than allowed.
    #[error("an event of the endpoint's stream is larger than {limit_bytes} bytes")]
    EventTooLarge {
        /// The most it may be.
        limit_bytes: usize,
    },
    /// An event cannot be read, and so cannot be translated.
    #[error("an event of the endpoint's stream is not JSON")]
    Malformed,
}

/// What the agent gets of a whole reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shown {
    /// This document.
    Document(Bytes),
    /// The stream that it asked for.
    Stream(Bytes),
    /// Nothing of it: it could be taken for a reply, and is none.
    Nothing,
}
