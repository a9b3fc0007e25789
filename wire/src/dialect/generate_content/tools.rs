use super::schema;
use crate::capture::RequestError;
use crate::translate::{ChatRequest, Fields, Lost};
use serde_json::{Map, Value, json};

/// The tools and how they are chosen.
pub(super) fn translate(
    fields: &mut Fields,
    chat: &mut ChatRequest,
    lost: &mut Lost,
) -> Result<(), RequestError> {
    let mut functions = Vec::new();
    for mut tool in fields.objects("tools")? {
        for declaration in tool.objects("functionDeclarations")? {
            functions.push(function(declaration, lost)?);
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
        let offered = functions.into_iter().map(|(_, function)| function);
        chat.set("tools", Some(offered.collect::<Value>()));
        chat.set("tool_choice", choice);
    }
    Ok(())
}

fn function(mut declaration: Fields, lost: &mut Lost) -> Result<(String, Value), RequestError> {
    let name = declaration.needed_text("name")?;
    let mut function = Map::new();
    function.insert("name".into(), name.clone().into());
    if let Some(description) = declaration.take("description") {
        function.insert("description".into(), description);
    }
    let google = declaration.take("parameters").map(schema::translate);
    if let Some(parameters) = declaration.take("parametersJsonSchema").or(google) {
        function.insert("parameters".into(), parameters);
    }
    declaration.end(lost);
    Ok((name, json!({"type": "function", "function": function})))
}

/// Functions that are not allowed are not offered.
fn read_choice(
    mut calling: Fields,
    functions: &mut Vec<(String, Value)>,
    lost: &mut Lost,
) -> Result<Option<Value>, RequestError> {
    let allowed = calling.array("allowedFunctionNames")?;
    if !allowed.is_empty() {
        functions.retain(|(name, _)| allowed.iter().any(|allowed| allowed == name));
    }
    let choice = match calling
        .text("mode")?
        .map(|mode| mode.to_ascii_uppercase())
        .as_deref()
    {
        None | Some("AUTO" | "MODE_UNSPECIFIED") => None,
        Some("ANY") => match functions.as_slice() {
            [(only, _)] if !allowed.is_empty() => {
                Some(json!({"type": "function", "function": {"name": only}}))
            }
            _ => Some(json!("required")),
        },
        Some("NONE") => Some(json!("none")),
        Some(other) => {
            lost.add(&calling.place_of(&format!("mode.{other}")));
            None
        }
    };
    calling.end(lost);
    Ok(choice)
}
