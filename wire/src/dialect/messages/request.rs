use super::document::signature;
use super::tools;
use crate::capture::RequestError;
use crate::translate::json::arguments_text;
use crate::translate::{ChatRequest, Conversation, Fields, Lost, parts};
use serde_json::{Map, Value, json};

/// How the first system block of Claude Code begins that says which version of it asks. Anthropic's service takes it out
/// before the model sees it; some versions write something else into it with each request, which would make every prompt
/// a new one (claude-code#68900).
const BILLING: &str = "x-anthropic-billing-header";

/// From a request to one in chat completions.
pub(super) fn translate(mut fields: Fields, lost: &mut Lost) -> Result<ChatRequest, RequestError> {
    let mut chat = ChatRequest::default();
    let mut conversation = Conversation::default();
    chat.set("model", fields.take("model"));
    if let Some(said) = system(&mut fields, lost)? {
        conversation.system(said);
    }
    for message in fields.objects("messages")? {
        read_message(message, &mut conversation, lost)?;
    }
    if conversation.ends_with_assistant() {
        // Chat completions begin a new turn there.
        lost.add("messages.prefill");
    }
    chat.set("messages", Some(conversation.into_messages()));
    tools::translate(&mut fields, &mut chat, lost)?;
    for (name, to) in [
        ("max_tokens", "max_tokens"),
        ("temperature", "temperature"),
        ("top_p", "top_p"),
        ("top_k", "top_k"),
        ("stop_sequences", "stop"),
    ] {
        let value = fields.take(name);
        chat.set(
            to,
            value.filter(|value| value.as_array().is_none_or(|items| !items.is_empty())),
        );
    }
    if fields.flag("stream")? {
        chat.set("stream", Some(true));
        chat.set("stream_options", Some(json!({"include_usage": true})));
    }
    if let Some(mut metadata) = fields.object("metadata")? {
        chat.set("user", metadata.take("user_id"));
        metadata.end(lost);
    }
    set_thinking(&mut fields, &mut chat, lost)?;
    set_output(&mut fields, &mut chat, lost)?;
    fields.end(lost);
    Ok(chat)
}

/// The system prompt without what changes in it from request to request, as part of the key of retries.
pub(super) fn steady_system(body: &Map<String, Value>) -> String {
    match body.get("system") {
        Some(Value::Array(blocks)) => {
            let steady = blocks.iter().filter_map(parts::text_of);
            steady.filter(|text| !text.starts_with(BILLING)).collect()
        }
        Some(system) => system.to_string(),
        None => String::new(),
    }
}

fn system(fields: &mut Fields, lost: &mut Lost) -> Result<Option<Vec<Value>>, RequestError> {
    let said = match fields.take("system") {
        None => return Ok(None),
        Some(Value::String(text)) => vec![parts::text(&text)],
        Some(Value::Array(blocks)) => {
            let mut said = Vec::with_capacity(blocks.len());
            for (position, block) in blocks.into_iter().enumerate() {
                let mut block = Fields::of(format!("system[{position}]"), block)?;
                let text = block.needed_text("text")?;
                block.take("type");
                block.end(lost);
                if text.starts_with(BILLING) {
                    lost.add(&format!("system.{BILLING}"));
                } else {
                    said.push(parts::text(&text));
                }
            }
            said
        }
        Some(_) => return Err(fields.wrong("system", "a string or a list of blocks")),
    };
    Ok(Some(said))
}

fn read_message(
    mut message: Fields,
    conversation: &mut Conversation,
    lost: &mut Lost,
) -> Result<(), RequestError> {
    let role = message.needed_text("role")?;
    let place = message.place_of("content");
    let blocks = match message.take("content") {
        None => Vec::new(),
        Some(Value::String(text)) => vec![json!({"type": "text", "text": text})],
        Some(Value::Array(blocks)) => blocks,
        Some(_) => return Err(message.wrong("content", "a string or a list of blocks")),
    };
    let blocks = blocks
        .into_iter()
        .enumerate()
        .map(|(position, block)| Fields::of(format!("{place}[{position}]"), block));
    match role.as_str() {
        "user" => read_user(blocks, conversation, lost)?,
        "assistant" => {
            conversation.assistant();
            for block in blocks {
                read_assistant_block(block?, conversation, lost)?;
            }
        }
        "system" => {
            let mut said = Vec::new();
            for block in blocks {
                said.extend(read_content(block?, lost)?);
            }
            conversation.system(said);
        }
        _ => return Err(message.wrong("role", "`user`, `assistant` or `system`")),
    }
    message.end(lost);
    Ok(())
}

/// Results of tools are messages of their own in chat completions; what is said between them keeps its place.
fn read_user(
    blocks: impl Iterator<Item = Result<Fields, RequestError>>,
    conversation: &mut Conversation,
    lost: &mut Lost,
) -> Result<(), RequestError> {
    let mut said = Vec::new();
    let mut has_results = false;
    for block in blocks {
        let mut block = block?;
        if block.peek_text("type")? != "tool_result" {
            said.extend(read_content(block, lost)?);
            continue;
        }
        has_results = true;
        if !said.is_empty() {
            conversation.user(std::mem::take(&mut said));
        }
        let id = block.needed_text("tool_use_id")?;
        if block.flag("is_error")? {
            lost.add(&block.place_of("tool_result.is_error"));
        }
        let place = block.place_of("content");
        let mut result = Vec::new();
        match block.take("content") {
            None => {}
            Some(Value::String(text)) => result.push(parts::text(&text)),
            Some(Value::Array(inner)) => {
                for (position, inner) in inner.into_iter().enumerate() {
                    result.extend(read_content(
                        Fields::of(format!("{place}[{position}]"), inner)?,
                        lost,
                    )?);
                }
            }
            Some(_) => return Err(block.wrong("content", "a string or a list of blocks")),
        }
        block.take("type");
        block.end(lost);
        conversation.result(id, result);
    }
    if !said.is_empty() || !has_results {
        conversation.user(said);
    }
    Ok(())
}

/// A block that says something, as parts of chat completions.
fn read_content(mut block: Fields, lost: &mut Lost) -> Result<Option<Value>, RequestError> {
    let kind = block.needed_text("type")?;
    let part = match kind.as_str() {
        "text" => parts::text(&block.needed_text("text")?),
        "image" => {
            let Some(mut source) = block.object("source")? else {
                return Err(block.wrong("source", "an object"));
            };
            let part = match source.needed_text("type")?.as_str() {
                "base64" => {
                    parts::image_data(&source.needed_text("media_type")?, &source.needed_text("data")?)
                }
                "url" => parts::image(&source.needed_text("url")?),
                other => {
                    lost.add(&source.place_of(other));
                    return Ok(None);
                }
            };
            source.end(lost);
            part
        }
        "document" if is_plain_text(&block) => {
            let mut source = block.object("source")?.unwrap_or(Fields::of_request(Map::new()));
            let text = source.needed_text("data")?;
            parts::text(&text)
        }
        other => {
            block.lost_as(other, lost);
            return Ok(None);
        }
    };
    block.end(lost);
    Ok(Some(part))
}

/// Whether a document is a text as it is.
fn is_plain_text(block: &Fields) -> bool {
    block
        .peek("source")
        .is_some_and(|source| source.get("type").and_then(Value::as_str) == Some("text"))
}

fn read_assistant_block(
    mut block: Fields,
    conversation: &mut Conversation,
    lost: &mut Lost,
) -> Result<(), RequestError> {
    let kind = block.needed_text("type")?;
    match kind.as_str() {
        "text" => conversation.says(parts::text(&block.needed_text("text")?)),
        "thinking" => {
            let text = block.needed_text("thinking")?;
            // One of ours says no more than the text does.
            if block
                .text("signature")?
                .is_some_and(|given| !given.is_empty() && given != signature(&text))
            {
                lost.add(&block.place_of("thinking.signature"));
            }
            conversation.reasons(&text);
        }
        "tool_use" => {
            let (id, name) = (block.needed_text("id")?, block.needed_text("name")?);
            let input = block.take("input").unwrap_or_else(|| json!({}));
            conversation.calls(&id, &name, &arguments_text(input));
            if block
                .peek("caller")
                .and_then(|caller| caller.get("type")?.as_str())
                == Some("direct")
            {
                block.take("caller");
            }
        }
        other => {
            block.lost_as(other, lost);
            return Ok(());
        }
    }
    block.end(lost);
    Ok(())
}

/// Thinking is what a model does or does not; templates of Qwen and others have a switch.
fn set_thinking(fields: &mut Fields, chat: &mut ChatRequest, lost: &mut Lost) -> Result<(), RequestError> {
    let Some(mut thinking) = fields.object("thinking")? else {
        return Ok(());
    };
    match thinking.text("type")?.as_deref() {
        Some("disabled") => chat.set("chat_template_kwargs", Some(json!({"enable_thinking": false}))),
        Some("enabled" | "adaptive") | None => {}
        Some(other) => lost.add(&thinking.place_of(other)),
    }
    thinking.end(lost);
    Ok(())
}

fn set_output(fields: &mut Fields, chat: &mut ChatRequest, lost: &mut Lost) -> Result<(), RequestError> {
    let mut format = fields.object("output_format")?;
    if let Some(mut output) = fields.object("output_config")? {
        match output.text("effort")? {
            Some(effort) if matches!(effort.as_str(), "low" | "medium" | "high") => {
                chat.set("reasoning_effort", Some(effort));
            }
            Some(_) => lost.add(&output.place_of("effort")),
            None => {}
        }
        format = output.object("format")?.or(format);
        output.end(lost);
    }
    let Some(mut format) = format else { return Ok(()) };
    match format.needed_text("type")?.as_str() {
        "json_schema" => {
            let schema = format
                .take("schema")
                .ok_or_else(|| format.wrong("schema", "an object"))?;
            let named = json!({"name": "output", "schema": schema, "strict": true});
            chat.set(
                "response_format",
                Some(json!({"type": "json_schema", "json_schema": named})),
            );
        }
        other => lost.add(&format.place_of(other)),
    }
    format.end(lost);
    Ok(())
}
