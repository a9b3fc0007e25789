use super::schema;
use crate::capture::RequestError;
use crate::scan::string_body;
use crate::translate::{ChatRequest, Fields, Json, Lost, Raw};
use std::borrow::Cow;

/// Names, and functions as chat completions have them.
type Functions<'a> = Vec<(Cow<'a, str>, Json)>;

/// The tools and how they are chosen.
pub(super) fn translate(
    fields: &mut Fields<'_>,
    chat: &mut ChatRequest,
    lost: &mut Lost,
) -> Result<(), RequestError> {
    let mut functions = Functions::new();
    for tool in fields.objects("tools")? {
        let mut tool = tool?;
        for declaration in tool.objects("functionDeclarations")? {
            functions.push(function(declaration?, lost)?);
        }
        // Google's own, which run on its servers: search, code, URLs.
        tool.end(lost);
    }
    let mut choice = None;
    if let Some(mut config) = fields.object("toolConfig")? {
        if let Some(calling) = config.object("functionCallingConfig")? {
            choice = read_choice(calling, &mut functions, lost)?;
        }
        config.end(lost);
    }
    if !functions.is_empty() {
        let tools = Json::default().list(functions, |json, (_, function)| json.raw(function.into_bytes()));
        chat.set("tools", Some(tools.into_bytes()));
        chat.set("tool_choice", choice.map(Json::into_bytes));
    }
    Ok(())
}

fn function<'a>(mut declaration: Fields<'a>, lost: &mut Lost) -> Result<(Cow<'a, str>, Json), RequestError> {
    let name = declaration.needed_text("name")?;
    let google = declaration.take("parameters").map(schema::translated);
    let plain = declaration.take("parametersJsonSchema");
    let parameters = plain.map(|schema| schema.as_ref().to_vec()).or(google);
    let function = Json::from("{\"type\":\"function\",\"function\":{\"name\":")
        .string(&name)
        .member("description", declaration.take("description"))
        .member("parameters", parameters)
        .raw("}}");
    declaration.end(lost);
    Ok((name, function))
}

/// Functions that are not allowed are not offered.
fn read_choice(
    mut calling: Fields<'_>,
    functions: &mut Functions<'_>,
    lost: &mut Lost,
) -> Result<Option<Json>, RequestError> {
    let allowed: Vec<_> = calling
        .list("allowedFunctionNames")?
        .filter_map(Raw::text)
        .collect();
    if !allowed.is_empty() {
        functions.retain(|(name, _)| allowed.contains(name));
    }
    let choice = match calling
        .text("mode")?
        .map(|mode| mode.to_ascii_uppercase())
        .as_deref()
    {
        None | Some("AUTO" | "MODE_UNSPECIFIED") => None,
        Some("ANY") => Some(match functions.as_slice() {
            [(only, _)] if !allowed.is_empty() => {
                let name = Json::default().string(only).into_bytes();
                Json::function_choice(string_body(&name).unwrap_or_default())
            }
            _ => Json::from("\"required\""),
        }),
        Some("NONE") => Some(Json::from("\"none\"")),
        Some(other) => {
            calling.lose(&format!("mode.{other}"), lost);
            None
        }
    };
    calling.end(lost);
    Ok(choice)
}
