//! The dialects, each with the least it takes to ask in it, and with a reader of what agents get: by a tree of every
//! event, slow, plain, and independent of the code under test.

use super::recordings::*;
use bytes::{Bytes, BytesMut};
use dressage_wire::capture::{Captured, Prepared, RequestFacts, RequestRules, Shown, StreamEnd};
use dressage_wire::dialect::{Asked, Dialect, Target, route};
use serde_json::{Map, Value, json};

/// What an agent understood of a reply.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Said {
    pub reasoning: String,
    pub text: String,
    /// Id, name and arguments of each call; arguments are a text where the dialect has them so.
    pub calls: Vec<(String, String, Value)>,
    /// The dialect's word for why it ended.
    pub finish: Option<String>,
    /// The last event was there.
    pub ended: bool,
    pub error: Option<String>,
    /// Tokens of prompt and completion, as counted for the agent.
    pub usage: Option<(u64, u64)>,
}

/// A dialect and how it is spoken.
pub struct Speaker {
    pub name: &'static str,
    pub dialect: &'static dyn Dialect,
    path: fn(streamed: bool) -> (&'static str, &'static str),
    body: fn(streamed: bool) -> Value,
    read_document: fn(&Value) -> Said,
    read_stream: fn(&[u8]) -> Said,
    /// Words for the end of a turn, of one that calls tools, and of one that is cut by a limit.
    pub finishes: [&'static str; 3],
}

/// Every dialect of the registry.
pub fn speakers() -> Vec<Speaker> {
    let make =
        |name, path: fn(bool) -> (&'static str, &'static str), body, read_document, read_stream, finishes| {
            let (at, query) = path(false);
            let asked = Asked {
                method: "POST",
                path: at,
                query,
                header: &|_| None,
            };
            Speaker {
                name,
                dialect: route(&asked).unwrap().0,
                path,
                body,
                read_document,
                read_stream,
                finishes,
            }
        };
    vec![
        make(
            "chat_completions",
            |_| ("/v1/chat/completions", ""),
            |streamed| {
                json!({"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": streamed,
                    "stream_options": streamed.then(|| json!({"include_usage": true}))})
            },
            chat_document,
            chat_stream,
            ["stop", "tool_calls", "length"],
        ),
        make(
            "messages",
            |_| ("/v1/messages", "beta=true"),
            |streamed| {
                json!({"model": "m", "max_tokens": 100, "messages": [{"role": "user", "content": "hi"}],
                    "stream": streamed})
            },
            messages_document,
            messages_stream,
            ["end_turn", "tool_use", "max_tokens"],
        ),
        make(
            "responses",
            |_| ("/v1/responses", ""),
            |streamed| json!({"model": "m", "input": "hi", "stream": streamed}),
            responses_document,
            responses_stream,
            ["completed", "completed", "incomplete"],
        ),
        make(
            "generate_content",
            |streamed| {
                if streamed {
                    ("/v1beta/models/m:streamGenerateContent", "alt=sse")
                } else {
                    ("/v1beta/models/m:generateContent", "")
                }
            },
            |_| json!({"contents": [{"role": "user", "parts": [{"text": "hi"}]}]}),
            content_document,
            content_stream,
            ["STOP", "STOP", "MAX_TOKENS"],
        ),
    ]
}

/// The speaker of that name.
pub fn speaker(name: &str) -> Speaker {
    speakers()
        .into_iter()
        .find(|speaker| speaker.name == name)
        .unwrap()
}

impl Speaker {
    pub fn target(&self, streamed: bool) -> Target {
        let (path, query) = (self.path)(streamed);
        let asked = Asked {
            method: "POST",
            path,
            query,
            header: &|_| None,
        };
        self.dialect.route(&asked).unwrap()
    }

    pub fn body(&self, streamed: bool) -> Value {
        (self.body)(streamed)
    }

    /// The body with these members put over it.
    pub fn body_with(&self, streamed: bool, members: Value) -> Value {
        let mut body = self.body(streamed);
        let Value::Object(members) = members else {
            panic!("members are an object")
        };
        body.as_object_mut().unwrap().extend(members);
        body
    }

    pub fn prepare(&self, streamed: bool, body: &Value, rules: &RequestRules) -> Prepared {
        let body = Bytes::from(body.to_string());
        self.dialect
            .prepare(&self.target(streamed), &body, rules)
            .unwrap_or_else(|error| panic!("{}: {error}", self.name))
    }

    pub fn facts(&self, streamed: bool) -> RequestFacts {
        self.prepare(streamed, &self.body(streamed), &rules()).facts
    }

    /// Puts a stream through, in chunks.
    pub fn stream<'c>(
        &self,
        facts: &RequestFacts,
        chunks: impl IntoIterator<Item = &'c [u8]>,
        end: StreamEnd,
    ) -> (Vec<u8>, Captured) {
        let mut capture = self.dialect.stream(facts, EVENT_LIMIT_BYTES);
        let mut out = BytesMut::new();
        let mut end = end;
        for chunk in chunks {
            if capture.push(chunk, &mut out).is_err() {
                end = StreamEnd::Cut;
                break;
            }
        }
        let told = capture.seen().error;
        let captured = capture.finish(end, &mut out);
        if captured.end != dressage_wire::call::CallEnd::Complete && !told {
            let message = captured.error.clone().unwrap_or_default();
            capture.fail(&message, &mut out);
        }
        (out.to_vec(), captured)
    }

    /// Puts a whole stream through, and reads it.
    pub fn hears_stream(&self, text: &[u8]) -> (Said, Captured) {
        let (agent, captured) = self.stream(&self.facts(true), [text], StreamEnd::EndOfBody);
        (self.read_stream(&agent), captured)
    }

    /// Puts a whole reply through, and reads it.
    pub fn hears_document(&self, body: &[u8]) -> (Option<Said>, Captured) {
        let (shown, captured) = self
            .dialect
            .whole(&Bytes::copy_from_slice(body), &self.facts(false));
        let said = match shown {
            Shown::Document(body) => Some(self.read_document(&body)),
            Shown::Stream(_) => panic!("no stream was asked for"),
            Shown::Nothing => None,
        };
        (said, captured)
    }

    pub fn read_document(&self, body: &[u8]) -> Said {
        let value: Value = serde_json::from_slice(body)
            .unwrap_or_else(|error| panic!("{}: {error}: {}", self.name, String::from_utf8_lossy(body)));
        match value.pointer("/error/message") {
            Some(message) => Said {
                error: Some(message.as_str().unwrap().to_owned()),
                ..Said::default()
            },
            None => (self.read_document)(&value),
        }
    }

    pub fn read_stream(&self, stream: &[u8]) -> Said {
        (self.read_stream)(stream)
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// The data of each event, and its name.
fn parsed(stream: &[u8]) -> Vec<(Option<String>, String)> {
    let stream = std::str::from_utf8(stream).unwrap().replace("\r\n", "\n");
    stream
        .split("\n\n")
        .filter_map(|event| {
            let field = |name: &str| {
                event
                    .lines()
                    .find_map(|line| line.strip_prefix(name))
                    .map(str::to_owned)
            };
            Some((field("event: "), field("data: ")?))
        })
        .collect()
}

fn parse(data: &str) -> Value {
    serde_json::from_str(data).unwrap_or_else(|error| panic!("{error}: {data}"))
}

fn chat_document(body: &Value) -> Said {
    let mut said = Said::default();
    chat_choice(&mut said, &body["choices"][0], "message");
    chat_usage(&mut said, body);
    said.ended = true;
    said
}

fn chat_usage(said: &mut Said, body: &Value) {
    if let (Some(prompt), Some(completion)) = (
        body["usage"]["prompt_tokens"].as_u64(),
        body["usage"]["completion_tokens"].as_u64(),
    ) {
        said.usage = Some((prompt, completion));
    }
}

fn chat_choice(said: &mut Said, choice: &Value, message: &str) {
    let message = &choice[message];
    said.text.push_str(message["content"].as_str().unwrap_or(""));
    said.reasoning
        .push_str(message["reasoning"].as_str().unwrap_or(""));
    said.reasoning
        .push_str(message["reasoning_content"].as_str().unwrap_or(""));
    for call in message["tool_calls"].as_array().into_iter().flatten() {
        let index = call["index"].as_u64().unwrap_or(said.calls.len() as u64) as usize;
        if said.calls.len() <= index {
            said.calls
                .resize(index + 1, (String::new(), String::new(), json!("")));
        }
        let (id, name, arguments) = &mut said.calls[index];
        id.push_str(call["id"].as_str().unwrap_or(""));
        name.push_str(call["function"]["name"].as_str().unwrap_or(""));
        let more = call["function"]["arguments"].as_str().unwrap_or("");
        *arguments = json!(format!("{}{more}", arguments.as_str().unwrap()));
    }
    if let Some(reason) = choice["finish_reason"].as_str() {
        said.finish = Some(reason.to_owned());
    }
}

fn chat_stream(stream: &[u8]) -> Said {
    let mut said = Said::default();
    for (_, data) in parsed(stream) {
        if data == "[DONE]" {
            said.ended = true;
            continue;
        }
        let event = parse(&data);
        if let Some(message) = event.pointer("/error/message") {
            said.error = Some(text(message));
        }
        chat_choice(&mut said, &event["choices"][0], "delta");
        chat_usage(&mut said, &event);
    }
    said
}

fn messages_usage(said: &mut Said, usage: &Value) {
    let count = |name: &str| usage[name].as_u64().unwrap_or(0);
    said.usage = Some((
        count("input_tokens") + count("cache_read_input_tokens"),
        count("output_tokens"),
    ));
}

fn messages_block(said: &mut Said, block: &Value) {
    match block["type"].as_str().unwrap() {
        "text" => said.text.push_str(block["text"].as_str().unwrap()),
        "thinking" => {
            assert!(!block["signature"].as_str().unwrap().is_empty());
            said.reasoning.push_str(block["thinking"].as_str().unwrap());
        }
        "tool_use" => said
            .calls
            .push((text(&block["id"]), text(&block["name"]), block["input"].clone())),
        other => panic!("{other}"),
    }
}

fn messages_document(body: &Value) -> Said {
    let mut said = Said {
        ended: true,
        finish: body["stop_reason"].as_str().map(str::to_owned),
        ..Said::default()
    };
    assert_eq!(
        (&body["type"], &body["role"]),
        (&json!("message"), &json!("assistant"))
    );
    for block in body["content"].as_array().unwrap() {
        messages_block(&mut said, block);
    }
    messages_usage(&mut said, &body["usage"]);
    said
}

/// Blocks are put together as the SDK does it, by their index.
fn messages_stream(stream: &[u8]) -> Said {
    let mut said = Said::default();
    let mut blocks: Vec<(Value, String)> = Vec::new();
    let mut begun = false;
    for (name, data) in parsed(stream) {
        let event = parse(&data);
        assert_eq!(name.as_deref(), event["type"].as_str(), "{data}");
        let index = event["index"].as_u64().unwrap_or(0) as usize;
        match event["type"].as_str().unwrap() {
            "message_start" => {
                assert!(!begun);
                begun = true;
                assert_eq!(event["message"]["content"], json!([]));
                messages_usage(&mut said, &event["message"]["usage"]);
            }
            "content_block_start" => {
                assert_eq!(index, blocks.len());
                blocks.push((event["content_block"].clone(), String::new()));
            }
            "content_block_delta" => {
                let delta = &event["delta"];
                let (block, json) = &mut blocks[index];
                let (member, piece) = match delta["type"].as_str().unwrap() {
                    "text_delta" => ("text", &delta["text"]),
                    "thinking_delta" => ("thinking", &delta["thinking"]),
                    "signature_delta" => ("signature", &delta["signature"]),
                    "input_json_delta" => {
                        json.push_str(delta["partial_json"].as_str().unwrap());
                        continue;
                    }
                    other => panic!("{other}"),
                };
                block[member] = json!(format!("{}{}", text(&block[member]), text(piece)));
            }
            "content_block_stop" => {
                let (block, json) = &mut blocks[index];
                assert_eq!(block["stopped"], Value::Null, "a block stopped twice");
                block["stopped"] = json!(true);
                if block["type"] == "tool_use" && !json.is_empty() {
                    block["input"] =
                        serde_json::from_str(json).unwrap_or_else(|_| json!({"INVALID_JSON": *json}));
                }
            }
            "message_delta" => {
                assert!(blocks.iter().all(|(block, _)| block["stopped"] == true));
                said.finish = event["delta"]["stop_reason"].as_str().map(str::to_owned);
                messages_usage(&mut said, &event["usage"]);
            }
            "message_stop" => said.ended = true,
            "ping" => {}
            "error" => said.error = Some(text(&event["error"]["message"])),
            other => panic!("{other}"),
        }
    }
    if !begun {
        said.usage = None;
    }
    blocks
        .into_iter()
        .filter(|(block, _)| block["stopped"] == true)
        .for_each(|(block, _)| messages_block(&mut said, &block));
    said
}

fn responses_item(said: &mut Said, item: &Value) {
    let texts = |parts: &Value| -> String {
        let parts = parts.as_array().into_iter().flatten();
        parts
            .map(|part| text(&part["text"]) + &text(&part["refusal"]))
            .collect()
    };
    match item["type"].as_str().unwrap() {
        "message" => said.text.push_str(&texts(&item["content"])),
        "reasoning" => {
            said.reasoning.push_str(&texts(&item["summary"]));
            said.reasoning.push_str(&texts(&item["content"]));
        }
        "function_call" => said.calls.push((
            text(&item["call_id"]),
            text(&item["name"]),
            item["arguments"].clone(),
        )),
        "custom_tool_call" => {
            said.calls
                .push((text(&item["call_id"]), text(&item["name"]), item["input"].clone()))
        }
        other => panic!("{other}"),
    }
}

fn responses_document(body: &Value) -> Said {
    let mut said = Said {
        ended: true,
        finish: body["status"].as_str().map(str::to_owned),
        ..Said::default()
    };
    assert_eq!(body["object"], "response");
    for item in body["output"].as_array().unwrap() {
        responses_item(&mut said, item);
    }
    let usage = &body["usage"];
    said.usage = usage["input_tokens"]
        .as_u64()
        .zip(usage["output_tokens"].as_u64());
    said
}

/// Items are taken as they are done, and have to say what their deltas did and what the response says in the end.
fn responses_stream(stream: &[u8]) -> Said {
    let mut said = Said::default();
    let mut deltas: Map<String, Value> = Map::new();
    let mut items = Vec::new();
    for (number, (name, data)) in parsed(stream).into_iter().enumerate() {
        let event = parse(&data);
        let kind = event["type"].as_str().unwrap();
        assert_eq!(name.as_deref(), Some(kind), "{data}");
        assert_eq!(event["sequence_number"], number, "{data}");
        if number == 0 && kind != "response.failed" {
            assert_eq!(kind, "response.created");
        }
        if number == 1 {
            assert!(
                matches!(kind, "response.in_progress" | "response.failed"),
                "{kind}"
            );
        }
        match kind {
            "response.output_item.added" => {
                let item = &event["item"];
                assert_eq!(event["output_index"], deltas.len());
                deltas.insert(text(&item["id"]), json!(""));
                let mut empty = Said::default();
                responses_item(&mut empty, item);
                assert!(empty.text.is_empty() && empty.reasoning.is_empty());
            }
            kind if kind.ends_with(".delta") => {
                let known = &mut deltas[event["item_id"].as_str().unwrap()];
                *known = json!(format!("{}{}", text(known), text(&event["delta"])));
            }
            "response.output_item.done" => {
                let item = event["item"].clone();
                let mut whole = Said::default();
                responses_item(&mut whole, &item);
                let call = whole.calls.first().map(|call| text(&call.2));
                let told = call.unwrap_or(whole.text + &whole.reasoning);
                assert_eq!(deltas[item["id"].as_str().unwrap()], told, "{data}");
                items.push((event["output_index"].as_u64().unwrap(), item));
            }
            "response.completed" | "response.incomplete" => {
                said = responses_document(&event["response"]);
                assert_eq!(kind, format!("response.{}", said.finish.as_deref().unwrap()));
                items.sort_by_key(|(at, _)| *at);
                let done: Vec<Value> = items.drain(..).map(|(_, item)| item).collect();
                assert_eq!(event["response"]["output"], json!(done));
            }
            "response.failed" => {
                assert_eq!(event["response"]["status"], "failed");
                said.error = Some(text(&event["response"]["error"]["message"]));
            }
            _ => {}
        }
    }
    if !said.ended {
        items.iter().for_each(|(_, item)| responses_item(&mut said, item));
    }
    said
}

fn content_candidate(said: &mut Said, body: &Value) {
    let candidate = &body["candidates"][0];
    for part in candidate["content"]["parts"].as_array().into_iter().flatten() {
        if let Some(call) = part.get("functionCall") {
            said.calls
                .push((text(&call["id"]), text(&call["name"]), call["args"].clone()));
        } else if part["thought"] == true {
            said.reasoning.push_str(part["text"].as_str().unwrap());
        } else {
            said.text.push_str(part["text"].as_str().unwrap());
        }
    }
    if let Some(reason) = candidate["finishReason"].as_str() {
        said.finish = Some(reason.to_owned());
        said.ended = true;
    }
    let usage = &body["usageMetadata"];
    if let Some(prompt) = usage["promptTokenCount"].as_u64() {
        let total = usage["totalTokenCount"].as_u64().unwrap();
        let thoughts = usage["thoughtsTokenCount"].as_u64().unwrap_or(0);
        let completion = usage["candidatesTokenCount"].as_u64().unwrap() + thoughts;
        assert_eq!(total, prompt.saturating_add(completion));
        said.usage = Some((prompt, completion));
    }
}

fn content_document(body: &Value) -> Said {
    let mut said = Said::default();
    content_candidate(&mut said, body);
    said.ended = true;
    said
}

fn content_stream(stream: &[u8]) -> Said {
    let mut said = Said::default();
    for (name, data) in parsed(stream) {
        assert_eq!(name, None);
        let event = parse(&data);
        if let Some(message) = event.pointer("/error/message") {
            said.error = Some(text(message));
        }
        content_candidate(&mut said, &event);
    }
    said
}
