//! How the agent reaches its model, by mode and placement.

use super::proxy::Proxy;
use crate::faults;
use crate::recording::Recording;
use crate::report::{Report, Stop};
use crate::run::Scope;
use crate::stages::plan::Plan;
use dressage_sandbox::Sandbox;
use dressage_tap::{AllowedHosts, Budgets, Gateway, Health, Session, SessionConfig};
use dressage_wire::event::Stage;
use dressage_wire::task::{CaptureMode, Mode, Placement};
use secrecy::SecretString;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Between the loss of a relay's channel and the next.
const REDIAL_PAUSE: Duration = Duration::from_millis(50);

/// The same, where channels do not last.
const LONGEST_REDIAL_PAUSE: Duration = Duration::from_secs(5);

/// The way to the model, open for the agent stage only.
pub(super) struct Access {
    base_url: String,
    api_key: SecretString,
    way: Way,
}

enum Way {
    /// Through the tap on the host.
    Tapped(Tapped),
    /// Through a proxy beside the agent.
    InSandbox(Box<Proxy>),
    /// Nothing in between.
    Untapped,
}

struct Tapped {
    session: Arc<Session>,
    stop: CancellationToken,
    /// Ends with a message where the way was lost.
    serving: JoinHandle<Option<String>>,
}

impl Access {
    pub(super) async fn open(
        scope: &Scope,
        plan: &Plan,
        sandbox: &dyn Sandbox,
        recording: &Recording,
    ) -> Result<Self, Stop> {
        match (scope.request.mode, scope.request.placement) {
            (Mode::BlackBox, _) => Ok(Self::black_box(scope)),
            (Mode::TransparentProxy, Placement::Relay) => Self::relay(scope, plan, sandbox, recording).await,
            (Mode::TransparentProxy, Placement::Direct) => Self::direct(scope, plan, recording).await,
            (Mode::TransparentProxy, Placement::InSandbox) => Self::in_sandbox(scope, sandbox).await,
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
            way: Way::Untapped,
        }
    }

    async fn relay(
        scope: &Scope,
        plan: &Plan,
        sandbox: &dyn Sandbox,
        recording: &Recording,
    ) -> Result<Self, Stop> {
        let session = session(scope, plan, recording).await?;
        let lost = |error| Stop::sandbox(Stage::Agent, faults::SANDBOX_OPERATION_FAILED, &error);
        let mut channel = sandbox.open_relay().await.map_err(lost)?;
        let address = sandbox.relay_address().ok_or_else(|| {
            faults::SANDBOX_OPERATION_FAILED.fault(Some(Stage::Agent), "the sandbox has no relay")
        })?;
        let stop = CancellationToken::new();
        let serving = tokio::spawn({
            let (session, stop) = (session.clone(), stop.clone());
            let (sandbox, rollout) = (scope.agents_sandbox(), scope.request.id);
            async move {
                let mut pause = REDIAL_PAUSE;
                loop {
                    let begun = Instant::now();
                    let end = session.clone().serve_channel(channel, stop.clone()).await;
                    if stop.is_cancelled() {
                        return None;
                    }
                    // Where the host dials the relay it can do so again; agents repeat the calls that were lost.
                    // One that is lost at once, again and again, is dialled less and less often.
                    pause = if begun.elapsed() > LONGEST_REDIAL_PAUSE {
                        REDIAL_PAUSE
                    } else {
                        LONGEST_REDIAL_PAUSE.min(pause * 2)
                    };
                    let again = async {
                        tokio::time::sleep(pause).await;
                        match &sandbox {
                            Some(sandbox) => sandbox.open_relay().await.ok(),
                            None => None,
                        }
                    };
                    channel = tokio::select! {
                        biased;
                        () = stop.cancelled() => return Some(end.to_string()),
                        again = again => match again {
                            Some(again) => again,
                            None => return Some(end.to_string()),
                        }
                    };
                    tracing::warn!(rollout.id = %rollout, "the relay's channel was lost, and is there again");
                }
            }
        });
        Ok(Self::tapped(
            format!("http://{address}/v1"),
            Tapped {
                session,
                stop,
                serving,
            },
        ))
    }

    async fn direct(scope: &Scope, plan: &Plan, recording: &Recording) -> Result<Self, Stop> {
        let session = session(scope, plan, recording).await?;
        let host = scope.request.backend.host_address().ok_or_else(|| {
            faults::UNSUPPORTED.fault(Some(Stage::Agent), "the sandbox cannot route to this host")
        })?;
        let hosts = AllowedHosts::Named(vec![host.to_string()]);
        let gateway = Gateway::bind(SocketAddr::new(host, 0), hosts, || Health::Ok)
            .await
            .map_err(|error| {
                let message = format!("no port of {host} could be listened on for the agent's calls");
                faults::INTERNAL.caused(Some(Stage::Agent), message, &error)
            })?;
        gateway.admit(&session);
        let base_url = format!("http://{}/v1", gateway.address());
        let stop = CancellationToken::new();
        let serving = tokio::spawn({
            let stop = stop.clone();
            async move {
                gateway.serve(stop).await;
                None
            }
        });
        Ok(Self::tapped(
            base_url,
            Tapped {
                session,
                stop,
                serving,
            },
        ))
    }

    async fn in_sandbox(scope: &Scope, sandbox: &dyn Sandbox) -> Result<Self, Stop> {
        let proxy = Proxy::start(scope, sandbox).await?;
        Ok(Self {
            base_url: proxy.base_url().to_owned(),
            // The proxy asks for none: whoever is in the sandbox can reach it.
            api_key: "none".into(),
            way: Way::InSandbox(Box::new(proxy)),
        })
    }

    /// Opens the session: its token is worth something from now on.
    fn tapped(base_url: String, tapped: Tapped) -> Self {
        tapped.session.open();
        Self {
            base_url,
            api_key: tapped.session.token(),
            way: Way::Tapped(tapped),
        }
    }

    pub(super) fn base_url(&self) -> &str {
        &self.base_url
    }

    pub(super) fn api_key(&self) -> &SecretString {
        &self.api_key
    }

    pub(super) fn is_budget_spent(&self) -> bool {
        match &self.way {
            Way::Tapped(tapped) => tapped.session.budget_spent().borrow().is_some(),
            Way::InSandbox(_) | Way::Untapped => false,
        }
    }

    /// Waits until a budget has answered the agent; for ever where there is none.
    pub(super) async fn budget_spent(&self) {
        if let Way::Tapped(tapped) = &self.way {
            let mut spent = tapped.session.budget_spent();
            if spent.wait_for(Option::is_some).await.is_ok() {
                return;
            }
        }
        std::future::pending().await
    }

    /// Shuts the way. When this returns, every call has been handed over.
    pub(super) async fn close(self, sandbox: &dyn Sandbox, recording: &Recording, report: &mut Report) {
        match self.way {
            Way::Untapped => {}
            Way::InSandbox(proxy) => proxy.finish(sandbox, recording, report).await,
            Way::Tapped(Tapped {
                session,
                stop,
                serving,
            }) => {
                session.close().await;
                stop.cancel();
                if let Ok(Some(end)) = serving.await {
                    report.warn(format!("the relay was lost while the agent worked: {end}"));
                }
            }
        }
    }
}

async fn session(scope: &Scope, plan: &Plan, recording: &Recording) -> Result<Arc<Session>, Stop> {
    let request = &scope.request;
    let limits = &request.task.limits;
    let mut config = SessionConfig::new(request.id, request.upstream.clone());
    config.sampling = request.task.sampling.clone();
    config.top_logprobs = request.top_logprobs;
    config.max_tokens_cap = limits.max_tokens_cap.filter(|&cap| cap > 0);
    config.disable_thinking = request.disable_thinking.unwrap_or(config.disable_thinking);
    config.capture = request.capture;
    if request.capture == CaptureMode::Auto {
        request.upstream.probed().await;
    }
    config.budgets = Budgets {
        calls: limits.max_calls,
        prompt_tokens: limits.max_prompt_tokens,
        completion_tokens: limits.max_completion_tokens,
        // Beyond what a Duration holds is no limit.
        wall: limits
            .max_wall_s
            .and_then(|wall| Duration::try_from_secs_f64(wall).ok()),
        cost: limits.max_cost,
    };
    config.signs = plan.agent.signs();
    if !plan.agent.bears_comments() {
        config.keep_alive = None;
    }
    Session::new(config, recording.sink())
        .map_err(|error| faults::INTERNAL.from_error(Some(Stage::Agent), &error).into())
}
