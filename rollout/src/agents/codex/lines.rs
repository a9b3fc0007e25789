use super::super::lines::{LineReader, short, text_at};
use dressage_wire::event::AgentEvent;
use serde_json::Value;

/// Reads what `codex exec --json` 0.171.0 prints.
pub(super) fn reader() -> LineReader {
    Box::new(|line, events| {
        let Ok(line) = serde_json::from_slice::<Value>(line) else {
            return;
        };
        match line.get("type").and_then(Value::as_str) {
            Some("thread.started") => events.push(AgentEvent::Session {
                id: text_at(&line, "/thread_id"),
            }),
            Some("item.completed") => events.extend(line.get("item").and_then(item)),
            Some("turn.completed") => events.push(AgentEvent::StepEnded {
                reason: "completed".into(),
            }),
            Some("turn.failed") => events.push(AgentEvent::Error {
                message: text_at(&line, "/error/message"),
            }),
            Some("error") => events.push(AgentEvent::Error {
                message: text_at(&line, "/message"),
            }),
            _ => {}
        }
    })
}

fn item(item: &Value) -> Option<AgentEvent> {
    let tool = |name: String, input: &str| AgentEvent::Tool {
        name,
        input: item.get(input).map(short).unwrap_or_default(),
        failed: text_at(item, "/status") == "failed",
    };
    match item.get("type")?.as_str()? {
        "agent_message" => Some(AgentEvent::Text {
            text: text_at(item, "/text"),
        }),
        "command_execution" => Some(tool("exec_command".into(), "command")),
        "file_change" => Some(tool("apply_patch".into(), "changes")),
        "mcp_tool_call" => Some(tool(
            format!("{}.{}", text_at(item, "/server"), text_at(item, "/tool")),
            "arguments",
        )),
        "collab_tool_call" => Some(tool(text_at(item, "/tool"), "prompt")),
        // Warnings, such as that it does not know the model.
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_codex_0_171_0_are_read() {
        let lines = [
            r#"{"type":"thread.started","thread_id":"t1"}"#,
            r#"{"type":"item.completed","item":{"id":"item_0","type":"error","message":"Model metadata for `m` not found."}}"#,
            r#"{"type":"turn.started"}"#,
            r#"{"type":"item.started","item":{"id":"item_1","type":"command_execution","command":"bash -lc ls","aggregated_output":"","exit_code":null,"status":"in_progress"}}"#,
            r#"{"type":"item.completed","item":{"id":"item_1","type":"command_execution","command":"bash -lc ls","aggregated_output":"","exit_code":1,"status":"failed"}}"#,
            r#"{"type":"item.completed","item":{"id":"item_2","type":"agent_message","text":"Done."}}"#,
            r#"{"type":"turn.completed","usage":{"input_tokens":1,"cached_input_tokens":0,"output_tokens":1}}"#,
            r#"{"type":"error","message":"Reconnecting... 1/2"}"#,
            r#"{"type":"turn.failed","error":{"message":"unexpected status 401 Unauthorized"}}"#,
            "text",
        ];
        let mut read = reader();
        let mut events = Vec::new();
        for line in lines {
            read(line.as_bytes(), &mut events);
        }
        let error = |message: &str| AgentEvent::Error {
            message: message.into(),
        };
        assert_eq!(
            events,
            [
                AgentEvent::Session { id: "t1".into() },
                AgentEvent::Tool {
                    name: "exec_command".into(),
                    input: "bash -lc ls".into(),
                    failed: true
                },
                AgentEvent::Text { text: "Done.".into() },
                AgentEvent::StepEnded {
                    reason: "completed".into()
                },
                error("Reconnecting... 1/2"),
                error("unexpected status 401 Unauthorized"),
            ]
        );
    }
}
