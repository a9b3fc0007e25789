//! Replies for the benchmark's upstream: the same bytes as the scripted model's, of a fixed text.

use super::choice::Choice;
use super::render::Reply;
use super::request::ChatRequest;
use super::template::Generation;
use super::{Tokenizer, special};

/// Ids of the prompt that replies tell of.
const PROMPT_TOKENS: usize = 512;

/// What of a request changes a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    /// Tokens of the reply, its end included.
    pub tokens: usize,
    /// Alternatives at each position, where log-probabilities were asked for.
    pub top_logprobs: Option<usize>,
    /// Whether ids were asked for.
    pub token_ids: bool,
    /// Whether a stream ends with a usage event.
    pub usage: bool,
}

/// The data of the events of a streamed reply, `[DONE]` last.
#[must_use]
pub fn events(model: &str, shape: Shape) -> Vec<String> {
    with_reply(model, shape, |reply| reply.events())
}

/// A reply that is not streamed.
#[must_use]
pub fn document(model: &str, shape: Shape) -> String {
    with_reply(model, shape, |reply| reply.document())
}

/// What a reply of this many tokens says.
#[must_use]
pub fn text(tokens: usize) -> String {
    let ids = reply_ids(tokens);
    let said = ids.split_last().map_or(&[][..], |(_, said)| said);
    String::from_utf8_lossy(&Tokenizer::get().decode(said)).into_owned()
}

fn reply_ids(tokens: usize) -> Vec<u32> {
    const SAYING: &str =
        "Read the file first, then return the value of each name: self.path, None or an argument. ";
    let said = Tokenizer::get().encode(&SAYING.repeat(1 + tokens / 16));
    let mut ids: Vec<u32> = said.into_iter().take(tokens.saturating_sub(1)).collect();
    ids.extend(Tokenizer::get().special_id(special::IM_END));
    ids
}

fn with_reply<T>(model: &str, shape: Shape, render: impl Fn(&Reply<'_>) -> T) -> T {
    let request = ChatRequest {
        messages: Vec::new(),
        tools: Vec::new(),
        stream: true,
        include_usage: shape.usage,
        continuous_usage: false,
        top_logprobs: shape.top_logprobs,
        return_token_ids: shape.token_ids,
        tokens_as_ids: false,
        include_reasoning: true,
        generation: Generation::NoThinking,
        max_tokens: None,
        choices: 1,
        seed: 0,
        stop: Vec::new(),
        stream_interval: 1,
    };
    let prompt_ids: Vec<u32> = (0..PROMPT_TOKENS as u32)
        .map(|position| 256 + position * 7 % 2000)
        .collect();
    let ids = reply_ids(shape.tokens);
    let reply = Reply {
        id: "chatcmpl-0123456789abcdef".into(),
        created: 1_795_958_132,
        model,
        seed: 0,
        request: &request,
        prompt_ids: &prompt_ids,
        choices: vec![Choice::sample(&request, 0, &ids, shape.tokens)],
        faults: Vec::new(),
    };
    render(&reply)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_has_an_event_a_token_whatever_was_asked_for() {
        for token_ids in [false, true] {
            let top_logprobs = token_ids.then_some(5);
            let events = events(
                "bench",
                Shape {
                    tokens: 200,
                    top_logprobs,
                    token_ids,
                    usage: true,
                },
            );
            // The role, 200 tokens, usage, the end.
            assert_eq!(events.len(), 203);
        }
    }

    #[test]
    fn a_streamed_reply_and_a_document_say_the_text_they_are_to_say() {
        let shape = Shape {
            tokens: 50,
            top_logprobs: None,
            token_ids: false,
            usage: false,
        };
        let contents = events("bench", shape)
            .iter()
            .filter_map(|event| {
                let event: serde_json::Value = serde_json::from_str(event).ok()?;
                event["choices"][0]["delta"]["content"]
                    .as_str()
                    .map(str::to_owned)
            })
            .collect::<String>();
        assert_eq!(contents, text(50));
        let document: serde_json::Value = serde_json::from_str(&document("bench", shape)).unwrap();
        assert_eq!(document["choices"][0]["message"]["content"], text(50));
        assert_eq!(document["usage"]["completion_tokens"], 50);
    }
}
