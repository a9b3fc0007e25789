use super::error::{Code, ServiceError};
use super::spec::{HOLD_TIMEOUT_S, OnInterrupt, RolloutSpec, SUBMISSION_MAX};
use super::views::{Submitted, unix_ms};
use super::{Inner, Service};
use crate::commands::run::check_agent;
use crate::endpoints::probes::Probes;
use crate::error::Failure;
use crate::workspace::store_failure;
use dressage_rollout::{RolloutHandle, RolloutRequest};
use dressage_sandbox::lease::is_alive;
use dressage_store::{Adopted, Enqueued, Idempotency, QueuedRollout, RolloutState};
use dressage_tap::Upstream;
use dressage_wire::ids::{GroupId, RolloutId};
use dressage_wire::task::CaptureMode;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::sync::watch;

/// What came of a request for rollouts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Submission {
    /// The rollouts, in the order of the specs and samples.
    pub rollouts: Vec<Submitted>,
    /// The request had been made before; nothing was started by it now.
    pub repeated: bool,
}

/// How often a rollout is run again after servers died over it: one that brings servers down must come to an end.
const RERUNS_MAX: u32 = 3;

/// A rollout that is ready to go.
struct Prepared {
    request: RolloutRequest,
    queued: QueuedRollout,
}

impl Service {
    /// Takes rollouts; they run when there is a place for them. All of them are taken, or none.
    ///
    /// # Errors
    /// A spec that is wrong, an endpoint, backend or agent that cannot be used, a full queue, a server that stops.
    pub async fn submit(
        &self,
        specs: &[RolloutSpec],
        idempotency: Option<Idempotency>,
    ) -> Result<Submission, ServiceError> {
        let count: usize = specs.iter().map(|spec| spec.samples() as usize).sum();
        if count > SUBMISSION_MAX {
            return Err(ServiceError::invalid(
                "rollouts",
                format!("asks for {count} rollouts, over {SUBMISSION_MAX}"),
            ));
        }
        let mut prepared = Vec::with_capacity(count);
        for (index, spec) in specs.iter().enumerate() {
            let group = self.0.prepare(spec).await.map_err(|error| match specs.len() {
                1 => error,
                _ => error.under(&format!("rollouts[{index}]")),
            })?;
            prepared.extend(group);
        }
        let queued: Vec<_> = prepared.iter().map(|rollout| rollout.queued.clone()).collect();
        match self.store().enqueue(&queued, idempotency.clone()).await? {
            Enqueued::New => {}
            Enqueued::Repeated(ids) => return self.repeated(ids).await,
            Enqueued::Conflict => {
                return Err(ServiceError::new(
                    Code::IdempotencyConflict,
                    "the idempotency key was used with another body",
                )
                .hint(Some("use a new key for a new request".into())));
            }
        }
        let requests = prepared.into_iter().map(|rollout| rollout.request).collect();
        match self.0.supervisor.submit_all(requests).await {
            Ok(handles) => handles.into_iter().for_each(|handle| self.keep(handle)),
            Err(error) => {
                let ids: Vec<_> = queued.iter().map(|rollout| rollout.id).collect();
                self.store()
                    .withdraw(
                        &ids,
                        idempotency.as_ref().map(|idempotency| idempotency.key.as_str()),
                    )
                    .await?;
                return Err(error.into());
            }
        }
        Ok(Submission {
            rollouts: queued.iter().map(submitted).collect(),
            repeated: false,
        })
    }

    /// What was answered to the same request before.
    async fn repeated(&self, ids: Vec<RolloutId>) -> Result<Submission, ServiceError> {
        let mut rollouts = Vec::with_capacity(ids.len());
        for id in ids {
            let row = self.store().row(id).await?;
            rollouts.push(Submitted {
                id,
                group: row.group,
                sample: row.sample,
                task_id: row.task_id,
                state: row.state,
            });
        }
        Ok(Submission {
            rollouts,
            repeated: true,
        })
    }

    /// Waits for a rollout's end, tells whoever waits for it, and stores its log.
    fn keep(&self, handle: RolloutHandle) {
        let id = handle.id;
        let (told, ending) = watch::channel(None);
        self.0.endings().insert(id, ending);
        let inner = self.0.clone();
        self.0.keepers.spawn(async move {
            let outcome = handle.outcome().await;
            if let Some(log) = inner.board.log(id) {
                let lines = log.to_lines();
                if let Err(error) = inner.workspace.store.save_events(id, lines.into()).await {
                    tracing::warn!(rollout.id = %id, error = %crate::workspace::chain(&error), "events not stored");
                }
            }
            inner.board.close(id);
            inner.endings().remove(&id);
            told.send_replace(outcome.map(Arc::new));
        });
    }

    /// Goes on with rollouts of servers that are dead: those that waited, and those that are to be run again.
    pub(super) async fn adopt(&self) -> Result<(), Failure> {
        let store = self.store();
        let failed = |error| store_failure(&error);
        let owners = store.queue_owners().await.map_err(failed)?;
        let data = self.0.workspace.backends.owner.data_dir().to_owned();
        let dead: Vec<_> = owners
            .into_iter()
            .filter(|owner| !is_alive(&data, *owner))
            .collect();
        let owner = self.0.workspace.backends.owner.id();
        let adopted = store.adopt(owner, &dead).await.map_err(failed)?;
        let count = adopted.len();
        for adopted in adopted {
            let id = adopted.queued.id;
            if let Err(error) = self.go_on(adopted).await {
                tracing::error!(rollout.id = %id, error = %error.message, "a rollout of the queue could not go on");
            }
        }
        if count > 0 {
            tracing::info!(queue.rollouts = count, "took over the queue of a dead server");
        }
        Ok(())
    }

    async fn go_on(&self, adopted: Adopted) -> Result<(), ServiceError> {
        let Adopted {
            queued,
            interrupted,
            interruptions,
        } = adopted;
        let unreadable = |error: serde_json::Error| ServiceError::from_error(Code::StoreFailed, &error);
        let spec: RolloutSpec = serde_json::from_slice(&queued.spec).map_err(unreadable)?;
        let is_rerun = spec.on_interrupt.unwrap_or_default() == OnInterrupt::Rerun;
        if interrupted && !(is_rerun && interruptions <= RERUNS_MAX) {
            self.store().dequeue(queued.id).await?;
            return Ok(());
        }
        let mut prepared = match self.0.prepare(&RolloutSpec { n: None, ..spec }).await {
            Ok(prepared) => prepared,
            Err(error) => {
                // What could be asked for before the restart can no longer be done here.
                self.store().dequeue(queued.id).await?;
                return Err(error);
            }
        };
        let Some(mut rollout) = prepared.pop() else {
            return Ok(());
        };
        if interrupted {
            // Whoever looks is not to take it for over.
            self.store().wait_again(queued.id).await?;
        }
        rollout.request.id = queued.id;
        rollout.request.group = queued.group;
        rollout.request.sample = queued.sample;
        let handle = self.0.supervisor.submit(rollout.request).await?;
        self.keep(handle);
        Ok(())
    }
}

impl Inner {
    /// Has an endpoint asked what it returns, beside what else is done. Rollouts that need to know wait for it; where it
    /// answers nothing, they find out for themselves.
    fn probe(&self, upstream: &Arc<Upstream>) {
        let Some(probing) = upstream.begin_probing() else {
            return;
        };
        let probes = Probes::of(&self.context.paths.cache);
        self.keepers.spawn(async move {
            let endpoint = probing.upstream().endpoint().name.clone();
            if let Err(failure) = probes.run(probing).await {
                tracing::warn!(endpoint.name = endpoint, error = %failure.what, "an endpoint was not probed");
            }
        });
    }

    /// Resolves what a spec names, and makes the rollouts of its group.
    async fn prepare(&self, spec: &RolloutSpec) -> Result<Vec<Prepared>, ServiceError> {
        let mut task = spec.task()?;
        task.verify_in = task.verify_in.or(self.config.verify_in);
        task.snapshot = task.snapshot.or(self.config.snapshot);
        self.config.addresses.check(&task.network)?;
        let task = Arc::new(task);
        check_agent(&self.context, &task)
            .map_err(|failure| ServiceError::from_failure(Code::AgentUnusable, &failure))?;
        let backend = self.backend(spec.backend.as_deref().unwrap_or(&self.config.backend))?;
        let upstream = self.endpoints.get(spec, &self.context).await?;
        let capture = spec.capture.unwrap_or(upstream.endpoint().capture);
        if capture == CaptureMode::Auto && upstream.learned().is_none() {
            self.probe(&upstream);
        }
        let agent = &task.agent;
        let model = upstream.endpoint().model.clone().unwrap_or_default();
        let kept = RolloutSpec {
            n: None,
            ..spec.clone()
        };
        // Plain data: it has a JSON form, and the caller's key is not in it.
        let kept = serde_json::to_vec(&kept)
            .map_err(|error| ServiceError::from_error(Code::InvalidRequest, &error))?;
        let hold = Duration::from_secs_f64(spec.hold_timeout_s.unwrap_or(HOLD_TIMEOUT_S));
        let group = GroupId::new();
        let one = |sample| {
            let id = RolloutId::new();
            let request = RolloutRequest {
                id,
                task: task.clone(),
                sample,
                group: Some(group),
                priority: spec.priority.unwrap_or_default(),
                hold: spec.hold.then_some(hold),
                upstream: upstream.clone(),
                backend: backend.clone(),
                image: spec.image.clone(),
                mode: spec.mode.unwrap_or_default(),
                placement: spec.placement.unwrap_or_default(),
                capture,
                top_logprobs: spec.top_logprobs.unwrap_or_default(),
                disable_thinking: spec.disable_thinking,
            };
            let queued = QueuedRollout {
                id,
                owner: self.workspace.backends.owner.id(),
                group: Some(group),
                sample,
                task_id: task.id.clone(),
                title: dressage_store::title(&task.instruction),
                agent: agent.name.clone(),
                backend: backend.name().to_owned(),
                endpoint: upstream.endpoint().name.clone(),
                model: model.clone(),
                priority: spec.priority.unwrap_or_default(),
                created_unix_ms: unix_ms(SystemTime::now()),
                spec: kept.clone().into(),
            };
            Prepared { request, queued }
        };
        Ok((0..spec.samples()).map(one).collect())
    }
}

fn submitted(queued: &QueuedRollout) -> Submitted {
    Submitted {
        id: queued.id,
        group: queued.group,
        sample: queued.sample,
        task_id: queued.task_id.clone(),
        state: RolloutState::Queued,
    }
}
