use super::super::lines::{LineReader, OpenTools, text_at};
use dressage_wire::event::AgentEvent;
use serde_json::Value;

/// Bytes of one text that are gathered before they are told.
const TEXT_BYTES: usize = 1 << 20;

/// Reads what Gemini CLI 0.61.0 prints as `stream-json`. Texts come in pieces, and are told whole.
pub(super) fn reader() -> LineReader {
    let mut tools = OpenTools::default();
    let mut text = String::new();
    Box::new(move |line, events| {
        let Ok(line) = serde_json::from_slice::<Value>(line) else {
            return;
        };
        let kind = line.get("type").and_then(Value::as_str).unwrap_or_default();
        if kind == "message" && text_at(&line, "/role") == "assistant" {
            text.push_str(&text_at(&line, "/content"));
            if line.get("delta") == Some(&Value::Bool(true)) && text.len() < TEXT_BYTES {
                return;
            }
        }
        if !text.is_empty() {
            events.push(AgentEvent::Text {
                text: std::mem::take(&mut text),
            });
        }
        match kind {
            "init" => events.push(AgentEvent::Session {
                id: text_at(&line, "/session_id"),
            }),
            "tool_use" => tools.called(
                text_at(&line, "/tool_id"),
                text_at(&line, "/tool_name"),
                line.get("parameters").unwrap_or(&Value::Null),
                events,
            ),
            "tool_result" => {
                let failed = text_at(&line, "/status") == "error";
                tools.answered(&text_at(&line, "/tool_id"), failed, events);
            }
            "error" => events.push(AgentEvent::Error {
                message: text_at(&line, "/message"),
            }),
            "result" if text_at(&line, "/status") == "error" => events.push(AgentEvent::Error {
                message: text_at(&line, "/error/message"),
            }),
            "result" => events.push(AgentEvent::StepEnded {
                reason: text_at(&line, "/status"),
            }),
            _ => {}
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_gemini_cli_0_61_0_are_read() {
        let lines = [
            r#"{"type":"init","timestamp":"t","session_id":"s1","model":"m"}"#,
            r#"{"type":"message","timestamp":"t","role":"user","content":"Do it."}"#,
            r#"{"type":"message","timestamp":"t","role":"assistant","content":"I ","delta":true}"#,
            r#"{"type":"message","timestamp":"t","role":"assistant","content":"will.","delta":true}"#,
            r#"{"type":"tool_use","timestamp":"t","tool_name":"write_file","tool_id":"c1","parameters":{"file_path":"/a"}}"#,
            r#"{"type":"tool_result","timestamp":"t","tool_id":"c1","status":"error","output":"no"}"#,
            r#"{"type":"message","timestamp":"t","role":"assistant","content":"Done.","delta":true}"#,
            r#"{"type":"result","timestamp":"t","status":"success","stats":{"total_tokens":12}}"#,
            r#"{"type":"result","timestamp":"t","status":"error","error":{"type":"x","message":"[API Error: 401]"}}"#,
            "YOLO mode is enabled.",
        ];
        let mut read = reader();
        let mut events = Vec::new();
        for line in lines {
            read(line.as_bytes(), &mut events);
        }
        assert_eq!(
            events,
            [
                AgentEvent::Session { id: "s1".into() },
                AgentEvent::Text {
                    text: "I will.".into()
                },
                AgentEvent::Tool {
                    name: "write_file".into(),
                    input: r#"{"file_path":"/a"}"#.into(),
                    failed: true
                },
                AgentEvent::Text { text: "Done.".into() },
                AgentEvent::StepEnded {
                    reason: "success".into()
                },
                AgentEvent::Error {
                    message: "[API Error: 401]".into()
                },
            ]
        );
    }
}
