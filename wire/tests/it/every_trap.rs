//! The traps of captured calls in every dialect, streamed and whole. A test is named after its trap; what fails names the
//! dialect and the mode.
//!
//! | trap | streamed and whole, in each dialect | at the tap, in each dialect | alone |
//! | --- | --- | --- | --- |
//! | 1 ids in the names of tokens | here | | `traps` |
//! | 2 ids asked for, prompt ids in two places | here | `dialects` | `traps` |
//! | 3 log-probabilities that are none | here | | `traps` |
//! | 4 one log-probability more or less | here | | `traps` |
//! | 5 tokens missing; buffered capture | here; `every_dialect` | | `traps`, `answers` |
//! | 6 what the agent asks of the sampler, choices | here | | `requests`, `traps` |
//! | 7 what is ours is not shown | here | `dialects` | `traps`: an agent can ask for it in chat completions alone |
//! | 8 calls in pieces, interleaved | here | | `traps` |
//! | 9 reasoning under either name | here | | `traps` |
//! | 10 a stream that breaks off | `every_dialect` | `every_trap` | `traps`: a whole reply that breaks off is the tap's |
//! | 11 errors | `every_dialect` | `dialects` | `traps` |
//! | 12 the agent leaves | | `every_trap` | `traps` |
//! | 13 retries | here | `every_trap` | the order of attempts: `trajectory`, for any dialect the same |
//! | 14 the same again after a completed call | here | | `trajectory::tests::dialects` |
//! | 15 calls beside the conversation | here | `every_trap` | headers: `requests` |
//! | 16 prompts that break | | | `trajectory`: linked by ids, which no dialect changes |
//! | 17 nonces and marks that move | `translations::messages` | | Claude Code's alone; marks: `trajectory` |
//! | 18 odd framing, halves of characters | `every_dialect`; here | | `traps` |
//! | 19 a count beside a choice | here | | `traps` |
//! | 20 a turn cut by its limit | here | | `traps` |
//! | 21 the budget's answer | `every_dialect` | `dialects` | `answers` |
//! | 22 a silent endpoint | `every_dialect`, streamed: before a whole reply nothing can be said | `dialects` | |
//! | 23 a WebSocket | | `dialects`: before any dialect is looked at | |
//! | 24 members that are refused | here | `every_trap` | `refusals` |
//! | 25 policy versions | | `every_trap` | |
//! | 26 limits, `stream_options`, `tools: []` | here | | `requests` |
//! | 27 calls at once | | `every_trap` | lineage: `trajectory` |
//! | 28 large bodies and events | here | `every_trap` | `traps`, `requests` |
//! | 29 sampling is set and told | here | `every_trap` | `requests` |
//! | 30 raw log-probabilities | | `every_trap` | what is trained: `trajectory` |
//! | 31 a completion that two leaves share | | | `trajectory`: by ids, which no dialect changes |

use super::recordings::*;
use super::speakers::{Said, Speaker, speakers};
use bytes::Bytes;
use dressage_wire::call::{CallEnd, CaptureLevel, Change, Flag};
use dressage_wire::capture::{Captured, RequestRules, Shown, StreamEnd};
use dressage_wire::sampling::Sampling;
use serde_json::{Value, json};
use std::fmt;

/// A stream of one choice as vLLM sends it: a prompt of two ids, these choices, and a count.
pub fn vllm(choices: &[Value], completion_tokens: u64) -> Vec<u8> {
    let event = |choices: Value| json!({"id": "chatcmpl-c", "object": "chat.completion.chunk", "created": 7, "model": "m", "choices": choices});
    let mut first =
        event(json!([{"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": null}]));
    first["prompt_token_ids"] = json!([1, 2]);
    let mut last = event(json!([]));
    last["usage"] = json!({"prompt_tokens": 2, "completion_tokens": completion_tokens,
        "prompt_tokens_details": {"cached_tokens": 1}});
    let middle = choices.iter().map(|choice| event(json!([choice])));
    let all: Vec<String> = [first]
        .into_iter()
        .chain(middle)
        .chain([last])
        .map(|event| event.to_string())
        .collect();
    let mut all: Vec<&str> = all.iter().map(String::as_str).collect();
    all.push("[DONE]");
    events(&all)
}

/// A choice with one token that says this.
pub fn token(delta: Value, id: u32, logprob: Value) -> Value {
    json!({
        "index": 0,
        "delta": delta,
        "logprobs": {"content": [{"token": "t", "logprob": logprob, "bytes": []}]},
        "finish_reason": null,
        "token_ids": [id],
    })
}

pub fn says(text: &str, id: u32) -> Value {
    token(json!({"content": text}), id, json!(-0.5))
}

pub fn finish(reason: &str) -> Value {
    json!({"index": 0, "delta": {}, "logprobs": null, "finish_reason": reason, "token_ids": null})
}

/// The same reply without streaming: what the choices say, put together.
fn whole(choices: &[Value], completion_tokens: u64) -> Vec<u8> {
    let mut message = json!({"role": "assistant", "content": null});
    let (mut entries, mut ids, mut finish_reason) = (Vec::new(), Vec::new(), Value::Null);
    let append = |to: &mut Value, text: &str| {
        *to = json!(format!("{}{text}", to.as_str().unwrap_or("")));
    };
    for choice in choices {
        let delta = &choice["delta"];
        for name in ["content", "reasoning", "reasoning_content"] {
            if let Some(text) = delta[name].as_str() {
                append(&mut message[name], text);
            }
        }
        for piece in delta["tool_calls"].as_array().into_iter().flatten() {
            let index = piece["index"].as_u64().unwrap() as usize;
            if message["tool_calls"][index].is_null() {
                if index == 0 {
                    message["tool_calls"] = json!([]);
                }
                let call = json!({"id": piece["id"], "type": "function",
                    "function": {"name": piece["function"]["name"], "arguments": ""}});
                message["tool_calls"].as_array_mut().unwrap().push(call);
            }
            let arguments = &mut message["tool_calls"][index]["function"]["arguments"];
            append(arguments, piece["function"]["arguments"].as_str().unwrap_or(""));
        }
        entries.extend(
            choice["logprobs"]["content"]
                .as_array()
                .into_iter()
                .flatten()
                .cloned(),
        );
        ids.extend(choice["token_ids"].as_array().into_iter().flatten().cloned());
        if choice["finish_reason"].is_string() {
            finish_reason = choice["finish_reason"].clone();
        }
    }
    let choice = json!({"index": 0, "message": message, "logprobs": {"content": entries}, "finish_reason": finish_reason,
        "token_ids": (!ids.is_empty()).then_some(ids)});
    json!({"id": "chatcmpl-c", "object": "chat.completion", "created": 7, "model": "m", "choices": [choice],
        "prompt_token_ids": [1, 2],
        "usage": {"prompt_tokens": 2, "completion_tokens": completion_tokens, "prompt_tokens_details": {"cached_tokens": 1}}})
    .to_string()
    .into_bytes()
}

/// A dialect, streamed or whole.
pub struct Case {
    pub speaker: Speaker,
    pub streamed: bool,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mode = if self.streamed { "streamed" } else { "whole" };
        write!(f, "in {}, {mode}", self.speaker.name)
    }
}

pub fn everywhere() -> Vec<Case> {
    let modes = |streamed: bool| {
        speakers()
            .into_iter()
            .map(move |speaker| Case { speaker, streamed })
    };
    modes(true).chain(modes(false)).collect()
}

impl Case {
    /// Has the endpoint say this.
    pub fn hears(&self, choices: &[Value], completion_tokens: u64) -> (Said, Captured) {
        let (_, said, captured) = self.gets(choices, completion_tokens);
        (said, captured)
    }

    /// What the endpoint sends to say so.
    pub fn body(&self, choices: &[Value], completion_tokens: u64) -> Vec<u8> {
        if self.streamed {
            vllm(choices, completion_tokens)
        } else {
            whole(choices, completion_tokens)
        }
    }

    /// The same with the bytes that the agent gets.
    fn gets(&self, choices: &[Value], completion_tokens: u64) -> (String, Said, Captured) {
        let facts = self.speaker.facts(self.streamed);
        if self.streamed {
            let text = self.body(choices, completion_tokens);
            let (agent, captured) = self
                .speaker
                .stream(&facts, [text.as_slice()], StreamEnd::EndOfBody);
            let said = self.speaker.read_stream(&agent);
            return (String::from_utf8(agent).unwrap(), said, captured);
        }
        let body = Bytes::from(self.body(choices, completion_tokens));
        let (Shown::Document(agent), captured) = self.speaker.dialect.whole(&body, &facts) else {
            panic!("{self}: no document");
        };
        let said = self.speaker.read_document(&agent);
        (String::from_utf8(agent.to_vec()).unwrap(), said, captured)
    }

    /// The request as it goes upstream, and what was known of it.
    pub fn asks(
        &self,
        members: Value,
        rules: &RequestRules,
    ) -> (Value, dressage_wire::capture::RequestFacts) {
        let body = self.speaker.body_with(self.streamed, members);
        let prepared = self.speaker.prepare(self.streamed, &body, rules);
        (serde_json::from_slice(&prepared.body).unwrap(), prepared.facts)
    }

    /// Members that ask for so many tokens at most.
    fn limit(&self, tokens: u64) -> Value {
        match self.speaker.name {
            "responses" => json!({"max_output_tokens": tokens}),
            "generate_content" => json!({"generationConfig": {"maxOutputTokens": tokens}}),
            _ => json!({"max_tokens": tokens}),
        }
    }

    fn finish(&self, which: usize) -> Option<&str> {
        Some(self.speaker.finishes[which])
    }
}

/// Arguments, whichever way the dialect has them.
pub fn arguments(value: &Value) -> Value {
    match value {
        Value::String(text) => serde_json::from_str(text).unwrap_or_else(|_| value.clone()),
        other => other.clone(),
    }
}

/// A token that is a piece of a call.
pub fn call(index: u64, id: &str, name: &str, arguments: &str) -> Value {
    let mut call = json!({"index": index, "function": {"arguments": arguments}});
    if !id.is_empty() {
        call["id"] = json!(id);
        call["type"] = json!("function");
        call["function"]["name"] = json!(name);
    }
    token(json!({"tool_calls": [call]}), 7, json!(-0.5))
}

#[test]
fn trap_01_ids_in_the_names_of_tokens() {
    let mut named = says("a", 0);
    named["token_ids"] = Value::Null;
    named["logprobs"]["content"][0]["token"] = json!("token_id:42");
    let mut disagreeing = named.clone();
    disagreeing["token_ids"] = json!([43]);
    for case in everywhere() {
        let (said, turn) = case.hears(&[named.clone(), finish("stop")], 1);
        assert_eq!(
            (said.text.as_str(), &turn.completions[0].token_ids),
            ("a", &vec![42]),
            "{case}"
        );
        assert!(turn.flags.is_empty(), "{case}: {:?}", turn.flags);
        let (_, turn) = case.hears(&[disagreeing.clone(), finish("stop")], 1);
        assert_eq!(turn.flags, [Flag::IdsDisagree], "{case}");
    }
}

#[test]
fn trap_02_ids_are_asked_for_and_read() {
    for case in everywhere() {
        let (sent, facts) = case.asks(json!({}), &rules());
        assert_eq!(
            (
                &sent["logprobs"],
                &sent["top_logprobs"],
                &sent["return_token_ids"]
            ),
            (&json!(true), &json!(5), &json!(true)),
            "{case}"
        );
        assert_eq!(
            sent["messages"],
            json!([{"role": "user", "content": "hi"}]),
            "{case}"
        );
        assert_eq!(sent.get("stream_options").is_some(), case.streamed, "{case}");
        assert_eq!(facts.streamed, case.streamed, "{case}");
        let (_, turn) = case.hears(&[says("a", 777), says("b", 888), finish("stop")], 2);
        assert_eq!((turn.level, turn.flags), (CaptureLevel::Tokens, vec![]), "{case}");
        assert_eq!(turn.completions[0].token_ids, [777, 888], "{case}");
        assert_eq!(turn.prompt_token_ids, Some(vec![1, 2]), "{case}");
    }
}

#[test]
fn trap_03_a_log_probability_that_is_none_keeps_its_place() {
    let choices = [
        says("a", 7),
        token(json!({"content": "b"}), 8, Value::Null),
        finish("stop"),
    ];
    for case in everywhere() {
        let (said, turn) = case.hears(&choices, 2);
        assert_eq!((said.text.as_str(), said.ended), ("ab", true), "{case}");
        assert_eq!(turn.flags, [Flag::LogprobInvalid], "{case}");
        assert_eq!(turn.completions[0].token_ids, [7, 8], "{case}");
        assert!(turn.completions[0].logprobs[1].is_nan(), "{case}");
    }
}

#[test]
fn trap_04_a_log_probability_less_than_ids() {
    let mut bare = says("b", 8);
    bare["logprobs"] = Value::Null;
    for case in everywhere() {
        let (said, turn) = case.hears(&[says("a", 7), bare.clone(), finish("stop")], 2);
        assert_eq!(
            (said.text.as_str(), turn.flags),
            ("ab", vec![Flag::LengthMismatch]),
            "{case}"
        );
    }
}

#[test]
fn trap_05_fewer_ids_than_the_endpoint_counted() {
    for case in everywhere() {
        let (said, turn) = case.hears(&[says("a", 7), says("b", 8), finish("stop")], 3);
        assert_eq!(
            (said.text.as_str(), turn.flags),
            ("ab", vec![Flag::TokensMissing]),
            "{case}"
        );
    }
}

#[test]
fn trap_06_what_the_agent_asks_of_the_sampler() {
    for case in everywhere() {
        let schema = json!({"type": "object"});
        let guided = match case.speaker.name {
            "messages" => json!({"output_format": {"type": "json_schema", "schema": schema}}),
            "responses" => {
                json!({"text": {"format": {"type": "json_schema", "name": "n", "schema": schema}}})
            }
            "generate_content" => {
                json!({"generationConfig": {"responseMimeType": "application/json", "responseSchema": schema}})
            }
            _ => {
                json!({"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}})
            }
        };
        let (sent, facts) = case.asks(guided, &rules());
        assert!(facts.sampling_altered, "{case}");
        assert_eq!(sent["response_format"]["json_schema"]["schema"], schema, "{case}");
        let without = match case.speaker.name {
            "generate_content" => json!({"generationConfig": {"responseLogprobs": false}}),
            "responses" => json!({"top_logprobs": 0}),
            "messages" => json!({}),
            _ => json!({"logprobs": false}),
        };
        let (sent, facts) = case.asks(without, &rules());
        assert_eq!(
            (&sent["logprobs"], facts.top_logprobs_asked),
            (&json!(true), None),
            "{case}"
        );
        assert!(facts.untranslated.is_empty(), "{case}");
        let (said, turn) = case.hears(&[says("a", 7), finish("stop")], 1);
        assert_eq!((said.text.as_str(), turn.flags), ("a", vec![]), "{case}");
    }
}

#[test]
fn trap_06_further_choices_are_stored_and_not_trained() {
    let mut other = says("b", 8);
    other["index"] = json!(1);
    let mut end = finish("stop");
    end["index"] = json!(1);
    for case in everywhere().into_iter().filter(|case| case.streamed) {
        let (said, turn) = case.hears(&[says("a", 7), other.clone(), finish("stop"), end.clone()], 2);
        assert_eq!(turn.flags, [Flag::MultipleChoices], "{case}");
        assert_eq!(turn.completions.len(), 2, "{case}");
        assert_eq!(turn.completions[1].token_ids, [8], "{case}");
        if case.speaker.name != "chat_completions" {
            assert_eq!(said.text, "a", "{case}");
        }
    }
}

#[test]
fn trap_07_what_is_ours_is_not_shown() {
    for case in everywhere() {
        let (agent, said, _) = case.gets(&[says("a", 777), says("b", 888), finish("stop")], 2);
        assert_eq!((said.text.as_str(), said.usage), ("ab", Some((2, 2))), "{case}");
        for word in ["777", "888", "-0.5"] {
            assert!(!agent.contains(word), "{case}: {agent}");
        }
    }
}

#[test]
fn trap_08_calls_in_pieces_are_merged() {
    let choices = [
        says("I call.", 6),
        call(0, "call_a", "read", ""),
        call(0, "", "", "{\"path\":"),
        call(1, "call_b", "write", "{\"x\""),
        call(0, "", "", " \"a\"}"),
        call(1, "", "", ": 1}"),
        call(2, "call_c", "list", ""),
        finish("tool_calls"),
    ];
    for case in everywhere() {
        let (said, turn) = case.hears(&choices, 7);
        let calls: Vec<(&str, &str, Value)> = said
            .calls
            .iter()
            .map(|(id, name, value)| (id.as_str(), name.as_str(), arguments(value)))
            .collect();
        let none = calls.last().unwrap().2.clone();
        assert!(none == json!({}) || none == json!(""), "{case}: {none}");
        assert_eq!(
            calls[..2],
            [
                ("call_a", "read", json!({"path": "a"})),
                ("call_b", "write", json!({"x": 1}))
            ],
            "{case}"
        );
        assert_eq!((calls[2].0, calls[2].1), ("call_c", "list"), "{case}");
        assert_eq!(said.finish.as_deref(), case.finish(1), "{case}");
        let kept = case.speaker.read_document(&turn.response);
        assert_eq!((kept.calls.len(), kept.text.as_str()), (3, "I call."), "{case}");
    }
}

#[test]
fn trap_09_reasoning_comes_first_under_either_name() {
    for name in ["reasoning", "reasoning_content"] {
        let choices = [
            token(json!({name: "I th"}), 6, json!(-0.5)),
            token(json!({name: "ink."}), 7, json!(-0.5)),
            says("So.", 8),
            finish("stop"),
        ];
        for case in everywhere() {
            let (said, turn) = case.hears(&choices, 3);
            let kept = case.speaker.read_document(&turn.response);
            for said in [said, kept] {
                let said = (said.reasoning.as_str(), said.text.as_str());
                assert_eq!(said, ("I think.", "So."), "{case}");
            }
        }
    }
}

#[test]
fn trap_13_14_retries_have_the_key_of_what_they_repeat() {
    for case in everywhere() {
        let key = |case: &Case, members: Value| case.asks(members, &rules()).1.retry_body_sha256;
        let first = key(&case, json!({}));
        assert_eq!(first, key(&case, json!({})), "{case}");
        if case.speaker.name != "generate_content" {
            let again = Case {
                streamed: !case.streamed,
                speaker: super::speakers::speaker(case.speaker.name),
            };
            let limit = again.limit(7);
            let mut whole = again.speaker.body_with(again.streamed, limit);
            // A stream is asked for, or not mentioned.
            whole.as_object_mut().unwrap().retain(|_, value| !value.is_null());
            let repeated = again.speaker.prepare(again.streamed, &whole, &rules()).facts;
            assert_eq!(first, repeated.retry_body_sha256, "{case}");
        }
        let other = match case.speaker.name {
            "responses" => json!({"input": "ho"}),
            "generate_content" => json!({"contents": [{"role": "user", "parts": [{"text": "ho"}]}]}),
            _ => json!({"messages": [{"role": "user", "content": "ho"}]}),
        };
        assert_ne!(first, key(&case, other), "{case}");
    }
}

#[test]
fn trap_15_auxiliary_calls_are_known_by_their_first_words() {
    let system = "You are a title generator. Be short.";
    for case in everywhere() {
        let members = match case.speaker.name {
            "messages" => json!({"system": [{"type": "text", "text": system}]}),
            "responses" => json!({"instructions": system}),
            "generate_content" => json!({"systemInstruction": {"parts": [{"text": system}]}}),
            _ => {
                json!({"messages": [{"role": "system", "content": system}, {"role": "user", "content": "hi"}]})
            }
        };
        let (_, facts) = case.asks(members, &rules());
        assert_eq!(
            (facts.system_start.as_str(), facts.user_start.as_str()),
            (system, "hi"),
            "{case}"
        );
        assert!(!facts.tools, "{case}");
    }
}

#[test]
fn trap_18_halves_of_characters_become_whole_or_are_marked() {
    for case in everywhere()
        .into_iter()
        .filter(|case| case.speaker.name != "chat_completions")
    {
        let (said, turn) = case.hears(&[says("HALF", 7), finish("stop")], 1);
        assert_eq!(said.text, "HALF", "{case}");
        assert_eq!(turn.end, CallEnd::Complete, "{case}");
        for (sent, shown) in [("\\ud83c", "\u{fffd}"), ("\\ud83c\\udf89", "🎉")] {
            let text = case.body(&[says("HALF", 7), finish("stop")], 1);
            let text = String::from_utf8(text).unwrap().replace("HALF", sent);
            let said = if case.streamed {
                case.speaker.hears_stream(text.as_bytes()).0
            } else {
                case.speaker.hears_document(text.as_bytes()).0.unwrap()
            };
            assert_eq!(said.text, shown, "{case}");
        }
    }
}

#[test]
fn trap_19_a_count_beside_a_choice_is_kept() {
    let mut last =
        json!({"id": "c", "choices": [says("a", 7)], "usage": {"prompt_tokens": 2, "completion_tokens": 1}});
    last["choices"][0]["finish_reason"] = json!("stop");
    last["prompt_token_ids"] = json!([1, 2]);
    let text = events(&[&last.to_string(), "[DONE]"]);
    for speaker in speakers() {
        let (said, turn) = speaker.hears_stream(&text);
        assert_eq!(
            (turn.flags, said.usage),
            (vec![], Some((2, 1))),
            "{}",
            speaker.name
        );
    }
    for case in everywhere() {
        let (said, turn) = case.hears(&[says("a", 7), finish("stop")], 1);
        assert_eq!(
            (said.usage, turn.usage.unwrap().completion_tokens),
            (Some((2, 1)), 1),
            "{case}"
        );
    }
}

#[test]
fn trap_20_a_turn_cut_by_its_limit_is_flagged_and_trainable() {
    for case in everywhere() {
        let (said, turn) = case.hears(&[says("a", 7), says("b", 8), finish("length")], 2);
        assert_eq!(
            (turn.level, turn.flags.as_slice()),
            (CaptureLevel::Tokens, &[Flag::Truncated][..]),
            "{case}"
        );
        assert!(turn.flags.iter().all(|flag| !flag.blocks_training()), "{case}");
        assert_eq!(
            (said.text.as_str(), said.finish.as_deref()),
            ("ab", case.finish(2)),
            "{case}"
        );
    }
}

#[test]
fn trap_24_what_an_endpoint_refuses_is_left_out() {
    let refusal = json!({"error": {"message": "Unsupported parameter: 'max_tokens' is not supported with this model. Use \
        'max_completion_tokens' instead.", "param": "max_tokens", "code": "unsupported_parameter"}})
    .to_string();
    for case in everywhere() {
        let (_, facts) = case.asks(case.limit(7), &rules());
        let changes = case.speaker.dialect.refused(400, refusal.as_bytes(), &facts);
        let renamed = Change::Renamed {
            from: "max_tokens".into(),
            to: "max_completion_tokens".into(),
        };
        assert_eq!(changes, [renamed], "{case}");
        let changed = RequestRules { changes, ..rules() };
        let (sent, facts) = case.asks(case.limit(7), &changed);
        assert_eq!(
            (sent.get("max_tokens"), &sent["max_completion_tokens"]),
            (None, &json!(7)),
            "{case}"
        );
        assert_eq!(facts.changes.len(), 1, "{case}");
    }
}

#[test]
fn trap_26_29_limits_and_sampling_are_set_and_told() {
    let capped = RequestRules {
        max_tokens_cap: Some(50),
        sampling: Sampling {
            temperature: Some(0.7),
            top_k: Some(-1),
            ..Sampling::default()
        },
        ..rules()
    };
    for case in everywhere() {
        let mut members = case.limit(32000);
        if case.speaker.name == "generate_content" {
            members["generationConfig"]["temperature"] = json!(1);
        } else {
            members["temperature"] = json!(1);
        }
        members["tools"] = json!([]);
        let (sent, facts) = case.asks(members, &capped);
        assert_eq!(
            (
                &sent["max_tokens"],
                &sent["temperature"],
                &sent["top_k"],
                sent.get("tools")
            ),
            (&json!(50), &json!(0.7), &json!(-1), None),
            "{case}"
        );
        assert_eq!(sent.get("stream_options").is_some(), case.streamed, "{case}");
        assert_eq!(facts.max_tokens_asked, Some(32000), "{case}");
        assert_eq!(
            (facts.sampling.temperature, facts.sampling.top_k),
            (Some(0.7), Some(-1)),
            "{case}"
        );
    }
}

#[test]
fn trap_28_large_replies_and_events_pass() {
    let large = "x".repeat(5 << 20);
    let choices = [says(&large, 7), finish("stop")];
    for case in everywhere().into_iter().filter(|case| !case.streamed) {
        let (said, turn) = case.hears(&choices, 1);
        assert_eq!(
            (turn.end, said.text.len()),
            (CallEnd::Complete, large.len()),
            "{case}"
        );
    }
    let text = vllm(&choices, 1);
    for speaker in speakers() {
        let chunks = text.chunks(64 << 10);
        let (agent, turn) = speaker.stream(&speaker.facts(true), chunks, StreamEnd::EndOfBody);
        let length = speaker.read_stream(&agent).text.len();
        assert_eq!(
            (turn.end, length),
            (CallEnd::Complete, large.len()),
            "{}",
            speaker.name
        );
    }
}

#[test]
fn a_reply_without_a_token_ends_well_and_says_nothing() {
    for case in everywhere() {
        let (said, turn) = case.hears(&[finish("stop")], 0);
        assert_eq!(
            (turn.end, turn.level),
            (CallEnd::Complete, CaptureLevel::Tokens),
            "{case}"
        );
        assert!(
            said.ended && said.text.is_empty() && said.calls.is_empty(),
            "{case}: {said:?}"
        );
        assert_eq!(said.finish.as_deref(), case.finish(0), "{case}");
    }
}
