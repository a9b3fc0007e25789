use std::fmt;

/// What kind of number a metric is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It only grows, from 0 at each start.
    Counter,
    /// It goes up and down.
    Gauge,
    /// How many observations were up to each of some bounds.
    Histogram,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        })
    }
}

/// A metric. Values of its labels are words of small closed sets, never ids.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// Its name, with the unit.
    pub name: &'static str,
    /// What kind of number it is.
    pub kind: Kind,
    /// Its labels.
    pub labels: &'static [&'static str],
    /// What it counts or measures.
    pub meaning: &'static str,
}

macro_rules! metrics {
    ($($constant:ident $kind:ident $name:literal $labels:expr, $meaning:literal;)+) => {
        $(
            #[doc = $meaning]
            pub const $constant: Metric = Metric {
                name: $name,
                kind: Kind::$kind,
                labels: &$labels,
                meaning: $meaning,
            };
        )+

        /// Every metric, in the order in which docs/metrics.md shows them.
        pub const ALL: &[Metric] = &[$($constant,)+];
    };
}

metrics! {
    BUILD Gauge "dressage_build_info" ["version"],
        "Always 1, with the version of the program";
    ROLLOUTS Gauge "dressage_rollouts" ["state"],
        "Rollouts of this server that are not over: queued, running, held, cancelling";
    IN_STAGE Gauge "dressage_rollouts_in_stage" ["stage"],
        "Rollouts in each stage";
    QUEUED Gauge "dressage_queue_rollouts" [],
        "Rollouts that wait for a place";
    QUEUE_LIMIT Gauge "dressage_queue_limit_rollouts" [],
        "Rollouts that may wait before requests are refused";
    SANDBOXES Gauge "dressage_sandboxes" ["backend"],
        "Rollouts that have a sandbox or are getting one, by backend";
    WARM Gauge "dressage_warm_sandboxes" ["backend"],
        "Sandboxes that are ready and not used yet, by backend";
    WARM_HITS Counter "dressage_warm_hits_total" ["backend"],
        "Sandboxes that were ready when a rollout asked, by backends that keep some ready";
    WARM_MISSES Counter "dressage_warm_misses_total" ["backend"],
        "Sandboxes that had to be made when a rollout asked, by backends that keep some ready";
    WARM_FAILURES Counter "dressage_warm_failures_total" ["backend"],
        "Sandboxes that could not be made ready, by backend";
    SUBMITTED Counter "dressage_rollouts_submitted_total" [],
        "Rollouts that were taken, those taken over from a dead server among them";
    ENDED Counter "dressage_rollouts_ended_total" ["ended"],
        "Rollouts that are over, by how they ended";
    FAULTS Counter "dressage_rollout_faults_total" ["owner", "code"],
        "Faults of rollouts, by whose failure it was and by code";
    ROLLOUT_SECONDS Histogram "dressage_rollout_duration_seconds" ["ended"],
        "Wall time of rollouts, by how they ended";
    STAGE_SECONDS Histogram "dressage_stage_duration_seconds" ["stage"],
        "Wall time of stages";
    CALLS Counter "dressage_calls_total" ["end", "purpose"],
        "Calls of agents to their models, by how they ended and what for they were made";
    CALL_SECONDS Histogram "dressage_call_duration_seconds" [],
        "Wall time of calls, from the request of the agent to the end";
    CALL_REQUEST_BYTES Counter "dressage_call_request_bytes_total" [],
        "Bytes of the requests that agents sent (downstream)";
    CALL_UPSTREAM_BYTES Counter "dressage_call_upstream_bytes_total" [],
        "Bytes of the replies that endpoints sent (upstream)";
    TOKENS Counter "dressage_tokens_total" ["kind"],
        "Tokens: of prompts and completions with each call, those that can be trained on when the rollout is over";
    FLAGS Counter "dressage_call_flags_total" ["flag"],
        "Flags of calls: what makes them less than a clean turn";
    PREFIX_BREAKS Counter "dressage_prefix_breaks_total" [],
        "Calls whose prompt broke with the call that they go on from";
    SESSIONS Gauge "dressage_openenv_sessions" [],
        "OpenEnv sessions there are";
    SESSIONS_LIMIT Gauge "dressage_openenv_sessions_limit" [],
        "OpenEnv sessions there can be";
    REQUESTS Counter "dressage_http_requests_total" ["method", "route", "status"],
        "HTTP requests that were answered, by the pattern of their route";
    REQUEST_SECONDS Histogram "dressage_http_request_duration_seconds" ["route"],
        "Time from the head of a request to the head of its reply; streams and sockets go on after it";
}
