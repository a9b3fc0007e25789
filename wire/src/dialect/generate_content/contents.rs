use crate::capture::RequestError;
use crate::translate::json::{arguments_text, spaced};
use crate::translate::{Conversation, Fields, Lost, parts};
use serde_json::{Value, json};

/// Calls of the conversation that have no result yet. Ids are optional in this dialect, and results then belong to calls
/// by name, in order.
#[derive(Debug, Default)]
struct Calls {
    made: usize,
    open: Vec<(String, String)>,
}

impl Calls {
    /// The id of a call that comes next.
    fn made(&mut self, id: Option<String>, name: &str) -> String {
        let id = id.unwrap_or_else(|| format!("call_{}", self.made));
        self.made += 1;
        self.open.push((id.clone(), name.to_owned()));
        id
    }

    /// The id of the call that has its result.
    fn answered(&mut self, id: Option<String>, name: &str) -> String {
        let found = self.open.iter().position(|(known, called)| match &id {
            Some(id) => known == id,
            None => called == name,
        });
        match (id, found.map(|at| self.open.remove(at))) {
            (Some(id), _) => id,
            (None, Some((id, _))) => id,
            (None, None) => format!("call_{name}"),
        }
    }
}

/// Reads the conversation.
pub(super) fn read(
    fields: &mut Fields,
    conversation: &mut Conversation,
    lost: &mut Lost,
) -> Result<(), RequestError> {
    // One content and one text are understood as lists of one.
    let place = fields.place_of("contents");
    let contents = match fields.take("contents") {
        None => Vec::new(),
        Some(Value::Array(contents)) => contents,
        Some(Value::String(text)) => vec![json!({"role": "user", "parts": [{"text": text}]})],
        Some(one) => vec![one],
    };
    let mut calls = Calls::default();
    for (position, content) in contents.into_iter().enumerate() {
        let mut content = Fields::of(format!("{place}[{position}]"), content)?;
        let role = content.text("role")?;
        match role.as_deref() {
            Some("model") => {
                conversation.assistant();
                for part in content.objects("parts")? {
                    model_part(part, &mut calls, conversation, lost)?;
                }
            }
            None | Some("user" | "function") => user_parts(&mut content, &mut calls, conversation, lost)?,
            Some("system") => conversation.system(said(content, lost)?),
            Some(_) => return Err(content.wrong("role", "`user` or `model`")),
        }
    }
    Ok(())
}

/// The parts of a content that says something.
pub(super) fn said(mut content: Fields, lost: &mut Lost) -> Result<Vec<Value>, RequestError> {
    content.take("role");
    let mut said = Vec::new();
    if content.has("text") {
        said.push(parts::text(&content.needed_text("text")?));
    }
    for part in content.objects("parts")? {
        said.extend(read_part(part, lost)?);
    }
    content.end(lost);
    Ok(said)
}

fn user_parts(
    content: &mut Fields,
    calls: &mut Calls,
    conversation: &mut Conversation,
    lost: &mut Lost,
) -> Result<(), RequestError> {
    let mut said = Vec::new();
    let mut has_results = false;
    for mut part in content.objects("parts")? {
        let Some(mut response) = part.object("functionResponse")? else {
            said.extend(read_part(part, lost)?);
            continue;
        };
        has_results = true;
        if !said.is_empty() {
            conversation.user(std::mem::take(&mut said));
        }
        let name = response.needed_text("name")?;
        let id = calls.answered(response.text("id")?, &name);
        let mut result = Vec::new();
        if let Some(value) = response.take("response") {
            result.push(parts::text(&spaced(&value)));
        }
        for inner in response.objects("parts")? {
            result.extend(read_part(inner, lost)?);
        }
        conversation.result(id, result);
        response.end(lost);
        part.end(lost);
    }
    if !said.is_empty() || !has_results {
        conversation.user(said);
    }
    Ok(())
}

fn model_part(
    mut part: Fields,
    calls: &mut Calls,
    conversation: &mut Conversation,
    lost: &mut Lost,
) -> Result<(), RequestError> {
    if let Some(mut call) = part.object("functionCall")? {
        let name = call.needed_text("name")?;
        let id = calls.made(call.text("id")?, &name);
        let arguments = call.take("args").unwrap_or_else(|| json!({}));
        conversation.calls(&id, &name, &arguments_text(arguments));
        call.end(lost);
        part.end(lost);
        return Ok(());
    }
    let thought = part.flag("thought")?;
    if let Some(said) = read_part(part, lost)? {
        match parts::text_of(&said) {
            Some(text) if thought => conversation.reasons(text),
            _ => conversation.says(said),
        }
    }
    Ok(())
}

/// A part that says something, as a part of chat completions.
fn read_part(mut part: Fields, lost: &mut Lost) -> Result<Option<Value>, RequestError> {
    let read = if part.has("text") {
        Some(parts::text(&part.needed_text("text")?))
    } else if let Some(mut data) = part.object("inlineData")? {
        let media_type = data.needed_text("mimeType")?;
        let base64 = data.needed_text("data")?;
        data.take("displayName");
        data.end(lost);
        match media_type.split_once('/') {
            Some(("image", _)) => Some(parts::image_data(&media_type, &base64)),
            Some(("audio", format)) => {
                Some(json!({"type": "input_audio", "input_audio": {"data": base64, "format": format}}))
            }
            _ => {
                lost.add(&part.place_of(&format!("inlineData.{media_type}")));
                None
            }
        }
    } else if let Some(mut file) = part.object("fileData")? {
        let uri = file.needed_text("fileUri")?;
        let is_image = file
            .text("mimeType")?
            .is_some_and(|kind| kind.starts_with("image/"));
        file.end(lost);
        let reachable = uri.starts_with("https://") || uri.starts_with("http://") || uri.starts_with("data:");
        if is_image && reachable {
            Some(parts::image(&uri))
        } else {
            lost.add(&part.place_of("fileData"));
            None
        }
    } else {
        None
    };
    part.end(lost);
    Ok(read)
}
