use super::super::lines::{LineReader, OpenTools, text_at};
use dressage_wire::event::AgentEvent;
use serde_json::Value;

/// What it says of a command that it did not run.
const NOT_EXECUTED: &str = "action was not executed";

/// Reads the messages of mini-swe-agent 2.4.6.
pub(super) fn reader() -> LineReader {
    let mut tools = OpenTools::default();
    Box::new(move |line, events| {
        let Ok(line) = serde_json::from_slice::<Value>(line) else {
            return;
        };
        match line.get("role").and_then(Value::as_str) {
            Some("assistant") => {
                let text = text_at(&line, "/content");
                if !text.is_empty() {
                    events.push(AgentEvent::Text { text });
                }
                let calls = line.get("tool_calls").and_then(Value::as_array);
                for call in calls.into_iter().flatten() {
                    let input = call.pointer("/function/arguments").unwrap_or(&Value::Null);
                    tools.called(
                        text_at(call, "/id"),
                        text_at(call, "/function/name"),
                        input,
                        events,
                    );
                }
            }
            Some("tool") => {
                let code = line.pointer("/extra/returncode").and_then(Value::as_i64);
                // Its last command, by which it says that it is done, is answered so.
                let left_out = text_at(&line, "/extra/exception_info") == NOT_EXECUTED;
                let failed = code != Some(0) && !left_out;
                tools.answered(&text_at(&line, "/tool_call_id"), failed, events);
            }
            Some("exit") => {
                let status = text_at(&line, "/extra/exit_status");
                let said = text_at(&line, "/content");
                if status == "Submitted" {
                    events.push(AgentEvent::StepEnded { reason: status });
                } else {
                    let message = if said.is_empty() {
                        status
                    } else {
                        format!("{status}: {said}")
                    };
                    events.push(AgentEvent::Error { message });
                }
            }
            _ => {}
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_mini_swe_agent_2_4_6_are_read() {
        let lines = [
            r#"{"role":"system","content":"You are a helpful assistant"}"#,
            r#"{"content":"I will.","role":"assistant","tool_calls":[{"function":{"arguments":"{\"command\": \"false\"}","name":"bash"},"id":"c1","type":"function"}],"extra":{}}"#,
            r#"{"tool_call_id":"c1","role":"tool","content":"{}","extra":{"raw_output":"","returncode":1}}"#,
            r#"{"role":"exit","content":"","extra":{"exit_status":"Submitted","submission":""}}"#,
            r#"{"role":"exit","content":"no key","extra":{"exit_status":"AuthenticationError"}}"#,
            "text",
        ];
        let mut read = reader();
        let mut events = Vec::new();
        for line in lines {
            read(line.as_bytes(), &mut events);
        }
        assert_eq!(
            events,
            [
                AgentEvent::Text {
                    text: "I will.".into()
                },
                AgentEvent::Tool {
                    name: "bash".into(),
                    input: r#"{"command": "false"}"#.into(),
                    failed: true
                },
                AgentEvent::StepEnded {
                    reason: "Submitted".into()
                },
                AgentEvent::Error {
                    message: "AuthenticationError: no key".into()
                },
            ]
        );
    }
}
