use dressage_wire::call::CaptureLevel;
use dressage_wire::fault::{Ended, FaultOwner};
use dressage_wire::ids::{OwnerId, RolloutId};
use dressage_wire::rollout::Totals;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sqlx::Row;
use sqlx::sqlite::SqliteRow;

/// A rollout as lists show it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RolloutRow {
    /// Its id.
    pub id: RolloutId,
    /// The process that runs or ran it.
    pub owner: OwnerId,
    /// How far it is.
    pub state: RolloutState,
    /// The caller's name for its task.
    pub task_id: Option<String>,
    /// The first line of the instruction, cut to 120 characters.
    pub title: String,
    /// Which of the n rollouts of the task it is, from 0.
    pub sample: u32,
    /// Name of the agent.
    pub agent: String,
    /// Version of the agent.
    pub agent_version: String,
    /// Name of the sandbox backend.
    pub backend: String,
    /// Name of the endpoint.
    pub endpoint: String,
    /// The model asked for.
    pub model: String,
    /// Milliseconds since the Unix epoch.
    pub started_unix_ms: u64,
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

/// How far a rollout is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RolloutState {
    /// Its owner works on it.
    Running,
    /// It is over, and its outcome is there.
    Finished,
    /// Its owner died over it.
    Interrupted,
}

/// Which rollouts to list; what is unset does not filter.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ListFilter {
    /// How far they are.
    pub state: Option<RolloutState>,
    /// The caller's name for their task.
    pub task_id: Option<String>,
    /// Name of the agent.
    pub agent: Option<String>,
    /// Name of the endpoint.
    pub endpoint: Option<String>,
    /// How they ended.
    pub ended: Option<Ended>,
    /// Whose fault they failed by.
    pub fault_owner: Option<FaultOwner>,
    /// Reward at least this.
    pub reward_at_least: Option<f64>,
    /// Reward at most this.
    pub reward_at_most: Option<f64>,
    /// Started at or after this, milliseconds since the Unix epoch.
    pub since_unix_ms: Option<u64>,
    /// Only those that come after this one in a list: the way to the next page.
    pub after: Option<RolloutId>,
    /// At most so many.
    pub limit: Option<u32>,
}

/// What a list selects, in the order [`RolloutRow::read`] needs.
pub(crate) const COLUMNS: &str = "id, owner, state, task_id, title, sample, agent, agent_version, backend, endpoint, \
     model, started_unix_ms, finished_unix_ms, wall_ms, ended, reward, fault_code, fault_owner, calls, trainable_calls, \
     prompt_tokens, completion_tokens, trainable_tokens, prefix_breaks, level";

impl RolloutRow {
    pub(crate) fn read(row: &SqliteRow) -> Result<Self, sqlx::Error> {
        Ok(Self {
            id: parsed(row, "id")?,
            owner: parsed(row, "owner")?,
            state: named(row, "state")?.ok_or_else(|| invalid("state"))?,
            task_id: row.try_get("task_id")?,
            title: row.try_get("title")?,
            sample: row.try_get("sample")?,
            agent: row.try_get("agent")?,
            agent_version: row.try_get("agent_version")?,
            backend: row.try_get("backend")?,
            endpoint: row.try_get("endpoint")?,
            model: row.try_get("model")?,
            started_unix_ms: unsigned(row.try_get("started_unix_ms")?),
            finished_unix_ms: row.try_get::<Option<i64>, _>("finished_unix_ms")?.map(unsigned),
            wall_ms: row.try_get::<Option<i64>, _>("wall_ms")?.map(unsigned),
            ended: named(row, "ended")?,
            reward: row.try_get("reward")?,
            fault_code: row.try_get("fault_code")?,
            fault_owner: named(row, "fault_owner")?,
            totals: Totals {
                calls: unsigned(row.try_get("calls")?),
                trainable_calls: unsigned(row.try_get("trainable_calls")?),
                prompt_tokens: unsigned(row.try_get("prompt_tokens")?),
                completion_tokens: unsigned(row.try_get("completion_tokens")?),
                trainable_tokens: unsigned(row.try_get("trainable_tokens")?),
                prefix_breaks: unsigned(row.try_get("prefix_breaks")?),
                level: named::<CaptureLevel>(row, "level")?,
            },
        })
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

fn named<T: DeserializeOwned>(row: &SqliteRow, column: &'static str) -> Result<Option<T>, sqlx::Error> {
    let word: Option<String> = row.try_get(column)?;
    let value = word.map(|word| serde_json::from_value(serde_json::Value::String(word)));
    value.transpose().map_err(|_| invalid(column))
}

fn parsed<T: std::str::FromStr>(row: &SqliteRow, column: &'static str) -> Result<T, sqlx::Error> {
    row.try_get::<String, _>(column)?.parse().map_err(|_| invalid(column))
}

fn invalid(column: &'static str) -> sqlx::Error {
    sqlx::Error::ColumnDecode {
        index: column.to_owned(),
        source: "not a value of this column".into(),
    }
}
