//! One choice of a reply, as it was sampled.

use super::parser::{Delta, Parser};
use super::request::ChatRequest;
use super::shape::{FunctionBody, MessageBody, ToolCallBody};
use super::template::{Generation, spaced_json};
use super::{Tokenizer, special};
use serde_json::Value;
use std::ops::Range;

/// One choice, as it was sampled.
#[derive(Debug)]
pub(super) struct Choice {
    /// `choices[].index`.
    pub index: u32,
    /// The sampled ids.
    pub ids: Vec<u32>,
    /// What each group of tokens added.
    pub steps: Vec<(Range<usize>, Delta)>,
    /// `finish_reason` of a stream.
    pub finish_reason: &'static str,
    /// The stop text that was met.
    pub stop_reason: Option<String>,
    /// Tokens between the special tokens of reasoning.
    pub reasoning_tokens: usize,
}

impl Choice {
    /// Samples a choice: `ids` until a stop text, or until `room` tokens are sampled.
    pub(super) fn sample(request: &ChatRequest, index: u32, ids: &[u32], room: usize) -> Self {
        let mut parser = Parser::new(request.generation == Generation::Thinking, &request.stop);
        let mut steps: Vec<(Range<usize>, Delta)> = Vec::new();
        let mut sampled = 0_usize;
        for &id in ids.iter().take(room) {
            // The first token comes alone, those after it in groups.
            if sampled
                .checked_sub(1)
                .is_none_or(|after_first| after_first % request.stream_interval == 0)
            {
                steps.push((sampled..sampled, Delta::default()));
            }
            sampled += 1;
            if let Some((range, delta)) = steps.last_mut() {
                range.end = sampled;
                parser.push(id, delta);
            }
            if parser.stopped().is_some() {
                break;
            }
        }
        if let Some((_, delta)) = steps.last_mut() {
            parser.finish(delta);
        }
        let stop_reason = parser.stopped().map(str::to_owned);
        let finish_reason = match &stop_reason {
            Some(_) => "stop",
            None if sampled < ids.len() => "length",
            None if parser.called_tools() => "tool_calls",
            None => "stop",
        };
        let ids = ids.iter().take(sampled).copied().collect();
        Self {
            index,
            ids,
            steps,
            finish_reason,
            stop_reason,
            reasoning_tokens: parser.reasoning_tokens(),
        }
    }

    /// Whether any of these tokens is of a tool call, its special tokens included.
    pub(super) fn is_inside_call(&self, range: &Range<usize>) -> bool {
        let tokenizer = Tokenizer::get();
        let (begin, end) = (
            tokenizer.special_id(special::TOOL_CALL),
            tokenizer.special_id(special::TOOL_CALL_END),
        );
        let before = self.ids.get(..range.start).unwrap_or_default();
        let begun = before.iter().rposition(|&id| Some(id) == begin);
        let ended = before.iter().rposition(|&id| Some(id) == end);
        let here = self.ids.get(range.clone()).unwrap_or_default();
        begun > ended || here.iter().any(|&id| Some(id) == begin)
    }

    /// The message of a reply that is not streamed, and its `finish_reason`: a malformed call is no call here, though
    /// it ended a stream with `tool_calls`.
    pub(super) fn message(&self, request: &ChatRequest, reply_id: &str) -> (MessageBody, &'static str) {
        let end = Tokenizer::get().special_id(special::IM_END);
        let ids = self.ids.strip_suffix(end.as_slice()).unwrap_or(&self.ids);
        let bytes = Tokenizer::get().decode(ids);
        let whole = bytes.utf8_chunks().next().map_or("", |chunk| chunk.valid());
        let stop = self.stop_reason.as_deref().and_then(|stop| whole.rfind(stop));
        let whole = stop.and_then(|at| whole.get(..at)).unwrap_or(whole);
        let thinks = request.generation == Generation::Thinking;
        let (reasoning, rest) = if thinks {
            split_reasoning(whole)
        } else {
            ("", whole)
        };
        let calls = read_calls(rest);
        let content = match &calls {
            Some((before, _)) => Some(*before).filter(|text| !text.trim().is_empty()),
            None => Some(rest).filter(|text| !text.is_empty()),
        };
        let finish_reason = match (&calls, self.finish_reason) {
            (None, "tool_calls") => "stop",
            (_, reason) => reason,
        };
        let calls = calls.map_or_else(Vec::new, |(_, calls)| calls);
        let calls = calls
            .into_iter()
            .enumerate()
            .map(|(position, function)| ToolCallBody {
                id: Some(tool_call_id(reply_id, self.index, position)),
                r#type: Some("function"),
                index: None,
                function,
            });
        let shown = |text: &&str| request.include_reasoning && !text.is_empty();
        let message = MessageBody {
            role: "assistant",
            content: content.map(str::to_owned),
            refusal: None,
            annotations: None,
            audio: None,
            function_call: None,
            tool_calls: calls.collect(),
            reasoning: Some(reasoning).filter(shown).map(str::to_owned),
        };
        (message, finish_reason)
    }
}

/// An id for a tool call: another for every reply, choice and position.
pub(super) fn tool_call_id(reply_id: &str, choice: u32, position: usize) -> String {
    let seed = u64::from(choice) << 32 | position as u64;
    let hash = reply_id
        .bytes()
        .fold(seed, |hash, byte| super::sample::mix(hash ^ u64::from(byte)));
    format!("chatcmpl-tool-{hash:016x}")
}

/// Reasoning and what follows it. Reasoning ends at its special token, or where a tool is called.
fn split_reasoning(text: &str) -> (&str, &str) {
    let text = text.strip_prefix(special::THINK).unwrap_or(text);
    match (text.split_once(special::THINK_END), text.find(special::TOOL_CALL)) {
        (Some((reasoning, _)), Some(call)) if call < reasoning.len() => text.split_at(call),
        (Some(parts), _) => parts,
        (None, Some(call)) => text.split_at(call),
        (None, None) => (text, ""),
    }
}

/// The text before the first tool call, and the calls; `None` where there are none or one is malformed.
fn read_calls(text: &str) -> Option<(&str, Vec<FunctionBody>)> {
    let (before, rest) = text.split_once(special::TOOL_CALL)?;
    let calls = rest.split(special::TOOL_CALL).map(|call| {
        let json = call
            .split_once(special::TOOL_CALL_END)
            .map_or(call, |(json, _)| json);
        let call: Value = serde_json::from_str(json).ok()?;
        let name = call.get("name")?.as_str()?.to_owned();
        Some(FunctionBody {
            name: Some(name),
            arguments: Some(spaced_json(call.get("arguments")?)),
        })
    });
    Some((before, calls.collect::<Option<_>>()?))
}
