use super::body::Body;
use crate::capture::RequestFacts;
use crate::scan::{Reader, decode_string, string_body};

/// The first messages of either kind are among these.
const OPENING_MESSAGES: usize = 8;

/// How much of the first messages is kept for telling calls apart.
const START_BYTES: usize = 400;

/// How the first system message and the first user message begin.
pub(super) fn read_openings(body: &Body<'_>, facts: &mut RequestFacts) {
    let Some(messages) = body.get("messages") else {
        return;
    };
    let mut reader = Reader::new(messages);
    let mut more = reader.enter(b'[') == Ok(true);
    let mut left = OPENING_MESSAGES;
    while more && left > 0 && (facts.system_start.is_empty() || facts.user_start.is_empty()) {
        left -= 1;
        let Ok(message) = reader.skip() else { return };
        if let Ok(message) = Body::read(reader.slice(message)) {
            let start = match message.get("role") {
                Some(b"\"system\"" | b"\"developer\"") => &mut facts.system_start,
                Some(b"\"user\"") => &mut facts.user_start,
                _ => &mut String::new(),
            };
            if start.is_empty() {
                *start = message
                    .get("content")
                    .and_then(start_of_content)
                    .unwrap_or_default();
            }
        }
        more = reader.next(b']') == Ok(true);
    }
}

/// How a message's content begins: a string, or the first part that has a text.
fn start_of_content(content: &[u8]) -> Option<String> {
    if let Some(text) = string_body(content) {
        return Some(decode_string(text.get(..START_BYTES).unwrap_or(text)).into_owned());
    }
    let mut reader = Reader::new(content);
    let mut more = reader.enter(b'[').ok()?;
    while more {
        let part = reader.skip().ok()?;
        let text = Body::read(reader.slice(part))
            .ok()
            .and_then(|part| start_of_content(part.get("text")?));
        if text.is_some() {
            return text;
        }
        more = reader.next(b']').ok()?;
    }
    None
}
