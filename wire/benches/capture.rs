//! How fast a streamed and a whole reply are captured and stripped: `cargo bench -p dressage-wire`.
//!
//! The reply is a recorded vLLM turn with five alternatives at each position, its events repeated up to 200. Prints, for
//! each way of cutting it into chunks, the time a turn and the bytes a second, best of
//! many short rounds, since other programs take their share of longer ones; then the same in the other dialects.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a benchmark that fails is to fail here"
)]

use bytes::{Bytes, BytesMut};
use dressage_wire::capture::{Ask, RequestFacts, RequestRules, StreamEnd};
use dressage_wire::dialect::{Asked, Dialect, Target, chat::ChatCompletions, route};
use serde_json::{Value, json};
use std::hint::black_box;
use std::path::Path;
use std::time::{Duration, Instant};

const EVENTS: usize = 200;
const ROUNDS: usize = 300;

fn main() {
    // `cargo test --benches` only checks that it runs.
    let turns = if std::env::args().any(|argument| argument == "--bench") {
        4
    } else {
        1
    };
    let events = events();
    let stream = events.concat();
    report("streamed, a chunk an event", stream.len(), turns, &|| {
        capture(&ChatCompletions, &stream_facts(), &events)
    });
    let chunks: Vec<Vec<u8>> = stream.chunks(16 << 10).map(<[u8]>::to_vec).collect();
    report("streamed, chunks of 16 KiB", stream.len(), turns, &|| {
        capture(&ChatCompletions, &stream_facts(), &chunks)
    });
    let body = body();
    let facts = prepare(br#"{"model":"m","messages":[]}"#);
    report("whole", body.len(), turns, &|| {
        black_box(ChatCompletions.unary(&body, &facts));
    });
    let request = request();
    report("request", request.len(), turns, &|| {
        black_box(
            ChatCompletions
                .prepare(&Target::default(), &request, &rules())
                .unwrap(),
        );
    });

    translated(&events, &body, turns);
}

/// The same through the dialects that are translated, requests included.
fn translated(events: &[Vec<u8>], body: &Bytes, turns: u32) {
    let messages = json!([{"role": "user", "content": "a \"quoted\" word\nand a line"}]);
    let parts = json!([{"role": "user", "parts": [{"text": "a \"quoted\" word\nand a line"}]}]);
    for (name, path, query, member, items) in [
        ("messages", "/v1/messages", "", "messages", &messages),
        ("responses", "/v1/responses", "", "input", &messages),
        (
            "generateContent",
            "/v1beta/models/m:streamGenerateContent",
            "alt=sse",
            "contents",
            &parts,
        ),
    ] {
        let asked = Asked {
            method: "POST",
            path,
            query,
            header: &|_| None,
        };
        let (dialect, target) = route(&asked).unwrap();
        let ask = |times: usize, stream: bool| {
            let many: Vec<&Value> = items.as_array().unwrap().iter().cycle().take(times).collect();
            let mut request = json!({"model": "m", member: many});
            if stream && query.is_empty() {
                request["stream"] = json!(true);
            }
            Bytes::from(request.to_string())
        };
        let stream = dialect.prepare(&target, &ask(1, true), &rules()).unwrap().facts;
        let length = events.iter().map(Vec::len).sum();
        report(
            &format!("streamed in {name}, a chunk an event"),
            length,
            turns,
            &|| capture(dialect, &stream, events),
        );
        let whole = RequestFacts {
            streamed: false,
            ..stream
        };
        report(&format!("whole in {name}"), body.len(), turns, &|| {
            black_box(dialect.whole(body, &whole));
        });
        let request = ask(300, true);
        report(&format!("request in {name}"), request.len(), turns, &|| {
            black_box(dialect.prepare(&target, &request, &rules()).unwrap());
        });
    }
}

fn report(name: &str, bytes: usize, turns: u32, turn: &dyn Fn()) {
    let round = || {
        let start = Instant::now();
        (0..turns).for_each(|_| turn());
        start.elapsed() / turns
    };
    let best = (0..ROUNDS).map(|_| round()).min().unwrap_or(Duration::MAX);
    let speed = bytes as f64 / best.as_secs_f64() / 1e6;
    println!(
        "{name}: {bytes} bytes in {:.1} us, {speed:.0} MB/s",
        best.as_secs_f64() * 1e6
    );
}

fn rules() -> RequestRules {
    RequestRules {
        ask: Ask::Tokens,
        top_logprobs: 5,
        ..RequestRules::default()
    }
}

fn prepare(body: &[u8]) -> RequestFacts {
    ChatCompletions
        .prepare(&Target::default(), &Bytes::copy_from_slice(body), &rules())
        .unwrap()
        .facts
}

fn stream_facts() -> RequestFacts {
    prepare(br#"{"model":"m","messages":[],"stream":true}"#)
}

fn capture(dialect: &dyn Dialect, facts: &RequestFacts, chunks: &[Vec<u8>]) {
    let mut capture = dialect.stream(facts, 16 << 20);
    let mut out = BytesMut::new();
    for chunk in chunks {
        capture.push(chunk, &mut out).unwrap();
        black_box(&out);
        out.clear();
    }
    black_box(capture.finish(StreamEnd::EndOfBody, &mut out));
}

fn recording(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../fixtures/engines/vllm-0.32.0")
        .join(name);
    std::fs::read_to_string(path).unwrap()
}

/// The first event, the ones with tokens over and over, and the last three.
fn events() -> Vec<Vec<u8>> {
    let text = recording("hi_stream_lp5_ids.response.body");
    let recorded: Vec<&str> = text.split_inclusive("\n\n").collect();
    let (first, rest) = recorded.split_first().unwrap();
    let (tokens, last) = rest.split_at(rest.len() - 3);
    let repeated = tokens.iter().cycle().take(EVENTS);
    std::iter::once(first)
        .chain(repeated)
        .chain(last)
        .map(|event| event.as_bytes().to_vec())
        .collect()
}

/// A whole reply with as many tokens.
fn body() -> Bytes {
    let text = recording("hi_unary_lp5_ids.response.body");
    let start = text.find("\"content\":[").unwrap() + "\"content\":[".len();
    let end = text.find("]},\"finish_reason\"").unwrap();
    let entries = [&text[start..end]; EVENTS / 27 + 1].join(",");
    Bytes::from([&text[..start], &entries, &text[end..]].concat())
}

/// A request as large as an agent's.
fn request() -> Bytes {
    let text = recording("err_ctx_stream.request.json");
    let message = r#"{"role":"user","content":"a \"quoted\" word\nand a line"},"#.repeat(300);
    Bytes::from(text.replace("\"messages\": [", &format!("\"messages\": [{message}")))
}
