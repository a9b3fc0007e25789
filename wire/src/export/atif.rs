//! A document a conversation, in Harbor's Agent Trajectory Interchange Format (ATIF, RFC 0001 of the repository
//! harbor-framework/harbor, version 1.7; its reading is that of the models in the package `harbor` 0.26).
//!
//! A step is what the system or the user says, or a call of the model with what its tools gave back. Each call is there
//! once with its token ids and log-probabilities; where a conversation forks, what both have is marked as copied in all
//! but the first. Conversations of sub-agents are embedded in the one that started them, at the step after which they
//! began.

use crate::call::{CallEnd, Flag, Purpose};
use crate::export::chat::ends_conversation;
use crate::export::source::head_columns;
use crate::export::table::Object;
use crate::export::verl::purpose;
use crate::export::{Cell, Column, Kind, Row, Shape, Source};
use crate::time::rfc3339;
use crate::trajectory::{CallRecord, CallView};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::collections::HashSet;

/// The schema that `extra` of a document names.
pub const SCHEMA: &str = "dressage.atif";

/// The version of it that is written.
pub const SCHEMA_VERSION: u32 = 1;

/// The version of ATIF that is written.
pub const ATIF_VERSION: &str = "ATIF-v1.7";

/// How every version of ATIF that is read begins.
pub const ATIF_VERSIONS: &str = "ATIF-v1.";

/// Columns of a row in Parquet: the document as JSON text, and what one filters by.
pub const COLUMNS: &[Column] = head_columns!("leaf" Kind::Integer, "document" Kind::Text);

/// A trajectory.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Trajectory {
    /// [`ATIF_VERSION`].
    pub schema_version: String,
    /// The run; here the rollout.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
    /// This document; here the rollout and the index of the call that ends the conversation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trajectory_id: Option<String>,
    /// Who acts.
    pub agent: Agent,
    /// What was said and done, in order.
    pub steps: Vec<Step>,
    /// Words about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notes: Option<String>,
    /// What it adds up to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub final_metrics: Option<FinalMetrics>,
    /// The file in which it goes on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub continued_trajectory_ref: Option<String>,
    /// What every row of an export begins with, and more of the conversation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extra: Option<Map<String, Value>>,
    /// Conversations of sub-agents.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subagent_trajectories: Option<Vec<Trajectory>>,
}

/// Who acts.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Agent {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// The model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_name: Option<String>,
    /// The tools of the last request, as chat completions offer them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_definitions: Option<Vec<Value>>,
    /// More.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extra: Option<Map<String, Value>>,
}

/// Something that was said or done.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// Its number, from 1.
    pub step_id: u64,
    /// When, in ISO 8601.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timestamp: Option<String>,
    /// `system`, `user` or `agent`.
    pub source: String,
    /// The model that answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_name: Option<String>,
    /// How much it was to think.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning_effort: Option<Value>,
    /// What is said: text, or parts.
    pub message: Value,
    /// What the model thought.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    /// Calls of tools.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<Vec<ToolCall>>,
    /// What came of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observation: Option<Observation>,
    /// Tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metrics: Option<Metrics>,
    /// Whether it was done elsewhere, and is not to be trained here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub is_copied_context: Option<bool>,
    /// Calls of a model that it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub llm_call_count: Option<u64>,
    /// More; here what a call has besides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extra: Option<Map<String, Value>>,
}

/// A call of a tool.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ToolCall {
    /// Its id.
    pub tool_call_id: String,
    /// The tool.
    pub function_name: String,
    /// Its arguments; none where the model wrote no object.
    pub arguments: Map<String, Value>,
    /// `arguments` as the model wrote them, where they are no object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extra: Option<Map<String, Value>>,
}

/// What came of a step.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Observation {
    /// A result each.
    pub results: Vec<ObservationResult>,
}

/// A result.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ObservationResult {
    /// The call of a tool that it is of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_call_id: Option<String>,
    /// What came: text, or parts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<Value>,
    /// Sub-agents that were started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subagent_trajectory_ref: Option<Vec<SubagentRef>>,
    /// More.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extra: Option<Map<String, Value>>,
}

/// A conversation of a sub-agent.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SubagentRef {
    /// Its document, among those embedded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trajectory_id: Option<String>,
    /// Its run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
    /// Its file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trajectory_path: Option<String>,
    /// More.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extra: Option<Map<String, Value>>,
}

/// Tokens of a step.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Metrics {
    /// Tokens of the prompt, as the endpoint counted them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_tokens: Option<u64>,
    /// Tokens sampled, likewise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completion_tokens: Option<u64>,
    /// Tokens of the prompt that were in a cache, likewise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cached_tokens: Option<u64>,
    /// What it cost, in US dollars.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_usd: Option<f64>,
    /// Ids of the prompt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_token_ids: Option<Vec<u32>>,
    /// The sampled ids.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completion_token_ids: Option<Vec<u32>>,
    /// A log-probability for each of these.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logprobs: Option<Vec<f64>>,
    /// More.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extra: Option<Map<String, Value>>,
}

/// What the steps add up to.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FinalMetrics {
    /// Tokens of prompts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total_prompt_tokens: Option<u64>,
    /// Tokens sampled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total_completion_tokens: Option<u64>,
    /// Tokens of prompts that were in a cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total_cached_tokens: Option<u64>,
    /// What it cost, in US dollars.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total_cost_usd: Option<f64>,
    /// How many steps there are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total_steps: Option<u64>,
    /// More.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extra: Option<Map<String, Value>>,
}

/// A conversation, before it is known where it belongs.
struct Conversation {
    leaf: u32,
    purpose: Purpose,
    session: Option<String>,
    parent_session: Option<String>,
    /// Its first call that no conversation before it has.
    begins: u32,
    trajectory: Trajectory,
}

/// A document of a rollout with the call that ends it and what that was made for.
pub(super) struct Document {
    leaf: u32,
    purpose: Purpose,
    pub(super) trajectory: Trajectory,
}

/// The documents of a rollout.
pub(super) fn documents(source: &Source<'_>) -> Vec<Document> {
    let mut seen = HashSet::new();
    let mut conversations: Vec<Conversation> = source
        .records
        .iter()
        .zip(source.trajectory.calls())
        .filter(|(record, view)| {
            let purpose = record.meta.purpose;
            let wanted = matches!(purpose, Purpose::Agent | Purpose::Subagent)
                || source.trajectory.selection().trains(purpose);
            wanted && ends_conversation(source, record, view)
        })
        .map(|(record, view)| conversation(source, record, &view, &mut seen))
        .collect();
    // Those of sub-agents that a sub-agent started begin after its own.
    let mut order: Vec<u32> = conversations
        .iter()
        .filter(|one| one.purpose == Purpose::Subagent)
        .map(|one| one.leaf)
        .collect();
    let begins = |leaf: &u32, all: &[Conversation]| {
        all.iter()
            .find(|one| one.leaf == *leaf)
            .map_or(0, |one| one.begins)
    };
    order.sort_by_key(|leaf| std::cmp::Reverse(begins(leaf, &conversations)));
    for leaf in order {
        embed(leaf, &mut conversations);
    }
    let document = |one: Conversation| Document {
        leaf: one.leaf,
        purpose: one.purpose,
        trajectory: one.trajectory,
    };
    conversations.into_iter().map(document).collect()
}

/// The rows of a rollout in Parquet.
pub(super) fn rows<'a>(source: &Source<'a>) -> Vec<Row<'a>> {
    let row = |document: Document| {
        let text = serde_json::to_string(&document.trajectory).ok()?;
        let mut row = source.head(Shape::Atif, document.purpose);
        row.extend([Cell::Integer(i64::from(document.leaf)), Cell::text(text)]);
        Some(row)
    };
    documents(source).into_iter().filter_map(row).collect()
}

fn conversation(
    source: &Source<'_>,
    leaf: &CallRecord,
    view: &CallView<'_>,
    seen: &mut HashSet<u32>,
) -> Conversation {
    let mut chain = vec![leaf];
    while let Some(before) = chain
        .last()
        .and_then(|last| last.continues)
        .and_then(|index| source.record(index))
        .filter(|before| chain.len() <= source.records.len() && before.meta.end == CallEnd::Complete)
    {
        chain.push(before);
    }
    chain.reverse();
    let views: Vec<CallView<'_>> = source.trajectory.calls().collect();
    let mut steps = Steps::default();
    let (mut begins, mut tools) = (leaf.meta.index, None);
    for record in chain {
        let index = record.meta.index;
        let copied = !seen.insert(index);
        if !copied {
            begins = begins.min(index);
        }
        let (request, reply) = source.in_chat(record);
        let json = |bytes: Option<bytes::Bytes>| serde_json::from_slice::<Value>(&bytes?).ok();
        let (request, reply) = (json(request).unwrap_or_default(), json(reply).unwrap_or_default());
        steps.asked(&request);
        let view = views.iter().find(|view| view.meta.index == index);
        steps.answered(source, record, view, &request, &reply, copied);
        tools = request.get("tools").and_then(Value::as_array).cloned();
    }
    let meta = &leaf.meta;
    let (start, mut steps) = (source.start, steps.list);
    for (step, number) in steps.iter_mut().zip(1..) {
        step.step_id = number;
    }
    let total = |of: fn(&Metrics) -> Option<u64>| {
        let counts: Vec<u64> = steps
            .iter()
            .filter_map(|step| of(step.metrics.as_ref()?))
            .collect();
        (!counts.is_empty()).then(|| counts.iter().sum())
    };
    let final_metrics = FinalMetrics {
        total_prompt_tokens: total(|metrics| metrics.prompt_tokens),
        total_completion_tokens: total(|metrics| metrics.completion_tokens),
        total_cached_tokens: total(|metrics| metrics.cached_tokens),
        total_steps: Some(steps.len() as u64),
        ..FinalMetrics::default()
    };
    let head = source.head(Shape::Atif, meta.purpose);
    let mut extra = members(serde_json::to_value(Object(COLUMNS, &head)).unwrap_or_default());
    extra.extend(members(json!({
        "leaf": meta.index,
        "purpose": purpose(meta.purpose),
        "session": meta.session,
        "flags": view.flags,
    })));
    let trajectory = Trajectory {
        schema_version: ATIF_VERSION.into(),
        session_id: Some(source.id.to_string()),
        trajectory_id: Some(format!("{}:{}", source.id, meta.index)),
        agent: Agent {
            name: start.map_or(String::new(), |start| start.task.agent.name.clone()),
            version: start.map_or(String::new(), |start| start.agent_version.clone()),
            model_name: start.map(|start| start.model.clone()),
            tool_definitions: tools,
            extra: None,
        },
        steps,
        notes: None,
        final_metrics: Some(final_metrics),
        continued_trajectory_ref: None,
        extra: Some(extra),
        subagent_trajectories: None,
    };
    Conversation {
        leaf: meta.index,
        purpose: meta.purpose,
        session: meta.session.clone(),
        parent_session: meta.parent_session.clone(),
        begins,
        trajectory,
    }
}

/// Puts the conversation of a sub-agent into the one that started it, if there is one.
fn embed(leaf: u32, conversations: &mut Vec<Conversation>) {
    let Some(at) = conversations.iter().position(|one| one.leaf == leaf) else {
        return;
    };
    let child = conversations.remove(at);
    // The call after which it began: of the conversation that its sign names, else of one of the agent's own.
    let last_before = |one: &Conversation| {
        let calls = one.trajectory.steps.iter().filter_map(call_of);
        calls.filter(|call| *call < child.begins).max()
    };
    let named = |one: &Conversation| child.parent_session.is_some() && one.session == child.parent_session;
    let own = |one: &Conversation| one.purpose == Purpose::Agent;
    let nearest = |fits: &dyn Fn(&Conversation) -> bool| {
        let fitting = conversations.iter().enumerate().filter(|(_, one)| fits(one));
        fitting
            .filter_map(|(at, one)| Some((last_before(one)?, at)))
            .max()
    };
    let found = nearest(&named).or_else(|| nearest(&own));
    let Some((call, parent)) = found.and_then(|(call, at)| Some((call, conversations.get_mut(at)?))) else {
        let at = at.min(conversations.len());
        conversations.insert(at, child);
        return;
    };
    let reference = SubagentRef {
        trajectory_id: child.trajectory.trajectory_id.clone(),
        session_id: child.trajectory.session_id.clone(),
        ..SubagentRef::default()
    };
    let step = parent
        .trajectory
        .steps
        .iter_mut()
        .find(|step| call_of(step) == Some(call));
    if let Some(step) = step {
        let only_call = step.tool_calls.as_ref().is_some_and(|calls| calls.len() == 1);
        let results = &mut step.observation.get_or_insert_default().results;
        match results.as_mut_slice() {
            [result] if only_call => result
                .subagent_trajectory_ref
                .get_or_insert_default()
                .push(reference),
            _ => results.push(ObservationResult {
                subagent_trajectory_ref: Some(vec![reference]),
                ..ObservationResult::default()
            }),
        }
    }
    let embedded = parent.trajectory.subagent_trajectories.get_or_insert_default();
    embedded.insert(0, child.trajectory);
}

/// The index of the call that a step is.
pub(crate) fn call_of(step: &Step) -> Option<u32> {
    step.extra.as_ref()?.get("call")?.as_u64()?.try_into().ok()
}

/// Steps under way.
#[derive(Default)]
struct Steps {
    list: Vec<Step>,
    /// Messages of the request before.
    known: usize,
    answered: bool,
}

impl Steps {
    /// Takes what is new in a request. That begins with the reply before, which is there already.
    fn asked(&mut self, request: &Value) {
        let messages = request.get("messages").and_then(Value::as_array);
        let messages = messages.map(Vec::as_slice).unwrap_or_default();
        let fresh = messages.get(self.known..).unwrap_or_default();
        let is_assistant = |message: &&Value| role(message) == "assistant";
        let handed_back = match self.answered {
            true => fresh.iter().take_while(is_assistant).count(),
            false => 0,
        };
        for message in fresh.iter().skip(handed_back) {
            self.said(message);
        }
        self.known = messages.len();
    }

    fn said(&mut self, message: &Value) {
        let (text, parts) = content(message.get("content"));
        let source = match role(message) {
            "assistant" => {
                // Said before the first call that was captured.
                let mut step = agent_step(message);
                step.is_copied_context = Some(true);
                return self.list.push(step);
            }
            "system" | "developer" => "system",
            "tool" | "function" => return self.result(message, text, parts),
            _ => "user",
        };
        self.list.push(Step {
            source: source.into(),
            message: text.into(),
            extra: parts,
            ..Step::default()
        });
    }

    /// What came of a call of a tool belongs to the step that made it.
    fn result(&mut self, message: &Value, text: String, parts: Option<Map<String, Value>>) {
        let id = message.get("tool_call_id").and_then(Value::as_str);
        let made = |step: &Step| {
            let mut calls = step.tool_calls.iter().flatten();
            calls.any(|call| Some(call.tool_call_id.as_str()) == id)
        };
        let at = self.list.iter().rposition(made);
        let mut extra = parts.unwrap_or_default();
        if let (None, Some(id)) = (at, id) {
            extra.insert("tool_call_id".into(), id.into());
        }
        let result = ObservationResult {
            source_call_id: at.and(id).map(str::to_owned),
            content: Some(text.into()),
            extra: (!extra.is_empty()).then_some(extra),
            ..ObservationResult::default()
        };
        let step = match at.and_then(|at| self.list.get_mut(at)) {
            Some(step) => Some(step),
            None => {
                self.list.push(Step {
                    source: "system".into(),
                    message: "".into(),
                    ..Step::default()
                });
                self.list.last_mut()
            }
        };
        if let Some(step) = step {
            step.observation.get_or_insert_default().results.push(result);
        }
    }

    /// Takes the reply to a call.
    fn answered(
        &mut self,
        source: &Source<'_>,
        record: &CallRecord,
        view: Option<&CallView<'_>>,
        request: &Value,
        reply: &Value,
        copied: bool,
    ) {
        let meta = &record.meta;
        let nothing = Value::Null;
        let mut step = agent_step(reply.pointer("/choices/0/message").unwrap_or(&nothing));
        let flags: &[Flag] = view.map(|view| view.flags.as_slice()).unwrap_or_default();
        let completion = record.completions.first();
        step.timestamp = Some(rfc3339(meta.started_unix_ms / 1_000));
        step.model_name.clone_from(&meta.model);
        step.reasoning_effort = request
            .get("reasoning_effort")
            .filter(|value| value.is_string())
            .cloned();
        step.metrics = Some(metrics(source, record));
        step.is_copied_context = copied.then_some(true);
        step.llm_call_count = Some(1);
        step.extra = Some(members(json!({
            "call": meta.index,
            "trainable": view.is_some_and(|view| view.trainable),
            "flags": flags,
            "finish_reason": completion.and_then(|completion| completion.finish_reason.as_ref()),
            "dialect": meta.dialect,
            "untranslated": meta.untranslated,
            "policy_version_at_dispatch": meta.policy_version_at_dispatch,
            "policy_version_at_completion": meta.policy_version_at_completion,
        })));
        self.list.push(step);
        self.answered = true;
    }
}

fn metrics(source: &Source<'_>, record: &CallRecord) -> Metrics {
    let usage = record.meta.usage;
    let completion = record.completions.first();
    let ids = completion.map(|completion| completion.token_ids.clone());
    let logprobs = completion
        .filter(|completion| completion.logprobs.len() == completion.token_ids.len())
        .map(|completion| completion.logprobs.clone());
    Metrics {
        prompt_tokens: usage.map(|usage| usage.prompt_tokens),
        completion_tokens: usage.map(|usage| usage.completion_tokens),
        cached_tokens: usage.and_then(|usage| usage.cached_tokens),
        prompt_token_ids: source.trajectory.prompt_token_ids(record.meta.index),
        completion_token_ids: ids.filter(|ids| !ids.is_empty()),
        logprobs: logprobs
            .filter(|logprobs| !logprobs.is_empty() && logprobs.iter().all(|logprob| logprob.is_finite())),
        ..Metrics::default()
    }
}

fn role(message: &Value) -> &str {
    message.get("role").and_then(Value::as_str).unwrap_or_default()
}

/// A message of the assistant as a step.
fn agent_step(message: &Value) -> Step {
    let (text, extra) = content(message.get("content"));
    let reasoning = message
        .get("reasoning_content")
        .or_else(|| message.get("reasoning"));
    let calls = message.get("tool_calls").and_then(Value::as_array);
    let calls: Option<Vec<ToolCall>> = calls.map(|calls| calls.iter().map(tool_call).collect());
    Step {
        source: "agent".into(),
        message: text.into(),
        reasoning_content: reasoning.and_then(Value::as_str).map(str::to_owned),
        tool_calls: calls.filter(|calls| !calls.is_empty()),
        extra,
        ..Step::default()
    }
}

fn tool_call(call: &Value) -> ToolCall {
    let text = |pointer: &str| call.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let (arguments, extra) = match call.pointer("/function/arguments") {
        Some(Value::Object(members)) => (members.clone(), None),
        Some(Value::String(text)) => match serde_json::from_str(text) {
            Ok(Value::Object(members)) => (members, None),
            _ => (Map::new(), Some(members(json!({"arguments": text})))),
        },
        _ => (Map::new(), None),
    };
    ToolCall {
        tool_call_id: text("/id").to_owned(),
        function_name: text("/function/name").to_owned(),
        arguments,
        extra,
    }
}

/// The text of a content, with a word in brackets for each part that is none, and all parts where there are such.
fn content(content: Option<&Value>) -> (String, Option<Map<String, Value>>) {
    let parts = match content {
        Some(Value::String(text)) => return (text.clone(), None),
        Some(Value::Array(parts)) => parts,
        _ => return (String::new(), None),
    };
    let (mut said, mut other) = (String::new(), false);
    for part in parts {
        let member = |name: &str| part.get(name).and_then(Value::as_str);
        match (member("type"), member("text")) {
            (Some("text"), Some(text)) => said.push_str(text),
            (kind, _) => {
                other = true;
                said.push_str(&format!("[{}]", kind.unwrap_or("part")));
            }
        }
    }
    (said, other.then(|| members(json!({"content_parts": parts}))))
}

fn members(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(members) => members,
        _ => Map::new(),
    }
}
