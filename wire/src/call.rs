use crate::ids::CallId;
use crate::sampling::Sampling;
use bytes::Bytes;
use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use std::fmt;

/// One exchange with a model, whole, as the tap hands it over. [`crate::trajectory`] has the compact form that is kept.
#[derive(Clone, Debug)]
pub struct Call {
    /// What is small and stored as it is.
    pub meta: CallMeta,
    /// The body the agent sent, byte for byte.
    pub request: Bytes,
    /// The reply as one JSON document in the dialect's unary form, captured members left out: rebuilt from the deltas
    /// of a stream, the error body after an error, empty where nothing came.
    pub response: Bytes,
    /// Ids of the prompt, as the endpoint sent them.
    pub prompt_token_ids: Option<Vec<u32>>,
    /// What was sampled, a choice each.
    pub completions: Vec<Completion>,
}

/// One choice of a reply, in tokens.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Completion {
    /// `choices[].index`.
    pub index: u32,
    /// The sampled ids, as the endpoint sent them.
    pub token_ids: Vec<u32>,
    /// The log-probability of each sampled token; NaN (in JSON `null`) stands for one that was not a finite number.
    #[serde(deserialize_with = "numbers_or_null")]
    #[cfg_attr(feature = "schema", schema(value_type = Vec<Option<f64>>))]
    pub logprobs: Vec<f64>,
    /// The endpoint's name for each sampled token, where it sent log-probabilities.
    pub tokens: Vec<String>,
    /// The alternatives at each position, best first; empty where none were kept.
    pub top_logprobs: Vec<Vec<TopLogprob>>,
    /// Why it ended.
    pub finish_reason: Option<String>,
    /// vLLM's `stop_reason`, as JSON text.
    pub stop_reason: Option<String>,
}

/// An alternative at a position.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct TopLogprob {
    /// The endpoint's name for the token.
    pub token: String,
    /// Its id where the endpoint sent it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_id: Option<u32>,
    /// Its log-probability; NaN (in JSON `null`) stands for one that was not a finite number.
    #[serde(deserialize_with = "number_or_null")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<f64>))]
    pub logprob: f64,
}

fn number_or_null<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or(f64::NAN))
}

fn numbers_or_null<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<f64>, D::Error> {
    struct Numbers;

    impl<'de> Visitor<'de> for Numbers {
        type Value = Vec<f64>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list of numbers and nulls")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
            let mut numbers = Vec::with_capacity(items.size_hint().unwrap_or_default());
            while let Some(item) = items.next_element::<Option<f64>>()? {
                numbers.push(item.unwrap_or(f64::NAN));
            }
            Ok(numbers)
        }
    }

    deserializer.deserialize_seq(Numbers)
}

/// What is small of a call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct CallMeta {
    /// Its id.
    pub id: CallId,
    /// Order of arrival in its rollout, from 0.
    pub index: u32,
    /// The dialect the agent spoke.
    pub dialect: DialectName,
    /// Whether the agent asked for a stream.
    pub streamed: bool,
    /// Milliseconds since the Unix epoch.
    pub started_unix_ms: u64,
    /// From the agent's request to the first byte of content for it.
    pub first_token_ms: Option<u64>,
    /// From the agent's request to the end.
    pub duration_ms: u64,
    /// How it ended.
    pub end: CallEnd,
    /// The endpoint's HTTP status, where there was one.
    pub status: Option<u16>,
    /// What went wrong, where something did.
    pub error: Option<String>,
    /// What may help against that, where it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// Who made it, and what for.
    pub purpose: Purpose,
    /// The agent's own id of the conversation, from its headers.
    pub session: Option<String>,
    /// The conversation that started this one.
    pub parent_session: Option<String>,
    /// Value of the header that marks a retry.
    pub retry_count: Option<u32>,
    /// Key for telling retries: session and canonical body without stream, stream_options and token limits; hex.
    pub retry_key: String,
    /// Model that answered, as the endpoint names it.
    pub model: Option<String>,
    /// What was asked of the sampler, after all rules.
    pub sampling: Sampling,
    /// What the endpoint counted.
    pub usage: Option<Usage>,
    /// What the capture is worth.
    pub level: CaptureLevel,
    /// Everything that makes it less than a clean, trainable turn.
    pub flags: Vec<Flag>,
    /// What was changed in the request because the endpoint refused it.
    pub changes: Vec<Change>,
    /// What of the request the endpoint's dialect could not carry, as paths of members without positions, such as
    /// `tools.web_search`; sorted. Empty where nothing was translated.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub untranslated: Vec<String>,
    /// Policy version when it was sent.
    pub policy_version_at_dispatch: Option<String>,
    /// Policy version when it ended.
    pub policy_version_at_completion: Option<String>,
    /// Bytes of the agent's request body.
    pub request_bytes: u64,
    /// Bytes received from the endpoint.
    pub upstream_bytes: u64,
}

/// What a model server counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: u64,
    /// Tokens sampled, over all choices.
    pub completion_tokens: u64,
    /// Of these, tokens of reasoning, where told.
    pub reasoning_tokens: Option<u64>,
    /// Tokens of the prompt that the server had in its cache, where told.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cached_tokens: Option<u64>,
}

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum CallEnd {
    /// The endpoint's reply was whole and the agent got it.
    Complete,
    /// The endpoint answered with an error, or could not be reached.
    UpstreamError,
    /// The endpoint's reply broke off.
    UpstreamCut,
    /// The agent went away before the end.
    DownstreamGone,
    /// A budget answered in the endpoint's place.
    Budget,
    /// The tap itself refused it, as too large or as no valid request; nothing was sent.
    Refused,
}

/// Who made a call, and what for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Purpose {
    /// The agent, on its own line of conversation.
    Agent,
    /// A title for the conversation.
    Title,
    /// A summary of the conversation.
    Summary,
    /// An agent started by the agent.
    Subagent,
    /// Something else that found the relay.
    Foreign,
}

/// What the capture of a call is worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum CaptureLevel {
    /// Text only.
    Text,
    /// Log-probabilities without ids for every token.
    Logprobs,
    /// Ids and log-probabilities for every token, and ids of the prompt.
    Tokens,
}

/// What makes a call less than a clean, trainable turn. Those of which [`Flag::blocks_training`] is true take it out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Flag {
    /// Two sources of ids disagree.
    IdsDisagree,
    /// A log-probability is not a finite number at or below 0, or is a server's filler.
    LogprobInvalid,
    /// Ids and log-probabilities differ in number.
    LengthMismatch,
    /// Fewer or more ids than the endpoint counted.
    TokensMissing,
    /// The endpoint sent no count to check against.
    UsageMissing,
    /// No ids of the prompt.
    PromptIdsMissing,
    /// More than one choice.
    MultipleChoices,
    /// The agent bent the distribution (logit_bias, guided decoding).
    SamplingAltered,
    /// Ended by a token limit. Trainable.
    Truncated,
    /// A budget answered.
    Budget,
    /// The log-probabilities are those before temperature.
    LogprobsRaw,
    /// A later attempt took its place.
    Superseded,
    /// A twin with the same prompt was continued instead.
    Abandoned,
    /// The request was sent again without what the endpoint refused. Trainable.
    RequestChanged,
    /// The neutral sampling set was sent since none was asked for. Trainable.
    SamplingDefaulted,
    /// Recorded where the agent could have written it.
    SandboxIntegrity,
    /// The captured reply could not be read in full.
    CaptureIncomplete,
}

impl Flag {
    /// Every flag.
    pub const ALL: [Self; 17] = [
        Self::IdsDisagree,
        Self::LogprobInvalid,
        Self::LengthMismatch,
        Self::TokensMissing,
        Self::UsageMissing,
        Self::PromptIdsMissing,
        Self::MultipleChoices,
        Self::SamplingAltered,
        Self::Truncated,
        Self::Budget,
        Self::LogprobsRaw,
        Self::Superseded,
        Self::Abandoned,
        Self::RequestChanged,
        Self::SamplingDefaulted,
        Self::SandboxIntegrity,
        Self::CaptureIncomplete,
    ];

    /// The word used everywhere.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::IdsDisagree => "ids_disagree",
            Self::LogprobInvalid => "logprob_invalid",
            Self::LengthMismatch => "length_mismatch",
            Self::TokensMissing => "tokens_missing",
            Self::UsageMissing => "usage_missing",
            Self::PromptIdsMissing => "prompt_ids_missing",
            Self::MultipleChoices => "multiple_choices",
            Self::SamplingAltered => "sampling_altered",
            Self::Truncated => "truncated",
            Self::Budget => "budget",
            Self::LogprobsRaw => "logprobs_raw",
            Self::Superseded => "superseded",
            Self::Abandoned => "abandoned",
            Self::RequestChanged => "request_changed",
            Self::SamplingDefaulted => "sampling_defaulted",
            Self::SandboxIntegrity => "sandbox_integrity",
            Self::CaptureIncomplete => "capture_incomplete",
        }
    }

    /// Whether a call so flagged is kept out of training.
    #[must_use]
    pub fn blocks_training(self) -> bool {
        !matches!(
            self,
            Self::Truncated | Self::RequestChanged | Self::SamplingDefaulted
        )
    }
}

/// The dialects a call can be made in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum DialectName {
    /// OpenAI chat completions.
    ChatCompletions,
    /// OpenAI Responses.
    Responses,
    /// Anthropic Messages.
    Messages,
    /// Google generateContent.
    GenerateContent,
}

impl DialectName {
    /// The word used everywhere.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::ChatCompletions => "chat_completions",
            Self::Responses => "responses",
            Self::Messages => "messages",
            Self::GenerateContent => "generate_content",
        }
    }
}

/// A change made to a request because the endpoint refused it as it was.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(tag = "change", rename_all = "snake_case")]
pub enum Change {
    /// A member was left out.
    Removed {
        /// Its name.
        field: String,
    },
    /// A member was renamed.
    Renamed {
        /// Its name before.
        from: String,
        /// Its name after.
        to: String,
    },
    /// A member was given another value.
    Limited {
        /// Its name.
        field: String,
        /// Its value now, as JSON text.
        to: String,
    },
}

/// The numbers of a finished call, for events and lists.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct CallSummary {
    /// Its id.
    pub id: CallId,
    /// Order of arrival in its rollout, from 0.
    pub index: u32,
    /// How it ended.
    pub end: CallEnd,
    /// Who made it, and what for.
    pub purpose: Purpose,
    /// What its capture is worth.
    pub level: CaptureLevel,
    /// Tokens of the prompt: ids where captured, else what the endpoint counted.
    pub prompt_tokens: u64,
    /// Tokens sampled: ids where captured, else what the endpoint counted.
    pub completion_tokens: u64,
    /// Its flags.
    pub flags: Vec<Flag>,
    /// Wall time.
    pub duration_ms: u64,
    /// Whether its prompt broke with the call it goes on from.
    pub prefix_break: bool,
}
