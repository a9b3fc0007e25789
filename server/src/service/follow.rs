use super::board::Told;
use super::error::ServiceError;
use super::views::Position;
use super::{Board, Service};
use dressage_wire::event::RolloutEvent;
use dressage_wire::ids::RolloutId;
use std::collections::VecDeque;
use std::sync::Arc;
use tokio::sync::watch;

/// The events of one rollout, from some point to its end, none missed and none twice.
pub struct Follow {
    source: Source,
    next: u64,
    ready: VecDeque<Arc<RolloutEvent>>,
}

enum Source {
    Live(Arc<super::board::Log>),
    Stored,
}

impl Follow {
    /// The next event; `None` at the end.
    pub async fn next(&mut self) -> Option<Arc<RolloutEvent>> {
        while self.more().await {
            if let Some(event) = self.take() {
                return Some(event);
            }
        }
        None
    }

    /// Waits until there is an event to take; `false` at the end. Can be dropped and called again.
    pub async fn more(&mut self) -> bool {
        !self.ready.is_empty()
            || match &self.source {
                Source::Live(log) => log.has(self.next).await,
                Source::Stored => false,
            }
    }

    /// The next event, where it is there already.
    pub fn take(&mut self) -> Option<Arc<RolloutEvent>> {
        if let Source::Live(log) = &self.source
            && self.ready.is_empty()
        {
            self.ready = log.since(self.next).into();
        }
        let event = self.ready.pop_front()?;
        self.next = event.sequence + 1;
        Some(event)
    }
}

/// The events of all rollouts from some point on.
pub struct Feed {
    board: Arc<Board>,
    position: Position,
    grown: watch::Receiver<u64>,
    ready: VecDeque<Arc<Told>>,
    /// Told once that something was missed.
    missed: bool,
}

/// What a feed gives.
#[derive(Clone, Debug)]
pub enum FeedItem {
    /// Events between the point that was asked for and this one are gone: what is shown must be read anew.
    Missed,
    /// An event.
    Event(Arc<Told>),
}

impl Feed {
    /// Where it is: after what was taken last.
    #[must_use]
    pub fn position(&self) -> &Position {
        &self.position
    }

    /// Waits until there is something to take; `false` where the server is gone. Can be dropped and called again.
    pub async fn more(&mut self) -> bool {
        let wanted = self.position.next;
        self.missed || !self.ready.is_empty() || self.grown.wait_for(|&next| next > wanted).await.is_ok()
    }

    /// The next item, where it is there already.
    pub fn take(&mut self) -> Option<FeedItem> {
        if self.ready.is_empty() && !self.missed {
            match self.board.since(&self.position) {
                Some(events) => self.ready = events,
                None => {
                    self.position = self.board.now();
                    self.missed = true;
                }
            }
        }
        if std::mem::take(&mut self.missed) {
            return Some(FeedItem::Missed);
        }
        let event = self.ready.pop_front()?;
        self.position.next = event.number + 1;
        Some(FeedItem::Event(event))
    }
}

impl Service {
    /// The events of a rollout from a sequence number on.
    ///
    /// # Errors
    /// There is none of that id; a store that cannot be read.
    pub async fn follow(&self, id: RolloutId, from: u64) -> Result<Follow, ServiceError> {
        if let Some(log) = self.0.board.log(id) {
            return Ok(Follow {
                source: Source::Live(log),
                next: from,
                ready: VecDeque::new(),
            });
        }
        let lines = self.store().events(id).await?.unwrap_or_default();
        let events = lines.split(|&byte| byte == b'\n').filter(|line| !line.is_empty());
        // What an older version wrote in words that are no longer known is left out.
        let events = events.filter_map(|line| serde_json::from_slice::<RolloutEvent>(line).ok());
        Ok(Follow {
            source: Source::Stored,
            next: from,
            ready: events
                .filter(|event| event.sequence >= from)
                .map(Arc::new)
                .collect(),
        })
    }

    /// The events of all rollouts: from now on, or from where a listener was.
    #[must_use]
    pub fn feed(&self, from: Option<Position>) -> Feed {
        let board = self.0.board.clone();
        let grown = board.grown();
        let now = board.now();
        let (position, ready, missed) = match from {
            None => (now, VecDeque::new(), false),
            Some(from) => match board.since(&from) {
                Some(events) => (from, events, false),
                None => (now, VecDeque::new(), true),
            },
        };
        Feed {
            board,
            position,
            grown,
            ready,
            missed,
        }
    }
}
