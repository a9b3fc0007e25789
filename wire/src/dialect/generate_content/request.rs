use super::{contents, schema, tools};
use crate::capture::RequestError;
use crate::dialect::Target;
use crate::translate::{ChatRequest, Conversation, Fields, Json, Lost, Part, Raw};

/// From a request to one in chat completions.
pub(super) fn translate(
    target: &Target,
    mut fields: Fields<'_>,
    lost: &mut Lost,
) -> Result<ChatRequest, RequestError> {
    if fields.take("cachedContent").is_some() {
        return Err(RequestError::Stateful {
            member: "cachedContent",
            instead: "send the contents themselves",
        });
    }
    let mut chat = ChatRequest::default();
    chat.form = target.stream.unwrap_or_default();
    let mut conversation = Conversation::default();
    fields.take("model");
    let model = target.model.as_deref().map(|model| Json::default().string(model));
    chat.set("model", model.map(Json::into_bytes));
    if let Some(system) = fields.take("systemInstruction") {
        conversation.system(match system.body() {
            Some(body) => vec![Part::text(body)],
            None => contents::said(fields.of_only("systemInstruction", system)?, lost)?,
        });
    }
    contents::read(&mut fields, &mut conversation, lost)?;
    chat.set("messages", Some(conversation.into_messages("contents")?));
    tools::translate(&mut fields, &mut chat, lost)?;
    if let Some(config) = fields.object("generationConfig")? {
        set_generation(config, &mut chat, lost)?;
    }
    if target.stream.is_some() {
        chat.set_stream();
    }
    fields.end(lost);
    Ok(chat)
}

fn set_generation(
    mut config: Fields<'_>,
    chat: &mut ChatRequest,
    lost: &mut Lost,
) -> Result<(), RequestError> {
    for (name, to) in [
        ("maxOutputTokens", "max_tokens"),
        ("temperature", "temperature"),
        ("topP", "top_p"),
        ("presencePenalty", "presence_penalty"),
        ("frequencyPenalty", "frequency_penalty"),
        ("seed", "seed"),
        ("stopSequences", "stop"),
    ] {
        chat.set(to, config.take(name).filter(|value| !value.is_empty()));
    }
    // A float there, a whole number here.
    if let Some(top_k) = config.take("topK") {
        let number = top_k.number().ok_or_else(|| config.wrong("topK", "a number"))?;
        #[expect(
            clippy::cast_possible_truncation,
            reason = "the cast saturates; endpoints refuse what is too large"
        )]
        chat.set("top_k", Some((number as i64).to_string()));
    }
    match config.take("candidateCount").map(Raw::number) {
        None | Some(Some(1.0)) => {}
        Some(_) => config.lose("candidateCount", lost),
    }
    if let Some(mut thinking) = config.object("thinkingConfig")? {
        // Thoughts are given wherever there are any.
        thinking.flag("includeThoughts")?;
        match thinking.peek("thinkingBudget").and_then(Raw::number) {
            Some(0.0) => {
                thinking.take("thinkingBudget");
                chat.set_no_thinking();
            }
            Some(-1.0) => {
                thinking.take("thinkingBudget");
            }
            _ => {}
        }
        match thinking
            .text("thinkingLevel")?
            .map(|level| level.to_ascii_lowercase())
        {
            Some(level) if matches!(level.as_str(), "low" | "medium" | "high") => {
                chat.set(
                    "reasoning_effort",
                    Some(Json::default().string(&level).into_bytes()),
                );
            }
            Some(_) => thinking.lose("thinkingLevel", lost),
            None => {}
        }
        thinking.end(lost);
    }
    set_format(&mut config, chat, lost)?;
    if config
        .peek("responseLogprobs")
        .is_some_and(|value| value.as_ref() == b"false")
    {
        config.take("responseLogprobs");
    }
    let is_text_only = |kinds: Raw<'_>| {
        let mut kinds = kinds.items()?.map(Raw::text);
        Some(kinds.next()??.as_ref() == "TEXT" && kinds.next().is_none())
    };
    if config.peek("responseModalities").and_then(is_text_only) == Some(true) {
        config.take("responseModalities");
    }
    config.end(lost);
    Ok(())
}

fn set_format(config: &mut Fields<'_>, chat: &mut ChatRequest, lost: &mut Lost) -> Result<(), RequestError> {
    let google = config.take("responseSchema").map(schema::translated);
    let plain = config
        .take("responseJsonSchema")
        .or(config.take("_responseJsonSchema"));
    let schema = plain.map(|schema| schema.as_ref().to_vec()).or(google);
    match config.text("responseMimeType")?.as_deref() {
        Some("application/json") => {
            let format = match schema {
                None => Json::from("{\"type\":\"json_object\"}"),
                Some(schema) => {
                    Json::from("{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"output\",\"schema\":")
                        .raw(schema)
                        .raw("}}")
                }
            };
            chat.set("response_format", Some(format.into_bytes()));
        }
        None | Some("text/plain") => {
            if schema.is_some() {
                config.lose("responseSchema", lost);
            }
        }
        Some(other) => config.lose(&format!("responseMimeType.{other}"), lost),
    }
    Ok(())
}
