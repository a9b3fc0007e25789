#[cfg(feature = "shared")]
use crate::control::Pass;
use crate::session::{Room, Session};
use bytes::Bytes;
use dressage_wire::call::{Call, CallEnd, CallMeta, CaptureLevel, Flag, Purpose};
use dressage_wire::capture::{Captured, RequestFacts, classify};
use dressage_wire::dialect::Dialect;
use dressage_wire::ids::CallId;
use dressage_wire::sampling::Sampling;
use dressage_wire::trajectory::ContentHash;
use http::HeaderMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio_util::task::task_tracker::TaskTrackerToken;

/// A call that is not over. Whatever becomes of it, the sink gets it exactly once: dropped, it ends as the agent's going
/// away.
pub(crate) struct OpenCall {
    open: Option<Box<Open>>,
}

struct Open {
    session: Arc<Session>,
    /// What `Session::close` waits for; dropped after the sink has the call.
    _token: TaskTrackerToken,
    started: Instant,
    request: Bytes,
    _room: Room,
    /// While the endpoint works on it.
    #[cfg(feature = "shared")]
    pass: Option<Pass>,
    meta: CallMeta,
    dispatched: bool,
}

impl OpenCall {
    /// Starts a call with a request that has arrived whole.
    pub(crate) fn start(
        session: &Arc<Session>,
        dialect: &'static dyn Dialect,
        arrived: Instant,
        request: Bytes,
        room: Room,
    ) -> Self {
        let id = CallId::new();
        session.sink.started(id);
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let meta = CallMeta {
            id,
            index: session.next_index(),
            dialect: dialect.name(),
            streamed: false,
            started_unix_ms: milliseconds(since_epoch.saturating_sub(arrived.elapsed())),
            first_token_ms: None,
            duration_ms: 0,
            end: CallEnd::DownstreamGone,
            status: None,
            error: None,
            hint: None,
            purpose: Purpose::Foreign,
            session: None,
            parent_session: None,
            retry_count: None,
            retry_key: String::new(),
            model: None,
            sampling: Sampling::default(),
            usage: None,
            level: CaptureLevel::Text,
            flags: Vec::new(),
            changes: Vec::new(),
            untranslated: Vec::new(),
            policy_version_at_dispatch: None,
            policy_version_at_completion: None,
            request_bytes: request.len() as u64,
            upstream_bytes: 0,
        };
        let open = Open {
            session: Arc::clone(session),
            _token: session.call_token(),
            started: arrived,
            request,
            _room: room,
            #[cfg(feature = "shared")]
            pass: None,
            meta,
            dispatched: false,
        };
        Self {
            open: Some(Box::new(open)),
        }
    }

    pub(crate) fn request(&self) -> Bytes {
        self.open
            .as_ref()
            .map(|open| open.request.clone())
            .unwrap_or_default()
    }

    /// What the headers tell.
    pub(crate) fn identify(&mut self, headers: &HeaderMap) {
        let Some(open) = &mut self.open else { return };
        let signs = &open.session.config.signs;
        let (own, parent) = signs.conversation(|name| text(headers, name));
        open.meta.session = own.map(str::to_owned);
        open.meta.parent_session = parent.map(str::to_owned);
        open.meta.retry_count = text(headers, "x-stainless-retry-count").and_then(|count| count.parse().ok());
    }

    /// What the body tells. Said again after each change to the request.
    pub(crate) fn describe(&mut self, headers: &HeaderMap, facts: &RequestFacts) {
        let Some(open) = &mut self.open else { return };
        let meta = &mut open.meta;
        meta.streamed = facts.streamed;
        meta.purpose = classify(facts, &open.session.config.signs, |name| text(headers, name));
        meta.sampling.clone_from(&facts.sampling);
        meta.changes.clone_from(&facts.changes);
        meta.untranslated.clone_from(&facts.untranslated);
        let session = meta.session.as_deref().unwrap_or_default();
        meta.retry_key =
            ContentHash::of(format!("{session}\n{}", facts.retry_body_sha256).as_bytes()).to_string();
    }

    /// The endpoint has a place for it, until it is over.
    #[cfg(feature = "shared")]
    pub(crate) fn hold(&mut self, pass: Pass) {
        if let Some(open) = &mut self.open {
            open.pass = Some(pass);
        }
    }

    /// So many tokens of it have come, the last of them `new`.
    #[cfg(feature = "shared")]
    pub(crate) fn sampled(&self, tokens: usize, new: &[String]) {
        if let Some(open) = &self.open {
            open.session.sink.sampled(open.meta.id, tokens, new);
        }
    }

    /// It goes to the endpoint now.
    pub(crate) fn dispatch(&mut self, body: &Bytes) {
        let Some(open) = &mut self.open else { return };
        open.dispatched = true;
        open.meta.policy_version_at_dispatch = open.session.config.upstream.control().policy_version();
        open.session.sink.dispatched(open.meta.id, body);
    }

    pub(crate) fn status(&mut self, status: http::StatusCode) {
        if let Some(open) = &mut self.open {
            open.meta.status = Some(status.as_u16());
        }
    }

    /// What may help against the failure that it ends by.
    pub(crate) fn advise(&mut self, hint: Option<&'static str>) {
        if let Some(open) = &mut self.open {
            open.meta.hint = hint.map(str::to_owned);
        }
    }

    pub(crate) fn received(&mut self, bytes: usize) {
        if let Some(open) = &mut self.open {
            open.meta.upstream_bytes += bytes as u64;
        }
    }

    /// The agent gets its first content now.
    pub(crate) fn first_content(&mut self) {
        if let Some(open) = &mut self.open
            && open.meta.first_token_ms.is_none()
        {
            open.meta.first_token_ms = Some(milliseconds(open.started.elapsed()));
        }
    }

    /// It is over: hands it to the sink.
    pub(crate) fn finish(mut self, captured: Captured) {
        if let Some(open) = self.open.take() {
            open.finish(captured);
        }
    }
}

impl Drop for OpenCall {
    fn drop(&mut self) {
        if let Some(open) = self.open.take() {
            open.finish(nothing_captured(CallEnd::DownstreamGone, None));
        }
    }
}

impl Open {
    fn finish(mut self, captured: Captured) {
        let meta = &mut self.meta;
        meta.end = captured.end;
        meta.error = captured.error;
        meta.model = captured.model;
        meta.usage = captured.usage;
        meta.level = captured.level;
        meta.flags = captured.flags;
        if self.dispatched {
            meta.policy_version_at_completion = self.session.config.upstream.control().policy_version();
            if self.session.sampling_defaulted {
                meta.flags.push(Flag::SamplingDefaulted);
            }
            // Where nothing is done to the model's distribution, raw and processed are the same.
            if self.session.logprobs_raw && !meta.sampling.is_plain() && meta.level != CaptureLevel::Text {
                meta.flags.push(Flag::LogprobsRaw);
            }
            if !meta.changes.is_empty() {
                meta.flags.push(Flag::RequestChanged);
            }
        }
        meta.flags.sort_unstable();
        meta.flags.dedup();
        meta.duration_ms = milliseconds(self.started.elapsed());
        if !captured.entries.is_empty() {
            self.session.sink.entries(self.meta.id, captured.entries);
        }
        let call = Call {
            meta: self.meta,
            request: self.request,
            response: captured.response,
            prompt_token_ids: captured.prompt_token_ids,
            completions: captured.completions,
        };
        self.session.finished(call);
    }
}

/// A capture of nothing: of a call that got no reply.
pub(crate) fn nothing_captured(end: CallEnd, error: Option<String>) -> Captured {
    Captured {
        end,
        error,
        prompt_token_ids: None,
        completions: Vec::new(),
        entries: Bytes::new(),
        usage: None,
        model: None,
        response: Bytes::new(),
        flags: Vec::new(),
        level: CaptureLevel::Text,
    }
}

fn text<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    headers.get(name)?.to_str().ok()
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
