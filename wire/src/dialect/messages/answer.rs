use crate::dialect::ModelEntry;
use crate::time::rfc3339;
use crate::translate::Json;

/// An error, as body or as the data of an event.
pub(super) fn error(status: u16, message: &str) -> Json {
    let kind = match status {
        400 | 422 => "invalid_request_error",
        401 => "authentication_error",
        402 => "billing_error",
        403 => "permission_error",
        404 => "not_found_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        504 => "timeout_error",
        503 | 529 => "overloaded_error",
        400..500 => "invalid_request_error",
        _ => "api_error",
    };
    let json = Json::from("{\"type\":\"error\",\"error\":{\"type\":\"")
        .raw(kind)
        .raw("\",\"message\":");
    // Claude Code knows a prompt that is too long by how Anthropic's service says it, and compacts.
    let too_long = status == 400
        && ["maximum context length", "context size"]
            .iter()
            .any(|words| message.contains(words));
    let json = if too_long {
        json.string(&format!("prompt is too long: {message}"))
    } else {
        json.string(message)
    };
    json.raw("},\"request_id\":null}")
}

/// A list of models, all on one page.
pub(super) fn models(models: &[ModelEntry]) -> Json {
    let id = |model: Option<&ModelEntry>, json: Json| match model {
        Some(model) => json.string(&model.id),
        None => json.raw("null"),
    };
    Json::from("{\"data\":")
        .list(models, |json, entry| json.raw(model(entry).into_bytes()))
        .raw(",\"has_more\":false,\"first_id\":")
        .with(|json| id(models.first(), json))
        .raw(",\"last_id\":")
        .with(|json| id(models.last(), json))
        .raw("}")
}

/// A model.
pub(super) fn model(model: &ModelEntry) -> Json {
    Json::from("{\"type\":\"model\",\"id\":")
        .string(&model.id)
        .raw(",\"display_name\":")
        .string(&model.id)
        .raw(",\"created_at\":")
        .string(&rfc3339(model.created_unix_s))
        .raw("}")
}
