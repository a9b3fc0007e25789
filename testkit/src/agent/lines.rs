//! The lines that `opencode run --format json` prints.

use serde_json::{Map, Value, json};
use std::io::{self, Write};
use std::time::{SystemTime, UNIX_EPOCH};

/// Prints lines, one JSON object each.
pub(super) struct Lines<'a> {
    out: &'a mut dyn Write,
    session: String,
    parts: u64,
    messages: u64,
}

impl<'a> Lines<'a> {
    /// Lines of a new session.
    pub(super) fn new(out: &'a mut dyn Write) -> Self {
        let session = format!("ses_{:012x}{:08x}", unix_ms(), std::process::id());
        Self {
            out,
            session,
            parts: 0,
            messages: 0,
        }
    }

    /// The session's id.
    pub(super) fn session(&self) -> &str {
        &self.session
    }

    /// A step begins.
    pub(super) fn step_start(&mut self) -> io::Result<()> {
        self.messages += 1;
        self.part("step_start", json!({"type": "step-start"}))
    }

    /// The model said something.
    pub(super) fn text(&mut self, text: &str) -> io::Result<()> {
        self.part("text", json!({"type": "text", "text": text}))
    }

    /// A tool was used; `Err` holds its failure.
    pub(super) fn tool_use(
        &mut self,
        name: &str,
        call_id: &str,
        input: &Value,
        result: Result<&str, &str>,
    ) -> io::Result<()> {
        let state = match result {
            Ok(output) => json!({"status": "completed", "input": input, "output": output}),
            Err(error) => json!({"status": "error", "input": input, "error": error}),
        };
        self.part(
            "tool_use",
            json!({"type": "tool", "callID": call_id, "tool": name, "state": state}),
        )
    }

    /// A step ends.
    pub(super) fn step_finish(&mut self, reason: &str, (input, output): (u64, u64)) -> io::Result<()> {
        let cache = json!({"read": 0, "write": 0});
        let tokens = json!({"total": input + output, "input": input, "output": output, "reasoning": 0, "cache": cache});
        self.part(
            "step_finish",
            json!({"type": "step-finish", "reason": reason, "tokens": tokens, "cost": 0}),
        )
    }

    /// The run ends with an error.
    pub(super) fn error(&mut self, name: &str, data: Value) -> io::Result<()> {
        self.line("error", "error", json!({"name": name, "data": data}))
    }

    /// A line about a part of a message; `part` holds what is special about it.
    fn part(&mut self, kind: &str, part: Value) -> io::Result<()> {
        self.parts += 1;
        let mut whole = Map::new();
        whole.insert("id".into(), format!("prt_{:016x}", self.parts).into());
        whole.insert("messageID".into(), format!("msg_{:016x}", self.messages).into());
        whole.insert("sessionID".into(), self.session.as_str().into());
        if let Value::Object(part) = part {
            whole.extend(part);
        }
        self.line(kind, "part", whole.into())
    }

    fn line(&mut self, kind: &str, member: &str, value: Value) -> io::Result<()> {
        let line = json!({"type": kind, "timestamp": unix_ms(), "sessionID": self.session, member: value});
        writeln!(self.out, "{line}")?;
        self.out.flush()
    }
}

fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
