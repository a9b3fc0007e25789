//! What a server counts, for Prometheus. docs/metrics.md is made from the table of names.
//!
//! Counters follow the events and records of rollouts as they happen; gauges are read when somebody asks. The database is
//! not asked for any of it.

/// The names.
mod table;

pub use table::ALL;

use async_trait::async_trait;
use dressage_rollout::{LiveRollout, LiveState, Observer};
use dressage_sandbox::PoolCounts;
use dressage_wire::event::{Event, RolloutEvent, Stage};
use dressage_wire::fault::Ended;
use dressage_wire::ids::RolloutId;
use dressage_wire::rollout::{Recorder, RecorderError, RolloutOutcome, RolloutStart};
use dressage_wire::trajectory::Recorded;
use prometheus_client::encoding::prometheus_text;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::{Family, MetricConstructor};
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use serde::Serialize;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use table::Metric;

/// Names and values of labels.
type Labels = Vec<(&'static str, String)>;
type Counters = Family<Labels, Counter>;
type Gauges = Family<Labels, Gauge>;
type Histograms = Family<Labels, Histogram, Bounds>;

/// Media type of the text.
pub use prometheus_text::CONTENT_TYPE;

/// Bounds of rollouts, stages and calls, in seconds.
const LONG_S: &[f64] = &[
    0.01, 0.05, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0,
];

/// Bounds of requests, in seconds.
const SHORT_S: &[f64] = &[0.001, 0.005, 0.01, 0.025, 0.1, 0.5, 1.0, 5.0, 30.0, 300.0];

/// Makes histograms of given bounds.
#[derive(Clone, Copy, Debug)]
struct Bounds(&'static [f64]);

impl MetricConstructor<Histogram> for Bounds {
    fn new_metric(&self) -> Histogram {
        Histogram::new(self.0.iter().copied())
    }
}

/// What is counted.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    rollouts: Gauges,
    in_stage: Gauges,
    queued: Gauges,
    queue_limit: Gauges,
    sandboxes: Gauges,
    warm: Gauges,
    warm_hits: Counters,
    warm_misses: Counters,
    warm_failures: Counters,
    submitted: Counters,
    ended: Counters,
    faults: Counters,
    rollout_seconds: Histograms,
    stage_seconds: Histograms,
    calls: Counters,
    call_seconds: Histograms,
    call_request_bytes: Counters,
    call_upstream_bytes: Counters,
    tokens: Counters,
    flags: Counters,
    prefix_breaks: Counters,
    sessions: Gauges,
    sessions_limit: Gauges,
    requests: Counters,
    request_seconds: Histograms,
}

/// What gauges show.
#[derive(Clone, Copy, Debug)]
pub struct Now<'a> {
    /// Rollouts that are not over.
    pub live: &'a [Arc<LiveRollout>],
    /// Rollouts that may wait.
    pub queue_limit: usize,
    /// What pools of sandboxes did.
    pub pools: &'a [PoolCounts],
    /// OpenEnv sessions there are, and there can be.
    pub sessions: (usize, usize),
}

impl Metrics {
    /// Nothing is counted yet. What has few forms is there from the start, so that rates can be taken of it.
    #[must_use]
    pub fn new() -> Arc<Self> {
        let mut registry = Registry::default();
        let build = gauge(&mut registry, table::BUILD);
        set(&build, &[("version", env!("CARGO_PKG_VERSION"))], 1);
        let metrics = Self {
            rollouts: gauge(&mut registry, table::ROLLOUTS),
            in_stage: gauge(&mut registry, table::IN_STAGE),
            queued: gauge(&mut registry, table::QUEUED),
            queue_limit: gauge(&mut registry, table::QUEUE_LIMIT),
            sandboxes: gauge(&mut registry, table::SANDBOXES),
            warm: gauge(&mut registry, table::WARM),
            warm_hits: counter(&mut registry, table::WARM_HITS),
            warm_misses: counter(&mut registry, table::WARM_MISSES),
            warm_failures: counter(&mut registry, table::WARM_FAILURES),
            submitted: counter(&mut registry, table::SUBMITTED),
            ended: counter(&mut registry, table::ENDED),
            faults: counter(&mut registry, table::FAULTS),
            rollout_seconds: histogram(&mut registry, table::ROLLOUT_SECONDS, LONG_S),
            stage_seconds: histogram(&mut registry, table::STAGE_SECONDS, LONG_S),
            calls: counter(&mut registry, table::CALLS),
            call_seconds: histogram(&mut registry, table::CALL_SECONDS, LONG_S),
            call_request_bytes: counter(&mut registry, table::CALL_REQUEST_BYTES),
            call_upstream_bytes: counter(&mut registry, table::CALL_UPSTREAM_BYTES),
            tokens: counter(&mut registry, table::TOKENS),
            flags: counter(&mut registry, table::FLAGS),
            prefix_breaks: counter(&mut registry, table::PREFIX_BREAKS),
            sessions: gauge(&mut registry, table::SESSIONS),
            sessions_limit: gauge(&mut registry, table::SESSIONS_LIMIT),
            requests: counter(&mut registry, table::REQUESTS),
            request_seconds: histogram(&mut registry, table::REQUEST_SECONDS, SHORT_S),
            registry,
        };
        for ended in [
            Ended::Completed,
            Ended::Budget,
            Ended::Timeout,
            Ended::AgentError,
            Ended::SetupError,
            Ended::Cancelled,
        ] {
            count(&metrics.ended, &[("ended", &word(&ended))], 0);
        }
        for kind in ["prompt", "completion", "trainable"] {
            count(&metrics.tokens, &[("kind", kind)], 0);
        }
        for stage in Stage::ALL {
            _ = metrics
                .stage_seconds
                .get_or_create(&labels(&[("stage", stage.name())]));
        }
        for single in [
            &metrics.submitted,
            &metrics.prefix_breaks,
            &metrics.call_request_bytes,
            &metrics.call_upstream_bytes,
        ] {
            count(single, &[], 0);
        }
        _ = metrics.call_seconds.get_or_create(&Labels::new());
        Arc::new(metrics)
    }

    /// A request was answered.
    pub fn answered(&self, method: &'static str, route: &str, status: u16, took: Duration) {
        let status = status.to_string();
        count(
            &self.requests,
            &[("method", method), ("route", route), ("status", &status)],
            1,
        );
        observe(&self.request_seconds, &[("route", route)], took.as_secs_f64());
    }

    /// Everything, in the text format of Prometheus.
    ///
    /// # Errors
    /// Never, in a string.
    pub fn text(&self, now: &Now<'_>) -> Result<String, fmt::Error> {
        self.look(now);
        let mut text = String::new();
        prometheus_text::encode(&mut text, &self.registry)?;
        Ok(text)
    }

    fn look(&self, now: &Now<'_>) {
        let of = |wanted: &dyn Fn(&LiveRollout) -> bool| now.live.iter().filter(|live| wanted(live)).count();
        for state in ["queued", "running", "held", "cancelling"] {
            set(
                &self.rollouts,
                &[("state", state)],
                of(&|live| state_word(live.state) == state),
            );
        }
        for stage in Stage::ALL {
            let there = of(&|live| live.state == LiveState::In(stage));
            set(&self.in_stage, &[("stage", stage.name())], there);
        }
        for backend in dressage_sandbox::registry() {
            let there = of(&|live| live.backend == backend.name && live.state != LiveState::Queued);
            set(&self.sandboxes, &[("backend", backend.name)], there);
        }
        for pool in now.pools {
            let labels = [("backend", pool.backend)];
            set(&self.warm, &labels, pool.ready);
            reach(&self.warm_hits, &labels, pool.hits);
            reach(&self.warm_misses, &labels, pool.misses);
            reach(&self.warm_failures, &labels, pool.failures);
        }
        set(&self.queued, &[], of(&|live| live.state == LiveState::Queued));
        set(&self.queue_limit, &[], now.queue_limit);
        set(&self.sessions, &[], now.sessions.0);
        set(&self.sessions_limit, &[], now.sessions.1);
    }
}

impl Observer for Metrics {
    fn event(&self, event: &Arc<RolloutEvent>) {
        match &event.event {
            Event::Queued { .. } => count(&self.submitted, &[], 1),
            Event::StageEnded { stage, duration_ms } => {
                observe(
                    &self.stage_seconds,
                    &[("stage", stage.name())],
                    seconds(*duration_ms),
                );
            }
            Event::CallEnded { call } => {
                let (end, purpose) = (word(&call.end), word(&call.purpose));
                count(&self.calls, &[("end", &end), ("purpose", &purpose)], 1);
                observe(&self.call_seconds, &[], seconds(call.duration_ms));
                count(&self.tokens, &[("kind", "prompt")], call.prompt_tokens);
                count(&self.tokens, &[("kind", "completion")], call.completion_tokens);
                for flag in &call.flags {
                    count(&self.flags, &[("flag", &word(flag))], 1);
                }
                count(&self.prefix_breaks, &[], call.prefix_break.into());
            }
            Event::Finished { ended, fault } => {
                count(&self.ended, &[("ended", &word(ended))], 1);
                if let Some(fault) = fault {
                    let owner = word(&fault.owner);
                    count(&self.faults, &[("owner", &owner), ("code", &fault.code)], 1);
                }
            }
            _ => {}
        }
    }
}

/// Counts what is recorded on its way to where it is kept.
pub struct Counting {
    /// Where it is kept.
    pub kept: Arc<dyn Recorder>,
    /// Where it is counted.
    pub metrics: Arc<Metrics>,
}

#[async_trait]
impl Recorder for Counting {
    async fn started(&self, start: &RolloutStart) -> Result<(), RecorderError> {
        self.kept.started(start).await
    }

    async fn call(&self, rollout: RolloutId, recorded: &Recorded) -> Result<(), RecorderError> {
        let (metrics, meta) = (&self.metrics, &recorded.record.meta);
        count(&metrics.call_request_bytes, &[], meta.request_bytes);
        count(&metrics.call_upstream_bytes, &[], meta.upstream_bytes);
        self.kept.call(rollout, recorded).await
    }

    async fn finished(&self, outcome: &RolloutOutcome) -> Result<(), RecorderError> {
        let metrics = &self.metrics;
        let ended = word(&outcome.ended);
        observe(
            &metrics.rollout_seconds,
            &[("ended", &ended)],
            seconds(outcome.wall_ms),
        );
        let trainable = outcome.totals.trainable_tokens;
        count(&metrics.tokens, &[("kind", "trainable")], trainable);
        for flag in outcome.late_flags.iter().flat_map(|(_, flags)| flags) {
            count(&metrics.flags, &[("flag", &word(flag))], 1);
        }
        self.kept.finished(outcome).await
    }
}

/// Tells several observers, in order.
pub struct Both(pub Arc<dyn Observer>, pub Arc<dyn Observer>);

impl Observer for Both {
    fn event(&self, event: &Arc<RolloutEvent>) {
        self.0.event(event);
        self.1.event(event);
    }
}

fn state_word(state: LiveState) -> &'static str {
    match state {
        LiveState::Queued => "queued",
        LiveState::Running | LiveState::In(_) => "running",
        LiveState::Held => "held",
        LiveState::Cancelling => "cancelling",
    }
}

/// The word that a plain enum has everywhere.
pub fn word(value: &impl Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(word)) => word,
        _ => "other".to_owned(),
    }
}

fn seconds(milliseconds: u64) -> f64 {
    Duration::from_millis(milliseconds).as_secs_f64()
}

fn labels(pairs: &[(&'static str, &str)]) -> Labels {
    pairs
        .iter()
        .map(|(name, value)| (*name, (*value).to_owned()))
        .collect()
}

fn count(counters: &Counters, pairs: &[(&'static str, &str)], by: u64) {
    counters.get_or_create(&labels(pairs)).inc_by(by);
}

/// Has a counter show what is counted elsewhere.
fn reach(counters: &Counters, pairs: &[(&'static str, &str)], total: u64) {
    let counter = counters.get_or_create(&labels(pairs));
    counter.inc_by(total.saturating_sub(counter.get()));
}

fn observe(histograms: &Histograms, pairs: &[(&'static str, &str)], value: f64) {
    histograms.get_or_create(&labels(pairs)).observe(value);
}

fn set(gauges: &Gauges, pairs: &[(&'static str, &str)], value: usize) {
    let value = i64::try_from(value).unwrap_or(i64::MAX);
    gauges.get_or_create(&labels(pairs)).set(value);
}

fn counter(registry: &mut Registry, metric: Metric) -> Counters {
    let family = Counters::default();
    // The format puts the suffix there by itself.
    let name = metric.name.strip_suffix("_total").unwrap_or(metric.name);
    registry.register(name, metric.meaning, family.clone());
    family
}

fn gauge(registry: &mut Registry, metric: Metric) -> Gauges {
    let family = Gauges::default();
    registry.register(metric.name, metric.meaning, family.clone());
    family
}

fn histogram(registry: &mut Registry, metric: Metric, bounds: &'static [f64]) -> Histograms {
    let family = Family::new_with_constructor(Bounds(bounds));
    registry.register(metric.name, metric.meaning, family.clone());
    family
}

#[cfg(test)]
mod tests;
