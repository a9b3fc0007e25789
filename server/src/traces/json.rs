use super::span::{Attributes, SCOPE, STATUS_ERROR, Span, Value, nanoseconds};
use serde_json::{Value as Json, json};

/// An `ExportTraceServiceRequest` in the JSON of OTLP 1.0: ids in hexadecimal, 64-bit numbers as text.
pub fn request(resource: &[(String, String)], spans: &[Span]) -> Vec<u8> {
    let resource: Vec<Json> = resource
        .iter()
        .map(|(name, text)| json!({"key": name, "value": {"stringValue": text}}))
        .collect();
    let spans: Vec<Json> = spans.iter().map(span).collect();
    let request = json!({"resourceSpans": [{
        "resource": {"attributes": resource},
        "scopeSpans": [{"scope": {"name": SCOPE, "version": env!("CARGO_PKG_VERSION")}, "spans": spans}],
    }]});
    request.to_string().into_bytes()
}

fn span(span: &Span) -> Json {
    let mut json = json!({
        "traceId": hex(&span.trace.0),
        "spanId": hex(&span.id.0),
        "name": span.name,
        "kind": span.kind.number(),
        "startTimeUnixNano": nanoseconds(span.start_unix_ms).to_string(),
        "endTimeUnixNano": nanoseconds(span.end_unix_ms).to_string(),
        "attributes": attributes(&span.attributes),
        "status": if span.failed { json!({"code": STATUS_ERROR}) } else { json!({}) },
    });
    if let (Some(parent), Json::Object(members)) = (span.parent, &mut json) {
        members.insert("parentSpanId".into(), hex(&parent.0).into());
    }
    json
}

fn attributes(attributes: &Attributes) -> Vec<Json> {
    let pairs = attributes.0.iter();
    pairs
        .map(|(name, value)| json!({"key": name, "value": any(value)}))
        .collect()
}

fn any(value: &Value) -> Json {
    match value {
        Value::Text(text) => json!({"stringValue": text}),
        Value::Whole(number) => json!({"intValue": number.to_string()}),
        Value::Real(number) => json!({"doubleValue": number}),
        Value::Texts(texts) => {
            let values: Vec<Json> = texts.iter().map(|text| json!({"stringValue": text})).collect();
            json!({"arrayValue": {"values": values}})
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
