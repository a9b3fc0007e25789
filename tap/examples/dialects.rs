//! What a call costs in each dialect, of what it costs in chat completions, for `make bench`: `dialects [TURNS]`.
//!
//! A model server that answers from memory, the tap, and an agent run on a thread each; what is counted is the processor
//! time of the tap's. The dialects take turns, so that a busy machine slows them alike. Prints a line of JSON for each
//! dialect, mode and history.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a program for measuring ends at the first surprise"
)]

use dressage_tap::session::Access;
use dressage_tap::{AllowedHosts, CallSink, Endpoint, Gateway, Health, Session, SessionConfig, Upstream};
use dressage_wire::call::{Call, CaptureLevel};
use dressage_wire::ids::{CallId, RolloutId};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::thread;
use tokio_util::sync::CancellationToken;

/// Tokens in a reply.
const TOKENS: usize = 200;

/// Calls of a dialect before the next one has its turn.
const AT_ONCE: usize = 5;

/// The most that a translated dialect may cost, of what chat completions cost.
const AT_MOST: f64 = 2.0;

/// Where what is measured ends.
struct Nowhere;

impl CallSink for Nowhere {
    fn started(&self, _call: CallId) {}

    fn finished(&self, call: Call) {
        assert_eq!(call.meta.level, CaptureLevel::Tokens, "{:?}", call.meta.error);
        assert_eq!(call.completions[0].token_ids.len(), TOKENS);
    }
}

fn main() {
    let turns = std::env::args()
        .nth(1)
        .map_or(200, |turns| turns.parse().expect("a number of turns"));
    let upstream = start_upstream();
    let (address, tap) = start_tap(upstream);
    let mut agent = TcpStream::connect(address).unwrap();
    agent.set_nodelay(true).unwrap();
    for (history, messages) in [("short", 1), ("long", 100)] {
        for streamed in [true, false] {
            let requests: Vec<(&str, Vec<u8>)> = DIALECTS
                .iter()
                .map(|(name, request)| (*name, request(messages, streamed)))
                .collect();
            let mut spent = vec![0_u64; requests.len()];
            // The first round fills caches and learns what the machine does with branches.
            for round in 0..=turns / AT_ONCE {
                for (position, (_, request)) in requests.iter().enumerate() {
                    let before = processor_ns(&tap);
                    for _ in 0..AT_ONCE {
                        ask(&mut agent, request);
                    }
                    if round > 0 {
                        spent[position] += processor_ns(&tap) - before;
                    }
                }
            }
            let mode = if streamed { "streamed" } else { "whole" };
            for (position, (name, _)) in requests.iter().enumerate().skip(1) {
                let ratio = spent[position] as f64 / spent[0] as f64;
                let metric = format!("{name}_{mode}_{history}");
                println!(
                    "{}",
                    json!({"metric": metric, "value": ratio, "at_most": AT_MOST})
                );
            }
            let calls = (turns / AT_ONCE * AT_ONCE) as f64;
            let microseconds = spent[0] as f64 / calls / 1e3;
            println!(
                "{}",
                json!({"metric": format!("chat_{mode}_{history}_us"), "value": microseconds})
            );
        }
    }
}

/// Processor time of a thread, in nanoseconds.
fn processor_ns(thread: &PathBuf) -> u64 {
    let text = std::fs::read_to_string(thread).unwrap();
    text.split(' ').next().unwrap().parse().unwrap()
}

/// Sends a request and reads the reply to its end.
fn ask(agent: &mut TcpStream, request: &[u8]) {
    agent.write_all(request).unwrap();
    let (mut reply, mut part) = (Vec::new(), [0; 64 << 10]);
    loop {
        let count = agent.read(&mut part).unwrap();
        assert!(count > 0, "the tap closed the connection");
        reply.extend_from_slice(&part[..count]);
        let Some(head) = find(&reply, b"\r\n\r\n") else {
            continue;
        };
        let fields = String::from_utf8_lossy(&reply[..head]).to_ascii_lowercase();
        let whole = match fields.split("content-length: ").nth(1) {
            Some(length) => {
                reply.len() >= head + 4 + length.lines().next().unwrap().parse::<usize>().unwrap()
            }
            None => reply.ends_with(b"0\r\n\r\n"),
        };
        if whole {
            assert!(
                fields.starts_with("http/1.1 200"),
                "{}",
                String::from_utf8_lossy(&reply)
            );
            return;
        }
    }
}

fn find(text: &[u8], sought: &[u8]) -> Option<usize> {
    memchr::memmem::find(text, sought)
}

/// The tap on a thread of its own. Returns where it listens, and where its processor time is told.
fn start_tap(upstream: SocketAddr) -> (SocketAddr, PathBuf) {
    let (tell, told) = mpsc::channel();
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let upstream = Upstream::new(Endpoint::at("memory", format!("http://{upstream}/v1"))).unwrap();
            let config = SessionConfig {
                access: Access::Anyone,
                top_logprobs: 5,
                ..SessionConfig::new(RolloutId::new(), upstream)
            };
            let session = Session::new(config, Arc::new(Nowhere)).unwrap();
            let hosts = AllowedHosts::Named(Vec::new());
            let gateway = Gateway::bind("127.0.0.1:0".parse().unwrap(), hosts, || Health::Ok)
                .await
                .unwrap();
            gateway.admit(&session);
            session.open();
            let own = std::fs::read_link("/proc/thread-self").unwrap();
            tell.send((
                gateway.address(),
                PathBuf::from("/proc").join(own).join("schedstat"),
            ))
            .unwrap();
            gateway.serve(CancellationToken::new()).await;
        });
    });
    told.recv().unwrap()
}

/// A model server that answers from memory: a stream, event by event, or a whole reply.
fn start_upstream() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (events, whole) = (Arc::new(events()), Arc::new(whole()));
    thread::spawn(move || {
        while let Ok((socket, _)) = listener.accept() {
            let (events, whole) = (Arc::clone(&events), Arc::clone(&whole));
            thread::spawn(move || answer(socket, &events, &whole));
        }
    });
    address
}

fn answer(mut socket: TcpStream, events: &[Vec<u8>], whole: &[u8]) {
    socket.set_nodelay(true).unwrap();
    let (mut request, mut part) = (Vec::new(), [0; 64 << 10]);
    while let Ok(count) = socket.read(&mut part) {
        if count == 0 {
            return;
        }
        request.extend_from_slice(&part[..count]);
        let Some(head) = find(&request, b"\r\n\r\n") else {
            continue;
        };
        let fields = String::from_utf8_lossy(&request[..head]).to_ascii_lowercase();
        let length: usize = fields
            .split("content-length: ")
            .nth(1)
            .unwrap()
            .lines()
            .next()
            .unwrap()
            .parse()
            .unwrap();
        if request.len() < head + 4 + length {
            continue;
        }
        if find(&request, b"\"stream\":true").is_some() {
            for event in events {
                if socket.write_all(event).is_err() {
                    return;
                }
            }
        } else if socket.write_all(whole).is_err() {
            return;
        }
        request.clear();
    }
}

/// What vLLM tells of a token, with five alternatives.
fn entry(at: usize) -> Value {
    let of = |at: usize| json!({"token": format!(" word{at}"), "logprob": -0.25 - at as f64 / 1000.0, "bytes": [32, 119, 111, 114, 100]});
    let mut entry = of(at);
    entry["top_logprobs"] = (0..5).map(|other| of(at + other)).collect();
    entry
}

fn events() -> Vec<Vec<u8>> {
    let event = |choices: Value| json!({"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 7, "model": "m", "choices": choices});
    let mut first = event(
        json!([{"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": null, "finish_reason": null}]),
    );
    first["prompt_token_ids"] = (0..500).collect();
    let mut all = vec![first];
    all.extend((0..TOKENS).map(|at| {
        event(json!([{"index": 0, "delta": {"content": format!(" word{at}")}, "logprobs": {"content": [entry(at)]},
            "finish_reason": if at + 1 == TOKENS { json!("stop") } else { Value::Null }, "stop_reason": null, "token_ids": [at]}]))
    }));
    let mut last = event(json!([]));
    last["usage"] = json!({"prompt_tokens": 500, "total_tokens": 500 + TOKENS, "completion_tokens": TOKENS});
    all.push(last);
    let data = all.iter().map(Value::to_string).chain(["[DONE]".to_owned()]);
    let chunks = data.map(|data| {
        let event = format!("data: {data}\n\n");
        format!("{:x}\r\n{event}\r\n", event.len()).into_bytes()
    });
    let head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n";
    std::iter::once(head.to_vec())
        .chain(chunks)
        .chain([b"0\r\n\r\n".to_vec()])
        .collect()
}

fn whole() -> Vec<u8> {
    let text: String = (0..TOKENS).map(|at| format!(" word{at}")).collect();
    let body = json!({"id": "chatcmpl-1", "object": "chat.completion", "created": 7, "model": "m", "choices": [
        {"index": 0, "message": {"role": "assistant", "content": text, "tool_calls": []},
         "logprobs": {"content": (0..TOKENS).map(entry).collect::<Value>()}, "finish_reason": "stop", "stop_reason": null,
         "token_ids": (0..TOKENS).collect::<Value>()}],
        "usage": {"prompt_tokens": 500, "total_tokens": 500 + TOKENS, "completion_tokens": TOKENS},
        "prompt_token_ids": (0..500).collect::<Value>()})
    .to_string();
    format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

/// Writes a request with so many messages.
type Request = fn(usize, bool) -> Vec<u8>;

/// Chat completions first, which the others are measured by.
const DIALECTS: [(&str, Request); 4] = [
    ("chat", chat),
    ("messages", messages),
    ("responses", responses),
    ("generate_content", generate_content),
];

const SYSTEM: &str =
    "You are an agent that writes programs.\nAnswer briefly, and call \"tools\" where they help.\n";

/// What a tool gave back, as long as many are: some lines of a program.
fn result(at: usize) -> String {
    (0..16)
        .map(|line| format!("{line:4}\tlet value_{at} = call(\"{line}\", {at});\n"))
        .collect()
}

fn schema() -> Value {
    json!({"type": "object", "properties": {
        "path": {"type": "string", "description": "The absolute path of the file to be read or written, never a relative one"},
        "offset": {"type": "integer", "description": "The line to begin with, counted from one"},
        "edits": {"type": "array", "items": {"type": "object", "properties": {
            "old": {"type": "string"}, "new": {"type": "string"}}, "required": ["old", "new"]}}},
        "required": ["path"], "additionalProperties": false})
}

const TOOL: &str =
    "Does something with a file: reads a part of it, or replaces what is found in it.\nUse it often.";

fn tools(each: impl Fn(String) -> Value) -> Value {
    (0..12).map(|at| each(format!("tool_{at}"))).collect()
}

fn arguments(at: usize) -> Value {
    json!({"path": format!("/home/user/src/file_{at}.rs"), "offset": at, "edits": [{"old": "a \"b\"\n", "new": "c\n"}]})
}

fn post(path: &str, body: &Value) -> Vec<u8> {
    let body = body.to_string();
    format!(
        "POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

/// Puts the tools into a request that has more than one message.
fn with_tools(mut body: Value, messages: usize, tools: Value) -> Value {
    if messages > 1 {
        body["tools"] = tools;
    }
    body
}

fn chat(messages: usize, streamed: bool) -> Vec<u8> {
    let mut said = vec![
        json!({"role": "system", "content": SYSTEM}),
        json!({"role": "user", "content": "Do it."}),
    ];
    for at in 0..messages / 2 {
        said.push(
            json!({"role": "assistant", "content": "I look.", "tool_calls": [{"id": format!("call_{at}"),
            "type": "function", "function": {"name": "tool_1", "arguments": arguments(at).to_string()}}]}),
        );
        said.push(json!({"role": "tool", "tool_call_id": format!("call_{at}"), "content": result(at)}));
    }
    let mut body = json!({"model": "m", "messages": said, "stream": streamed});
    if streamed {
        body["stream_options"] = json!({"include_usage": true});
    }
    let tools = tools(
        |name| json!({"type": "function", "function": {"name": name, "description": TOOL, "parameters": schema()}}),
    );
    post("/v1/chat/completions", &with_tools(body, messages, tools))
}

fn messages(messages: usize, streamed: bool) -> Vec<u8> {
    let mut said = vec![json!({"role": "user", "content": [{"type": "text", "text": "Do it."}]})];
    for at in 0..messages / 2 {
        said.push(
            json!({"role": "assistant", "content": [{"type": "text", "text": "I look."},
            {"type": "tool_use", "id": format!("call_{at}"), "name": "tool_1", "input": arguments(at)}]}),
        );
        said.push(json!({"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": format!("call_{at}"), "content": result(at)}]}));
    }
    let body = json!({"model": "m", "max_tokens": 1000, "system": [{"type": "text", "text": SYSTEM,
        "cache_control": {"type": "ephemeral"}}], "messages": said, "stream": streamed});
    let tools = tools(|name| json!({"name": name, "description": TOOL, "input_schema": schema()}));
    post("/v1/messages", &with_tools(body, messages, tools))
}

fn responses(messages: usize, streamed: bool) -> Vec<u8> {
    let mut said = vec![
        json!({"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Do it."}]}),
    ];
    for at in 0..messages / 2 {
        said.push(json!({"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look."}]}));
        said.push(
            json!({"type": "function_call", "call_id": format!("call_{at}"), "name": "tool_1",
            "arguments": arguments(at).to_string()}),
        );
        said.push(
            json!({"type": "function_call_output", "call_id": format!("call_{at}"), "output": result(at)}),
        );
    }
    let body =
        json!({"model": "m", "instructions": SYSTEM, "input": said, "stream": streamed, "store": false});
    let tools =
        tools(|name| json!({"type": "function", "name": name, "description": TOOL, "parameters": schema()}));
    post("/v1/responses", &with_tools(body, messages, tools))
}

fn generate_content(messages: usize, streamed: bool) -> Vec<u8> {
    let mut said = vec![json!({"role": "user", "parts": [{"text": "Do it."}]})];
    for at in 0..messages / 2 {
        said.push(json!({"role": "model", "parts": [{"text": "I look."},
            {"functionCall": {"name": "tool_1", "args": arguments(at)}}]}));
        said.push(json!({"role": "user", "parts": [
            {"functionResponse": {"name": "tool_1", "response": {"output": result(at)}}}]}));
    }
    let body = json!({"systemInstruction": {"parts": [{"text": SYSTEM}]}, "contents": said});
    let declarations =
        tools(|name| json!({"name": name, "description": TOOL, "parametersJsonSchema": schema()}));
    let path = if streamed {
        "/v1beta/models/m:streamGenerateContent?alt=sse"
    } else {
        "/v1beta/models/m:generateContent"
    };
    post(
        path,
        &with_tools(body, messages, json!([{"functionDeclarations": declarations}])),
    )
}
