use crate::dialect::ModelEntry;
use crate::translate::Json;

/// An error, as body or as an item of a stream.
pub(super) fn error(status: u16, message: &str) -> Json {
    let word = match status {
        401 => "UNAUTHENTICATED",
        403 => "PERMISSION_DENIED",
        404 => "NOT_FOUND",
        409 => "ABORTED",
        429 => "RESOURCE_EXHAUSTED",
        499 => "CANCELLED",
        400..=499 => "INVALID_ARGUMENT",
        501 => "UNIMPLEMENTED",
        502 | 503 | 529 => "UNAVAILABLE",
        504 => "DEADLINE_EXCEEDED",
        _ => "INTERNAL",
    };
    Json::from("{\"error\":{\"code\":")
        .number(status.into())
        .raw(",\"message\":")
        .string(message)
        .raw(",\"status\":\"")
        .raw(word)
        .raw("\"}}")
}

/// A list of models, all on one page.
pub(super) fn models(models: &[ModelEntry]) -> Json {
    Json::from("{\"models\":")
        .list(models, |json, entry| json.raw(model(entry).into_bytes()))
        .raw("}")
}

/// A model.
pub(super) fn model(model: &ModelEntry) -> Json {
    let json = Json::from("{\"name\":")
        .string(&format!("models/{}", model.id))
        .raw(",\"version\":\"001\",\"displayName\":")
        .string(&model.id);
    let json = match model.context_tokens {
        None => json,
        Some(tokens) => json
            .raw(",\"inputTokenLimit\":")
            .number(tokens)
            .raw(",\"outputTokenLimit\":")
            .number(tokens),
    };
    json.raw(",\"supportedGenerationMethods\":[\"generateContent\",\"countTokens\"]}")
}
