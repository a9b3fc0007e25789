use super::body::{Body, is_empty};
use super::opening::read_openings;
use super::sampler::{alters_sampling, set_sampling};
use crate::call::Change;
use crate::capture::{Ask, Prepared, RequestError, RequestFacts, RequestRules};
use crate::sampling::Sampling;
use crate::scan::{Reader, canonical, decode_string, parse_f64, parse_u64, string_body};
use crate::task::CaptureMode;
use bytes::Bytes;
use sha2::{Digest, Sha256};

/// What a retry may change.
const NOT_IN_RETRY_KEY: [&str; 4] = ["stream", "stream_options", "max_tokens", "max_completion_tokens"];

/// What a refusal can never take out or rename.
pub(super) const NEVER_CHANGED: [&str; 4] = ["model", "messages", "tools", "stream"];

/// See [`Dialect::prepare`](crate::dialect::Dialect::prepare).
pub(super) fn prepare(text: &Bytes, rules: &RequestRules) -> Result<Prepared, RequestError> {
    let retry_body_sha256 = hex(&Sha256::digest(canonical(text, &NOT_IN_RETRY_KEY)?));
    let mut prepared = edit(text, rules)?;
    prepared.facts.retry_body_sha256 = retry_body_sha256;
    Ok(prepared)
}

/// The same for a body that is known to be JSON, without a key for telling retries.
pub(crate) fn edit(text: &Bytes, rules: &RequestRules) -> Result<Prepared, RequestError> {
    if Reader::new(text).peek() != Some(b'{') {
        return Err(RequestError::NotAnObject);
    }
    let mut body = Body::read(text)?;
    let mut facts = RequestFacts {
        streamed: flag(&body, "stream")?,
        choices: body
            .get("n")
            .and_then(parse_u64)
            .and_then(|n| u32::try_from(n).ok())
            .unwrap_or(1)
            .max(1),
        keep_top_logprobs: rules.keep_top_logprobs,
        keep_entries: rules.keep_entries,
        token_ids_asked: body.get("return_token_ids") == Some(b"true"),
        prompt_logprobs_asked: body.get("prompt_logprobs").is_some_and(|value| value != b"null"),
        sampling_altered: alters_sampling(&body),
        max_tokens_asked: max_tokens(&body),
        ..RequestFacts::default()
    };
    read_openings(&body, &mut facts);
    set_stream(&mut body, rules.capture, &mut facts)?;
    set_tools(&mut body, &mut facts);
    set_ask(&mut body, rules, &mut facts);
    set_limits(&mut body, rules.max_tokens_cap);
    set_sampling(&mut body, &rules.sampling);
    if rules.disable_thinking {
        let switched =
            nested(&body, "chat_template_kwargs")?.with(&["enable_thinking"], "enable_thinking", b"false");
        body.set("chat_template_kwargs", switched);
    }
    if let Some(model) = &rules.model {
        body.set("model", string(model));
    }
    for change in &rules.changes {
        if apply(&mut body, change) {
            facts.changes.push(change.clone());
        }
    }
    read_back(&body, &mut facts);
    Ok(Prepared {
        body: body.write(),
        facts,
    })
}

/// The stream as it goes upstream, and a count of tokens with it.
fn set_stream(
    body: &mut Body<'_>,
    capture: CaptureMode,
    facts: &mut RequestFacts,
) -> Result<(), RequestError> {
    facts.upstream_streamed = facts.streamed && capture != CaptureMode::Buffer;
    facts.usage_asked = true;
    if facts.streamed {
        let options = nested(body, "stream_options")?;
        facts.usage_asked = options.get("include_usage") == Some(b"true");
        if !facts.usage_asked {
            // A count in every event is sent only where the last count is asked for, so it cannot have been meant.
            let counted = options.with(
                &["include_usage", "continuous_usage_stats"],
                "include_usage",
                b"true",
            );
            body.set("stream_options", counted);
        }
    }
    if facts.streamed && !facts.upstream_streamed {
        body.set("stream", b"false".to_vec());
    }
    if !facts.upstream_streamed {
        body.remove("stream_options");
    }
    Ok(())
}

/// An empty list of tools is refused by some servers; what goes with tools is refused without them.
fn set_tools(body: &mut Body<'_>, facts: &mut RequestFacts) {
    let items = body.get("tools").map(is_empty);
    facts.tools = items == Some(false);
    if body.get("tools").is_some_and(|tools| tools.starts_with(b"[")) && items == Some(true) {
        for name in ["tools", "tool_choice", "parallel_tool_calls"] {
            body.remove(name);
        }
    }
}

/// Asks the endpoint to tell what it samples.
fn set_ask(body: &mut Body<'_>, rules: &RequestRules, facts: &mut RequestFacts) {
    let asked = body.get("logprobs") == Some(b"true");
    let top = body.get("top_logprobs").filter(|value| *value != b"null");
    let number = top.map(|value| parse_u64(value).and_then(|number| u32::try_from(number).ok()));
    if asked {
        // A number that is none is for the endpoint to refuse; nothing is trimmed by it.
        facts.top_logprobs_asked = Some(number.map_or(0, |number| number.unwrap_or(u32::MAX)));
    }
    if rules.ask == Ask::Nothing {
        return;
    }
    body.set("logprobs", b"true".to_vec());
    let agents = if asked { number } else { None };
    if agents != Some(None) {
        let most = rules.top_logprobs.max(agents.flatten().unwrap_or(0));
        body.set("top_logprobs", most.to_string().into_bytes());
    }
    if rules.ask == Ask::Tokens {
        body.set("return_token_ids", b"true".to_vec());
    }
    if body.get("include_reasoning") == Some(b"false") {
        facts.reasoning_hidden = true;
        body.set("include_reasoning", b"true".to_vec());
    }
}

/// Holds the agent's wish for tokens down to the cap, or sets the cap where it has none.
fn set_limits(body: &mut Body<'_>, cap: Option<u64>) {
    let Some(cap) = cap.filter(|cap| *cap > 0) else {
        return;
    };
    let names = ["max_tokens", "max_completion_tokens"];
    if names
        .iter()
        .all(|name| body.get(name).is_none_or(|value| value == b"null"))
    {
        body.set("max_tokens", cap.to_string().into_bytes());
        return;
    }
    for name in names {
        let value = body.get(name).and_then(parse_f64);
        #[expect(clippy::cast_precision_loss, reason = "a cap is far below 2^53")]
        let over = value.is_some_and(|value| value > cap as f64);
        if over {
            body.set(name, cap.to_string().into_bytes());
        }
    }
}

/// Makes a change that this endpoint has asked for before. Returns whether it made a difference.
fn apply(body: &mut Body<'_>, change: &Change) -> bool {
    let (Change::Removed { field } | Change::Renamed { from: field, .. } | Change::Limited { field, .. }) =
        change;
    if NEVER_CHANGED.contains(&field.as_str()) {
        return false;
    }
    let Some(value) = body.get(field).map(<[u8]>::to_vec) else {
        return false;
    };
    match change {
        Change::Removed { .. } => {
            body.remove(field);
            if field == "logprobs" {
                body.remove("top_logprobs");
            }
        }
        Change::Renamed { to, .. } if NEVER_CHANGED.contains(&to.as_str()) => return false,
        Change::Renamed { to, .. } => {
            body.remove(field);
            if body.get(to).is_none() {
                body.set(to, value);
            }
        }
        Change::Limited { to, .. } => {
            let over = parse_f64(&value)
                .zip(parse_f64(to.as_bytes()))
                .is_some_and(|(now, most)| now > most);
            if !over {
                return false;
            }
            body.set(field, to.clone().into_bytes());
        }
    }
    true
}

/// Reads what goes upstream in the end.
fn read_back(body: &Body<'_>, facts: &mut RequestFacts) {
    let is_true = |name: &str| body.get(name) == Some(b"true");
    facts.ask = match (is_true("logprobs"), is_true("return_token_ids")) {
        (true, true) => Ask::Tokens,
        (true, false) => Ask::Logprobs,
        (false, _) => Ask::Nothing,
    };
    let number = |name: &str| body.get(name).and_then(parse_f64);
    #[expect(
        clippy::cast_possible_truncation,
        reason = "a fraction or an overflow is not sent by anyone who means it"
    )]
    let whole = |name: &str| number(name).map(|value| value as i64);
    facts.top_logprobs_sent = body
        .get("top_logprobs")
        .and_then(parse_u64)
        .map_or(0, |number| number as u32);
    facts.sampling = Sampling {
        temperature: number("temperature"),
        top_p: number("top_p"),
        top_k: whole("top_k"),
        min_p: number("min_p"),
        presence_penalty: number("presence_penalty"),
        frequency_penalty: number("frequency_penalty"),
        repetition_penalty: number("repetition_penalty"),
        seed: body
            .get("seed")
            .and_then(|value| std::str::from_utf8(value).ok()?.parse().ok()),
    };
    let model = body.get("model").and_then(string_body);
    facts.model = model
        .map(|model| decode_string(model).into_owned())
        .unwrap_or_default();
    facts.max_tokens_sent = max_tokens(body);
    facts.members_sent = body.names().map(str::to_owned).collect();
}

fn max_tokens(body: &Body<'_>) -> Option<u64> {
    let first = body.get("max_completion_tokens").and_then(parse_u64);
    first.or_else(|| body.get("max_tokens").and_then(parse_u64))
}

fn flag(body: &Body<'_>, name: &'static str) -> Result<bool, RequestError> {
    match body.get(name) {
        Some(b"true") => Ok(true),
        None | Some(b"false" | b"null") => Ok(false),
        Some(_) => Err(RequestError::WrongType {
            member: name,
            expected: "a boolean",
        }),
    }
}

/// A member that is an object; empty where it is missing or null.
fn nested<'a>(body: &'a Body<'_>, name: &'static str) -> Result<Body<'a>, RequestError> {
    match body.get(name) {
        None | Some(b"null") => Ok(Body::default()),
        Some(value) if value.starts_with(b"{") => Body::read(value),
        Some(_) => Err(RequestError::WrongType {
            member: name,
            expected: "an object",
        }),
    }
}

fn string(text: &str) -> Vec<u8> {
    let mut out = Vec::new();
    crate::scan::write_string(text, &mut out);
    out
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}
