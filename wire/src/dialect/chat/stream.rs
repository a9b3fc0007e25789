use super::layout::{Layout, Name};
use super::reply::{Form, Reply};
use super::strip::{Strip, View};
use super::tokens::Keep;
use super::{answer, assess};
use crate::call::CallEnd;
use crate::capture::{Captured, RequestFacts, StreamEnd, StreamError, StreamSeen};
use crate::dialect::StreamCapture;
use crate::scan::{Edits, Reader};
use crate::sse::{Event, Splitter};
use bytes::{BufMut, BytesMut};

/// A streamed reply.
pub(super) struct ChatStream {
    splitter: Splitter,
    events: Events,
}

/// What is made of the events.
struct Events {
    facts: RequestFacts,
    view: View,
    strip: Strip,
    reply: Reply,
    seen: StreamSeen,
    held: Held,
    layout: Layout,
    edits: Edits,
}

/// The event with a finish_reason, for as long as the count of tokens may follow: where that event is not for the
/// agent, members of it belong to this one (vLLM's system_fingerprint, llama.cpp's timings).
#[derive(Default)]
struct Held {
    bytes: BytesMut,
    /// Where members are added; `None` where that is not possible.
    members_end: Option<usize>,
    /// Names it has.
    names: Vec<Vec<u8>>,
}

impl ChatStream {
    pub(super) fn new(facts: RequestFacts, event_limit_bytes: usize) -> Self {
        let view = View::of_agent(&facts);
        Self {
            splitter: Splitter::new(event_limit_bytes),
            events: Events {
                facts,
                view,
                strip: Strip::new(view),
                reply: Reply::default(),
                seen: StreamSeen::default(),
                held: Held::default(),
                layout: Layout::default(),
                edits: Edits::default(),
            },
        }
    }
}

impl StreamCapture for ChatStream {
    fn push(&mut self, chunk: &[u8], out: &mut BytesMut) -> Result<(), StreamError> {
        self.events.seen.own_words_at = self.events.speaks_for_itself().then_some(out.len());
        let mut events = self.splitter.push(chunk);
        loop {
            match events.next() {
                Ok(Some(event)) => self.events.take(&event, out),
                Ok(None) => return Ok(()),
                Err(error) => {
                    self.events.reply.incomplete = true;
                    return Err(StreamError::EventTooLarge {
                        limit_bytes: error.limit_bytes,
                    });
                }
            }
        }
    }

    fn holds(&self) -> bool {
        !self.events.held.bytes.is_empty()
    }

    fn release(&mut self, out: &mut BytesMut) {
        self.events.held.release(out);
    }

    fn seen(&self) -> StreamSeen {
        self.events.seen
    }

    fn sampled(&self) -> &[String] {
        let first = self.events.reply.choices.first();
        first.map_or(&[], |choice| choice.tokens.names())
    }

    fn finish(&mut self, end: StreamEnd, out: &mut BytesMut) -> Captured {
        if let Some(event) = self.splitter.rest()
            && let Some(data) = event.data()
        {
            // Of a whole body the last event may lack its blank line; else it is a piece.
            let whole = data.trim_ascii() == b"[DONE]" || Reader::new(&data).skip().is_ok();
            if whole && end == StreamEnd::EndOfBody {
                let before = out.len();
                self.events.take(&event, out);
                if out.len() > before {
                    out.put_slice(b"\n\n");
                }
            } else {
                self.events.reply.incomplete = true;
            }
        }
        self.events.held.release(out);
        self.events.finish(end)
    }

    fn fail(&mut self, message: &str, out: &mut BytesMut) {
        out.extend_from_slice(&answer::error_event(message));
    }
}

impl Events {
    fn take(&mut self, event: &Event<'_>, out: &mut BytesMut) {
        if self.seen.done {
            return;
        }
        let Some(data) = event.data() else {
            // A comment has no place in the order of events; it says that the connection lives.
            out.extend_from_slice(event.raw);
            return;
        };
        match data.trim_ascii() {
            b"[DONE]" => {
                self.seen.done = true;
                self.seen.finished = self.is_finished();
                if self.seen.finished || self.seen.error {
                    self.held.release(out);
                    out.extend_from_slice(event.raw);
                }
                return;
            }
            // Says nothing, and no agent can read it.
            b"null" => return,
            _ => {}
        }
        let keep = Keep::of(&self.facts);
        let read = self.reply.read(&data, Form::Delta, keep, &mut self.layout);
        let named_error = !event.raw.starts_with(b"data") && event.name() == Some(b"error");
        if named_error && self.reply.error.is_none() {
            self.reply.error = Some(String::from_utf8_lossy(&data).into_owned());
        }
        self.seen.malformed |= read.is_err();
        self.reply.incomplete |= read.is_err();
        if read.is_err() || self.reply.error.is_some() {
            self.seen.error |= self.reply.error.is_some();
            self.held.release(out);
            self.seen.own_words_at.get_or_insert(out.len());
            out.extend_from_slice(event.raw);
            return;
        }
        self.seen.content |= !self.layout.choices.is_empty();
        if self.seen.prompt_tokens.is_none() {
            self.seen.prompt_tokens = self.reply.prompt_token_ids.as_ref().map(|ids| ids.len() as u64);
        }
        let finishes = self.layout.choices.iter().any(|choice| choice.finished);
        if finishes {
            self.seen.finished = self.is_finished();
        }
        self.strip.look(&data, &self.layout);
        let count_only = self.layout.choices.is_empty()
            && self
                .layout
                .top_named(Name::Usage)
                .is_some_and(|usage| usage.says(&data));
        if count_only && !self.view.usage() {
            self.held.adopt(&data, &self.layout);
            self.held.release(out);
        } else if !self.strip.drops(&data, &self.layout) {
            self.edits.clear();
            // What was read once is read again without error.
            let _ = self.strip.edit(&data, &self.layout, &mut self.edits);
            self.held.release(out);
            if finishes && !self.view.usage() {
                self.held.hold(event, &data, &self.layout, &self.edits);
            } else {
                write(event, &data, &self.edits, out);
            }
        }
    }

    /// Whether something came that is no part of a reply.
    fn speaks_for_itself(&self) -> bool {
        self.seen.error || self.seen.malformed
    }

    /// Whether every choice has its finish_reason: all that were asked for, or, after the last event, all there are.
    fn is_finished(&self) -> bool {
        let choices = &self.reply.choices;
        let all_there = self.seen.done || choices.len() >= self.facts.choices as usize;
        all_there && !choices.is_empty() && choices.iter().all(|choice| choice.finish_reason.is_some())
    }

    fn finish(&mut self, end: StreamEnd) -> Captured {
        let mut reply = std::mem::take(&mut self.reply);
        let seen = self.seen;
        let (end, error) = match end {
            _ if seen.error => (CallEnd::UpstreamError, reply.error.take()),
            _ if seen.finished && seen.done => (CallEnd::Complete, None),
            StreamEnd::EndOfBody if seen.finished => (CallEnd::Complete, None),
            StreamEnd::EndOfBody => (
                CallEnd::UpstreamCut,
                Some("the endpoint's stream ended without a finish_reason".into()),
            ),
            StreamEnd::Cut => (
                CallEnd::UpstreamCut,
                Some("the endpoint's stream broke off".into()),
            ),
            StreamEnd::DownstreamGone => (CallEnd::DownstreamGone, None),
        };
        let document = assess::document(&mut reply);
        assess::captured(reply, &self.facts, end, error, document)
    }
}

impl Held {
    fn hold(&mut self, event: &Event<'_>, data: &[u8], layout: &Layout, edits: &Edits) {
        write(event, data, edits, &mut self.bytes);
        let after_members = event
            .frame()
            .map(|(_, after)| after.len() + data.len() - layout.members_end);
        self.members_end = after_members.and_then(|length| self.bytes.len().checked_sub(length));
        self.names.clear();
        self.names
            .extend(layout.top.iter().map(|part| name_at(data, part.start).to_vec()));
    }

    /// Takes over the members of another event that are not there already and do not name or count anything.
    fn adopt(&mut self, data: &[u8], layout: &Layout) {
        let Some(end) = self.members_end.filter(|end| *end <= self.bytes.len()) else {
            return;
        };
        if self.bytes.is_empty() {
            return;
        }
        let tail = self.bytes.split_off(end);
        for part in layout
            .top
            .iter()
            .filter(|part| part.name == Name::Other && part.says(data))
        {
            if self.names.iter().any(|name| name == name_at(data, part.start)) {
                continue;
            }
            self.bytes.put_u8(b',');
            self.bytes
                .extend_from_slice(data.get(part.start..part.value_end).unwrap_or_default());
        }
        self.bytes.extend_from_slice(&tail);
    }

    fn release(&mut self, out: &mut BytesMut) {
        out.extend_from_slice(&self.bytes);
        self.bytes.clear();
    }
}

/// The name of the member that starts there, without its quotes.
fn name_at(text: &[u8], start: usize) -> &[u8] {
    let mut reader = Reader::starting_at(text, start);
    reader.string().map_or(&[], |name| reader.slice(name))
}

fn write(event: &Event<'_>, data: &[u8], edits: &Edits, out: &mut BytesMut) {
    match event.frame() {
        _ if edits.is_empty() => out.extend_from_slice(event.raw),
        Some((before, after)) => {
            out.extend_from_slice(before);
            edits.write(data, out);
            out.extend_from_slice(after);
        }
        None => {
            let mut edited = BytesMut::with_capacity(edits.length_of(data));
            edits.write(data, &mut edited);
            event.write_with(&edited, out);
        }
    }
}
