//! How the agent reaches its model, by mode and placement.

use crate::faults;
use crate::recording::Recording;
use crate::report::{Report, Stop};
use crate::run::Scope;
use crate::stages::plan::Plan;
use dressage_sandbox::Sandbox;
use dressage_tap::{Budgets, Session, SessionConfig};
use dressage_wire::event::Stage;
use dressage_wire::task::Mode;
use secrecy::SecretString;
use std::sync::Arc;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// The way to the model, open for the agent stage only.
pub(super) struct Access {
    base_url: String,
    api_key: SecretString,
    /// `None` where the agent talks to the endpoint itself.
    tapped: Option<Tapped>,
}

struct Tapped {
    session: Arc<Session>,
    stop: CancellationToken,
    /// Ends with a message where the relay was lost.
    serving: JoinHandle<Option<String>>,
}

impl Access {
    pub(super) async fn open(
        scope: &Scope,
        plan: &Plan,
        sandbox: &dyn Sandbox,
        recording: &Recording,
    ) -> Result<Self, Stop> {
        match scope.request.mode {
            Mode::BlackBox => Ok(Self::black_box(scope)),
            Mode::TransparentProxy => Self::relay(scope, plan, sandbox, recording).await,
        }
    }

    /// The endpoint's own URL and key, which are then in the sandbox.
    fn black_box(scope: &Scope) -> Self {
        let upstream = &scope.request.upstream;
        Self {
            base_url: upstream.base_url().to_owned(),
            // Agents want a key even where the endpoint wants none.
            api_key: upstream
                .endpoint()
                .api_key
                .clone()
                .unwrap_or_else(|| "none".into()),
            tapped: None,
        }
    }

    async fn relay(
        scope: &Scope,
        plan: &Plan,
        sandbox: &dyn Sandbox,
        recording: &Recording,
    ) -> Result<Self, Stop> {
        let session = session(scope, plan, recording)?;
        let lost = |error| Stop::sandbox(Stage::Agent, faults::SANDBOX_OPERATION_FAILED, &error);
        let channel = sandbox.open_relay().await.map_err(lost)?;
        let address = sandbox.relay_address().ok_or_else(|| {
            faults::SANDBOX_OPERATION_FAILED.fault(Some(Stage::Agent), "the sandbox has no relay")
        })?;
        let stop = CancellationToken::new();
        session.open();
        let serving = tokio::spawn({
            let (session, stop) = (session.clone(), stop.clone());
            async move {
                let end = session.serve_channel(channel, stop.clone()).await;
                (!stop.is_cancelled()).then(|| end.to_string())
            }
        });
        Ok(Self {
            base_url: format!("http://{address}/v1"),
            api_key: session.token(),
            tapped: Some(Tapped {
                session,
                stop,
                serving,
            }),
        })
    }

    pub(super) fn base_url(&self) -> &str {
        &self.base_url
    }

    pub(super) fn api_key(&self) -> &SecretString {
        &self.api_key
    }

    pub(super) fn is_budget_spent(&self) -> bool {
        self.tapped
            .as_ref()
            .is_some_and(|tapped| tapped.session.budget_spent().borrow().is_some())
    }

    /// Waits until a budget has answered the agent; for ever where there is none.
    pub(super) async fn budget_spent(&self) {
        if let Some(tapped) = &self.tapped {
            let mut spent = tapped.session.budget_spent();
            if spent.wait_for(Option::is_some).await.is_ok() {
                return;
            }
        }
        std::future::pending().await
    }

    /// Shuts the way. When this returns, every call has been handed over.
    pub(super) async fn close(self, report: &mut Report) {
        let Some(Tapped {
            session,
            stop,
            serving,
        }) = self.tapped
        else {
            return;
        };
        session.close().await;
        stop.cancel();
        if let Ok(Some(end)) = serving.await {
            report.warn(format!("the relay was lost while the agent worked: {end}"));
        }
    }
}

fn session(scope: &Scope, plan: &Plan, recording: &Recording) -> Result<Arc<Session>, Stop> {
    let request = &scope.request;
    let limits = &request.task.limits;
    let mut config = SessionConfig::new(request.id, request.upstream.clone());
    config.sampling = request.task.sampling.clone();
    config.top_logprobs = request.top_logprobs;
    config.max_tokens_cap = limits.max_tokens_cap.filter(|&cap| cap > 0);
    config.disable_thinking = request.disable_thinking.unwrap_or(config.disable_thinking);
    config.capture = request.capture;
    config.budgets = Budgets {
        calls: limits.max_calls,
        prompt_tokens: limits.max_prompt_tokens,
        completion_tokens: limits.max_completion_tokens,
    };
    config.signs = plan.agent.signs();
    if !plan.agent.bears_comments() {
        config.keep_alive = None;
    }
    Session::new(config, recording.sink())
        .map_err(|error| faults::INTERNAL.from_error(Some(Stage::Agent), &error).into())
}
