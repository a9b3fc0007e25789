use crate::supervisor::Message;
use dressage_wire::event::{Event, RolloutEvent, Stage};
use dressage_wire::ids::RolloutId;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::sync::{broadcast, mpsc};

/// Events kept for a slow listener; after that it misses the oldest.
pub(crate) const CAPACITY: usize = 1024;

/// Numbers the events of one rollout and tells them to whoever listens; tells the dispatcher of stages.
pub(crate) struct Events {
    rollout: RolloutId,
    next: Mutex<u64>,
    listeners: broadcast::Sender<Arc<RolloutEvent>>,
    dispatcher: mpsc::WeakUnboundedSender<Message>,
}

impl Events {
    pub(crate) fn new(
        rollout: RolloutId,
        listeners: broadcast::Sender<Arc<RolloutEvent>>,
        dispatcher: mpsc::WeakUnboundedSender<Message>,
    ) -> Arc<Self> {
        Arc::new(Self {
            rollout,
            next: Mutex::new(0),
            listeners,
            dispatcher,
        })
    }

    /// Tells an event. Never blocks, and costs little where nobody listens.
    pub(crate) fn tell(&self, event: Event) {
        let stage = match event {
            Event::StageStarted { stage } => Some(Some(stage)),
            Event::StageEnded { .. } => Some(None),
            _ => None,
        };
        if let Some(stage) = stage {
            self.tell_dispatcher(stage);
        }
        // Numbered and sent under one lock, so that the order of the numbers is that of the channel.
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let event = RolloutEvent {
            rollout: self.rollout,
            sequence: *next,
            unix_ms: unix_ms(),
            event,
        };
        *next += 1;
        // An error means that nobody listens.
        _ = self.listeners.send(Arc::new(event));
    }

    fn tell_dispatcher(&self, stage: Option<Stage>) {
        if let Some(dispatcher) = self.dispatcher.upgrade() {
            _ = dispatcher.send(Message::Stage(self.rollout, stage));
        }
    }
}

/// Milliseconds since the Unix epoch.
pub(crate) fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
