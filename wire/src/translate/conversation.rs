use super::parts;
use serde_json::{Map, Value, json};

/// The messages of a chat completion, put together from those of another dialect.
///
/// What the assistant did in several items is one message as long as chat completions can tell their order: reasoning,
/// text, calls. System messages at the front are one, since chat templates know no others there.
#[derive(Debug, Default)]
pub(crate) struct Conversation {
    messages: Vec<Message>,
}

#[derive(Debug)]
struct Message {
    role: Role,
    parts: Vec<Value>,
    reasoning: String,
    calls: Vec<Value>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Role {
    System,
    User,
    Assistant,
    /// The result of a call.
    Tool(String),
}

impl Message {
    fn new(role: Role, parts: Vec<Value>) -> Self {
        Self {
            role,
            parts,
            reasoning: String::new(),
            calls: Vec::new(),
        }
    }
}

impl Conversation {
    /// The system, or whoever else is above the user, says something.
    pub(crate) fn system(&mut self, said: Vec<Value>) {
        if said.is_empty() {
            return;
        }
        if let [only] = self.messages.as_mut_slice()
            && only.role == Role::System
        {
            only.parts.extend(said);
            return;
        }
        self.messages.push(Message::new(Role::System, said));
    }

    /// The user says something.
    pub(crate) fn user(&mut self, said: Vec<Value>) {
        self.messages.push(Message::new(Role::User, said));
    }

    /// A call of the assistant has this result.
    pub(crate) fn result(&mut self, id: String, said: Vec<Value>) {
        self.messages.push(Message::new(Role::Tool(id), said));
    }

    /// The assistant's turn begins or goes on, though it may say nothing: messages of the assistant that follow each other
    /// are one turn in other dialects.
    pub(crate) fn assistant(&mut self) {
        self.turn(|_| true);
    }

    /// The assistant thinks. What some agents send back in pieces, as it was streamed, is one thought.
    pub(crate) fn reasons(&mut self, text: &str) {
        let turn = self.turn(|turn| turn.parts.is_empty() && turn.calls.is_empty());
        if let Some(turn) = turn {
            turn.reasoning.push_str(text);
        }
    }

    /// The assistant says something.
    pub(crate) fn says(&mut self, part: Value) {
        if let Some(turn) = self.turn(|turn| turn.calls.is_empty()) {
            turn.parts.push(part);
        }
    }

    /// The assistant calls a tool.
    pub(crate) fn calls(&mut self, id: &str, name: &str, arguments: &str) {
        if let Some(turn) = self.turn(|_| true) {
            turn.calls.push(
                json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}),
            );
        }
    }

    /// The assistant's turn under way where it `fits`, else a new one. There always is one.
    fn turn(&mut self, fits: impl Fn(&Message) -> bool) -> Option<&mut Message> {
        let goes_on = self
            .messages
            .last()
            .is_some_and(|last| last.role == Role::Assistant && fits(last));
        if !goes_on {
            self.messages.push(Message::new(Role::Assistant, Vec::new()));
        }
        self.messages.last_mut()
    }

    /// Whether the assistant has the last word, which it is to go on from.
    pub(crate) fn ends_with_assistant(&self) -> bool {
        self.messages
            .last()
            .is_some_and(|last| last.role == Role::Assistant)
    }

    /// The messages as a chat completion has them.
    pub(crate) fn into_messages(self) -> Value {
        self.messages.into_iter().map(Message::into_value).collect()
    }
}

impl Message {
    fn into_value(self) -> Value {
        let mut members = Map::new();
        let Self {
            role,
            parts,
            reasoning,
            calls,
        } = self;
        // Many servers take a list of parts from users only.
        let (name, content) = match &role {
            Role::System => ("system", joined_or_list(parts, "\n\n")),
            Role::Assistant if parts.is_empty() && !calls.is_empty() => ("assistant", Value::Null),
            Role::Assistant => ("assistant", joined_or_list(parts, "")),
            Role::Tool(_) => ("tool", joined_or_list(parts, "\n")),
            Role::User if parts.len() > 1 => ("user", Value::Array(parts)),
            Role::User => ("user", joined_or_list(parts, "")),
        };
        members.insert("role".into(), name.into());
        if let Role::Tool(id) = role {
            members.insert("tool_call_id".into(), id.into());
        }
        if !reasoning.is_empty() {
            members.insert("reasoning_content".into(), reasoning.into());
        }
        members.insert("content".into(), content);
        if !calls.is_empty() {
            members.insert("tool_calls".into(), Value::Array(calls));
        }
        Value::Object(members)
    }
}

fn joined_or_list(parts: Vec<Value>, between: &str) -> Value {
    parts::joined(&parts, between).map_or(Value::Array(parts), Value::String)
}
