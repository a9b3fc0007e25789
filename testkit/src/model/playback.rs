//! From the texts of a reply to what is sent when, faults applied.

use super::body::Step;
use super::script::Turn;
use crate::fault::{Cut, Fault};
use bytes::Bytes;
use std::time::Duration;

/// The steps of a stream of events.
pub(super) fn stream(events: Vec<String>, faults: &[Fault], turn: &Turn) -> Vec<Step> {
    let framing = Framing::of(faults);
    let mut steps = Vec::new();
    if turn.delay_ms > 0 {
        steps.push(Step::Wait(Duration::from_millis(turn.delay_ms)));
    }
    let count = events.len();
    for (index, data) in events.into_iter().enumerate() {
        if index > 0 && turn.event_delay_ms > 0 {
            steps.push(Step::Wait(Duration::from_millis(turn.event_delay_ms)));
        }
        let mut data = data;
        for fault in faults {
            match fault {
                Fault::Stall { after_events, ms } if *after_events == index => {
                    steps.push(Step::Wait(Duration::from_millis(*ms)));
                }
                // A cut past the end still cuts: before the last event.
                Fault::Cut { after_events, how } if index == (*after_events).min(count.saturating_sub(1)) => {
                    steps.extend(cut(*how));
                    return framing.split(steps);
                }
                Fault::ErrorEvent { at_event, message } if *at_event == index => {
                    steps.push(framing.event(&error_json(message)));
                    return framing.split(steps);
                }
                Fault::HugeEvent { at_event, bytes } if *at_event == index => {
                    steps.push(framing.event(&huge_json(*bytes)));
                }
                Fault::Malformed { at_event } if *at_event == index => data = first_half(&data),
                _ => {}
            }
        }
        steps.push(framing.event(&data));
    }
    framing.split(steps)
}

/// The length that is told, and the steps, of a reply that is not streamed.
pub(super) fn document(document: String, faults: &[Fault], turn: &Turn) -> (usize, Vec<Step>) {
    let framing = Framing::of(faults);
    let mut steps = Vec::new();
    if turn.delay_ms > 0 {
        steps.push(Step::Wait(Duration::from_millis(turn.delay_ms)));
    }
    let mut document = document;
    for fault in faults {
        match fault {
            Fault::Stall { ms, .. } => steps.push(Step::Wait(Duration::from_millis(*ms))),
            Fault::Cut {
                how: Cut::CleanEnd, ..
            }
            | Fault::Malformed { .. } => document = first_half(&document),
            Fault::Cut { how, .. } => {
                let length = document.len();
                steps.push(Step::Send(Bytes::from(first_half(&document))));
                steps.extend(cut(*how));
                return (length, framing.split(steps));
            }
            Fault::ErrorEvent { message, .. } => document = error_json(message),
            _ => {}
        }
    }
    let length = document.len();
    steps.push(Step::Send(Bytes::from(document)));
    (length, framing.split(steps))
}

/// How events are written.
#[derive(Clone, Copy, Debug)]
struct Framing {
    crlf: bool,
    piece_bytes: Option<usize>,
}

impl Framing {
    fn of(faults: &[Fault]) -> Self {
        let piece_bytes = faults.iter().find_map(|fault| match fault {
            Fault::Split { bytes } => Some((*bytes).max(1)),
            _ => None,
        });
        Self {
            crlf: faults.contains(&Fault::Crlf),
            piece_bytes,
        }
    }

    fn event(self, data: &str) -> Step {
        Step::Send(Bytes::from(if self.crlf {
            format!(": comment\r\n\r\ndata: {data}\r\n\r\n")
        } else {
            format!("data: {data}\n\n")
        }))
    }

    fn split(self, steps: Vec<Step>) -> Vec<Step> {
        let Some(piece_bytes) = self.piece_bytes else {
            return steps;
        };
        let split = |step| match step {
            Step::Send(mut bytes) => {
                let mut pieces = Vec::with_capacity(bytes.len() / piece_bytes + 1);
                while !bytes.is_empty() {
                    pieces.push(Step::Send(bytes.split_to(piece_bytes.min(bytes.len()))));
                }
                pieces
            }
            other => vec![other],
        };
        steps.into_iter().flat_map(split).collect()
    }
}

fn cut(how: Cut) -> Option<Step> {
    match how {
        Cut::CleanEnd => None,
        Cut::Close => Some(Step::Close),
        Cut::Reset => Some(Step::Reset),
    }
}

fn error_json(message: &str) -> String {
    let error =
        serde_json::json!({"message": message, "type": "InternalServerError", "param": null, "code": 500});
    serde_json::json!({ "error": error }).to_string()
}

fn huge_json(bytes: usize) -> String {
    let choice = serde_json::json!({
        "index": 0, "delta": {"content": "x".repeat(bytes)}, "logprobs": null, "finish_reason": null, "token_ids": null,
    });
    serde_json::json!({"id": "chatcmpl-huge", "object": "chat.completion.chunk", "choices": [choice]})
        .to_string()
}

/// The first half of a text, cut between characters.
fn first_half(text: &str) -> String {
    text.chars().take(text.chars().count() / 2).collect()
}
