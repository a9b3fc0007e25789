use super::Service;
use dressage_wire::ids::RolloutId;

/// Cancels a rollout when it is dropped: whoever waited for the rollout has gone. Disarmed, it does nothing.
pub struct CancelOnDrop {
    armed: Option<(Service, RolloutId)>,
}

impl CancelOnDrop {
    /// For a rollout of that service.
    #[must_use]
    pub fn new(service: &Service, id: RolloutId) -> Self {
        Self {
            armed: Some((service.clone(), id)),
        }
    }

    /// The rollout is over, or may go on alone.
    pub fn disarm(mut self) {
        self.armed = None;
    }
}

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        if let Some((service, id)) = self.armed.take() {
            tracing::info!(rollout.id = %id, "cancelled: its caller has gone");
            service.supervisor().cancel(id);
        }
    }
}
