use super::reply::{Reply, member};
use crate::call::{CallEnd, CaptureLevel, Flag};
use crate::capture::{Ask, Captured, RequestFacts};
use crate::scan::{decode_string, sound, string_body};
use bytes::Bytes;
use std::borrow::Cow;

/// The longest error that is kept as a message.
const ERROR_BYTES: usize = 2000;

/// Says what a reply was worth. `response` is the reply as one document.
pub(super) fn captured(
    mut reply: Reply,
    facts: &RequestFacts,
    end: CallEnd,
    error: Option<String>,
    response: Bytes,
) -> Captured {
    reply.choices.sort_by_key(|choice| choice.index);
    let flags = flags(&reply, facts, end);
    let level = level(&reply, &flags);
    let model = reply.model();
    let entries = reply
        .choices
        .first_mut()
        .map(|choice| choice.tokens.take_entries());
    let completions = reply.choices.into_iter().map(|choice| {
        let stop_reason = choice.stop_reason.filter(|reason| reason != b"null");
        let mut completion = choice.tokens.into_completion(choice.index);
        completion.finish_reason = choice
            .finish_reason
            .map(|reason| decode_string(&reason).into_owned());
        completion.stop_reason = stop_reason.map(|reason| String::from_utf8_lossy(&reason).into_owned());
        completion
    });
    Captured {
        end,
        error: error.map(shortened),
        completions: completions.collect(),
        entries: entries.unwrap_or_default(),
        prompt_token_ids: reply.prompt_token_ids,
        usage: reply.usage,
        model,
        response,
        flags,
        level,
    }
}

fn flags(reply: &Reply, facts: &RequestFacts, end: CallEnd) -> Vec<Flag> {
    let mut flags: Vec<Flag> = reply
        .choices
        .iter()
        .flat_map(|choice| choice.tokens.flags())
        .collect();
    let mut add = |applies: bool, flag: Flag| flags.extend(applies.then_some(flag));
    // Of a call that did not end well these say nothing.
    if end == CallEnd::Complete {
        let ids: usize = reply.choices.iter().map(|choice| choice.tokens.count()).sum();
        let counted = reply.usage.map(|usage| usage.completion_tokens);
        let asked = facts.ask == Ask::Tokens;
        add(
            asked && counted.is_some_and(|counted| counted != ids as u64),
            Flag::TokensMissing,
        );
        add(counted.is_none(), Flag::UsageMissing);
        add(asked && reply.prompt_token_ids.is_none(), Flag::PromptIdsMissing);
    }
    let is_cut = |reason: &Option<Vec<u8>>| reason.as_deref() == Some(b"length");
    add(
        reply.choices.len() > 1 || facts.choices > 1,
        Flag::MultipleChoices,
    );
    add(facts.sampling_altered, Flag::SamplingAltered);
    add(
        reply.choices.iter().any(|choice| is_cut(&choice.finish_reason)),
        Flag::Truncated,
    );
    add(reply.incomplete, Flag::CaptureIncomplete);
    flags.sort_unstable();
    flags.dedup();
    flags
}

fn level(reply: &Reply, flags: &[Flag]) -> CaptureLevel {
    let lessened = [
        Flag::IdsDisagree,
        Flag::LengthMismatch,
        Flag::TokensMissing,
        Flag::CaptureIncomplete,
    ];
    let every = reply.choices.iter().all(|choice| {
        choice.tokens.count() == choice.tokens.logprobs()
            && (choice.tokens.count() > 0 || none_sampled(reply))
    });
    let whole = !reply.choices.is_empty() && every && !lessened.iter().any(|flag| flags.contains(flag));
    if whole && reply.prompt_token_ids.is_some() {
        CaptureLevel::Tokens
    } else if reply.choices.iter().any(|choice| choice.tokens.logprobs() > 0) {
        CaptureLevel::Logprobs
    } else {
        CaptureLevel::Text
    }
}

fn none_sampled(reply: &Reply) -> bool {
    reply.usage.is_some_and(|usage| usage.completion_tokens == 0)
}

/// A streamed reply as the document it would have been without streaming; empty where nothing came.
pub(super) fn document(reply: &mut Reply) -> Bytes {
    if reply.choices.is_empty() && reply.members.is_empty() {
        return Bytes::new();
    }
    let written = write(reply);
    if let Some(document) = sound(&written) {
        return match document {
            Cow::Borrowed(_) => Bytes::from(written),
            Cow::Owned(repaired) => Bytes::from(repaired),
        };
    }
    reply.incomplete = true;
    reply.scrub();
    let written = write(reply);
    sound(&written)
        .map(|document| Bytes::from(document.into_owned()))
        .unwrap_or_default()
}

fn write(reply: &Reply) -> Vec<u8> {
    let mut out = b"{".to_vec();
    let mut comma = b"".as_slice();
    let mut field = |key: &[u8], out: &mut Vec<u8>| {
        out.extend_from_slice(comma);
        out.push(b'"');
        out.extend_from_slice(key);
        out.extend_from_slice(b"\":");
        comma = b",";
    };
    let (head, tail): (Vec<_>, Vec<_>) = reply
        .members
        .iter()
        .filter(|member| member.key != b"object" || reply.choices.is_empty())
        .partition(|member| matches!(member.key.as_slice(), b"id" | b"created" | b"model"));
    for member in head {
        field(&member.key, &mut out);
        out.extend_from_slice(&member.value);
    }
    if !reply.choices.is_empty() {
        field(b"object", &mut out);
        out.extend_from_slice(b"\"chat.completion\"");
        field(b"choices", &mut out);
        write_choices(reply, &mut out);
    }
    for member in tail {
        field(&member.key, &mut out);
        out.extend_from_slice(&member.value);
    }
    out.push(b'}');
    out
}

fn write_choices(reply: &Reply, out: &mut Vec<u8>) {
    let mut order: Vec<_> = reply.choices.iter().collect();
    order.sort_by_key(|choice| choice.index);
    out.push(b'[');
    for (position, choice) in order.into_iter().enumerate() {
        let comma = if position > 0 { "," } else { "" };
        out.extend_from_slice(format!("{comma}{{\"index\":{},\"message\":", choice.index).as_bytes());
        choice.message.write(out);
        out.extend_from_slice(b",\"finish_reason\":");
        match &choice.finish_reason {
            Some(reason) => {
                out.push(b'"');
                out.extend_from_slice(reason);
                out.push(b'"');
            }
            None => out.extend_from_slice(b"null"),
        }
        if let Some(reason) = &choice.stop_reason {
            out.extend_from_slice(b",\"stop_reason\":");
            out.extend_from_slice(reason);
        }
        for member in &choice.members {
            member.write_after(out);
        }
        out.push(b'}');
    }
    out.push(b']');
}

/// See [`Dialect::refused_reply`](crate::dialect::Dialect::refused_reply).
pub(super) fn refused_reply(status: u16, body: &Bytes) -> Captured {
    let message = error_message(body);
    Captured {
        end: CallEnd::UpstreamError,
        error: Some(shortened(format!("the endpoint answered {status}: {message}"))),
        prompt_token_ids: None,
        completions: Vec::new(),
        entries: Bytes::new(),
        usage: None,
        model: None,
        response: body.clone(),
        flags: Vec::new(),
        level: CaptureLevel::Text,
    }
}

/// The words of an error, wherever its body has them; the body where it has none.
pub(crate) fn error_message(body: &[u8]) -> Cow<'_, str> {
    let error = member(body, "error")
        .filter(|error| *error != b"null")
        .unwrap_or(body);
    let message = member(error, "message")
        .or_else(|| string_body(error).map(|_| error))
        .unwrap_or(error);
    string_body(message).map_or_else(|| String::from_utf8_lossy(message), decode_string)
}

fn shortened(mut message: String) -> String {
    if message.len() > ERROR_BYTES {
        let end = (0..=ERROR_BYTES)
            .rev()
            .find(|end| message.is_char_boundary(*end))
            .unwrap_or(0);
        message.truncate(end);
        message.push('…');
    }
    message
}
