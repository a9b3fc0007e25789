use crate::trajectory::{BodyShape, ContentHash};
use serde_json::Value;

/// How bodies of Responses are taken apart. An item of the conversation is a message here; a turn of the assistant is
/// told by its first item.
pub(super) static SHAPE: BodyShape = BodyShape {
    messages: "input",
    tools: "tools",
    canonical: |_| None,
    turn,
    reply,
};

fn turn(item: &str) -> Option<ContentHash> {
    sign(&serde_json::from_str(item).ok()?)
}

fn reply(body: &[u8]) -> Option<ContentHash> {
    let reply: Value = serde_json::from_slice(body).ok()?;
    sign(reply.get("output")?.as_array()?.first()?)
}

/// `None` where an item is not the assistant's. What agents leave out or write anew is not looked at: ids of items,
/// reasoning beside its summary, arguments.
fn sign(item: &Value) -> Option<ContentHash> {
    let member = |name: &str| item.get(name).and_then(Value::as_str).unwrap_or_default();
    let texts = |name: &str| -> String {
        let parts = item.get(name).and_then(Value::as_array).into_iter().flatten();
        parts
            .filter_map(|part| part.get("text").or(part.get("refusal"))?.as_str())
            .collect()
    };
    let said = match member("type") {
        "reasoning" => match texts("summary") {
            empty if empty.is_empty() => texts("content"),
            summary => summary,
        },
        "function_call" | "custom_tool_call" => member("call_id").to_owned(),
        "" | "message" if member("role") == "assistant" => match item.get("content") {
            Some(Value::String(text)) => text.clone(),
            _ => texts("content"),
        },
        _ => return None,
    };
    Some(ContentHash::of(said.trim().as_bytes()))
}
