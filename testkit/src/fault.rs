//! Faults of a model endpoint, injected by call.
//!
//! ```
//! use dressage_testkit::fault::{Cut, Fault, FaultPlan};
//!
//! let plan = FaultPlan::default()
//!     .on(0, Fault::status(429).with_header("retry-after", "1"))
//!     .on(1, Fault::Cut { after_events: 5, how: Cut::Reset })
//!     .always(Fault::Crlf);
//! assert_eq!(plan.of_call(1).count(), 2);
//! ```

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Something that goes wrong with a call. Events are counted from 0, the one with the role first; a reply that is not
/// streamed counts as one event.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "fault", rename_all = "snake_case", deny_unknown_fields)]
pub enum Fault {
    /// This is answered instead.
    Answer {
        /// HTTP status.
        status: u16,
        /// Value of `content-type`.
        content_type: String,
        /// The body.
        body: String,
        /// More headers: name and value.
        #[serde(default)]
        headers: Vec<(String, String)>,
    },
    /// A request that has this member is refused with 400, and the error names it.
    Refuse {
        /// The member of the request body.
        field: String,
    },
    /// Silence before the reply's headers.
    StallBeforeHeaders {
        /// How long.
        ms: u64,
    },
    /// Silence in the middle of the body.
    Stall {
        /// Events sent before.
        after_events: usize,
        /// How long.
        ms: u64,
    },
    /// The reply breaks off.
    Cut {
        /// Events sent before.
        after_events: usize,
        /// How it looks to the client.
        how: Cut,
    },
    /// An event's JSON breaks off in the middle.
    Malformed {
        /// Which event.
        at_event: usize,
    },
    /// An error event comes instead of this one and what follows; the stream then ends.
    ErrorEvent {
        /// Which event.
        at_event: usize,
        /// The error's message.
        message: String,
    },
    /// An event of this size more comes before this one: a chunk with a long piece of content.
    HugeEvent {
        /// Which event.
        at_event: usize,
        /// Bytes of content.
        bytes: usize,
    },
    /// Tokens of a tool call that give the agent nothing by themselves are left out: ids and log-probabilities both, in
    /// streams alone (vLLM#27482). Usage still counts them.
    LoseToolTokens,
    /// A log-probability that is none.
    BadLogprob {
        /// Position of the token.
        position: usize,
        /// What stands there.
        value: BadLogprob,
    },
    /// The last token has no entry among the log-probabilities, or two.
    LogprobCount {
        /// Which.
        count: LogprobCount,
    },
    /// Ids are not given though they were asked for.
    NoTokenIds,
    /// No usage is given though it was asked for.
    NoUsage,
    /// Lines of a stream end with CR LF, and comments stand between events.
    Crlf,
    /// The body comes in pieces of this many bytes, so that characters are split.
    Split {
        /// Bytes a piece.
        bytes: usize,
    },
}

/// How a reply that breaks off looks to its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cut {
    /// The body ends as if it were whole.
    CleanEnd,
    /// The connection is closed inside the body.
    Close,
    /// The connection is reset.
    Reset,
}

/// What stands in place of a log-probability.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BadLogprob {
    /// `null`.
    Null,
    /// `NaN`, which is no JSON.
    Nan,
    /// `-Infinity`, which is no JSON.
    NegativeInfinity,
    /// `-9999.0`.
    Filler,
}

impl BadLogprob {
    /// The text that stands in the reply.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Nan => "NaN",
            Self::NegativeInfinity => "-Infinity",
            Self::Filler => "-9999.0",
        }
    }
}

/// How many log-probabilities there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogprobCount {
    /// One fewer than ids.
    OneFewer,
    /// One more than ids.
    OneMore,
}

impl Fault {
    /// An error status with an error body as model servers write it.
    #[must_use]
    pub fn status(status: u16) -> Self {
        let error = serde_json::json!({
            "message": format!("injected {status}"), "type": "InjectedError", "param": null, "code": status,
        });
        Self::answer(
            status,
            "application/json",
            serde_json::json!({ "error": error }).to_string(),
        )
    }

    /// A page of HTML with status 200, as captive portals and misconfigured proxies send.
    #[must_use]
    pub fn html() -> Self {
        Self::answer(
            200,
            "text/html; charset=utf-8",
            "<!DOCTYPE html><html><body>Welcome</body></html>".into(),
        )
    }

    /// A redirect.
    #[must_use]
    pub fn redirect(location: &str) -> Self {
        Self::answer(307, "text/plain", String::new()).with_header("location", location)
    }

    /// Any answer.
    #[must_use]
    pub fn answer(status: u16, content_type: &str, body: String) -> Self {
        Self::Answer {
            status,
            content_type: content_type.into(),
            body,
            headers: Vec::new(),
        }
    }

    /// The same answer with another header; other faults have none and stay as they are.
    #[must_use]
    pub fn with_header(mut self, name: &str, value: &str) -> Self {
        if let Self::Answer { headers, .. } = &mut self {
            headers.push((name.into(), value.into()));
        }
        self
    }
}

/// Which calls have which faults. Calls are counted from 0 in order of arrival.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FaultPlan {
    /// Faults by call.
    pub calls: BTreeMap<u64, Vec<Fault>>,
    /// Faults of every call.
    pub always: Vec<Fault>,
}

impl FaultPlan {
    /// The same plan with another fault of one call.
    #[must_use]
    pub fn on(mut self, call: u64, fault: Fault) -> Self {
        self.calls.entry(call).or_default().push(fault);
        self
    }

    /// The same plan with another fault of every call.
    #[must_use]
    pub fn always(mut self, fault: Fault) -> Self {
        self.always.push(fault);
        self
    }

    /// The faults of a call.
    pub fn of_call(&self, call: u64) -> impl Iterator<Item = &Fault> {
        self.calls.get(&call).into_iter().flatten().chain(&self.always)
    }
}
