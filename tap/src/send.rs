use crate::answer::{self, ReplyHead};
use crate::endpoint::Operation;
use crate::failure::SendError;
use crate::forward::Route;
use crate::open_call::{OpenCall, nothing_captured};
use crate::session::Session;
use crate::upstream::Upstream;
use bytes::{Bytes, BytesMut};
use dressage_wire::call::{CallEnd, Change};
use dressage_wire::capture::{Captured, Prepared, RequestError, RequestRules, Shown};
use dressage_wire::dialect::StreamCapture;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE, LOCATION};
use http::{HeaderMap, Method, Response, StatusCode};
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Times that a request is changed and sent again because the endpoint refuses a member of it. OpenAI's reasoning models
/// refuse one member a time, and know few of those that are sent.
const MOST_CHANGED_ATTEMPTS: usize = 8;

/// A request on its way to the endpoint.
pub(crate) struct Outbound {
    pub(crate) route: Route,
    pub(crate) agent_headers: HeaderMap,
    pub(crate) prepared: Prepared,
    rules: RequestRules,
}

/// What came of sending a call.
pub(crate) enum Sent {
    /// A stream that goes on.
    Stream(Box<LiveStream>),
    /// The session ended meanwhile, and the call with it.
    StageOver,
    /// All there is: a whole reply, an error, or a failure of ours.
    Whole(Box<Answer>),
}

/// A reply that is all there.
pub(crate) struct Answer {
    pub(crate) call: OpenCall,
    pub(crate) captured: Captured,
    pub(crate) head: ReplyHead,
    pub(crate) body: Bytes,
    /// What to say in its place in a stream whose head the agent has already.
    pub(crate) failure: Option<String>,
}

/// A stream from the endpoint, with what captures it.
pub(crate) struct LiveStream {
    pub(crate) call: OpenCall,
    pub(crate) head: ReplyHead,
    pub(crate) body: Incoming,
    pub(crate) capture: Box<dyn StreamCapture>,
    pub(crate) upstream: Arc<Upstream>,
    /// When the whole reply must be there.
    pub(crate) deadline: Option<Instant>,
}

impl Outbound {
    /// Edits the agent's request for the endpoint.
    pub(crate) fn prepare(
        session: &Session,
        route: Route,
        call: &OpenCall,
        agent_headers: HeaderMap,
    ) -> Result<Self, RequestError> {
        let mut rules = session.rules.clone();
        let request = call.request();
        let mut prepared = route.dialect.prepare(&route.target, &request, &rules)?;
        // The model is known only now, and with it what the endpoint refuses for it.
        rules.changes = session.config.upstream.refusals(&prepared.facts.model);
        if !rules.changes.is_empty() {
            prepared = route.dialect.prepare(&route.target, &request, &rules)?;
        }
        Ok(Self {
            route,
            agent_headers,
            prepared,
            rules,
        })
    }

    /// Sends the call, again and changed where the endpoint refuses a member, until there is something for the agent.
    pub(crate) async fn send(mut self, session: Arc<Session>, mut call: OpenCall) -> Sent {
        let upstream = &session.config.upstream;
        #[cfg(feature = "shared")]
        call.hold(tokio::select! {
            biased;
            () = session.cancelled.cancelled() => return Sent::StageOver,
            pass = upstream.control().enter() => pass,
        });
        let deadline = upstream
            .endpoint()
            .timeouts
            .request
            .map(|time| Instant::now() + time);
        let outcome = tokio::select! {
            biased;
            () = session.cancelled.cancelled() => Err(Stop::Cancelled),
            outcome = self.attempts(&session, &mut call, deadline) => outcome.map_err(Stop::Failed),
        };
        match outcome {
            Ok(Reply::Stream(response)) => self.stream(&session, call, response, deadline),
            Ok(Reply::Whole { head, body }) => self.whole(&session.config.upstream, call, head, &body),
            Ok(Reply::Refused { status, head, body }) => {
                let (shown, captured) = self.route.dialect.refused_reply(status.as_u16(), &body);
                let head = if shown.is_some() { head.document() } else { head };
                let failure = captured
                    .error
                    .clone()
                    .unwrap_or_else(|| format!("the endpoint answered {status}"));
                Sent::Whole(Box::new(Answer {
                    call,
                    captured,
                    head,
                    body: shown.unwrap_or(body),
                    failure: Some(failure),
                }))
            }
            Err(Stop::Failed(error)) => self.failed(&session, call, &error),
            // Dropped, the call records itself as the agent's going away.
            Err(Stop::Cancelled) => Sent::StageOver,
        }
    }

    async fn attempts(
        &mut self,
        session: &Session,
        call: &mut OpenCall,
        deadline: Option<Instant>,
    ) -> Result<Reply, SendError> {
        let upstream = &session.config.upstream;
        let mut learned: Vec<Change> = Vec::new();
        loop {
            call.dispatch(&self.prepared.body);
            let sending = upstream.send(
                session.affinity,
                Method::POST,
                Operation::OfApi(self.route.target.upstream_path),
                answer::passed_up(&self.agent_headers),
                self.prepared.body.clone(),
            );
            let response = within(deadline, upstream.endpoint().timeouts.request, sending).await?;
            let status = response.status();
            call.status(status);
            if status.is_success() {
                if !learned.is_empty() {
                    upstream.remember_refusals(&self.prepared.facts.model, &learned);
                }
                return self.success(session, call, response, deadline).await;
            }
            if status.is_redirection() {
                let location = response.headers().get(LOCATION);
                let location = location.map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
                return Err(SendError::Redirect {
                    status,
                    location: location.unwrap_or_default(),
                });
            }
            let head = ReplyHead::of(&response);
            let body =
                upstream.redact(read(session, response, deadline, |bytes| call.received(bytes)).await?);
            if learned.len() < MOST_CHANGED_ATTEMPTS && self.change(call, status, &body, &mut learned) {
                continue;
            }
            return Ok(Reply::Refused { status, head, body });
        }
    }

    /// Changes the request so that the endpoint may take it; false where there is nothing to change.
    fn change(
        &mut self,
        call: &mut OpenCall,
        status: StatusCode,
        body: &[u8],
        learned: &mut Vec<Change>,
    ) -> bool {
        let changes = self
            .route
            .dialect
            .refused(status.as_u16(), body, &self.prepared.facts);
        if changes.is_empty() {
            return false;
        }
        self.rules.changes.extend(changes.iter().cloned());
        learned.extend(changes);
        let Route { dialect, target } = &self.route;
        let Ok(prepared) = dialect.prepare(target, &call.request(), &self.rules) else {
            return false;
        };
        if prepared.body == self.prepared.body {
            return false;
        }
        self.prepared = prepared;
        call.describe(&self.agent_headers, &self.prepared.facts);
        true
    }

    /// A reply with a good status: a stream as soon as it begins, anything else when it is whole.
    async fn success(
        &self,
        session: &Session,
        call: &mut OpenCall,
        response: Response<Incoming>,
        deadline: Option<Instant>,
    ) -> Result<Reply, SendError> {
        let text = |name| {
            response
                .headers()
                .get(name)
                .map(|value| String::from_utf8_lossy(value.as_bytes()))
        };
        if let Some(encoding) =
            text(CONTENT_ENCODING).filter(|encoding| !encoding.eq_ignore_ascii_case("identity"))
        {
            return Err(SendError::Encoding(encoding.into_owned()));
        }
        let found = text(CONTENT_TYPE).unwrap_or_default().to_ascii_lowercase();
        let kind = found.split(';').next().unwrap_or_default().trim();
        let is_json = kind == "application/json" || kind.ends_with("+json");
        match (self.prepared.facts.upstream_streamed, kind) {
            (true, "text/event-stream" | "") => Ok(Reply::Stream(response)),
            // Some servers do not stream although asked to: what they send is replayed as a stream.
            (_, kind) if is_json || kind.is_empty() => {
                let head = ReplyHead::of(&response);
                let body = read(session, response, deadline, |bytes| call.received(bytes)).await?;
                Ok(Reply::Whole { head, body })
            }
            (streamed, _) => Err(SendError::ContentType {
                found: found.clone(),
                wanted: if streamed {
                    "text/event-stream"
                } else {
                    "application/json"
                },
            }),
        }
    }

    fn stream(
        &self,
        session: &Session,
        call: OpenCall,
        response: Response<Incoming>,
        deadline: Option<Instant>,
    ) -> Sent {
        let capture = self
            .route
            .dialect
            .stream(&self.prepared.facts, session.config.limits.event_bytes);
        Sent::Stream(Box::new(LiveStream {
            call,
            head: ReplyHead::of(&response).written_as(self.prepared.facts.form),
            body: response.into_body(),
            capture,
            upstream: Arc::clone(&session.config.upstream),
            deadline,
        }))
    }

    fn whole(&self, upstream: &Upstream, call: OpenCall, head: ReplyHead, body: &Bytes) -> Sent {
        let facts = &self.prepared.facts;
        let (shown, mut captured) = self.route.dialect.whole(body, facts);
        if captured.end != CallEnd::Complete {
            upstream.redact_captured(&mut captured);
        }
        let (head, body, failure) = match shown {
            Shown::Stream(body) => (head.stream(facts.form), body, None),
            Shown::Document(body) if captured.end == CallEnd::Complete => {
                (head, body, captured.error.clone())
            }
            Shown::Document(body) => (head, upstream.redact(body), captured.error.clone()),
            Shown::Nothing => {
                let message = captured
                    .error
                    .clone()
                    .unwrap_or_else(|| "the endpoint's reply cannot be read".into());
                let body = answer::error_body(self.route.dialect, StatusCode::BAD_GATEWAY, &message);
                (ReplyHead::json(StatusCode::BAD_GATEWAY), body, Some(message))
            }
        };
        Sent::Whole(Box::new(Answer {
            call,
            captured,
            head,
            body,
            failure,
        }))
    }

    fn failed(&self, session: &Session, mut call: OpenCall, error: &SendError) -> Sent {
        call.advise(error.hint());
        let message = error.message(&session.config.upstream);
        let end = if error.is_cut() {
            CallEnd::UpstreamCut
        } else {
            CallEnd::UpstreamError
        };
        let body = answer::error_body(self.route.dialect, error.status(), &message);
        let captured = nothing_captured(end, Some(message.clone()));
        Sent::Whole(Box::new(Answer {
            call,
            captured,
            head: ReplyHead::json(error.status()),
            body,
            failure: Some(message),
        }))
    }
}

enum Stop {
    Failed(SendError),
    Cancelled,
}

enum Reply {
    Stream(Response<Incoming>),
    Whole {
        head: ReplyHead,
        body: Bytes,
    },
    Refused {
        status: StatusCode,
        head: ReplyHead,
        body: Bytes,
    },
}

/// Reads a whole body: within the limit, without long silences, before the deadline.
pub(crate) async fn read(
    session: &Session,
    response: Response<Incoming>,
    deadline: Option<Instant>,
    mut received: impl FnMut(usize),
) -> Result<Bytes, SendError> {
    let limit = session.config.limits.reply_bytes;
    let timeouts = session.config.upstream.endpoint().timeouts;
    let mut body = response.into_body();
    let expected = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
    if expected > limit {
        return Err(SendError::TooLarge(limit));
    }
    let reading = async {
        let mut first = Bytes::new();
        let mut rest = BytesMut::new();
        loop {
            let frame = tokio::time::timeout(timeouts.idle, body.frame()).await;
            let frame = frame.map_err(|_| SendError::IdleTimeout(timeouts.idle))?;
            let Some(frame) = frame else { break };
            let Ok(data) = frame.map_err(SendError::Cut)?.into_data() else {
                continue;
            };
            received(data.len());
            if first.len() + rest.len() + data.len() > limit {
                return Err(SendError::TooLarge(limit));
            }
            // Many replies are one part, which is not copied then.
            if first.is_empty() && rest.is_empty() {
                first = data;
                continue;
            }
            if rest.is_empty() {
                rest.reserve(expected.max(first.len() + data.len()));
                rest.extend_from_slice(&std::mem::take(&mut first));
            }
            rest.extend_from_slice(&data);
        }
        Ok(if rest.is_empty() { first } else { rest.freeze() })
    };
    within(deadline, timeouts.request, reading).await
}

async fn within<T>(
    deadline: Option<Instant>,
    time: Option<Duration>,
    work: impl Future<Output = Result<T, SendError>>,
) -> Result<T, SendError> {
    match deadline.zip(time) {
        None => work.await,
        Some((deadline, time)) => tokio::time::timeout_at(deadline, work)
            .await
            .unwrap_or(Err(SendError::RequestTimeout(time))),
    }
}
