use crate::answer::{self, ReplyHead};
use crate::failure::SendError;
use crate::reply::ReplyBody;
use crate::send;
use crate::session::Session;
use crate::side::document;
use bytes::Bytes;
use dressage_wire::dialect::{Dialect, ModelEntry};
use http::{HeaderMap, Method, Response, StatusCode};
use serde_json::Value;

/// The models that can be asked for: the one that every call goes to, or what the endpoint lists.
pub(crate) async fn list(session: &Session, dialect: &dyn Dialect) -> Response<ReplyBody> {
    match ask(session).await {
        Ok((head, body)) => match dialect.models(&entries(&body)) {
            Some(list) if head.status().is_success() => document(list),
            None => head.respond(ReplyBody::Local(Some(body))),
            Some(_) => said_by_endpoint(dialect, head.status(), &body),
        },
        Err(error) => failed(session, dialect, &error),
    }
}

/// One of these models.
pub(crate) async fn one(session: &Session, dialect: &dyn Dialect, name: &str) -> Response<ReplyBody> {
    let (head, body) = match ask(session).await {
        Ok(asked) => asked,
        Err(error) => return failed(session, dialect, &error),
    };
    if !head.status().is_success() {
        return said_by_endpoint(dialect, head.status(), &body);
    }
    let found = entries(&body).into_iter().find(|model| model.id == name);
    let card = || {
        let list = serde_json::from_slice::<Value>(&body).ok()?;
        let cards = list.get("data")?.as_array()?;
        let card = cards
            .iter()
            .find(|card| card.get("id").is_some_and(|id| id == name))?;
        Some(Bytes::from(card.to_string()))
    };
    match found.and_then(|model| dialect.model(&model).or_else(card)) {
        Some(model) => document(model),
        None => answer::error(
            dialect,
            StatusCode::NOT_FOUND,
            &format!("there is no model {name:?} here"),
        ),
    }
}

async fn ask(session: &Session) -> Result<(ReplyHead, Bytes), SendError> {
    let upstream = &session.config.upstream;
    if let Some(model) = &upstream.endpoint().model {
        let entry = serde_json::json!({"id": model, "object": "model", "created": 0, "owned_by": "dressage"});
        let list = serde_json::json!({"object": "list", "data": [entry]});
        return Ok((ReplyHead::json(StatusCode::OK), list.to_string().into()));
    }
    let response = upstream
        .send(Method::GET, "/models", HeaderMap::new(), Bytes::new())
        .await?;
    let head = ReplyHead::of(&response);
    let body = send::read(session, response, None, |_| {}).await?;
    Ok((head, upstream.redact(body)))
}

/// What an OpenAI-like list names.
fn entries(list: &[u8]) -> Vec<ModelEntry> {
    let list = serde_json::from_slice::<Value>(list).unwrap_or_default();
    let cards = list.get("data").and_then(Value::as_array);
    let entry = |card: &Value| {
        Some(ModelEntry {
            id: card.get("id")?.as_str()?.to_owned(),
            created_unix_s: card.get("created").and_then(Value::as_u64).unwrap_or(0),
            context_tokens: card.get("max_model_len").and_then(Value::as_u64),
        })
    };
    cards.into_iter().flatten().filter_map(entry).collect()
}

fn said_by_endpoint(dialect: &dyn Dialect, status: StatusCode, body: &Bytes) -> Response<ReplyBody> {
    let (shown, _) = dialect.refused_reply(status.as_u16(), body);
    ReplyHead::json(status).respond(ReplyBody::Local(Some(shown.unwrap_or_else(|| body.clone()))))
}

fn failed(session: &Session, dialect: &dyn Dialect, error: &SendError) -> Response<ReplyBody> {
    let message = error.message(&session.config.upstream);
    // OpenAI's shape has room for a hint.
    match dialect.models(&[]) {
        None => answer::plain_with_hint(error.status(), &message, error.hint()),
        Some(_) => answer::error(dialect, error.status(), &message),
    }
}
