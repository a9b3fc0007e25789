use super::super::lines::short;
use dressage_wire::event::AgentEvent;
use serde::Deserialize;
use serde_json::Value;

/// A line of `opencode run --format json`: what is known of it.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Line {
    r#type: String,
    #[serde(rename = "sessionID", default)]
    session_id: Option<String>,
    #[serde(default)]
    part: Value,
    #[serde(default)]
    error: Value,
}

/// Adds what a line means. Each line names the session; whoever keeps it takes the first.
pub(super) fn parse(line: &[u8], events: &mut Vec<AgentEvent>) {
    let Ok(line) = serde_json::from_slice::<Line>(line) else {
        return;
    };
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let at = |value: &Value, path: &str| value.pointer(path).map(text).unwrap_or_default();
    if let Some(id) = line.session_id {
        events.push(AgentEvent::Session { id });
    }
    match line.r#type.as_str() {
        "text" => events.push(AgentEvent::Text {
            text: at(&line.part, "/text"),
        }),
        "tool_use" => events.push(AgentEvent::Tool {
            name: at(&line.part, "/tool"),
            input: line.part.pointer("/state/input").map(short).unwrap_or_default(),
            failed: at(&line.part, "/state/status") == "error",
        }),
        "step_finish" => events.push(AgentEvent::StepEnded {
            reason: at(&line.part, "/reason"),
        }),
        "error" => {
            let message = at(&line.error, "/data/message");
            let message = if message.is_empty() {
                at(&line.error, "/name")
            } else {
                message
            };
            events.push(AgentEvent::Error { message });
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Vec<AgentEvent> {
        let mut events = Vec::new();
        parse(line.as_bytes(), &mut events);
        events
    }

    #[test]
    fn lines_of_opencode_1_18_33_are_read() {
        let session = AgentEvent::Session { id: "ses_1".into() };
        let text = r#"{"type":"text","timestamp":1795966829643,"sessionID":"ses_1","part":{"id":"prt_1","messageID":"msg_1","sessionID":"ses_1","type":"text","text":"done.","time":{"start":1,"end":2}}}"#;
        assert_eq!(
            read(text),
            [session.clone(), AgentEvent::Text { text: "done.".into() }]
        );
        let finish = r#"{"type":"step_finish","timestamp":1,"sessionID":"ses_1","part":{"id":"p","reason":"stop","type":"step-finish","tokens":{"total":7,"input":5,"output":2,"reasoning":0,"cache":{"write":0,"read":0}},"cost":0}}"#;
        assert_eq!(
            read(finish),
            [
                session.clone(),
                AgentEvent::StepEnded {
                    reason: "stop".into()
                }
            ]
        );
        let tool = r#"{"type":"tool_use","timestamp":1,"sessionID":"ses_1","part":{"type":"tool","tool":"bash","callID":"c","state":{"status":"completed","input":{"command":"ls"},"output":"a"}}}"#;
        let used = |failed| AgentEvent::Tool {
            name: "bash".into(),
            input: r#"{"command":"ls"}"#.into(),
            failed,
        };
        assert_eq!(read(tool), [session.clone(), used(false)]);
        assert_eq!(
            read(&tool.replace("completed", "error")),
            [session.clone(), used(true)]
        );
        let error = r#"{"type":"error","timestamp":1,"sessionID":"ses_1","error":{"name":"APIError","data":{"message":"Incorrect API key provided","statusCode":401}}}"#;
        assert_eq!(
            read(error),
            [
                session,
                AgentEvent::Error {
                    message: "Incorrect API key provided".into()
                }
            ]
        );
    }

    #[test]
    fn lines_that_are_no_json_or_of_another_kind_say_nothing() {
        for line in [
            "",
            "plain text",
            "{",
            "[]",
            "7",
            r#"{"no":"type"}"#,
            r#"{"type":"other"}"#,
        ] {
            assert_eq!(read(line), [], "{line}");
        }
        assert_eq!(
            read(r#"{"type":"text","part":null}"#),
            [AgentEvent::Text { text: String::new() }]
        );
    }
}
