use crate::trajectory::{BodyShape, ContentHash};
use serde_json::Value;

/// How bodies of generateContent are taken apart.
pub(super) static SHAPE: BodyShape = BodyShape {
    messages: "contents",
    tools: "tools",
    canonical: |_| None,
    turn,
    reply,
};

fn turn(content: &str) -> Option<ContentHash> {
    let content: Value = serde_json::from_str(content).ok()?;
    (content.get("role")? == "model").then(|| sign(&content))
}

fn reply(body: &[u8]) -> Option<ContentHash> {
    let reply: Value = serde_json::from_slice(body).ok()?;
    Some(sign(reply.get("candidates")?.get(0)?.get("content")?))
}

/// Arguments and ids of calls are left out, since agents write them anew or leave them out; thoughts and white space
/// around the text too.
fn sign(content: &Value) -> ContentHash {
    let (mut text, mut names) = (String::new(), String::new());
    for part in content
        .get("parts")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
    {
        if part.get("thought").and_then(Value::as_bool) == Some(true) {
            continue;
        }
        if let Some(said) = part.get("text").and_then(Value::as_str) {
            text.push_str(said);
        }
        let call = part
            .get("functionCall")
            .and_then(|call| call.get("name")?.as_str());
        if let Some(name) = call {
            names.push('\0');
            names.push_str(name);
        }
    }
    ContentHash::of(format!("{}{names}", text.trim()).as_bytes())
}
