use super::span::{Attributes, SCOPE, STATUS_ERROR, Span, Value, nanoseconds};

/// An `ExportTraceServiceRequest` in the binary form of protocol buffers. The numbers are those of
/// `opentelemetry/proto/{collector/trace,trace,common,resource}/v1`, which are stable since OTLP 1.0.
pub fn request(resource: &[(String, String)], spans: &[Span]) -> Vec<u8> {
    written(env!("CARGO_PKG_VERSION"), resource, spans)
}

fn written(version: &str, resource: &[(String, String)], spans: &[Span]) -> Vec<u8> {
    let mut request = Message::default();
    request.message(1, |resource_spans| {
        resource_spans.message(1, |message| {
            for (name, text) in resource {
                message.message(1, |pair| {
                    pair.text(1, name);
                    pair.message(2, |any| any.text(1, text));
                });
            }
        });
        resource_spans.message(2, |scope_spans| {
            scope_spans.message(1, |scope| {
                scope.text(1, SCOPE);
                scope.text(2, version);
            });
            for one in spans {
                scope_spans.message(2, |message| span(message, one));
            }
        });
    });
    request.0
}

fn span(message: &mut Message, span: &Span) {
    message.bytes(1, &span.trace.0);
    message.bytes(2, &span.id.0);
    if let Some(parent) = span.parent {
        message.bytes(4, &parent.0);
    }
    message.text(5, &span.name);
    message.number(6, span.kind.number().into());
    message.fixed64(7, nanoseconds(span.start_unix_ms));
    message.fixed64(8, nanoseconds(span.end_unix_ms));
    attributes(message, 9, &span.attributes);
    if span.failed {
        message.message(15, |status| status.number(3, STATUS_ERROR.into()));
    }
}

fn attributes(message: &mut Message, field: u32, attributes: &Attributes) {
    for (name, value) in &attributes.0 {
        message.message(field, |pair| {
            pair.text(1, name);
            pair.message(2, |any| put(any, value));
        });
    }
}

fn put(any: &mut Message, value: &Value) {
    match value {
        Value::Text(text) => any.text(1, text),
        // Two's complement, as protocol buffers write a negative int64.
        Value::Whole(number) => any.number(3, number.cast_unsigned()),
        Value::Real(number) => any.fixed64(4, number.to_bits()),
        Value::Texts(texts) => any.message(5, |array| {
            for text in texts {
                array.message(1, |any| any.text(1, text));
            }
        }),
    }
}

/// A message that is being written.
#[derive(Default)]
struct Message(Vec<u8>);

/// Types of wire format.
const VARINT: u32 = 0;
const FIXED64: u32 = 1;
const LENGTH: u32 = 2;

impl Message {
    fn varint(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.0.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.0.push(number as u8);
    }

    fn tag(&mut self, field: u32, wire_type: u32) {
        self.varint(u64::from(field << 3 | wire_type));
    }

    fn number(&mut self, field: u32, number: u64) {
        self.tag(field, VARINT);
        self.varint(number);
    }

    fn fixed64(&mut self, field: u32, bits: u64) {
        self.tag(field, FIXED64);
        self.0.extend_from_slice(&bits.to_le_bytes());
    }

    fn bytes(&mut self, field: u32, bytes: &[u8]) {
        self.tag(field, LENGTH);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    fn text(&mut self, field: u32, text: &str) {
        self.bytes(field, text.as_bytes());
    }

    fn message(&mut self, field: u32, write: impl FnOnce(&mut Self)) {
        let mut inner = Self::default();
        write(&mut inner);
        self.bytes(field, &inner.0);
    }
}

#[cfg(test)]
mod tests;
