use crate::call::{CaptureLevel, Change, Flag};
use crate::task::CaptureMode;
use serde::{Deserialize, Serialize};

/// The version of what a report holds; one of another version is not read.
pub const PROBE_VERSION: u32 = 1;

/// What an endpoint returns for a model, found out by asking it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProbeReport {
    /// [`PROBE_VERSION`].
    pub version: u32,
    /// The endpoint's URL.
    pub base_url: String,
    /// The model asked for.
    pub model: String,
    /// The model that answered, as the endpoint names it.
    pub answered_as: Option<String>,
    /// Milliseconds since the Unix epoch.
    pub probed_unix_ms: u64,
    /// A whole reply.
    pub whole: ProbedReply,
    /// A streamed reply.
    pub stream: ProbedReply,
    /// A whole reply to a request with tools.
    pub whole_with_tools: ProbedReply,
    /// A streamed reply to a request with tools.
    pub stream_with_tools: ProbedReply,
    /// Whether both replies to requests with tools called the tool; else nothing is known of the tokens of such calls.
    pub tool_called: bool,
    /// Which distribution log-probabilities are of.
    pub logprobs: LogprobsKind,
    /// What is changed in requests because the endpoint refuses it.
    pub changes: Vec<Change>,
    /// Tokens of prompt and completion that the model takes together, where the endpoint says so.
    pub context_length: Option<u64>,
    /// The member that reasoning comes in, where some came.
    pub reasoning_member: Option<String>,
    /// How to ask it: `stream` or `buffer`.
    pub capture: CaptureMode,
    /// What is amiss, for people to read.
    pub notes: Vec<String>,
}

/// What was captured of a reply.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProbedReply {
    /// What the capture is worth; `text` where there was no reply.
    pub level: CaptureLevel,
    /// What makes it less than a clean turn.
    pub flags: Vec<Flag>,
    /// Why there was no reply, where there was none.
    pub error: Option<String>,
}

impl ProbedReply {
    /// What orders replies by how much can be done with them.
    fn worth(&self) -> (bool, CaptureLevel, bool) {
        let clean = !self.flags.iter().any(|flag| flag.blocks_training());
        (self.error.is_none(), self.level, clean)
    }
}

/// Which distribution log-probabilities are of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogprobsKind {
    /// There are none.
    None,
    /// That of the model, before temperature.
    Raw,
    /// That which is sampled from.
    Processed,
    /// It could not be told.
    Unknown,
}

/// A token at a position, with its log-probability.
pub type Alternative = (String, f64);

impl LogprobsKind {
    /// Tells raw from processed: by the alternatives for the same position, once at temperature 1 and once at
    /// `temperature`. Processed, the distance between two tokens is divided by the temperature; raw, it stays.
    #[must_use]
    pub fn tell(at_one: &[Alternative], at_temperature: &[Alternative], temperature: f64) -> Self {
        let distance = |all: &[Alternative], a: &str, b: &str| {
            let of = |name: &str| {
                all.iter()
                    .find(|(token, _)| token == name)
                    .map(|(_, value)| *value)
            };
            Some(of(a)? - of(b)?)
        };
        if at_one.is_empty() || at_temperature.is_empty() {
            return Self::None;
        }
        // The two that are furthest apart and in both lists say most.
        let shared: Vec<&Alternative> = at_one
            .iter()
            .filter(|(token, value)| {
                value.is_finite()
                    && at_temperature
                        .iter()
                        .any(|(other, value)| other == token && value.is_finite())
            })
            .collect();
        let by_value = |a: &&&Alternative, b: &&&Alternative| a.1.total_cmp(&b.1);
        let (Some((best, _)), Some((worst, _))) =
            (shared.iter().max_by(by_value), shared.iter().min_by(by_value))
        else {
            return Self::Unknown;
        };
        match (
            distance(at_one, best, worst),
            distance(at_temperature, best, worst),
        ) {
            (Some(one), Some(other)) if one > 0.05 => {
                let ratio = one / other;
                let near = |wanted: f64| (ratio / wanted - 1.0).abs() < 0.1;
                match (near(1.0), near(temperature)) {
                    (true, false) => Self::Raw,
                    (false, true) => Self::Processed,
                    _ => Self::Unknown,
                }
            }
            _ => Self::Unknown,
        }
    }
}

impl ProbeReport {
    /// How to ask: whole replies where streams lack something that these have.
    #[must_use]
    pub fn advise(&self) -> CaptureMode {
        if self.stream.worth() < self.whole.worth()
            || self.stream_with_tools.worth() < self.whole_with_tools.worth()
        {
            CaptureMode::Buffer
        } else {
            CaptureMode::Stream
        }
    }
}

#[cfg(test)]
mod tests;
