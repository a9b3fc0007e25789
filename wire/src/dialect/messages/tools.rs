use crate::capture::RequestError;
use crate::translate::{ChatRequest, Fields, Lost};
use serde_json::{Map, Value, json};

/// The tools and how they are chosen.
pub(super) fn translate(
    fields: &mut Fields,
    chat: &mut ChatRequest,
    lost: &mut Lost,
) -> Result<(), RequestError> {
    let mut tools = Vec::new();
    for mut tool in fields.objects("tools")? {
        let kind = tool.text("type")?;
        // Others are known to Anthropic's models without a schema, and most run on its servers.
        if let Some(kind) = kind.filter(|kind| kind != "custom") {
            tool.lost_as(&kind, lost);
            continue;
        }
        let mut function = Map::new();
        function.insert("name".into(), tool.needed_text("name")?.into());
        for (name, to) in [
            ("description", "description"),
            ("input_schema", "parameters"),
            ("strict", "strict"),
        ] {
            if let Some(value) = tool.take(name) {
                function.insert(to.into(), value);
            }
        }
        tool.end(lost);
        tools.push(json!({"type": "function", "function": function}));
    }
    let has_tools = !tools.is_empty();
    chat.set("tools", has_tools.then_some(Value::Array(tools)));
    let Some(mut choice) = fields.object("tool_choice")? else {
        return Ok(());
    };
    let chosen = match choice.needed_text("type")?.as_str() {
        "auto" => json!("auto"),
        "any" => json!("required"),
        "none" => json!("none"),
        "tool" => json!({"type": "function", "function": {"name": choice.needed_text("name")?}}),
        _ => return Err(choice.wrong("type", "`auto`, `any`, `tool` or `none`")),
    };
    let one_at_most = choice.flag("disable_parallel_tool_use")?;
    choice.end(lost);
    if has_tools {
        chat.set("tool_choice", Some(chosen));
        chat.set("parallel_tool_calls", one_at_most.then_some(false));
    }
    Ok(())
}
