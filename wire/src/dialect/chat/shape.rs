use crate::trajectory::{BodyShape, ContentHash};
use serde::Deserialize;
use serde_json::Value;
use std::borrow::Cow;

/// How bodies of chat completions are taken apart.
pub(super) static SHAPE: BodyShape = BodyShape {
    messages: "messages",
    tools: "tools",
    canonical: without_cache_marks,
    turn: chat_turn,
    reply: chat_reply,
};

/// `cache_control` marks move from message to message as a conversation grows.
fn without_cache_marks(message: &str) -> Option<String> {
    const MARK: &str = "cache_control";
    fn strip(value: &mut Value) {
        match value {
            Value::Object(members) => {
                members.shift_remove(MARK);
                members.values_mut().for_each(strip);
            }
            Value::Array(items) => items.iter_mut().for_each(strip),
            _ => {}
        }
    }
    if !message.contains(MARK) {
        return None;
    }
    let mut value: Value = serde_json::from_str(message).ok()?;
    strip(&mut value);
    Some(value.to_string())
}

#[derive(Deserialize)]
struct ChatReply<'a> {
    #[serde(borrow)]
    choices: Vec<ChatChoice<'a>>,
}

#[derive(Deserialize)]
struct ChatChoice<'a> {
    #[serde(borrow)]
    message: ChatMessage<'a>,
}

#[derive(Deserialize)]
struct ChatMessage<'a> {
    #[serde(borrow, default)]
    role: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    content: Option<ChatContent<'a>>,
    #[serde(borrow, default)]
    tool_calls: Option<Vec<ChatToolCall<'a>>>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum ChatContent<'a> {
    Text(#[serde(borrow)] Cow<'a, str>),
    Parts(#[serde(borrow)] Vec<ChatPart<'a>>),
}

#[derive(Deserialize)]
struct ChatPart<'a> {
    #[serde(borrow, default)]
    text: Option<Cow<'a, str>>,
}

#[derive(Deserialize)]
struct ChatToolCall<'a> {
    #[serde(borrow, default)]
    id: Option<Cow<'a, str>>,
}

fn chat_turn(message: &str) -> Option<ContentHash> {
    let message: ChatMessage<'_> = serde_json::from_str(message).ok()?;
    (message.role.as_deref() == Some("assistant")).then(|| message.sign())
}

fn chat_reply(body: &[u8]) -> Option<ContentHash> {
    let reply: ChatReply<'_> = serde_json::from_slice(body).ok()?;
    reply.choices.first().map(|choice| choice.message.sign())
}

impl ChatMessage<'_> {
    /// Arguments are left out, since agents write them anew; white space around the text too.
    fn sign(&self) -> ContentHash {
        let text: Cow<'_, str> = match &self.content {
            None => Cow::Borrowed(""),
            Some(ChatContent::Text(text)) => Cow::Borrowed(text.as_ref()),
            Some(ChatContent::Parts(parts)) => parts.iter().filter_map(|part| part.text.as_deref()).collect(),
        };
        let ids = self
            .tool_calls
            .iter()
            .flatten()
            .map(|call| call.id.as_deref().unwrap_or_default());
        let parts: Vec<&str> = std::iter::once(text.trim()).chain(ids).collect();
        ContentHash::of(parts.join("\0").as_bytes())
    }
}
