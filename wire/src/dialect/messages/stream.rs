use super::{answer, document};
use crate::translate::{Json, Kind, Reply, Writer};
use bytes::BytesMut;

/// A reply as Anthropic's service streams it.
#[derive(Debug)]
pub(super) struct MessagesStream;

impl Writer for MessagesStream {
    fn begin(&mut self, reply: &Reply, out: &mut BytesMut) {
        let message = document::head(reply)
            .raw("[],\"stop_reason\":null,\"stop_sequence\":null,\"usage\":")
            .with(|json| document::usage(json, reply))
            .raw("}");
        Json::from("{\"type\":\"message_start\",\"message\":")
            .raw(message.into_bytes())
            .raw("}")
            .write_event(Some("message_start"), out);
    }

    fn open(&mut self, reply: &Reply, at: usize, out: &mut BytesMut) {
        let Some(block) = reply.blocks.get(at) else { return };
        let json = numbered("content_block_start", at).raw(",\"content_block\":");
        let json = match block.kind {
            Kind::Reasoning => json.raw("{\"type\":\"thinking\",\"thinking\":\"\",\"signature\":\"\"}"),
            Kind::Text | Kind::Refusal => json.raw("{\"type\":\"text\",\"text\":\"\"}"),
            Kind::Call => json
                .raw("{\"type\":\"tool_use\",\"id\":")
                .string(&block.id)
                .raw(",\"name\":")
                .string(&block.name)
                .raw(",\"input\":{}}"),
        };
        json.raw("}").write_event(Some("content_block_start"), out);
    }

    fn delta(&mut self, reply: &Reply, at: usize, piece: &[u8], out: &mut BytesMut) {
        let kind = reply.blocks.get(at).map(|block| block.kind);
        let start = match kind {
            Some(Kind::Reasoning) => "{\"type\":\"thinking_delta\",\"thinking\":",
            Some(Kind::Call) => "{\"type\":\"input_json_delta\",\"partial_json\":",
            _ => "{\"type\":\"text_delta\",\"text\":",
        };
        delta(at, Json::from(start).quoted(piece), out);
    }

    fn close(&mut self, reply: &Reply, at: usize, out: &mut BytesMut) {
        if let Some(block) = reply.blocks.get(at).filter(|block| block.kind == Kind::Reasoning) {
            let signature = document::signature(&block.decoded());
            let json = Json::from("{\"type\":\"signature_delta\",\"signature\":").string(&signature);
            delta(at, json, out);
        }
        numbered("content_block_stop", at)
            .raw("}")
            .write_event(Some("content_block_stop"), out);
    }

    fn end(&mut self, reply: &Reply, out: &mut BytesMut) {
        let reasons = document::end(Json::default(), reply).into_bytes();
        Json::from("{\"type\":\"message_delta\",\"delta\":{")
            .raw(reasons.strip_prefix(b",").unwrap_or_default())
            .raw("},\"usage\":")
            .with(|json| document::usage(json, reply))
            .raw("}")
            .write_event(Some("message_delta"), out);
        Json::from("{\"type\":\"message_stop\"}").write_event(Some("message_stop"), out);
    }

    fn fail(&mut self, _: &Reply, status: u16, message: &str, out: &mut BytesMut) {
        answer::error(status, message).write_event(Some("error"), out);
    }
}

fn numbered(kind: &str, at: usize) -> Json {
    Json::from("{\"type\":\"")
        .raw(kind)
        .raw("\",\"index\":")
        .number(at as u64)
}

/// A piece of a block; `delta` lacks its closing bracket.
fn delta(at: usize, delta: Json, out: &mut BytesMut) {
    numbered("content_block_delta", at)
        .raw(",\"delta\":")
        .raw(delta.into_bytes())
        .raw("}}")
        .write_event(Some("content_block_delta"), out);
}
