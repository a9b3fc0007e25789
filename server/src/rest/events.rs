use crate::http::{App, Path};
use crate::service::{FeedItem, Position, ServiceError, written};
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream::{self, Stream, StreamExt};
use std::convert::Infallible;
use std::time::Duration;

/// How often a stream on which nothing happens says so.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// One event of a stream, whose fields are lines of text; a stream is one after another.
#[derive(utoipa::ToSchema)]
#[expect(dead_code, reason = "it describes what `sse` makes")]
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
    let events = stream::unfold(follow, |mut follow| async move {
        let event = follow.next().await?;
        Some((sse(event.sequence.to_string(), &written(&event)), follow))
    });
    Ok(reply(&app, events))
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
    let start = Event::default()
        .event("position")
        .id(feed.position().to_string())
        .data("{}");
    let events = stream::unfold(feed, |mut feed| async move {
        let event = match feed.next().await? {
            FeedItem::Missed(position) => Ok(Event::default()
                .event("missed")
                .id(position.to_string())
                .data("{}")),
            FeedItem::Event(position, event) => sse(position.to_string(), event.written()),
        };
        Some((event, feed))
    });
    Ok(reply(&app, stream::iter([Ok(start)]).chain(events)))
}

fn reply(app: &App, events: impl Stream<Item = Result<Event, Infallible>> + Send + 'static) -> Response {
    let stopping = app.stopping.clone();
    let events = events.take_until(async move { stopping.cancelled().await });
    Sse::new(events)
        .keep_alive(KeepAlive::new().interval(KEEP_ALIVE))
        .into_response()
}

/// An event as it is sent. Its JSON has no line breaks, so it is one line of data.
fn sse(id: String, (kind, json): &(String, String)) -> Result<Event, Infallible> {
    Ok(Event::default().id(id).event(kind).data(json))
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
