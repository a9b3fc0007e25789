//! A row a conversation, for supervised fine-tuning: the messages of its last request with the reply, and the tools.
//!
//! It needs no tokens, so rollouts against endpoints that return none have rows too. A conversation ends with a complete
//! call that no other goes on from; where messages were written anew, as by compaction, what came before is a
//! conversation of its own. Calls in other dialects than chat completions are translated as they were for the endpoint.

use crate::call::{CallEnd, Flag, Purpose};
use crate::export::source::head_columns;
use crate::export::verl::purpose;
use crate::export::{Cell, Column, Kind, Row, Shape, Source};
use crate::trajectory::{CallRecord, CallView, Keep};
use serde::Deserialize;
use serde_json::Value;
use std::borrow::Cow;

/// The schema that a row names.
pub const SCHEMA: &str = "dressage.chat";

/// The version of it that is written.
pub const SCHEMA_VERSION: u32 = 1;

/// Columns of a row.
pub const COLUMNS: &[Column] = head_columns!(
    "leaf" Kind::Integer,
    "purpose" Kind::Text,
    "session" Kind::Text,
    "flags" Kind::List(&Kind::Text),
    "messages" Kind::List(&Kind::Struct(MESSAGE_COLUMNS)),
    "tools" Kind::Text,
    "finish_reason" Kind::Text,
    "dialect" Kind::Text,
    "untranslated" Kind::List(&Kind::Text),
);

const MESSAGE_COLUMNS: &[Column] = &[
    Column::new("role", Kind::Text),
    // Text alone; of a message with other parts, `content_parts` has all of them.
    Column::new("content", Kind::Text),
    Column::new("content_parts", Kind::Text),
    Column::new("reasoning_content", Kind::Text),
    Column::new("tool_calls", Kind::List(&Kind::Struct(TOOL_CALL_COLUMNS))),
    Column::new("tool_call_id", Kind::Text),
    Column::new("name", Kind::Text),
];

const TOOL_CALL_COLUMNS: &[Column] = &[
    Column::new("id", Kind::Text),
    Column::new("type", Kind::Text),
    Column::new("function", Kind::Struct(FUNCTION_COLUMNS)),
];

const FUNCTION_COLUMNS: &[Column] = &[
    Column::new("name", Kind::Text),
    Column::new("arguments", Kind::Text),
];

/// What a row says, as far as it is checked.
#[derive(Debug, Deserialize)]
pub struct ChatRow {
    /// The rollout.
    pub rollout: String,
    /// Index of the call that ends the conversation.
    pub leaf: u32,
    /// What that call was made for.
    pub purpose: Purpose,
    /// Its flags.
    pub flags: Vec<Flag>,
    /// The reward.
    pub reward: Option<f64>,
    /// The messages, the reply last.
    pub messages: Vec<ChatMessage>,
    /// The tools, as JSON text.
    pub tools: Option<String>,
}

/// A message.
#[derive(Debug, Deserialize)]
pub struct ChatMessage {
    /// Who said it.
    pub role: Option<String>,
    /// Its text.
    pub content: Option<String>,
    /// All its parts as JSON text, where they are not only text.
    pub content_parts: Option<String>,
    /// What the model thought.
    pub reasoning_content: Option<String>,
    /// Calls of tools.
    pub tool_calls: Option<Vec<ChatToolCall>>,
}

/// A call of a tool.
#[derive(Debug, Deserialize)]
pub struct ChatToolCall {
    /// Its id.
    pub id: Option<String>,
    /// What is called.
    pub function: Option<ChatFunction>,
}

/// A function that is called.
#[derive(Debug, Deserialize)]
pub struct ChatFunction {
    /// Its name.
    pub name: Option<String>,
    /// Its arguments, as the model wrote them.
    pub arguments: Option<String>,
}

/// The rows of a rollout.
pub(super) fn rows<'s, 'a>(source: &'s Source<'a>) -> impl Iterator<Item = Row<'a>> + 's {
    let calls = source.records.iter().zip(source.trajectory.calls());
    calls.filter_map(|(record, view)| {
        let wanted = source.trajectory.selection().trains(record.meta.purpose)
            && ends_conversation(source, record, &view);
        wanted.then(|| row(source, record, &view.flags)).flatten()
    })
}

/// Whether a call is whole, and no other goes on from it.
pub(super) fn ends_conversation(source: &Source<'_>, record: &CallRecord, view: &CallView<'_>) -> bool {
    let out = |flag: &Flag| match flag {
        Flag::Superseded | Flag::Abandoned | Flag::Budget | Flag::CaptureIncomplete => true,
        Flag::Truncated => source.trajectory.selection().truncated == Keep::Drop,
        _ => false,
    };
    record.meta.end == CallEnd::Complete && !view.flags.iter().any(out) && !goes_on(source, record)
}

/// Whether a later call holds the whole conversation to the reply of this one.
fn goes_on(source: &Source<'_>, record: &CallRecord) -> bool {
    let length = record.request.messages.length();
    source.records.iter().any(|later| {
        later.continues == Some(record.meta.index)
            && later.meta.end == CallEnd::Complete
            && later.meta.purpose == record.meta.purpose
            && later.request.messages.length() > length
    })
}

fn row<'a>(source: &Source<'a>, record: &CallRecord, flags: &[Flag]) -> Option<Row<'a>> {
    let (request, reply) = source.in_chat(record);
    let request: Value = serde_json::from_slice(&request?).ok()?;
    let reply: Value = serde_json::from_slice(&reply?).ok()?;
    let mut messages: Vec<Cell<'a>> = request.get("messages")?.as_array()?.iter().map(message).collect();
    messages.push(message(reply.pointer("/choices/0/message")?));
    let tools = request.get("tools").filter(|tools| !tools.is_null());
    let finish_reason = reply.pointer("/choices/0/finish_reason").and_then(Value::as_str);
    let mut row = source.head(Shape::Chat, record.meta.purpose);
    row.extend([
        Cell::Integer(i64::from(record.meta.index)),
        Cell::text(purpose(record.meta.purpose)),
        Cell::maybe(record.meta.session.clone()),
        Cell::texts(flags.iter().map(|flag| flag.name())),
        Cell::List(messages),
        Cell::maybe(tools.map(Value::to_string)),
        Cell::maybe(finish_reason.map(str::to_owned)),
        Cell::text(record.meta.dialect.name()),
        Cell::texts(record.meta.untranslated.iter().cloned()),
    ]);
    Some(row)
}

fn message<'a>(message: &Value) -> Cell<'a> {
    let text = |key: &str| Cell::maybe(message.get(key).and_then(Value::as_str).map(str::to_owned));
    let (content, parts) = match message.get("content") {
        Some(Value::String(text)) => (Some(text.clone()), None),
        Some(Value::Array(parts)) => {
            let texts: Option<Vec<&str>> = parts
                .iter()
                .map(|part| match part.get("type").and_then(Value::as_str) {
                    Some("text") => part.get("text").and_then(Value::as_str),
                    _ => None,
                })
                .collect();
            match texts {
                Some(texts) => (Some(texts.concat()), None),
                None => (None, Some(Value::Array(parts.clone()).to_string())),
            }
        }
        _ => (None, None),
    };
    let reasoning = match text("reasoning_content") {
        Cell::Null => text("reasoning"),
        found => found,
    };
    let tool_calls = message.get("tool_calls").and_then(Value::as_array);
    Cell::Struct(vec![
        text("role"),
        Cell::maybe(content),
        Cell::maybe(parts),
        reasoning,
        tool_calls.map_or(Cell::Null, |calls| {
            Cell::List(calls.iter().map(tool_call).collect())
        }),
        text("tool_call_id"),
        text("name"),
    ])
}

fn tool_call<'a>(call: &Value) -> Cell<'a> {
    let text = |pointer: &str| {
        let value = call.pointer(pointer).filter(|value| !value.is_null());
        // Some models write an object where a text belongs.
        Cell::maybe(value.map(|value| match value {
            Value::String(text) => Cow::Owned::<str>(text.clone()),
            other => Cow::Owned(other.to_string()),
        }))
    };
    Cell::Struct(vec![
        text("/id"),
        text("/type"),
        Cell::Struct(vec![text("/function/name"), text("/function/arguments")]),
    ])
}
