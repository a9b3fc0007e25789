//! A row a rollout, for TRL: `training_trace` is the JSON text of a `TrainingTrace` (TRL 1.16, schema version 1: each of
//! the selected turns that was captured whole, with its prompt, completion, log-probabilities and mask), and
//! `trace_entries` that of a list with every call of the rollout under the keys of OpenEnv's proxy (TRL before 1.16).
//!
//! Requests and replies are in chat completions, which TRL reads, whichever dialect the agent spoke; `metadata` says which
//! that was, and what could not be carried over.
//!
//! Both are JSON text, since what requests and replies hold has no fixed columns. `training_trace` is null where not one
//! turn was captured in tokens, which a trainer must not take for an empty trace.

use crate::call::{CallEnd, CaptureLevel, DialectName, Flag, Purpose};
use crate::export::source::head_columns;
use crate::export::{Cell, Column, Kind, Row, Shape, Source};
use crate::trajectory::{CallRecord, CallView};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};

/// The schema that a row names.
pub const SCHEMA: &str = "dressage.trl";

/// The version of it that is written.
pub const SCHEMA_VERSION: u32 = 1;

/// The version of TRL's `TrainingTrace`.
pub const TRACE_VERSION: u32 = 1;

/// Columns of a row.
pub const COLUMNS: &[Column] = head_columns!(
    "turns" Kind::Integer,
    "training_trace" Kind::Text,
    "trace_entries" Kind::Text,
);

/// What a row says, as far as it is checked.
#[derive(Debug, Deserialize)]
pub struct TrlRow {
    /// The rollout.
    pub rollout: String,
    /// The reward.
    pub reward: Option<f64>,
    /// How many turns the trace has.
    pub turns: usize,
    /// A `TrainingTrace`, as JSON text.
    pub training_trace: Option<String>,
    /// Trace entries, as JSON text.
    pub trace_entries: String,
}

/// TRL's `TrainingTrace`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrainingTrace {
    /// [`TRACE_VERSION`].
    pub schema_version: u32,
    /// The turns, in the order of recording.
    pub turns: Vec<TrainingTurn>,
}

/// TRL's `TrainingTurn`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrainingTurn {
    /// The rollout's id and the call's index.
    pub node_id: String,
    /// Ids of the prompt.
    pub prompt_token_ids: Vec<u32>,
    /// The sampled ids.
    pub completion_token_ids: Vec<u32>,
    /// A log-probability for each of these.
    pub per_token_logps: Vec<f64>,
    /// Zeros for the prompt, then for each sampled token 1 where it is trained, else 0.
    pub loss_mask: Vec<u8>,
    /// The request, in chat completions.
    pub request: Box<RawValue>,
    /// The reply, in chat completions.
    pub response: Box<RawValue>,
    /// What else is known of it.
    pub metadata: Metadata,
}

/// What is known of a turn besides.
#[derive(Debug, Serialize, Deserialize)]
pub struct Metadata {
    /// The rollout's id and the call's index.
    pub node_id: String,
    /// That of the call that it goes on from.
    pub parent_node_id: Option<String>,
    /// What it was made for.
    pub purpose: Purpose,
    /// The agent's own id of the conversation.
    pub session: Option<String>,
    /// All flags.
    pub flags: Vec<Flag>,
    /// Why it ended.
    pub finish_reason: Option<String>,
    /// What its capture is worth.
    pub level: CaptureLevel,
    /// Whether it is trained.
    pub trainable: bool,
    /// Model that answered.
    pub model: Option<String>,
    /// What was asked of the sampler.
    pub sampling_params: Value,
    /// The endpoint's count of what was sampled.
    pub usage_completion_tokens: Option<u64>,
    /// The reward that it has.
    pub reward: Option<f64>,
    /// The dialect the agent spoke. Request and reply are in chat completions all the same.
    #[serde(default)]
    pub dialect: Option<DialectName>,
    /// What of its request chat completions could not carry, by path.
    #[serde(default)]
    pub untranslated: Vec<String>,
    /// Policy version when it was sent.
    pub policy_version_at_dispatch: Option<String>,
    /// Policy version when it ended.
    pub policy_version_at_completion: Option<String>,
}

/// The row of a rollout.
pub(super) fn row<'a>(source: &Source<'a>) -> Option<Row<'a>> {
    let calls = || source.records.iter().zip(source.trajectory.calls());
    let turns: Vec<TrainingTurn> = calls()
        .filter(|(record, _)| {
            source.trajectory.selection().trains(record.meta.purpose) && record.meta.end == CallEnd::Complete
        })
        .filter_map(|(record, view)| turn(source, record, &view))
        .collect();
    let entries: Vec<Value> = calls()
        .enumerate()
        .map(|(position, (record, view))| entry(source, position, record, &view))
        .collect();
    let mut row = source.head(Shape::Trl, Purpose::Agent);
    row.push(Cell::count(turns.len()));
    let trace = TrainingTrace {
        schema_version: TRACE_VERSION,
        turns,
    };
    row.push(match trace.turns.as_slice() {
        [] => Cell::Null,
        _ => Cell::text(serde_json::to_string(&trace).ok()?),
    });
    row.push(Cell::text(serde_json::to_string(&entries).ok()?));
    Some(row)
}

fn node(source: &Source<'_>, index: u32) -> String {
    format!("{}:{index}", source.id)
}

fn metadata(source: &Source<'_>, record: &CallRecord, view: &CallView<'_>) -> Metadata {
    let meta = &record.meta;
    let completion = record.completions.first();
    Metadata {
        node_id: node(source, meta.index),
        parent_node_id: view.continues.map(|index| node(source, index)),
        purpose: meta.purpose,
        session: meta.session.clone(),
        flags: view.flags.clone(),
        finish_reason: completion.and_then(|completion| completion.finish_reason.clone()),
        level: meta.level,
        trainable: view.trainable,
        model: meta.model.clone(),
        sampling_params: json!(meta.sampling),
        usage_completion_tokens: meta.usage.map(|usage| usage.completion_tokens),
        reward: source
            .trajectory
            .selection()
            .reward(meta.purpose, source.reward()),
        dialect: Some(meta.dialect),
        untranslated: meta.untranslated.clone(),
        policy_version_at_dispatch: meta.policy_version_at_dispatch.clone(),
        policy_version_at_completion: meta.policy_version_at_completion.clone(),
    }
}

/// A JSON object as it was said; an empty one where it is none.
fn raw(bytes: Option<&[u8]>) -> Box<RawValue> {
    let object = bytes.and_then(|bytes| serde_json::from_slice::<Box<RawValue>>(bytes).ok());
    object
        .filter(|value| value.get().starts_with('{'))
        .or_else(|| RawValue::from_string("{}".to_owned()).ok())
        .unwrap_or_default()
}

/// A turn, if all of it was captured: TRL refuses a trace with one that was not.
fn turn(source: &Source<'_>, record: &CallRecord, view: &CallView<'_>) -> Option<TrainingTurn> {
    let prompt = source.trajectory.prompt_token_ids(record.meta.index)?;
    let completion = record.completions.first()?;
    let sound = |logprob: &f64| logprob.is_finite() && *logprob <= 0.0;
    let whole = !prompt.is_empty()
        && !completion.token_ids.is_empty()
        && completion.logprobs.len() == completion.token_ids.len()
        && completion.logprobs.iter().all(sound);
    if !whole {
        return None;
    }
    let mut loss_mask = vec![0; prompt.len()];
    loss_mask.resize(
        prompt.len() + completion.token_ids.len(),
        u8::from(view.trainable),
    );
    let (request, reply) = source.in_chat(record);
    Some(TrainingTurn {
        node_id: node(source, record.meta.index),
        prompt_token_ids: prompt,
        completion_token_ids: completion.token_ids.clone(),
        per_token_logps: completion.logprobs.clone(),
        loss_mask,
        request: raw(request.as_deref()),
        response: raw(reply.as_deref()),
        metadata: metadata(source, record, view),
    })
}

/// A call under the keys of OpenEnv's proxy; a failed one has an empty response.
fn entry(source: &Source<'_>, position: usize, record: &CallRecord, view: &CallView<'_>) -> Value {
    let meta = &record.meta;
    let completion = record.completions.first();
    let (request, reply) = source.in_chat(record);
    let succeeded = meta.end == CallEnd::Complete;
    let object = |bytes: Option<&[u8]>| {
        let value = bytes.and_then(|bytes| serde_json::from_slice::<Value>(bytes).ok());
        value.filter(Value::is_object).unwrap_or_else(|| json!({}))
    };
    let logprobs = completion
        .map(|completion| completion.logprobs.as_slice())
        .filter(|logprobs| logprobs.iter().all(|logprob| logprob.is_finite()))
        .unwrap_or_default();
    let ids = completion
        .map(|completion| completion.token_ids.as_slice())
        .unwrap_or_default();
    let prompt = source.trajectory.prompt_token_ids(meta.index).unwrap_or_default();
    let mut mask = vec![0; prompt.len()];
    mask.resize(prompt.len() + ids.len(), u8::from(view.trainable));
    json!({
        "turn": position + 1,
        "request": object(request.as_deref()),
        "response": object(reply.filter(|_| succeeded).as_deref()),
        "completion_tokens": completion.map(|completion| completion.tokens.as_slice()).unwrap_or_default(),
        "completion_token_ids": ids,
        "per_token_logps": logprobs,
        "finish_reason": completion.and_then(|completion| completion.finish_reason.as_ref()),
        "latency_s": meta.duration_ms as f64 / 1000.0,
        "timestamp": meta.started_unix_ms as f64 / 1000.0,
        "prompt_token_ids": prompt,
        "loss_mask": mask,
        "role": if meta.purpose == Purpose::Agent { "agent" } else { "auxiliary" },
        "flags": view.flags,
        "upstream_error": (!succeeded).then(|| json!({"end": meta.end, "message": meta.error})),
        "metadata": metadata(source, record, view),
    })
}
