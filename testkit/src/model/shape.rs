//! The JSON of replies: members in the order, and with the nulls, that vLLM 0.32 writes. An outer `Option` says whether
//! a member is there, an inner one whether it is null.

use super::logprobs::Entries;
use serde::Serialize;

/// An event of a stream.
#[derive(Debug, Serialize)]
pub(super) struct Chunk<'a> {
    pub id: &'a str,
    pub object: &'static str,
    pub created: u64,
    pub model: &'a str,
    pub choices: Vec<ChunkChoice<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub system_fingerprint: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_token_ids: Option<Option<&'a [u32]>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_text: Option<Option<&'a str>>,
}

/// A choice in an event of a stream.
#[derive(Debug, Serialize)]
pub(super) struct ChunkChoice<'a> {
    pub index: u32,
    pub delta: DeltaBody,
    pub logprobs: Option<Entries>,
    pub finish_reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop_reason: Option<Option<&'a str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_ids: Option<Option<&'a [u32]>>,
}

/// What an event adds.
#[derive(Debug, Default, PartialEq, Serialize)]
pub(super) struct DeltaBody {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content: Option<Option<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning: Option<Option<String>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCallBody>,
}

impl DeltaBody {
    /// Whether it adds nothing.
    pub(super) fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// A tool call, or a part of one.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct ToolCallBody {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub r#type: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub index: Option<usize>,
    pub function: FunctionBody,
}

/// The function of a tool call.
#[derive(Debug, Default, PartialEq, Serialize)]
pub(super) struct FunctionBody {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arguments: Option<String>,
}

/// Token counts.
#[derive(Debug, Serialize)]
pub(super) struct Usage {
    pub prompt_tokens: usize,
    pub total_tokens: usize,
    pub completion_tokens: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_tokens_details: Option<Option<()>>,
    pub completion_tokens_details: UsageDetails,
}

/// What completion tokens were for.
#[derive(Debug, Serialize)]
pub(super) struct UsageDetails {
    pub reasoning_tokens: usize,
}

/// A reply that is not streamed.
#[derive(Debug, Serialize)]
pub(super) struct Document<'a> {
    pub id: &'a str,
    pub object: &'static str,
    pub created: u64,
    pub model: &'a str,
    pub choices: Vec<DocumentChoice<'a>>,
    pub service_tier: Option<()>,
    pub system_fingerprint: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    pub prompt_logprobs: Option<()>,
    pub prompt_token_ids: Option<&'a [u32]>,
    pub prompt_text: Option<()>,
    pub kv_transfer_params: Option<()>,
    pub ec_transfer_params: Option<()>,
    pub metrics: Option<()>,
}

/// A choice of a reply that is not streamed.
#[derive(Debug, Serialize)]
pub(super) struct DocumentChoice<'a> {
    pub index: u32,
    pub message: MessageBody,
    pub logprobs: Option<Entries>,
    pub finish_reason: &'static str,
    pub stop_reason: Option<&'a str>,
    pub token_ids: Option<&'a [u32]>,
    pub routed_experts: Option<()>,
}

/// A message that is not streamed.
#[derive(Debug, Serialize)]
pub(super) struct MessageBody {
    pub role: &'static str,
    pub content: Option<String>,
    pub refusal: Option<()>,
    pub annotations: Option<()>,
    pub audio: Option<()>,
    pub function_call: Option<()>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCallBody>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning: Option<String>,
}
