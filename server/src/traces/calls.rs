use super::names;
use super::span::{Attributes, Kind, Span, SpanId, TraceId};
use crate::metrics::word;
use dressage_wire::call::{CallEnd, CallMeta, DialectName};
use dressage_wire::trajectory::CallRecord;

/// What a call is sent to, known when its rollout starts.
#[derive(Clone, Debug, Default)]
pub struct Target {
    /// The model asked for; empty where the endpoint names none.
    pub model: String,
    /// The host of the endpoint.
    pub address: Option<String>,
    /// Its port, where the URL names one.
    pub port: Option<u16>,
}

impl Target {
    /// The server behind a URL that holds no credentials.
    pub fn of(base_url: &str, model: &str) -> Self {
        let url: Option<http::Uri> = base_url.parse().ok();
        Self {
            model: model.to_owned(),
            address: url.as_ref().and_then(http::Uri::host).map(str::to_owned),
            port: url.as_ref().and_then(http::Uri::port_u16),
        }
    }

    /// Adds the server.
    fn put(&self, attributes: &mut Attributes) {
        attributes.maybe(names::SERVER_ADDRESS, self.address.clone());
        attributes.maybe(names::SERVER_PORT, self.port.map(u64::from));
    }

    /// Adds the model asked for.
    pub fn put_model(&self, attributes: &mut Attributes) {
        if !self.model.is_empty() {
            attributes.set(names::REQUEST_MODEL, self.model.as_str());
        }
    }
}

/// The provider whose form the calls have: the conventions want the flavour of the telemetry here, and whose server it
/// is stands in `server.address`.
pub fn provider(dialect: DialectName) -> &'static str {
    match dialect {
        DialectName::ChatCompletions | DialectName::Responses => "openai",
        DialectName::Messages => "anthropic",
        DialectName::GenerateContent => "gcp.gemini",
    }
}

fn operation(dialect: DialectName) -> &'static str {
    match dialect {
        DialectName::ChatCompletions | DialectName::Responses | DialectName::Messages => "chat",
        DialectName::GenerateContent => "generate_content",
    }
}

/// A call as a span.
pub fn span(trace: TraceId, parent: SpanId, target: &Target, record: &CallRecord) -> Span {
    let meta = &record.meta;
    let operation = operation(meta.dialect);
    let error = error_type(meta);
    let mut attributes = Attributes::default();
    attributes.set(names::OPERATION, operation);
    attributes.set(names::PROVIDER, provider(meta.dialect));
    target.put_model(&mut attributes);
    let sampling = &meta.sampling;
    attributes.maybe(names::TEMPERATURE, sampling.temperature);
    attributes.maybe(names::TOP_P, sampling.top_p);
    attributes.maybe(names::TOP_K, sampling.top_k);
    attributes.maybe(names::PRESENCE_PENALTY, sampling.presence_penalty);
    attributes.maybe(names::FREQUENCY_PENALTY, sampling.frequency_penalty);
    attributes.maybe(names::SEED, sampling.seed);
    attributes.maybe(names::RESPONSE_MODEL, meta.model.clone());
    let reasons = record
        .completions
        .iter()
        .map(|choice| choice.finish_reason.clone());
    let reasons: Vec<String> = reasons.flatten().collect();
    if !reasons.is_empty() {
        attributes.set(names::FINISH_REASONS, reasons);
    }
    attributes.maybe(names::INPUT_TOKENS, meta.usage.map(|usage| usage.prompt_tokens));
    attributes.maybe(
        names::OUTPUT_TOKENS,
        meta.usage.map(|usage| usage.completion_tokens),
    );
    attributes.maybe(names::CONVERSATION, meta.session.clone());
    target.put(&mut attributes);
    attributes.maybe(names::STATUS_CODE, meta.status.map(u64::from));
    attributes.maybe(names::ERROR_TYPE, error.clone());
    attributes.set(names::CALL, meta.id.to_string());
    attributes.set(names::CALL_INDEX, u64::from(meta.index));
    attributes.set(names::CALL_PURPOSE, word(&meta.purpose));
    attributes.set(names::CALL_END, word(&meta.end));
    attributes.set(names::CALL_LEVEL, word(&meta.level));
    if !meta.flags.is_empty() {
        attributes.set(names::CALL_FLAGS, meta.flags.iter().map(word).collect::<Vec<_>>());
    }
    attributes.maybe(names::FIRST_TOKEN, meta.first_token_ms);
    Span {
        trace,
        id: meta.id.into(),
        parent: Some(parent),
        name: match target.model.as_str() {
            "" => operation.to_owned(),
            model => format!("{operation} {model}"),
        },
        kind: Kind::Client,
        start_unix_ms: meta.started_unix_ms,
        end_unix_ms: meta.started_unix_ms.saturating_add(meta.duration_ms),
        attributes,
        failed: error.is_some(),
    }
}

/// The status of an endpoint that refused, else our word for how it ended; unset where nothing went wrong.
fn error_type(meta: &CallMeta) -> Option<String> {
    match (meta.end, meta.status) {
        (CallEnd::Complete | CallEnd::Budget, _) => None,
        (CallEnd::UpstreamError, Some(status)) if status >= 400 => Some(status.to_string()),
        _ => Some(word(&meta.end)),
    }
}
