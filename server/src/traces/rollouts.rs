use super::calls::{self, Target};
use super::export::Exporter;
use super::names;
use super::span::{Attributes, Kind, Span, SpanId};
use crate::metrics::word;
use async_trait::async_trait;
use dressage_rollout::Observer;
use dressage_wire::event::{Event, ReleasedBy, RolloutEvent, Stage};
use dressage_wire::fault::{Ended, Fault};
use dressage_wire::ids::RolloutId;
use dressage_wire::rollout::{Recorder, RecorderError, RolloutOutcome, RolloutStart};
use dressage_wire::trajectory::Recorded;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Makes spans of what happens in rollouts. The span of a call is sent when the call is recorded, the others when the
/// rollout is over: only then is it known which of them failed.
pub struct Traces {
    live: Mutex<HashMap<RolloutId, Live>>,
    exporter: Arc<Exporter>,
}

/// What is known of a rollout that is not over.
struct Live {
    root: SpanId,
    agent: SpanId,
    queued_unix_ms: u64,
    started_unix_ms: Option<u64>,
    facts: Attributes,
    agent_facts: Attributes,
    agent_name: String,
    target: Target,
    provider: Option<&'static str>,
    stages: Vec<Period<Stage>>,
    hold: Option<Period<Option<ReleasedBy>>>,
    outcome: Attributes,
    agent_outcome: Attributes,
}

/// Something that lasts.
struct Period<T> {
    what: T,
    start_unix_ms: u64,
    end_unix_ms: Option<u64>,
}

impl<T> Period<T> {
    fn new(what: T, start_unix_ms: u64) -> Self {
        Self {
            what,
            start_unix_ms,
            end_unix_ms: None,
        }
    }
}

impl Live {
    fn queued(unix_ms: u64) -> Self {
        Self {
            root: SpanId::new(),
            agent: SpanId::new(),
            queued_unix_ms: unix_ms,
            started_unix_ms: None,
            facts: Attributes::default(),
            agent_facts: Attributes::default(),
            agent_name: String::new(),
            target: Target::default(),
            provider: None,
            stages: Vec::new(),
            hold: None,
            outcome: Attributes::default(),
            agent_outcome: Attributes::default(),
        }
    }

    fn start(&mut self, start: &RolloutStart) {
        self.started_unix_ms = Some(start.started_unix_ms);
        self.target = Target::of(&start.base_url, &start.model);
        self.agent_name.clone_from(&start.task.agent.name);
        let facts = &mut self.facts;
        facts.maybe(names::GROUP, start.group.map(|group| group.to_string()));
        facts.set(names::SAMPLE, u64::from(start.sample));
        facts.maybe(names::TASK, start.task.id.clone());
        facts.set(names::BACKEND, start.backend.as_str());
        facts.set(names::ENDPOINT, start.endpoint.as_str());
        facts.set(names::MODE, word(&start.mode));
        facts.set(
            names::QUEUE_WAIT,
            start.started_unix_ms.saturating_sub(self.queued_unix_ms),
        );
        for facts in [facts, &mut self.agent_facts] {
            facts.set(names::AGENT_NAME, start.task.agent.name.as_str());
            facts.set(names::AGENT_VERSION, start.agent_version.as_str());
            self.target.put_model(facts);
        }
    }

    fn end(&mut self, outcome: &RolloutOutcome) {
        let (root, totals) = (&mut self.outcome, &outcome.totals);
        root.maybe(
            names::REWARD,
            outcome.reward.as_ref().and_then(|reward| reward.value),
        );
        // Not as usage of a model: what adds that up over the spans of a trace would count each token twice.
        root.set(names::CALLS, totals.calls);
        root.set(names::TRAINABLE_CALLS, totals.trainable_calls);
        root.set(names::PROMPT_TOKENS, totals.prompt_tokens);
        root.set(names::COMPLETION_TOKENS, totals.completion_tokens);
        root.set(names::TRAINABLE_TOKENS, totals.trainable_tokens);
        if let Some(agent) = &outcome.agent {
            self.agent_outcome
                .maybe(names::CONVERSATION, agent.session.clone());
            self.agent_outcome
                .set(names::EXIT_CODE, i64::from(agent.exit_code));
        }
    }

    /// Every span but those of calls; the root last, as it ends last.
    fn spans(self, rollout: RolloutId, ended: Ended, fault: Option<&Fault>, unix_ms: u64) -> Vec<Span> {
        let trace = rollout.into();
        let span = |id, parent, name: &str, period: (u64, Option<u64>), attributes| Span {
            trace,
            id,
            parent,
            name: name.to_owned(),
            kind: Kind::Internal,
            start_unix_ms: period.0,
            end_unix_ms: period.1.unwrap_or(unix_ms),
            attributes,
            failed: false,
        };
        let mut spans = Vec::new();
        for stage in &self.stages {
            let fault = fault.filter(|fault| fault.stage == Some(stage.what));
            let failed = |mut span: Span| {
                span.failed = fault.is_some();
                span.attributes
                    .maybe(names::ERROR_TYPE, fault.map(|fault| fault.code.clone()));
                span
            };
            let (id, period) = (SpanId::new(), (stage.start_unix_ms, stage.end_unix_ms));
            let name = stage.what.name();
            spans.push(failed(span(
                id,
                Some(self.root),
                name,
                period,
                Attributes::default(),
            )));
            if stage.what == Stage::Agent {
                let mut attributes = Attributes::default();
                attributes.set(names::OPERATION, "invoke_agent");
                attributes.maybe(names::PROVIDER, self.provider);
                attributes.0.extend(self.agent_facts.0.iter().cloned());
                attributes.0.extend(self.agent_outcome.0.iter().cloned());
                let name = format!("invoke_agent {}", self.agent_name);
                spans.push(failed(span(self.agent, Some(id), &name, period, attributes)));
            }
        }
        if let Some(hold) = &self.hold {
            let mut attributes = Attributes::default();
            attributes.maybe(names::RELEASED_BY, hold.what.map(ReleasedBy::name));
            let period = (hold.start_unix_ms, hold.end_unix_ms);
            spans.push(span(SpanId::new(), Some(self.root), "hold", period, attributes));
        }
        let mut attributes = Attributes::default();
        attributes.set(names::ROLLOUT, rollout.to_string());
        attributes.0.extend(self.facts.0);
        attributes.set(names::ENDED, word(&ended));
        attributes.0.extend(self.outcome.0);
        attributes.maybe(names::ERROR_TYPE, fault.map(|fault| fault.code.clone()));
        attributes.maybe(names::FAULT_OWNER, fault.map(|fault| word(&fault.owner)));
        let start = self.started_unix_ms.unwrap_or(self.queued_unix_ms);
        let mut root = span(self.root, None, "rollout", (start, None), attributes);
        root.failed = fault.is_some();
        spans.push(root);
        spans
    }
}

impl Traces {
    /// Spans go to `exporter`.
    #[must_use]
    pub fn new(exporter: Arc<Exporter>) -> Arc<Self> {
        Arc::new(Self {
            live: Mutex::default(),
            exporter,
        })
    }

    /// Where they go.
    #[must_use]
    pub fn exporter(&self) -> &Exporter {
        &self.exporter
    }

    fn live(&self) -> MutexGuard<'_, HashMap<RolloutId, Live>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Observer for Traces {
    fn event(&self, event: &Arc<RolloutEvent>) {
        let (rollout, unix_ms) = (event.rollout, event.unix_ms);
        let mut all = self.live();
        if let Event::Finished { ended, fault } = &event.event {
            let Some(live) = all.remove(&rollout) else { return };
            drop(all);
            for span in live.spans(rollout, *ended, fault.as_ref(), unix_ms) {
                self.exporter.take(span);
            }
            return;
        }
        let live = all.entry(rollout).or_insert_with(|| Live::queued(unix_ms));
        match &event.event {
            Event::StageStarted { stage } => live.stages.push(Period::new(*stage, unix_ms)),
            Event::StageEnded { stage, .. } => {
                if let Some(period) = live.stages.iter_mut().rfind(|period| period.what == *stage) {
                    period.end_unix_ms = Some(unix_ms);
                }
            }
            Event::Held { .. } if live.hold.is_none() => live.hold = Some(Period::new(None, unix_ms)),
            Event::Released { by } => {
                if let Some(hold) = &mut live.hold {
                    (hold.what, hold.end_unix_ms) = (Some(*by), Some(unix_ms));
                }
            }
            _ => {}
        }
    }
}

/// Traces what is recorded on its way to where it is kept.
pub struct Traced {
    /// Where it is kept.
    pub kept: Arc<dyn Recorder>,
    /// Where it is traced.
    pub traces: Arc<Traces>,
}

#[async_trait]
impl Recorder for Traced {
    async fn started(&self, start: &RolloutStart) -> Result<(), RecorderError> {
        if let Some(live) = self.traces.live().get_mut(&start.id) {
            live.start(start);
        }
        self.kept.started(start).await
    }

    async fn call(&self, rollout: RolloutId, recorded: &Recorded) -> Result<(), RecorderError> {
        let span = self.traces.live().get_mut(&rollout).map(|live| {
            live.provider
                .get_or_insert(calls::provider(recorded.record.meta.dialect));
            calls::span(rollout.into(), live.agent, &live.target, &recorded.record)
        });
        if let Some(span) = span {
            self.traces.exporter.take(span);
        }
        self.kept.call(rollout, recorded).await
    }

    async fn finished(&self, outcome: &RolloutOutcome) -> Result<(), RecorderError> {
        if let Some(live) = self.traces.live().get_mut(&outcome.id) {
            live.end(outcome);
        }
        self.kept.finished(outcome).await
    }
}
