use crate::capture::{RequestError, ToolForm};
use crate::scan::string_body;
use crate::translate::{ChatRequest, Fields, Json, Lost, Raw};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

/// The tools of a request, as functions.
#[derive(Debug, Default)]
pub(super) struct Tools<'a> {
    /// Names, and functions as chat completions have them.
    functions: Vec<(Cow<'a, str>, Json)>,
    names: BTreeSet<String>,
    forms: BTreeMap<String, ToolForm>,
}

/// Reads the tools.
pub(super) fn read<'a>(fields: &mut Fields<'a>, lost: &mut Lost) -> Result<Tools<'a>, RequestError> {
    let mut tools = Tools::default();
    let mut spaces = Vec::new();
    for tool in fields.objects("tools")? {
        let mut tool = tool?;
        match tool.needed_text("type")?.as_ref() {
            "function" => {
                let name = tool.needed_text("name")?;
                tools.add(name, tool, lost);
            }
            "custom" => tools.add_custom(tool, lost)?,
            "namespace" => spaces.push(tool),
            other => tool.lose(other, lost),
        }
    }
    for mut space in spaces {
        let namespace = space.needed_text("name")?;
        for tool in space.objects("tools")? {
            let mut tool = tool?;
            if tool.needed_text("type")? != "function" {
                tool.lose("", lost);
                continue;
            }
            let name = tool.needed_text("name")?;
            let function = if tools.names.contains(name.as_ref()) {
                format!("{namespace}__{name}").into()
            } else {
                name.clone()
            };
            let form = ToolForm::Namespaced {
                namespace: namespace.clone().into_owned(),
                name: name.into_owned(),
            };
            tools.forms.insert(function.clone().into_owned(), form);
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

impl<'a> Tools<'a> {
    fn add(&mut self, name: Cow<'a, str>, mut tool: Fields<'a>, lost: &mut Lost) {
        let mut function = Json::from("{\"type\":\"function\",\"function\":{\"name\":").string(&name);
        for member in ["description", "parameters", "strict"] {
            function = function.member(member, tool.take(member));
        }
        tool.end(lost);
        self.push(name, function.raw("}}"));
    }

    fn push(&mut self, name: Cow<'a, str>, function: Json) {
        self.names.insert(name.clone().into_owned());
        self.functions.push((name, function));
    }

    /// A tool that takes a text as it is becomes a function with one argument. A grammar for that text is told to the
    /// model, and not enforced.
    fn add_custom(&mut self, mut tool: Fields<'a>, lost: &mut Lost) -> Result<(), RequestError> {
        let name = tool.needed_text("name")?;
        let mut description = tool.text("description")?.unwrap_or_default();
        if let Some(mut format) = tool.object("format")?
            && format.text("type")?.as_deref() == Some("grammar")
        {
            lost.add("tools.custom.format");
            let syntax = format.text("syntax")?.unwrap_or_default();
            let definition = format.text("definition")?.unwrap_or_default();
            description.to_mut().push_str(&format!(
                "\n\nThe input is a text that follows this {syntax} grammar:\n{definition}"
            ));
        }
        tool.end(lost);
        let function = Json::from("{\"type\":\"function\",\"function\":{\"name\":")
            .string(&name)
            .raw(",\"description\":")
            .string(&description)
            .raw(CUSTOM_PARAMETERS);
        let form = ToolForm::Custom {
            name: name.clone().into_owned(),
        };
        self.forms.insert(name.clone().into_owned(), form);
        self.push(name, function);
        Ok(())
    }

    /// The name that a function of the agent has in chat completions.
    pub(super) fn function_name<'n>(&'n self, namespace: Option<&str>, name: &'n str) -> &'n str {
        let Some(sought) = namespace else { return name };
        let found = self.forms.iter().find(|(_, form)| match form {
            ToolForm::Namespaced {
                namespace,
                name: inner,
            } => namespace == sought && inner == name,
            ToolForm::Custom { .. } => false,
        });
        found.map_or(name, |(function, _)| function)
    }

    /// Puts the tools into the request, and how they are chosen.
    pub(super) fn offer(
        mut self,
        fields: &mut Fields<'_>,
        chat: &mut ChatRequest,
        lost: &mut Lost,
    ) -> Result<(), RequestError> {
        let choice = match fields.take("tool_choice") {
            None => None,
            Some(word) if word.body().is_some() => Some(word.as_ref().to_vec()),
            Some(choice) => self.read_choice(fields.of_only("tool_choice", choice)?, lost)?,
        };
        let parallel = fields.take("parallel_tool_calls");
        if !self.functions.is_empty() {
            let functions = self.functions.into_iter();
            let tools =
                Json::default().list(functions, |json, (_, function)| json.raw(function.into_bytes()));
            chat.set("tools", Some(tools.into_bytes()));
            chat.set("tool_choice", choice);
            chat.set("parallel_tool_calls", parallel);
        }
        chat.way_back.tools = self.forms;
        Ok(())
    }

    fn read_choice(
        &mut self,
        mut choice: Fields<'_>,
        lost: &mut Lost,
    ) -> Result<Option<Vec<u8>>, RequestError> {
        let kind = choice.needed_text("type")?;
        match kind.as_ref() {
            "function" | "custom" => {
                let name = choice.needed_text("name")?;
                let namespace = choice.text("namespace")?;
                let name = Json::default().string(self.function_name(namespace.as_deref(), &name));
                choice.end(lost);
                let name = name.into_bytes();
                let chosen = Json::function_choice(string_body(&name).unwrap_or_default());
                Ok(Some(chosen.into_bytes()))
            }
            // Those that are not allowed are not offered.
            "allowed_tools" => {
                let mut allowed = BTreeSet::new();
                for tool in choice.objects("tools")? {
                    let mut tool = tool?;
                    if let Some(name) = tool.text("name")? {
                        let namespace = tool.text("namespace")?;
                        allowed.insert(self.function_name(namespace.as_deref(), &name).to_owned());
                    }
                }
                self.functions.retain(|(name, _)| allowed.contains(name.as_ref()));
                let mode = choice.take("mode");
                choice.end(lost);
                Ok(mode.as_ref().map(Raw::as_ref).map(<[u8]>::to_vec))
            }
            other => {
                choice.lose(other, lost);
                Ok(None)
            }
        }
    }
}

/// The end of a function that takes a text as it is, after its description.
const CUSTOM_PARAMETERS: &str = concat!(
    ",\"parameters\":{\"type\":\"object\",\"properties\":{\"input\":{\"type\":\"string\",",
    "\"description\":\"The input of the tool, as it is.\"}},",
    "\"required\":[\"input\"],\"additionalProperties\":false}}}"
);
