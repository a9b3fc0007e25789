use super::RequestFacts;
use crate::call::Change;
use serde_json::Value;

/// Words by which a server says that it does not take a member at all, whatever its value.
const REFUSING: [&str; 13] = [
    "unsupported",
    "not supported",
    "does not support",
    "doesn't support",
    "unrecognized",
    "unknown",
    "unexpected",
    "extra_forbidden",
    "extra inputs",
    "not permitted",
    "not allowed",
    "additional properties",
    "no such parameter",
];

/// Which changes make a request acceptable that was answered with `status` and `body`: only for 400 and 422, only
/// members that were sent, and never those in `never`. Empty where the request was refused for another reason.
///
/// Known forms: OpenAI's `param` and "Unsupported parameter: 'a' ... Use 'b' instead", "Unrecognized request arguments
/// supplied: a, b"; pydantic's `loc` of vLLM, Mistral and FastAPI, as JSON or as text; a cap of `top_logprobs`, as the
/// Hugging Face router has; llama.cpp's "logprobs is not supported with tools + stream".
#[must_use]
pub fn refused(status: u16, body: &[u8], facts: &RequestFacts, never: &[&str]) -> Vec<Change> {
    if !matches!(status, 400 | 422) {
        return Vec::new();
    }
    let text = String::from_utf8_lossy(body);
    let reply = serde_json::from_str::<Value>(&text).ok();
    let error = reply.as_ref().map(|reply| reply.get("error").unwrap_or(reply));
    let message = error.map_or_else(|| text.clone().into_owned(), message_of);
    let sent = |name: &str| {
        let known = facts.members_sent.iter().find(|known| known.as_str() == name)?;
        (!never.contains(&known.as_str())).then(|| known.clone())
    };
    let param = error
        .and_then(|error| error.get("param")?.as_str())
        .and_then(|param| sent(first_name(param)));
    if let Some(limit) = top_logprobs_limit(&message, &text, param.as_deref(), facts) {
        return vec![limit];
    }
    let lower = text.to_lowercase();
    if !REFUSING.iter().any(|word| lower.contains(word)) {
        return Vec::new();
    }
    let located = match &reply {
        Some(reply) if param.is_none() => locations(reply, &message),
        _ => Vec::new(),
    };
    let mut fields: Vec<String> = param.into_iter().collect();
    if fields.is_empty() {
        fields.extend(located.iter().filter_map(|name| sent(name)));
    }
    if fields.is_empty() {
        fields.extend(
            named(&message)
                .filter_map(sent)
                .take(if message.contains("arguments supplied") {
                    8
                } else {
                    1
                }),
        );
    }
    fields.dedup();
    let instead = rename_of(&message);
    fields
        .into_iter()
        .map(|field| match instead {
            Some(to) if to != field && !never.contains(&to) => Change::Renamed {
                from: field,
                to: to.to_owned(),
            },
            _ => Change::Removed { field },
        })
        .collect()
}

/// The words of an error: its message, wherever it is.
fn message_of(error: &Value) -> String {
    let place = error
        .get("message")
        .or_else(|| error.get("detail"))
        .unwrap_or(error);
    place.as_str().map_or_else(|| place.to_string(), str::to_owned)
}

/// The outermost member of a path such as `stream_options.include_usage` or `messages[0].role`.
fn first_name(path: &str) -> &str {
    path.split(['.', '[']).next().unwrap_or(path)
}

/// A cap that the message sets on `top_logprobs`: the largest number in it that is smaller than what was sent.
fn top_logprobs_limit(
    message: &str,
    text: &str,
    param: Option<&str>,
    facts: &RequestFacts,
) -> Option<Change> {
    let about = param == Some("top_logprobs") || text.contains("top_logprobs");
    let was_sent = facts.members_sent.iter().any(|name| name == "top_logprobs");
    let lower = message.to_lowercase();
    let bounded = [
        "less than",
        "at most",
        "between",
        "exceed",
        "maximum",
        "<=",
        "up to",
        "no more than",
        "max",
    ];
    if !about || !was_sent || facts.top_logprobs_sent == 0 || !bounded.iter().any(|word| lower.contains(word))
    {
        return None;
    }
    let numbers = lower
        .split(|letter: char| !letter.is_ascii_digit())
        .filter_map(|word| word.parse::<u32>().ok());
    let limit = numbers.filter(|number| *number < facts.top_logprobs_sent).max()?;
    Some(Change::Limited {
        field: "top_logprobs".into(),
        to: limit.to_string(),
    })
}

/// The members that pydantic's errors are about: `loc` in JSON, or in the text of a message.
fn locations(reply: &Value, message: &str) -> Vec<String> {
    fn walk(value: &Value, found: &mut Vec<String>) {
        match value {
            Value::Array(items) => items.iter().for_each(|item| walk(item, found)),
            Value::Object(members) => {
                let refused = members.get("type").and_then(Value::as_str) == Some("extra_forbidden");
                let path = members.get("loc").and_then(Value::as_array).filter(|_| refused);
                let name =
                    path.and_then(|path| path.iter().filter_map(Value::as_str).find(|name| *name != "body"));
                found.extend(name.map(str::to_owned));
                members.values().for_each(|member| walk(member, found));
            }
            _ => {}
        }
    }
    let mut found = Vec::new();
    walk(reply, &mut found);
    if found.is_empty() && message.contains("extra_forbidden") {
        let after_loc = message
            .split("'loc': (")
            .skip(1)
            .filter_map(|tail| tail.split(')').next());
        let names = after_loc.filter_map(|path| quoted(path).find(|name| *name != "body"));
        found.extend(names.map(str::to_owned));
    }
    found
}

/// The name that the message says to use instead.
fn rename_of(message: &str) -> Option<&str> {
    let (_, tail) = message
        .split_once("Use ")
        .or_else(|| message.split_once("use "))?;
    let (name, after) = quoted(tail)
        .next()
        .map(|name| (name, tail.split_once(name).map_or("", |(_, after)| after)))?;
    after.contains("instead").then_some(name)
}

/// What is in quotes of any kind.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split(['\'', '"', '`']).skip(1).step_by(2)
}

/// The words of a message that may be names, in order.
fn named(message: &str) -> impl Iterator<Item = &str> {
    message
        .split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_')
        .filter(|word| !word.is_empty())
}
