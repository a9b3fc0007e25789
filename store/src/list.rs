use crate::error::StoreError;
use crate::open::Store;
use crate::rows::{
    COLUMNS, ListFilter, ListOrder, ListSort, QUEUED_COLUMNS, RolloutCounts, RolloutRow, signed, word,
};
use dressage_wire::ids::RolloutId;
use dressage_wire::rollout::RolloutState;
use sqlx::sqlite::SqliteRow;
use sqlx::{QueryBuilder, Row, Sqlite};
use std::collections::HashSet;
use uuid::Uuid;

impl Store {
    /// Rollouts, those that wait included, the one asked for last first: in the descending order of their ids.
    ///
    /// A rollout keeps its place in lists from its submission on. So pages, each after the last id of the one before, show
    /// each rollout that was there at the first page once, whatever begins, ends and is added meanwhile. Sorted by anything
    /// else than time it has only those that have begun, and pages shift when something changes.
    ///
    /// # Errors
    /// A database that cannot be read.
    pub async fn list(&self, filter: &ListFilter) -> Result<Vec<RolloutRow>, StoreError> {
        const OPERATION: &str = "listing rollouts";
        let query = match filter.sort {
            ListSort::Created => {
                let texts = self.texts(filter).await;
                let texts = texts.map_err(|source| self.failed(OPERATION, source))?;
                list_query(filter, &texts)
            }
            _ => sorted_query(filter),
        };
        let Some(mut query) = query else {
            return Ok(Vec::new());
        };
        let rows = query.build().fetch_all(&self.readers).await;
        let rows = rows.map_err(|source| self.failed(OPERATION, source))?;
        rows.iter()
            .map(RolloutRow::read)
            .collect::<Result<_, _>>()
            .map_err(|source| self.failed(OPERATION, source))
    }

    /// How a search is best made: where few rollouts can fit, through them; where many do, the page is full after a few rows.
    async fn texts(&self, filter: &ListFilter) -> Result<Texts, sqlx::Error> {
        let Some(trigrams) = filter.search.as_deref().and_then(trigrams) else {
            return Ok(Texts::Compare);
        };
        let found: u32 = sqlx::query_scalar(
            "SELECT count(*) FROM (SELECT 1 FROM rollout_texts WHERE rollout_texts MATCH ? LIMIT ?)",
        )
        .bind(&trigrams)
        .bind(FEW)
        .fetch_one(&self.readers)
        .await?;
        Ok(match found < FEW {
            true => Texts::Narrow(trigrams),
            false => Texts::Compare,
        })
    }

    /// The rollout whose id begins so.
    ///
    /// # Errors
    /// None such, or several.
    pub async fn find(&self, prefix: &str) -> Result<RolloutId, StoreError> {
        const OPERATION: &str = "finding a rollout";
        let not_found = || StoreError::NotFound {
            id: prefix.to_owned(),
        };
        let wanted = match prefix.parse::<Uuid>() {
            Ok(whole) => whole.to_string(),
            Err(_) => prefix.to_ascii_lowercase(),
        };
        if !wanted
            .bytes()
            .all(|byte| byte.is_ascii_hexdigit() || byte == b'-')
        {
            return Err(not_found());
        }
        // What follows the prefix in an id sorts before `g`. What is in both tables is one.
        let row = sqlx::query(
            "SELECT min(id) AS first, count(*) AS found FROM ( \
             SELECT id FROM rollouts WHERE id >= ?1 AND id < ?1 || 'g' UNION \
             SELECT id FROM queue WHERE id >= ?1 AND id < ?1 || 'g')",
        )
        .bind(&wanted)
        .fetch_one(&self.readers)
        .await
        .map_err(|source| self.failed(OPERATION, source))?;
        let read = |source| self.failed(OPERATION, source);
        let found: i64 = row.try_get("found").map_err(read)?;
        let first: Option<String> = row.try_get("first").map_err(read)?;
        let first: RolloutId = first.and_then(|id| id.parse().ok()).ok_or_else(not_found)?;
        if found == 1 {
            return Ok(first);
        }
        Err(StoreError::Ambiguous {
            prefix: prefix.to_owned(),
            first,
            more: u64::try_from(found - 1).unwrap_or_default(),
        })
    }

    /// How many rollouts there are, by how far they are.
    ///
    /// # Errors
    /// A database that cannot be read.
    pub async fn counts(&self) -> Result<RolloutCounts, StoreError> {
        let failed = |source| self.failed("counting rollouts", source);
        let rows = sqlx::query(
            "SELECT state, count(*) FROM rollouts GROUP BY state UNION ALL \
             SELECT 'queued', count(*) FROM queue WHERE NOT EXISTS (SELECT 1 FROM rollouts WHERE rollouts.id = queue.id)",
        )
        .fetch_all(&self.readers)
        .await
        .map_err(failed)?;
        let mut counts = RolloutCounts::default();
        for row in &rows {
            counts.read(row).map_err(failed)?;
        }
        Ok(counts)
    }

    /// A rollout as lists show it, without its documents.
    ///
    /// # Errors
    /// No such rollout; a database that cannot be read.
    pub async fn row(&self, id: RolloutId) -> Result<RolloutRow, StoreError> {
        const OPERATION: &str = "reading a rollout";
        let mut query = QueryBuilder::<Sqlite>::new("SELECT ");
        query.push(COLUMNS).push(" FROM rollouts WHERE id = ");
        query.push_bind(id.to_string()).push(" UNION ALL SELECT ");
        query.push(QUEUED_COLUMNS).push(" FROM queue WHERE id = ");
        query
            .push_bind(id.to_string())
            .push(" AND NOT EXISTS (SELECT 1 FROM rollouts WHERE rollouts.id = queue.id)");
        let row = query.build().fetch_optional(&self.readers).await;
        let row = row.map_err(|source| self.failed(OPERATION, source))?;
        let row = row.ok_or_else(|| StoreError::NotFound { id: id.to_string() })?;
        RolloutRow::read(&row).map_err(|source| self.failed(OPERATION, source))
    }

    /// Those of `rows` whose task their process has begun more than once.
    ///
    /// # Errors
    /// A database that cannot be read.
    pub async fn repeated(&self, rows: &[RolloutRow]) -> Result<HashSet<RolloutId>, StoreError> {
        const OPERATION: &str = "finding rollouts of the same task";
        // The first sample of a group is 0, whatever became of the others.
        let groups: Vec<(String, Option<String>, String)> = sqlx::query_as(
            "SELECT owner, task_id, title FROM rollouts WHERE sample > 0 \
                 UNION SELECT owner, task_id, title FROM queue WHERE sample > 0",
        )
        .fetch_all(&self.readers)
        .await
        .map_err(|source| self.failed(OPERATION, source))?;
        let groups: HashSet<_> = groups.into_iter().collect();
        let group = |row: &RolloutRow| (row.owner.to_string(), row.task_id.clone(), row.title.clone());
        let repeated = rows.iter().filter(|row| groups.contains(&group(row)));
        Ok(repeated.map(|row| row.id).collect())
    }

    /// What a rollout is called inside the database; `None` while it waits.
    pub(crate) async fn number_of(
        &self,
        operation: &'static str,
        id: RolloutId,
    ) -> Result<Option<i64>, StoreError> {
        let read = |row: SqliteRow| Ok((row.try_get("number")?, row.try_get("waits")?));
        let (number, waits): (Option<i64>, bool) = sqlx::query(
            "SELECT (SELECT number FROM rollouts WHERE id = ?1) AS number, \
             EXISTS (SELECT 1 FROM queue WHERE id = ?1) AS waits",
        )
        .bind(id.to_string())
        .fetch_one(&self.readers)
        .await
        .and_then(read)
        .map_err(|source| self.failed(operation, source))?;
        match (number, waits) {
            (None, false) => Err(StoreError::NotFound { id: id.to_string() }),
            (number, _) => Ok(number),
        }
    }
}

/// Rollouts that are read one by one sooner than the index of all is gone through.
const FEW: u32 = 500;

/// Groups of three characters that a search looks for in the index; more of them hardly leave fewer rollouts.
const TRIGRAMS_MAX: usize = 8;

/// How the text of a search is found.
enum Texts {
    /// In the rollouts that the index of texts names for this query; they are compared all the same.
    Narrow(String),
    /// By comparing.
    Compare,
}

/// A query of the index of texts for what can hold `search`: every third character with those beside it, or as many spread
/// over the whole. `None` for what is too short for it.
fn trigrams(search: &str) -> Option<String> {
    let characters: Vec<char> = search.chars().collect();
    let last = characters.len().checked_sub(3)?;
    if characters.contains(&'\0') {
        return None;
    }
    let count = characters.len().div_ceil(3).min(TRIGRAMS_MAX);
    let starts = (0..count).map(|place| place * last / (count - 1).max(1));
    let quoted = starts.filter_map(|start| {
        let three: String = characters.get(start..start + 3)?.iter().collect();
        Some(format!("\"{}\"", three.replace('"', "\"\"")))
    });
    Some(quoted.collect::<Vec<_>>().join(" AND "))
}

/// A query for what passes a filter; `None` where nothing can.
fn list_query(filter: &ListFilter, texts: &Texts) -> Option<QueryBuilder<Sqlite>> {
    let begun = begun_states(filter);
    let waiting = may_wait(filter);
    let mut query = QueryBuilder::new("");
    if let Some(states) = &begun {
        // The inner query needs an index alone, and finds which rows the outer one is to read.
        query.push("SELECT ").push(COLUMNS);
        query.push(" FROM (SELECT number AS place FROM rollouts WHERE true");
        query.push(states);
        if let Texts::Narrow(trigrams) = texts {
            query.push(" AND number IN (SELECT rowid FROM rollout_texts WHERE rollout_texts MATCH ");
            query.push_bind(trigrams.clone()).push(")");
        }
        push_common(&mut query, filter);
        push_outcome(&mut query, filter);
        push_end(&mut query, filter);
        query.push(") CROSS JOIN rollouts ON number = place");
    }
    if begun.is_some() && waiting {
        query.push(" UNION ALL ");
    }
    if waiting {
        query.push("SELECT * FROM (SELECT ").push(QUEUED_COLUMNS);
        query.push(" FROM queue WHERE NOT EXISTS (SELECT 1 FROM rollouts WHERE rollouts.id = queue.id)");
        push_common(&mut query, filter);
        push_end(&mut query, filter);
        query.push(")");
    }
    push_order(&mut query, " ORDER BY 1 DESC LIMIT ", filter);
    (begun.is_some() || waiting).then_some(query)
}

/// A query for what passes a filter and has begun, sorted; `None` where nothing can.
fn sorted_query(filter: &ListFilter) -> Option<QueryBuilder<Sqlite>> {
    let states = begun_states(filter)?;
    let mut query = QueryBuilder::new("SELECT ");
    query.push(COLUMNS).push(" FROM rollouts WHERE true").push(states);
    push_common(&mut query, filter);
    push_outcome(&mut query, filter);
    let column = filter.sort.column();
    let direction = match filter.order {
        ListOrder::Descending => "DESC",
        ListOrder::Ascending => "ASC",
    };
    query.push(format!(
        " ORDER BY {column} IS NULL, {column} {direction}, id DESC LIMIT "
    ));
    query.push_bind(filter.limit.map_or(-1, i64::from));
    query.push(" OFFSET ").push_bind(i64::from(filter.skip));
    Some(query)
}

/// The condition on the state of those that have begun; `None` where those are not asked for.
fn begun_states(filter: &ListFilter) -> Option<String> {
    let begun = filter
        .states
        .iter()
        .filter(|state| **state != RolloutState::Queued);
    let words: Vec<String> = begun.map(|state| format!("'{}'", state.name())).collect();
    if words.is_empty() {
        return filter.states.is_empty().then(String::new);
    }
    // Most are finished; an index by state would lead to them one by one, and the plus keeps SQLite from it.
    let column = if filter.states.contains(&RolloutState::Finished) {
        "+state"
    } else {
        "state"
    };
    Some(format!(" AND {column} IN ({})", words.join(", ")))
}

/// Whether one that waits can pass.
fn may_wait(filter: &ListFilter) -> bool {
    let of_outcomes = filter.ended.is_some()
        || filter.fault_owner.is_some()
        || filter.reward_at_least.is_some()
        || filter.reward_at_most.is_some();
    !of_outcomes && (filter.states.is_empty() || filter.states.contains(&RolloutState::Queued))
}

/// Conditions on what a rollout is asked for with.
fn push_common(query: &mut QueryBuilder<Sqlite>, filter: &ListFilter) {
    let words = [
        (" AND task_id = ", filter.task_id.clone()),
        (" AND group_id = ", filter.group.map(|group| group.to_string())),
        (" AND agent = ", filter.agent.clone()),
        (" AND endpoint = ", filter.endpoint.clone()),
        (" AND backend = ", filter.backend.clone()),
        (" AND model = ", filter.model.clone()),
        (" AND id < ", filter.after.map(|after| after.to_string())),
    ];
    for (condition, value) in words {
        if let Some(value) = value {
            query.push(condition).push_bind(value);
        }
    }
    if let Some(since) = filter.since_unix_ms {
        query.push(" AND created_unix_ms >= ").push_bind(signed(since));
    }
    if let Some(search) = &filter.search {
        let pattern = containing(search);
        query.push(" AND (title LIKE ").push_bind(pattern.clone());
        query.push(" ESCAPE '\\' OR task_id LIKE ").push_bind(pattern);
        query.push(" ESCAPE '\\')");
    }
}

/// Conditions on what came of it.
fn push_outcome(query: &mut QueryBuilder<Sqlite>, filter: &ListFilter) {
    let words = [
        (" AND ended = ", filter.ended.as_ref().and_then(word)),
        (" AND fault_owner = ", filter.fault_owner.as_ref().and_then(word)),
    ];
    for (condition, value) in words {
        if let Some(value) = value {
            query.push(condition).push_bind(value);
        }
    }
    let rewards = [
        (" AND reward >= ", filter.reward_at_least),
        (" AND reward <= ", filter.reward_at_most),
    ];
    for (condition, value) in rewards {
        if let Some(value) = value {
            query.push(condition).push_bind(value);
        }
    }
}

fn push_end(query: &mut QueryBuilder<Sqlite>, filter: &ListFilter) {
    push_order(query, " ORDER BY id DESC LIMIT ", filter);
}

fn push_order(query: &mut QueryBuilder<Sqlite>, order: &'static str, filter: &ListFilter) {
    // A negative limit is none.
    query.push(order).push_bind(filter.limit.map_or(-1, i64::from));
}

/// A pattern for LIKE that text with `part` in it fits.
pub(crate) fn containing(part: &str) -> String {
    let mut pattern = String::from("%");
    for character in part.chars() {
        if matches!(character, '%' | '_' | '\\') {
            pattern.push('\\');
        }
        pattern.push(character);
    }
    pattern.push('%');
    pattern
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::open::MIGRATOR;
    use dressage_wire::fault::{Ended, FaultOwner};
    use dressage_wire::ids::GroupId;
    use sqlx::Connection;
    use sqlx::sqlite::SqliteConnection;

    /// How SQLite finds what passes a filter, a step a line.
    async fn plan(connection: &mut SqliteConnection, filter: &ListFilter) -> String {
        let texts = match filter.search.as_deref().and_then(trigrams) {
            Some(trigrams) => Texts::Narrow(trigrams),
            None => Texts::Compare,
        };
        let query = list_query(filter, &texts).unwrap();
        let rows = QueryBuilder::<Sqlite>::new(format!("EXPLAIN QUERY PLAN {}", query.sql().as_str()))
            .build()
            .fetch_all(connection)
            .await
            .unwrap();
        let steps: Vec<String> = rows.iter().map(|row| row.get("detail")).collect();
        steps.join("\n")
    }

    #[tokio::test]
    async fn whatever_is_filtered_by_an_index_alone_tells_which_rows_to_read() {
        let mut connection = SqliteConnection::connect("sqlite::memory:").await.unwrap();
        MIGRATOR.run(&mut connection).await.unwrap();
        let all = ListFilter::default;
        let word = |word: &str| Some(word.to_owned());
        let scan = "SCAN rollouts USING COVERING INDEX rollouts_by_filter";
        let page = "SEARCH rollouts USING COVERING INDEX rollouts_by_filter (id<?)";
        let state = "SEARCH rollouts USING COVERING INDEX rollouts_by_state (state=?)";
        #[rustfmt::skip]
        let cases = [
            (all(), "SCAN rollouts USING COVERING INDEX"),
            (ListFilter { after: Some(RolloutId::new()), agent: word("a"), ..all() }, page),
            (ListFilter { states: vec![RolloutState::Running], ..all() }, state),
            (ListFilter { states: vec![RolloutState::Finished], ..all() }, scan),
            (ListFilter { agent: word("a"), endpoint: word("e"), ..all() }, scan),
            (ListFilter { backend: word("b"), model: word("m"), ..all() }, scan),
            (ListFilter { ended: Some(Ended::Timeout), fault_owner: Some(FaultOwner::Agent), ..all() }, scan),
            (ListFilter { reward_at_least: Some(0.5), reward_at_most: Some(0.6), ..all() }, scan),
            (ListFilter { since_unix_ms: Some(1), ..all() }, scan),
            (ListFilter { search: word("s"), ..all() }, scan),
            (ListFilter { search: word("search"), ..all() },
                "SEARCH rollouts USING INTEGER PRIMARY KEY (rowid=?)\nLIST SUBQUERY"),
            (ListFilter { task_id: word("t"), ..all() },
                "SEARCH rollouts USING COVERING INDEX rollouts_by_task (task_id=?)"),
            (ListFilter { group: Some(GroupId::new()), ..all() },
                "SEARCH rollouts USING COVERING INDEX rollouts_by_group (group_id=?)"),
        ];
        for (filter, expected) in cases {
            let plan = plan(&mut connection, &filter).await;
            assert!(plan.contains(expected), "{filter:?}\n{plan}");
            let reads_rows = |step: &&str| step.starts_with("SCAN rollouts") && !step.contains("COVERING");
            assert_eq!(plan.lines().find(reads_rows), None, "{filter:?}\n{plan}");
        }
    }

    #[test]
    fn a_search_looks_for_every_third_character_with_those_beside_it() {
        assert_eq!(trigrams("ab"), None);
        assert_eq!(trigrams("a\0bc"), None);
        assert_eq!(trigrams("abc").as_deref(), Some(r#""abc""#));
        assert_eq!(trigrams("abcd").as_deref(), Some(r#""abc" AND "bcd""#));
        assert_eq!(trigrams("é\"1 7").as_deref(), Some(r#""é""1" AND "1 7""#));
        let long = trigrams(&"0123456789".repeat(20)).unwrap();
        assert_eq!(long.split(" AND ").count(), TRIGRAMS_MAX);
        assert!(long.starts_with("\"012\"") && long.ends_with("\"789\""), "{long}");
    }

    #[test]
    fn what_has_a_meaning_in_patterns_is_taken_as_it_is() {
        assert_eq!(containing("100%_\\"), "%100\\%\\_\\\\%");
    }
}
