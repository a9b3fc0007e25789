use crate::capture::RequestError;
use crate::translate::raw::arguments_body;
use crate::translate::{Conversation, Fields, Json, Lost, Part, Raw};
use std::borrow::Cow;

/// Calls of the conversation that have no result yet. Ids are optional in this dialect, and results then belong to calls
/// by name, in order.
#[derive(Debug, Default)]
struct Calls<'a> {
    made: usize,
    open: Vec<(Cow<'a, str>, Cow<'a, str>)>,
}

impl<'a> Calls<'a> {
    /// The id of a call that comes next.
    fn made(&mut self, id: Option<Cow<'a, str>>, name: Cow<'a, str>) -> Cow<'a, str> {
        let id = id.unwrap_or_else(|| format!("call_{}", self.made).into());
        self.made += 1;
        self.open.push((id.clone(), name));
        id
    }

    /// The id of the call that has its result.
    fn answered(&mut self, id: Option<Cow<'a, str>>, name: &str) -> Cow<'a, str> {
        let found = self.open.iter().position(|(known, called)| match &id {
            Some(id) => known == id,
            None => called == name,
        });
        match (id, found.map(|at| self.open.remove(at))) {
            (Some(id), _) => id,
            (None, Some((id, _))) => id,
            (None, None) => format!("call_{name}").into(),
        }
    }
}

/// Reads the conversation. One content and one text are understood as lists of one.
pub(super) fn read<'a>(
    fields: &mut Fields<'a>,
    conversation: &mut Conversation<'a>,
    lost: &mut Lost,
) -> Result<(), RequestError> {
    let mut calls = Calls::default();
    match fields.peek("contents") {
        None => {}
        Some(text) if text.body().is_some() => {
            conversation.user(vec![Part::text(fields.needed_body("contents")?)]);
        }
        Some(only) if only.is_object() => {
            fields.take("contents");
            read_content(fields.of_only("contents", only)?, &mut calls, conversation, lost)?;
        }
        Some(_) => {
            for content in fields.objects("contents")? {
                read_content(content?, &mut calls, conversation, lost)?;
            }
        }
    }
    Ok(())
}

fn read_content<'a>(
    mut content: Fields<'a>,
    calls: &mut Calls<'a>,
    conversation: &mut Conversation<'a>,
    lost: &mut Lost,
) -> Result<(), RequestError> {
    let role = content.text("role")?;
    match role.as_deref() {
        Some("model") => {
            conversation.assistant();
            for part in content.objects("parts")? {
                model_part(part?, calls, conversation, lost)?;
            }
        }
        None | Some("user" | "function") => user_parts(&mut content, calls, conversation, lost)?,
        Some("system") => {
            conversation.system(said(content, lost)?);
            return Ok(());
        }
        Some(_) => return Err(content.wrong("role", "`user` or `model`")),
    }
    content.end(lost);
    Ok(())
}

/// The parts of a content that says something.
pub(super) fn said<'a>(mut content: Fields<'a>, lost: &mut Lost) -> Result<Vec<Part<'a>>, RequestError> {
    content.take("role");
    let mut said = Vec::new();
    if let Some(body) = content.body("text")? {
        said.push(Part::text(body));
    }
    for part in content.objects("parts")? {
        said.extend(read_part(part?, lost)?);
    }
    content.end(lost);
    Ok(said)
}

fn user_parts<'a>(
    content: &mut Fields<'a>,
    calls: &mut Calls<'a>,
    conversation: &mut Conversation<'a>,
    lost: &mut Lost,
) -> Result<(), RequestError> {
    let mut said = Vec::new();
    let mut has_results = false;
    for part in content.objects("parts")? {
        let mut part = part?;
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
            let mut body = Vec::new();
            value.write_spaced(&mut body);
            result.push(Part::text(body));
        }
        for inner in response.objects("parts")? {
            result.extend(read_part(inner?, lost)?);
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

fn model_part<'a>(
    mut part: Fields<'a>,
    calls: &mut Calls<'a>,
    conversation: &mut Conversation<'a>,
    lost: &mut Lost,
) -> Result<(), RequestError> {
    if let Some(mut call) = part.object("functionCall")? {
        let name = call.needed_text("name")?;
        let id = calls.made(call.text("id")?, name.clone());
        let arguments = call.take("args").unwrap_or(Raw::new(b"{}"));
        conversation.calls(&id, &name, &arguments_body(arguments));
        call.end(lost);
        part.end(lost);
        return Ok(());
    }
    let thought = part.flag("thought")?;
    match read_part(part, lost)? {
        None => {}
        Some(Part::Text(body)) if thought => conversation.reasons(body),
        Some(part) => conversation.says(part),
    }
    Ok(())
}

/// A part that says something, as a part of chat completions.
fn read_part<'a>(mut part: Fields<'a>, lost: &mut Lost) -> Result<Option<Part<'a>>, RequestError> {
    let read = if let Some(body) = part.body("text")? {
        Some(Part::text(body))
    } else if let Some(mut data) = part.object("inlineData")? {
        let media_type = data.needed_text("mimeType")?;
        let base64 = data.needed_body("data")?;
        data.take("displayName");
        data.end(lost);
        match media_type.split_once('/') {
            Some(("image", _)) => {
                let quoted = Json::default().string(&media_type).into_bytes();
                let media_type = crate::scan::string_body(&quoted).unwrap_or_default();
                Some(Part::image_data(media_type, base64))
            }
            Some(("audio", format)) => {
                let audio = Json::from("{\"type\":\"input_audio\",\"input_audio\":{\"data\":")
                    .quoted(base64)
                    .raw(",\"format\":")
                    .string(format)
                    .raw("}}");
                Some(Part::Other(audio.into_bytes()))
            }
            _ => {
                part.lose(&format!("inlineData.{media_type}"), lost);
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
            let quoted = Json::default().string(&uri).into_bytes();
            Some(Part::image(
                crate::scan::string_body(&quoted).unwrap_or_default(),
                None,
            ))
        } else {
            part.lose("fileData", lost);
            None
        }
    } else {
        None
    };
    part.end(lost);
    Ok(read)
}
