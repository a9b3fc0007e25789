//! Lines that agents print, as events.

use bytes::Bytes;
use dressage_wire::event::AgentEvent;
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::HashMap;

/// Reads the lines of one run, in order; adds what each means. A line that means nothing adds nothing.
pub type LineReader = Box<dyn FnMut(&[u8], &mut Vec<AgentEvent>) + Send>;

/// Characters of a tool's input that are told.
const INPUT_CHARACTERS: usize = 200;

/// Tools under way that are remembered; more are told at once, before it is known whether they fail.
const OPEN_TOOLS: usize = 1000;

/// A short form of a tool's input.
pub(super) fn short(input: &Value) -> String {
    let whole = match input {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    };
    let mut short: String = whole.chars().take(INPUT_CHARACTERS).collect();
    if short.len() < whole.len() {
        short.push('…');
    }
    short
}

/// The text at a path of a line, empty where there is none.
pub(super) fn text_at(value: &Value, path: &str) -> String {
    value
        .pointer(path)
        .and_then(Value::as_str)
        .unwrap_or_default()
        .to_owned()
}

/// Tools that were called and have not answered yet.
#[derive(Default)]
pub(super) struct OpenTools {
    open: HashMap<String, (String, String)>,
}

impl OpenTools {
    /// A tool was called.
    pub(super) fn called(&mut self, id: String, name: String, input: &Value, events: &mut Vec<AgentEvent>) {
        let input = short(input);
        if self.open.len() >= OPEN_TOOLS {
            events.push(AgentEvent::Tool {
                name,
                input,
                failed: false,
            });
            return;
        }
        self.open.insert(id, (name, input));
    }

    /// It answered.
    pub(super) fn answered(&mut self, id: &str, failed: bool, events: &mut Vec<AgentEvent>) {
        if let Some((name, input)) = self.open.remove(id) {
            events.push(AgentEvent::Tool { name, input, failed });
        }
    }
}

/// A prompt as a line that Claude Code and Qwen Code read as `stream-json`.
pub(super) fn user_message(prompt: &str) -> Bytes {
    let message = json!({ "role": "user", "content": prompt });
    let line = json!({
        "type": "user", "session_id": "", "parent_tool_use_id": null, "message": message,
    });
    format!("{line}\n").into()
}

/// A line of what Claude Code and Qwen Code print as `stream-json`.
#[derive(Deserialize)]
struct Line {
    r#type: String,
    #[serde(default)]
    session_id: Option<String>,
    /// Set on what a sub-agent says.
    #[serde(default)]
    parent_tool_use_id: Option<String>,
    #[serde(default)]
    subtype: Option<String>,
    #[serde(default)]
    message: Value,
    #[serde(default)]
    is_error: bool,
    #[serde(default)]
    result: Value,
    #[serde(default)]
    error: Value,
}

/// Reads `stream-json`, as Claude Code 2.1.332 and Qwen Code 0.24.4 print it.
pub(super) fn stream_json() -> LineReader {
    let mut tools = OpenTools::default();
    let mut session_told = false;
    Box::new(move |line, events| {
        let Ok(line) = serde_json::from_slice::<Line>(line) else {
            return;
        };
        if let (false, Some(id)) = (session_told, &line.session_id) {
            session_told = true;
            events.push(AgentEvent::Session { id: id.clone() });
        }
        let blocks = line.message.get("content").and_then(Value::as_array);
        match line.r#type.as_str() {
            "assistant" | "user" => {
                for block in blocks.into_iter().flatten() {
                    read_block(block, line.parent_tool_use_id.is_none(), &mut tools, events);
                }
            }
            "result" => {
                if line.is_error {
                    let said = [
                        text_at(&line.error, "/message"),
                        line.result.as_str().unwrap_or_default().into(),
                    ];
                    let message = said.into_iter().find(|text| !text.is_empty());
                    events.push(AgentEvent::Error {
                        message: message.or(line.subtype).unwrap_or_default(),
                    });
                } else {
                    events.push(AgentEvent::StepEnded {
                        reason: line.subtype.unwrap_or_default(),
                    });
                }
            }
            _ => {}
        }
    })
}

fn read_block(block: &Value, own: bool, tools: &mut OpenTools, events: &mut Vec<AgentEvent>) {
    match block.get("type").and_then(Value::as_str) {
        Some("text") if own => events.push(AgentEvent::Text {
            text: text_at(block, "/text"),
        }),
        Some("tool_use") => tools.called(
            text_at(block, "/id"),
            text_at(block, "/name"),
            block.get("input").unwrap_or(&Value::Null),
            events,
        ),
        Some("tool_result") => {
            let failed = block.get("is_error").and_then(Value::as_bool).unwrap_or(false);
            tools.answered(&text_at(block, "/tool_use_id"), failed, events);
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(lines: &[&str]) -> Vec<AgentEvent> {
        let mut reader = stream_json();
        let mut events = Vec::new();
        for line in lines {
            reader(line.as_bytes(), &mut events);
        }
        events
    }

    #[test]
    fn lines_of_qwen_code_0_24_4_are_read() {
        let lines = [
            r#"{"type":"system","subtype":"init","uuid":"u","session_id":"s1","cwd":"/","tools":["edit"],"mcp_servers":[],"model":"m"}"#,
            r#"{"type":"stream_event","uuid":"u","session_id":"s1","parent_tool_use_id":null,"event":{"type":"goal_state"}}"#,
            r#"{"type":"assistant","uuid":"u","session_id":"s1","parent_tool_use_id":null,"message":{"id":"u","type":"message","role":"assistant","model":"m","content":[{"type":"thinking","thinking":"Hm","signature":""}],"stop_reason":null}}"#,
            r#"{"type":"assistant","uuid":"u","session_id":"s1","parent_tool_use_id":null,"message":{"id":"u","type":"message","role":"assistant","model":"m","content":[{"type":"text","text":"I will."},{"type":"tool_use","id":"c1","name":"write_file","input":{"file_path":"/a","content":"b"}}],"stop_reason":null}}"#,
            r#"{"type":"user","uuid":"u","session_id":"s1","parent_tool_use_id":null,"message":{"role":"user","content":[{"type":"tool_result","tool_use_id":"c1","is_error":true,"content":"no"}]}}"#,
            r#"{"type":"assistant","session_id":"s1","parent_tool_use_id":"c9","message":{"content":[{"type":"text","text":"a sub-agent's"}]}}"#,
            r#"{"type":"result","subtype":"success","uuid":"u","session_id":"s1","is_error":false,"num_turns":1,"result":"I will."}"#,
        ];
        assert_eq!(
            read(&lines),
            [
                AgentEvent::Session { id: "s1".into() },
                AgentEvent::Text {
                    text: "I will.".into()
                },
                AgentEvent::Tool {
                    name: "write_file".into(),
                    input: r#"{"file_path":"/a","content":"b"}"#.into(),
                    failed: true
                },
                AgentEvent::StepEnded {
                    reason: "success".into()
                },
            ]
        );
    }

    #[test]
    fn a_result_that_is_an_error_is_one_by_its_own_words() {
        let of = |rest: &str| {
            read(&[&format!(r#"{{"type":"result","is_error":true,{rest}}}"#)])
                .pop()
                .unwrap()
        };
        let error = |message: &str| AgentEvent::Error {
            message: message.into(),
        };
        assert_eq!(
            of(r#""subtype":"success","result":"API Error: 401""#),
            error("API Error: 401")
        );
        assert_eq!(of(r#""subtype":"x","error":{"message":"no"}"#), error("no"));
        assert_eq!(of(r#""subtype":"error_max_turns""#), error("error_max_turns"));
    }

    #[test]
    fn lines_of_another_kind_say_nothing() {
        assert_eq!(read(&["", "text", "{", "[]", r#"{"type":"assistant"}"#]), []);
    }

    #[test]
    fn a_long_input_is_cut_between_characters() {
        let input = short(&Value::String("é".repeat(500)));
        assert_eq!(input.chars().count(), INPUT_CHARACTERS + 1);
    }
}
