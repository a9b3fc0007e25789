//! Calls as trainers read them: upstream's `RolloutTurn`, and what goes beyond it.

use dressage_store::Transcript;
use dressage_wire::call::{CallEnd, CaptureLevel, Flag, Purpose};
use dressage_wire::ids::RolloutId;
use dressage_wire::sampling::Sampling;
use dressage_wire::trajectory::{CallView, PrefixBreak};
use serde::Serialize;
use serde_json::Value;

/// A call as trainers read it: upstream's `RolloutTurn`, and what goes beyond it.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct Turn {
    /// Position among the turns, from 1.
    turn: u32,
    /// Why the reply ended.
    finish_reason: Option<String>,
    /// The endpoint's name for each sampled token.
    completion_tokens: Vec<String>,
    /// The sampled ids.
    completion_token_ids: Vec<u32>,
    /// The log-probability of each sampled token; empty where one of them was not a finite number.
    per_token_logps: Vec<f64>,
    /// Wall time of the call, seconds.
    latency_s: f64,
    /// When the agent asked, seconds since the Unix epoch.
    timestamp: f64,
    /// The endpoint's HTTP status, where the call failed and there was one.
    upstream_status: Option<u16>,
    /// What went wrong, where the call failed.
    upstream_error: Option<TurnError>,
    /// Names the call.
    node_id: String,
    /// The call whose conversation it goes on from.
    parent_node_id: Option<String>,
    /// `agent`, or `auxiliary`: a title, a summary, a sub-agent, something foreign.
    role: TurnRole,
    /// What makes it less than a clean, trainable turn.
    flags: Vec<Flag>,
    /// The ids of the prompt, where they were captured.
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_token_ids: Option<Vec<u32>>,
    /// For each token of prompt and completion, 1 where it is trained, else 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    loss_mask: Option<Vec<u8>>,
    /// What the agent sent, in its dialect.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    request: Option<Value>,
    /// The reply as one document in the agent's dialect.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    response: Option<Value>,
    /// What else is known of it.
    metadata: TurnMetadata,
}

/// Whose turn it is.
#[derive(Clone, Copy, Debug, Serialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
enum TurnRole {
    /// The agent's, on its own line of conversation.
    Agent,
    /// Anybody else's.
    Auxiliary,
}

/// What went wrong in a turn.
#[derive(Debug, Serialize, utoipa::ToSchema)]
struct TurnError {
    /// How the call ended.
    end: CallEnd,
    /// What was said about it.
    message: Option<String>,
}

/// What else is known of a turn.
#[derive(Debug, Serialize, utoipa::ToSchema)]
struct TurnMetadata {
    /// What was asked of the sampler.
    sampling_params: Sampling,
    /// The model that answered, as the endpoint names it.
    model: Option<String>,
    /// What its capture is worth.
    level: CaptureLevel,
    /// Who made the call, and what for.
    purpose: Purpose,
    /// How it ended.
    end: CallEnd,
    /// Whether it can be trained on.
    trainable: bool,
    /// The agent's own id of the conversation.
    session: Option<String>,
    /// How its prompt differs from the parent's prompt and reply, where it does.
    prefix_break: Option<PrefixBreak>,
    /// Policy version when the call was sent.
    policy_version_at_dispatch: Option<String>,
    /// Policy version when it ended.
    policy_version_at_completion: Option<String>,
    /// What this turn lacks, where a reply would be too large with it.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    #[schema(value_type = Option<Vec<String>>)]
    omitted: &'static [&'static str],
    /// Where the turn is whole, where it is not so here.
    #[serde(skip_serializing_if = "Option::is_none")]
    rest: Option<String>,
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
    let omitted = detail.omitted();
    let metadata = TurnMetadata {
        sampling_params: meta.sampling.clone(),
        model: meta.model.clone(),
        level: meta.level,
        purpose: meta.purpose,
        end: meta.end,
        trainable: call.trainable,
        session: meta.session.clone(),
        prefix_break: call.prefix_break.cloned(),
        policy_version_at_dispatch: meta.policy_version_at_dispatch.clone(),
        policy_version_at_completion: meta.policy_version_at_completion.clone(),
        omitted,
        rest: (!omitted.is_empty()).then(|| format!("/api/v1/rollouts/{rollout}/calls/{}", meta.index)),
    };
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
        upstream_error: failed.then(|| TurnError {
            end: meta.end,
            message: meta.error.clone(),
        }),
        node_id: node(meta.index),
        parent_node_id: call.continues.map(node),
        role: if meta.purpose == Purpose::Agent {
            TurnRole::Agent
        } else {
            TurnRole::Auxiliary
        },
        flags: call.flags.clone(),
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
