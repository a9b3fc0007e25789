use super::opaque;
use crate::capture::{ToolForm, WayBack};
use crate::scan::decode_string;
use crate::translate::{Block, Finish, Json, Kind, Reply};
use serde_json::Value;

/// What there is of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Status {
    /// It is there, and says nothing yet.
    Begun,
    InProgress,
    Completed,
    Incomplete,
}

impl Status {
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Begun | Self::InProgress => "in_progress",
            Self::Completed => "completed",
            Self::Incomplete => "incomplete",
        }
    }

    /// That of a reply.
    pub(super) fn of(reply: &Reply) -> Self {
        match reply.finish() {
            Some(Finish::Length | Finish::Filtered) => Self::Incomplete,
            Some(_) => Self::Completed,
            None => Self::InProgress,
        }
    }
}

/// The reply as one document.
pub(super) fn whole(reply: &Reply, way_back: &WayBack) -> Json {
    response(reply, way_back, Status::of(reply).word(), None)
}

/// A response, with the items there are, and the error it failed by.
pub(super) fn response(reply: &Reply, way_back: &WayBack, status: &str, error: Option<Json>) -> Json {
    let failed = error.is_some();
    let reason = match reply.finish() {
        Some(Finish::Length) if !failed => "{\"reason\":\"max_output_tokens\"}",
        Some(Finish::Filtered) if !failed => "{\"reason\":\"content_filter\"}",
        _ => "null",
    };
    let mut json = Json::from("{\"id\":")
        .string(&response_id(reply))
        .raw(",\"object\":\"response\",\"created_at\":")
        .number(reply.created_unix_s)
        .raw(",\"status\":\"")
        .raw(status)
        .raw("\",\"background\":false,\"error\":")
        .raw(error.map_or_else(|| b"null".to_vec(), Json::into_bytes))
        .raw(",\"incomplete_details\":")
        .raw(reason)
        .raw(",\"model\":")
        .string(&reply.model)
        .raw(",\"output\":")
        .list(reply.blocks.iter().enumerate(), |json, (at, _)| {
            item(json, reply, at, item_status(reply, at), way_back)
        })
        .raw(",\"previous_response_id\":null,\"store\":false");
    for (name, value) in &way_back.echo {
        json = json.raw(",").string(name).raw(":").raw(value);
    }
    json.raw(",\"usage\":").with(|json| usage(json, reply)).raw("}")
}

fn response_id(reply: &Reply) -> String {
    format!("resp_{}", reply.bare_id())
}

/// That of an item of a reply that has ended: the last one is cut where the reply is.
pub(super) fn item_status(reply: &Reply, at: usize) -> Status {
    if at + 1 == reply.blocks.len() {
        Status::of(reply)
    } else {
        Status::Completed
    }
}

/// The id of the item of a block.
pub(super) fn item_id(reply: &Reply, at: usize, way_back: &WayBack) -> String {
    let prefix = match reply.blocks.get(at) {
        Some(block) if is_custom(block, way_back) => "ctc",
        Some(block) => match block.kind {
            Kind::Reasoning => "rs",
            Kind::Text | Kind::Refusal => "msg",
            Kind::Call => "fc",
        },
        None => "msg",
    };
    format!("{prefix}_{}_{at}", reply.bare_id())
}

/// Whether a block calls a tool that takes a text as it is.
pub(super) fn is_custom(block: &Block, way_back: &WayBack) -> bool {
    block.kind == Kind::Call && matches!(way_back.tools.get(&block.name), Some(ToolForm::Custom { .. }))
}

/// The item of a block.
pub(super) fn item(json: Json, reply: &Reply, at: usize, status: Status, way_back: &WayBack) -> Json {
    let Some(block) = reply.blocks.get(at) else {
        return json.raw("null");
    };
    let begun = status == Status::Begun;
    let json = json
        .raw("{\"id\":")
        .string(&item_id(reply, at, way_back))
        .raw(",\"type\":");
    let json = match block.kind {
        Kind::Reasoning => reasoning(json, block, begun, way_back),
        Kind::Text | Kind::Refusal => json
            .raw("\"message\",\"role\":\"assistant\",\"content\":[")
            .with(|json| {
                if begun {
                    json
                } else {
                    part(json, block.kind, &block.text)
                }
            })
            .raw("]"),
        Kind::Call if is_custom(block, way_back) => {
            let input = if begun { String::new() } else { custom_input(block) };
            json.raw("\"custom_tool_call\",\"call_id\":")
                .string(&block.id)
                .raw(",\"name\":")
                .string(&block.name)
                .raw(",\"input\":")
                .string(&input)
        }
        Kind::Call => {
            let json = json.raw("\"function_call\",\"call_id\":").string(&block.id);
            let json = match way_back.tools.get(&block.name) {
                Some(ToolForm::Namespaced { namespace, name }) => json
                    .raw(",\"namespace\":")
                    .string(namespace)
                    .raw(",\"name\":")
                    .string(name),
                _ => json.raw(",\"name\":").string(&block.name),
            };
            json.raw(",\"arguments\":")
                .quoted(if begun { b"" } else { &block.text })
        }
    };
    json.raw(",\"status\":\"").raw(status.word()).raw("\"}")
}

fn reasoning(json: Json, block: &Block, begun: bool, way_back: &WayBack) -> Json {
    let text = |json: Json, kind: &str| {
        json.raw("[{\"type\":\"")
            .raw(kind)
            .raw("\",\"text\":")
            .quoted(&block.text)
            .raw("}]")
    };
    let json = json.raw("\"reasoning\",\"summary\":");
    let json = match (begun, way_back.summary) {
        (true, _) => return json.raw("[]"),
        (false, true) => text(json, "summary_text"),
        (false, false) => text(json.raw("[],\"content\":"), "reasoning_text"),
    };
    if way_back.opaque_reasoning {
        json.raw(",\"encrypted_content\":")
            .string(&opaque::write(&block.decoded()))
    } else {
        json
    }
}

/// A part of a message, or of reasoning that is shown whole.
pub(super) fn part(json: Json, kind: Kind, text: &[u8]) -> Json {
    match kind {
        Kind::Refusal => json
            .raw("{\"type\":\"refusal\",\"refusal\":")
            .quoted(text)
            .raw("}"),
        Kind::Reasoning => json
            .raw("{\"type\":\"reasoning_text\",\"text\":")
            .quoted(text)
            .raw("}"),
        Kind::Text | Kind::Call => json
            .raw("{\"type\":\"output_text\",\"text\":")
            .quoted(text)
            .raw(",\"annotations\":[],\"logprobs\":[]}"),
    }
}

/// The text that a tool is called with which takes a text as it is. Where the arguments are not as they should be, they
/// are the text.
pub(super) fn custom_input(block: &Block) -> String {
    let arguments = decode_string(&block.text);
    let read = serde_json::from_str::<Value>(&arguments).ok();
    let input = read.as_ref().and_then(|read| read.get("input")?.as_str());
    input.unwrap_or(&arguments).to_owned()
}

fn usage(json: Json, reply: &Reply) -> Json {
    let Some(counts) = reply.counts else {
        return json.raw("null");
    };
    json.raw("{\"input_tokens\":")
        .number(counts.prompt)
        .raw(",\"input_tokens_details\":{\"cached_tokens\":")
        .number(counts.cached)
        .raw("},\"output_tokens\":")
        .number(counts.completion)
        .raw(",\"output_tokens_details\":{\"reasoning_tokens\":")
        .number(counts.reasoning)
        .raw("},\"total_tokens\":")
        .number(counts.total())
        .raw("}")
}
