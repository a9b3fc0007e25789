use super::reply::{RawMember, scrub};
use crate::scan::{Reader, ScanError, parse_u64, string_body};

/// A message put together from its deltas. Strings are joined as the bytes between their quotes, escapes as they are,
/// so that a character cut in two by the server is whole again.
#[derive(Debug, Default)]
pub(super) struct Message {
    /// The string's body.
    role: Option<Vec<u8>>,
    /// A delta had a content that was a string.
    content: bool,
    /// In order of first appearance.
    fields: Vec<(Vec<u8>, Field)>,
}

#[derive(Debug)]
enum Field {
    /// Strings, joined.
    Text(Vec<u8>),
    /// Items of arrays, joined with commas.
    Items(Vec<u8>),
    /// Tool calls.
    Calls(Vec<ToolCall>),
    /// `function_call`, which came before tool calls.
    Function(Function),
    /// The last value.
    Value(Vec<u8>),
}

/// A call the model makes.
#[derive(Debug, Default)]
struct ToolCall {
    index: u64,
    /// Raw, with quotes.
    id: Vec<u8>,
    /// Raw, with quotes.
    kind: Vec<u8>,
    function: Function,
    members: Vec<RawMember>,
}

/// What is called.
#[derive(Debug, Default)]
struct Function {
    /// The string's body.
    name: Vec<u8>,
    /// The string's body.
    arguments: Vec<u8>,
}

impl Message {
    /// Adds the delta that comes next. Returns whether it is an object with nothing in it. `empty_role` is set where
    /// its role is an empty string.
    pub(super) fn add(&mut self, reader: &mut Reader<'_>, empty_role: &mut bool) -> Result<bool, ScanError> {
        if reader.peek() != Some(b'{') {
            reader.skip()?;
            return Ok(false);
        }
        let mut more = reader.enter(b'{')?;
        let empty = !more;
        while more {
            let key = reader.key()?;
            let key = reader.slice(key);
            let value = reader.skip()?;
            let value = reader.slice(value);
            match key {
                b"role" => {
                    let role = string_body(value).unwrap_or_default();
                    *empty_role |= value == b"\"\"";
                    if !role.is_empty() && self.role.is_none() {
                        self.role = Some(role.to_vec());
                    }
                }
                b"tool_calls" => self.add_calls(value)?,
                b"function_call" if value.starts_with(b"{") => {
                    let field = self.field(key, || Field::Function(Function::default()));
                    if let Some(Field::Function(function)) = field {
                        function.add(value)?;
                    }
                }
                _ => self.add_value(key, value),
            }
            more = reader.next(b'}')?;
        }
        Ok(empty)
    }

    fn add_value(&mut self, key: &[u8], value: &[u8]) {
        if let Some(body) = string_body(value) {
            self.content |= key == b"content";
            if !body.is_empty()
                && let Some(Field::Text(text)) = self.field(key, || Field::Text(Vec::new()))
            {
                text.extend_from_slice(body);
            }
            return;
        }
        match value {
            b"null" => {}
            [b'[', items @ .., b']'] => {
                let blank = items.trim_ascii().is_empty();
                if !blank && let Some(Field::Items(known)) = self.field(key, || Field::Items(Vec::new())) {
                    if !known.is_empty() {
                        known.push(b',');
                    }
                    known.extend_from_slice(items);
                }
            }
            _ => {
                if let Some(Field::Value(known)) = self.field(key, || Field::Value(Vec::new())) {
                    known.clear();
                    known.extend_from_slice(value);
                }
            }
        }
    }

    /// The field of that name, made where it is missing. It is there always.
    fn field(&mut self, key: &[u8], new: impl FnOnce() -> Field) -> Option<&mut Field> {
        let known = self.fields.iter().position(|(known, _)| known == key);
        if known.is_none() {
            self.fields.push((key.to_vec(), new()));
        }
        let position = known.unwrap_or(self.fields.len() - 1);
        self.fields.get_mut(position).map(|(_, field)| field)
    }

    fn add_calls(&mut self, value: &[u8]) -> Result<(), ScanError> {
        let mut reader = Reader::new(value);
        if reader.peek() != Some(b'[') {
            return Ok(());
        }
        let mut more = reader.enter(b'[')?;
        while more {
            let item = reader.skip()?;
            let item = reader.slice(item);
            if let Some(Field::Calls(calls)) = self.field(b"tool_calls", || Field::Calls(Vec::new())) {
                add_call(calls, item)?;
            }
            more = reader.next(b']')?;
        }
        Ok(())
    }

    /// Replaces each value that is no JSON by null.
    pub(super) fn scrub(&mut self) {
        for (_, field) in &mut self.fields {
            match field {
                Field::Text(_) | Field::Function(_) => {}
                Field::Items(items) => {
                    let mut array = Vec::new();
                    wrap(b'[', items, b']', &mut array);
                    scrub(&mut array);
                    if array == b"null" {
                        items.clear();
                    }
                }
                Field::Value(value) => scrub(value),
                Field::Calls(calls) => {
                    let members = calls.iter_mut().flat_map(|call| &mut call.members);
                    members.for_each(|member| scrub(&mut member.value));
                }
            }
        }
    }

    /// Appends the message as an object.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"{\"role\":\"");
        out.extend_from_slice(self.role.as_deref().unwrap_or(b"assistant"));
        out.push(b'"');
        if !self.fields.iter().any(|(key, _)| key == b"content") {
            let nothing_else = self.fields.is_empty() && self.content;
            out.extend_from_slice(if nothing_else {
                b",\"content\":\"\""
            } else {
                b",\"content\":null"
            });
        }
        for (key, field) in &self.fields {
            out.extend_from_slice(b",\"");
            out.extend_from_slice(key);
            out.extend_from_slice(b"\":");
            field.write(out);
        }
        out.push(b'}');
    }
}

impl Field {
    fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::Text(body) => wrap(b'"', body, b'"', out),
            Self::Items(items) => wrap(b'[', items, b']', out),
            Self::Value(value) => out.extend_from_slice(value),
            Self::Function(function) => function.write(out),
            Self::Calls(calls) => {
                out.push(b'[');
                for (position, call) in calls.iter().enumerate() {
                    if position > 0 {
                        out.push(b',');
                    }
                    call.write(out);
                }
                out.push(b']');
            }
        }
    }
}

/// Adds a fragment to the call of its index; without an index, to the call of its id, or to the last one.
fn add_call(calls: &mut Vec<ToolCall>, fragment: &[u8]) -> Result<(), ScanError> {
    let mut reader = Reader::new(fragment);
    if reader.peek() != Some(b'{') {
        return Ok(());
    }
    let (mut index, mut id, mut kind, mut function) = (None, &b""[..], &b""[..], &b""[..]);
    let mut others = Vec::new();
    let mut more = reader.enter(b'{')?;
    while more {
        let key = reader.key()?;
        let value = reader.skip()?;
        let value = reader.slice(value);
        match reader.slice(key) {
            b"index" => index = parse_u64(value),
            b"id" => {
                id = string_body(value).map_or(&b""[..], |body| if body.is_empty() { b"" } else { value })
            }
            b"type" => kind = string_body(value).map_or(&b""[..], |_| value),
            b"function" => function = value,
            other => others.push((other, value)),
        }
        more = reader.next(b'}')?;
    }
    let known = match index {
        Some(index) => calls.iter().position(|call| call.index == index),
        None if id.is_empty() => calls.len().checked_sub(1),
        None => calls.iter().position(|call| call.id == id),
    };
    if known.is_none() {
        let index = index.unwrap_or(calls.len() as u64);
        calls.push(ToolCall {
            index,
            ..ToolCall::default()
        });
    }
    let position = known.unwrap_or(calls.len().saturating_sub(1));
    let Some(call) = calls.get_mut(position) else {
        return Ok(());
    };
    if call.id.is_empty() {
        call.id = id.to_vec();
    }
    if call.kind.is_empty() {
        call.kind = kind.to_vec();
    }
    for (key, value) in others {
        match call.members.iter_mut().find(|member| member.key == key) {
            Some(member) => member.value = value.to_vec(),
            None => call.members.push(RawMember {
                key: key.to_vec(),
                value: value.to_vec(),
            }),
        }
    }
    call.function.add(function)
}

impl ToolCall {
    fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"{\"id\":");
        out.extend_from_slice(if self.id.is_empty() { b"\"\"" } else { &self.id });
        out.extend_from_slice(b",\"type\":");
        out.extend_from_slice(if self.kind.is_empty() {
            b"\"function\""
        } else {
            &self.kind
        });
        out.extend_from_slice(b",\"function\":");
        self.function.write(out);
        for member in &self.members {
            member.write_after(out);
        }
        out.push(b'}');
    }
}

impl Function {
    fn add(&mut self, value: &[u8]) -> Result<(), ScanError> {
        let mut reader = Reader::new(value);
        if reader.peek() != Some(b'{') {
            return Ok(());
        }
        let mut more = reader.enter(b'{')?;
        while more {
            let key = reader.key()?;
            let value = reader.skip()?;
            let value = reader.slice(value);
            match (reader.slice(key), string_body(value)) {
                (b"name", Some(name)) if self.name.is_empty() => self.name.extend_from_slice(name),
                (b"arguments", Some(arguments)) => self.arguments.extend_from_slice(arguments),
                // Some servers send an object where a string belongs.
                (b"arguments", None) if value.starts_with(b"{") => {
                    let mut text = Vec::new();
                    crate::scan::write_string(&String::from_utf8_lossy(value), &mut text);
                    self.arguments
                        .extend_from_slice(string_body(&text).unwrap_or_default());
                }
                _ => {}
            }
            more = reader.next(b'}')?;
        }
        Ok(())
    }

    fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"{\"name\":\"");
        out.extend_from_slice(&self.name);
        out.extend_from_slice(b"\",\"arguments\":\"");
        out.extend_from_slice(&self.arguments);
        out.extend_from_slice(b"\"}");
    }
}

impl RawMember {
    /// Appends the member after another one.
    pub(super) fn write_after(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b",\"");
        out.extend_from_slice(&self.key);
        out.extend_from_slice(b"\":");
        out.extend_from_slice(&self.value);
    }
}

fn wrap(open: u8, body: &[u8], close: u8, out: &mut Vec<u8>) {
    out.push(open);
    out.extend_from_slice(body);
    out.push(close);
}
