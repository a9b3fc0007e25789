use super::raw::{NOT_JSON, Raw};
use crate::scan::{decode_string, has_doubtful_escape, string_body, write_string};
use bytes::BytesMut;
use std::borrow::Cow;

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

    /// Appends a member after another, where there is one.
    pub(crate) fn member(self, name: &str, value: Option<impl AsRef<[u8]>>) -> Self {
        match value {
            None => self,
            Some(value) => self.raw(",\"").raw(name).raw("\":").raw(value),
        }
    }

    /// The choice of a function in chat completions; its name is given as what stands between the quotes of a string.
    pub(crate) fn function_choice(name: &[u8]) -> Self {
        Self::from("{\"type\":\"function\",\"function\":{\"name\":")
            .quoted(name)
            .raw("}}")
    }

    /// Items, each behind a comma, as a list; `None` where there are none.
    pub(crate) fn into_list(self) -> Option<Vec<u8>> {
        let mut list = self.0;
        *list.first_mut()? = b'[';
        list.push(b']');
        Some(list)
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

/// The arguments of a call, which are a string in chat completions, as the text of an object in one line.
pub(crate) fn arguments_object(body: &[u8]) -> Vec<u8> {
    let text = decode_string(body);
    let trimmed = text.trim();
    if trimmed.is_empty() {
        return b"{}".to_vec();
    }
    let is_json = serde_json::from_str::<serde::de::IgnoredAny>(trimmed).is_ok();
    if is_json && trimmed.starts_with('{') {
        return Raw::new(trimmed.as_bytes()).in_one_line().into_owned();
    }
    Json::from("{")
        .string(NOT_JSON)
        .raw(":")
        .string(&text)
        .raw("}")
        .into_bytes()
}
