//! The life of a call, on one page: authenticate, read, prepare, budget, send, relay, record.
//!
//! The phases follow each other in `forward`; each later one is a file of its own. The call is recorded exactly once
//! wherever it ends: `OpenCall` hands itself over when it is dropped.

use crate::answer::{self, ReplyHead};
use crate::open_call::{OpenCall, nothing_captured};
use crate::reply::{ReplyBody, Whole};
use crate::request::{self, Unread};
use crate::send::Outbound;
use crate::session::Session;
use bytes::Bytes;
use dressage_wire::call::{CallEnd, Flag};
use dressage_wire::capture::RequestFacts;
use dressage_wire::dialect::{Dialect, Target};
use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// The dialect that answers a request, and where the endpoint answers it.
pub(crate) struct Route {
    pub(crate) dialect: &'static dyn Dialect,
    pub(crate) target: Target,
}

/// Carries one call from the agent's request to the reply that the agent gets.
pub(crate) async fn forward(
    session: &Arc<Session>,
    route: Route,
    request: Request<Incoming>,
) -> Response<ReplyBody> {
    let arrived = Instant::now();
    let (head, body) = request.into_parts();

    // Authenticate.
    if !answer::is_authorised(session, &head.headers) {
        return answer::unauthorised(Some(route.dialect));
    }

    // Read.
    let (body, room) = match request::read(session, body).await {
        Ok(read) => read,
        Err(Unread::Gone) => {
            return answer::error(route.dialect, StatusCode::BAD_REQUEST, &Unread::Gone.to_string());
        }
        Err(error) => {
            let mut call = OpenCall::start(session, route.dialect, arrived, Bytes::new(), session.room());
            call.identify(&head.headers);
            return refuse(call, route.dialect, error.status(), error.to_string());
        }
    };
    let dialect = route.dialect;
    let mut call = OpenCall::start(session, dialect, arrived, body, room);
    call.identify(&head.headers);

    // Prepare.
    let outbound = match Outbound::prepare(session, route, &call, head.headers) {
        Ok(outbound) => outbound,
        Err(error) => {
            return refuse(call, dialect, StatusCode::BAD_REQUEST, answer::chain(&error));
        }
    };
    call.describe(&outbound.agent_headers, &outbound.prepared.facts);

    // Budget.
    if let Err(spent) = session.admit() {
        return answer_from_budget(call, dialect, &outbound.prepared.facts, spent.message());
    }

    // Send, relay, record.
    let facts = &outbound.prepared.facts;
    let keep_alive = session.config.keep_alive.filter(|_| facts.streamed);
    let form = facts.form;
    let sending = Box::pin(outbound.send(Arc::clone(session), call));
    ReplyBody::relay(session, (dialect, form), sending, keep_alive).await
}

/// Ends a call that is not sent to anyone.
fn refuse(call: OpenCall, dialect: &dyn Dialect, status: StatusCode, message: String) -> Response<ReplyBody> {
    let reply = answer::error(dialect, status, &message);
    call.finish(nothing_captured(CallEnd::Refused, Some(message)));
    reply
}

/// Answers in the endpoint's place, in the form the agent asked for.
fn answer_from_budget(
    call: OpenCall,
    dialect: &dyn Dialect,
    facts: &RequestFacts,
    text: &str,
) -> Response<ReplyBody> {
    let created = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs();
    let whole = RequestFacts {
        streamed: false,
        ..facts.clone()
    };
    let mut captured = nothing_captured(CallEnd::Budget, None);
    captured.response = dialect.assistant_reply(text, &whole, created);
    captured.flags = vec![Flag::Budget];
    let body = dialect.assistant_reply(text, facts, created);
    let head = ReplyHead::ok(facts.streamed.then_some(facts.form));
    Whole { call, captured, body }.into_response(head)
}
