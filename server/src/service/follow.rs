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
        loop {
            if let Some(event) = self.ready.pop_front() {
                self.next = event.sequence + 1;
                return Some(event);
            }
            let Source::Live(log) = &self.source else {
                return None;
            };
            if !log.has(self.next).await {
                return None;
            }
            self.ready = log.since(self.next).into();
        }
    }
}

/// The events of all rollouts from some point on.
pub struct Feed {
    board: Arc<Board>,
    position: Position,
    grown: watch::Receiver<u64>,
    ready: VecDeque<(u64, Arc<Told>)>,
    /// Told once that something was missed.
    missed: bool,
}

/// What a feed gives.
#[derive(Clone, Debug)]
pub enum FeedItem {
    /// Events between the point that was asked for and this one are gone: what is shown must be read anew.
    Missed(Position),
    /// An event, and where the feed is after it.
    Event(Position, Arc<Told>),
}

impl Feed {
    /// Where it is.
    #[must_use]
    pub fn position(&self) -> &Position {
        &self.position
    }

    /// The next item. `None` where the server is gone.
    pub async fn next(&mut self) -> Option<FeedItem> {
        loop {
            if std::mem::take(&mut self.missed) {
                return Some(FeedItem::Missed(self.position.clone()));
            }
            if let Some((number, event)) = self.ready.pop_front() {
                self.position.next = number + 1;
                return Some(FeedItem::Event(self.position.clone(), event));
            }
            let wanted = self.position.next;
            self.grown.wait_for(|&next| next > wanted).await.ok()?;
            match self.board.since(&self.position) {
                Some(events) => self.ready = events.into(),
                None => {
                    self.position = self.board.now();
                    self.missed = true;
                }
            }
        }
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
            None => (now, Vec::new(), false),
            Some(from) => match board.since(&from) {
                Some(events) => (from, events, false),
                None => (now, Vec::new(), true),
            },
        };
        Feed {
            board,
            position,
            grown,
            ready: ready.into(),
            missed,
        }
    }
}
