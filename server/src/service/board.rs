//! What happens in live rollouts, kept so that any number of listeners can follow it without missing or doubling
//! anything: a log for each rollout, and one feed for all.

use super::views::Position;
use dressage_rollout::Observer;
use dressage_wire::event::{AgentEvent, Event, RolloutEvent};
use dressage_wire::ids::RolloutId;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use tokio::sync::watch;

/// Bytes of text that a rollout's log keeps; what comes after is there without its text.
const LOG_TEXT_MAX: usize = 16 << 20;

/// Events that the feed keeps for listeners who come back.
const FEED_EVENTS_MAX: usize = 16_384;

/// Bytes of text in them; those that were sent hold theirs a second time, as JSON.
const FEED_TEXT_MAX: usize = 16 << 20;

/// What stands where text was left out.
const LEFT_OUT: &str = "[left out: the log of this rollout is full]";

/// The logs of live rollouts, and the feed of all.
#[derive(Debug)]
pub struct Board {
    state: Mutex<State>,
    /// The number of the feed's next event; changes with each.
    told: watch::Sender<u64>,
    /// Tells this server's feed from that of another start.
    epoch: String,
}

#[derive(Debug, Default)]
struct State {
    logs: HashMap<RolloutId, Arc<Log>>,
    feed: VecDeque<Arc<Told>>,
    feed_text: usize,
    next: u64,
}

/// An event in the feed. The form in which it is sent is made once, by the first listener who sends it, however many
/// there are.
#[derive(Debug)]
pub struct Told {
    /// Its number in the feed.
    pub number: u64,
    /// What happened.
    pub event: Arc<RolloutEvent>,
    sent: OnceLock<Vec<u8>>,
}

impl Told {
    fn new(number: u64, event: Arc<RolloutEvent>) -> Arc<Self> {
        Arc::new(Self {
            number,
            event,
            sent: OnceLock::new(),
        })
    }

    /// The form in which it is sent. All listeners must ask for the same one.
    pub fn sent(&self, write: impl FnOnce() -> Vec<u8>) -> &[u8] {
        self.sent.get_or_init(write)
    }
}

/// What happened in one rollout.
#[derive(Debug)]
pub struct Log {
    kept: Mutex<Kept>,
    /// How many events there are, and whether that is all; changes with each.
    grown: watch::Sender<Grown>,
}

#[derive(Debug, Default)]
struct Kept {
    events: Vec<Arc<RolloutEvent>>,
    text: usize,
}

/// How far a log is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Grown {
    events: usize,
    closed: bool,
}

impl Board {
    /// An empty board.
    #[must_use]
    pub fn new() -> Self {
        let epoch = RolloutId::new().as_uuid().simple().to_string();
        Self {
            state: Mutex::default(),
            told: watch::Sender::new(0),
            // The time of a UUIDv7 and the counter after it: two starts never share them.
            epoch: epoch.chars().take(16).collect(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The log of a live rollout.
    #[must_use]
    pub fn log(&self, id: RolloutId) -> Option<Arc<Log>> {
        self.state().logs.get(&id).cloned()
    }

    /// Ends a rollout's log and forgets it; whoever follows it reads it to its end.
    pub fn close(&self, id: RolloutId) -> Option<Arc<Log>> {
        let log = self.state().logs.remove(&id)?;
        log.grown.send_modify(|grown| grown.closed = true);
        Some(log)
    }

    /// Where the feed is now.
    #[must_use]
    pub fn now(&self) -> Position {
        Position {
            epoch: self.epoch.clone(),
            next: self.state().next,
        }
    }

    /// Told when the feed grows.
    #[must_use]
    pub fn grown(&self) -> watch::Receiver<u64> {
        self.told.subscribe()
    }

    /// What the feed has from a position on. `None` where that is no longer there, or belongs to another start.
    #[must_use]
    pub fn since(&self, position: &Position) -> Option<VecDeque<Arc<Told>>> {
        let state = self.state();
        let first = state.next - state.feed.len() as u64;
        if position.epoch != self.epoch || position.next < first || position.next > state.next {
            return None;
        }
        let skip = usize::try_from(position.next - first).unwrap_or(usize::MAX);
        Some(state.feed.iter().skip(skip).cloned().collect())
    }
}

impl Observer for Board {
    fn event(&self, event: &Arc<RolloutEvent>) {
        let mut state = self.state();
        let log = state.logs.entry(event.rollout).or_insert_with(Log::new).clone();
        let kept = log.push(event);
        let number = state.next;
        state.next += 1;
        state.feed_text += text_of(&kept.event);
        state.feed.push_back(Told::new(number, kept));
        while state.feed.len() > FEED_EVENTS_MAX || state.feed_text > FEED_TEXT_MAX {
            let Some(oldest) = state.feed.pop_front() else {
                break;
            };
            state.feed_text -= text_of(&oldest.event.event);
        }
        let next = state.next;
        drop(state);
        self.told.send_replace(next);
    }
}

impl Log {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            kept: Mutex::default(),
            grown: watch::Sender::default(),
        })
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an event; the form in which it is kept.
    fn push(&self, event: &Arc<RolloutEvent>) -> Arc<RolloutEvent> {
        let mut kept = self.kept();
        let text = text_of(&event.event);
        let event = if kept.text + text > LOG_TEXT_MAX {
            Arc::new(without_text(event))
        } else {
            kept.text += text;
            event.clone()
        };
        kept.events.push(event.clone());
        let events = kept.events.len();
        drop(kept);
        self.grown.send_modify(|grown| grown.events = events);
        event
    }

    /// The events from a sequence number on.
    #[must_use]
    pub fn since(&self, sequence: u64) -> Vec<Arc<RolloutEvent>> {
        let skip = usize::try_from(sequence).unwrap_or(usize::MAX);
        self.kept().events.iter().skip(skip).cloned().collect()
    }

    /// Waits until there is an event of that sequence number. False where none will come.
    pub async fn has(&self, sequence: u64) -> bool {
        let wanted = usize::try_from(sequence).unwrap_or(usize::MAX);
        let mut grown = self.grown.subscribe();
        let reached = grown
            .wait_for(|grown| grown.events > wanted || grown.closed)
            .await;
        reached.is_ok_and(|grown| grown.events > wanted)
    }

    /// All of it, a JSON object a line, as it is stored.
    #[must_use]
    pub fn to_lines(&self) -> Vec<u8> {
        let mut lines = Vec::new();
        for event in self.since(0) {
            // Events are plain data and always have a JSON form.
            if serde_json::to_writer(&mut lines, &*event).is_ok() {
                lines.push(b'\n');
            }
        }
        lines
    }
}

/// Bytes of what programs said in it.
fn text_of(event: &Event) -> usize {
    match event {
        Event::CommandOutput { text, .. } | Event::CallProgress { text, .. } => text.len(),
        Event::CommandEnded { result, .. } => result.stdout.len() + result.stderr.len(),
        Event::Agent { event } => match event {
            AgentEvent::Text { text } => text.len(),
            AgentEvent::Tool { input, .. } => input.len(),
            AgentEvent::Error { message } => message.len(),
            AgentEvent::Session { .. } | AgentEvent::StepEnded { .. } => 0,
        },
        _ => 0,
    }
}

/// The same event at the same place, without what a program said.
fn without_text(event: &RolloutEvent) -> RolloutEvent {
    let mut event = event.clone();
    match &mut event.event {
        Event::CommandOutput { text, .. } | Event::CallProgress { text, .. } => LEFT_OUT.clone_into(text),
        Event::CommandEnded { result, .. } => {
            LEFT_OUT.clone_into(&mut result.stdout);
            result.stderr.clear();
        }
        Event::Agent { event } => match event {
            AgentEvent::Text { text } => LEFT_OUT.clone_into(text),
            AgentEvent::Tool { input, .. } => LEFT_OUT.clone_into(input),
            AgentEvent::Error { message } => LEFT_OUT.clone_into(message),
            AgentEvent::Session { .. } | AgentEvent::StepEnded { .. } => {}
        },
        _ => {}
    }
    event
}

#[cfg(test)]
mod tests {
    use super::*;
    use dressage_wire::event::{OutputStream, Stage};

    fn output(rollout: RolloutId, sequence: u64, bytes: usize) -> Arc<RolloutEvent> {
        Arc::new(RolloutEvent {
            rollout,
            sequence,
            unix_ms: 1,
            event: Event::CommandOutput {
                stage: Stage::Setup,
                index: 0,
                stream: OutputStream::Stdout,
                text: "x".repeat(bytes),
            },
        })
    }

    #[test]
    fn a_full_log_keeps_every_event_and_no_more_text() {
        let (board, id) = (Board::new(), RolloutId::new());
        for sequence in 0..40 {
            board.event(&output(id, sequence, 1 << 20));
        }
        let events = board.log(id).unwrap().since(0);
        assert_eq!(
            events.iter().map(|event| event.sequence).collect::<Vec<_>>(),
            (0..40).collect::<Vec<_>>()
        );
        assert_eq!(
            events
                .iter()
                .map(|event| text_of(&event.event))
                .filter(|&text| text == 1 << 20)
                .count(),
            16
        );
        assert_eq!(text_of(&events[16].event), LEFT_OUT.len());
    }

    #[test]
    fn the_feed_says_when_it_cannot_go_on_where_a_listener_was() {
        let (board, id) = (Board::new(), RolloutId::new());
        let start = board.now();
        board.event(&output(id, 0, 1));
        let read = board.since(&start).unwrap();
        assert_eq!(read.iter().map(|told| told.number).collect::<Vec<_>>(), [0]);
        for sequence in 1..=FEED_EVENTS_MAX as u64 {
            board.event(&output(id, sequence, 0));
        }
        assert!(board.since(&start).is_none());
        let after_first = Position { next: 1, ..start };
        assert_eq!(board.since(&after_first).unwrap().len(), FEED_EVENTS_MAX);
        let foreign = Position {
            epoch: "0".into(),
            ..board.now()
        };
        assert!(board.since(&foreign).is_none());
    }

    #[tokio::test]
    async fn whoever_follows_a_log_that_is_closed_reads_it_to_its_end() {
        let (board, id) = (Board::new(), RolloutId::new());
        board.event(&output(id, 0, 1));
        let log = board.log(id).unwrap();
        assert!(log.has(0).await);
        let waiting = tokio::spawn({
            let log = log.clone();
            async move { (log.has(1).await, log.has(2).await) }
        });
        board.event(&output(id, 1, 1));
        board.close(id);
        assert_eq!(waiting.await.unwrap(), (true, false));
        assert_eq!(board.log(id).map(|_| ()), None);
    }
}
