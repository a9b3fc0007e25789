use super::answer;
use super::document::{self, Status, item_status};
use crate::capture::WayBack;
use crate::translate::{Block, Json, Kind, Reply, Writer};
use bytes::BytesMut;
use std::sync::Arc;

/// A reply as OpenAI's service streams it.
#[derive(Debug)]
pub(super) struct ResponseStream {
    way_back: Arc<WayBack>,
    /// Events so far.
    sequence_number: u64,
}

impl ResponseStream {
    pub(super) fn new(way_back: Arc<WayBack>) -> Self {
        Self {
            way_back,
            sequence_number: 0,
        }
    }

    /// Writes an event; `members` are those after its type and number, each behind a comma.
    fn event(&mut self, kind: &str, members: Json, out: &mut BytesMut) {
        Json::from("{\"type\":\"")
            .raw(kind)
            .raw("\",\"sequence_number\":")
            .number(self.sequence_number)
            .raw(members.into_bytes())
            .raw("}")
            .write_event(Some(kind), out);
        self.sequence_number += 1;
    }

    /// An event about the response as a whole.
    fn of_response(
        &mut self,
        kind: &str,
        reply: &Reply,
        status: &str,
        error: Option<Json>,
        out: &mut BytesMut,
    ) {
        let response = document::response(reply, &self.way_back, status, error);
        self.event(kind, Json::from(",\"response\":").raw(response.into_bytes()), out);
    }

    /// An event about an item.
    fn of_item(&mut self, kind: &str, reply: &Reply, at: usize, status: Status, out: &mut BytesMut) {
        let members = Json::from(",\"output_index\":")
            .number(at as u64)
            .raw(",\"item\":")
            .with(|json| document::item(json, reply, at, status, &self.way_back));
        self.event(kind, members, out);
    }

    /// The members that say which item an event is in.
    fn place(&self, reply: &Reply, at: usize) -> Json {
        Json::from(",\"item_id\":")
            .string(&document::item_id(reply, at, &self.way_back))
            .raw(",\"output_index\":")
            .number(at as u64)
    }

    /// The same with the part of it.
    fn part_place(&self, reply: &Reply, at: usize) -> Json {
        self.place(reply, at).raw(if self.is_summary(reply, at) {
            ",\"summary_index\":0"
        } else {
            ",\"content_index\":0"
        })
    }

    fn is_summary(&self, reply: &Reply, at: usize) -> bool {
        self.way_back.summary && kind(reply, at) == Some(Kind::Reasoning)
    }

    fn of_part(&mut self, event: &str, reply: &Reply, at: usize, text: &[u8], out: &mut BytesMut) {
        let json = self.part_place(reply, at).raw(",\"part\":");
        let summary = self.is_summary(reply, at);
        let json = if summary {
            json.raw("{\"type\":\"summary_text\",\"text\":")
                .quoted(text)
                .raw("}")
        } else {
            document::part(json, kind(reply, at).unwrap_or(Kind::Text), text)
        };
        let name = if summary {
            "response.reasoning_summary_part."
        } else {
            "response.content_part."
        };
        self.event(&format!("{name}{event}"), json, out);
    }

    /// The name of the events that carry what a block says.
    fn text_events(&self, reply: &Reply, at: usize) -> &'static str {
        match kind(reply, at) {
            Some(Kind::Reasoning) if self.way_back.summary => "response.reasoning_summary_text",
            Some(Kind::Reasoning) => "response.reasoning_text",
            Some(Kind::Refusal) => "response.refusal",
            Some(Kind::Call) => "response.function_call_arguments",
            Some(Kind::Text) | None => "response.output_text",
        }
    }

    fn close_call(&mut self, reply: &Reply, at: usize, block: &Block, out: &mut BytesMut) {
        if document::is_custom(block, &self.way_back) {
            // The text is inside of JSON, and is told when that is whole.
            let input = document::custom_input(block);
            let delta = self.place(reply, at).raw(",\"delta\":").string(&input);
            self.event("response.custom_tool_call_input.delta", delta, out);
            let done = self.place(reply, at).raw(",\"input\":").string(&input);
            self.event("response.custom_tool_call_input.done", done, out);
        } else {
            let done = self
                .place(reply, at)
                .raw(",\"name\":")
                .string(&block.name)
                .raw(",\"arguments\":")
                .quoted(&block.text);
            self.event("response.function_call_arguments.done", done, out);
        }
    }
}

fn kind(reply: &Reply, at: usize) -> Option<Kind> {
    reply.blocks.get(at).map(|block| block.kind)
}

impl Writer for ResponseStream {
    fn begin(&mut self, reply: &Reply, out: &mut BytesMut) {
        let empty = Reply {
            id: reply.id.clone(),
            model: reply.model.clone(),
            created_unix_s: reply.created_unix_s,
            ..Reply::default()
        };
        for kind in ["response.created", "response.in_progress"] {
            self.of_response(kind, &empty, Status::InProgress.word(), None, out);
        }
    }

    fn open(&mut self, reply: &Reply, at: usize, out: &mut BytesMut) {
        self.of_item("response.output_item.added", reply, at, Status::Begun, out);
        if kind(reply, at) != Some(Kind::Call) {
            self.of_part("added", reply, at, b"", out);
        }
    }

    fn delta(&mut self, reply: &Reply, at: usize, piece: &[u8], out: &mut BytesMut) {
        let Some(block) = reply.blocks.get(at) else { return };
        let place = match block.kind {
            Kind::Call if document::is_custom(block, &self.way_back) => return,
            Kind::Call => self.place(reply, at),
            _ => self.part_place(reply, at),
        };
        let members = place.raw(",\"delta\":").quoted(piece);
        let members = match block.kind {
            Kind::Text => members.raw(",\"logprobs\":[]"),
            _ => members,
        };
        let name = self.text_events(reply, at);
        self.event(&format!("{name}.delta"), members, out);
    }

    fn close(&mut self, reply: &Reply, at: usize, out: &mut BytesMut) {
        let Some(block) = reply.blocks.get(at) else { return };
        if block.kind == Kind::Call {
            self.close_call(reply, at, block, out);
        } else {
            let member = if block.kind == Kind::Refusal {
                "refusal"
            } else {
                "text"
            };
            let done = self
                .part_place(reply, at)
                .raw(",")
                .string(member)
                .raw(":")
                .quoted(&block.text);
            let done = match block.kind {
                Kind::Text => done.raw(",\"logprobs\":[]"),
                _ => done,
            };
            let name = self.text_events(reply, at);
            self.event(&format!("{name}.done"), done, out);
            self.of_part("done", reply, at, &block.text, out);
        }
        let status = match item_status(reply, at) {
            Status::InProgress => Status::Completed,
            ended => ended,
        };
        self.of_item("response.output_item.done", reply, at, status, out);
    }

    fn end(&mut self, reply: &Reply, out: &mut BytesMut) {
        let status = Status::of(reply);
        let kind = match status {
            Status::Incomplete => "response.incomplete",
            _ => "response.completed",
        };
        self.of_response(kind, reply, status.word(), None, out);
    }

    fn fail(&mut self, reply: &Reply, status: u16, message: &str, out: &mut BytesMut) {
        let error = Json::from("{\"code\":\"")
            .raw(answer::code(status, message).unwrap_or("server_error"))
            .raw("\",\"message\":")
            .string(message)
            .raw("}");
        self.of_response("response.failed", reply, "failed", Some(error), out);
    }
}
