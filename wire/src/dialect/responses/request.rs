use super::input;
use super::tools::{self, Tools};
use crate::capture::RequestError;
use crate::translate::{ChatRequest, Conversation, Fields, Json, Lost, Objects, Part, Raw, Said};

/// What can stand for the conversation.
const TEXT_OR_ITEMS: &str = "a string or a list of items";

/// Members that the response repeats, with what it says where the request did not.
const ECHOED: [(&str, &str); 15] = [
    ("instructions", "null"),
    ("max_output_tokens", "null"),
    ("max_tool_calls", "null"),
    ("metadata", "{}"),
    ("parallel_tool_calls", "true"),
    ("prompt_cache_key", "null"),
    ("reasoning", "{\"effort\":null,\"summary\":null}"),
    ("safety_identifier", "null"),
    ("service_tier", "\"default\""),
    ("temperature", "null"),
    ("text", "{\"format\":{\"type\":\"text\"}}"),
    ("tool_choice", "\"auto\""),
    ("tools", "[]"),
    ("top_p", "null"),
    ("truncation", "\"disabled\""),
];

/// From a request to one in chat completions.
pub(super) fn translate(mut fields: Fields<'_>, lost: &mut Lost) -> Result<ChatRequest, RequestError> {
    refuse_state(&mut fields)?;
    let mut chat = ChatRequest::default();
    chat.way_back.echo = ECHOED
        .iter()
        .map(|(name, otherwise)| {
            let said = fields
                .peek(name)
                .map(|said| String::from_utf8_lossy(&said.in_one_line()).into_owned());
            (
                (*name).to_owned(),
                said.unwrap_or_else(|| (*otherwise).to_owned()),
            )
        })
        .collect();
    let tools = tools::read(&mut fields, lost)?;
    let mut conversation = Conversation::default();
    match fields.said("instructions", TEXT_OR_ITEMS)? {
        Said::Nothing => {}
        Said::Text(body) => conversation.system(vec![Part::text(body)]),
        Said::Parts(items) => read_items(items, &tools, &mut conversation, lost)?,
    }
    match fields.said("input", TEXT_OR_ITEMS)? {
        Said::Nothing => {}
        Said::Text(body) => conversation.user(vec![Part::text(body)]),
        Said::Parts(items) => read_items(items, &tools, &mut conversation, lost)?,
    }
    chat.set("model", fields.take("model"));
    chat.set("messages", Some(conversation.into_messages("input")?));
    tools.offer(&mut fields, &mut chat, lost)?;
    for (name, to) in [
        ("max_output_tokens", "max_tokens"),
        ("temperature", "temperature"),
        ("top_p", "top_p"),
        ("user", "user"),
        ("service_tier", "service_tier"),
        ("prompt_cache_key", "prompt_cache_key"),
        ("safety_identifier", "safety_identifier"),
    ] {
        chat.set(to, fields.take(name));
    }
    if fields.flag("stream")? {
        chat.set_stream();
    }
    set_stream_options(&mut fields, lost)?;
    set_reasoning(&mut fields, &mut chat, lost)?;
    set_text(&mut fields, &mut chat, lost)?;
    for included in fields.list("include")? {
        match included.text().as_deref() {
            Some("reasoning.encrypted_content") => chat.way_back.opaque_reasoning = true,
            Some(other) => lost.add(&format!("include.{other}")),
            None => return Err(fields.wrong("include", "a list of strings")),
        }
    }
    if fields.text("truncation")?.is_some_and(|how| how != "disabled") {
        lost.add("truncation");
    }
    if fields.peek("top_logprobs").and_then(Raw::number) == Some(0.0) {
        fields.take("top_logprobs");
    }
    if fields.peek("metadata").is_some_and(Raw::is_empty) {
        fields.take("metadata");
    }
    fields.end(lost);
    Ok(chat)
}

fn read_items<'a>(
    items: Objects<'a>,
    tools: &Tools<'_>,
    conversation: &mut Conversation<'a>,
    lost: &mut Lost,
) -> Result<(), RequestError> {
    for item in items {
        input::read(item?, tools, conversation, lost)?;
    }
    Ok(())
}

/// Nothing is kept here that a request could go on from, or that could be asked for later.
fn refuse_state(fields: &mut Fields<'_>) -> Result<(), RequestError> {
    const WHOLE: &str = "send the whole conversation as `input`";
    for (member, instead) in [
        ("previous_response_id", WHOLE),
        ("conversation", WHOLE),
        ("prompt", "send `instructions` and `input`"),
    ] {
        if fields.take(member).is_some() {
            return Err(RequestError::Stateful { member, instead });
        }
    }
    for (member, instead) in [
        ("store", "leave it out, or set it to false"),
        ("background", "wait for the response, or stream it"),
    ] {
        if fields.flag(member)? {
            return Err(RequestError::Stateful { member, instead });
        }
    }
    Ok(())
}

fn set_stream_options(fields: &mut Fields<'_>, lost: &mut Lost) -> Result<(), RequestError> {
    let Some(mut options) = fields.object("stream_options")? else {
        return Ok(());
    };
    // Nothing is padded here.
    if options.flag("include_obfuscation")? {
        lost.add("stream_options.include_obfuscation");
    }
    options.end(lost);
    Ok(())
}

fn set_reasoning(
    fields: &mut Fields<'_>,
    chat: &mut ChatRequest,
    lost: &mut Lost,
) -> Result<(), RequestError> {
    let Some(mut reasoning) = fields.object("reasoning")? else {
        return Ok(());
    };
    let summary = reasoning.take("summary").or(reasoning.take("generate_summary"));
    chat.way_back.summary = summary.is_some();
    let effort = reasoning.take("effort");
    match effort.and_then(Raw::text).as_deref() {
        Some("low" | "medium" | "high") => chat.set("reasoning_effort", effort),
        Some("none") => chat.set_no_thinking(),
        None if effort.is_some() => return Err(reasoning.wrong("effort", "a string")),
        Some(_) => reasoning.lose("effort", lost),
        None => {}
    }
    reasoning.end(lost);
    Ok(())
}

fn set_text(fields: &mut Fields<'_>, chat: &mut ChatRequest, lost: &mut Lost) -> Result<(), RequestError> {
    let Some(mut text) = fields.object("text")? else {
        return Ok(());
    };
    chat.set("verbosity", text.take("verbosity"));
    if let Some(mut format) = text.object("format")? {
        match format.needed_text("type")?.as_ref() {
            "text" => {}
            "json_object" => chat.set("response_format", Some("{\"type\":\"json_object\"}")),
            "json_schema" => {
                let mut named = Json::default();
                for name in ["name", "description", "schema", "strict"] {
                    named = named.member(name, format.take(name));
                }
                let named = named.into_bytes();
                let whole = Json::from("{\"type\":\"json_schema\",\"json_schema\":{")
                    .raw(named.strip_prefix(b",").unwrap_or_default())
                    .raw("}}");
                chat.set("response_format", Some(whole.into_bytes()));
            }
            other => format.lose(other, lost),
        }
        format.end(lost);
    }
    text.end(lost);
    Ok(())
}
