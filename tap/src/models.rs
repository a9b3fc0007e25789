use crate::answer::{self, ReplyHead};
use crate::reply::ReplyBody;
use crate::send;
use crate::session::Session;
use bytes::Bytes;
use http::{HeaderMap, Method, Response, StatusCode};

/// The models that can be asked for: the one that every call goes to, or what the endpoint lists.
pub(crate) async fn list(session: &Session) -> Response<ReplyBody> {
    let upstream = &session.config.upstream;
    if let Some(model) = &upstream.endpoint().model {
        let entry = serde_json::json!({"id": model, "object": "model", "created": 0, "owned_by": "dressage"});
        let list = serde_json::json!({"object": "list", "data": [entry]});
        return ReplyHead::json(StatusCode::OK).respond(ReplyBody::Local(Some(list.to_string().into())));
    }
    let asking = async {
        let response = upstream
            .send(
                session.affinity,
                Method::GET,
                "/models",
                HeaderMap::new(),
                Bytes::new(),
            )
            .await?;
        let head = ReplyHead::of(&response);
        let body = send::read(session, response, None, |_| {}).await?;
        Ok((head, upstream.redact(body)))
    };
    match asking.await {
        Ok((head, body)) => head.respond(ReplyBody::Local(Some(body))),
        Err(error) => {
            let error: crate::failure::SendError = error;
            answer::plain_with_hint(error.status(), &error.message(upstream), error.hint())
        }
    }
}
