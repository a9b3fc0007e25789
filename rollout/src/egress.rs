use dressage_sandbox::Sandbox;
use dressage_tap::egress::Egress;
use dressage_wire::ids::RolloutId;
use dressage_wire::task::NetworkPolicy;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Refused hosts that a warning names.
const NAMED: usize = 8;

/// The way of a rollout's sandboxes to the hosts that its task allows, if it allows some. It ends when this is dropped.
pub(crate) struct WayOut {
    egress: Option<Arc<Egress>>,
    /// One for each sandbox that there was. Each holds its sandbox, but no longer than this is there.
    serving: Mutex<JoinSet<()>>,
}

impl WayOut {
    pub(crate) fn new(rollout: RolloutId, network: &NetworkPolicy) -> Self {
        let egress = match network {
            NetworkPolicy::Allow(allowed) => Some(Arc::new(Egress::new(rollout, allowed.clone()))),
            NetworkPolicy::None | NetworkPolicy::Open => None,
        };
        Self {
            egress,
            serving: Mutex::default(),
        }
    }

    /// Serves a sandbox until it is gone.
    pub(crate) fn serve(&self, sandbox: Arc<dyn Sandbox>) {
        let Some(egress) = self.egress.clone() else {
            return;
        };
        let mut serving = self.serving.lock().unwrap_or_else(PoisonError::into_inner);
        serving.spawn(async move {
            while let Ok(channel) = sandbox.open_egress().await {
                let end = Arc::clone(&egress)
                    .serve_channel(channel, CancellationToken::new())
                    .await;
                tracing::debug!(sandbox.id = %sandbox.id(), egress.end = %end, "a way out of a sandbox ended");
            }
        });
    }

    /// Says what was refused, if anything was.
    pub(crate) fn warning(&self) -> Option<String> {
        let refusals = self.egress.as_ref()?.refusals();
        let connections = match refusals.count {
            0 => return None,
            1 => "1 connection out of the sandbox was refused, which the task does not allow".to_owned(),
            more => {
                format!("{more} connections out of the sandbox were refused, which the task does not allow")
            }
        };
        let named: Vec<String> = refusals
            .hosts
            .iter()
            .take(NAMED)
            .map(|(host, count)| match count {
                1 => host.clone(),
                count => format!("{host} ({count} times)"),
            })
            .collect();
        let more = if refusals.hosts.len() > NAMED {
            ", and others"
        } else {
            ""
        };
        Some(format!("{connections}: {}{more}", named.join(", ")))
    }
}
