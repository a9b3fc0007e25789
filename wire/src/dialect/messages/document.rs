use crate::trajectory::ContentHash;
use crate::translate::json::arguments_object;
use crate::translate::{Block, Finish, Json, Kind, Reply};

/// The reply as one document.
pub(super) fn whole(reply: &Reply) -> Json {
    head(reply)
        .list(&reply.blocks, block)
        .with(|json| end(json, reply))
        .raw(",\"usage\":")
        .with(|json| usage(json, reply))
        .raw("}")
}

/// A message up to its content.
pub(super) fn head(reply: &Reply) -> Json {
    Json::from("{\"id\":")
        .string(&format!("msg_{}", reply.bare_id()))
        .raw(",\"type\":\"message\",\"role\":\"assistant\",\"model\":")
        .string(&reply.model)
        .raw(",\"content\":")
}

fn block(json: Json, block: &Block) -> Json {
    match block.kind {
        Kind::Reasoning => json
            .raw("{\"type\":\"thinking\",\"thinking\":")
            .quoted(&block.text)
            .raw(",\"signature\":")
            .string(&signature(&block.decoded()))
            .raw("}"),
        Kind::Text | Kind::Refusal => json
            .raw("{\"type\":\"text\",\"text\":")
            .quoted(&block.text)
            .raw("}"),
        Kind::Call => json
            .raw("{\"type\":\"tool_use\",\"id\":")
            .string(&block.id)
            .raw(",\"name\":")
            .string(&block.name)
            .raw(",\"input\":")
            .raw(arguments_object(&block.text))
            .raw("}"),
    }
}

/// `stop_reason` and `stop_sequence`, after another member.
pub(super) fn end(json: Json, reply: &Reply) -> Json {
    let reason = match reply.finish() {
        None => "null",
        Some(Finish::Stop) => "\"end_turn\"",
        Some(Finish::StopText) => "\"stop_sequence\"",
        Some(Finish::Calls) => "\"tool_use\"",
        Some(Finish::Length) => "\"max_tokens\"",
        Some(Finish::Filtered) => "\"refusal\"",
    };
    let json = json
        .raw(",\"stop_reason\":")
        .raw(reason)
        .raw(",\"stop_sequence\":");
    match (&reply.stop_text, reply.finish()) {
        (Some(text), Some(Finish::StopText)) => json.string(text),
        _ => json.raw("null"),
    }
}

/// What was counted. The prompt is counted here without what came from a cache.
pub(super) fn usage(json: Json, reply: &Reply) -> Json {
    let counts = reply.counted();
    json.raw("{\"input_tokens\":")
        .number(counts.prompt.saturating_sub(counts.cached))
        .raw(",\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":")
        .number(counts.cached)
        .raw(",\"output_tokens\":")
        .number(counts.completion)
        .raw("}")
}

/// What stands for a signature of a thought: agents hand it back with the text, and there is nothing to sign with. It is
/// known by this when it comes back.
pub(super) fn signature(text: &str) -> String {
    ContentHash::of(text.as_bytes()).to_string()
}
