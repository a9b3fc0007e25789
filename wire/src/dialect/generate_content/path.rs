use crate::capture::StreamForm;
use crate::dialect::chat::UPSTREAM_PATH;
use crate::dialect::{Asked, SideRoute, Target};

/// Where a request goes that asks for content.
pub(super) fn route(asked: &Asked<'_>) -> Option<Target> {
    let (model, operation) = operation(asked)?;
    let stream = match operation {
        "generateContent" => None,
        "streamGenerateContent" if is_events(asked.query) => Some(StreamForm::Events),
        "streamGenerateContent" => Some(StreamForm::Array),
        _ => return None,
    };
    Some(Target {
        upstream_path: UPSTREAM_PATH,
        model: Some(model),
        stream,
    })
}

/// What a request asks for beside that.
pub(super) fn side_route(asked: &Asked<'_>) -> Option<SideRoute> {
    if let Some((model, operation)) = operation(asked) {
        let target = Target {
            upstream_path: UPSTREAM_PATH,
            model: Some(model),
            stream: None,
        };
        return (operation == "countTokens").then_some(SideRoute::CountTokens(target));
    }
    if asked.method != "GET" {
        return None;
    }
    // Under `/v1`, which Google's later SDKs ask, is OpenAI's list too.
    let googles = || {
        ["x-goog-api-key", "x-goog-api-client"]
            .iter()
            .any(|name| (asked.header)(name).is_some())
    };
    let preview = ["/v1beta", "/v1alpha"]
        .iter()
        .find_map(|version| asked.path.strip_prefix(version));
    let path = preview.or_else(|| asked.path.strip_prefix("/v1").filter(|_| googles()))?;
    let model = path.strip_prefix("/models")?;
    match model.strip_prefix('/') {
        None if model.is_empty() => Some(SideRoute::Models),
        Some(model) if !model.is_empty() => Some(SideRoute::Model(decoded(model))),
        _ => None,
    }
}

/// The model and what is to be done with it, in a path such as `/v1beta/models/MODEL:generateContent`. Models may have
/// slashes in their names.
fn operation<'a>(asked: &Asked<'a>) -> Option<(String, &'a str)> {
    if asked.method != "POST" {
        return None;
    }
    let (before, operation) = asked.path.rsplit_once(':')?;
    let (_, model) = before.split_once("/models/")?;
    (!model.is_empty()).then(|| (decoded(model), operation))
}

fn is_events(query: &str) -> bool {
    query.split('&').any(|part| part == "alt=sse")
}

/// A part of a path with its escapes read.
fn decoded(part: &str) -> String {
    let mut bytes = Vec::with_capacity(part.len());
    let mut rest = part.as_bytes();
    while let Some((byte, tail)) = rest.split_first() {
        let escaped = tail
            .split_at_checked(2)
            .filter(|_| *byte == b'%')
            .and_then(|(hex, after)| {
                let code = u8::from_str_radix(std::str::from_utf8(hex).ok()?, 16).ok()?;
                Some((code, after))
            });
        let (byte, after) = escaped.unwrap_or((*byte, tail));
        bytes.push(byte);
        rest = after;
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
