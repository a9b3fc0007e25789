use crate::trajectory::{BodyShape, ContentHash};
use serde_json::Value;

/// How bodies of Messages are taken apart.
pub(super) static SHAPE: BodyShape = BodyShape {
    messages: "messages",
    tools: "tools",
    canonical: steady,
    turn,
    reply,
};

/// `cache_control` marks move from message to message as a conversation grows; a list of one text becomes a string when
/// its mark goes (Claude Code 2.1); `output_config` comes and goes on system messages.
fn steady(message: &str) -> Option<String> {
    const CHANGING: [&str; 2] = ["cache_control", "output_config"];
    let changes = message.contains("\"content\":[") || CHANGING.iter().any(|name| message.contains(name));
    if !changes {
        return None;
    }
    let mut value: Value = serde_json::from_str(message).ok()?;
    let members = value.as_object_mut()?;
    for name in CHANGING {
        members.shift_remove(name);
    }
    for block in members
        .get_mut("content")
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten()
    {
        strip_marks(block);
    }
    let only = match members
        .get("content")
        .and_then(Value::as_array)
        .map(Vec::as_slice)
    {
        Some([Value::Object(only)]) if only.len() == 2 => only.get("text").filter(|text| text.is_string()),
        _ => None,
    };
    if let Some(only) = only.cloned() {
        members.insert("content".into(), only);
    }
    Some(value.to_string())
}

/// A block's own mark, and those of the blocks in a result. What a tool was given is not looked into.
fn strip_marks(block: &mut Value) {
    let Some(members) = block.as_object_mut() else {
        return;
    };
    members.shift_remove("cache_control");
    for inner in members
        .get_mut("content")
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten()
    {
        if let Some(members) = inner.as_object_mut() {
            members.shift_remove("cache_control");
        }
    }
}

fn turn(message: &str) -> Option<ContentHash> {
    let message: Value = serde_json::from_str(message).ok()?;
    (message.get("role")? == "assistant").then(|| sign(message.get("content")))
}

fn reply(body: &[u8]) -> Option<ContentHash> {
    let reply: Value = serde_json::from_slice(body).ok()?;
    (reply.get("type")? == "message").then(|| sign(reply.get("content")))
}

/// Arguments are left out, since agents write them anew; thoughts, which some leave out, and white space around the text
/// too.
fn sign(content: Option<&Value>) -> ContentHash {
    let (mut text, mut ids) = (String::new(), String::new());
    match content {
        Some(Value::String(only)) => text.push_str(only),
        Some(Value::Array(blocks)) => {
            for block in blocks {
                let member = |name: &str| block.get(name).and_then(Value::as_str).unwrap_or_default();
                match member("type") {
                    "text" => text.push_str(member("text")),
                    "tool_use" => {
                        ids.push('\0');
                        ids.push_str(member("id"));
                    }
                    _ => {}
                }
            }
        }
        _ => {}
    }
    ContentHash::of(format!("{}{ids}", text.trim()).as_bytes())
}
