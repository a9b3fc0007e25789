use super::flow::{Flow, Writer};
use super::reply::Reply;
use super::{Fields, Lost};
use crate::call::{CallEnd, CallMeta, Change, DialectName, Flag};
use crate::capture::{
    Captured, Prepared, RequestError, RequestFacts, RequestRules, Shown, StreamEnd, StreamError, StreamForm,
    StreamSeen, WayBack,
};
use crate::dialect::chat::{self, ChatCompletions};
use crate::dialect::{Asked, Dialect, ModelEntry, SideRoute, StreamCapture, Target};
use crate::scan::canonical;
use crate::sse::Splitter;
use crate::trajectory::BodyShape;
use bytes::{Bytes, BytesMut};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use std::sync::Arc;

/// What a dialect says, and how it is said in chat completions.
pub(crate) trait Translation: Send + Sync {
    /// The dialect's name.
    fn name(&self) -> DialectName;

    /// See [`Dialect::route`].
    fn route(&self, asked: &Asked<'_>) -> Option<Target>;

    /// See [`Dialect::side_route`].
    fn side_route(&self, asked: &Asked<'_>) -> Option<SideRoute>;

    /// What of a body tells no retry from what it repeats.
    fn not_in_retry_key(&self) -> &'static [&'static str];

    /// A text that belongs to the key of retries beside the rest of the body.
    fn more_of_retry_key(&self, _fields: &Fields<'_>) -> String {
        String::new()
    }

    /// The request in chat completions, without what the tap decides.
    fn request(
        &self,
        target: &Target,
        fields: Fields<'_>,
        lost: &mut Lost,
    ) -> Result<ChatRequest, RequestError>;

    /// What a body says that asks for a number of tokens: the body whose tokens are meant.
    ///
    /// # Errors
    /// The body has another in it that is none.
    fn counted_request<'b>(&self, fields: Fields<'b>) -> Result<Fields<'b>, RequestError> {
        Ok(fields)
    }

    /// A reply of this dialect as the conversation of a request, as an agent hands it back; `None` where it is none.
    fn handed_back(&self, reply: Map<String, Value>) -> Option<Map<String, Value>>;

    /// The reply as one document.
    fn document(&self, reply: &Reply, facts: &RequestFacts) -> Vec<u8>;

    /// What writes a streamed reply.
    fn writer(&self, facts: &RequestFacts) -> Box<dyn Writer>;

    /// The body of an error.
    fn error_body(&self, status: u16, message: &str) -> Vec<u8>;

    /// What keeps a stream alive.
    fn keep_alive(&self) -> &'static [u8];

    /// See [`Dialect::token_count`].
    fn token_count(&self, tokens: u64) -> Option<Vec<u8>>;

    /// See [`Dialect::models`].
    fn models(&self, models: &[ModelEntry]) -> Option<Vec<u8>>;

    /// See [`Dialect::model`].
    fn model(&self, model: &ModelEntry) -> Option<Vec<u8>>;

    /// See [`Dialect::shape`].
    fn shape(&self) -> &'static BodyShape;
}

/// A request in chat completions.
#[derive(Debug, Default)]
pub(crate) struct ChatRequest {
    /// The members of its body, each behind a comma.
    members: Vec<u8>,
    /// What is needed for the reply.
    pub(crate) way_back: WayBack,
    /// How the stream is written.
    pub(crate) form: StreamForm,
}

impl ChatRequest {
    /// Puts a member in, once, where there is one; its value is a JSON text.
    pub(crate) fn set(&mut self, name: &str, value: Option<impl AsRef<[u8]>>) {
        if let Some(value) = value {
            self.members.extend_from_slice(b",\"");
            self.members.extend_from_slice(name.as_bytes());
            self.members.extend_from_slice(b"\":");
            self.members.extend_from_slice(value.as_ref());
        }
    }

    /// Asks for a stream, with a count at its end.
    pub(crate) fn set_stream(&mut self) {
        self.set("stream", Some("true"));
        self.set("stream_options", Some("{\"include_usage\":true}"));
    }

    /// Asks not to think: templates of Qwen and others have a switch.
    pub(crate) fn set_no_thinking(&mut self) {
        self.set("chat_template_kwargs", Some("{\"enable_thinking\":false}"));
    }

    fn body(&self) -> Bytes {
        let members = self.members.get(1..).unwrap_or_default();
        Bytes::from([b"{", members, b"}"].concat())
    }
}

/// A dialect that endpoints are asked for in chat completions.
#[derive(Clone, Copy)]
pub struct Translated(pub(crate) &'static dyn Translation);

impl std::fmt::Debug for Translated {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Translated").field(&self.0.name()).finish()
    }
}

impl Translated {
    /// The members of a request, with the key that is the same in all attempts of the call.
    fn read<'b>(&self, target: &Target, body: &'b Bytes) -> Result<(Fields<'b>, String), RequestError> {
        let text = canonical(body, self.0.not_in_retry_key())?;
        let fields = Fields::of_request(body)?;
        let mut hash = Sha256::new();
        hash.update(&text);
        hash.update(target.model.as_deref().unwrap_or_default());
        let key = chat::hex(&hash.finalize());
        let more = self.0.more_of_retry_key(&fields);
        let key = if more.is_empty() {
            key
        } else {
            chat::hex(&Sha256::digest(format!("{key}{more}")))
        };
        Ok((fields, key))
    }

    /// A document of the dialect as a stream.
    fn replay(&self, reply: Reply, facts: &RequestFacts) -> Bytes {
        let mut out = BytesMut::new();
        Flow::replay(reply, self.0.writer(facts), &mut out);
        out.freeze()
    }
}

impl Dialect for Translated {
    fn name(&self) -> DialectName {
        self.0.name()
    }

    fn route(&self, asked: &Asked<'_>) -> Option<Target> {
        self.0.route(asked)
    }

    fn side_route(&self, asked: &Asked<'_>) -> Option<SideRoute> {
        self.0.side_route(asked)
    }

    fn prepare(&self, target: &Target, body: &Bytes, rules: &RequestRules) -> Result<Prepared, RequestError> {
        let (fields, retry_body_sha256) = self.read(target, body)?;
        let mut lost = Lost::default();
        let request = self.0.request(target, fields, &mut lost)?;
        let mut prepared = chat::edit(&request.body(), rules)?;
        let facts = &mut prepared.facts;
        facts.retry_body_sha256 = retry_body_sha256;
        facts.untranslated = lost.into_names();
        facts.way_back = Arc::new(request.way_back);
        facts.form = request.form;
        Ok(prepared)
    }

    fn refused(&self, status: u16, body: &[u8], facts: &RequestFacts) -> Vec<Change> {
        ChatCompletions.refused(status, body, facts)
    }

    fn stream(&self, facts: &RequestFacts, event_limit_bytes: usize) -> Box<dyn StreamCapture> {
        Box::new(TranslatedStream {
            incoming: Splitter::new(event_limit_bytes),
            way: Way {
                dialect: *self,
                chat: ChatCompletions.stream(facts, event_limit_bytes),
                // What comes out of there is not larger, but for names that move between events.
                splitter: Splitter::new(event_limit_bytes.saturating_mul(2)),
                chat_out: BytesMut::new(),
                flow: Flow::new(self.0.writer(facts)),
                own_words_at: None,
                unreadable: None,
            },
            facts: facts.clone(),
        })
    }

    fn whole(&self, body: &Bytes, facts: &RequestFacts) -> (Shown, Captured) {
        let (document, mut captured) = ChatCompletions.unary(body, facts);
        if captured.end != CallEnd::Complete {
            return (Shown::Nothing, captured);
        }
        let Some(reply) = Reply::of_document(&document) else {
            captured.end = CallEnd::UpstreamError;
            captured.error = Some("the endpoint's reply cannot be translated".into());
            return (Shown::Nothing, captured);
        };
        captured.response = self.0.document(&reply, facts).into();
        let shown = if facts.streamed {
            Shown::Stream(self.replay(reply, facts))
        } else {
            Shown::Document(captured.response.clone())
        };
        (shown, captured)
    }

    fn refused_reply(&self, status: u16, body: &Bytes) -> (Option<Bytes>, Captured) {
        let (_, mut captured) = ChatCompletions.refused_reply(status, body);
        let body = Bytes::from(self.0.error_body(status, &chat::error_message(body)));
        captured.response = body.clone();
        (Some(body), captured)
    }

    fn error_event(&self, status: u16, message: &str, form: StreamForm) -> Bytes {
        let facts = RequestFacts {
            form,
            ..RequestFacts::default()
        };
        let mut out = BytesMut::new();
        self.0
            .writer(&facts)
            .fail(&Reply::default(), status, message, &mut out);
        out.freeze()
    }

    fn error_body(&self, status: u16, message: &str, _: &str) -> Bytes {
        self.0.error_body(status, message).into()
    }

    fn assistant_reply(&self, text: &str, facts: &RequestFacts, created_unix_s: u64) -> Bytes {
        let unary = RequestFacts {
            streamed: false,
            ..facts.clone()
        };
        let chat = ChatCompletions.assistant_reply(text, &unary, created_unix_s);
        // It is our own, and can be read.
        let reply = Reply::of_document(&chat).unwrap_or_default();
        if facts.streamed {
            self.replay(reply, facts)
        } else {
            self.0.document(&reply, facts).into()
        }
    }

    fn keep_alive(&self) -> Bytes {
        Bytes::from_static(self.0.keep_alive())
    }

    fn token_count(&self, tokens: u64) -> Option<Bytes> {
        self.0.token_count(tokens).map(Into::into)
    }

    fn to_be_counted(&self, target: &Target, body: &Bytes) -> Result<Bytes, RequestError> {
        let (fields, _) = self.read(target, body)?;
        let fields = self.0.counted_request(fields)?;
        Ok(self.0.request(target, fields, &mut Lost::default())?.body())
    }

    fn chat_request(&self, target: &Target, body: &Bytes) -> Result<Bytes, RequestError> {
        let fields = Fields::of_request(body)?;
        Ok(self.0.request(target, fields, &mut Lost::default())?.body())
    }

    fn chat_reply(
        &self,
        request: &Bytes,
        reply: &Bytes,
        meta: &CallMeta,
        finish_reason: Option<&str>,
    ) -> Option<Bytes> {
        let mut handed_back = self.0.handed_back(serde_json::from_slice(reply).ok()?)?;
        // The tools say under which names calls of them are known.
        let mut request: Map<String, Value> = serde_json::from_slice(request).ok()?;
        if let Some(tools) = request.shift_remove(self.0.shape().tools) {
            handed_back.insert(self.0.shape().tools.to_owned(), tools);
        }
        let handed_back = Bytes::from(Value::Object(handed_back).to_string());
        let chat = self.chat_request(&Target::default(), &handed_back).ok()?;
        let mut chat: Map<String, Value> = serde_json::from_slice(&chat).ok()?;
        let message = as_one(chat.shift_remove("messages")?)?;
        let usage = meta.usage.map(|usage| {
            json!({
                "prompt_tokens": usage.prompt_tokens,
                "completion_tokens": usage.completion_tokens,
                "total_tokens": usage.prompt_tokens.saturating_add(usage.completion_tokens),
            })
        });
        let document = json!({
            "object": "chat.completion",
            "model": meta.model,
            "choices": [{"index": 0, "message": message, "finish_reason": finish_reason}],
            "usage": usage,
        });
        Some(document.to_string().into())
    }

    fn models(&self, models: &[ModelEntry]) -> Option<Bytes> {
        self.0.models(models).map(Into::into)
    }

    fn model(&self, model: &ModelEntry) -> Option<Bytes> {
        self.0.model(model).map(Into::into)
    }

    fn shape(&self) -> &'static BodyShape {
        self.0.shape()
    }
}

/// What the assistant said as one message, which it was in chat completions: handed back, what follows a call of a tool
/// begins another.
fn as_one(messages: Value) -> Option<Value> {
    let Value::Array(messages) = messages else {
        return None;
    };
    let mut one: Option<Map<String, Value>> = None;
    for message in messages {
        let Value::Object(more) = message else { continue };
        let Some(one) = &mut one else {
            one = Some(more);
            continue;
        };
        for (name, value) in more {
            match (one.get_mut(&name), value) {
                (Some(Value::String(text)), Value::String(more)) if name != "role" => text.push_str(&more),
                (Some(Value::Array(items)), Value::Array(more)) => items.extend(more),
                (None | Some(Value::Null), value) => {
                    one.insert(name, value);
                }
                _ => {}
            }
        }
    }
    one.map(Value::Object)
}

/// A streamed reply: captured as a chat completion, and what the agent would get of that, translated.
///
/// An event goes all the way before the next one is looked at, so that nothing is captured of what comes after an event
/// that cannot be translated, wherever the chunks end.
struct TranslatedStream {
    incoming: Splitter,
    way: Way,
    facts: RequestFacts,
}

/// The way of an event through the capture and the translation.
struct Way {
    dialect: Translated,
    chat: Box<dyn StreamCapture>,
    splitter: Splitter,
    /// What the agent would get in chat completions.
    chat_out: BytesMut,
    flow: Flow,
    own_words_at: Option<usize>,
    /// Why nothing more is translated: the agent would not notice that a piece is missing.
    unreadable: Option<StreamError>,
}

impl Way {
    /// Takes an event, or what there is of it.
    fn take(&mut self, raw: &[u8], out: &mut BytesMut) -> Result<(), StreamError> {
        let pushed = self.chat.push(raw, &mut self.chat_out);
        self.translate(out)?;
        self.unreadable = pushed.err();
        pushed
    }

    /// Translates what the capture has let out.
    fn translate(&mut self, out: &mut BytesMut) -> Result<(), StreamError> {
        if let Some(error) = self.unreadable {
            return Err(error);
        }
        let start = out.len();
        let seen = self.chat.seen();
        self.own_words_at = self.own_words_at.or(seen.own_words_at.map(|_| start));
        self.flow.prompt_is(seen.prompt_tokens);
        let mut events = self.splitter.push(&self.chat_out);
        let result = loop {
            match events.next() {
                Ok(Some(event)) => {
                    let Some(data) = event.data() else {
                        // A comment says that the connection lives.
                        if event.raw.starts_with(b":") {
                            out.extend_from_slice(self.dialect.0.keep_alive());
                        }
                        continue;
                    };
                    if data.trim_ascii() == b"[DONE]" {
                        self.flow.end(out);
                    } else if self.flow.take(&data, out).is_err() {
                        break Err(StreamError::Malformed);
                    }
                }
                Ok(None) => break Ok(()),
                Err(error) => {
                    break Err(StreamError::EventTooLarge {
                        limit_bytes: error.limit_bytes,
                    });
                }
            }
        };
        self.chat_out.clear();
        self.unreadable = result.err();
        result
    }
}

impl StreamCapture for TranslatedStream {
    fn push(&mut self, chunk: &[u8], out: &mut BytesMut) -> Result<(), StreamError> {
        let Self { incoming, way, .. } = self;
        way.own_words_at = None;
        if let Some(error) = way.unreadable {
            return Err(error);
        }
        let mut events = incoming.push(chunk);
        loop {
            match events.next() {
                Ok(Some(event)) => way.take(event.raw, out)?,
                Ok(None) => return Ok(()),
                Err(error) => {
                    let error = StreamError::EventTooLarge {
                        limit_bytes: error.limit_bytes,
                    };
                    way.unreadable = Some(error);
                    return Err(error);
                }
            }
        }
    }

    fn holds(&self) -> bool {
        self.way.chat.holds()
    }

    fn release(&mut self, out: &mut BytesMut) {
        let way = &mut self.way;
        way.chat.release(&mut way.chat_out);
        // What is held back was read already.
        let _ = way.translate(out);
    }

    fn seen(&self) -> StreamSeen {
        let seen = self.way.chat.seen();
        StreamSeen {
            // The agent has it all only when the dialect's own last event is out.
            finished: seen.finished && self.way.flow.is_over(),
            // An error in an event that cannot be read otherwise is not told yet.
            error: seen.error && self.way.flow.has_failed(),
            own_words_at: self.way.own_words_at,
            ..seen
        }
    }

    fn sampled(&self) -> &[String] {
        self.way.chat.sampled()
    }

    fn finish(&mut self, end: StreamEnd, out: &mut BytesMut) -> Captured {
        let way = &mut self.way;
        if let Some(rest) = self.incoming.rest()
            && way.unreadable.is_none()
        {
            // What is left is no whole event, and kept until the capture says what to make of it.
            let _ = way.take(rest.raw, out);
        }
        let mut captured = way.chat.finish(end, &mut way.chat_out);
        // A stream that was not read to its end has not ended well, whatever came after.
        if let Err(error) = way.translate(out) {
            captured.flags.push(Flag::CaptureIncomplete);
            captured.flags.sort_unstable();
            captured.flags.dedup();
            if captured.end == CallEnd::Complete {
                captured.end = CallEnd::UpstreamCut;
                captured.error = Some(error.to_string());
            }
        }
        if captured.end == CallEnd::Complete {
            way.flow.end(out);
        }
        if way.flow.has_begun() {
            captured.response = way.dialect.0.document(way.flow.reply(), &self.facts).into();
        } else if !captured.response.is_empty() {
            let message = captured.error.as_deref().unwrap_or_default();
            captured.response = way.dialect.0.error_body(500, message).into();
        }
        captured
    }

    fn fail(&mut self, message: &str, out: &mut BytesMut) {
        self.way.flow.fail(502, message, out);
    }
}
