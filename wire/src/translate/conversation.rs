use super::parts::{Part, write_joined, write_list};
use crate::capture::RequestError;
use crate::scan::write_string;
use std::borrow::Cow;

/// The messages of a chat completion, put together from those of another dialect and written as they become whole.
///
/// What the assistant did in several items is one message as long as chat completions can tell their order: reasoning,
/// text, calls. System messages at the front are one, since chat templates know no others there.
#[derive(Debug, Default)]
pub(crate) struct Conversation<'a> {
    /// Those before the last, with a comma after each.
    written: Vec<u8>,
    last: Option<Message<'a>>,
}

#[derive(Debug)]
struct Message<'a> {
    role: Role<'a>,
    parts: Vec<Part<'a>>,
    /// What stands between the quotes of a string.
    reasoning: Cow<'a, [u8]>,
    /// With a comma after each.
    calls: Vec<u8>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Role<'a> {
    System,
    User,
    Assistant,
    /// The result of the call of this id.
    Tool(Cow<'a, str>),
}

impl<'a> Conversation<'a> {
    /// The system, or whoever else is above the user, says something.
    pub(crate) fn system(&mut self, said: Vec<Part<'a>>) {
        if said.is_empty() {
            return;
        }
        if self.written.is_empty()
            && let Some(first) = self.last.as_mut().filter(|last| last.role == Role::System)
        {
            first.parts.extend(said);
            return;
        }
        self.push(Role::System, said);
    }

    /// The user says something.
    pub(crate) fn user(&mut self, said: Vec<Part<'a>>) {
        self.push(Role::User, said);
    }

    /// A call of the assistant has this result.
    pub(crate) fn result(&mut self, id: Cow<'a, str>, said: Vec<Part<'a>>) {
        self.push(Role::Tool(id), said);
    }

    /// The assistant's turn begins or goes on, though it may say nothing: messages of the assistant that follow each other
    /// are one turn in other dialects.
    pub(crate) fn assistant(&mut self) {
        self.turn(|_| true);
    }

    /// The assistant thinks, given as what stands between the quotes of a string. What some agents send back in pieces, as
    /// it was streamed, is one thought.
    pub(crate) fn reasons(&mut self, body: Cow<'a, [u8]>) {
        let turn = self.turn(|turn| turn.parts.is_empty() && turn.calls.is_empty());
        if let Some(turn) = turn {
            if turn.reasoning.is_empty() {
                turn.reasoning = body;
            } else {
                turn.reasoning.to_mut().extend_from_slice(&body);
            }
        }
    }

    /// The assistant says something.
    pub(crate) fn says(&mut self, part: Part<'a>) {
        if let Some(turn) = self.turn(|turn| turn.calls.is_empty()) {
            turn.parts.push(part);
        }
    }

    /// The assistant calls a tool; the arguments are what stands between the quotes of a string.
    pub(crate) fn calls(&mut self, id: &str, name: &str, arguments: &[u8]) {
        if let Some(turn) = self.turn(|_| true) {
            let out = &mut turn.calls;
            out.extend_from_slice(b"{\"id\":");
            write_string(id, out);
            out.extend_from_slice(b",\"type\":\"function\",\"function\":{\"name\":");
            write_string(name, out);
            out.extend_from_slice(b",\"arguments\":\"");
            out.extend_from_slice(arguments);
            out.extend_from_slice(b"\"}},");
        }
    }

    /// Whether the assistant has the last word, which it is to go on from.
    pub(crate) fn ends_with_assistant(&self) -> bool {
        self.last
            .as_ref()
            .is_some_and(|last| last.role == Role::Assistant)
    }

    /// The messages as a chat completion has them. `member` is where they came from.
    ///
    /// # Errors
    /// There are none: endpoints do not agree on what to say of that.
    pub(crate) fn into_messages(mut self, member: &'static str) -> Result<Vec<u8>, RequestError> {
        self.write_last();
        let Some((_, messages)) = self.written.split_last() else {
            return Err(RequestError::Malformed {
                place: member.to_owned(),
                expected: "a conversation with something in it",
            });
        };
        Ok([b"[", messages, b"]"].concat())
    }

    /// The assistant's turn under way where it `fits`, else a new one. There always is one.
    fn turn(&mut self, fits: impl Fn(&Message<'a>) -> bool) -> Option<&mut Message<'a>> {
        let goes_on = self
            .last
            .as_ref()
            .is_some_and(|last| last.role == Role::Assistant && fits(last));
        if !goes_on {
            self.push(Role::Assistant, Vec::new());
        }
        self.last.as_mut()
    }

    fn push(&mut self, role: Role<'a>, parts: Vec<Part<'a>>) {
        self.write_last();
        self.last = Some(Message {
            role,
            parts,
            reasoning: Cow::default(),
            calls: Vec::new(),
        });
    }

    fn write_last(&mut self) {
        if let Some(last) = self.last.take() {
            last.write(&mut self.written);
            self.written.push(b',');
        }
    }
}

impl Message<'_> {
    fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(match self.role {
            Role::System => b"{\"role\":\"system\"",
            Role::User => b"{\"role\":\"user\"",
            Role::Assistant => b"{\"role\":\"assistant\"",
            Role::Tool(_) => b"{\"role\":\"tool\"",
        });
        if let Role::Tool(id) = &self.role {
            out.extend_from_slice(b",\"tool_call_id\":");
            write_string(id, out);
        }
        if !self.reasoning.is_empty() {
            out.extend_from_slice(b",\"reasoning_content\":\"");
            out.extend_from_slice(&self.reasoning);
            out.push(b'"');
        }
        out.extend_from_slice(b",\"content\":");
        // Many servers take a list of parts from users only.
        match self.role {
            Role::System => write_joined(&self.parts, "\\n\\n", out),
            Role::Tool(_) => write_joined(&self.parts, "\\n", out),
            Role::Assistant if self.parts.is_empty() && !self.calls.is_empty() => {
                out.extend_from_slice(b"null");
            }
            Role::User if self.parts.len() > 1 => write_list(&self.parts, out),
            Role::User | Role::Assistant => write_joined(&self.parts, "", out),
        }
        if let Some((_, calls)) = self.calls.split_last() {
            out.extend_from_slice(b",\"tool_calls\":[");
            out.extend_from_slice(calls);
            out.push(b']');
        }
        out.push(b'}');
    }
}
