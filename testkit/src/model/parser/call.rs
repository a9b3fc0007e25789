//! A tool call, as it streams.

use super::{Delta, ToolDelta, ToolPart};

/// What is between the special tokens of a tool call: `{"name": "…", "arguments": {…}}`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct CallParser {
    /// The text before the arguments.
    head: String,
    name_said: bool,
    arguments: Option<Arguments>,
}

/// How far the arguments have come.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Arguments {
    depth: usize,
    in_string: bool,
    escaped: bool,
    ended: bool,
    /// White space that waits for what follows it.
    blank: String,
}

impl CallParser {
    /// Reads more of the call; what it adds goes to `delta`.
    pub(super) fn read(&mut self, text: &str, calls: &mut usize, delta: &mut Delta) {
        let mut rest = text;
        if self.arguments.is_none() {
            self.head.push_str(text);
            self.say_name(calls, delta);
            let Some(start) = self.start_of_arguments() else {
                return;
            };
            self.arguments = Some(Arguments::default());
            let head = std::mem::take(&mut self.head);
            // What precedes the arguments came before this text, or is its start.
            let before_this = head.len() - text.len();
            rest = text.get(start.saturating_sub(before_this)..).unwrap_or_default();
        }
        if let Some(arguments) = self.arguments.as_mut().filter(|_| self.name_said) {
            let part = arguments.read(rest);
            if !part.is_empty() {
                delta.push_arguments(calls.saturating_sub(1), &part);
            }
        }
    }

    /// The name is said once the comma after it is there.
    fn say_name(&mut self, calls: &mut usize, delta: &mut Delta) {
        if self.name_said {
            return;
        }
        let after = self
            .head
            .split_once("\"name\"")
            .and_then(|(_, after)| after.trim_start().strip_prefix(':'));
        let Some((name, rest)) = after.map(str::trim_start).and_then(read_string) else {
            return;
        };
        if rest.trim_start().starts_with(',') {
            self.name_said = true;
            delta.tool_calls.push(ToolDelta {
                index: *calls,
                part: ToolPart::Name(name),
            });
            *calls += 1;
        }
    }

    /// Where in the head the arguments begin, once their first character is there.
    fn start_of_arguments(&self) -> Option<usize> {
        const KEY: &str = "\"arguments\"";
        let key_end = self.head.find(KEY)? + KEY.len();
        let after = self
            .head
            .get(key_end..)?
            .trim_start()
            .strip_prefix(':')?
            .trim_start();
        if after.is_empty() {
            None
        } else {
            Some(self.head.len() - after.len())
        }
    }
}

/// The JSON string at the start of a text, and what follows it; `None` where it is not whole.
fn read_string(text: &str) -> Option<(String, &str)> {
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<String>();
    let value = values.next()?.ok()?;
    let rest = text.get(values.byte_offset()..)?;
    Some((value, rest))
}

impl Arguments {
    /// What of a text belongs to the arguments and can be given out.
    fn read(&mut self, text: &str) -> String {
        let mut out = String::new();
        for character in text.chars() {
            if self.ended {
                break;
            }
            if !self.in_string && character.is_whitespace() {
                self.blank.push(character);
                continue;
            }
            match character {
                _ if self.escaped => self.escaped = false,
                '\\' if self.in_string => self.escaped = true,
                '"' => self.in_string = !self.in_string,
                '{' | '[' if !self.in_string => self.depth += 1,
                '}' | ']' if !self.in_string => match self.depth.checked_sub(1) {
                    Some(depth) => {
                        self.depth = depth;
                        self.ended = depth == 0;
                    }
                    // The end of the call itself: the arguments were no object.
                    None => {
                        self.ended = true;
                        break;
                    }
                },
                _ => {}
            }
            out.push_str(&std::mem::take(&mut self.blank));
            out.push(character);
        }
        out
    }
}
