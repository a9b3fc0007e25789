//! What the service tells of rollouts, in the form in which REST and MCP show it.

use dressage_rollout::{LiveRollout, LiveState};
use dressage_store::{RolloutRow, RolloutState};
use dressage_wire::event::Stage;
use dressage_wire::ids::{GroupId, RolloutId};
use dressage_wire::rollout::{RolloutOutcome, RolloutStart};
use serde::Serialize;
use std::fmt;
use std::str::FromStr;
use std::time::{SystemTime, UNIX_EPOCH};

/// A rollout that was taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct Submitted {
    /// Its id.
    pub id: RolloutId,
    /// The group of rollouts of the same spec.
    pub group: Option<GroupId>,
    /// Which of the group it is, from 0.
    pub sample: u32,
    /// The caller's name of the task.
    pub task_id: Option<String>,
    /// Where it is: `queued`, but for an answer that is given again.
    pub state: RolloutState,
}

/// A rollout in a list.
#[derive(Clone, Debug, Serialize, utoipa::ToSchema)]
pub struct Summary {
    /// What the store knows.
    #[serde(flatten)]
    pub row: RolloutRow,
    /// What is known of it only while it lives.
    #[serde(flatten)]
    pub live: LiveView,
}

/// What is known of a rollout only while it lives.
#[derive(Clone, Debug, Default, PartialEq, Serialize, utoipa::ToSchema)]
pub struct LiveView {
    /// The stage that it is in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stage: Option<Stage>,
    /// It was asked to stop.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub cancelling: bool,
    /// Its sandbox is held until then, milliseconds since the Unix epoch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held_until_unix_ms: Option<u64>,
    /// How many wait before it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue_position: Option<usize>,
}

impl LiveView {
    /// What the engine tells of one of its rollouts; `before` is how many wait before it.
    #[must_use]
    pub fn of(rollout: &LiveRollout, before: usize) -> Self {
        Self {
            stage: match rollout.state {
                LiveState::In(stage) => Some(stage),
                _ => None,
            },
            cancelling: rollout.state == LiveState::Cancelling,
            held_until_unix_ms: rollout.held_until.map(unix_ms),
            queue_position: (rollout.state == LiveState::Queued).then_some(before),
        }
    }
}

/// A rollout whole, but for its calls.
#[derive(Clone, Debug, Serialize, utoipa::ToSchema)]
pub struct View {
    /// As in a list.
    #[serde(flatten)]
    pub summary: Summary,
    /// As it started, with the task; null while it waits.
    pub start: Option<RolloutStart>,
    /// What came of it; null while it waits or runs, and where it was interrupted.
    pub outcome: Option<RolloutOutcome>,
}

/// A page of a list.
#[derive(Clone, Debug, Serialize, utoipa::ToSchema)]
pub struct Page {
    /// The rollouts, the latest first where nothing else was asked for.
    pub rollouts: Vec<Summary>,
    /// `cursor` of the next page; null on the last, and where they are not sorted by time.
    pub next_cursor: Option<RolloutId>,
    /// `skip` of the next page, where they are not sorted by time and this is not the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_skip: Option<u32>,
}

/// A place in the feed of all events: what the next one is. Written `EPOCH-NUMBER`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Position {
    /// Tells the feed of one start of the server from that of another.
    pub epoch: String,
    /// The number of the next event.
    pub next: u64,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.epoch, self.next)
    }
}

impl FromStr for Position {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (epoch, next) = text.rsplit_once('-').ok_or(())?;
        Ok(Self {
            epoch: epoch.to_owned(),
            next: next.parse().map_err(|_| ())?,
        })
    }
}

/// Milliseconds since the Unix epoch.
pub fn unix_ms(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
