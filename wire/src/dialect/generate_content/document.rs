use crate::translate::json::arguments_object;
use crate::translate::{Block, Finish, Json, Kind, Reply};

/// The reply as one document.
pub(super) fn whole(reply: &Reply) -> Json {
    Json::from("{\"candidates\":[{\"content\":{\"parts\":")
        .list(&reply.blocks, |json, block| {
            json.raw(part(block, &block.text).into_bytes())
        })
        .raw(",\"role\":\"model\"}")
        .with(|json| finish(json, reply))
        .raw(",\"index\":0}]")
        .with(|json| usage(json, reply))
        .with(|json| tail(json, reply))
        .raw("}")
}

/// A part that says `text` of a block.
pub(super) fn part(block: &Block, text: &[u8]) -> Json {
    match block.kind {
        Kind::Reasoning => Json::from("{\"text\":").quoted(text).raw(",\"thought\":true}"),
        Kind::Text | Kind::Refusal => Json::from("{\"text\":").quoted(text).raw("}"),
        Kind::Call => Json::from("{\"functionCall\":{\"id\":")
            .string(&block.id)
            .raw(",\"name\":")
            .string(&block.name)
            .raw(",\"args\":")
            .raw(arguments_object(&block.text))
            .raw("}}"),
    }
}

/// `finishReason`, after another member, where the reply has ended.
pub(super) fn finish(json: Json, reply: &Reply) -> Json {
    match reply.finish() {
        None => json,
        Some(Finish::Length) => json.raw(",\"finishReason\":\"MAX_TOKENS\""),
        Some(Finish::Filtered) => json.raw(",\"finishReason\":\"SAFETY\""),
        Some(Finish::Stop | Finish::StopText | Finish::Calls) => json.raw(",\"finishReason\":\"STOP\""),
    }
}

/// What was counted, after another member, where it was. Thoughts are counted apart from the rest.
pub(super) fn usage(json: Json, reply: &Reply) -> Json {
    let Some(counts) = reply.counts else { return json };
    let json = json
        .raw(",\"usageMetadata\":{\"promptTokenCount\":")
        .number(counts.prompt)
        .raw(",\"candidatesTokenCount\":")
        .number(counts.completion.saturating_sub(counts.reasoning))
        .raw(",\"totalTokenCount\":")
        .number(counts.total());
    let json = match counts.cached {
        0 => json,
        cached => json.raw(",\"cachedContentTokenCount\":").number(cached),
    };
    match counts.reasoning {
        0 => json.raw("}"),
        reasoning => json.raw(",\"thoughtsTokenCount\":").number(reasoning).raw("}"),
    }
}

/// What names the reply, after another member.
pub(super) fn tail(json: Json, reply: &Reply) -> Json {
    json.raw(",\"modelVersion\":")
        .string(&reply.model)
        .raw(",\"responseId\":")
        .string(reply.bare_id())
}
