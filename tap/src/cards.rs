use crate::answer::{self, ReplyHead};
use crate::reply::ReplyBody;
use bytes::Bytes;
use dressage_wire::dialect::{Dialect, ModelEntry};
use http::{Response, StatusCode};
use serde_json::Value;

/// A list of models in the form of a dialect; OpenAI's passes as it is.
pub(crate) fn list(dialect: &dyn Dialect, head: ReplyHead, body: Bytes) -> Response<ReplyBody> {
    match dialect.models(&entries(&body)) {
        Some(list) if head.status().is_success() => answer::document(list),
        None => head.respond(ReplyBody::Local(Some(body))),
        Some(_) => said_by_endpoint(dialect, head.status(), &body),
    }
}

/// One model of a list.
pub(crate) fn one(dialect: &dyn Dialect, name: &str, head: &ReplyHead, body: &Bytes) -> Response<ReplyBody> {
    if !head.status().is_success() {
        return said_by_endpoint(dialect, head.status(), body);
    }
    let found = entries(body).into_iter().find(|model| model.id == name);
    let card = || {
        let list = serde_json::from_slice::<Value>(body).ok()?;
        let cards = list.get("data")?.as_array()?;
        let card = cards
            .iter()
            .find(|card| card.get("id").is_some_and(|id| id == name))?;
        Some(Bytes::from(card.to_string()))
    };
    match found.and_then(|model| dialect.model(&model).or_else(card)) {
        Some(model) => answer::document(model),
        None => answer::error(
            dialect,
            StatusCode::NOT_FOUND,
            &format!("there is no model {name:?} here"),
        ),
    }
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
