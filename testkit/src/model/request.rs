//! A request, read and checked as vLLM 0.32 checks it; what it refuses, it refuses in the same words.

/// The members of a request, each read and checked.
mod members;

use super::template::{Generation, Message};
use members::{flag, integer, number, read_logprobs, read_messages, read_object, read_stop, read_tools};
use serde_json::Value;

/// An error as vLLM answers it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub(super) struct Refusal {
    /// HTTP status.
    pub status: u16,
    /// `error.type`.
    pub kind: &'static str,
    /// `error.message`.
    pub message: String,
    /// `error.param`.
    pub param: Option<&'static str>,
}

impl Refusal {
    fn bad(param: &'static str, message: impl Into<String>) -> Self {
        let message = format!("{} (parameter={param})", message.into());
        Self {
            status: 400,
            kind: "BadRequestError",
            message,
            param: Some(param),
        }
    }

    fn malformed(message: impl Into<String>) -> Self {
        Self {
            status: 400,
            kind: "Bad Request",
            message: message.into(),
            param: None,
        }
    }

    /// The error's JSON document.
    pub(super) fn body(&self) -> String {
        let error = serde_json::json!({
            "message": self.message, "type": self.kind, "param": self.param, "code": self.status,
        });
        serde_json::json!({ "error": error }).to_string()
    }
}

/// A chat completion that was asked for.
#[derive(Clone, Debug, PartialEq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a switch of the request itself"
)]
pub(super) struct ChatRequest {
    /// The conversation.
    pub messages: Vec<Message>,
    /// The tools offered, as received.
    pub tools: Vec<Value>,
    /// Whether the reply is streamed.
    pub stream: bool,
    /// Whether a stream ends with a usage event.
    pub include_usage: bool,
    /// Whether each event of a stream carries usage.
    pub continuous_usage: bool,
    /// Alternatives to give at each position, 0 to 20, where log-probabilities were asked for.
    pub top_logprobs: Option<usize>,
    /// Whether ids were asked for.
    pub return_token_ids: bool,
    /// Whether tokens are named `token_id:N`.
    pub tokens_as_ids: bool,
    /// Whether reasoning is given back.
    pub include_reasoning: bool,
    /// How the model's turn begins.
    pub generation: Generation,
    /// Most tokens to sample; the context's rest where unset.
    pub max_tokens: Option<usize>,
    /// Number of choices.
    pub choices: u32,
    /// The sampler's seed.
    pub seed: i64,
    /// Texts that end the turn.
    pub stop: Vec<String>,
    /// Tokens an event of a stream, after the first.
    pub stream_interval: usize,
}

impl ChatRequest {
    /// Reads a body. The model's name is checked against `model`.
    pub(super) fn read(body: &[u8], model: &str) -> Result<Self, Refusal> {
        let body = read_object(body)?;
        let messages = read_messages(&body)?;
        let named = body.get("model").filter(|named| !named.is_null());
        if let Some(named) = named.filter(|named| *named != model) {
            let named = named.as_str().map_or_else(|| named.to_string(), str::to_owned);
            let message = format!("The model `{named}` does not exist. Valid aliases: {model}.");
            return Err(Refusal {
                status: 404,
                kind: "NotFoundError",
                message,
                param: Some("model"),
            });
        }
        let stream = flag(&body, "stream")?.unwrap_or(false);
        let options = body.get("stream_options").filter(|options| !options.is_null());
        if options.is_some() && !stream {
            return Err(Refusal::bad(
                "stream_options",
                "Stream options can only be defined when `stream=True`.",
            ));
        }
        let option = |name: &str| options.is_some_and(|options| options[name] == true);
        let max_tokens = integer(&body, "max_completion_tokens")?
            .map_or_else(|| integer(&body, "max_tokens"), |value| Ok(Some(value)))?;
        let choices = integer(&body, "n")?.unwrap_or(1);
        for (name, value) in [("max_tokens", max_tokens), ("n", Some(choices))] {
            if value.is_some_and(|value| value < 1) {
                return Err(Refusal::bad(
                    name,
                    format!("{name} must be at least 1, got {}.", value.unwrap_or(0)),
                ));
            }
        }
        if choices > 128 {
            return Err(Refusal::bad(
                "n",
                format!("n must be at most 128, got {choices}."),
            ));
        }
        if number(&body, "temperature")?.is_some_and(|value| value < 0.0) {
            return Err(Refusal::bad("temperature", "temperature must be non-negative."));
        }
        if stream && body.get("prompt_logprobs").is_some_and(|value| !value.is_null()) {
            return Err(Refusal::bad(
                "prompt_logprobs",
                "`prompt_logprobs` are not available when `stream=True`.",
            ));
        }
        let thinking = body
            .get("chat_template_kwargs")
            .is_none_or(|kwargs| kwargs["enable_thinking"] != false);
        Ok(Self {
            messages,
            tools: read_tools(&body)?,
            stream,
            include_usage: option("include_usage"),
            continuous_usage: option("include_usage") && option("continuous_usage_stats"),
            top_logprobs: read_logprobs(&body)?,
            return_token_ids: flag(&body, "return_token_ids")?.unwrap_or(false),
            tokens_as_ids: flag(&body, "return_tokens_as_token_ids")?.unwrap_or(false),
            include_reasoning: flag(&body, "include_reasoning")?.unwrap_or(true),
            generation: if thinking {
                Generation::Thinking
            } else {
                Generation::NoThinking
            },
            max_tokens: max_tokens.map(|value| usize::try_from(value).unwrap_or(usize::MAX)),
            choices: u32::try_from(choices).unwrap_or(1),
            seed: integer(&body, "seed")?.unwrap_or(0),
            stop: read_stop(&body)?,
            stream_interval: integer(&body, "stream_interval")?
                .and_then(|value| usize::try_from(value).ok())
                .map_or(1, |value| value.max(1)),
        })
    }

    /// How many tokens may be sampled after a prompt of `prompt_tokens` in a context of `max_model_len`.
    pub(super) fn room(&self, prompt_tokens: usize, max_model_len: usize) -> Result<usize, Refusal> {
        let most = max_model_len.saturating_sub(prompt_tokens);
        if most == 0 {
            let least = max_model_len + 1;
            let message = format!(
                "This model's maximum context length is {max_model_len} tokens. However, your prompt contains at least \
                 {least} input tokens, which exceeds this limit even without any output tokens. Please reduce the length \
                 of the input prompt. (parameter=input_tokens, value={least})"
            );
            return Err(Refusal {
                status: 400,
                kind: "BadRequestError",
                message,
                param: Some("input_tokens"),
            });
        }
        match self.max_tokens {
            Some(asked) if asked > most => Err(Refusal::bad(
                "max_tokens",
                format!(
                    "'max_tokens' or 'max_completion_tokens' is too large: {asked}. This model's maximum context length is \
                     {max_model_len} tokens and your request has {prompt_tokens} input tokens ({asked} > {max_model_len} \
                     - {prompt_tokens})."
                ),
            )),
            asked => Ok(asked.unwrap_or(most)),
        }
    }
}

/// What `/tokenize` was asked: a text, or a conversation.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct TokenizeRequest {
    /// The text to tokenize.
    pub text: String,
    /// Whether the tokens' texts were asked for.
    pub token_strs: bool,
}

impl TokenizeRequest {
    /// Reads a body; a conversation is rendered by the template.
    pub(super) fn read(body: &[u8]) -> Result<Self, Refusal> {
        let body = read_object(body)?;
        let token_strs = flag(&body, "return_token_strs")?.unwrap_or(false);
        if let Some(prompt) = body.get("prompt").and_then(Value::as_str) {
            return Ok(Self {
                text: prompt.into(),
                token_strs,
            });
        }
        let thinking = body
            .get("chat_template_kwargs")
            .is_none_or(|kwargs| kwargs["enable_thinking"] != false);
        let generation = match (flag(&body, "add_generation_prompt")?.unwrap_or(true), thinking) {
            (false, _) => Generation::None,
            (true, true) => Generation::Thinking,
            (true, false) => Generation::NoThinking,
        };
        let text = super::template::render(&read_messages(&body)?, &read_tools(&body)?, generation);
        Ok(Self { text, token_strs })
    }
}

/// The ids `/detokenize` was asked for.
pub(super) fn read_detokenize(body: &[u8]) -> Result<Vec<u32>, Refusal> {
    let body = read_object(body)?;
    let ids = body.get("tokens").and_then(Value::as_array);
    let ids = ids.ok_or_else(|| Refusal::malformed("tokens: a list of ids is required"))?;
    let read = |id: &Value| id.as_u64().and_then(|id| u32::try_from(id).ok());
    ids.iter()
        .map(|id| read(id).ok_or_else(|| Refusal::malformed(format!("tokens: {id} is no id"))))
        .collect()
}
