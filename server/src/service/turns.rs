//! Calls as trainers read them: upstream's `RolloutTurn`, and what goes beyond it.

use dressage_store::Transcript;
use dressage_wire::call::{CallEnd, Purpose};
use dressage_wire::ids::RolloutId;
use dressage_wire::trajectory::CallView;
use serde::Serialize;
use serde_json::{Value, json};

/// Upstream's `RolloutTurn`, and what goes beyond it.
#[derive(Debug, Serialize)]
pub struct Turn {
    turn: u32,
    finish_reason: Option<String>,
    completion_tokens: Vec<String>,
    completion_token_ids: Vec<u32>,
    per_token_logps: Vec<f64>,
    latency_s: f64,
    timestamp: f64,
    upstream_status: Option<u16>,
    upstream_error: Option<Value>,
    node_id: String,
    parent_node_id: Option<String>,
    role: &'static str,
    flags: Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_token_ids: Option<Vec<u32>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    loss_mask: Option<Vec<u8>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    request: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    response: Option<Value>,
    metadata: Value,
}

/// How much is told of turns; less where a reply would be too large.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Detail {
    /// Everything.
    Full,
    /// Of requests only the messages that the parent's did not have.
    NewMessages,
    /// Nor the ids of prompts.
    NoPrompts,
    /// Neither requests nor replies.
    NoBodies,
}

impl Detail {
    /// Each, from most to least.
    pub const ALL: [Self; 4] = [Self::Full, Self::NewMessages, Self::NoPrompts, Self::NoBodies];

    /// What a turn lacks.
    fn omitted(self) -> &'static [&'static str] {
        match self {
            Self::Full => &[],
            Self::NewMessages => &["request.messages before those that are new since parent_node_id"],
            Self::NoPrompts => &[
                "request.messages before those that are new since parent_node_id",
                "prompt_token_ids",
                "loss_mask",
            ],
            Self::NoBodies => &["request", "response", "prompt_token_ids", "loss_mask"],
        }
    }
}

impl Turn {
    /// The turns of a rollout, in the order of recording, made one by one.
    pub fn all(
        transcript: &Transcript,
        rollout: RolloutId,
        detail: Detail,
    ) -> impl Iterator<Item = Self> + '_ {
        let calls = transcript.trajectory().calls().enumerate();
        calls.filter_map(move |(position, call)| turn(transcript, rollout, position, &call, detail))
    }

    /// One turn, whole; `None` where no call has that index.
    #[must_use]
    pub fn one(transcript: &Transcript, rollout: RolloutId, index: u32) -> Option<Self> {
        let mut calls = transcript.trajectory().calls().enumerate();
        let (position, call) = calls.find(|(_, call)| call.meta.index == index)?;
        turn(transcript, rollout, position, &call, Detail::Full)
    }
}

fn turn(
    transcript: &Transcript,
    rollout: RolloutId,
    position: usize,
    call: &CallView<'_>,
    detail: Detail,
) -> Option<Turn> {
    let meta = call.meta;
    let record = transcript.record(meta.index)?;
    let completion = record.completions.first();
    let ids = completion
        .map(|completion| completion.token_ids.clone())
        .unwrap_or_default();
    let logprobs = completion
        .map(|completion| completion.logprobs.clone())
        .unwrap_or_default();
    // A number that is none has no JSON form, and nothing is put in its place.
    let logprobs = if logprobs.iter().all(|logprob| logprob.is_finite()) {
        logprobs
    } else {
        Vec::new()
    };
    let prompt = (detail < Detail::NoPrompts)
        .then(|| transcript.trajectory().prompt_token_ids(meta.index))
        .flatten();
    let loss_mask = prompt.as_ref().map(|prompt| {
        let mut mask = vec![0; prompt.len()];
        mask.resize(prompt.len() + ids.len(), u8::from(call.trainable));
        mask
    });
    let (request, response) = if detail < Detail::NoBodies {
        let request = transcript
            .request(meta.index)
            .and_then(|body| serde_json::from_slice(&body).ok());
        let response = transcript
            .response(meta.index)
            .and_then(|body| serde_json::from_slice(body).ok());
        let shared = match detail {
            Detail::Full => 0,
            _ => call
                .continues
                .map_or(0, |parent| transcript.shared_messages(parent, meta.index)),
        };
        (request.map(|request| without_first(request, shared)), response)
    } else {
        (None, None)
    };
    let node = |index: u32| format!("{}:{index}", rollout);
    let mut metadata = json!({
        "sampling_params": meta.sampling,
        "model": meta.model,
        "level": meta.level,
        "purpose": meta.purpose,
        "end": meta.end,
        "trainable": call.trainable,
        "session": meta.session,
        "prefix_break": call.prefix_break,
        "policy_version_at_dispatch": meta.policy_version_at_dispatch,
        "policy_version_at_completion": meta.policy_version_at_completion,
    });
    let omitted = detail.omitted();
    if let Some(table) = metadata.as_object_mut().filter(|_| !omitted.is_empty()) {
        table.insert("omitted".into(), json!(omitted));
        table.insert(
            "rest".into(),
            json!(format!("/api/v1/rollouts/{}/calls/{}", rollout, meta.index)),
        );
    }
    let failed = !matches!(meta.end, CallEnd::Complete | CallEnd::Budget);
    Some(Turn {
        turn: u32::try_from(position + 1).unwrap_or(u32::MAX),
        finish_reason: completion.and_then(|completion| completion.finish_reason.clone()),
        completion_tokens: completion
            .map(|completion| completion.tokens.clone())
            .unwrap_or_default(),
        completion_token_ids: ids,
        per_token_logps: logprobs,
        latency_s: meta.duration_ms as f64 / 1000.0,
        timestamp: meta.started_unix_ms as f64 / 1000.0,
        upstream_status: meta.status.filter(|_| failed),
        upstream_error: failed.then(|| json!({"end": meta.end, "message": meta.error})),
        node_id: node(meta.index),
        parent_node_id: call.continues.map(node),
        role: if meta.purpose == Purpose::Agent {
            "agent"
        } else {
            "auxiliary"
        },
        flags: json!(call.flags),
        prompt_token_ids: prompt,
        loss_mask,
        request,
        response,
        metadata,
    })
}

/// A request without its first messages.
fn without_first(mut request: Value, count: usize) -> Value {
    if let Some(messages) = request.get_mut("messages").and_then(Value::as_array_mut) {
        messages.drain(..count.min(messages.len()));
    }
    request
}
