use crate::error::StoreError;
use crate::list::containing;
use crate::open::Store;
use crate::rows::Cells;
use dressage_wire::ids::GroupId;
use serde::{Deserialize, Serialize};
use sqlx::sqlite::SqliteRow;
use sqlx::{QueryBuilder, Sqlite};

/// Rollouts that were asked for together, summed up.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct GroupRow {
    /// Its id.
    pub id: GroupId,
    /// The caller's name for the task.
    pub task_id: Option<String>,
    /// The first line of the instruction, cut to 120 characters.
    pub title: String,
    /// Name of the agent.
    pub agent: String,
    /// Name of the sandbox backend.
    pub backend: String,
    /// Name of the endpoint.
    pub endpoint: String,
    /// The model asked for.
    pub model: String,
    /// When it was asked for, milliseconds since the Unix epoch.
    pub created_unix_ms: u64,
    /// How many they are.
    pub rollouts: u64,
    /// Of these, how many wait.
    pub queued: u64,
    /// How many run.
    pub running: u64,
    /// How many are over, with their outcomes.
    pub finished: u64,
    /// How many died with their owners.
    pub interrupted: u64,
    /// How many ended with a fault.
    pub failed: u64,
    /// How many have a reward.
    pub rewarded: u64,
    /// Mean of the rewards; `None` where there are none, here and below.
    pub reward_mean: Option<f64>,
    /// The highest reward.
    pub reward_best: Option<f64>,
    /// The lowest reward.
    pub reward_worst: Option<f64>,
    /// Standard deviation of the rewards, over those that there are.
    pub reward_deviation: Option<f64>,
    /// Mean wall time of those that are over.
    pub wall_mean_ms: Option<f64>,
    /// Calls of all.
    pub calls: u64,
    /// Sampled tokens of all.
    pub completion_tokens: u64,
}

impl GroupRow {
    fn read(row: &SqliteRow) -> Result<Self, sqlx::Error> {
        let mut cells = Cells::of(row);
        let mut group = Self {
            id: cells.parsed()?,
            task_id: cells.value()?,
            title: cells.value()?,
            agent: cells.value()?,
            backend: cells.value()?,
            endpoint: cells.value()?,
            model: cells.value()?,
            created_unix_ms: cells.count()?,
            rollouts: cells.count()?,
            queued: cells.count()?,
            running: cells.count()?,
            finished: cells.count()?,
            interrupted: cells.count()?,
            failed: cells.count()?,
            rewarded: cells.count()?,
            reward_mean: cells.value()?,
            reward_best: cells.value()?,
            reward_worst: cells.value()?,
            wall_mean_ms: cells.value()?,
            calls: cells.count()?,
            completion_tokens: cells.count()?,
            reward_deviation: None,
        };
        let mean_of_squares: Option<f64> = cells.value()?;
        // Of equal rewards the difference is zero but for rounding, which can make it negative.
        group.reward_deviation = mean_of_squares
            .zip(group.reward_mean)
            .map(|(squares, mean)| (squares - mean * mean).max(0.0).sqrt());
        Ok(group)
    }
}

/// Which groups to list; what is unset does not filter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupFilter {
    /// The caller's name for the task.
    pub task_id: Option<String>,
    /// A part of the title or of the caller's name for the task.
    pub search: Option<String>,
    /// Only those of at least so many rollouts.
    pub rollouts_at_least: u32,
    /// Only those that come after this one in a list.
    pub after: Option<GroupId>,
    /// At most so many.
    pub limit: Option<u32>,
}

impl Store {
    /// Groups of rollouts, the one asked for last first.
    ///
    /// # Errors
    /// A database that cannot be read.
    pub async fn groups(&self, filter: &GroupFilter) -> Result<Vec<GroupRow>, StoreError> {
        let failed = |source| self.failed("listing groups", source);
        let rows = query(filter).build().fetch_all(&self.readers).await;
        let rows = rows.map_err(failed)?;
        let groups = rows.iter().map(GroupRow::read);
        groups.collect::<Result<_, _>>().map_err(failed)
    }
}

/// The ids of a page are found first, by an index alone where nothing is searched for; then their rollouts are summed up.
fn query(filter: &GroupFilter) -> QueryBuilder<Sqlite> {
    let mut query = QueryBuilder::new(
        "WITH page AS (SELECT group_id FROM (SELECT id, group_id FROM rollouts WHERE group_id IS NOT NULL",
    );
    push_filter(&mut query, filter);
    // One that has begun is in both, and counts once.
    query.push(" UNION SELECT id, group_id FROM queue WHERE group_id IS NOT NULL");
    push_filter(&mut query, filter);
    query.push(") GROUP BY group_id HAVING count(*) >= ");
    query.push_bind(i64::from(filter.rollouts_at_least));
    query.push(" ORDER BY 1 DESC LIMIT ");
    // A negative limit is none.
    query.push_bind(filter.limit.map_or(-1, i64::from));
    query.push(
        ") SELECT group_id, max(task_id), max(title), max(agent), max(backend), max(endpoint), max(model), \
         min(created_unix_ms), count(*), sum(state = 'queued'), sum(state = 'running'), sum(state = 'finished'), \
         sum(state = 'interrupted'), sum(fault_code IS NOT NULL), count(reward), avg(reward), max(reward), min(reward), \
         avg(wall_ms), sum(calls), sum(completion_tokens), avg(reward * reward) FROM ( \
         SELECT group_id, task_id, title, agent, backend, endpoint, model, created_unix_ms, state, fault_code, reward, \
         wall_ms, calls, completion_tokens FROM rollouts WHERE group_id IN (SELECT group_id FROM page) UNION ALL \
         SELECT group_id, task_id, title, agent, backend, endpoint, model, created_unix_ms, 'queued', NULL, NULL, NULL, 0, 0 \
         FROM queue WHERE group_id IN (SELECT group_id FROM page) \
         AND NOT EXISTS (SELECT 1 FROM rollouts WHERE rollouts.id = queue.id)) \
         GROUP BY group_id ORDER BY group_id DESC",
    );
    query
}

fn push_filter(query: &mut QueryBuilder<Sqlite>, filter: &GroupFilter) {
    let words = [
        (" AND task_id = ", filter.task_id.clone()),
        (" AND group_id < ", filter.after.map(|after| after.to_string())),
    ];
    for (condition, value) in words {
        if let Some(value) = value {
            query.push(condition).push_bind(value);
        }
    }
    if let Some(search) = &filter.search {
        let pattern = containing(search);
        query.push(" AND (title LIKE ").push_bind(pattern.clone());
        query.push(" ESCAPE '\\' OR task_id LIKE ").push_bind(pattern);
        query.push(" ESCAPE '\\')");
    }
}
