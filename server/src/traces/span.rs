use dressage_wire::ids::{CallId, RolloutId};

/// What OTLP calls an id of a trace: that of the rollout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceId(pub [u8; 16]);

/// An id of a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpanId(pub [u8; 8]);

impl From<RolloutId> for TraceId {
    fn from(id: RolloutId) -> Self {
        Self(id.as_uuid().into_bytes())
    }
}

impl From<CallId> for SpanId {
    /// The half of the id that is random; its variant bits keep it from being zero, which OTLP forbids.
    fn from(id: CallId) -> Self {
        Self(id.as_uuid().as_u64_pair().1.to_be_bytes())
    }
}

impl SpanId {
    /// A new one.
    pub fn new() -> Self {
        CallId::new().into()
    }
}

/// `SpanKind` of OTLP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Work of our own.
    Internal,
    /// A request to somebody else.
    Client,
}

impl Kind {
    /// Its number in OTLP.
    pub fn number(self) -> u8 {
        match self {
            Self::Internal => 1,
            Self::Client => 3,
        }
    }
}

/// A value of an attribute.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    Text(String),
    Whole(i64),
    Real(f64),
    Texts(Vec<String>),
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<u64> for Value {
    fn from(number: u64) -> Self {
        Self::Whole(i64::try_from(number).unwrap_or(i64::MAX))
    }
}

impl From<i64> for Value {
    fn from(number: i64) -> Self {
        Self::Whole(number)
    }
}

impl From<f64> for Value {
    fn from(number: f64) -> Self {
        Self::Real(number)
    }
}

impl From<Vec<String>> for Value {
    fn from(texts: Vec<String>) -> Self {
        Self::Texts(texts)
    }
}

/// Attributes, each name once.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Attributes(pub Vec<(&'static str, Value)>);

impl Attributes {
    /// Adds one.
    pub fn set(&mut self, name: &'static str, value: impl Into<Value>) {
        self.0.push((name, value.into()));
    }

    /// Adds one that may be unknown.
    pub fn maybe(&mut self, name: &'static str, value: Option<impl Into<Value>>) {
        if let Some(value) = value {
            self.set(name, value);
        }
    }
}

/// A span that has ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Span {
    pub trace: TraceId,
    pub id: SpanId,
    /// Unset for the root.
    pub parent: Option<SpanId>,
    pub name: String,
    pub kind: Kind,
    /// Milliseconds since the Unix epoch.
    pub start_unix_ms: u64,
    /// Milliseconds since the Unix epoch.
    pub end_unix_ms: u64,
    pub attributes: Attributes,
    /// Whether what it stands for failed; why is in `error.type`.
    pub failed: bool,
}

/// Nanoseconds since the Unix epoch, as OTLP counts.
pub fn nanoseconds(unix_ms: u64) -> u64 {
    unix_ms.saturating_mul(1_000_000)
}

/// `STATUS_CODE_ERROR` of OTLP.
pub const STATUS_ERROR: u8 = 2;

/// The name of the instrumentation scope.
pub const SCOPE: &str = "dressage";
