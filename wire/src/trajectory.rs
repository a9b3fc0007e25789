use crate::call::{CallMeta, Completion};
use bytes::Bytes;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest, Sha256};
use std::fmt;
use std::str::FromStr;

/// SHA-256 of some content, cut to 16 bytes: enough to tell the contents of one store apart.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ContentHash(pub [u8; 16]);

impl ContentHash {
    /// The hash of some content.
    #[must_use]
    pub fn of(content: &[u8]) -> Self {
        let mut hash = [0; 16];
        for (to, from) in hash.iter_mut().zip(Sha256::digest(content)) {
            *to = from;
        }
        Self(hash)
    }
}

impl fmt::Display for ContentHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for ContentHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for ContentHash {
    type Err = BadHash;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.len() != 32 || !text.is_ascii() {
            return Err(BadHash);
        }
        u128::from_str_radix(text, 16)
            .map(|value| Self(value.to_be_bytes()))
            .map_err(|_| BadHash)
    }
}

/// A text that is not a content hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a content hash is 32 hexadecimal digits")]
pub struct BadHash;

impl Serialize for ContentHash {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ContentHash {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// A call in the form that is kept: what earlier calls of its rollout hold already is only referred to.
#[derive(Clone, Debug, PartialEq)]
pub struct CallRecord {
    /// What is small.
    pub meta: CallMeta,
    /// The agent's request.
    pub request: RequestParts,
    /// The reply, by content; `None` where nothing came.
    pub response: Option<ContentHash>,
    /// The prompt's ids, where they were captured.
    pub prompt: Option<TokenDelta>,
    /// What was sampled.
    pub completions: Vec<Completion>,
    /// How its prompt differs from the call it goes on from.
    pub prefix_break: Option<PrefixBreak>,
}

/// A request with its messages and tools taken out and held by content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestParts {
    /// Each message, in order.
    pub messages: Vec<ContentHash>,
    /// The tools array.
    pub tools: Option<ContentHash>,
    /// The rest of the body, JSON text, in which `messages` and `tools` are `null` where they stood.
    pub rest: String,
}

/// Token ids, as what they share with an earlier call and what is new.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenDelta {
    /// `meta.index` of the call shared with.
    pub base: Option<u32>,
    /// How many of the leading ids of that call's prompt and first completion, taken together, are shared.
    pub shared: u32,
    /// The ids after those.
    pub tail: Vec<u32>,
}

/// Where a prompt stops being what an earlier call's prompt and completion were.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PrefixBreak {
    /// `meta.index` of the call it goes on from.
    pub base: u32,
    /// Position of the first differing id, from the start of the prompt.
    pub at: u32,
    /// Whether that is inside the earlier call's completion.
    pub inside_completion: bool,
    /// The id the earlier call has there.
    pub expected_token_id: u32,
    /// The id this prompt has there; `None` where the prompt ends.
    pub found_token_id: Option<u32>,
    /// Position of the first message that is not the earlier call's, in this request.
    pub message: Option<u32>,
}

/// A record and the contents that it is the first to refer to.
#[derive(Clone, Debug)]
pub struct Recorded {
    /// The compact call.
    pub record: CallRecord,
    /// Contents by hash, each said once for a rollout.
    pub contents: Vec<(ContentHash, Bytes)>,
}
