use super::opaque;
use super::tools::Tools;
use crate::capture::RequestError;
use crate::translate::json::spaced;
use crate::translate::{Conversation, Fields, Lost, parts};
use serde_json::{Value, json};

/// Reads items of a conversation.
pub(super) fn read(
    items: Vec<Value>,
    place: &str,
    tools: &Tools,
    conversation: &mut Conversation,
    lost: &mut Lost,
) -> Result<(), RequestError> {
    for (position, item) in items.into_iter().enumerate() {
        let mut item = Fields::of(format!("{place}[{position}]"), item)?;
        // The dialect's own ids and states of items say nothing to a model.
        item.take("id");
        item.take("status");
        let kind = item.text("type")?;
        match kind.as_deref() {
            None | Some("message") => message(&mut item, conversation, lost)?,
            Some("reasoning") => reasoning(&mut item, conversation, lost)?,
            Some("function_call") => {
                let (id, name) = (item.needed_text("call_id")?, item.needed_text("name")?);
                let namespace = item.text("namespace")?;
                let arguments = match item.take("arguments") {
                    None => String::new(),
                    Some(Value::String(text)) => text,
                    Some(value) => spaced(&value),
                };
                conversation.calls(&id, &tools.function_name(namespace.as_deref(), &name), &arguments);
            }
            Some("custom_tool_call") => {
                let (id, name) = (item.needed_text("call_id")?, item.needed_text("name")?);
                let arguments = spaced(&json!({"input": item.needed_text("input")?}));
                conversation.calls(&id, &name, &arguments);
            }
            Some("function_call_output" | "custom_tool_call_output") => {
                item.take("name");
                let id = item.needed_text("call_id")?;
                let said = content(&mut item, "output", lost)?;
                conversation.result(id, said);
            }
            Some("item_reference") => {
                return Err(RequestError::Stateful {
                    member: "item_reference",
                    instead: "send the item itself",
                });
            }
            Some(other) => {
                item.lost_as(other, lost);
                continue;
            }
        }
        item.end(lost);
    }
    Ok(())
}

fn message(item: &mut Fields, conversation: &mut Conversation, lost: &mut Lost) -> Result<(), RequestError> {
    let role = item.needed_text("role")?;
    // Whether an answer is a comment on the way or the last word.
    item.take("phase");
    let said = content(item, "content", lost)?;
    match role.as_str() {
        "user" => conversation.user(said),
        // Chat templates know no developer.
        "system" | "developer" => conversation.system(said),
        "assistant" => said.into_iter().for_each(|part| conversation.says(part)),
        _ => return Err(item.wrong("role", "`user`, `assistant`, `system` or `developer`")),
    }
    Ok(())
}

/// What was thought: where the agent has it whole, else its summary.
fn reasoning(
    item: &mut Fields,
    conversation: &mut Conversation,
    lost: &mut Lost,
) -> Result<(), RequestError> {
    let mut texts = |name: &str| -> Result<String, RequestError> {
        let parts = item.objects(name)?;
        let texts = parts.into_iter().map(|mut part| part.needed_text("text"));
        Ok(texts.collect::<Result<Vec<_>, _>>()?.join("\n"))
    };
    let (content, summary) = (texts("content")?, texts("summary")?);
    let whole = match item.text("encrypted_content")? {
        None => None,
        Some(given) => {
            let read = opaque::read(&given);
            if read.is_none() {
                lost.add(&item.place_of("encrypted_content"));
            }
            read
        }
    };
    let text = whole.unwrap_or(if content.is_empty() { summary } else { content });
    if !text.is_empty() {
        conversation.reasons(&text);
    }
    Ok(())
}

/// A text, or parts, as parts of chat completions.
fn content(item: &mut Fields, name: &str, lost: &mut Lost) -> Result<Vec<Value>, RequestError> {
    match item.peek(name) {
        None => Ok(Vec::new()),
        Some(Value::String(_)) => Ok(item.text(name)?.iter().map(|text| parts::text(text)).collect()),
        Some(Value::Array(_)) => {
            let mut said = Vec::new();
            for part in item.objects(name)? {
                said.extend(read_part(part, lost)?);
            }
            Ok(said)
        }
        Some(_) => Err(item.wrong(name, "a string or a list of parts")),
    }
}

fn read_part(mut part: Fields, lost: &mut Lost) -> Result<Option<Value>, RequestError> {
    let kind = part.needed_text("type")?;
    let read = match kind.as_str() {
        "input_text" | "output_text" | "text" => {
            for name in ["annotations", "logprobs"] {
                if part
                    .peek(name)
                    .and_then(Value::as_array)
                    .is_some_and(Vec::is_empty)
                {
                    part.take(name);
                }
            }
            parts::text(&part.needed_text("text")?)
        }
        "refusal" => parts::text(&part.needed_text("refusal")?),
        "input_image" if part.has("image_url") => {
            let url = part.needed_text("image_url")?;
            match part.take("detail") {
                None => parts::image(&url),
                Some(detail) => json!({"type": "image_url", "image_url": {"url": url, "detail": detail}}),
            }
        }
        other => {
            part.lost_as(other, lost);
            return Ok(None);
        }
    };
    part.end(lost);
    Ok(Some(read))
}
