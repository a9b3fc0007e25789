use crate::answer::{self, ReplyHead};
#[cfg(feature = "translated")]
use crate::cards;
use crate::endpoint::Operation;
use crate::failure::SendError;
use crate::reply::ReplyBody;
use crate::send;
use crate::session::Session;
use bytes::Bytes;
use dressage_wire::dialect::Dialect;
use http::{HeaderMap, Method, Response, StatusCode};

/// The models that can be asked for: the one that every call goes to, or what the endpoint lists.
pub(crate) async fn list(session: &Session, dialect: &dyn Dialect) -> Response<ReplyBody> {
    match ask(session).await {
        #[cfg(feature = "translated")]
        Ok((head, body)) => cards::list(dialect, head, body),
        #[cfg(not(feature = "translated"))]
        Ok((head, body)) => head.respond(ReplyBody::Local(Some(body))),
        Err(error) => failed(session, dialect, &error),
    }
}

/// One of these models.
#[cfg(feature = "translated")]
pub(crate) async fn one(session: &Session, dialect: &dyn Dialect, name: &str) -> Response<ReplyBody> {
    match ask(session).await {
        Ok((head, body)) => cards::one(dialect, name, &head, &body),
        Err(error) => failed(session, dialect, &error),
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
        .send(
            session.affinity,
            Method::GET,
            Operation::OfApi("/models"),
            HeaderMap::new(),
            Bytes::new(),
        )
        .await?;
    let head = ReplyHead::of(&response);
    let body = send::read(session, response, None, |_| {}).await?;
    Ok((head, upstream.redact(body)))
}

fn failed(session: &Session, dialect: &dyn Dialect, error: &SendError) -> Response<ReplyBody> {
    let message = error.message(&session.config.upstream);
    // OpenAI's shape has room for a hint.
    if cfg!(feature = "translated") && dialect.models(&[]).is_some() {
        return answer::error(dialect, error.status(), &message);
    }
    answer::plain_with_hint(error.status(), &message, error.hint())
}
