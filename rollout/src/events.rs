//! What happens in a rollout, told to whoever listens.

use crate::hold::Held;
use crate::supervisor::Message;
use dressage_wire::event::{Event, RolloutEvent};
use dressage_wire::ids::RolloutId;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{Notify, mpsc};

/// Events kept for a slow listener; after that it misses the oldest.
pub(crate) const CAPACITY: usize = 1024;

/// Sees every event of every rollout once, those of one rollout in their order.
///
/// It is called where the event happens, while the next one of that rollout waits: it must not block, nor call back.
pub trait Observer: Send + Sync {
    /// Something happened.
    fn event(&self, event: &Arc<RolloutEvent>);
}

/// Numbers the events of one rollout and tells them to whoever listens; tells the dispatcher where the rollout is.
pub(crate) struct Events {
    rollout: RolloutId,
    /// The number of the next event; `None` after the last.
    next: Mutex<Option<u64>>,
    listener: EventFeed,
    observer: Option<Arc<dyn Observer>>,
    dispatcher: mpsc::WeakUnboundedSender<Message>,
}

impl Events {
    pub(crate) fn new(
        rollout: RolloutId,
        listener: EventFeed,
        observer: Option<Arc<dyn Observer>>,
        dispatcher: mpsc::WeakUnboundedSender<Message>,
    ) -> Arc<Self> {
        Arc::new(Self {
            rollout,
            next: Mutex::new(Some(0)),
            listener,
            observer,
            dispatcher,
        })
    }

    /// Tells an event. Never blocks, and costs little where nobody listens. After the last, nothing is told.
    pub(crate) fn tell(&self, event: Event) {
        match event {
            Event::StageStarted { stage } => self.tell_dispatcher(Message::Stage(self.rollout, Some(stage))),
            Event::StageEnded { .. } => self.tell_dispatcher(Message::Stage(self.rollout, None)),
            Event::Held { until_unix_ms } => {
                let until = UNIX_EPOCH + Duration::from_millis(until_unix_ms);
                self.tell_dispatcher(Message::Held(self.rollout, until));
            }
            Event::Released { .. } => self.tell_dispatcher(Message::Released(self.rollout)),
            _ => {}
        }
        let is_last = matches!(event, Event::Finished { .. });
        // Numbered and told under one lock, so that everybody sees the order of the numbers.
        let mut next = lock(&self.next);
        let Some(sequence) = *next else { return };
        let event = Arc::new(RolloutEvent {
            rollout: self.rollout,
            sequence,
            unix_ms: unix_ms(),
            event,
        });
        *next = (!is_last).then_some(sequence + 1);
        if let Some(observer) = &self.observer {
            observer.event(&event);
        }
        self.listener.push(event);
        if is_last {
            self.listener.close();
        }
    }

    /// Lets the dispatcher find the way into a hold that is about to be told of.
    pub(crate) fn open_hold(&self, held: Held) {
        self.tell_dispatcher(Message::OpenHold(self.rollout, held));
    }

    fn tell_dispatcher(&self, message: Message) {
        if let Some(dispatcher) = self.dispatcher.upgrade() {
            _ = dispatcher.send(message);
        }
    }
}

/// The events of one rollout, for one listener. Takes no memory for events until there are some.
pub struct EventReceiver(Arc<Feed>);

/// Where they come from.
pub(crate) struct EventFeed(Arc<Feed>);

#[derive(Default)]
struct Feed {
    kept: Mutex<Kept>,
    news: Notify,
}

#[derive(Default)]
struct Kept {
    events: VecDeque<Arc<RolloutEvent>>,
    missed: u64,
    /// No more will come, or nobody takes them.
    closed: bool,
}

/// A feed and its listener.
pub(crate) fn feed() -> (EventFeed, EventReceiver) {
    let feed = Arc::new(Feed::default());
    (EventFeed(feed.clone()), EventReceiver(feed))
}

impl EventReceiver {
    /// The next event. Can be dropped and called again.
    ///
    /// # Errors
    /// The listener was too slow and missed so many; or there are no more.
    pub async fn recv(&mut self) -> Result<Arc<RolloutEvent>, RecvError> {
        loop {
            {
                let mut kept = lock(&self.0.kept);
                if kept.missed > 0 {
                    return Err(RecvError::Lagged(std::mem::take(&mut kept.missed)));
                }
                if let Some(event) = kept.events.pop_front() {
                    return Ok(event);
                }
                if kept.closed {
                    return Err(RecvError::Closed);
                }
            }
            self.0.news.notified().await;
        }
    }
}

impl Drop for EventReceiver {
    fn drop(&mut self) {
        let mut kept = lock(&self.0.kept);
        kept.closed = true;
        kept.events = VecDeque::new();
    }
}

impl EventFeed {
    fn push(&self, event: Arc<RolloutEvent>) {
        {
            let mut kept = lock(&self.0.kept);
            if kept.closed {
                return;
            }
            if kept.events.len() >= CAPACITY {
                kept.events.pop_front();
                kept.missed += 1;
            }
            kept.events.push_back(event);
        }
        self.0.news.notify_one();
    }

    fn close(&self) {
        lock(&self.0.kept).closed = true;
        self.0.news.notify_one();
    }
}

impl Drop for EventFeed {
    fn drop(&mut self) {
        self.close();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Milliseconds since the Unix epoch.
pub(crate) fn unix_ms() -> u64 {
    since_epoch_ms(SystemTime::now())
}

/// A time in milliseconds since the Unix epoch.
pub(crate) fn since_epoch_ms(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(sequence: u64) -> Arc<RolloutEvent> {
        Arc::new(RolloutEvent {
            rollout: RolloutId::new(),
            sequence,
            unix_ms: 0,
            event: Event::Queued { position: 0 },
        })
    }

    #[tokio::test]
    async fn a_slow_listener_misses_the_oldest_and_is_told_how_many() {
        let (feed, mut receiver) = feed();
        for sequence in 0..CAPACITY as u64 + 3 {
            feed.push(event(sequence));
        }
        assert_eq!(receiver.recv().await.unwrap_err(), RecvError::Lagged(3));
        assert_eq!(receiver.recv().await.unwrap().sequence, 3);
        drop(feed);
        for sequence in 4..CAPACITY as u64 + 3 {
            assert_eq!(receiver.recv().await.unwrap().sequence, sequence);
        }
        assert_eq!(receiver.recv().await.unwrap_err(), RecvError::Closed);
    }

    #[tokio::test]
    async fn nothing_is_kept_for_a_listener_that_has_left() {
        let (feed, receiver) = feed();
        feed.push(event(0));
        drop(receiver);
        feed.push(event(1));
        assert!(lock(&feed.0.kept).events.is_empty());
    }
}
