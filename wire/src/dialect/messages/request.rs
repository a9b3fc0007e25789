use super::document::signature;
use super::tools;
use crate::capture::RequestError;
use crate::scan::decode_string;
use crate::translate::raw::arguments_body;
use crate::translate::{ChatRequest, Conversation, Fields, Json, Lost, Part, Raw, Said};
use std::borrow::Cow;

/// What can stand for what is said.
const TEXT_OR_BLOCKS: &str = "a string or a list of blocks";

/// How the first system block of Claude Code begins that says which version of it asks. Anthropic's service takes it out
/// before the model sees it; some versions write something else into it with each request, which would make every prompt
/// a new one (claude-code#68900).
const BILLING: &str = "x-anthropic-billing-header";

/// From a request to one in chat completions.
pub(super) fn translate(mut fields: Fields<'_>, lost: &mut Lost) -> Result<ChatRequest, RequestError> {
    let mut chat = ChatRequest::default();
    let mut conversation = Conversation::default();
    chat.set("model", fields.take("model"));
    conversation.system(system(&mut fields, lost)?);
    for message in fields.objects("messages")? {
        read_message(message?, &mut conversation, lost)?;
    }
    if conversation.ends_with_assistant() {
        // Chat completions begin a new turn there.
        lost.add("messages.prefill");
    }
    chat.set("messages", Some(conversation.into_messages("messages")?));
    tools::translate(&mut fields, &mut chat, lost)?;
    for (name, to) in [
        ("max_tokens", "max_tokens"),
        ("temperature", "temperature"),
        ("top_p", "top_p"),
        ("top_k", "top_k"),
        ("stop_sequences", "stop"),
    ] {
        chat.set(to, fields.take(name).filter(|value| !value.is_empty()));
    }
    if fields.flag("stream")? {
        chat.set_stream();
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
pub(super) fn steady_system(fields: &Fields<'_>) -> String {
    let Some(system) = fields.peek("system") else {
        return String::new();
    };
    if let Some(text) = system.text() {
        return text.into_owned();
    }
    let blocks = system.items().into_iter().flatten();
    let mut steady = String::new();
    for text in blocks.filter_map(|block| text_member(block, "text")) {
        if !text.starts_with(BILLING) {
            steady.push_str(&text);
        }
    }
    steady
}

fn system<'a>(fields: &mut Fields<'a>, lost: &mut Lost) -> Result<Vec<Part<'a>>, RequestError> {
    let mut said = Vec::new();
    match fields.said("system", TEXT_OR_BLOCKS)? {
        Said::Nothing => {}
        Said::Text(body) => said.push(Part::text(body)),
        Said::Parts(blocks) => {
            for block in blocks {
                let mut block = block?;
                let body = block.needed_body("text")?;
                block.take("type");
                block.end(lost);
                if decode_string(body).starts_with(BILLING) {
                    lost.add(&format!("system.{BILLING}"));
                } else {
                    said.push(Part::text(body));
                }
            }
        }
    }
    Ok(said)
}

fn read_message<'a>(
    mut message: Fields<'a>,
    conversation: &mut Conversation<'a>,
    lost: &mut Lost,
) -> Result<(), RequestError> {
    let role = message.needed_text("role")?;
    let said = message.said("content", TEXT_OR_BLOCKS)?;
    match (role.as_ref(), said) {
        ("user", said) => read_user(said, conversation, lost)?,
        ("assistant", said) => {
            conversation.assistant();
            match said {
                Said::Nothing => {}
                Said::Text(body) => conversation.says(Part::text(body)),
                Said::Parts(blocks) => {
                    for block in blocks {
                        read_assistant_block(block?, conversation, lost)?;
                    }
                }
            }
        }
        ("system", said) => conversation.system(read_said(said, lost)?),
        _ => return Err(message.wrong("role", "`user`, `assistant` or `system`")),
    }
    message.end(lost);
    Ok(())
}

/// A text or blocks, as parts of chat completions.
fn read_said<'a>(said: Said<'a>, lost: &mut Lost) -> Result<Vec<Part<'a>>, RequestError> {
    match said {
        Said::Nothing => Ok(Vec::new()),
        Said::Text(body) => Ok(vec![Part::text(body)]),
        Said::Parts(blocks) => {
            let mut said = Vec::new();
            for block in blocks {
                said.extend(read_content(block?, lost)?);
            }
            Ok(said)
        }
    }
}

/// Results of tools are messages of their own in chat completions; what is said between them keeps its place.
fn read_user<'a>(
    content: Said<'a>,
    conversation: &mut Conversation<'a>,
    lost: &mut Lost,
) -> Result<(), RequestError> {
    let blocks = match content {
        Said::Parts(blocks) => blocks,
        other => {
            conversation.user(read_said(other, lost)?);
            return Ok(());
        }
    };
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
            block.lose("tool_result.is_error", lost);
        }
        let result = read_said(block.said("content", TEXT_OR_BLOCKS)?, lost)?;
        block.take("type");
        block.end(lost);
        conversation.result(id, result);
    }
    if !said.is_empty() || !has_results {
        conversation.user(said);
    }
    Ok(())
}

/// A block that says something, as a part of chat completions.
fn read_content<'a>(mut block: Fields<'a>, lost: &mut Lost) -> Result<Option<Part<'a>>, RequestError> {
    let kind = block.needed_text("type")?;
    let part = match kind.as_ref() {
        "text" => Part::text(block.needed_body("text")?),
        "image" => {
            let Some(mut source) = block.object("source")? else {
                return Err(block.wrong("source", "an object"));
            };
            let part = match source.needed_text("type")?.as_ref() {
                "base64" => Part::image_data(source.needed_body("media_type")?, source.needed_body("data")?),
                "url" => Part::image(source.needed_body("url")?, None),
                other => {
                    source.lose(other, lost);
                    return Ok(None);
                }
            };
            source.end(lost);
            part
        }
        "document" if is_plain_text(&block) => {
            let Some(mut source) = block.object("source")? else {
                return Err(block.wrong("source", "an object"));
            };
            Part::text(source.needed_body("data")?)
        }
        other => {
            block.lose(other, lost);
            return Ok(None);
        }
    };
    block.end(lost);
    Ok(Some(part))
}

/// Whether a document is a text as it is.
fn is_plain_text(block: &Fields<'_>) -> bool {
    let source = block.peek("source");
    source
        .and_then(|source| text_member(source, "type"))
        .is_some_and(|kind| kind == "text")
}

/// A member of an object that is a string.
fn text_member<'a>(object: Raw<'a>, name: &str) -> Option<Cow<'a, str>> {
    let (_, value) = object.members()?.find(|(known, _)| known == name)?;
    value.text()
}

fn read_assistant_block<'a>(
    mut block: Fields<'a>,
    conversation: &mut Conversation<'a>,
    lost: &mut Lost,
) -> Result<(), RequestError> {
    let kind = block.needed_text("type")?;
    match kind.as_ref() {
        "text" => conversation.says(Part::text(block.needed_body("text")?)),
        "thinking" => {
            let body = block.needed_body("thinking")?;
            // One of ours says no more than the text does.
            if block
                .text("signature")?
                .is_some_and(|given| !given.is_empty() && given != signature(&decode_string(body)))
            {
                block.lose("thinking.signature", lost);
            }
            conversation.reasons(body.into());
        }
        "tool_use" => {
            let (id, name) = (block.needed_text("id")?, block.needed_text("name")?);
            let input = block.take("input").unwrap_or(Raw::new(b"{}"));
            conversation.calls(&id, &name, &arguments_body(input));
            let caller = block.peek("caller");
            if caller.and_then(|caller| text_member(caller, "type")).as_deref() == Some("direct") {
                block.take("caller");
            }
        }
        other => {
            block.lose(other, lost);
            return Ok(());
        }
    }
    block.end(lost);
    Ok(())
}

/// Thinking is what a model does or does not.
fn set_thinking(
    fields: &mut Fields<'_>,
    chat: &mut ChatRequest,
    lost: &mut Lost,
) -> Result<(), RequestError> {
    let Some(mut thinking) = fields.object("thinking")? else {
        return Ok(());
    };
    match thinking.text("type")?.as_deref() {
        Some("disabled") => chat.set_no_thinking(),
        Some("enabled" | "adaptive") | None => {}
        Some(other) => thinking.lose(other, lost),
    }
    thinking.end(lost);
    Ok(())
}

fn set_output(fields: &mut Fields<'_>, chat: &mut ChatRequest, lost: &mut Lost) -> Result<(), RequestError> {
    let mut format = fields.object("output_format")?;
    if let Some(mut output) = fields.object("output_config")? {
        let effort = output.take("effort");
        match effort.and_then(Raw::text).as_deref() {
            Some("low" | "medium" | "high") => chat.set("reasoning_effort", effort),
            None if effort.is_some() => return Err(output.wrong("effort", "a string")),
            Some(_) => output.lose("effort", lost),
            None => {}
        }
        format = output.object("format")?.or(format);
        output.end(lost);
    }
    let Some(mut format) = format else { return Ok(()) };
    match format.needed_text("type")?.as_ref() {
        "json_schema" => {
            let schema = format
                .take("schema")
                .ok_or_else(|| format.wrong("schema", "an object"))?;
            let named =
                Json::from("{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"output\",\"schema\":")
                    .raw(schema)
                    .raw(",\"strict\":true}}");
            chat.set("response_format", Some(named.into_bytes()));
        }
        other => format.lose(other, lost),
    }
    format.end(lost);
    Ok(())
}
