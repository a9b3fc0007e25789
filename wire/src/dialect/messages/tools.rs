use crate::capture::RequestError;
use crate::translate::{ChatRequest, Fields, Json, Lost};

/// The tools and how they are chosen.
pub(super) fn translate(
    fields: &mut Fields<'_>,
    chat: &mut ChatRequest,
    lost: &mut Lost,
) -> Result<(), RequestError> {
    let mut tools = Json::default();
    for tool in fields.objects("tools")? {
        let mut tool = tool?;
        let kind = tool.text("type")?;
        // Others are known to Anthropic's models without a schema, and most run on its servers.
        if let Some(kind) = kind.filter(|kind| kind != "custom") {
            tool.lose(&kind, lost);
            continue;
        }
        let name = tool.needed_body("name")?;
        tools = tools
            .raw(",{\"type\":\"function\",\"function\":{\"name\":")
            .quoted(name);
        for (name, to) in [
            ("description", "description"),
            ("input_schema", "parameters"),
            ("strict", "strict"),
        ] {
            tools = tools.member(to, tool.take(name));
        }
        tools = tools.raw("}}");
        tool.end(lost);
    }
    let tools = tools.into_list();
    let has_tools = tools.is_some();
    chat.set("tools", tools);
    let Some(mut choice) = fields.object("tool_choice")? else {
        return Ok(());
    };
    let chosen = match choice.needed_text("type")?.as_ref() {
        "auto" => Json::from("\"auto\""),
        "any" => Json::from("\"required\""),
        "none" => Json::from("\"none\""),
        "tool" => Json::function_choice(choice.needed_body("name")?),
        _ => return Err(choice.wrong("type", "`auto`, `any`, `tool` or `none`")),
    };
    let one_at_most = choice.flag("disable_parallel_tool_use")?;
    choice.end(lost);
    if has_tools {
        chat.set("tool_choice", Some(chosen.into_bytes()));
        chat.set("parallel_tool_calls", one_at_most.then_some("false"));
    }
    Ok(())
}
