use crate::call::{CallMeta, CallSummary, Completion};
use crate::trajectory::ContentHash;
use bytes::Bytes;
use serde::{Deserialize, Serialize};

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
    /// `meta.index` of the call whose conversation it goes on from.
    pub continues: Option<u32>,
    /// How its prompt differs from that call's prompt and completion, where it does.
    pub prefix_break: Option<PrefixBreak>,
}

/// A request body with its messages and tools taken out and held by content, so that what many requests repeat is
/// stored once. [`crate::trajectory::assemble`] gives the body back byte for byte.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestParts {
    /// The messages, as what they share with an earlier call's and what is new.
    pub messages: Delta<ContentHash>,
    /// How the messages stand in the body; `None` where none were taken out.
    pub layout: Option<ArrayLayout>,
    /// The tools array, and the offset in `rest` of the `null` that stands for it.
    pub tools: Option<(u32, ContentHash)>,
    /// The body with `null` where messages and tools were taken out; the whole body where it could not be taken apart.
    pub rest: ContentHash,
}

/// How an array was written, so that it can be written so again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ArrayLayout {
    /// Offset in the rest of the body of the `null` that stands for the array.
    pub at: u32,
    /// From the opening bracket to the first item.
    pub open: String,
    /// Between two items.
    pub between: String,
    /// From the last item to the closing bracket.
    pub close: String,
}

/// A list, as what it shares with an earlier call's and what is new.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Delta<T> {
    /// `meta.index` of the call shared with.
    pub base: Option<u32>,
    /// How many of the leading items of that call's list are shared.
    pub shared: u32,
    /// The items after those.
    pub tail: Vec<T>,
}

/// Token ids. The list shared with is the earlier call's prompt and first completion, taken together.
pub type TokenDelta = Delta<u32>;

impl<T> Delta<T> {
    /// Length of the whole list.
    #[must_use]
    pub fn length(&self) -> usize {
        self.tail.len() + usize::try_from(self.shared).unwrap_or(usize::MAX)
    }
}

/// Where a prompt stops being what an earlier call's prompt and completion were.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
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

impl CallRecord {
    /// Its numbers, for events and lists.
    #[must_use]
    pub fn summary(&self) -> CallSummary {
        let counted = self.meta.usage.unwrap_or_default();
        let sampled: usize = self.completions.iter().map(|choice| choice.token_ids.len()).sum();
        CallSummary {
            id: self.meta.id,
            index: self.meta.index,
            end: self.meta.end,
            purpose: self.meta.purpose,
            level: self.meta.level,
            prompt_tokens: self
                .prompt
                .as_ref()
                .map_or(counted.prompt_tokens, |prompt| prompt.length() as u64),
            completion_tokens: if sampled == 0 {
                counted.completion_tokens
            } else {
                sampled as u64
            },
            flags: self.meta.flags.clone(),
            duration_ms: self.meta.duration_ms,
            prefix_break: self.prefix_break.is_some(),
        }
    }
}
