//! The conversation, from the prompt to the turn without a tool call.

use super::exchange::{ExchangeError, ModelCall, ModelTurn, Signs, ask};
use super::lines::Lines;
use super::{AgentOptions, ArgumentStyle, Misbehaviour, misbehaviour, tools};
use serde_json::{Map, Value, json};
use std::io::{self, Read, Write};

/// How the agent ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AgentExit {
    /// The work is done.
    Done,
    /// The model could not be asked; a line says why.
    Failed,
    /// With this code, on purpose.
    Code(u8),
}

impl AgentExit {
    /// The exit code of the process.
    #[must_use]
    pub fn code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::Failed => 1,
            Self::Code(code) => code,
        }
    }
}

/// Reads the prompt to its end and works on it, printing a line for each event.
///
/// # Errors
/// Where the prompt cannot be read, a line cannot be printed, or a misbehaviour cannot be begun.
pub fn run(
    options: &AgentOptions,
    variable: &dyn Fn(&str) -> Option<String>,
    input: &mut dyn Read,
    output: &mut dyn Write,
) -> io::Result<AgentExit> {
    if options.misbehaves(Misbehaviour::IgnoreSigterm) {
        misbehaviour::ignore_sigterm(variable)?;
    }
    let mut prompt = String::new();
    input.read_to_string(&mut prompt)?;
    if options.misbehaves(Misbehaviour::Hang) {
        misbehaviour::hang();
    }
    if options.misbehaves(Misbehaviour::NoText) {
        return Ok(AgentExit::Done);
    }
    if options.misbehaves(Misbehaviour::Spam) {
        misbehaviour::spam(output)?;
    }
    if options.misbehaves(Misbehaviour::LeaveDaemon) {
        misbehaviour::leave_daemon()?;
    }
    let exit = Conversation::new(options, &prompt, output)?.run()?;
    if options.misbehaves(Misbehaviour::Crash) {
        misbehaviour::crash();
    }
    if options.misbehaves(Misbehaviour::NeverExit) {
        misbehaviour::hang();
    }
    Ok(if options.misbehaves(Misbehaviour::Exit3) {
        AgentExit::Code(3)
    } else {
        exit
    })
}

struct Conversation<'a> {
    options: AgentOptions,
    lines: Lines<'a>,
    messages: Vec<Value>,
    tools: Value,
}

impl<'a> Conversation<'a> {
    fn new(options: &AgentOptions, prompt: &str, output: &'a mut dyn Write) -> io::Result<Self> {
        let mut options = options.clone();
        if options.misbehaves(Misbehaviour::WrongKey) {
            options.api_key = "sk-wrong".into();
        }
        let directory = std::env::current_dir()?;
        let system = format!(
            "You are a coding agent that does what its model says.\n<env>\n  Working directory: {}\n</env>",
            directory.display()
        );
        let messages = vec![
            json!({"role": "system", "content": system}),
            json!({"role": "user", "content": prompt}),
        ];
        Ok(Self {
            options,
            lines: Lines::new(output),
            messages,
            tools: tools::offered(),
        })
    }

    fn run(mut self) -> io::Result<AgentExit> {
        if self.options.misbehaves(Misbehaviour::Foreign) {
            // Whatever comes of it, the work goes on.
            let _ = ask(&self.options, Signs::Curl, &self.messages, &self.tools);
        }
        loop {
            self.lines.step_start()?;
            let turn = match self.ask() {
                Ok(turn) => turn,
                Err(error) => {
                    self.report(&error)?;
                    return Ok(AgentExit::Failed);
                }
            };
            if !turn.content.trim().is_empty() {
                self.lines.text(&turn.content)?;
            }
            self.messages.push(self.assistant_message(&turn));
            for call in &turn.tool_calls {
                self.use_tool(call)?;
            }
            let reason = if turn.finish_reason == "tool_calls" {
                "tool-calls"
            } else {
                &turn.finish_reason
            };
            self.lines.step_finish(reason, turn.tokens)?;
            if turn.tool_calls.is_empty() {
                return Ok(AgentExit::Done);
            }
        }
    }

    fn ask(&self) -> Result<ModelTurn, ExchangeError> {
        let signs = Signs::OpenCode {
            session: self.lines.session(),
        };
        let mut left = self.options.retries;
        loop {
            match ask(&self.options, signs, &self.messages, &self.tools) {
                Err(error) if left > 0 && error.is_retryable() => left -= 1,
                answered => return answered,
            }
        }
    }

    /// The turn as it goes back to the model.
    fn assistant_message(&self, turn: &ModelTurn) -> Value {
        let mut message = Map::new();
        message.insert("role".into(), "assistant".into());
        message.insert("content".into(), turn.content.as_str().into());
        if !turn.reasoning.is_empty() {
            message.insert("reasoning_content".into(), turn.reasoning.as_str().into());
        }
        if !turn.tool_calls.is_empty() {
            let call = |call: &ModelCall| {
                let arguments = match self.options.arguments {
                    ArgumentStyle::Verbatim => call.arguments.clone(),
                    ArgumentStyle::Compact => serde_json::from_str::<Value>(&call.arguments)
                        .map_or_else(|_| call.arguments.clone(), |arguments| arguments.to_string()),
                };
                json!({"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}})
            };
            message.insert("tool_calls".into(), turn.tool_calls.iter().map(call).collect());
        }
        message.into()
    }

    fn use_tool(&mut self, call: &ModelCall) -> io::Result<()> {
        let result = tools::execute(&call.name, &call.arguments).map_err(|error| error.to_string());
        let input = serde_json::from_str(&call.arguments).unwrap_or(Value::Null);
        let told = result.as_deref().map_err(String::as_str);
        self.lines.tool_use(&call.name, &call.id, &input, told)?;
        let (Ok(content) | Err(content)) = result;
        self.messages
            .push(json!({"role": "tool", "tool_call_id": call.id, "content": content}));
        Ok(())
    }

    fn report(&mut self, error: &ExchangeError) -> io::Result<()> {
        let message = error.to_string();
        match error {
            ExchangeError::Status { body, .. } => self.lines.error(
                "APIError",
                json!({
                    "message": message, "statusCode": error.status(), "isRetryable": error.is_retryable(),
                    "responseBody": body,
                }),
            ),
            _ => self.lines.error("UnknownError", json!({"message": message})),
        }
    }
}
