use crate::answer::{self, ReplyHead};
use crate::endpoint::Operation;
use crate::failure::SendError;
use crate::reply::ReplyBody;
use crate::request;
use crate::send;
use crate::session::Session;
use bytes::Bytes;
use dressage_wire::dialect::{Dialect, Target};
use http::{HeaderMap, Method, Response, StatusCode};
use hyper::body::Incoming;
use serde_json::Value;
use std::sync::Arc;

/// Says that a number of tokens is none that the endpoint counted.
const ESTIMATED: (&str, &str) = ("x-dressage-token-count", "estimated");

/// Bytes of text to a token where nobody counts: about what it is for English and code.
const BYTES_A_TOKEN: usize = 4;

/// Counts the tokens that a request would be: as the endpoint does, which vLLM has `/tokenize` for; else by its length,
/// and says so in a header.
pub(crate) async fn tokens(
    session: &Arc<Session>,
    dialect: &dyn Dialect,
    target: &Target,
    body: Incoming,
) -> Response<ReplyBody> {
    let (body, _room) = match request::read(session, body).await {
        Ok(read) => read,
        Err(error) => return answer::error(dialect, error.status(), &error.to_string()),
    };
    let chat = match dialect.to_be_counted(target, &body) {
        Ok(chat) => chat,
        Err(error) => return answer::error(dialect, StatusCode::BAD_REQUEST, &answer::chain(&error)),
    };
    let counted = counted_by_endpoint(session, &chat).await;
    let tokens = counted.unwrap_or_else(|| estimate(&chat));
    let Some(count) = dialect.token_count(tokens) else {
        return answer::error(dialect, StatusCode::NOT_FOUND, "tokens are not counted here");
    };
    if counted.is_some() {
        return answer::document(count);
    }
    ReplyHead::json(StatusCode::OK)
        .with(ESTIMATED.0, ESTIMATED.1)
        .respond(ReplyBody::Local(Some(count)))
}

/// `None` where the endpoint does not count.
async fn counted_by_endpoint(session: &Session, chat: &Bytes) -> Option<u64> {
    let upstream = &session.config.upstream;
    let request = tokenize_request(chat, upstream.endpoint().model.as_deref())?;
    let asking = async {
        let response = upstream
            .send(
                session.affinity,
                Method::POST,
                Operation::BesideVersion("/tokenize"),
                HeaderMap::new(),
                request,
            )
            .await?;
        let good = response.status().is_success();
        let body = send::read(session, response, None, |_| {}).await?;
        Ok::<_, SendError>(good.then_some(body))
    };
    let answer = asking.await.ok()??;
    serde_json::from_slice::<Value>(&answer)
        .ok()?
        .get("count")?
        .as_u64()
}

/// About how many tokens a chat completion is. What is no text, such as an image, is left out.
fn estimate(chat: &[u8]) -> u64 {
    fn text_bytes(value: &Value) -> usize {
        match value {
            Value::String(text) if text.starts_with("data:") => 0,
            Value::String(text) => text.len(),
            Value::Array(items) => items.iter().map(text_bytes).sum(),
            Value::Object(members) => members
                .iter()
                .map(|(name, value)| name.len() + text_bytes(value))
                .sum(),
            _ => 1,
        }
    }
    let chat = serde_json::from_slice::<Value>(chat).unwrap_or_default();
    let said = ["messages", "tools"].iter().filter_map(|name| chat.get(name));
    said.map(text_bytes).sum::<usize>().div_ceil(BYTES_A_TOKEN) as u64
}

/// What vLLM's `/tokenize` takes of a chat completion.
fn tokenize_request(chat: &Bytes, model: Option<&str>) -> Option<Bytes> {
    let Value::Object(mut members) = serde_json::from_slice::<Value>(chat).ok()? else {
        return None;
    };
    members.retain(|name, _| {
        matches!(
            name.as_str(),
            "model" | "messages" | "tools" | "chat_template_kwargs"
        )
    });
    if let Some(model) = model {
        members.insert("model".into(), model.into());
    }
    members.insert("add_generation_prompt".into(), true.into());
    Some(Value::Object(members).to_string().into())
}
