//! What was sent, told by a tree of every event: slow, plain, and independent of the code under test.

use serde_json::Value;

/// What a choice was sent.
#[derive(Debug, Default, PartialEq)]
pub struct Sent {
    pub token_ids: Vec<u32>,
    pub entry_ids: Vec<u32>,
    pub logprobs: Vec<f64>,
    pub tokens: Vec<String>,
    pub content: String,
    pub reasoning: String,
    pub arguments: Vec<String>,
    pub finish_reason: Option<String>,
}

/// What a reply was.
#[derive(Debug, Default)]
pub struct Reply {
    pub prompt_token_ids: Option<Vec<u32>>,
    pub choices: Vec<Sent>,
    pub completion_tokens: Option<u64>,
}

fn ids(value: &Value) -> Vec<u32> {
    value
        .as_array()
        .into_iter()
        .flatten()
        .map(|id| id.as_u64().unwrap() as u32)
        .collect()
}

impl Reply {
    pub fn of_stream(text: &[u8]) -> Self {
        let mut reply = Self::default();
        for data in super::recordings::data_of(text)
            .iter()
            .filter(|data| *data != "[DONE]")
        {
            reply.add(&serde_json::from_str(data).unwrap(), "delta");
        }
        reply
    }

    pub fn of_body(text: &[u8]) -> Self {
        let mut reply = Self::default();
        reply.add(&serde_json::from_slice(text).unwrap(), "message");
        reply
    }

    fn add(&mut self, event: &Value, message: &str) {
        if event["prompt_token_ids"].is_array() {
            self.prompt_token_ids = Some(ids(&event["prompt_token_ids"]));
        }
        if let Some(count) = event["usage"]["completion_tokens"].as_u64() {
            self.completion_tokens = Some(count);
        }
        for choice in event["choices"].as_array().into_iter().flatten() {
            let index = choice["index"].as_u64().unwrap() as usize;
            while self.choices.len() <= index {
                self.choices.push(Sent::default());
            }
            self.choices[index].add(choice, &choice[message]);
        }
    }
}

impl Sent {
    fn add(&mut self, choice: &Value, message: &Value) {
        self.token_ids.extend(ids(&choice["token_ids"]));
        for entry in choice["logprobs"]["content"].as_array().into_iter().flatten() {
            let token = entry["token"].as_str().unwrap();
            self.logprobs.push(entry["logprob"].as_f64().unwrap());
            self.tokens.push(token.to_owned());
            let named = token.strip_prefix("token_id:").map(|id| id.parse().unwrap());
            self.entry_ids
                .extend(entry["id"].as_u64().map(|id| id as u32).or(named));
        }
        self.content.push_str(message["content"].as_str().unwrap_or(""));
        self.reasoning
            .push_str(message["reasoning"].as_str().unwrap_or(""));
        for call in message["tool_calls"].as_array().into_iter().flatten() {
            let index = call["index"].as_u64().unwrap_or(self.arguments.len() as u64) as usize;
            while self.arguments.len() <= index {
                self.arguments.push(String::new());
            }
            self.arguments[index].push_str(call["function"]["arguments"].as_str().unwrap_or(""));
        }
        if let Some(reason) = choice["finish_reason"].as_str() {
            self.finish_reason = Some(reason.to_owned());
        }
    }

    /// The ids a turn is to have: those of the choice, else those of its entries.
    pub fn expected_ids(&self) -> &[u32] {
        if self.token_ids.is_empty() {
            &self.entry_ids
        } else {
            &self.token_ids
        }
    }
}
