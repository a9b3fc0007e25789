use super::opaque;
use super::tools::Tools;
use crate::capture::RequestError;
use crate::scan::write_string;
use crate::translate::{Conversation, Fields, Lost, Part, Raw, Said};
use std::borrow::Cow;

/// What can stand for what is said.
const TEXT_OR_PARTS: &str = "a string or a list of parts";

/// Reads an item of a conversation.
pub(super) fn read<'a>(
    mut item: Fields<'a>,
    tools: &Tools<'_>,
    conversation: &mut Conversation<'a>,
    lost: &mut Lost,
) -> Result<(), RequestError> {
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
                None => Cow::default(),
                Some(value) => match value.body() {
                    Some(body) => Cow::Borrowed(body),
                    None => spaced(value, b"", b""),
                },
            };
            conversation.calls(&id, tools.function_name(namespace.as_deref(), &name), &arguments);
        }
        Some("custom_tool_call") => {
            let (id, name) = (item.needed_text("call_id")?, item.needed_text("name")?);
            let Some(input) = item.take("input").filter(|input| input.body().is_some()) else {
                return Err(item.wrong("input", "a string"));
            };
            let arguments = spaced(input, b"{\\\"input\\\": ", b"}");
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
            item.lose(other, lost);
            return Ok(());
        }
    }
    item.end(lost);
    Ok(())
}

/// A value as models write it, between two texts.
fn spaced<'a>(value: Raw<'_>, before: &[u8], after: &[u8]) -> Cow<'a, [u8]> {
    let mut body = before.to_vec();
    value.write_spaced(&mut body);
    body.extend_from_slice(after);
    body.into()
}

fn message<'a>(
    item: &mut Fields<'a>,
    conversation: &mut Conversation<'a>,
    lost: &mut Lost,
) -> Result<(), RequestError> {
    let role = item.needed_text("role")?;
    // Whether an answer is a comment on the way or the last word.
    item.take("phase");
    let said = content(item, "content", lost)?;
    match role.as_ref() {
        "user" => conversation.user(said),
        // Chat templates know no developer.
        "system" | "developer" => conversation.system(said),
        "assistant" => said.into_iter().for_each(|part| conversation.says(part)),
        _ => return Err(item.wrong("role", "`user`, `assistant`, `system` or `developer`")),
    }
    Ok(())
}

/// What was thought: where the agent has it whole, else its summary.
fn reasoning<'a>(
    item: &mut Fields<'a>,
    conversation: &mut Conversation<'a>,
    lost: &mut Lost,
) -> Result<(), RequestError> {
    let mut texts = |name: &'static str| -> Result<Vec<u8>, RequestError> {
        let mut joined = Vec::new();
        for (position, part) in item.objects(name)?.enumerate() {
            if position > 0 {
                joined.extend_from_slice(b"\\n");
            }
            joined.extend_from_slice(part?.needed_body("text")?);
        }
        Ok(joined)
    };
    let (content, summary) = (texts("content")?, texts("summary")?);
    let whole = match item.text("encrypted_content")? {
        None => None,
        Some(given) => {
            let read = opaque::read(&given);
            if read.is_none() {
                item.lose("encrypted_content", lost);
            }
            read
        }
    };
    let body = match whole {
        Some(text) => {
            let mut quoted = Vec::with_capacity(text.len() + 2);
            write_string(&text, &mut quoted);
            crate::scan::string_body(&quoted).unwrap_or_default().to_vec()
        }
        None if content.is_empty() => summary,
        None => content,
    };
    if !body.is_empty() {
        conversation.reasons(body.into());
    }
    Ok(())
}

/// A text, or parts, as parts of chat completions.
fn content<'a>(
    item: &mut Fields<'a>,
    name: &'static str,
    lost: &mut Lost,
) -> Result<Vec<Part<'a>>, RequestError> {
    match item.said(name, TEXT_OR_PARTS)? {
        Said::Nothing => Ok(Vec::new()),
        Said::Text(body) => Ok(vec![Part::text(body)]),
        Said::Parts(parts) => {
            let mut said = Vec::new();
            for part in parts {
                said.extend(read_part(part?, lost)?);
            }
            Ok(said)
        }
    }
}

fn read_part<'a>(mut part: Fields<'a>, lost: &mut Lost) -> Result<Option<Part<'a>>, RequestError> {
    let kind = part.needed_text("type")?;
    let read = match kind.as_ref() {
        "input_text" | "output_text" | "text" => {
            for name in ["annotations", "logprobs"] {
                if part.peek(name).is_some_and(Raw::is_empty) {
                    part.take(name);
                }
            }
            Part::text(part.needed_body("text")?)
        }
        "refusal" => Part::text(part.needed_body("refusal")?),
        "input_image" if part.has("image_url") => {
            let url = part.needed_body("image_url")?;
            let detail = part.take("detail");
            Part::image(url, detail.as_ref().map(Raw::as_ref))
        }
        other => {
            part.lose(other, lost);
            return Ok(None);
        }
    };
    part.end(lost);
    Ok(Some(read))
}
