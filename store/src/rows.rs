use dressage_wire::call::CaptureLevel;
use dressage_wire::fault::{Ended, FaultOwner};
use dressage_wire::ids::{GroupId, OwnerId, RolloutId};
use dressage_wire::rollout::{RolloutState, Totals};
use serde::de::{DeserializeOwned, IntoDeserializer};
use serde::{Deserialize, Serialize};
use sqlx::sqlite::SqliteRow;
use sqlx::{Row, Sqlite};
use std::error::Error;
use std::str::FromStr;

/// A rollout as lists show it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct RolloutRow {
    /// Its id.
    pub id: RolloutId,
    /// The process that runs or ran it, or in whose queue it waits.
    pub owner: OwnerId,
    /// How far it is.
    pub state: RolloutState,
    /// The caller's name for its task.
    pub task_id: Option<String>,
    /// The first line of the instruction, cut to 120 characters.
    pub title: String,
    /// The n rollouts that were asked for together.
    pub group: Option<GroupId>,
    /// Which of them it is, from 0.
    pub sample: u32,
    /// Name of the agent.
    pub agent: String,
    /// Version of the agent; empty while it waits.
    pub agent_version: String,
    /// Name of the sandbox backend.
    pub backend: String,
    /// Name of the endpoint.
    pub endpoint: String,
    /// The model asked for.
    pub model: String,
    /// Higher ones start first.
    pub priority: i32,
    /// When it was asked for, milliseconds since the Unix epoch.
    pub created_unix_ms: u64,
    /// Milliseconds since the Unix epoch; `None` while it waits.
    pub started_unix_ms: Option<u64>,
    /// Milliseconds since the Unix epoch; for an interrupted one, when that was noticed.
    pub finished_unix_ms: Option<u64>,
    /// Wall time of a finished one.
    pub wall_ms: Option<u64>,
    /// How it ended.
    pub ended: Option<Ended>,
    /// The reward; `None` where there is no verdict.
    pub reward: Option<f64>,
    /// Code of the fault, where it failed.
    pub fault_code: Option<String>,
    /// Whose fault it was.
    pub fault_owner: Option<FaultOwner>,
    /// Its calls, so far or in all. What can be trained is known of finished ones only.
    pub totals: Totals,
}

/// How many rollouts there are, by how far they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RolloutCounts {
    /// They wait.
    pub queued: u64,
    /// Their owners work on them.
    pub running: u64,
    /// They are over, and their outcomes are there.
    pub finished: u64,
    /// Their owners died over them.
    pub interrupted: u64,
}

impl RolloutCounts {
    /// Reads a row of a state and a count.
    pub(crate) fn read(&mut self, row: &SqliteRow) -> Result<(), sqlx::Error> {
        let mut cells = Cells::of(row);
        let state = cells.word()?.ok_or(sqlx::Error::RowNotFound)?;
        let count = cells.count()?;
        *match state {
            RolloutState::Queued => &mut self.queued,
            RolloutState::Running => &mut self.running,
            RolloutState::Finished => &mut self.finished,
            RolloutState::Interrupted => &mut self.interrupted,
        } = count;
        Ok(())
    }
}

/// Which rollouts to list; what is unset does not filter.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ListFilter {
    /// How far they are: in one of these states; empty for all.
    pub states: Vec<RolloutState>,
    /// The caller's name for their task.
    pub task_id: Option<String>,
    /// Name of the agent.
    pub agent: Option<String>,
    /// Name of the endpoint.
    pub endpoint: Option<String>,
    /// Name of the sandbox backend.
    pub backend: Option<String>,
    /// The model asked for.
    pub model: Option<String>,
    /// Asked for together.
    pub group: Option<GroupId>,
    /// A part of the title or of the caller's name for the task. Capitals of ASCII are as good as small letters.
    pub search: Option<String>,
    /// How they ended.
    pub ended: Option<Ended>,
    /// Whose fault they failed by.
    pub fault_owner: Option<FaultOwner>,
    /// Reward at least this.
    pub reward_at_least: Option<f64>,
    /// Reward at most this.
    pub reward_at_most: Option<f64>,
    /// Asked for at or after this, milliseconds since the Unix epoch.
    pub since_unix_ms: Option<u64>,
    /// Only those that come after this one in a list: the way to the next page. It need not be there any more.
    pub after: Option<RolloutId>,
    /// At most so many.
    pub limit: Option<u32>,
    /// What they are sorted by.
    pub sort: ListSort,
    /// In which direction; those that lack what is sorted by come last in both.
    pub order: ListOrder,
    /// So many of the first are left out: the way to the next page where they are not sorted by time.
    pub skip: u32,
}

/// What a list is sorted by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ListSort {
    /// When they were asked for. The only one that lists what waits too.
    #[default]
    Created,
    /// The reward.
    Reward,
    /// Wall time.
    WallMs,
    /// Calls.
    Calls,
    /// Sampled tokens.
    CompletionTokens,
}

impl ListSort {
    /// The column.
    pub(crate) fn column(self) -> &'static str {
        match self {
            Self::Created => "id",
            Self::Reward => "reward",
            Self::WallMs => "wall_ms",
            Self::Calls => "calls",
            Self::CompletionTokens => "completion_tokens",
        }
    }
}

/// In which direction a list is sorted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ListOrder {
    /// The highest, or the latest, first.
    #[default]
    Descending,
    /// The lowest first. Not of what is sorted by time.
    Ascending,
}

/// What a list selects of `rollouts`, in the order in which [`RolloutRow::read`] reads.
pub(crate) const COLUMNS: &str = "id, owner, state, task_id, title, group_id, sample, agent, agent_version, backend, \
     endpoint, model, priority, created_unix_ms, started_unix_ms, finished_unix_ms, wall_ms, ended, reward, fault_code, \
     fault_owner, calls, trainable_calls, prompt_tokens, completion_tokens, trainable_tokens, prefix_breaks, level";

/// The same of `queue`.
pub(crate) const QUEUED_COLUMNS: &str = "id, owner, 'queued', task_id, title, group_id, sample, agent, '', backend, \
     endpoint, model, priority, created_unix_ms, NULL, NULL, NULL, NULL, NULL, NULL, \
     NULL, 0, 0, 0, 0, 0, 0, NULL";

impl RolloutRow {
    pub(crate) fn read(row: &SqliteRow) -> Result<Self, sqlx::Error> {
        let mut cells = Cells::of(row);
        Ok(Self {
            id: cells.parsed()?,
            owner: cells.parsed()?,
            state: cells.word()?.ok_or(sqlx::Error::RowNotFound)?,
            task_id: cells.value()?,
            title: cells.value()?,
            group: cells.optional()?,
            sample: cells.value()?,
            agent: cells.value()?,
            agent_version: cells.value()?,
            backend: cells.value()?,
            endpoint: cells.value()?,
            model: cells.value()?,
            priority: cells.value()?,
            created_unix_ms: cells.count()?,
            started_unix_ms: cells.optional_count()?,
            finished_unix_ms: cells.optional_count()?,
            wall_ms: cells.optional_count()?,
            ended: cells.word()?,
            reward: cells.value()?,
            fault_code: cells.value()?,
            fault_owner: cells.word()?,
            totals: Totals {
                calls: cells.count()?,
                trainable_calls: cells.count()?,
                prompt_tokens: cells.count()?,
                completion_tokens: cells.count()?,
                trainable_tokens: cells.count()?,
                prefix_breaks: cells.count()?,
                level: cells.word::<CaptureLevel>()?,
            },
        })
    }
}

/// The cells of a row, one after the other.
pub(crate) struct Cells<'a> {
    row: &'a SqliteRow,
    next: usize,
}

impl<'a> Cells<'a> {
    pub(crate) fn of(row: &'a SqliteRow) -> Self {
        Self { row, next: 0 }
    }

    pub(crate) fn value<T: sqlx::Decode<'a, Sqlite> + sqlx::Type<Sqlite>>(
        &mut self,
    ) -> Result<T, sqlx::Error> {
        let value = self.row.try_get(self.next);
        self.next += 1;
        value
    }

    pub(crate) fn count(&mut self) -> Result<u64, sqlx::Error> {
        Ok(unsigned(self.value()?))
    }

    fn optional_count(&mut self) -> Result<Option<u64>, sqlx::Error> {
        Ok(self.value::<Option<i64>>()?.map(unsigned))
    }

    fn word<T: DeserializeOwned>(&mut self) -> Result<Option<T>, sqlx::Error> {
        let word: Option<&str> = self.value()?;
        let value = word.map(|word| T::deserialize(word.into_deserializer()));
        value
            .transpose()
            .map_err(|error: serde::de::value::Error| self.invalid(error))
    }

    pub(crate) fn parsed<T: FromStr<Err: Error + Send + Sync + 'static>>(
        &mut self,
    ) -> Result<T, sqlx::Error> {
        self.value::<&str>()?.parse().map_err(|error| self.invalid(error))
    }

    pub(crate) fn optional<T: FromStr<Err: Error + Send + Sync + 'static>>(
        &mut self,
    ) -> Result<Option<T>, sqlx::Error> {
        let text: Option<&str> = self.value()?;
        text.map(str::parse)
            .transpose()
            .map_err(|error| self.invalid(error))
    }

    /// For the cell that was read last.
    fn invalid(&self, error: impl Error + Send + Sync + 'static) -> sqlx::Error {
        sqlx::Error::ColumnDecode {
            index: (self.next - 1).to_string(),
            source: Box::new(error),
        }
    }
}

/// The word that a two- or many-state value is stored as: that of its JSON.
pub(crate) fn word(value: &impl Serialize) -> Option<String> {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(word)) => Some(word),
        _ => None,
    }
}

/// SQLite's integers are signed; times and counts fit.
pub(crate) fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

fn unsigned(value: i64) -> u64 {
    u64::try_from(value).unwrap_or_default()
}
