//! What must hold for any bytes, whatever they are. These are the bodies of the fuzz targets, and the property tests of this
//! package call them with what proptest makes up.
//!
//! Each function ends in a panic where something does not hold. Agents' readers (`speakers`) read all that is written for
//! agents, and refuse what an SDK would stumble over.

use super::recordings::*;
use super::speakers::{Said, Speaker, speakers};
use bytes::Bytes;
use dressage_wire::call::CallEnd;
use dressage_wire::capture::{Captured, RequestFacts, RequestRules, Shown, StreamEnd, StreamForm};
use dressage_wire::scan::{canonical, decode_string, sound, write_string};
use dressage_wire::sse::Splitter;
use dressage_wire::task::{AllowedHost, CaptureMode, Host, Target};
use serde_json::Value;
use serde_json::value::RawValue;
use std::collections::BTreeSet;

/// Streams up to this length are put through byte by byte too.
const BYTE_BY_BYTE: usize = 4096;

/// A stream of events: what is given out is what went in, at any split.
pub fn events(bytes: &[u8]) {
    let split = |chunks: &[&[u8]]| {
        let mut splitter = Splitter::new(1 << 20);
        let (mut passed, mut read) = (Vec::new(), Vec::new());
        for chunk in chunks {
            let mut events = splitter.push(chunk);
            while let Some(event) = events.next().unwrap() {
                passed.extend_from_slice(event.raw);
                read.push((
                    event.name().map(<[u8]>::to_vec),
                    event.data().map(|data| data.into_owned()),
                ));
            }
        }
        if let Some(event) = splitter.rest() {
            passed.extend_from_slice(event.raw);
            read.push((
                event.name().map(<[u8]>::to_vec),
                event.data().map(|data| data.into_owned()),
            ));
        }
        (passed, read)
    };
    let whole = split(&[bytes]);
    assert_eq!(whole.0, bytes, "bytes were lost or made up");
    for chunks in splits(bytes) {
        assert_eq!(split(&chunks), whole);
    }
}

/// A text that may be JSON: what is called so is so, and what is written is what was read.
pub fn json(bytes: &[u8]) {
    if let Ok(text) = canonical(bytes, &[]) {
        assert!(is_json(&text) && is_json(bytes));
        assert_eq!(canonical(&text, &[]).unwrap(), text, "the one form has another");
    }
    if let Some(text) = sound(bytes) {
        assert!(is_json(&text));
    }
    let text = String::from_utf8_lossy(bytes);
    let mut written = Vec::new();
    write_string(&text, &mut written);
    assert_eq!(serde_json::from_slice::<String>(&written).unwrap(), text);
    assert_eq!(decode_string(&written[1..written.len() - 1]), text);
}

/// Hosts that a sandbox wants to reach, and those that are allowed, one a line: what is read is written as it is read again, is
/// nothing that a resolver takes for something else, and is allowed by itself, its wildcards and its own port alone.
pub fn hosts(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let lines: Vec<&str> = text.lines().take(16).collect();
    let allowed: Vec<AllowedHost> = lines.iter().filter_map(|line| line.parse().ok()).collect();
    for host in &allowed {
        assert_eq!(host.to_string().parse::<AllowedHost>().as_ref(), Ok(host));
    }
    for line in &lines {
        for usual_port in [None, Some(80)] {
            let Ok(target) = Target::parse(line, usual_port) else {
                continue;
            };
            assert_eq!(Target::parse(&target.to_string(), None), Ok(target.clone()));
            assert!(target.port > 0 && !line.contains('@'));
            if let Host::Name(name) = &target.host {
                let plain =
                    |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_.".contains(&byte);
                assert!(
                    name.bytes().all(plain) && (1..=253).contains(&name.len()),
                    "{name}"
                );
                assert!(
                    !name.contains("..") && !name.starts_with('.') && !name.ends_with('.'),
                    "{name}"
                );
                let last = name.rsplit('.').next().unwrap();
                assert!(!last.bytes().all(|byte| byte.is_ascii_digit()), "{name}");
            }
            for host in &allowed {
                assert_eq!(
                    host.allows(&target),
                    is_allowed(&host.to_string(), &target),
                    "{host} {target}"
                );
            }
        }
    }
}

/// Said once more, by texts alone.
fn is_allowed(allowed: &str, target: &Target) -> bool {
    let (host, port) = (target.host.to_string(), target.port);
    let usual = if [80, 443].contains(&port) {
        Some(allowed)
    } else {
        None
    };
    let own = allowed.strip_suffix(&format!(":{port}"));
    [usual, own]
        .into_iter()
        .flatten()
        .any(|wanted| match wanted.strip_prefix('*') {
            // What begins with a dot is longer than that only where something is before it.
            Some(below) => host.ends_with(below) && host.len() > below.len() && !host.starts_with('['),
            None => host == wanted,
        })
}

/// A request of an agent: refused, or a chat completion, the same each time; and a reply to it can be written.
pub fn requests(bytes: &[u8]) {
    let body = Bytes::copy_from_slice(bytes);
    for speaker in speakers() {
        for streamed in [true, false] {
            let target = speaker.target(streamed);
            let Ok(prepared) = speaker.dialect.prepare(&target, &body, &rules()) else {
                continue;
            };
            let name = speaker.name;
            let again = speaker.dialect.prepare(&target, &body, &rules()).unwrap();
            assert_eq!(
                (&prepared.body, &prepared.facts),
                (&again.body, &again.facts),
                "{name}"
            );
            assert!(is_json(&prepared.body), "{name}: {:?}", prepared.body);
            if name != "chat_completions" {
                let chat: Value = match serde_json::from_slice(&prepared.body) {
                    Ok(chat) => chat,
                    // A number that no reader of ours holds, or half a pair of escapes.
                    Err(_) => continue,
                };
                assert!(chat["messages"].is_array(), "{name}: {chat}");
                assert!(speaker.dialect.to_be_counted(&target, &body).is_ok(), "{name}");
            }
            // What of a request comes back in the reply is sound there.
            let facts = RequestFacts {
                form: StreamForm::Events,
                ..prepared.facts
            };
            let reply = speaker.dialect.assistant_reply("said", &facts, 7);
            let said = if facts.streamed {
                speaker.read_stream(&reply)
            } else {
                speaker.read_document(&reply)
            };
            assert_eq!((said.text.as_str(), said.error), ("said", None), "{name}");
        }
    }
}

/// A whole reply of an endpoint: an error, or a document and a stream that say the same.
pub fn replies(bytes: &[u8]) {
    let body = Bytes::copy_from_slice(bytes);
    for speaker in speakers() {
        let name = speaker.name;
        let facts = speaker.facts(false);
        let (shown, captured) = speaker.dialect.whole(&body, &facts);
        let (again, other) = speaker.dialect.whole(&body, &facts);
        assert_eq!((&shown, &captured.response), (&again, &other.response), "{name}");
        if captured.end == CallEnd::Complete {
            assert!(is_json(&captured.response), "{name}");
        }
        let Shown::Document(document) = shown else {
            assert_ne!(captured.end, CallEnd::Complete, "{name}");
            continue;
        };
        if name == "chat_completions" {
            continue;
        }
        assert_eq!(
            (captured.end, &document),
            (CallEnd::Complete, &captured.response),
            "{name}"
        );
        let said = speaker.read_document(&document);
        unique(&said, name);
        let buffered = RequestRules {
            capture: CaptureMode::Buffer,
            ..rules()
        };
        let facts = speaker.prepare(true, &speaker.body(true), &buffered).facts;
        let (Shown::Stream(stream), _) = speaker.dialect.whole(&body, &facts) else {
            panic!("{name}: a whole reply is not replayed");
        };
        same(&speaker, &speaker.read_stream(&stream), &said);
        let array = RequestFacts {
            form: StreamForm::Array,
            ..facts
        };
        if name == "generate_content"
            && let (Shown::Stream(array_of_documents), _) = speaker.dialect.whole(&body, &array)
        {
            same_in_an_array(&array_of_documents, &stream);
        }
    }
}

/// A streamed reply of an endpoint, whole or broken off: the same at any split, well-formed in every dialect, and ended
/// well only where all of it was understood.
pub fn streams(bytes: &[u8]) {
    for speaker in speakers() {
        let facts = speaker.facts(true);
        let hear = |facts: &RequestFacts, chunks: &[&[u8]]| {
            speaker.stream(facts, chunks.iter().copied(), StreamEnd::EndOfBody)
        };
        let (shown, captured) = hear(&facts, &[bytes]);
        for chunks in splits(bytes) {
            let (other, again) = hear(&facts, &chunks);
            assert_eq!(
                String::from_utf8_lossy(&other),
                String::from_utf8_lossy(&shown),
                "{}",
                speaker.name
            );
            assert_eq!((again.end, &again.response), (captured.end, &captured.response));
            // As text, since a log-probability that is none is not equal to itself.
            if speaker.name != "chat_completions" || captured.end == CallEnd::Complete {
                assert_eq!(
                    format!("{:?}", again.completions),
                    format!("{:?}", captured.completions)
                );
            }
        }
        if speaker.name != "chat_completions" {
            well_formed(&speaker, &shown, &captured);
        }
        if speaker.name == "generate_content" {
            let array = RequestFacts {
                form: StreamForm::Array,
                ..facts
            };
            let (array_of_documents, _) = hear(&array, &[bytes]);
            same_in_an_array(&array_of_documents, &shown);
        }
    }
}

/// An array of documents has those that a stream of events has, in the same order.
fn same_in_an_array(array: &[u8], stream: &[u8]) {
    let mut splitter = Splitter::new(1 << 20);
    let mut events = splitter.push(stream);
    let mut documents: Vec<Value> = Vec::new();
    while let Some(event) = events.next().unwrap() {
        documents.extend(event.data().map(|data| serde_json::from_slice(&data).unwrap()));
    }
    assert_eq!(serde_json::from_slice::<Vec<Value>>(array).unwrap(), documents);
}

fn well_formed(speaker: &Speaker, shown: &[u8], captured: &Captured) {
    let name = speaker.name;
    let said = speaker.read_stream(shown);
    let complete = captured.end == CallEnd::Complete;
    assert_eq!(said.ended && said.error.is_none(), complete, "{name}: {said:?}");
    assert_eq!(said.error.is_some(), !complete, "{name}: {said:?}");
    unique(&said, name);
    if !captured.response.is_empty() {
        assert!(is_json(&captured.response), "{name}");
    }
    if complete {
        same(speaker, &said, &speaker.read_document(&captured.response));
    }
}

/// No two calls have the same id.
fn unique(said: &Said, name: &str) {
    let ids: BTreeSet<&str> = said.calls.iter().map(|call| call.0.as_str()).collect();
    assert_eq!(ids.len(), said.calls.len(), "{name}: {:?}", said.calls);
}

/// A stream and a document say the same.
fn same(speaker: &Speaker, stream: &Said, document: &Said) {
    let of = |said: &Said| {
        let calls: Vec<_> = said
            .calls
            .iter()
            .map(|call| (call.0.clone(), call.1.clone()))
            .collect();
        (
            said.text.clone(),
            said.reasoning.clone(),
            calls,
            said.finish.clone(),
        )
    };
    assert_eq!(of(stream), of(document), "{}", speaker.name);
}

fn is_json(text: &[u8]) -> bool {
    let text = std::str::from_utf8(text);
    text.is_ok_and(|text| serde_json::from_str::<&RawValue>(text).is_ok())
}

/// Ways to cut a text in chunks: in two, at places that the text itself decides on, and byte by byte.
fn splits(bytes: &[u8]) -> Vec<Vec<&[u8]>> {
    let mut state = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let mut places: Vec<usize> = (0..6)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as usize % (bytes.len() + 1)
        })
        .collect();
    let two = bytes.split_at(places[0]);
    places.extend([0, bytes.len()]);
    places.sort_unstable();
    let mut ways = vec![
        vec![two.0, two.1],
        places.windows(2).map(|pair| &bytes[pair[0]..pair[1]]).collect(),
    ];
    if bytes.len() <= BYTE_BY_BYTE {
        ways.push(bytes.chunks(1).collect());
    }
    ways
}
