//! A document a conversation, in Harbor's Agent Trajectory Interchange Format (ATIF, RFC 0001 of the repository
//! harbor-framework/harbor, version 1.7; its reading is that of the models in the package `harbor` 0.26).
//!
//! A step is what the system or the user says, or a call of the model with what its tools gave back. Each call is there
//! once with its token ids and log-probabilities; where a conversation forks, what both have is marked as copied in all
//! but the first. Conversations of sub-agents are embedded in the one that started them, at the step after which they
//! began.

/// The format's own types.
mod document;

/// The steps of a conversation.
mod steps;

pub use document::*;

use crate::call::{CallEnd, Purpose};
use crate::export::chat::ends_conversation;
use crate::export::source::head_columns;
use crate::export::table::Object;
use crate::export::verl::purpose;
use crate::export::{Cell, Column, Kind, Row, Shape, Source};
use crate::trajectory::{CallRecord, CallView};
use serde_json::{Value, json};
use std::collections::{HashMap, HashSet};
use steps::{Steps, members};

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
    let views: HashMap<u32, CallView<'_>> = source
        .trajectory
        .calls()
        .map(|view| (view.meta.index, view))
        .collect();
    let mut conversations: Vec<Conversation> = source
        .records
        .iter()
        .filter_map(|record| Some((record, views.get(&record.meta.index)?)))
        .filter(|(record, view)| {
            let purpose = record.meta.purpose;
            let wanted = matches!(purpose, Purpose::Agent | Purpose::Subagent)
                || source.trajectory.selection().trains(purpose);
            wanted && ends_conversation(source, record, view)
        })
        .map(|(record, view)| conversation(source, record, view, &views, &mut seen))
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
    views: &HashMap<u32, CallView<'_>>,
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
        steps.answered(source, record, views.get(&index), &request, &reply, copied);
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
