use super::export::PIECE;
use crate::http::{App, Path};
use crate::service::{Feed, FeedItem, Follow, Position, ServiceError};
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use dressage_wire::event::RolloutEvent;
use futures_util::stream::{self, Stream, StreamExt};
use std::convert::Infallible;
use std::fmt::Display;
use std::future::Future;
use std::io::Write as _;
use std::time::Duration;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// How often a stream on which nothing happens says so.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// What a stream says then: a comment.
const ALIVE: &[u8] = b":\n\n";

/// How soon after a piece the next one may be sent. An event that comes alone is sent at once; of many in a row, those that
/// come meanwhile go together, since each piece costs a listener and the server more than what is in it.
const PACE: Duration = Duration::from_millis(5);

/// One event of a stream, whose fields are lines of text; a stream is one after another.
#[derive(utoipa::ToSchema)]
#[expect(dead_code, reason = "it describes what `write_event` makes")]
pub struct ServerSentEvent {
    /// Where it stands in its stream; sent back as `Last-Event-ID`.
    id: String,
    /// Its type.
    event: String,
    /// A `RolloutEvent` as JSON on one line; `{}` in `position` and `missed`.
    #[schema(content_media_type = "application/json")]
    data: String,
}

/// The events of a rollout from its start, or from where a listener was, to its end.
#[utoipa::path(
    get, path = "/api/v1/rollouts/{id}/events", tag = "events", operation_id = "follow_rollout",
    params(
        ("id" = String, Path, description = "id of a rollout"),
        ("Last-Event-ID" = Option<String>, Header, description = "the `id` of the last event that was read: the stream goes on after it"),
    ),
    responses(
        (status = 200, description = "Server-sent events: `id` is the event's sequence number, `event` its type, `data` the event. \
            The stream ends after `finished`.", content_type = "text/event-stream", body = ServerSentEvent),
        (status = 404, description = "There is no such rollout.", body = crate::http::ErrorBody),
        (status = 422, description = "Last-Event-ID is none.", body = crate::http::ErrorBody),
    )
)]
pub async fn of_rollout(
    State(app): State<App>,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Result<Response, ServiceError> {
    let id = app.service.find(&id).await?;
    let from = match last_event_id(&headers)? {
        None => 0,
        Some(last) => last.parse::<u64>().map_err(|_| not_an_id())?.saturating_add(1),
    };
    let follow = app.service.follow(id, from).await?;
    Ok(reply(&app, Vec::new(), follow))
}

/// The events of all rollouts, from now on or from where a listener was.
#[utoipa::path(
    get, path = "/api/v1/events", tag = "events", operation_id = "follow_all",
    params(
        ("Last-Event-ID" = Option<String>, Header, description = "the `id` of the last event that was read: the stream goes on after it"),
    ),
    responses(
        (status = 200, description = "Server-sent events: first `position`, which tells where the stream begins; then, as in a rollout's \
            stream, what happens; `missed` where the events after Last-Event-ID are gone, and what is shown must be read anew.",
            content_type = "text/event-stream", body = ServerSentEvent),
        (status = 422, description = "Last-Event-ID is none.", body = crate::http::ErrorBody),
    )
)]
pub async fn of_all(State(app): State<App>, headers: HeaderMap) -> Result<Response, ServiceError> {
    let from = match last_event_id(&headers)? {
        None => None,
        Some(last) => Some(last.parse::<Position>().map_err(|()| not_an_id())?),
    };
    let feed = app.service.feed(from);
    let mut start = Vec::new();
    bare(&mut start, "position", feed.position());
    Ok(reply(&app, start, feed))
}

/// Events that listeners are sent.
trait Source: Send + 'static {
    /// Waits until there is something to write; `false` at the end. Can be dropped and called again.
    fn more(&mut self) -> impl Future<Output = bool> + Send;

    /// Writes the next event; `false` where none is there yet.
    fn write(&mut self, piece: &mut Vec<u8>) -> bool;
}

impl Source for Follow {
    fn more(&mut self) -> impl Future<Output = bool> + Send {
        self.more()
    }

    fn write(&mut self, piece: &mut Vec<u8>) -> bool {
        let event = self.take();
        if let Some(event) = &event {
            write_event(piece, event.sequence, event);
        }
        event.is_some()
    }
}

impl Source for Feed {
    fn more(&mut self) -> impl Future<Output = bool> + Send {
        self.more()
    }

    fn write(&mut self, piece: &mut Vec<u8>) -> bool {
        match self.take() {
            None => return false,
            Some(FeedItem::Missed) => bare(piece, "missed", self.position()),
            Some(FeedItem::Event(told)) => piece.extend_from_slice(told.sent(|| {
                let mut sent = Vec::new();
                write_event(&mut sent, self.position(), &told.event);
                sent
            })),
        }
        true
    }
}

/// The stream of what a source has, after some first bytes.
fn reply(app: &App, first: Vec<u8>, source: impl Source) -> Response {
    let first = stream::iter((!first.is_empty()).then(|| first.into()));
    let pieces = first.chain(pieces(source, app.stopping.clone()));
    let headers = [
        (header::CONTENT_TYPE, "text/event-stream"),
        (header::CACHE_CONTROL, "no-cache"),
    ];
    (headers, Body::from_stream(pieces.map(Ok::<_, Infallible>))).into_response()
}

/// What is sent together. Where the server stops, what is there is still sent.
fn pieces(source: impl Source, stopping: CancellationToken) -> impl Stream<Item = Bytes> + Send {
    let start = (source, Instant::now(), stopping);
    stream::unfold(start, |(mut source, earliest, stopping)| async move {
        tokio::select! {
            biased;
            more = tokio::time::timeout(KEEP_ALIVE, source.more()) => match more {
                Err(_) => return Some((Bytes::from_static(ALIVE), (source, earliest, stopping))),
                Ok(false) => return None,
                Ok(true) => {}
            },
            () = stopping.cancelled() => return None,
        }
        tokio::select! {
            biased;
            () = stopping.cancelled() => {}
            () = tokio::time::sleep_until(earliest) => {}
        }
        let mut piece = Vec::new();
        while piece.len() < PIECE && source.write(&mut piece) {}
        Some((piece.into(), (source, Instant::now() + PACE, stopping)))
    })
}

/// Writes an event as it is sent. Its JSON has no line breaks, so it is one line of data.
fn write_event(piece: &mut Vec<u8>, id: impl Display, event: &RolloutEvent) {
    // Writing to memory does not fail, and events are plain data that have a JSON form.
    _ = write!(piece, "id: {id}\nevent: {}\ndata: ", event.event.name());
    _ = serde_json::to_writer(&mut *piece, event);
    piece.extend_from_slice(b"\n\n");
}

/// Writes what says something of the stream alone.
fn bare(piece: &mut Vec<u8>, kind: &str, position: &Position) {
    _ = write!(piece, "event: {kind}\nid: {position}\ndata: {{}}\n\n");
}

fn last_event_id(headers: &HeaderMap) -> Result<Option<&str>, ServiceError> {
    match headers.get("last-event-id").map(|value| value.to_str()) {
        None | Some(Ok("")) => Ok(None),
        Some(Ok(id)) => Ok(Some(id)),
        Some(Err(_)) => Err(not_an_id()),
    }
}

fn not_an_id() -> ServiceError {
    ServiceError::invalid("Last-Event-ID", "is not the id of an event of this stream")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers up to a count, a line each; then nothing comes.
    struct Lines {
        next: u32,
        count: u32,
    }

    impl Source for Lines {
        async fn more(&mut self) -> bool {
            if self.next == self.count {
                std::future::pending::<()>().await;
            }
            true
        }

        fn write(&mut self, piece: &mut Vec<u8>) -> bool {
            if self.next == self.count {
                return false;
            }
            piece.extend_from_slice(format!("{:0255}\n", self.next).as_bytes());
            self.next += 1;
            true
        }
    }

    #[tokio::test]
    async fn what_is_there_goes_in_few_pieces_and_is_still_sent_where_the_server_stops() {
        let stopping = CancellationToken::new();
        stopping.cancel();
        let lines = Lines { next: 0, count: 1000 };
        let pieces: Vec<Bytes> = pieces(lines, stopping).collect().await;
        let lengths: Vec<usize> = pieces.iter().map(Bytes::len).collect();
        assert_eq!(lengths, [PIECE, PIECE, PIECE, 1000 * 256 - 3 * PIECE]);
        let text = String::from_utf8(pieces.concat()).unwrap();
        let read = text.lines().map(|line| line.parse::<u32>().unwrap());
        assert!(read.eq(0..1000));
    }

    #[test]
    fn the_word_of_an_event_is_the_type_in_its_json() {
        use dressage_wire::event::{Event, Stage};
        let event = RolloutEvent {
            rollout: "01a2289d-2de4-7000-84ad-46eb82fa46c1".parse().unwrap(),
            sequence: 3,
            unix_ms: 7,
            event: Event::StageStarted { stage: Stage::Boot },
        };
        let mut piece = Vec::new();
        write_event(&mut piece, 3, &event);
        assert_eq!(
            String::from_utf8(piece).unwrap(),
            "id: 3\nevent: stage_started\n\
             data: {\"rollout\":\"01a2289d-2de4-7000-84ad-46eb82fa46c1\",\"sequence\":3,\"unix_ms\":7,\
             \"event\":{\"type\":\"stage_started\",\"stage\":\"boot\"}}\n\n"
        );
    }
}
