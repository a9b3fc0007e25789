use crate::translate::Json;

/// The body of an error.
pub(super) fn error(status: u16, message: &str) -> Json {
    let kind = match status {
        401 => "authentication_error",
        403 => "permission_error",
        404 => "not_found_error",
        429 => "rate_limit_error",
        400..500 => "invalid_request_error",
        _ => "server_error",
    };
    let json = Json::from("{\"error\":{\"message\":")
        .string(message)
        .raw(",\"type\":\"")
        .raw(kind)
        .raw("\",\"param\":null,\"code\":");
    match code(status, message) {
        Some(code) => json.raw("\"").raw(code).raw("\"}}"),
        None => json.raw("null}}"),
    }
}

/// OpenAI's word for an error that agents tell from others.
pub(super) fn code(status: u16, message: &str) -> Option<&'static str> {
    let too_long = ["maximum context length", "context size"];
    match status {
        400 if too_long.iter().any(|words| message.contains(words)) => Some("context_length_exceeded"),
        429 => Some("rate_limit_exceeded"),
        500.. => Some("server_error"),
        _ => None,
    }
}
