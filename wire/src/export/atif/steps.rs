use super::document::{Metrics, ObservationResult, Step, ToolCall};
use crate::call::Flag;
use crate::export::Source;
use crate::time::rfc3339;
use crate::trajectory::{CallRecord, CallView};
use serde_json::{Map, Value, json};

/// Steps under way.
#[derive(Default)]
pub(super) struct Steps {
    pub(super) list: Vec<Step>,
    /// Messages of the request before.
    known: usize,
    answered: bool,
}

impl Steps {
    /// Takes what is new in a request. That begins with the reply before, which is there already.
    pub(super) fn asked(&mut self, request: &Value) {
        let messages = request.get("messages").and_then(Value::as_array);
        let messages = messages.map(Vec::as_slice).unwrap_or_default();
        let fresh = messages.get(self.known..).unwrap_or_default();
        let is_assistant = |message: &&Value| role(message) == "assistant";
        let handed_back = match self.answered {
            true => fresh.iter().take_while(is_assistant).count(),
            false => 0,
        };
        for message in fresh.iter().skip(handed_back) {
            self.said(message);
        }
        self.known = messages.len();
    }

    fn said(&mut self, message: &Value) {
        let (text, parts) = content(message.get("content"));
        let source = match role(message) {
            "assistant" => {
                // Said before the first call that was captured.
                let mut step = agent_step(message);
                step.is_copied_context = Some(true);
                return self.list.push(step);
            }
            "system" | "developer" => "system",
            "tool" | "function" => return self.result(message, text, parts),
            _ => "user",
        };
        self.list.push(Step {
            source: source.into(),
            message: text.into(),
            extra: parts,
            ..Step::default()
        });
    }

    /// What came of a call of a tool belongs to the step that made it.
    fn result(&mut self, message: &Value, text: String, parts: Option<Map<String, Value>>) {
        let id = message.get("tool_call_id").and_then(Value::as_str);
        let made = |step: &Step| {
            let mut calls = step.tool_calls.iter().flatten();
            calls.any(|call| Some(call.tool_call_id.as_str()) == id)
        };
        let at = self.list.iter().rposition(made);
        let mut extra = parts.unwrap_or_default();
        if let (None, Some(id)) = (at, id) {
            extra.insert("tool_call_id".into(), id.into());
        }
        let result = ObservationResult {
            source_call_id: at.and(id).map(str::to_owned),
            content: Some(text.into()),
            extra: (!extra.is_empty()).then_some(extra),
            ..ObservationResult::default()
        };
        let step = match at.and_then(|at| self.list.get_mut(at)) {
            Some(step) => Some(step),
            None => {
                self.list.push(Step {
                    source: "system".into(),
                    message: "".into(),
                    ..Step::default()
                });
                self.list.last_mut()
            }
        };
        if let Some(step) = step {
            step.observation.get_or_insert_default().results.push(result);
        }
    }

    /// Takes the reply to a call.
    pub(super) fn answered(
        &mut self,
        source: &Source<'_>,
        record: &CallRecord,
        view: Option<&CallView<'_>>,
        request: &Value,
        reply: &Value,
        copied: bool,
    ) {
        let meta = &record.meta;
        let nothing = Value::Null;
        let mut step = agent_step(reply.pointer("/choices/0/message").unwrap_or(&nothing));
        let flags: &[Flag] = view.map(|view| view.flags.as_slice()).unwrap_or_default();
        let completion = record.completions.first();
        step.timestamp = Some(rfc3339(meta.started_unix_ms / 1_000));
        step.model_name.clone_from(&meta.model);
        step.reasoning_effort = request
            .get("reasoning_effort")
            .filter(|value| value.is_string())
            .cloned();
        step.metrics = Some(metrics(source, record));
        step.is_copied_context = copied.then_some(true);
        step.llm_call_count = Some(1);
        step.extra = Some(members(json!({
            "call": meta.index,
            "trainable": view.is_some_and(|view| view.trainable),
            "flags": flags,
            "finish_reason": completion.and_then(|completion| completion.finish_reason.as_ref()),
            "dialect": meta.dialect,
            "untranslated": meta.untranslated,
            "policy_version_at_dispatch": meta.policy_version_at_dispatch,
            "policy_version_at_completion": meta.policy_version_at_completion,
        })));
        self.list.push(step);
        self.answered = true;
    }
}

fn metrics(source: &Source<'_>, record: &CallRecord) -> Metrics {
    let usage = record.meta.usage;
    let completion = record.completions.first();
    let ids = completion.map(|completion| completion.token_ids.clone());
    let logprobs = completion
        .filter(|completion| completion.logprobs.len() == completion.token_ids.len())
        .map(|completion| completion.logprobs.clone());
    Metrics {
        prompt_tokens: usage.map(|usage| usage.prompt_tokens),
        completion_tokens: usage.map(|usage| usage.completion_tokens),
        cached_tokens: usage.and_then(|usage| usage.cached_tokens),
        prompt_token_ids: source.trajectory.prompt_token_ids(record.meta.index),
        completion_token_ids: ids.filter(|ids| !ids.is_empty()),
        logprobs: logprobs
            .filter(|logprobs| !logprobs.is_empty() && logprobs.iter().all(|logprob| logprob.is_finite())),
        ..Metrics::default()
    }
}

fn role(message: &Value) -> &str {
    message.get("role").and_then(Value::as_str).unwrap_or_default()
}

/// A message of the assistant as a step.
fn agent_step(message: &Value) -> Step {
    let (text, extra) = content(message.get("content"));
    let reasoning = message
        .get("reasoning_content")
        .or_else(|| message.get("reasoning"));
    let calls = message.get("tool_calls").and_then(Value::as_array);
    let calls: Option<Vec<ToolCall>> = calls.map(|calls| calls.iter().map(tool_call).collect());
    Step {
        source: "agent".into(),
        message: text.into(),
        reasoning_content: reasoning.and_then(Value::as_str).map(str::to_owned),
        tool_calls: calls.filter(|calls| !calls.is_empty()),
        extra,
        ..Step::default()
    }
}

fn tool_call(call: &Value) -> ToolCall {
    let text = |pointer: &str| call.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let (arguments, extra) = match call.pointer("/function/arguments") {
        Some(Value::Object(members)) => (members.clone(), None),
        Some(Value::String(text)) => match serde_json::from_str(text) {
            Ok(Value::Object(members)) => (members, None),
            _ => (Map::new(), Some(members(json!({"arguments": text})))),
        },
        _ => (Map::new(), None),
    };
    ToolCall {
        tool_call_id: text("/id").to_owned(),
        function_name: text("/function/name").to_owned(),
        arguments,
        extra,
    }
}

/// The text of a content, with a word in brackets for each part that is none, and all parts where there are such.
fn content(content: Option<&Value>) -> (String, Option<Map<String, Value>>) {
    let parts = match content {
        Some(Value::String(text)) => return (text.clone(), None),
        Some(Value::Array(parts)) => parts,
        _ => return (String::new(), None),
    };
    let (mut said, mut other) = (String::new(), false);
    for part in parts {
        let member = |name: &str| part.get(name).and_then(Value::as_str);
        match (member("type"), member("text")) {
            (Some("text"), Some(text)) => said.push_str(text),
            (kind, _) => {
                other = true;
                said.push_str(&format!("[{}]", kind.unwrap_or("part")));
            }
        }
    }
    (said, other.then(|| members(json!({"content_parts": parts}))))
}

/// The members of an object; none of anything else.
pub(super) fn members(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(members) => members,
        _ => Map::new(),
    }
}
