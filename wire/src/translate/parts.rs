//! Parts of messages in chat completions.

use serde_json::{Value, json};

/// A part that is a text.
pub(crate) fn text(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

/// A part that is an image, by its URL.
pub(crate) fn image(url: &str) -> Value {
    json!({"type": "image_url", "image_url": {"url": url}})
}

/// The same for an image that comes with the request.
pub(crate) fn image_data(media_type: &str, base64: &str) -> Value {
    image(&format!("data:{media_type};base64,{base64}"))
}

/// The text of a part, where it is one.
pub(crate) fn text_of(part: &Value) -> Option<&str> {
    part.get("text").and_then(Value::as_str)
}

/// The texts of parts, joined; `None` where one of them is no text.
pub(crate) fn joined(parts: &[Value], between: &str) -> Option<String> {
    let texts = parts.iter().map(text_of).collect::<Option<Vec<_>>>()?;
    Some(texts.join(between))
}
