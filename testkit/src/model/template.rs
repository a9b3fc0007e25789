//! The chat template: ChatML turns with Hermes tool calls, as Qwen3's.
//!
//! - Tools stand in the system turn, as JSON with a space after `,` and `:`, members in the order received.
//! - An assistant's tool calls are written from the argument text that was *received*. The model itself writes spaces, so
//!   an agent that re-serialises arguments compactly changes the middle of its own earlier completion.
//! - Assistant turns after the last user turn keep their reasoning (an empty block where there is none); that of earlier
//!   turns is left out. A tool's result is no user turn.
//! - Newlines around reasoning and content belong to the template: they are trimmed and written anew, so that a turn
//!   that comes back verbatim has the ids it was sampled with.

use super::special;
use serde::Serialize;
use serde_json::Value;
use serde_json::ser::Formatter;
use std::io;

/// A message of a conversation, as far as the template reads it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Message {
    /// `system`, `user`, `assistant`, `tool` or any other word.
    pub role: String,
    /// Its text; parts of text joined by newlines.
    pub content: String,
    /// An assistant's reasoning, where the agent sent it back.
    pub reasoning: String,
    /// An assistant's tool calls.
    pub tool_calls: Vec<MessageToolCall>,
}

/// A tool call of an earlier turn.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct MessageToolCall {
    /// Name of the tool.
    pub name: String,
    /// The text of its arguments, as received.
    pub arguments: String,
}

/// Whether a conversation is rendered for the model to go on, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Generation {
    /// The rendering ends with the last message.
    None,
    /// The model's turn is begun; it starts by thinking.
    Thinking,
    /// The model's turn is begun with an empty block of reasoning.
    NoThinking,
}

/// The text the model sees.
pub(super) fn render(messages: &[Message], tools: &[Value], generation: Generation) -> String {
    let mut text = String::new();
    let (system, rest) = match messages.split_first() {
        Some((first, rest)) if first.role == "system" => (first.content.as_str(), rest),
        _ => ("", messages),
    };
    if !system.is_empty() || !tools.is_empty() {
        render_system(&mut text, system, tools);
    }
    let last_user = rest.iter().rposition(|message| message.role == "user");
    let mut after_tool = false;
    for (position, message) in rest.iter().enumerate() {
        let is_tool = message.role == "tool";
        if after_tool && !is_tool {
            close_turn(&mut text);
        }
        match message.role.as_str() {
            "tool" => render_tool_result(&mut text, &message.content, after_tool),
            "assistant" => {
                let keep_reasoning = last_user.is_none_or(|last| position > last);
                open_turn(&mut text, "assistant");
                render_assistant(&mut text, message, keep_reasoning);
                close_turn(&mut text);
            }
            role => {
                open_turn(&mut text, role);
                text.push_str(&message.content);
                close_turn(&mut text);
            }
        }
        after_tool = is_tool;
    }
    if after_tool {
        close_turn(&mut text);
    }
    match generation {
        Generation::None => {}
        Generation::Thinking => open_turn(&mut text, "assistant"),
        Generation::NoThinking => {
            open_turn(&mut text, "assistant");
            render_reasoning(&mut text, "");
        }
    }
    text
}

/// What the model itself writes for a turn, without the end-of-turn token: what [`render`] writes for the same turn.
pub(super) fn render_own_turn(message: &Message, generation: Generation) -> String {
    let mut text = String::new();
    render_assistant(&mut text, message, generation == Generation::Thinking);
    text
}

fn open_turn(text: &mut String, role: &str) {
    text.push_str(special::IM_START);
    text.push_str(role);
    text.push('\n');
}

fn close_turn(text: &mut String) {
    text.push_str(special::IM_END);
    text.push('\n');
}

fn render_system(text: &mut String, system: &str, tools: &[Value]) {
    open_turn(text, "system");
    text.push_str(system);
    if !tools.is_empty() {
        if !system.is_empty() {
            text.push_str("\n\n");
        }
        text.push_str(
            "# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are provided with \
             function signatures within <tools></tools> XML tags:\n<tools>",
        );
        for tool in tools {
            text.push('\n');
            text.push_str(&spaced_json(tool));
        }
        text.push_str(
            "\n</tools>\n\nFor each function call, return a json object with function name and arguments within \
             tool_call XML tags:\n{\"name\": <function-name>, \"arguments\": <args-json-object>}",
        );
    }
    close_turn(text);
}

fn render_tool_result(text: &mut String, content: &str, after_tool: bool) {
    if after_tool {
        text.push('\n');
    } else {
        open_turn(text, "user");
    }
    text.push_str(special::TOOL_RESPONSE);
    text.push('\n');
    text.push_str(content);
    text.push('\n');
    text.push_str(special::TOOL_RESPONSE_END);
}

fn render_assistant(text: &mut String, message: &Message, keep_reasoning: bool) {
    if keep_reasoning {
        render_reasoning(text, &message.reasoning);
    }
    let content = message.content.trim_matches('\n');
    text.push_str(content);
    for (position, call) in message.tool_calls.iter().enumerate() {
        if position > 0 || !content.is_empty() {
            text.push('\n');
        }
        text.push_str(special::TOOL_CALL);
        text.push_str("\n{\"name\": ");
        text.push_str(&spaced_json(&Value::from(call.name.as_str())));
        text.push_str(", \"arguments\": ");
        text.push_str(&call.arguments);
        text.push_str("}\n");
        text.push_str(special::TOOL_CALL_END);
    }
}

fn render_reasoning(text: &mut String, reasoning: &str) {
    text.push_str(special::THINK);
    text.push('\n');
    let reasoning = reasoning.trim_matches('\n');
    text.push_str(reasoning);
    text.push('\n');
    text.push_str(special::THINK_END);
    text.push_str("\n\n");
}

/// JSON as Python's `json.dumps` and a model write it: a space after `,` and `:`, text outside ASCII as it is.
pub(super) fn spaced_json(value: &Value) -> String {
    let mut out = Vec::new();
    let mut serializer = serde_json::Serializer::with_formatter(&mut out, Spaced);
    match value.serialize(&mut serializer) {
        Ok(()) => String::from_utf8_lossy(&out).into_owned(),
        // A `Value` has string keys and memory takes every write; the compact form is the same JSON.
        Err(_) => value.to_string(),
    }
}

struct Spaced;

impl Formatter for Spaced {
    fn begin_array_value<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(b": ")
    }
}

#[cfg(test)]
mod tests {
    use super::super::Tokenizer;
    use super::*;
    use serde_json::json;

    fn message(role: &str, content: &str) -> Message {
        Message {
            role: role.into(),
            content: content.into(),
            ..Message::default()
        }
    }

    fn write_call(arguments: &str) -> Message {
        Message {
            role: "assistant".into(),
            content: "\n\nI will write it.\n".into(),
            reasoning: "\nA file is needed.\n".into(),
            tool_calls: vec![MessageToolCall {
                name: "write".into(),
                arguments: arguments.into(),
            }],
        }
    }

    #[test]
    fn tools_stand_in_the_system_turn_with_spaces_in_their_json() {
        let tools = [
            json!({"type": "function", "function": {"name": "bash", "parameters": {"required": ["a", "b"]}}}),
        ];
        let text = render(
            &[message("system", "Be good."), message("user", "hi")],
            &tools,
            Generation::Thinking,
        );
        assert!(
            text.starts_with("<|im_start|>system\nBe good.\n\n# Tools\n"),
            "{text}"
        );
        assert!(text.contains(
            "<tools>\n{\"type\": \"function\", \"function\": {\"name\": \"bash\", \"parameters\": {\"required\": [\"a\", \"b\"]}}}\n</tools>"
        ));
        assert!(text.ends_with("<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"));
    }

    #[test]
    fn results_of_parallel_tools_share_one_turn() {
        let text = render(
            &[message("tool", "one"), message("tool", "two")],
            &[],
            Generation::None,
        );
        assert_eq!(
            text,
            "<|im_start|>user\n<tool_response>\none\n</tool_response>\n<tool_response>\ntwo\n</tool_response><|im_end|>\n"
        );
    }

    #[test]
    fn reasoning_is_kept_after_the_last_user_turn_and_left_out_before_it() {
        let history = [message("user", "go"), write_call("{}"), message("tool", "ok")];
        assert!(
            render(&history, &[], Generation::Thinking).contains("<think>\nA file is needed.\n</think>\n\n")
        );
        let later = [&history[..], &[message("user", "more")]].concat();
        assert!(!render(&later, &[], Generation::Thinking).contains("A file is needed."));
    }

    #[test]
    fn a_turn_that_comes_back_verbatim_keeps_its_ids_and_a_compacted_one_does_not() {
        let tokenizer = Tokenizer::get();
        let prompt = [message("user", "write it")];
        let spaced = write_call(r#"{"filePath": "/a.py", "content": "x = 1\n"}"#);
        let mut sampled = tokenizer.encode(&render(&prompt, &[], Generation::Thinking));
        sampled.extend(tokenizer.encode(&render_own_turn(&spaced, Generation::Thinking)));
        sampled.extend(tokenizer.special_id(special::IM_END));
        let next = |call: Message| {
            let history = [prompt[0].clone(), call, message("tool", "done")];
            tokenizer.encode(&render(&history, &[], Generation::Thinking))
        };
        assert!(next(spaced).starts_with(&sampled));
        let compacted = next(write_call(r#"{"filePath":"/a.py","content":"x = 1\n"}"#));
        let shared = compacted.iter().zip(&sampled).take_while(|(a, b)| a == b).count();
        let prompt_length = tokenizer
            .encode(&render(&prompt, &[], Generation::Thinking))
            .len();
        assert!(
            shared > prompt_length && shared < sampled.len(),
            "{prompt_length} {shared} {}",
            sampled.len()
        );
    }

    #[test]
    fn an_empty_block_of_reasoning_keeps_the_prefix_where_thinking_is_off() {
        let prompt = render(&[message("user", "hi")], &[], Generation::NoThinking);
        let answer = message("assistant", "Hello.");
        let own = render_own_turn(&answer, Generation::NoThinking);
        let history = render(&[message("user", "hi"), answer], &[], Generation::None);
        assert_eq!(history, format!("{prompt}{own}<|im_end|>\n"));
    }
}
