use super::{input, tools};
use crate::capture::RequestError;
use crate::translate::{ChatRequest, Conversation, Fields, Lost, parts};
use serde_json::{Value, json};

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
pub(super) fn translate(mut fields: Fields, lost: &mut Lost) -> Result<ChatRequest, RequestError> {
    refuse_state(&mut fields)?;
    let mut chat = ChatRequest::default();
    chat.way_back.echo = ECHOED
        .iter()
        .map(|(name, otherwise)| {
            let said = fields.peek(name).map(Value::to_string);
            (
                (*name).to_owned(),
                said.unwrap_or_else(|| (*otherwise).to_owned()),
            )
        })
        .collect();
    let tools = tools::read(&mut fields, lost)?;
    let mut conversation = Conversation::default();
    match fields.take("instructions") {
        None => {}
        Some(Value::String(text)) => conversation.system(vec![parts::text(&text)]),
        Some(Value::Array(items)) => input::read(items, "instructions", &tools, &mut conversation, lost)?,
        Some(_) => return Err(fields.wrong("instructions", "a string or a list of items")),
    }
    match fields.take("input") {
        None => {}
        Some(Value::String(text)) => conversation.user(vec![parts::text(&text)]),
        Some(Value::Array(items)) => input::read(items, "input", &tools, &mut conversation, lost)?,
        Some(_) => return Err(fields.wrong("input", "a string or a list of items")),
    }
    chat.set("model", fields.take("model"));
    chat.set("messages", Some(conversation.into_messages()));
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
        chat.set("stream", Some(true));
        chat.set("stream_options", Some(json!({"include_usage": true})));
    }
    set_stream_options(&mut fields, lost)?;
    set_reasoning(&mut fields, &mut chat, lost)?;
    set_text(&mut fields, &mut chat, lost)?;
    for (position, included) in fields.array("include")?.into_iter().enumerate() {
        match included.as_str() {
            Some("reasoning.encrypted_content") => chat.way_back.opaque_reasoning = true,
            Some(other) => lost.add(&format!("include[{position}].{other}")),
            None => return Err(fields.wrong("include", "a list of strings")),
        }
    }
    if fields.text("truncation")?.is_some_and(|how| how != "disabled") {
        lost.add("truncation");
    }
    if fields.peek("top_logprobs").and_then(Value::as_u64) == Some(0) {
        fields.take("top_logprobs");
    }
    if fields
        .peek("metadata")
        .and_then(Value::as_object)
        .is_some_and(serde_json::Map::is_empty)
    {
        fields.take("metadata");
    }
    fields.end(lost);
    Ok(chat)
}

/// Nothing is kept here that a request could go on from, or that could be asked for later.
fn refuse_state(fields: &mut Fields) -> Result<(), RequestError> {
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

fn set_stream_options(fields: &mut Fields, lost: &mut Lost) -> Result<(), RequestError> {
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

fn set_reasoning(fields: &mut Fields, chat: &mut ChatRequest, lost: &mut Lost) -> Result<(), RequestError> {
    let Some(mut reasoning) = fields.object("reasoning")? else {
        return Ok(());
    };
    let summary = reasoning.take("summary").or(reasoning.take("generate_summary"));
    chat.way_back.summary = summary.is_some();
    match reasoning.text("effort")? {
        Some(effort) if matches!(effort.as_str(), "low" | "medium" | "high") => {
            chat.set("reasoning_effort", Some(effort));
        }
        // Templates of Qwen and others have a switch.
        Some(effort) if effort == "none" => {
            chat.set("chat_template_kwargs", Some(json!({"enable_thinking": false})));
        }
        Some(_) => lost.add("reasoning.effort"),
        None => {}
    }
    reasoning.end(lost);
    Ok(())
}

fn set_text(fields: &mut Fields, chat: &mut ChatRequest, lost: &mut Lost) -> Result<(), RequestError> {
    let Some(mut text) = fields.object("text")? else {
        return Ok(());
    };
    chat.set("verbosity", text.take("verbosity"));
    if let Some(mut format) = text.object("format")? {
        match format.needed_text("type")?.as_str() {
            "text" => {}
            "json_object" => chat.set("response_format", Some(json!({"type": "json_object"}))),
            "json_schema" => {
                let mut named = serde_json::Map::new();
                for name in ["name", "description", "schema", "strict"] {
                    if let Some(value) = format.take(name) {
                        named.insert(name.to_owned(), value);
                    }
                }
                chat.set(
                    "response_format",
                    Some(json!({"type": "json_schema", "json_schema": named})),
                );
            }
            other => lost.add(&format.place_of(other)),
        }
        format.end(lost);
    }
    text.end(lost);
    Ok(())
}
