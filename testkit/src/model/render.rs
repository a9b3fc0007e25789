//! Replies as JSON: the events of a stream, or one document.

use super::choice::{Choice, tool_call_id};
use super::logprobs::{Entries, Entry, Logprob, Names, with_bad_numbers};
use super::parser::{Delta, ToolPart};
use super::request::ChatRequest;
use super::sample::Sampler;
use super::shape::{
    Chunk, ChunkChoice, DeltaBody, Document, DocumentChoice, FunctionBody, ToolCallBody, Usage, UsageDetails,
};
use crate::fault::{Fault, LogprobCount};
use serde::Serialize;
use std::ops::Range;

/// vLLM's name for itself, as recorded.
const SYSTEM_FINGERPRINT: &str = "vllm-0.32.0-98d5f267";

/// A reply that is about to be written.
#[derive(Debug)]
pub(super) struct Reply<'a> {
    /// `chatcmpl-` and hexadecimal digits.
    pub id: String,
    /// Seconds since the Unix epoch.
    pub created: u64,
    /// The model's name.
    pub model: &'a str,
    /// Seed of the endpoint's sampler.
    pub seed: u64,
    /// What was asked.
    pub request: &'a ChatRequest,
    /// Ids of the prompt.
    pub prompt_ids: &'a [u32],
    /// What was sampled.
    pub choices: Vec<Choice>,
    /// What is to go wrong.
    pub faults: Vec<Fault>,
}

impl Reply<'_> {
    /// The data of the events of a stream, `[DONE]` last.
    pub(super) fn events(&self) -> Vec<String> {
        let mut events: Vec<String> = self
            .choices
            .iter()
            .map(|choice| self.first_event(choice.index))
            .collect();
        let mut names: Vec<Names> = self
            .choices
            .iter()
            .map(|_| Names::new(self.request.tokens_as_ids))
            .collect();
        let rounds = self
            .choices
            .iter()
            .map(|choice| choice.steps.len())
            .max()
            .unwrap_or(0);
        let mut told_tokens = 0;
        for round in 0..rounds {
            for (choice, names) in self.choices.iter().zip(&mut names) {
                if let Some((range, delta)) = choice.steps.get(round) {
                    told_tokens += range.len();
                    let is_last = round + 1 == choice.steps.len();
                    events.extend(self.event(choice, names, range, delta, is_last, told_tokens));
                }
            }
        }
        if self.request.include_usage && !self.has(&Fault::NoUsage) {
            events.push(json(&Chunk {
                usage: Some(self.usage()),
                system_fingerprint: Some(SYSTEM_FINGERPRINT),
                ..self.chunk()
            }));
        }
        events.push("[DONE]".into());
        events
    }

    /// The document of a reply that is not streamed.
    pub(super) fn document(&self) -> String {
        json(&Document {
            id: &self.id,
            object: "chat.completion",
            created: self.created,
            model: self.model,
            choices: self
                .choices
                .iter()
                .map(|choice| self.document_choice(choice))
                .collect(),
            service_tier: None,
            system_fingerprint: SYSTEM_FINGERPRINT,
            usage: (!self.has(&Fault::NoUsage)).then(|| Usage {
                prompt_tokens_details: Some(None),
                ..self.usage()
            }),
            prompt_logprobs: None,
            prompt_token_ids: self.gives_prompt_ids().then_some(self.prompt_ids),
            prompt_text: None,
            kv_transfer_params: None,
            ec_transfer_params: None,
            metrics: None,
        })
    }

    fn document_choice<'a>(&self, choice: &'a Choice) -> DocumentChoice<'a> {
        let (message, finish_reason) = choice.message(self.request, &self.id);
        let mut names = Names::new(self.request.tokens_as_ids);
        DocumentChoice {
            index: choice.index,
            message,
            logprobs: self.logprobs(choice, &(0..choice.ids.len()), &mut names),
            finish_reason,
            stop_reason: choice.stop_reason.as_deref(),
            token_ids: self.gives_ids().then_some(choice.ids.as_slice()),
            routed_experts: None,
        }
    }

    fn first_event(&self, index: u32) -> String {
        let delta = DeltaBody {
            role: Some("assistant"),
            content: Some(Some(String::new())),
            ..DeltaBody::default()
        };
        json(&Chunk {
            choices: vec![ChunkChoice {
                index,
                delta,
                logprobs: None,
                finish_reason: None,
                stop_reason: None,
                token_ids: None,
            }],
            usage: self.request.continuous_usage.then(|| self.usage_of(0, 0)),
            prompt_token_ids: Some(self.gives_prompt_ids().then_some(self.prompt_ids)),
            prompt_text: Some(None),
            ..self.chunk()
        })
    }

    /// The event of a group of tokens; `None` where it would say nothing.
    fn event(
        &self,
        choice: &Choice,
        names: &mut Names,
        range: &Range<usize>,
        delta: &Delta,
        is_last: bool,
        told_tokens: usize,
    ) -> Option<String> {
        let logprobs = self.logprobs(choice, range, names);
        let delta = self.delta(choice, delta);
        let lost = self.has(&Fault::LoseToolTokens) && choice.is_inside_call(range);
        let says_tokens = !lost && (self.gives_ids() || logprobs.is_some());
        if delta.is_empty() && !is_last && !says_tokens {
            return None;
        }
        let ends_stream = is_last && choice.index as usize + 1 == self.choices.len();
        let ids = choice.ids.get(range.clone()).unwrap_or_default();
        Some(json(&Chunk {
            choices: vec![ChunkChoice {
                index: choice.index,
                delta,
                logprobs,
                finish_reason: is_last.then_some(choice.finish_reason),
                stop_reason: is_last.then_some(choice.stop_reason.as_deref()),
                token_ids: Some(self.gives_ids().then_some(ids)),
            }],
            usage: self
                .request
                .continuous_usage
                .then(|| self.usage_of(told_tokens, told_tokens.min(choice.reasoning_tokens))),
            system_fingerprint: (ends_stream && !self.request.include_usage).then_some(SYSTEM_FINGERPRINT),
            ..self.chunk()
        }))
    }

    /// What a delta looks like. Where reasoning is left out, a null tells so beside what is said.
    fn delta(&self, choice: &Choice, delta: &Delta) -> DeltaBody {
        let calls = delta.tool_calls.iter().map(|call| match &call.part {
            ToolPart::Name(name) => ToolCallBody {
                id: Some(tool_call_id(&self.id, choice.index, call.index)),
                r#type: Some("function"),
                index: Some(call.index),
                function: FunctionBody {
                    name: Some(name.clone()),
                    arguments: None,
                },
            },
            ToolPart::Arguments(arguments) => ToolCallBody {
                id: None,
                r#type: None,
                index: Some(call.index),
                function: FunctionBody {
                    name: None,
                    arguments: Some(arguments.clone()),
                },
            },
        });
        let calls: Vec<ToolCallBody> = calls.collect();
        let content = match (&delta.content, calls.is_empty()) {
            (Some(text), _) => Some(Some(text.clone())),
            (None, false) => Some(None),
            (None, true) => None,
        };
        let reasoning = match (&delta.reasoning, self.request.include_reasoning) {
            (Some(text), true) => Some(Some(text.clone())),
            (None, true) => None,
            (_, false) => content.is_some().then_some(None),
        };
        DeltaBody {
            role: None,
            content,
            reasoning,
            tool_calls: calls,
        }
    }

    /// The log-probabilities of a range of tokens, faults applied; `None` where none are given.
    fn logprobs(&self, choice: &Choice, range: &Range<usize>, names: &mut Names) -> Option<Entries> {
        // vLLM gives none where reasoning is left out of the reply.
        let top = self
            .request
            .top_logprobs
            .filter(|_| self.request.include_reasoning)?;
        let sampler = Sampler::new(self.seed, self.request.seed, choice.index);
        let mut content: Vec<Entry> = Vec::with_capacity(range.len() + 1);
        for (position, &id) in choice.ids.iter().enumerate().take(range.end).skip(range.start) {
            let alternatives = sampler.alternatives(position, id, top);
            let mut entry = names.entry(id, sampler.logprob(position, id), &alternatives);
            for fault in &self.faults {
                if let Fault::BadLogprob { position: bad, value } = fault
                    && *bad == position
                {
                    entry.named.logprob = Logprob::Bad(*value);
                }
            }
            content.push(entry);
        }
        if range.end == choice.ids.len() {
            if self.has(&Fault::LogprobCount {
                count: LogprobCount::OneFewer,
            }) {
                content.pop();
            }
            if self.has(&Fault::LogprobCount {
                count: LogprobCount::OneMore,
            }) {
                content.extend(content.last().cloned());
            }
        }
        Some(Entries { content })
    }

    fn gives_prompt_ids(&self) -> bool {
        self.request.return_token_ids && !self.has(&Fault::NoTokenIds)
    }

    fn gives_ids(&self) -> bool {
        self.gives_prompt_ids() && self.request.include_reasoning
    }

    fn has(&self, fault: &Fault) -> bool {
        self.faults.contains(fault)
    }

    fn usage(&self) -> Usage {
        let completion_tokens = self.choices.iter().map(|choice| choice.ids.len()).sum();
        let reasoning_tokens = self.choices.iter().map(|choice| choice.reasoning_tokens).sum();
        self.usage_of(completion_tokens, reasoning_tokens)
    }

    fn usage_of(&self, completion_tokens: usize, reasoning_tokens: usize) -> Usage {
        Usage {
            prompt_tokens: self.prompt_ids.len(),
            total_tokens: self.prompt_ids.len() + completion_tokens,
            completion_tokens,
            prompt_tokens_details: None,
            completion_tokens_details: UsageDetails { reasoning_tokens },
        }
    }

    fn chunk(&self) -> Chunk<'_> {
        Chunk {
            id: &self.id,
            object: "chat.completion.chunk",
            created: self.created,
            model: self.model,
            choices: Vec::new(),
            usage: None,
            system_fingerprint: None,
            prompt_token_ids: None,
            prompt_text: None,
        }
    }
}

/// The JSON of a reply. Its types have string keys and finite numbers, so that writing it cannot fail; were it to, the
/// client would see an empty event.
fn json(value: &impl Serialize) -> String {
    with_bad_numbers(&serde_json::to_string(value).unwrap_or_default())
}
