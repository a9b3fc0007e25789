use super::assess;
use super::layout::Layout;
use super::reply::{Form, Reply};
use super::strip::{Strip, View};
use super::tokens::Keep;
use crate::call::CallEnd;
use crate::capture::{Captured, RequestFacts};
use crate::scan::{Edits, sound};
use bytes::{Bytes, BytesMut};
use std::borrow::Cow;

/// See [`ChatCompletions::unary`](super::ChatCompletions::unary).
pub(super) fn capture(body: &Bytes, facts: &RequestFacts) -> (Bytes, Captured) {
    let (mut reply, mut layout) = (Reply::default(), Layout::default());
    if let Err(error) = reply.read(body, Form::Whole, Keep::of(facts), &mut layout) {
        let reply = Reply {
            incomplete: true,
            ..Reply::default()
        };
        let message = format!("the endpoint's reply is not JSON: {error}");
        let captured = assess::captured(reply, facts, CallEnd::UpstreamError, Some(message), body.clone());
        return (body.clone(), captured);
    }
    if reply.error.is_some() || reply.choices.is_empty() {
        let message = reply
            .error
            .take()
            .unwrap_or_else(|| "the endpoint's reply has no choice".into());
        let captured = assess::captured(reply, facts, CallEnd::UpstreamError, Some(message), body.clone());
        return (body.clone(), captured);
    }
    reply.incomplete |= reply.choices.iter().any(|choice| choice.finish_reason.is_none());
    let (for_agent, for_record) = (View::of_agent(facts), View::of_document());
    let mut strip = Strip::new(for_agent);
    strip.look(body, &layout);
    let stripped = stripped(&strip, body, &layout);
    let document = if for_agent == for_record {
        stripped.clone()
    } else {
        self::stripped(&strip.with_view(for_record), body, &layout)
    };
    let document = match sound(&document) {
        Some(Cow::Borrowed(_)) => document,
        Some(Cow::Owned(repaired)) => Bytes::from(repaired),
        None => return not_json(body, facts, "a value in it is malformed"),
    };
    (
        stripped,
        assess::captured(reply, facts, CallEnd::Complete, None, document),
    )
}

/// A body that cannot be read goes to the agent as it is: it would have got no other.
fn not_json(body: &Bytes, facts: &RequestFacts, why: &str) -> (Bytes, Captured) {
    let reply = Reply {
        incomplete: true,
        ..Reply::default()
    };
    let message = format!("the endpoint's reply is not JSON: {why}");
    let captured = assess::captured(reply, facts, CallEnd::UpstreamError, Some(message), body.clone());
    (body.clone(), captured)
}

fn stripped(strip: &Strip, body: &Bytes, layout: &Layout) -> Bytes {
    let mut edits = Edits::default();
    // What was read once is read again without error.
    if strip.edit(body, layout, &mut edits).is_err() || edits.is_empty() {
        return body.clone();
    }
    let mut out = BytesMut::with_capacity(edits.length_of(body));
    edits.write(body, &mut out);
    out.freeze()
}
