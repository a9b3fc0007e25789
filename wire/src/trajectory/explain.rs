use crate::trajectory::{ContentHash, PrefixBreak};
use serde::Serialize;
use serde_json::Value;

/// Members that are named at most.
const MEMBERS: usize = 8;

/// What made a prompt break with the call it goes on from: which message changed, and in what.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Explanation {
    /// What kind of change it is.
    pub change: MessageChange,
    /// Position of the message in the later request; `None` where no message of it is to blame.
    pub message: Option<u32>,
    /// Whose message it is.
    pub role: Option<String>,
    /// The members that differ, such as `tool_calls[0].function.arguments`; at most eight.
    pub members: Vec<String>,
    /// The endpoint's name for the token that was expected, where it was sampled and has one.
    pub expected_token: Option<String>,
}

/// How a message changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum MessageChange {
    /// The reply came back otherwise than it was given.
    ReplyRewritten,
    /// The reply came back as it was given, and the template writes it otherwise than it was sampled.
    ReplyRendered,
    /// A message of the earlier request changed.
    Changed,
    /// Another message stands in its place, as after compaction.
    Replaced,
    /// The messages are the same, and the tools are not.
    Tools,
    /// Messages and tools are the same: the template writes them otherwise.
    Rendered,
}

/// What was said in a call, as far as an explanation needs it.
#[derive(Clone, Debug, Default)]
pub struct Said {
    /// How many messages the request has.
    pub messages: usize,
    /// The one at the place of the later request's first message that differs.
    pub message: Option<Value>,
    /// The tools of the request.
    pub tools: Option<ContentHash>,
    /// The reply in the dialect's unary form.
    pub reply: Option<Value>,
}

impl Explanation {
    /// Explains a break between what was said in the earlier call and in the one that broke with it. `expected_token` is
    /// the endpoint's name for the token that was expected.
    #[must_use]
    pub fn of(found: &PrefixBreak, before: &Said, now: &Said, expected_token: Option<&str>) -> Self {
        let expected_token = expected_token
            // vLLM's way of naming a token by its id says no more than the id.
            .filter(|name| !name.starts_with("token_id:"))
            .map(str::to_owned);
        let at = found
            .message
            .and_then(|message| usize::try_from(message).ok())
            .filter(|at| found.inside_completion || *at < before.messages);
        let later = now.message.as_ref();
        let (Some(at), Some(later)) = (at, later) else {
            return Self {
                change: if before.tools == now.tools {
                    MessageChange::Rendered
                } else {
                    MessageChange::Tools
                },
                message: None,
                role: None,
                members: Vec::new(),
                expected_token,
            };
        };
        let reply = before.reply.as_ref().and_then(message_of_reply);
        let is_reply = at >= before.messages;
        let earlier = if is_reply { reply } else { before.message.as_ref() };
        let role = |message: &Value| message.get("role").and_then(Value::as_str).map(str::to_owned);
        let mut members = Vec::new();
        let same_role =
            earlier.is_some_and(|earlier| role(earlier).is_none() || role(earlier) == role(later));
        if let Some(earlier) = earlier.filter(|_| same_role) {
            differing(earlier, later, &mut String::new(), &mut members);
        }
        let change = match (same_role, is_reply) {
            (false, _) => MessageChange::Replaced,
            (true, false) => MessageChange::Changed,
            (true, true) if members.is_empty() => MessageChange::ReplyRendered,
            (true, true) => MessageChange::ReplyRewritten,
        };
        Self {
            change,
            message: found.message,
            role: role(later),
            members,
            expected_token,
        }
    }
}

/// The assistant's message in a reply: chat completions', Messages', generateContent's.
fn message_of_reply(reply: &Value) -> Option<&Value> {
    reply
        .pointer("/choices/0/message")
        .or_else(|| reply.pointer("/candidates/0/content"))
        .or_else(|| reply.get("role").is_some().then_some(reply))
}

/// Collects where two values differ. What is null or empty is as good as what is not there.
fn differing(earlier: &Value, later: &Value, path: &mut String, found: &mut Vec<String>) {
    if earlier == later || found.len() >= MEMBERS || (is_nothing(earlier) && is_nothing(later)) {
        return;
    }
    let length = path.len();
    match (earlier, later) {
        (Value::Object(earlier), Value::Object(later)) => {
            let added = later.keys().filter(|key| !earlier.contains_key(*key));
            for key in earlier.keys().chain(added) {
                if length > 0 {
                    path.push('.');
                }
                path.push_str(key);
                let of =
                    |object: &serde_json::Map<String, Value>| object.get(key).cloned().unwrap_or_default();
                differing(&of(earlier), &of(later), path, found);
                path.truncate(length);
            }
        }
        (Value::Array(earlier), Value::Array(later)) if earlier.len() == later.len() => {
            for (position, (earlier, later)) in earlier.iter().zip(later).enumerate() {
                path.push_str(&format!("[{position}]"));
                differing(earlier, later, path, found);
                path.truncate(length);
            }
        }
        _ => found.push(path.clone()),
    }
}

fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(members) => members.is_empty(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn found(message: Option<u32>, inside_completion: bool) -> PrefixBreak {
        PrefixBreak {
            base: 0,
            at: 5,
            inside_completion,
            expected_token_id: 1,
            found_token_id: None,
            message,
        }
    }

    /// A call of whose messages the one at `at` matters.
    fn said(at: usize, messages: Value, reply: Value) -> Said {
        let messages = messages.as_array().unwrap();
        Said {
            messages: messages.len(),
            message: messages.get(at).cloned(),
            tools: Some(ContentHash::of(b"tools")),
            reply: Some(json!({"choices": [{"message": reply}]})),
        }
    }

    #[test]
    fn a_reply_that_came_back_written_anew_is_told_with_its_members() {
        let call = |arguments: &str| json!([{"id": "a", "type": "function", "function": {"name": "f", "arguments": arguments}}]);
        let user = json!({"role": "user", "content": "go"});
        let reply = json!({"role": "assistant", "content": null, "reasoning_content": "Hm.", "tool_calls": call("{\"a\": 1}")});
        let before = said(1, json!([user]), reply.clone());
        let back = json!({"role": "assistant", "content": "", "tool_calls": call("{\"a\":1}")});
        let now = said(1, json!([user, back]), Value::Null);
        let explained = Explanation::of(&found(Some(1), true), &before, &now, Some("<think>"));
        assert_eq!(explained.change, MessageChange::ReplyRewritten);
        assert_eq!(
            explained.members,
            ["reasoning_content", "tool_calls[0].function.arguments"],
            "that the content is empty instead of null is no change"
        );
        assert_eq!(explained.role.as_deref(), Some("assistant"));
        assert_eq!(explained.expected_token.as_deref(), Some("<think>"));

        let same = said(1, json!([user, reply]), Value::Null);
        let explained = Explanation::of(&found(Some(1), true), &before, &same, Some("token_id:7"));
        assert_eq!(
            (explained.change, explained.expected_token),
            (MessageChange::ReplyRendered, None)
        );
    }

    #[test]
    fn messages_and_tools_of_the_request_are_told_apart() {
        let user = |text: &str| json!({"role": "user", "content": text});
        let system = json!({"role": "system", "content": "s"});
        let before = said(1, json!([system, user("go")]), user("x"));
        let explain = |found: &PrefixBreak, now: &Said| Explanation::of(found, &before, now, None);

        let changed = said(1, json!([system, user("go on")]), Value::Null);
        let explained = explain(&found(Some(1), false), &changed);
        assert_eq!(explained.change, MessageChange::Changed);
        assert_eq!(
            (explained.message, explained.members),
            (Some(1), vec!["content".to_owned()])
        );

        let other = said(
            1,
            json!([system, {"role": "assistant", "content": "summary"}]),
            Value::Null,
        );
        assert_eq!(
            explain(&found(Some(1), false), &other).change,
            MessageChange::Replaced
        );

        let mut tools = said(2, json!([system, user("go"), user("x")]), Value::Null);
        assert_eq!(
            explain(&found(Some(2), false), &tools).change,
            MessageChange::Rendered
        );
        tools.tools = None;
        let explained = explain(&found(Some(2), false), &tools);
        assert_eq!(
            (explained.change, explained.message),
            (MessageChange::Tools, None)
        );
    }
}
