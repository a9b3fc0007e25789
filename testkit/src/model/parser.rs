//! Sampled tokens to reasoning, content and tool calls, as they stream: what vLLM's Qwen3 reasoning parser and its Hermes
//! tool parser give out, token by token.
//!
//! What is given out lags what was sampled: half a character waits for the other half, a tool's name for the comma after
//! it, and text that may be the start of a stop string for what follows.

/// A tool call, as it streams.
mod call;

use super::{Tokenizer, special};
use call::CallParser;
use std::collections::VecDeque;

/// What a token, or a few together, added to the reply.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Delta {
    /// More content.
    pub content: Option<String>,
    /// More reasoning.
    pub reasoning: Option<String>,
    /// More of the tool calls.
    pub tool_calls: Vec<ToolDelta>,
}

/// What was added to a tool call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ToolDelta {
    /// Which call, from 0.
    pub index: usize,
    /// Its name or more of its arguments.
    pub part: ToolPart,
}

/// A part of a tool call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ToolPart {
    /// The name, said once and first.
    Name(String),
    /// More of the text of the arguments, as sampled.
    Arguments(String),
}

impl Delta {
    fn push_content(&mut self, text: &str) {
        self.content.get_or_insert_default().push_str(text);
    }

    fn push_reasoning(&mut self, text: &str) {
        self.reasoning.get_or_insert_default().push_str(text);
    }

    fn push_arguments(&mut self, index: usize, text: &str) {
        match self.tool_calls.last_mut() {
            Some(ToolDelta {
                index: last,
                part: ToolPart::Arguments(arguments),
            }) if *last == index => {
                arguments.push_str(text);
            }
            _ => self.tool_calls.push(ToolDelta {
                index,
                part: ToolPart::Arguments(text.into()),
            }),
        }
    }
}

/// A piece of the sampled text.
#[derive(Clone, Debug)]
enum Piece {
    /// A special token.
    Special(&'static str),
    /// Whole characters.
    Text(String),
}

impl Piece {
    fn text(&self) -> &str {
        match self {
            Self::Special(text) => text,
            Self::Text(text) => text,
        }
    }
}

/// Which part of the reply text belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    Reasoning,
    Content,
    Call(CallParser),
}

/// Reads sampled tokens and says what each adds to the reply.
#[derive(Debug)]
pub(super) struct Parser {
    place: Place,
    /// Number of tool calls begun.
    calls: usize,
    /// Bytes of a character that is not whole yet.
    partial: Vec<u8>,
    /// Pieces held back, in case they are the start of a stop string.
    held: VecDeque<Piece>,
    /// Characters to hold back.
    hold: usize,
    /// Texts that end the turn.
    stop: Vec<String>,
    /// The stop string that was met.
    stopped: Option<String>,
    reasoning_tokens: usize,
}

impl Parser {
    /// A parser of a turn that begins with reasoning or with content, and ends early at any of the `stop` texts.
    pub(super) fn new(starts_thinking: bool, stop: &[String]) -> Self {
        let longest = stop.iter().map(|text| text.chars().count()).max().unwrap_or(0);
        Self {
            place: if starts_thinking {
                Place::Reasoning
            } else {
                Place::Content
            },
            calls: 0,
            partial: Vec::new(),
            held: VecDeque::new(),
            hold: longest.saturating_sub(1),
            stop: stop.to_vec(),
            stopped: None,
            reasoning_tokens: 0,
        }
    }

    /// Reads a sampled token.
    pub(super) fn push(&mut self, id: u32, delta: &mut Delta) {
        let tokenizer = Tokenizer::get();
        if let Some(special) = tokenizer.special_text(id) {
            self.partial.clear();
            self.held.push_back(Piece::Special(special));
        } else {
            self.reasoning_tokens += usize::from(self.place == Place::Reasoning);
            self.partial
                .extend_from_slice(tokenizer.bytes(id).unwrap_or_default());
            let Ok(text) = std::str::from_utf8(&self.partial) else {
                return;
            };
            self.held.push_back(Piece::Text(text.into()));
            self.partial.clear();
        }
        self.find_stop();
        let keep = if self.stopped.is_some() { 0 } else { self.hold };
        self.release(keep, delta);
    }

    /// Gives out what was held back; the turn has ended. Half a character is lost.
    pub(super) fn finish(&mut self, delta: &mut Delta) {
        self.release(0, delta);
    }

    /// The stop string that was met, if one was; nothing more is to be sampled then.
    pub(super) fn stopped(&self) -> Option<&str> {
        self.stopped.as_deref()
    }

    /// Whether a tool was called.
    pub(super) fn called_tools(&self) -> bool {
        self.calls > 0
    }

    /// Tokens sampled between the special tokens of reasoning.
    pub(super) fn reasoning_tokens(&self) -> usize {
        self.reasoning_tokens
    }

    /// Looks for a stop string that ends in the newest piece, and takes it and what follows out of what is held.
    fn find_stop(&mut self) {
        if self.stop.is_empty() || self.stopped.is_some() {
            return;
        }
        let text: String = self.held.iter().map(Piece::text).collect();
        let found = self
            .stop
            .iter()
            .filter_map(|stop| Some((text.find(stop.as_str())?, stop)))
            .min();
        let Some((at, stop)) = found else { return };
        self.stopped = Some(stop.clone());
        let mut left = at;
        let mut kept = VecDeque::new();
        for piece in self.held.drain(..) {
            let length = piece.text().len();
            if length <= left {
                left -= length;
                kept.push_back(piece);
            } else {
                let text = piece.text().get(..left).unwrap_or_default();
                if !text.is_empty() {
                    kept.push_back(Piece::Text(text.into()));
                }
                break;
            }
        }
        self.held = kept;
    }

    /// Gives out what is held, all but the last `keep` characters.
    fn release(&mut self, keep: usize, delta: &mut Delta) {
        let held: usize = self.held.iter().map(|piece| piece.text().chars().count()).sum();
        let mut free = held.saturating_sub(keep);
        while free > 0 {
            match self.held.pop_front() {
                None => return,
                Some(Piece::Special(text)) if text.len() <= free => {
                    free -= text.len();
                    self.read_special(text, delta);
                }
                Some(special @ Piece::Special(_)) => {
                    self.held.push_front(special);
                    return;
                }
                Some(Piece::Text(text)) => {
                    let end = text.char_indices().nth(free).map_or(text.len(), |(at, _)| at);
                    let (now, later) = text.split_at_checked(end).unwrap_or((&text, ""));
                    free -= now.chars().count();
                    if !later.is_empty() {
                        self.held.push_front(Piece::Text(later.into()));
                    }
                    self.read_text(now, delta);
                }
            }
        }
    }

    fn read_special(&mut self, text: &str, delta: &mut Delta) {
        match text {
            special::THINK => self.place = Place::Reasoning,
            special::THINK_END => self.place = Place::Content,
            special::TOOL_CALL => self.place = Place::Call(CallParser::default()),
            special::TOOL_CALL_END => self.place = Place::Content,
            special::IM_END | special::END_OF_TEXT => {}
            other => self.read_text(other, delta),
        }
    }

    fn read_text(&mut self, text: &str, delta: &mut Delta) {
        match &mut self.place {
            Place::Reasoning => delta.push_reasoning(text),
            // Between two calls and after the last, the parser gives out nothing.
            Place::Content if self.calls > 0 => {}
            Place::Content => delta.push_content(text),
            Place::Call(call) => call.read(text, &mut self.calls, delta),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::template::spaced_json;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    /// Everything that a turn's tokens add, in groups of these sizes; the sizes repeat.
    fn parse(text: &str, groups: &[usize], stop: &[String]) -> Delta {
        let mut parser = Parser::new(true, stop);
        let mut whole = Delta::default();
        let ids = Tokenizer::get().encode(text);
        let (mut rest, mut sizes) = (ids.as_slice(), groups.iter().cycle());
        while let Some(size) = sizes.next().filter(|_| !rest.is_empty()) {
            let (group, later) = rest.split_at((*size).clamp(1, rest.len()));
            let mut delta = Delta::default();
            group.iter().for_each(|&id| parser.push(id, &mut delta));
            if later.is_empty() {
                parser.finish(&mut delta);
            }
            rest = later;
            whole.content = joined(whole.content, delta.content);
            whole.reasoning = joined(whole.reasoning, delta.reasoning);
            for call in delta.tool_calls {
                match call.part {
                    ToolPart::Arguments(more) => whole.push_arguments(call.index, &more),
                    name => whole.tool_calls.push(ToolDelta {
                        index: call.index,
                        part: name,
                    }),
                }
            }
        }
        whole
    }

    fn joined(before: Option<String>, more: Option<String>) -> Option<String> {
        match (before, more) {
            (Some(before), Some(more)) => Some(before + &more),
            (before, more) => before.or(more),
        }
    }

    /// Text that is no special token, with brackets, quotes and characters of several bytes.
    const TEXT: &str = "[a-z {}\\[\\]\"\\\\:,é好🎉\n]{0,30}";

    proptest! {
        #[test]
        fn any_grouping_of_the_tokens_gives_what_was_written(
            reasoning in TEXT, content in TEXT, first in TEXT, second in TEXT, groups in prop::collection::vec(1..9_usize, 1..6),
        ) {
            let arguments: Vec<Value> = vec![json!({"a": first, "b": [1, {"c": second}]}), json!({})];
            let calls: Vec<String> = arguments.iter().map(spaced_json).collect();
            let written: Vec<String> = calls.iter().map(|arguments| {
                format!("<tool_call>\n{{\"name\": \"write\", \"arguments\": {arguments}}}\n</tool_call>")
            }).collect();
            let text = format!("<think>{reasoning}</think>{content}{}<|im_end|>", written.join("\n"));
            // No text ends with this, but all of it may begin.
            let stop = ["🎉🎉🎉never".to_owned()];
            for stop in [&stop[..0], &stop[..]] {
                let whole = parse(&text, &groups, stop);
                prop_assert_eq!(whole.reasoning.unwrap_or_default(), reasoning.as_str());
                prop_assert_eq!(whole.content.unwrap_or_default(), content.as_str());
                let wanted: Vec<ToolDelta> = calls.iter().enumerate().flat_map(|(index, arguments)| {
                    let parts = [ToolPart::Name("write".into()), ToolPart::Arguments(arguments.clone())];
                    parts.map(|part| ToolDelta { index, part })
                }).collect();
                prop_assert_eq!(&whole.tool_calls, &wanted);
            }
        }

        #[test]
        fn no_text_at_all_makes_the_parser_fail(text in "(<think>|</think>|<tool_call>|</tool_call>|[a-z{}\\[\\]\": \\\\é]{0,9}){0,12}", size in 1..5_usize) {
            let one = parse(&text, &[1], &[]);
            prop_assert_eq!(parse(&text, &[size], &[]), one);
        }
    }

    #[test]
    fn arguments_that_are_no_object_end_with_the_call() {
        let whole = parse(
            "</think><tool_call>\n{\"name\": \"a\", \"arguments\": 5}\n</tool_call>",
            &[1],
            &[],
        );
        let parts: Vec<ToolPart> = whole.tool_calls.into_iter().map(|call| call.part).collect();
        assert_eq!(
            parts,
            [ToolPart::Name("a".into()), ToolPart::Arguments("5".into())]
        );
    }
}
