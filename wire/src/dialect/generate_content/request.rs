use super::{contents, schema, tools};
use crate::capture::RequestError;
use crate::dialect::Target;
use crate::translate::{ChatRequest, Conversation, Fields, Lost, parts};
use serde_json::{Value, json};

/// From a request to one in chat completions.
pub(super) fn translate(
    target: &Target,
    mut fields: Fields,
    lost: &mut Lost,
) -> Result<ChatRequest, RequestError> {
    if fields.take("cachedContent").is_some() {
        return Err(RequestError::Stateful {
            member: "cachedContent",
            instead: "send the contents themselves",
        });
    }
    let mut chat = ChatRequest {
        form: target.stream.unwrap_or_default(),
        ..ChatRequest::default()
    };
    let mut conversation = Conversation::default();
    fields.take("model");
    chat.set("model", target.model.clone());
    let place = fields.place_of("systemInstruction");
    match fields.take("systemInstruction") {
        None => {}
        Some(Value::String(text)) => conversation.system(vec![parts::text(&text)]),
        Some(system) => conversation.system(contents::said(Fields::of(place, system)?, lost)?),
    }
    contents::read(&mut fields, &mut conversation, lost)?;
    chat.set("messages", Some(conversation.into_messages()));
    tools::translate(&mut fields, &mut chat, lost)?;
    if let Some(config) = fields.object("generationConfig")? {
        set_generation(config, &mut chat, lost)?;
    }
    if target.stream.is_some() {
        chat.set("stream", Some(true));
        chat.set("stream_options", Some(json!({"include_usage": true})));
    }
    fields.end(lost);
    Ok(chat)
}

fn set_generation(mut config: Fields, chat: &mut ChatRequest, lost: &mut Lost) -> Result<(), RequestError> {
    for (name, to) in [
        ("maxOutputTokens", "max_tokens"),
        ("temperature", "temperature"),
        ("topP", "top_p"),
        ("presencePenalty", "presence_penalty"),
        ("frequencyPenalty", "frequency_penalty"),
        ("seed", "seed"),
        ("stopSequences", "stop"),
    ] {
        let value = config.take(name);
        chat.set(
            to,
            value.filter(|value| value.as_array().is_none_or(|items| !items.is_empty())),
        );
    }
    // A float there, a whole number here.
    if let Some(top_k) = config.take("topK") {
        let number = top_k.as_f64().ok_or_else(|| config.wrong("topK", "a number"))?;
        #[expect(
            clippy::cast_possible_truncation,
            reason = "the cast saturates; endpoints refuse what is too large"
        )]
        chat.set("top_k", Some(number as i64));
    }
    match config.take("candidateCount").as_ref().map(Value::as_u64) {
        None | Some(Some(1)) => {}
        Some(_) => lost.add(&config.place_of("candidateCount")),
    }
    if let Some(mut thinking) = config.object("thinkingConfig")? {
        // Thoughts are given wherever there are any.
        thinking.flag("includeThoughts")?;
        match thinking.peek("thinkingBudget").and_then(Value::as_i64) {
            // Templates of Qwen and others have a switch.
            Some(0) => {
                thinking.take("thinkingBudget");
                chat.set("chat_template_kwargs", Some(json!({"enable_thinking": false})));
            }
            Some(-1) => {
                thinking.take("thinkingBudget");
            }
            _ => {}
        }
        match thinking
            .text("thinkingLevel")?
            .map(|level| level.to_ascii_lowercase())
        {
            Some(level) if matches!(level.as_str(), "low" | "medium" | "high") => {
                chat.set("reasoning_effort", Some(level));
            }
            Some(_) => lost.add(&thinking.place_of("thinkingLevel")),
            None => {}
        }
        thinking.end(lost);
    }
    set_format(&mut config, chat, lost)?;
    if config.peek("responseLogprobs") == Some(&Value::Bool(false)) {
        config.take("responseLogprobs");
    }
    if config
        .peek("responseModalities")
        .is_some_and(|kinds| *kinds == json!(["TEXT"]))
    {
        config.take("responseModalities");
    }
    config.end(lost);
    Ok(())
}

fn set_format(config: &mut Fields, chat: &mut ChatRequest, lost: &mut Lost) -> Result<(), RequestError> {
    let google = config.take("responseSchema").map(schema::translate);
    let plain = config
        .take("responseJsonSchema")
        .or(config.take("_responseJsonSchema"));
    match config.text("responseMimeType")?.as_deref() {
        Some("application/json") => {
            let format = match plain.or(google) {
                None => json!({"type": "json_object"}),
                Some(schema) => {
                    json!({"type": "json_schema", "json_schema": {"name": "output", "schema": schema}})
                }
            };
            chat.set("response_format", Some(format));
        }
        None | Some("text/plain") => {
            if plain.or(google).is_some() {
                lost.add(&config.place_of("responseSchema"));
            }
        }
        Some(other) => lost.add(&config.place_of(&format!("responseMimeType.{other}"))),
    }
    Ok(())
}
