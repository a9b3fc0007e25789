//! The members of a request, each read and checked.

use super::super::template::{Message, MessageToolCall, spaced_json};
use super::Refusal;
use serde_json::Value;

/// A body as a JSON object.
pub(super) fn read_object(body: &[u8]) -> Result<Value, Refusal> {
    let value: Value = serde_json::from_slice(body).map_err(|error| {
        let at = error.column();
        Refusal::malformed(format!(
            "[{{'type': 'json_invalid', 'loc': ('body', {at}), 'msg': 'JSON decode error', 'ctx': {{'error': '{error}'}}}}]"
        ))
    })?;
    if value.is_object() {
        Ok(value)
    } else {
        Err(Refusal::malformed("the body must be a JSON object"))
    }
}

fn wrong_type(name: &str, wanted: &str, value: &Value) -> Refusal {
    Refusal::malformed(format!("{name}: input should be {wanted}, got {value}"))
}

fn present<'a>(body: &'a Value, name: &str) -> Option<&'a Value> {
    body.get(name).filter(|value| !value.is_null())
}

/// A switch; `None` where it is absent or null.
pub(super) fn flag(body: &Value, name: &str) -> Result<Option<bool>, Refusal> {
    let value = present(body, name);
    value
        .map(|value| {
            value
                .as_bool()
                .ok_or_else(|| wrong_type(name, "a valid boolean", value))
        })
        .transpose()
}

/// A whole number; `None` where it is absent or null.
pub(super) fn integer(body: &Value, name: &str) -> Result<Option<i64>, Refusal> {
    let value = present(body, name);
    value
        .map(|value| {
            value
                .as_i64()
                .ok_or_else(|| wrong_type(name, "a valid integer", value))
        })
        .transpose()
}

/// A number; `None` where it is absent or null.
pub(super) fn number(body: &Value, name: &str) -> Result<Option<f64>, Refusal> {
    let value = present(body, name);
    value
        .map(|value| {
            value
                .as_f64()
                .ok_or_else(|| wrong_type(name, "a valid number", value))
        })
        .transpose()
}

/// How many alternatives were asked for, where log-probabilities were.
pub(super) fn read_logprobs(body: &Value) -> Result<Option<usize>, Refusal> {
    let wanted = flag(body, "logprobs")?.unwrap_or(false);
    let top = integer(body, "top_logprobs")?;
    match (wanted, top) {
        (false, Some(top)) if top != 0 => Err(Refusal::bad(
            "top_logprobs",
            "when using `top_logprobs`, `logprobs` must be set to true.",
        )),
        (false, _) => Ok(None),
        (true, top) => match usize::try_from(top.unwrap_or(0)) {
            Ok(top) if top <= 20 => Ok(Some(top)),
            Ok(top) => Err(Refusal::bad(
                "top_logprobs",
                format!("Requested sample logprobs of {top}, which is greater than max allowed: 20"),
            )),
            Err(_) => Err(Refusal::bad(
                "top_logprobs",
                "`top_logprobs` must be a positive value.",
            )),
        },
    }
}

/// The texts that end the turn.
pub(super) fn read_stop(body: &Value) -> Result<Vec<String>, Refusal> {
    let Some(value) = present(body, "stop") else {
        return Ok(Vec::new());
    };
    let texts = match value {
        Value::Array(values) => values.iter().map(Value::as_str).collect::<Option<Vec<_>>>(),
        one => one.as_str().map(|text| vec![text]),
    };
    let texts = texts.ok_or_else(|| wrong_type("stop", "a string or a list of strings", value))?;
    if texts.iter().any(|text| text.is_empty()) {
        return Err(Refusal::bad("stop", "stop cannot contain an empty string."));
    }
    Ok(texts.into_iter().map(str::to_owned).collect())
}

/// The tools offered, as received.
pub(super) fn read_tools(body: &Value) -> Result<Vec<Value>, Refusal> {
    let Some(value) = present(body, "tools") else {
        return Ok(Vec::new());
    };
    let tools = value
        .as_array()
        .ok_or_else(|| wrong_type("tools", "a valid list", value))?;
    if let Some(tool) = tools
        .iter()
        .find(|tool| !tool.pointer("/function/name").is_some_and(Value::is_string))
    {
        return Err(wrong_type("tools", "functions with a name", tool));
    }
    Ok(tools.clone())
}

/// The conversation; there must be one.
pub(super) fn read_messages(body: &Value) -> Result<Vec<Message>, Refusal> {
    let value = present(body, "messages").ok_or_else(|| Refusal::malformed("messages: field required"))?;
    let messages = value
        .as_array()
        .ok_or_else(|| wrong_type("messages", "a valid list", value))?;
    if messages.is_empty() {
        return Err(Refusal::malformed("messages: at least one message is required"));
    }
    messages.iter().map(read_message).collect()
}

fn read_message(message: &Value) -> Result<Message, Refusal> {
    let role = message["role"]
        .as_str()
        .ok_or_else(|| wrong_type("messages.role", "a valid string", message))?;
    let reasoning = ["reasoning_content", "reasoning"]
        .iter()
        .find_map(|name| message[*name].as_str());
    let calls = message["tool_calls"].as_array().map_or(&[][..], Vec::as_slice);
    Ok(Message {
        role: role.into(),
        content: read_content(&message["content"])?,
        reasoning: reasoning.unwrap_or_default().into(),
        tool_calls: calls.iter().map(read_call).collect::<Result<_, _>>()?,
    })
}

fn read_content(content: &Value) -> Result<String, Refusal> {
    match content {
        Value::Null => Ok(String::new()),
        Value::String(text) => Ok(text.clone()),
        Value::Array(parts) => {
            let texts: Option<Vec<&str>> = parts.iter().map(read_part).collect();
            let texts =
                texts.ok_or_else(|| wrong_type("messages.content", "parts of text or images", content))?;
            Ok(texts.join("\n"))
        }
        other => Err(wrong_type(
            "messages.content",
            "a string or a list of parts",
            other,
        )),
    }
}

/// A part's text. An image is what templates of Qwen's vision models write for one; it is not looked at.
fn read_part(part: &Value) -> Option<&str> {
    if part.pointer("/image_url/url").is_some_and(Value::is_string) {
        return Some("<|vision_start|><|image_pad|><|vision_end|>");
    }
    part.get("text")?.as_str()
}

fn read_call(call: &Value) -> Result<MessageToolCall, Refusal> {
    let function = &call["function"];
    let name = function["name"]
        .as_str()
        .ok_or_else(|| wrong_type("tool_calls.function.name", "a string", call))?;
    let arguments = match &function["arguments"] {
        Value::String(text) => text.clone(),
        Value::Null => "{}".into(),
        object => spaced_json(object),
    };
    Ok(MessageToolCall {
        name: name.into(),
        arguments,
    })
}
