use dressage_wire::call::{Call, CallEnd};
use serde::Serialize;
use serde_json::value::RawValue;

/// Writes a call as one line of JSON, with its newline. `request` is the body as it went to the endpoint, `entries` what
/// came of log-probabilities, a JSON array or nothing. Never a newline inside, never a number that JSON does not have.
pub(super) fn write(line: &mut Vec<u8>, call: &Call, request: &[u8], entries: &[u8]) {
    let meta = &call.meta;
    let completion = call.completions.first();
    let mut object = Object::start(line);
    object.field("turn", &(u64::from(meta.index) + 1));
    if meta.end == CallEnd::Refused {
        // It may have been refused for not being JSON.
        object.checked("request", request);
    } else {
        object.raw("request", request);
    }
    if matches!(meta.end, CallEnd::Complete | CallEnd::Budget) || is_reply(&call.response) {
        object.raw("response", &call.response);
    } else {
        object.key("response");
        failure(object.line, call);
    }
    object.raw("logprobs", if entries.is_empty() { b"[]" } else { entries });
    object.field("completion_tokens", completion.map_or(&[][..], |one| &one.tokens));
    object.field(
        "completion_token_ids",
        completion.map_or(&[][..], |one| &one.token_ids),
    );
    object.field("per_token_logps", completion.map_or(&[][..], |one| &one.logprobs));
    object.field(
        "finish_reason",
        &completion.and_then(|one| one.finish_reason.as_deref()),
    );
    object.field("latency_s", &seconds(meta.duration_ms));
    object.field("timestamp", &seconds(meta.started_unix_ms));
    object.field("call_id", &meta.id);
    object.field("prompt_token_ids", &call.prompt_token_ids);
    object.field("usage", &meta.usage);
    object.field("flags", &meta.flags);
    object.field("level", &meta.level);
    object.field("purpose", &meta.purpose);
    object.field("end", &meta.end);
    object.field("error", &meta.error);
    object.field("hint", &meta.hint);
    object.field("model", &meta.model);
    object.field("sampling_params", &meta.sampling);
    object.field("changes", &meta.changes);
    object.field("first_token_ms", &meta.first_token_ms);
    object.field("status", &meta.status);
    object.field("streamed", &meta.streamed);
    object.field("retry_count", &meta.retry_count);
    object.field("retry_key", &meta.retry_key);
    object.end();
}

/// Where there is no reply: OpenEnv's form of saying so.
fn failure(line: &mut Vec<u8>, call: &Call) {
    let mut object = Object::start(line);
    object.raw("choices", b"[]");
    object.raw("usage", b"null");
    object.field("upstream_status", &call.meta.status);
    object.key("upstream_error");
    match parse(&call.response).filter(|body| body.get().starts_with('{')) {
        Some(body) => single_line(object.line, body.get().as_bytes()),
        None => {
            let body = String::from_utf8_lossy(&call.response);
            let message = call.meta.error.as_deref().unwrap_or(&body);
            let mut error = Object::start(object.line);
            error.field("message", message);
            error.close();
        }
    }
    object.close();
}

fn json<T: Serialize + ?Sized>(line: &mut Vec<u8>, value: &T) {
    let start = line.len();
    // None of the types written here fails; null is what a reader can bear.
    if serde_json::to_writer(&mut *line, value).is_err() {
        line.truncate(start);
        line.extend_from_slice(b"null");
    }
}

/// Whether a body is a reply of the dialect, be it a part of one, rather than an error.
fn is_reply(body: &[u8]) -> bool {
    #[derive(serde::Deserialize)]
    struct Reply<'b> {
        #[serde(borrow)]
        choices: Option<&'b RawValue>,
    }
    std::str::from_utf8(body)
        .ok()
        .and_then(|body| serde_json::from_str::<Reply<'_>>(body).ok())
        .is_some_and(|reply| {
            reply
                .choices
                .is_some_and(|choices| choices.get().starts_with('['))
        })
}

fn parse(body: &[u8]) -> Option<&RawValue> {
    serde_json::from_str(std::str::from_utf8(body).ok()?).ok()
}

/// A JSON text without the line breaks that may stand between its parts. Inside strings they are escaped.
fn single_line(line: &mut Vec<u8>, json: &[u8]) {
    let mut rest = json;
    while let Some(at) = memchr::memchr2(b'\n', b'\r', rest) {
        let (before, after) = rest.split_at(at);
        line.extend_from_slice(before);
        line.push(b' ');
        rest = after.get(1..).unwrap_or_default();
    }
    line.extend_from_slice(rest);
}

fn seconds(milliseconds: u64) -> f64 {
    milliseconds as f64 / 1000.0
}

/// An object being written.
struct Object<'l> {
    line: &'l mut Vec<u8>,
    first: bool,
}

impl<'l> Object<'l> {
    fn start(line: &'l mut Vec<u8>) -> Self {
        line.push(b'{');
        Self { line, first: true }
    }

    /// `name` needs no escapes: all are ours.
    fn key(&mut self, name: &str) {
        if !std::mem::take(&mut self.first) {
            self.line.push(b',');
        }
        self.line.push(b'"');
        self.line.extend_from_slice(name.as_bytes());
        self.line.extend_from_slice(b"\":");
    }

    fn field<T: Serialize + ?Sized>(&mut self, name: &str, value: &T) {
        self.key(name);
        json(self.line, value);
    }

    /// A valid JSON text.
    fn raw(&mut self, name: &str, json: &[u8]) {
        self.key(name);
        single_line(self.line, json);
    }

    /// A text that may be JSON; a string of it where it is not.
    fn checked(&mut self, name: &str, text: &[u8]) {
        match parse(text) {
            Some(json) => self.raw(name, json.get().as_bytes()),
            None if text.is_empty() => self.field(name, &()),
            None => self.field(name, &*String::from_utf8_lossy(text)),
        }
    }

    fn close(self) {
        self.line.push(b'}');
    }

    fn end(self) {
        self.line.extend_from_slice(b"}\n");
    }
}
