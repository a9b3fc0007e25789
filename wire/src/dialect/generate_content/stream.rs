use super::{answer, document};
use crate::capture::StreamForm;
use crate::translate::{Json, Kind, Reply, Writer};
use bytes::BytesMut;

/// A reply as Google's service streams it: each piece is a response of its own.
#[derive(Debug)]
pub(super) struct ContentStream {
    form: StreamForm,
    begun: bool,
}

impl ContentStream {
    pub(super) fn new(form: StreamForm) -> Self {
        Self { form, begun: false }
    }

    fn write(&mut self, response: &Json, out: &mut BytesMut) {
        match self.form {
            StreamForm::Events => response.write_event(None, out),
            StreamForm::Array => {
                out.extend_from_slice(if self.begun { b",\n" } else { b"[" });
                response.write(out);
            }
        }
        self.begun = true;
    }

    fn close_array(&mut self, out: &mut BytesMut) {
        if self.form == StreamForm::Array {
            out.extend_from_slice(b"]");
        }
    }

    fn part(&mut self, reply: &Reply, at: usize, text: &[u8], out: &mut BytesMut) {
        let Some(block) = reply.blocks.get(at) else { return };
        let response = Json::from("{\"candidates\":[{\"content\":{\"parts\":[")
            .raw(document::part(block, text).into_bytes())
            .raw("],\"role\":\"model\"},\"index\":0}]")
            .with(|json| document::tail(json, reply))
            .raw("}");
        self.write(&response, out);
    }
}

impl Writer for ContentStream {
    fn begin(&mut self, _: &Reply, _: &mut BytesMut) {}

    fn open(&mut self, _: &Reply, _: usize, _: &mut BytesMut) {}

    fn delta(&mut self, reply: &Reply, at: usize, piece: &[u8], out: &mut BytesMut) {
        if reply.blocks.get(at).is_some_and(|block| block.kind != Kind::Call) {
            self.part(reply, at, piece, out);
        }
    }

    /// A call is told when it is whole: its arguments are an object here.
    fn close(&mut self, reply: &Reply, at: usize, out: &mut BytesMut) {
        if let Some(block) = reply.blocks.get(at).filter(|block| block.kind == Kind::Call) {
            self.part(reply, at, &block.text, out);
        }
    }

    fn end(&mut self, reply: &Reply, out: &mut BytesMut) {
        let response =
            Json::from("{\"candidates\":[{\"content\":{\"parts\":[{\"text\":\"\"}],\"role\":\"model\"}")
                .with(|json| document::finish(json, reply))
                .raw(",\"index\":0}]")
                .with(|json| document::usage(json, reply))
                .with(|json| document::tail(json, reply))
                .raw("}");
        self.write(&response, out);
        self.close_array(out);
    }

    fn fail(&mut self, _: &Reply, status: u16, message: &str, out: &mut BytesMut) {
        self.write(&answer::error(status, message), out);
        self.close_array(out);
    }
}
