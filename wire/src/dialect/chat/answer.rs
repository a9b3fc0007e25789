use super::reply::member;
use crate::capture::RequestFacts;
use crate::scan::{Member, Reader, members, write_string};
use bytes::Bytes;

/// See [`ChatCompletions::replay`](super::ChatCompletions::replay).
pub(super) fn replay(body: &[u8], facts: &RequestFacts) -> Option<Bytes> {
    let top = members(body).ok()?;
    let choices = items(value(body, &top, "choices")?)?;
    if choices.is_empty() {
        return None;
    }
    let mut writer = Writer {
        head: head(body, &top),
        out: Vec::with_capacity(body.len() + 1024),
    };
    let usage = value(body, &top, "usage").filter(|usage| facts.usage_asked && *usage != b"null");
    let mut tail = Vec::new();
    for name in ["service_tier", "system_fingerprint", "timings"] {
        if let Some(value) = value(body, &top, name).filter(|value| *value != b"null") {
            tail.extend_from_slice(format!(",\"{name}\":").as_bytes());
            tail.extend_from_slice(value);
        }
    }
    for (position, choice) in choices.iter().enumerate() {
        let last = usage.is_none() && position + 1 == choices.len();
        writer.choice(choice, if last { &tail } else { b"" })?;
    }
    if let Some(usage) = usage {
        writer.event(&[b"[],\"usage\":", usage, &tail]);
    }
    writer.out.extend_from_slice(b"data: [DONE]\n\n");
    Some(Bytes::from(writer.out))
}

/// Writes the events of a replayed reply.
struct Writer {
    /// The members that name the reply, up to `"choices":`.
    head: Vec<u8>,
    out: Vec<u8>,
}

impl Writer {
    /// One event; `parts` follow on `"choices":`.
    fn event(&mut self, parts: &[&[u8]]) {
        self.out.extend_from_slice(b"data: ");
        for part in [self.head.as_slice()].iter().chain(parts) {
            // Line ends in JSON are white space, and would end the line of the event.
            for (position, line) in part.split(|byte| matches!(byte, b'\n' | b'\r')).enumerate() {
                if position > 0 {
                    self.out.push(b' ');
                }
                self.out.extend_from_slice(line);
            }
        }
        self.out.extend_from_slice(b"}\n\n");
    }

    /// One event of a choice.
    fn delta(&mut self, index: &[u8], delta: &[u8], logprobs: Option<&[u8]>) {
        let logprobs = logprobs.map_or_else(Vec::new, |logprobs| [b",\"logprobs\":", logprobs].concat());
        self.event(&[
            b"[{\"index\":",
            index,
            b",\"delta\":{",
            delta,
            b"}",
            &logprobs,
            b",\"finish_reason\":null}]",
        ]);
    }

    /// All events of a choice: role, reasoning, content, tool calls, end.
    fn choice(&mut self, choice: &[u8], tail: &[u8]) -> Option<()> {
        let index = member(choice, "index").unwrap_or(b"0");
        let message = member(choice, "message")?;
        let mut logprobs = member(choice, "logprobs").filter(|logprobs| *logprobs != b"null");
        let mut fields = members(message).ok()?;
        fields.sort_by_key(|field| order(message.get(field.key.clone()).unwrap_or_default()));
        let role = value(message, &fields, "role").unwrap_or(b"\"assistant\"");
        self.delta(index, &[b"\"role\":", role, b",\"content\":\"\""].concat(), None);
        for field in &fields {
            let name = message.get(field.key.clone()).unwrap_or_default();
            let value = message.get(field.value.clone()).unwrap_or_default();
            match (name, value) {
                (b"role", _) | (_, b"null" | b"\"\"") => {}
                (b"tool_calls", calls) => {
                    for (position, call) in items(calls)?.iter().enumerate() {
                        let call = call.strip_prefix(b"{")?;
                        let indexed = format!("\"tool_calls\":[{{\"index\":{position},");
                        self.delta(index, &[indexed.as_bytes(), call, b"]"].concat(), logprobs.take());
                    }
                }
                _ => self.delta(index, &[b"\"", name, b"\":", value].concat(), logprobs.take()),
            }
        }
        let optional = |name: &str, value: Option<&[u8]>| {
            value.map_or_else(Vec::new, |value| {
                [format!(",\"{name}\":").as_bytes(), value].concat()
            })
        };
        self.event(&[
            b"[{\"index\":",
            index,
            b",\"delta\":{}",
            &optional("logprobs", logprobs),
            b",\"finish_reason\":",
            member(choice, "finish_reason").unwrap_or(b"\"stop\""),
            &optional("stop_reason", member(choice, "stop_reason")),
            b"}]",
            tail,
        ]);
        Some(())
    }
}

/// Where a field of a message has its place in a stream.
fn order(name: &[u8]) -> u8 {
    match name {
        _ if name.starts_with(b"reasoning") => 0,
        b"tool_calls" => 2,
        _ => 1,
    }
}

fn head(body: &[u8], top: &[Member]) -> Vec<u8> {
    let mut head = b"{".to_vec();
    for name in ["id", "object", "created", "model"] {
        let value = match name {
            "object" => Some(&b"\"chat.completion.chunk\""[..]),
            _ => value(body, top, name),
        };
        if let Some(value) = value {
            head.extend_from_slice(format!("\"{name}\":").as_bytes());
            head.extend_from_slice(value);
            head.push(b',');
        }
    }
    head.extend_from_slice(b"\"choices\":");
    head
}

fn value<'a>(object: &'a [u8], members: &[Member], name: &str) -> Option<&'a [u8]> {
    let found = members
        .iter()
        .find(|member| object.get(member.key.clone()) == Some(name.as_bytes()))?;
    object.get(found.value.clone())
}

/// The items of an array; `None` for any other value.
fn items(array: &[u8]) -> Option<Vec<&[u8]>> {
    let mut reader = Reader::new(array);
    let mut found = Vec::new();
    let mut more = reader.enter(b'[').ok()?;
    while more {
        let item = reader.skip().ok()?;
        found.push(reader.slice(item));
        more = reader.next(b']').ok()?;
    }
    Some(found)
}

/// See [`Dialect::error_event`](crate::dialect::Dialect::error_event).
pub(super) fn error_event(message: &str) -> Bytes {
    let error = error_object(message, "server_error", "null");
    Bytes::from([b"data: ", error.as_slice(), b"\n\n"].concat())
}

/// See [`Dialect::error_body`](crate::dialect::Dialect::error_body).
pub(super) fn error_body(status: u16, message: &str, kind: &str) -> Bytes {
    Bytes::from(error_object(message, kind, &status.to_string()))
}

fn error_object(message: &str, kind: &str, code: &str) -> Vec<u8> {
    let mut out = b"{\"error\":{\"message\":".to_vec();
    write_string(message, &mut out);
    out.extend_from_slice(b",\"type\":");
    write_string(kind, &mut out);
    out.extend_from_slice(format!(",\"param\":null,\"code\":{code}}}}}").as_bytes());
    out
}

/// See [`Dialect::assistant_reply`](crate::dialect::Dialect::assistant_reply).
pub(super) fn assistant_reply(text: &str, facts: &RequestFacts, created_unix_s: u64) -> Bytes {
    let mut out = b"{\"id\":\"chatcmpl-dressage\",\"object\":\"chat.completion\",\"created\":".to_vec();
    out.extend_from_slice(created_unix_s.to_string().as_bytes());
    out.extend_from_slice(b",\"model\":");
    write_string(&facts.model, &mut out);
    out.extend_from_slice(b",\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":");
    write_string(text, &mut out);
    out.extend_from_slice(b"},\"logprobs\":null,\"finish_reason\":\"stop\"}],");
    out.extend_from_slice(b"\"usage\":{\"prompt_tokens\":0,\"completion_tokens\":0,\"total_tokens\":0}}");
    let stream = if facts.streamed { replay(&out, facts) } else { None };
    stream.unwrap_or_else(|| Bytes::from(out))
}
