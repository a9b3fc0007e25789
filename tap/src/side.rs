use crate::answer::{self, ReplyHead};
use crate::reply::ReplyBody;
use crate::session::Session;
use crate::{count, models};
use bytes::Bytes;
use dressage_wire::dialect::{Dialect, SideRoute};
use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use std::sync::Arc;

/// Answers what an agent asks beside calls of a model. Nothing of it is recorded, and it costs nothing.
pub(crate) async fn answer(
    session: &Arc<Session>,
    dialect: &'static dyn Dialect,
    route: SideRoute,
    request: Request<Incoming>,
) -> Response<ReplyBody> {
    if !answer::is_authorised(session, request.headers()) {
        return answer::unauthorised(Some(dialect));
    }
    match route {
        SideRoute::CountTokens(target) => count::tokens(session, dialect, &target, request.into_body()).await,
        SideRoute::Models => models::list(session, dialect).await,
        SideRoute::Model(name) => models::one(session, dialect, &name).await,
    }
}

/// An answer of our own.
pub(crate) fn document(body: Bytes) -> Response<ReplyBody> {
    ReplyHead::json(StatusCode::OK).respond(ReplyBody::Local(Some(body)))
}
