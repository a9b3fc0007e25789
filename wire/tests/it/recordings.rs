//! The recorded exchanges, and how a reply is put through the capture.

use bytes::{Bytes, BytesMut};
use dressage_wire::capture::{Ask, Captured, Prepared, RequestFacts, RequestRules, StreamEnd};
use dressage_wire::dialect::{Dialect, Target, chat::ChatCompletions};
use std::path::Path;

pub const CHAT: ChatCompletions = ChatCompletions;
pub const EVENT_LIMIT_BYTES: usize = 16 << 20;

/// A recorded file, such as `vllm-0.32.0/hi_stream_plain.response.body`.
pub fn recording(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../fixtures/engines")
        .join(name);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{} cannot be read: {error}", path.display()))
}

pub fn request(name: &str) -> Bytes {
    recording(&format!("{name}.request.json")).into()
}

pub fn response(name: &str) -> Vec<u8> {
    recording(&format!("{name}.response.body"))
}

pub fn rules() -> RequestRules {
    RequestRules {
        ask: Ask::Tokens,
        top_logprobs: 5,
        ..RequestRules::default()
    }
}

pub fn prepare(body: &str, rules: &RequestRules) -> Prepared {
    CHAT.prepare(
        &Target::default(),
        &Bytes::copy_from_slice(body.as_bytes()),
        rules,
    )
    .unwrap()
}

/// Facts of a plain agent's streamed call.
pub fn streamed() -> RequestFacts {
    prepare(r#"{"model":"m","messages":[],"stream":true}"#, &rules()).facts
}

/// Facts of a plain agent's unary call.
pub fn unary() -> RequestFacts {
    prepare(r#"{"model":"m","messages":[]}"#, &rules()).facts
}

/// Puts a stream through the capture in the chunks given.
pub fn stream<'c>(
    facts: &RequestFacts,
    chunks: impl IntoIterator<Item = &'c [u8]>,
    end: StreamEnd,
) -> (Vec<u8>, Captured) {
    let mut capture = CHAT.stream(facts, EVENT_LIMIT_BYTES);
    let mut out = BytesMut::new();
    for chunk in chunks {
        capture.push(chunk, &mut out).unwrap();
    }
    let captured = capture.finish(end, &mut out);
    (out.to_vec(), captured)
}

/// Puts a whole stream through the capture.
pub fn whole_stream(facts: &RequestFacts, text: &[u8]) -> (Vec<u8>, Captured) {
    stream(facts, [text], StreamEnd::EndOfBody)
}

/// A stream of these data lines.
pub fn events(data: &[&str]) -> Vec<u8> {
    data.iter()
        .map(|data| format!("data: {data}\n\n"))
        .collect::<String>()
        .into_bytes()
}

/// A text with what differs between two runs of a server made equal: ids, times.
pub fn normalised(text: &[u8]) -> String {
    let mut text = String::from_utf8(text.to_vec()).unwrap();
    let of_word = |letter: char| letter.is_ascii_alphanumeric() || letter == '-';
    for (start, keep) in [
        ("chatcmpl-", of_word as fn(char) -> bool),
        ("\"created\":", |c| c.is_ascii_digit()),
    ] {
        let mut parts = text.split(start);
        let mut out = parts.next().unwrap().to_owned();
        for part in parts {
            out.push_str(start);
            out.push_str(part.trim_start_matches(keep));
        }
        text = out;
    }
    text
}

/// The data of each event.
pub fn data_of(stream: &[u8]) -> Vec<String> {
    let text = std::str::from_utf8(stream).unwrap();
    text.lines()
        .filter_map(|line| line.strip_prefix("data: "))
        .map(str::to_owned)
        .collect()
}
