use crate::scan::{decode_string, has_doubtful_escape, string_body, write_string};
use bytes::BytesMut;
use serde::Serialize;
use serde_json::Value;
use serde_json::ser::Formatter;
use std::borrow::Cow;
use std::io;

/// JSON text under way. What is put in is put in as it is; whoever writes keeps brackets and commas in order.
#[derive(Debug, Default)]
pub(crate) struct Json(Vec<u8>);

impl Json {
    /// Of this text to begin with.
    pub(crate) fn from(text: &str) -> Self {
        Self(text.as_bytes().to_vec())
    }

    /// Appends a text as it is.
    pub(crate) fn raw(mut self, text: impl AsRef<[u8]>) -> Self {
        self.0.extend_from_slice(text.as_ref());
        self
    }

    /// Appends a string.
    pub(crate) fn string(mut self, text: &str) -> Self {
        write_string(text, &mut self.0);
        self
    }

    /// Appends a string that is given as what stands between its quotes.
    pub(crate) fn quoted(mut self, body: &[u8]) -> Self {
        self.0.push(b'"');
        self.0.extend_from_slice(body);
        self.0.push(b'"');
        self
    }

    /// Appends a number.
    pub(crate) fn number(self, number: u64) -> Self {
        self.raw(number.to_string())
    }

    /// Appends what a function writes.
    pub(crate) fn with(self, write: impl FnOnce(Self) -> Self) -> Self {
        write(self)
    }

    /// Appends items with commas between them.
    pub(crate) fn list<T>(
        mut self,
        items: impl IntoIterator<Item = T>,
        mut write: impl FnMut(Self, T) -> Self,
    ) -> Self {
        self.0.push(b'[');
        for (position, item) in items.into_iter().enumerate() {
            if position > 0 {
                self.0.push(b',');
            }
            self = write(self, item);
        }
        self.0.push(b']');
        self
    }

    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    /// Appends it to a stream as the data of an event, with a name where it has one.
    pub(crate) fn write_event(&self, name: Option<&str>, out: &mut BytesMut) {
        if let Some(name) = name {
            out.extend_from_slice(b"event: ");
            out.extend_from_slice(name.as_bytes());
            out.extend_from_slice(b"\n");
        }
        out.extend_from_slice(b"data: ");
        out.extend_from_slice(&self.0);
        out.extend_from_slice(b"\n\n");
    }

    /// Appends it to a stream as it is.
    pub(crate) fn write(&self, out: &mut BytesMut) {
        out.extend_from_slice(&self.0);
    }
}

/// What stands between the quotes of a string, as JSON allows it: control characters escaped, all of it UTF-8, no
/// unknown escapes.
pub(crate) fn sound_body(body: &[u8]) -> Cow<'_, [u8]> {
    let control = body.iter().fold(false, |found, byte| found | (*byte < b' '));
    if !control && !has_doubtful_escape(body) && std::str::from_utf8(body).is_ok() {
        return Cow::Borrowed(body);
    }
    let mut quoted = Vec::with_capacity(body.len() + 2);
    write_string(&decode_string(body), &mut quoted);
    Cow::Owned(string_body(&quoted).unwrap_or_default().to_vec())
}

/// How much of a string's body can be read without what comes after it: not the first bytes of a character, nor the
/// first half of a pair of escapes.
pub(crate) fn readable_length(body: &[u8]) -> usize {
    if let Err(error) = std::str::from_utf8(body)
        && error.error_len().is_none()
    {
        return error.valid_up_to();
    }
    let Some((before, escape)) = body.len().checked_sub(6).and_then(|at| body.split_at_checked(at)) else {
        return body.len();
    };
    let backslashes = before.iter().rev().take_while(|byte| **byte == b'\\').count();
    match escape {
        [
            b'\\',
            b'u',
            b'd' | b'D',
            b'8' | b'9' | b'a' | b'b' | b'A' | b'B',
            ..,
        ] if backslashes % 2 == 0 => before.len(),
        _ => body.len(),
    }
}

/// A value as models write JSON: with a space after `,` and `:`. Agents parse the arguments of a call and send them as a
/// value; written so, they are most often the text that was sampled.
pub(crate) fn spaced(value: &Value) -> String {
    let mut out = Vec::new();
    let mut serializer = serde_json::Serializer::with_formatter(&mut out, Spaced);
    match value.serialize(&mut serializer) {
        Ok(()) => String::from_utf8_lossy(&out).into_owned(),
        // A `Value` has string keys and memory takes every write; the compact form is the same JSON.
        Err(_) => value.to_string(),
    }
}

struct Spaced;

impl Formatter for Spaced {
    fn begin_array_value<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(b": ")
    }
}

/// The member under which arguments that are no JSON object are handed over where an object is wanted, as Anthropic's
/// documentation of fine-grained tool streaming has it.
const NOT_JSON: &str = "INVALID_JSON";

/// The arguments of a call, which are a string in chat completions, as the text of an object in one line.
pub(crate) fn arguments_object(body: &[u8]) -> Vec<u8> {
    let text = decode_string(body);
    let trimmed = text.trim();
    if trimmed.is_empty() {
        return b"{}".to_vec();
    }
    let is_json = serde_json::from_str::<serde::de::IgnoredAny>(trimmed).is_ok();
    if is_json && trimmed.starts_with('{') {
        // Line ends in JSON are white space, and would end the line of an event.
        return trimmed
            .bytes()
            .map(|byte| if matches!(byte, b'\n' | b'\r') { b' ' } else { byte })
            .collect();
    }
    Json::from("{")
        .string(NOT_JSON)
        .raw(":")
        .string(&text)
        .raw("}")
        .into_bytes()
}

/// The other way round.
pub(crate) fn arguments_text(value: Value) -> String {
    if let Value::Object(members) = &value
        && members.len() == 1
        && let Some(Value::String(text)) = members.get(NOT_JSON)
    {
        return text.clone();
    }
    spaced(&value)
}
