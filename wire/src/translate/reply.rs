use super::chunk::{Chunk, Counts};
use super::json::sound_body;
use crate::scan::{Reader, decode_string};

/// A reply, as far as it has come.
#[derive(Debug, Default)]
pub(crate) struct Reply {
    /// The endpoint's name for it.
    pub(crate) id: String,
    /// The model that answers.
    pub(crate) model: String,
    /// Seconds since the Unix epoch.
    pub(crate) created_unix_s: u64,
    /// What it says, in order.
    pub(crate) blocks: Vec<Block>,
    /// Why it ended; `None` while it has not.
    pub(crate) finish_reason: Option<String>,
    /// The text that ended it.
    pub(crate) stop_text: Option<String>,
    /// What the endpoint counted.
    pub(crate) counts: Option<Counts>,
    /// Tokens of the prompt, where they were known before the count.
    pub(crate) prompt_tokens: Option<u64>,
}

/// What a block is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Reasoning,
    Text,
    Refusal,
    Call,
}

/// A part of a reply that is one thing.
#[derive(Debug)]
pub(crate) struct Block {
    pub(crate) kind: Kind,
    /// What it says, or the arguments of the call: what stands between the quotes of a string.
    pub(crate) text: Vec<u8>,
    /// The endpoint's id of the call, or one made for it.
    pub(crate) id: String,
    /// What is called.
    pub(crate) name: String,
}

/// Why a reply ended, as dialects tell it apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Finish {
    /// It was at its end.
    Stop,
    /// A text that the agent named came.
    StopText,
    /// It calls tools.
    Calls,
    /// There was no more room.
    Length,
    /// Its content was kept back.
    Filtered,
}

impl Block {
    pub(crate) fn new(kind: Kind) -> Self {
        Self {
            kind,
            text: Vec::new(),
            id: String::new(),
            name: String::new(),
        }
    }

    /// What it says.
    pub(crate) fn decoded(&self) -> String {
        decode_string(&self.text).into_owned()
    }

    /// Whether it is a call whose arguments are all there.
    pub(crate) fn is_whole_call(&self) -> bool {
        let text = decode_string(&self.text);
        let mut reader = Reader::new(text.as_bytes());
        self.kind == Kind::Call && reader.skip().is_ok() && reader.end().is_ok()
    }
}

impl Reply {
    /// Reads a whole chat completion; `None` where it is none.
    pub(crate) fn of_document(body: &[u8]) -> Option<Self> {
        let chunk = Chunk::read(body).ok().filter(|chunk| chunk.has_choice)?;
        let mut reply = Self::default();
        reply.take_head(&chunk);
        for (kind, text) in [
            (Kind::Reasoning, &chunk.reasoning),
            (Kind::Text, &chunk.content),
            (Kind::Refusal, &chunk.refusal),
        ] {
            if !text.is_empty() {
                reply.blocks.push(Block {
                    text: sound_body(text).into_owned(),
                    ..Block::new(kind)
                });
            }
        }
        for call in &chunk.calls {
            let id = reply.call_id(call.id);
            reply.blocks.push(Block {
                text: sound_body(&call.arguments).into_owned(),
                id,
                name: decode_string(call.name).into_owned(),
                ..Block::new(Kind::Call)
            });
        }
        reply.take_end(&chunk);
        // It is whole, though the endpoint does not say why it ended; agents ask again for what has no end.
        reply.finish_reason.get_or_insert_with(|| "stop".to_owned());
        Some(reply)
    }

    /// Takes what names the reply.
    pub(crate) fn take_head(&mut self, chunk: &Chunk<'_>) {
        if let (true, Some(id)) = (self.id.is_empty(), chunk.id) {
            self.id = decode_string(id).into_owned();
        }
        if let (true, Some(model)) = (self.model.is_empty(), chunk.model) {
            self.model = decode_string(model).into_owned();
        }
        if self.created_unix_s == 0 {
            self.created_unix_s = chunk.created.unwrap_or(0);
        }
    }

    /// Takes what ends the reply.
    pub(crate) fn take_end(&mut self, chunk: &Chunk<'_>) {
        if let Some(reason) = chunk.finish_reason {
            self.finish_reason = Some(decode_string(reason).into_owned());
        }
        if let Some(text) = chunk.stop_text {
            self.stop_text = Some(decode_string(text).into_owned());
        }
        self.counts = chunk.usage.or(self.counts);
    }

    /// An id for a call that comes next, which may have one. Agents hand back results by these, so that no two calls of a
    /// reply have the same.
    pub(crate) fn call_id(&self, given: &[u8]) -> String {
        let given = decode_string(given);
        let taken = |id: &str| self.blocks.iter().any(|block| block.id == id);
        if !given.is_empty() && !taken(&given) {
            return given.into_owned();
        }
        let mut id = format!("call_{}_{}", self.bare_id(), self.blocks.len());
        while taken(&id) {
            id.push('_');
        }
        id
    }

    /// The endpoint's id without what is before it in chat completions.
    pub(crate) fn bare_id(&self) -> &str {
        self.id.strip_prefix("chatcmpl-").unwrap_or(&self.id)
    }

    /// Whether it calls a tool.
    pub(crate) fn has_calls(&self) -> bool {
        self.blocks.iter().any(|block| block.kind == Kind::Call)
    }

    /// Why it ended. Servers say `stop` with calls and `tool_calls` without; what is there counts.
    pub(crate) fn finish(&self) -> Option<Finish> {
        Some(match self.finish_reason.as_deref()? {
            "length" => Finish::Length,
            "content_filter" => Finish::Filtered,
            _ if self.blocks.iter().any(|block| block.kind == Kind::Refusal) => Finish::Filtered,
            _ if self.has_calls() => Finish::Calls,
            _ if self.stop_text.is_some() => Finish::StopText,
            _ => Finish::Stop,
        })
    }

    /// The counts, or what is known of them.
    pub(crate) fn counted(&self) -> Counts {
        self.counts.unwrap_or(Counts {
            prompt: self.prompt_tokens.unwrap_or(0),
            ..Counts::default()
        })
    }
}
