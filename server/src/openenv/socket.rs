//! Sockets: `/ws`, which OpenEnv's own messages go over, and `/mcp`, which takes JSON-RPC.
//!
//! One request is answered after the other, while the socket is read all the time: pings are answered however long a
//! rollout takes, and a client that goes has its rollout cancelled.

use super::environment::{Action, Environment, Observation};
use super::problems::{Problem, reset_options};
use super::pulse::Pulse;
use super::rpc::{Place, SocketPlace, answer_text, answer_value, full as no_place};
use super::{detail, sessions};
use crate::http::App;
use axum::extract::ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade, close_code};
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::Response;
use dressage_wire::ids::RolloutId;
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt, StreamExt};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::MissedTickBehavior;

/// Bytes of a message that a client may send.
const MESSAGE_MAX: usize = crate::http::BODY_MAX;

/// Messages that wait while a rollout runs; a client that sends more waits itself.
const WAITING_MAX: usize = 64;

/// How long a client may take to read a reply.
const READING: Duration = Duration::from_secs(600);

/// How long a client may take to close its half after ours.
const GOODBYE: Duration = Duration::from_secs(5);

/// The same where the server stops.
const GOODBYE_AT_THE_END: Duration = Duration::from_secs(1);

/// What stands behind the path.
#[derive(Debug, Default, Deserialize)]
pub struct Options {
    session_id: Option<String>,
}

/// `GET /ws`.
pub async fn environment(
    State(app): State<App>,
    Query(options): Query<Options>,
    upgrade: Result<WebSocketUpgrade, axum::extract::ws::rejection::WebSocketUpgradeRejection>,
) -> Response {
    let Ok(upgrade) = upgrade else {
        return detail(StatusCode::NOT_FOUND, "Not Found");
    };
    let sockets = app.sockets.clone();
    let speak = move |socket: WebSocket| async move {
        let (mut sink, stream) = socket.split();
        let session = options.session_id.filter(|id| !id.is_empty());
        let place = match &session {
            Some(id) => app
                .openenv
                .sessions
                .attach(id)
                .map_err(|message| error("SESSION_ERROR", &message, json!({}))),
            None => app
                .openenv
                .sessions
                .enter()
                .map_err(|full| error("CAPACITY_REACHED", &full.message(), full.data())),
        };
        match place {
            Ok(place) => serve(app, sink, stream, place, Speech::Environment).await,
            Err(message) => refuse(&mut sink, stream, message).await,
        }
    };
    upgrade
        .max_message_size(MESSAGE_MAX)
        .max_frame_size(MESSAGE_MAX)
        .on_upgrade(move |socket| sockets.track_future(speak(socket)))
}

/// A socket at `/mcp`.
pub fn rpc(app: App, upgrade: WebSocketUpgrade) -> Response {
    let sockets = app.sockets.clone();
    let speak = move |socket: WebSocket| async move {
        let (mut sink, stream) = socket.split();
        match app.openenv.sessions.enter() {
            Ok(place) => serve(app, sink, stream, place, Speech::Rpc).await,
            Err(full) => refuse(&mut sink, stream, no_place(full)).await,
        }
    };
    upgrade
        .max_message_size(MESSAGE_MAX)
        .max_frame_size(MESSAGE_MAX)
        .on_upgrade(move |socket| sockets.track_future(speak(socket)))
}

/// What is spoken on a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Speech {
    Environment,
    Rpc,
}

/// What came over a socket.
enum Received {
    Text(String),
    Binary,
}

/// What a message leads to.
enum Answer {
    Reply(String),
    /// The reply is the last one.
    Last(String),
    Close,
}

async fn refuse(
    sink: &mut SplitSink<WebSocket, Message>,
    mut stream: SplitStream<WebSocket>,
    message: String,
) {
    _ = sink.send(Message::Text(message.into())).await;
    close(sink).await;
    // The client's own close is waited for, so that it can read what was said.
    _ = tokio::time::timeout(GOODBYE, async { while let Some(Ok(_)) = stream.next().await {} }).await;
}

async fn close(sink: &mut SplitSink<WebSocket, Message>) {
    let frame = CloseFrame {
        code: close_code::NORMAL,
        reason: "".into(),
    };
    _ = sink.send(Message::Close(Some(frame))).await;
}

async fn serve(
    app: App,
    mut sink: SplitSink<WebSocket, Message>,
    mut stream: SplitStream<WebSocket>,
    place: sessions::Place,
    speech: Speech,
) {
    let (received, mut inbox) = mpsc::channel(WAITING_MAX);
    let pulse = Arc::new(Pulse::default());
    let felt = pulse.clone();
    let reader = tokio::spawn(async move {
        while let Some(Ok(message)) = stream.next().await {
            felt.heard();
            let message = match message {
                Message::Text(text) => Received::Text(text.as_str().to_owned()),
                Message::Binary(_) => Received::Binary,
                Message::Close(_) => break,
                Message::Ping(_) | Message::Pong(_) => continue,
            };
            felt.leave_unread(true);
            let sent = received.send(message).await;
            felt.leave_unread(false);
            if sent.is_err() {
                // The other half is over; what the client still says is read until it goes.
                while let Some(Ok(_)) = stream.next().await {}
                return;
            }
        }
    });
    let socket_place = Arc::new(match place.session() {
        Some(session) => SocketPlace::Session(session.clone()),
        None => SocketPlace::Own(RolloutId::new().to_string(), Environment::new()),
    });
    let every = app.openenv.ping;
    let mut pings = tokio::time::interval_at(tokio::time::Instant::now() + every, every);
    // While a long reply is sent no pings are.
    pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let message = tokio::select! {
            biased;
            () = app.stopping.cancelled() => break,
            message = inbox.recv() => message,
            _ = pings.tick() => {
                if !ping(&pulse, &mut sink, every).await { break }
                continue;
            }
        };
        let Some(message) = message else { break };
        let answer = answer(&app, message, &socket_place, speech);
        tokio::pin!(answer);
        let answer = loop {
            tokio::select! {
                biased;
                answer = &mut answer => break Some(answer),
                () = gone(&reader) => break None,
                _ = pings.tick() => {
                    if !ping(&pulse, &mut sink, every).await { break None }
                }
            }
        };
        match answer {
            None => break,
            Some(Answer::Close) => {
                close(&mut sink).await;
                break;
            }
            Some(Answer::Reply(reply)) => {
                let sending = sink.send(Message::Text(reply.into()));
                if !matches!(tokio::time::timeout(READING, sending).await, Ok(Ok(()))) {
                    break;
                }
            }
            Some(Answer::Last(reply)) => {
                _ = sink.send(Message::Text(reply.into())).await;
                close(&mut sink).await;
                break;
            }
        }
    }
    if app.stopping.is_cancelled() {
        close(&mut sink).await;
    }
    // The place is given back before the client sees the end, so that it can come back at once.
    drop(place);
    drop(inbox);
    let abort = reader.abort_handle();
    let patience = if app.stopping.is_cancelled() {
        GOODBYE_AT_THE_END
    } else {
        GOODBYE
    };
    if tokio::time::timeout(patience, reader).await.is_err() {
        abort.abort();
    }
}

/// Asks whether the client is there; `false` where it is not.
async fn ping(pulse: &Pulse, sink: &mut SplitSink<WebSocket, Message>, patience: Duration) -> bool {
    let sending = sink.send(Message::Ping(Default::default()));
    pulse.ask() && matches!(tokio::time::timeout(patience, sending).await, Ok(Ok(())))
}

/// Waits until the client has gone.
async fn gone(reader: &tokio::task::JoinHandle<()>) {
    let mut poll = tokio::time::interval(Duration::from_millis(100));
    while !reader.is_finished() {
        poll.tick().await;
    }
}

async fn answer(app: &App, message: Received, place: &Arc<SocketPlace>, speech: Speech) -> Answer {
    let text = match message {
        Received::Text(text) => text,
        Received::Binary => return Answer::Last(error("SESSION_ERROR", "'text'", json!({}))),
    };
    match speech {
        Speech::Rpc => Answer::Reply(answer_text(app, text.as_bytes(), Place::Socket(place.clone())).await),
        Speech::Environment => message_of_environment(app, &text, place).await,
    }
}

async fn message_of_environment(app: &App, text: &str, place: &Arc<SocketPlace>) -> Answer {
    let table = match serde_json::from_str::<Value>(text) {
        Ok(Value::Object(table)) => table,
        Ok(other) => {
            let python = match other {
                Value::Array(_) => "list",
                Value::String(_) => "str",
                Value::Number(_) => "int",
                Value::Bool(_) => "bool",
                _ => "NoneType",
            };
            return Answer::Last(error(
                "SESSION_ERROR",
                &format!("'{python}' object has no attribute 'get'"),
                json!({}),
            ));
        }
        Err(problem) => {
            return Answer::Reply(error(
                "INVALID_JSON",
                &format!("Invalid JSON: {problem}"),
                json!({}),
            ));
        }
    };
    let kind = match table.get("type") {
        Some(Value::String(kind)) => kind.clone(),
        Some(other) => other.to_string(),
        None => String::new(),
    };
    let environment = place.environment();
    let data = table.get("data").cloned();
    match kind.as_str() {
        "reset" => match envelope(&table, Data::Optional) {
            Ok(()) => {
                let data = data.unwrap_or_else(|| json!({}));
                // OpenEnv's socket takes any options; what is none of ours, or not of its kind, is left alone.
                let episode = reset_options(&data, &[]).ok().flatten();
                Answer::Reply(format!(
                    r#"{{"type":"observation","data":{}}}"#,
                    environment.reset(episode)
                ))
            }
            Err(problems) => Answer::Reply(invalid(&problems)),
        },
        "step" => {
            let action =
                envelope(&table, Data::Required).and_then(|()| Action::read(&data.unwrap_or_default()));
            match action {
                Ok(action) => {
                    let observation: Observation = environment.step(app, action, None).await;
                    Answer::Reply(format!(
                        r#"{{"type":"observation","data":{}}}"#,
                        observation.into_json(false)
                    ))
                }
                Err(problems) => Answer::Reply(invalid(&problems)),
            }
        }
        "state" => match envelope(&table, Data::None) {
            Ok(()) => Answer::Reply(json!({"type": "state", "data": environment.state()}).to_string()),
            Err(problems) => Answer::Reply(invalid(&problems)),
        },
        "mcp" => match envelope(&table, Data::Required) {
            Ok(()) => {
                let reply = answer_value(app, data.unwrap_or_default(), Place::Socket(place.clone())).await;
                Answer::Reply(format!(r#"{{"type":"mcp","data":{reply}}}"#))
            }
            Err(problems) => Answer::Reply(invalid(&problems)),
        },
        "close" => match envelope(&table, Data::None) {
            Ok(()) => Answer::Close,
            Err(problems) => Answer::Reply(invalid(&problems)),
        },
        other => Answer::Reply(error(
            "UNKNOWN_TYPE",
            &format!("Unknown message type: {other}"),
            json!({}),
        )),
    }
}

/// Whether a message has `data`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Data {
    Required,
    Optional,
    None,
}

fn envelope(table: &Map<String, Value>, data: Data) -> Result<(), Vec<Problem>> {
    let mut problems = Vec::new();
    match table.get("data") {
        None if data == Data::Required => {
            problems.push(Problem::missing(
                vec![json!("data")],
                &Value::Object(table.clone()),
            ));
        }
        Some(value) if data != Data::None && !value.is_object() => {
            problems.push(Problem::new(
                "dict_type",
                vec![json!("data")],
                "Input should be a valid dictionary",
                value,
            ));
        }
        _ => {}
    }
    for (key, value) in table {
        if key != "type" && (key != "data" || data == Data::None) {
            problems.push(Problem::extra(vec![json!(key)], value));
        }
    }
    if problems.is_empty() {
        Ok(())
    } else {
        Err(problems)
    }
}

fn invalid(problems: &[Problem]) -> String {
    error(
        "VALIDATION_ERROR",
        "Invalid message",
        json!({ "errors": problems }),
    )
}

fn error(code: &str, message: &str, more: Value) -> String {
    let mut data = json!({"message": message, "code": code});
    if let (Some(data), Value::Object(more)) = (data.as_object_mut(), more) {
        data.extend(more);
    }
    json!({"type": "error", "data": data}).to_string()
}
