/// Traps 16 and 17: prompts that go on from a completion, or break with it.
mod breaks;

/// Traps 13 and 14: retries, and twins.
mod retries;

/// Traps 15 and 27: whose calls they are.
mod purposes;

/// Trap 31: completions on more than one path.
mod sharing;

/// Trap 30 and others: what is trained, and what is not.
mod training;

/// Calls that are missing, or there twice.
mod missing;

/// Bodies, byte for byte, and what is said once in them.
mod bodies;

/// Bodies and turns of every dialect.
mod dialects;

/// The properties of any set of calls, and of restoring it.
mod restoring;

/// Trap 16 in a recorded conversation.
mod recorded;

use super::*;
use crate::call::{Call, CallEnd, CallMeta, CaptureLevel, Completion, DialectName, Flag, Purpose, Usage};
use crate::ids::CallId;
use crate::sampling::Sampling;
use bytes::Bytes;
use proptest::prelude::*;
use serde_json::{Value, json};
use std::collections::HashMap;

/// Makes calls that read as sentences in tests.
#[derive(Clone)]
pub(crate) struct Sketch {
    pub(crate) call: Call,
}

pub(crate) fn call(index: u32, messages: &[Value]) -> Sketch {
    let body = json!({"model": "m", "messages": messages, "tools": [{"type": "function"}], "stream": true});
    let request = Bytes::from(body.to_string());
    Sketch {
        call: Call {
            meta: CallMeta {
                id: CallId::new(),
                index,
                dialect: DialectName::ChatCompletions,
                streamed: true,
                started_unix_ms: 1_000 * u64::from(index),
                first_token_ms: Some(5),
                duration_ms: 900,
                end: CallEnd::Complete,
                status: Some(200),
                error: None,
                hint: None,
                purpose: Purpose::Agent,
                session: Some("s".into()),
                parent_session: None,
                retry_count: None,
                retry_key: ContentHash::of(&request).to_string(),
                model: Some("m".into()),
                sampling: Sampling::default(),
                usage: None,
                level: CaptureLevel::Tokens,
                flags: Vec::new(),
                changes: Vec::new(),
                untranslated: Vec::new(),
                policy_version_at_dispatch: None,
                policy_version_at_completion: None,
                request_bytes: request.len() as u64,
                upstream_bytes: 0,
            },
            request,
            response: Bytes::new(),
            prompt_token_ids: None,
            completions: Vec::new(),
        },
    }
}

impl Sketch {
    pub(crate) fn tokens(mut self, prompt: &[u32], completion: &[u32]) -> Self {
        self.call.prompt_token_ids = Some(prompt.to_vec());
        self.call.completions = vec![Completion {
            token_ids: completion.to_vec(),
            logprobs: completion.iter().map(|id| -f64::from(*id) / 8.0).collect(),
            finish_reason: Some("stop".into()),
            ..Completion::default()
        }];
        self.call.meta.usage = Some(Usage {
            prompt_tokens: prompt.len() as u64,
            completion_tokens: completion.len() as u64,
            reasoning_tokens: None,
            cached_tokens: None,
        });
        self
    }

    pub(crate) fn reply(mut self, text: &str, tool_call: Option<&str>) -> Self {
        let tool_calls: Vec<Value> = tool_call
            .iter()
            .map(|id| json!({"id": id, "function": {"name": "bash", "arguments": "{\"a\": 1}"}}))
            .collect();
        let message = json!({"role": "assistant", "content": text, "tool_calls": tool_calls});
        self.call.response = Bytes::from(json!({"choices": [{"message": message}]}).to_string());
        self
    }

    pub(crate) fn with(mut self, change: impl FnOnce(&mut CallMeta)) -> Self {
        change(&mut self.call.meta);
        self
    }
}

pub(crate) fn user(text: &str) -> Value {
    json!({"role": "user", "content": text})
}

pub(crate) fn assistant(text: &str, tool_call: Option<&str>) -> Value {
    // As agents do: arguments written anew, without the space.
    let tool_calls: Vec<Value> = tool_call
        .iter()
        .map(|id| json!({"id": id, "function": {"name": "bash", "arguments": "{\"a\":1}"}}))
        .collect();
    json!({"role": "assistant", "content": text, "tool_calls": tool_calls})
}

pub(crate) fn build(calls: Vec<Sketch>) -> (TrajectoryBuilder, Vec<Recorded>) {
    let mut builder = TrajectoryBuilder::new();
    let recorded = calls
        .into_iter()
        .map(|sketch| builder.push(sketch.call))
        .collect();
    (builder, recorded)
}

fn late(builder: &mut TrajectoryBuilder) -> Vec<(u32, Vec<Flag>)> {
    let by_id: HashMap<CallId, Vec<Flag>> = builder.finalise().into_iter().collect();
    let calls = builder.trajectory().calls();
    calls
        .filter_map(|call| Some((call.meta.index, by_id.get(&call.meta.id)?.clone())))
        .collect()
}

/// For each sequence: its leaf, and its turns as (call, trained).
fn shape_of(builder: &TrajectoryBuilder) -> Vec<(u32, Vec<(u32, bool)>)> {
    let plans = builder.trajectory().plan().into_iter();
    plans
        .map(|plan| {
            (
                plan.leaf,
                plan.turns.iter().map(|turn| (turn.call, turn.trained)).collect(),
            )
        })
        .collect()
}

fn trained_tokens(builder: &TrajectoryBuilder) -> u64 {
    builder
        .sequences()
        .flat_map(|sequence| sequence.loss_mask)
        .map(u64::from)
        .sum()
}

/// Puts the request of a recorded call together from all that was recorded.
fn assembled(builder: &TrajectoryBuilder, recorded: &[Recorded], which: usize) -> Vec<u8> {
    let contents: HashMap<ContentHash, Bytes> = recorded
        .iter()
        .flat_map(|recorded| recorded.contents.iter().cloned())
        .collect();
    let record = &recorded[which].record;
    let messages = builder.trajectory().messages(record.meta.index).unwrap();
    assemble(&record.request, &messages, |hash| contents.get(&hash).cloned()).unwrap()
}
