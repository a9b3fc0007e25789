use crate::answer;
use crate::models;
use crate::reply::ReplyBody;
use crate::session::Session;
use dressage_wire::dialect::{Dialect, SideRoute};
use http::{Request, Response};
use hyper::body::Incoming;
use std::sync::Arc;

/// Answers what an agent asks beside calls of a model. Nothing of it is recorded, and it costs nothing.
///
/// Where the other dialects are not built in, there is only the list of models: what reads it is most of the size of this.
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
        SideRoute::Models => models::list(session, dialect).await,
        #[cfg(feature = "translated")]
        SideRoute::Model(name) => models::one(session, dialect, &name).await,
        #[cfg(feature = "translated")]
        SideRoute::CountTokens(target) => {
            crate::count::tokens(session, dialect, &target, request.into_body()).await
        }
        #[cfg(not(feature = "translated"))]
        _ => answer::error(dialect, http::StatusCode::NOT_FOUND, "nothing answers this here"),
    }
}
