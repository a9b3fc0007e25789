//! What the model says next.

use super::presets::PresetScript;
use super::request::ChatRequest;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::fmt;

/// Decides what the model says. Called once a request; the same conversation gets the same turn from the scripts here,
/// which keep no state.
pub trait Script: fmt::Debug + Send + Sync {
    /// The model's next turn.
    fn next_turn(&self, conversation: &Conversation<'_>) -> Turn;
}

/// One turn of the model.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Turn {
    /// What it thinks first; not said where the request turned thinking off.
    pub reasoning: String,
    /// What it says.
    pub text: String,
    /// The tools it calls.
    pub tool_calls: Vec<ToolCall>,
    /// Silence before the first byte of the reply's body.
    pub delay_ms: u64,
    /// Silence before each event of a stream but the first.
    pub event_delay_ms: u64,
}

/// A call of a tool.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ToolCall {
    /// Name of the tool.
    pub name: String,
    /// Its arguments. An object is written as models write it, with a space after `,` and `:`; a string is written as it
    /// is, well-formed or not.
    pub arguments: Value,
}

impl Turn {
    /// A turn that only says something.
    #[must_use]
    pub fn says(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            ..Self::default()
        }
    }

    /// A turn that calls a tool.
    #[must_use]
    pub fn calls(name: impl Into<String>, arguments: Value) -> Self {
        Self {
            tool_calls: vec![ToolCall {
                name: name.into(),
                arguments,
            }],
            ..Self::default()
        }
    }

    /// The same turn, thought about first.
    #[must_use]
    pub fn thinking(mut self, reasoning: impl Into<String>) -> Self {
        self.reasoning = reasoning.into();
        self
    }

    /// The same turn, with something said before its tool calls.
    #[must_use]
    pub fn saying(mut self, text: impl Into<String>) -> Self {
        self.text = text.into();
        self
    }
}

/// What a script sees of a request.
#[derive(Clone, Copy, Debug)]
pub struct Conversation<'a> {
    request: &'a ChatRequest,
}

impl<'a> Conversation<'a> {
    pub(super) fn new(request: &'a ChatRequest) -> Self {
        Self { request }
    }

    /// The tool that writes a file, where one is offered.
    #[must_use]
    pub fn writer(&self) -> Option<Writer<'a>> {
        self.request.tools.iter().find_map(Writer::of)
    }

    /// The tool that runs a shell command, where one is offered.
    #[must_use]
    pub fn shell(&self) -> Option<Shell<'a>> {
        self.request.tools.iter().find_map(Shell::of)
    }

    /// Whether any tool was offered. Calls for titles and summaries offer none.
    #[must_use]
    pub fn offers_tools(&self) -> bool {
        !self.request.tools.is_empty()
    }

    /// The text of the first system message, empty where there is none.
    #[must_use]
    pub fn system(&self) -> &'a str {
        self.texts("system").next().unwrap_or_default()
    }

    /// The text of the first user message, empty where there is none.
    #[must_use]
    pub fn instruction(&self) -> &'a str {
        self.texts("user").next().unwrap_or_default()
    }

    /// The text of the last user message, empty where there is none.
    #[must_use]
    pub fn last_said(&self) -> &'a str {
        self.texts("user").last().unwrap_or_default()
    }

    /// The text of the last result of a tool, where there is one.
    #[must_use]
    pub fn last_tool_result(&self) -> Option<&'a str> {
        self.texts("tool").last()
    }

    /// The texts of the user, the last first. Agents say more there than the instruction.
    pub fn user_texts_from_last(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        let messages = self.request.messages.iter().rev();
        messages
            .filter(|message| message.role == "user")
            .map(|message| message.content.as_str())
    }

    /// Number of assistant turns since the last user message. One right behind a tool's result is a reminder of the
    /// agent's, and does not count.
    #[must_use]
    pub fn turns_taken(&self) -> usize {
        let messages = &self.request.messages;
        let is_prompt = |at: usize| {
            let role = |at: usize| messages.get(at).map(|message| message.role.as_str());
            let before = (0..at).rev().map(role).find(|role| *role != Some("user"));
            role(at) == Some("user") && before.flatten() != Some("tool")
        };
        let since = (0..messages.len()).rev().find(|&at| is_prompt(at)).unwrap_or(0);
        let since_prompt = messages.get(since..).unwrap_or_default().iter();
        since_prompt.filter(|message| message.role == "assistant").count()
    }

    /// The directory the agent says it works in, in the words of OpenCode, Qwen Code or Codex.
    #[must_use]
    pub fn working_directory(&self) -> Option<&'a str> {
        const MARKS: [&str; 4] = [
            "Working directory:",
            "working directory:",
            "working in the directory:",
            "<cwd>",
        ];
        let lines = ["system", "developer", "user"]
            .into_iter()
            .flat_map(|role| self.texts(role))
            .flat_map(str::lines);
        lines
            .filter_map(|line| MARKS.iter().find_map(|mark| Some(line.split_once(mark)?.1)))
            .map(|path| path.split_once('<').map_or(path, |(path, _)| path).trim())
            .find(|path| path.starts_with('/'))
    }

    fn texts(&self, role: &'static str) -> impl Iterator<Item = &'a str> + use<'a> {
        let messages = self
            .request
            .messages
            .iter()
            .filter(move |message| message.role == role);
        messages.map(|message| message.content.as_str())
    }
}

/// A tool that writes a file, whatever it is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Writer<'a> {
    name: &'a str,
    path: &'static str,
}

impl<'a> Writer<'a> {
    fn of(tool: &'a Value) -> Option<Self> {
        let (name, properties) = parts(tool)?;
        let path = ["filePath", "file_path", "path"]
            .into_iter()
            .find(|path| properties.contains_key(*path))?;
        let writes = name.to_lowercase().contains("write") && properties.contains_key("content");
        writes.then_some(Self { name, path })
    }

    /// A turn that writes a file.
    #[must_use]
    pub fn writes(&self, path: &str, content: &str) -> Turn {
        Turn::calls(self.name, json!({self.path: path, "content": content}))
    }
}

/// A tool that runs a shell command, whatever it is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shell<'a> {
    name: &'a str,
    command: &'static str,
    described: bool,
}

impl<'a> Shell<'a> {
    fn of(tool: &'a Value) -> Option<Self> {
        let (name, properties) = parts(tool)?;
        let lower = name.to_lowercase();
        let runs = ["bash", "shell", "exec"].iter().any(|word| lower.contains(word));
        let command = ["command", "cmd"]
            .into_iter()
            .find(|command| properties.contains_key(*command))?;
        runs.then_some(Self {
            name,
            command,
            described: properties.contains_key("description"),
        })
    }

    /// A turn that runs a command. `description` says what for, to tools that want to know.
    #[must_use]
    pub fn runs(&self, command: &str, description: &str) -> Turn {
        let arguments = if self.described {
            json!({self.command: command, "description": description})
        } else {
            json!({self.command: command})
        };
        Turn::calls(self.name, arguments)
    }
}

/// Name and parameters of a tool.
fn parts(tool: &Value) -> Option<(&str, &serde_json::Map<String, Value>)> {
    let name = tool.pointer("/function/name")?.as_str()?;
    let properties = tool.pointer("/function/parameters/properties")?.as_object()?;
    Some((name, properties))
}

/// Turns given as data. The turn taken is the one whose number is that of the assistant turns so far; past the last, the
/// last is said again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ScriptedTurns(
    /// The turns, in order.
    pub Vec<Turn>,
);

impl ScriptedTurns {
    /// Turns of a JSON text: an array of objects with the members of [`Turn`].
    ///
    /// # Errors
    /// Where the text is not such an array; the error names line, column and member.
    pub fn from_json(text: &str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(text)
    }

    /// `count` turns of about `turn_tokens` sampled tokens each, which call `bash` with a comment of varied words, and a
    /// last one that only speaks: a long rollout whose every prompt breaks inside the turn before it where the agent
    /// re-serialises arguments.
    #[must_use]
    pub fn long(count: usize, turn_tokens: usize) -> Self {
        const WORDS: [&str; 8] = [
            "return",
            " value",
            " self",
            " file",
            " name",
            " string",
            " object",
            " argument",
        ];
        let call = |turn: usize| {
            let words = (0..turn_tokens).map(|word| {
                let pick = (turn * 31 + word * 7 + word / 8 * (turn + 3)) % WORDS.len();
                WORDS.get(pick).copied().unwrap_or_default()
            });
            let command = format!("true step {turn} # {}", words.collect::<String>());
            Turn::calls(
                "bash",
                serde_json::json!({"command": command, "description": "A step"}),
            )
            .thinking(format!("Step {turn} is next."))
        };
        let mut turns: Vec<Turn> = (0..count.saturating_sub(1)).map(call).collect();
        turns.push(Turn::says("All steps are done."));
        Self(turns)
    }
}

impl Script for ScriptedTurns {
    fn next_turn(&self, conversation: &Conversation<'_>) -> Turn {
        if !conversation.offers_tools() && conversation.system().contains("title generator") {
            return PresetScript.next_turn(conversation);
        }
        let turn = self.0.get(conversation.turns_taken()).or(self.0.last());
        turn.cloned().unwrap_or_default()
    }
}
