#[cfg(feature = "translated")]
use super::WayBack;
use crate::call::Change;
use crate::sampling::Sampling;
use crate::task::CaptureMode;
use bytes::Bytes;
#[cfg(feature = "translated")]
use std::sync::Arc;

/// How much an endpoint is asked to tell of what it samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Ask {
    /// Nothing beyond what the agent asked for.
    Nothing,
    /// Log-probabilities.
    Logprobs,
    /// Log-probabilities, the ids of sampled tokens and those of the prompt.
    #[default]
    Tokens,
}

/// How a stream is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StreamForm {
    /// Server-sent events.
    #[default]
    Events,
    /// A JSON array, item by item.
    Array,
}

/// What is to be done to each request of a rollout.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RequestRules {
    /// How much the endpoint is asked to tell.
    pub ask: Ask,
    /// Alternatives asked for at each position; 0 is said too, since llama.cpp sends 20 where nothing is said. An
    /// agent that asked for more gets more.
    pub top_logprobs: u32,
    /// Alternatives kept at each position in [`Captured`](super::Captured); 0 keeps none.
    pub keep_top_logprobs: u32,
    /// Whether the entries of log-probabilities are kept as the endpoint wrote them, in
    /// [`Captured::entries`](super::Captured::entries).
    pub keep_entries: bool,
    /// Most tokens a call may ask for; 0 or unset is no cap.
    pub max_tokens_cap: Option<u64>,
    /// Put on the request over what the agent sent, merged with [`Sampling::neutral`] already where that is wanted.
    pub sampling: Sampling,
    /// The model to name in place of the agent's.
    pub model: Option<String>,
    /// Whether `chat_template_kwargs.enable_thinking` is set to false.
    pub disable_thinking: bool,
    /// Whether upstream streams when the agent does; `auto` is as `stream` here.
    pub capture: CaptureMode,
    /// What this endpoint and model refused before, applied to the request as it would be sent otherwise.
    pub changes: Vec<Change>,
}

/// A request as it goes upstream.
#[derive(Clone, Debug)]
pub struct Prepared {
    /// The body to send.
    pub body: Bytes,
    /// What is known of the request.
    pub facts: RequestFacts,
}

/// What is known of a request, as the agent sent it and as it goes upstream.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RequestFacts {
    /// The agent wants a stream.
    pub streamed: bool,
    /// How that stream is written.
    pub form: StreamForm,
    /// The endpoint is asked for a stream.
    pub upstream_streamed: bool,
    /// What the endpoint was asked to tell, after all changes.
    pub ask: Ask,
    /// Alternatives the agent asked for at each position; `None` where it asked for no log-probabilities.
    pub top_logprobs_asked: Option<u32>,
    /// Alternatives the endpoint was asked for at each position.
    pub top_logprobs_sent: u32,
    /// Alternatives to keep at each position.
    pub keep_top_logprobs: u32,
    /// Entries of log-probabilities are kept as they came.
    pub keep_entries: bool,
    /// The agent asked for the ids of tokens itself.
    pub token_ids_asked: bool,
    /// The agent asked for the log-probabilities of its prompt.
    pub prompt_logprobs_asked: bool,
    /// The agent gets the endpoint's count of tokens: it asked for it, or wants no stream.
    pub usage_asked: bool,
    /// The agent asked for reasoning to be left out; the endpoint was told to send it, since it captures nothing else.
    pub reasoning_hidden: bool,
    /// Choices asked for.
    pub choices: u32,
    /// The agent bent the distribution (logit_bias, guided decoding, other samplers).
    pub sampling_altered: bool,
    /// What the sampler was asked for: the rules over the agent's own.
    pub sampling: Sampling,
    /// The model named upstream.
    pub model: String,
    /// Tokens the agent asked for at most.
    pub max_tokens_asked: Option<u64>,
    /// Tokens asked for upstream at most.
    pub max_tokens_sent: Option<u64>,
    /// The agent offers tools to the model.
    pub tools: bool,
    /// The first characters of the first system message.
    pub system_start: String,
    /// The first characters of the first user message.
    pub user_start: String,
    /// SHA-256, hex, of the canonical body as the agent sent it without stream, stream_options and token limits.
    pub retry_body_sha256: String,
    /// Names of the members sent upstream: a refusal can only be about one of these.
    pub members_sent: Vec<String>,
    /// Which of [`RequestRules::changes`] made a difference.
    pub changes: Vec<Change>,
    /// What of the request could not be translated; see
    /// [`CallMeta::untranslated`](crate::call::CallMeta::untranslated).
    pub untranslated: Vec<String>,
    /// What is needed to translate the reply.
    #[cfg(feature = "translated")]
    pub way_back: Arc<WayBack>,
}

/// A request that cannot be sent on. Each is the agent's fault: HTTP 400.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// It is not JSON.
    #[error("the request body is not valid JSON")]
    Json(#[from] crate::scan::ScanError),
    /// It is JSON, but no object.
    #[error("the request body is not a JSON object")]
    NotAnObject,
    /// A member is there twice, so that two readers may see two requests.
    #[error("the request body has the member {member:?} more than once")]
    DuplicateMember {
        /// Its name.
        member: String,
    },
    /// A member has a type it cannot have.
    #[error("the member {member:?} of the request body is not {expected}")]
    WrongType {
        /// Its name.
        member: &'static str,
        /// What it should be, such as `a boolean`.
        expected: &'static str,
    },
    /// Something inside of it is not what it has to be.
    #[cfg(feature = "translated")]
    #[error("{place} is not {expected}")]
    Malformed {
        /// Where, such as `messages[3].content[0].type`.
        place: String,
        /// What it should be.
        expected: &'static str,
    },
    /// It goes on from something that only the dialect's own service keeps.
    #[cfg(feature = "translated")]
    #[error("{member} is about what a service keeps between calls, and nothing is kept here: {instead}")]
    Stateful {
        /// Its name.
        member: &'static str,
        /// What to do instead.
        instead: &'static str,
    },
}
