use crate::capture::{RequestError, ToolForm};
use crate::translate::{ChatRequest, Fields, Lost};
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// The tools of a request, as functions.
#[derive(Debug, Default)]
pub(super) struct Tools {
    functions: Vec<(String, Value)>,
    forms: BTreeMap<String, ToolForm>,
}

/// Reads the tools.
pub(super) fn read(fields: &mut Fields, lost: &mut Lost) -> Result<Tools, RequestError> {
    let mut tools = Tools::default();
    let mut spaces = Vec::new();
    for mut tool in fields.objects("tools")? {
        match tool.needed_text("type")?.as_str() {
            "function" => {
                let name = tool.needed_text("name")?;
                tools.add(name, tool, lost);
            }
            "custom" => tools.add_custom(tool, lost)?,
            "namespace" => spaces.push(tool),
            other => tool.lost_as(other, lost),
        }
    }
    for mut space in spaces {
        let namespace = space.needed_text("name")?;
        for mut tool in space.objects("tools")? {
            if tool.needed_text("type")? != "function" {
                lost.add(tool.place());
                continue;
            }
            let name = tool.needed_text("name")?;
            let taken = tools.functions.iter().any(|(known, _)| *known == name);
            let function = if taken {
                format!("{namespace}__{name}")
            } else {
                name.clone()
            };
            let form = ToolForm::Namespaced {
                namespace: namespace.clone(),
                name,
            };
            tools.forms.insert(function.clone(), form);
            tools.add(function, tool, lost);
        }
        // There is no place for it in chat completions.
        if space.take("description").is_some() {
            lost.add("tools.namespace.description");
        }
        space.end(lost);
    }
    Ok(tools)
}

impl Tools {
    fn add(&mut self, name: String, mut tool: Fields, lost: &mut Lost) {
        let mut function = Map::new();
        function.insert("name".into(), name.clone().into());
        for member in ["description", "parameters", "strict"] {
            if let Some(value) = tool.take(member) {
                function.insert(member.into(), value);
            }
        }
        tool.end(lost);
        self.functions
            .push((name, json!({"type": "function", "function": function})));
    }

    /// A tool that takes a text as it is becomes a function with one argument. A grammar for that text is told to the
    /// model, and not enforced.
    fn add_custom(&mut self, mut tool: Fields, lost: &mut Lost) -> Result<(), RequestError> {
        let name = tool.needed_text("name")?;
        let mut description = tool.text("description")?.unwrap_or_default();
        if let Some(mut format) = tool.object("format")?
            && format.text("type")?.as_deref() == Some("grammar")
        {
            lost.add("tools.custom.format");
            let syntax = format.text("syntax")?.unwrap_or_default();
            let definition = format.text("definition")?.unwrap_or_default();
            description.push_str(&format!(
                "\n\nThe input is a text that follows this {syntax} grammar:\n{definition}"
            ));
        }
        tool.end(lost);
        let parameters = json!({
            "type": "object",
            "properties": {"input": {"type": "string", "description": "The input of the tool, as it is."}},
            "required": ["input"],
            "additionalProperties": false,
        });
        let function = json!({"name": name, "description": description, "parameters": parameters});
        self.functions
            .push((name.clone(), json!({"type": "function", "function": function})));
        self.forms.insert(name.clone(), ToolForm::Custom { name });
        Ok(())
    }

    /// The name that a function of the agent has in chat completions.
    pub(super) fn function_name(&self, namespace: Option<&str>, name: &str) -> String {
        let sought = namespace.map(|namespace| ToolForm::Namespaced {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        });
        let found = sought.and_then(|sought| self.forms.iter().find(|(_, form)| **form == sought));
        found.map_or_else(|| name.to_owned(), |(function, _)| function.clone())
    }

    /// Puts the tools into the request, and how they are chosen.
    pub(super) fn offer(
        mut self,
        fields: &mut Fields,
        chat: &mut ChatRequest,
        lost: &mut Lost,
    ) -> Result<(), RequestError> {
        let choice = match fields.take("tool_choice") {
            None => None,
            Some(Value::String(word)) => Some(Value::from(word)),
            Some(choice) => self.read_choice(Fields::of("tool_choice".into(), choice)?, lost)?,
        };
        let parallel = fields.take("parallel_tool_calls");
        if !self.functions.is_empty() {
            let functions = self.functions.into_iter().map(|(_, function)| function);
            chat.set("tools", Some(functions.collect::<Value>()));
            chat.set("tool_choice", choice);
            chat.set("parallel_tool_calls", parallel);
        }
        chat.way_back.tools = self.forms;
        Ok(())
    }

    fn read_choice(&mut self, mut choice: Fields, lost: &mut Lost) -> Result<Option<Value>, RequestError> {
        let kind = choice.needed_text("type")?;
        match kind.as_str() {
            "function" | "custom" => {
                let name = choice.needed_text("name")?;
                let namespace = choice.text("namespace")?;
                let name = self.function_name(namespace.as_deref(), &name);
                choice.end(lost);
                Ok(Some(json!({"type": "function", "function": {"name": name}})))
            }
            // Those that are not allowed are not offered.
            "allowed_tools" => {
                let mut allowed = BTreeSet::new();
                for mut tool in choice.objects("tools")? {
                    if let Some(name) = tool.text("name")? {
                        let namespace = tool.text("namespace")?;
                        allowed.insert(self.function_name(namespace.as_deref(), &name));
                    }
                }
                self.functions.retain(|(name, _)| allowed.contains(name));
                let mode = choice.take("mode");
                choice.end(lost);
                Ok(mode)
            }
            other => {
                choice.lost_as(other, lost);
                Ok(None)
            }
        }
    }
}
