use crate::codec::{self, CodecError};
use crate::error::StoreError;
use crate::open::Store;
use crate::packed::unpack;
use crate::rows::{COLUMNS, ListFilter, RolloutRow, signed, word};
use crate::write::{CallDocument, blocking};
use bytes::Bytes;
use dressage_wire::ids::{OwnerId, RolloutId};
use dressage_wire::rollout::{RolloutOutcome, RolloutStart};
use dressage_wire::trajectory::{CallRecord, ContentHash, Trajectory, assemble};
use serde::de::DeserializeOwned;
use sqlx::sqlite::SqliteRow;
use sqlx::{QueryBuilder, Row, Sqlite};
use std::collections::{HashMap, HashSet};
use uuid::Uuid;

/// What is known of a rollout.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredRollout {
    /// As lists show it.
    pub row: RolloutRow,
    /// As it started.
    pub start: RolloutStart,
    /// What came of it; `None` while it runs, and where it was interrupted.
    pub outcome: Option<RolloutOutcome>,
}

impl Store {
    /// Rollouts, the latest start first.
    ///
    /// # Errors
    /// A database that cannot be read; an unknown [`ListFilter::after`].
    pub async fn list(&self, filter: &ListFilter) -> Result<Vec<RolloutRow>, StoreError> {
        const OPERATION: &str = "listing rollouts";
        let mut query = QueryBuilder::<Sqlite>::new("SELECT ");
        query.push(COLUMNS).push(" FROM rollouts WHERE true");
        let words = [
            (" AND state = ", filter.state.as_ref().and_then(word)),
            (" AND task_id = ", filter.task_id.clone()),
            (" AND agent = ", filter.agent.clone()),
            (" AND endpoint = ", filter.endpoint.clone()),
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
        if let Some(since) = filter.since_unix_ms {
            query.push(" AND started_unix_ms >= ").push_bind(signed(since));
        }
        if let Some(after) = filter.after {
            let (started, number) = self.place(after).await?;
            query
                .push(" AND (started_unix_ms, number) < (")
                .push_bind(started);
            query.push(", ").push_bind(number).push(")");
        }
        query.push(" ORDER BY started_unix_ms DESC, number DESC LIMIT ");
        // A negative limit is none.
        query.push_bind(filter.limit.map_or(-1, i64::from));
        let rows = query.build().fetch_all(&self.readers).await;
        let rows = rows.map_err(|source| self.failed(OPERATION, source))?;
        rows.iter()
            .map(RolloutRow::read)
            .collect::<Result<_, _>>()
            .map_err(|source| self.failed(OPERATION, source))
    }

    /// Those of `rows` whose task their process has begun more than once.
    ///
    /// # Errors
    /// A database that cannot be read.
    pub async fn repeated(&self, rows: &[RolloutRow]) -> Result<HashSet<RolloutId>, StoreError> {
        const OPERATION: &str = "finding rollouts of the same task";
        // The first sample of a group is 0, whatever became of the others.
        let groups: Vec<(String, Option<String>, String)> =
            sqlx::query_as("SELECT DISTINCT owner, task_id, title FROM rollouts WHERE sample > 0")
                .fetch_all(&self.readers)
                .await
                .map_err(|source| self.failed(OPERATION, source))?;
        let groups: HashSet<_> = groups.into_iter().collect();
        let group = |row: &RolloutRow| (row.owner.to_string(), row.task_id.clone(), row.title.clone());
        let repeated = rows.iter().filter(|row| groups.contains(&group(row)));
        Ok(repeated.map(|row| row.id).collect())
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
        // What follows the prefix in an id sorts before `g`.
        let row = sqlx::query(
            "SELECT min(id) AS first, count(*) AS found FROM rollouts WHERE id >= ?1 AND id < ?1 || 'g'",
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

    /// A rollout.
    ///
    /// # Errors
    /// No such rollout; documents that cannot be read.
    pub async fn get(&self, id: RolloutId) -> Result<StoredRollout, StoreError> {
        const OPERATION: &str = "reading a rollout";
        let mut query = QueryBuilder::<Sqlite>::new("SELECT ");
        query
            .push(COLUMNS)
            .push(" FROM rollouts WHERE id = ")
            .push_bind(id.to_string());
        let row = query.build().fetch_optional(&self.readers).await;
        let row = row.map_err(|source| self.failed(OPERATION, source))?;
        let row = row.ok_or_else(|| StoreError::NotFound { id: id.to_string() })?;
        let row = RolloutRow::read(&row).map_err(|source| self.failed(OPERATION, source))?;
        let start = self.document_of(id, "start", "the start").await?;
        Ok(StoredRollout {
            row,
            start: start.ok_or(StoreError::Unreadable {
                what: "the start",
                rollout: id,
                source: CodecError::Truncated,
            })?,
            outcome: self.document_of(id, "outcome", "the outcome").await?,
        })
    }

    /// Owners that have running rollouts.
    ///
    /// # Errors
    /// A database that cannot be read.
    pub async fn running_owners(&self) -> Result<Vec<OwnerId>, StoreError> {
        let owners: Vec<String> =
            sqlx::query_scalar("SELECT DISTINCT owner FROM rollouts WHERE state = 'running'")
                .fetch_all(&self.readers)
                .await
                .map_err(|source| self.failed("reading the owners", source))?;
        Ok(owners.iter().filter_map(|owner| owner.parse().ok()).collect())
    }

    /// The calls of a rollout, in the order of recording.
    ///
    /// # Errors
    /// No such rollout; a call that cannot be read.
    pub async fn calls(&self, id: RolloutId) -> Result<Vec<CallRecord>, StoreError> {
        const OPERATION: &str = "reading calls";
        let (_, number) = self.place(id).await?;
        let rows = sqlx::query("SELECT document, tokens FROM calls WHERE rollout = ? ORDER BY position")
            .bind(number)
            .fetch_all(&self.readers)
            .await
            .map_err(|source| self.failed(OPERATION, source))?;
        let packed = rows
            .iter()
            .map(|row| Ok((row.try_get("document")?, row.try_get("tokens")?)));
        let packed: Vec<(Vec<u8>, Vec<u8>)> = packed
            .collect::<Result<_, _>>()
            .map_err(|source| self.failed(OPERATION, source))?;
        let records = blocking(OPERATION, move || {
            packed
                .iter()
                .map(|(document, tokens)| unpack_call(document, tokens))
                .collect::<Result<_, _>>()
        });
        records.await?.map_err(|source| unreadable("a call", id, source))
    }

    /// The calls of a rollout as a trajectory, late flags included.
    ///
    /// # Errors
    /// As [`Store::calls`].
    pub async fn trajectory(&self, id: RolloutId) -> Result<Trajectory, StoreError> {
        let records = self.calls(id).await?;
        blocking("restoring a trajectory", move || restore(records)).await
    }

    /// The body of a call's request, byte for byte as the agent sent it.
    ///
    /// # Errors
    /// No such call; a part that is missing.
    pub async fn request_body(&self, id: RolloutId, index: u32) -> Result<Vec<u8>, StoreError> {
        let records = self.calls(id).await?;
        let no_such_call = StoreError::NoSuchCall { rollout: id, index };
        let parts = records
            .iter()
            .find(|record| record.meta.index == index)
            .ok_or(no_such_call)?;
        let parts = parts.request.clone();
        let trajectory = blocking("restoring a trajectory", move || Trajectory::restore(records)).await?;
        let incomplete = |source| StoreError::Incomplete {
            rollout: id,
            index,
            source,
        };
        let messages = trajectory.messages(index).ok_or_else(|| incomplete(None))?;
        let mut contents = HashMap::new();
        let tools = parts.tools.iter().map(|(_, hash)| *hash);
        for hash in messages.iter().copied().chain(tools).chain([parts.rest]) {
            if !contents.contains_key(&hash)
                && let Some(body) = self.content(id, hash).await?
            {
                contents.insert(hash, body);
            }
        }
        assemble(&parts, &messages, |hash| contents.get(&hash).cloned())
            .map_err(|source| incomplete(Some(source)))
    }

    /// The body of the reply to a call, in the dialect's unary form; `None` where nothing came.
    ///
    /// # Errors
    /// No such call; a content that cannot be read.
    pub async fn response_body(&self, id: RolloutId, index: u32) -> Result<Option<Bytes>, StoreError> {
        let records = self.calls(id).await?;
        let record = records.into_iter().find(|record| record.meta.index == index);
        match record
            .ok_or(StoreError::NoSuchCall { rollout: id, index })?
            .response
        {
            None => Ok(None),
            Some(hash) => self.content(id, hash).await,
        }
    }

    /// Reads the whole database and checks that it is sound.
    ///
    /// # Errors
    /// A database that is damaged, or cannot be read.
    pub async fn verify(&self) -> Result<(), StoreError> {
        const OPERATION: &str = "checking the database";
        let finding: String = sqlx::query_scalar("PRAGMA integrity_check(1)")
            .fetch_one(&self.readers)
            .await
            .map_err(|source| self.failed(OPERATION, source))?;
        if finding == "ok" {
            return Ok(());
        }
        Err(StoreError::Unsound {
            path: self.path().to_owned(),
            finding,
        })
    }

    /// Every content of a rollout.
    pub(crate) async fn contents(&self, id: RolloutId) -> Result<HashMap<ContentHash, Bytes>, StoreError> {
        const OPERATION: &str = "reading what was said";
        let (_, number) = self.place(id).await?;
        let rows = sqlx::query("SELECT hash, body FROM contents WHERE rollout = ?")
            .bind(number)
            .fetch_all(&self.readers)
            .await
            .map_err(|source| self.failed(OPERATION, source))?;
        let packed = rows
            .iter()
            .map(|row| Ok((row.try_get::<Vec<u8>, _>("hash")?, row.try_get("body")?)));
        let packed: Vec<(Vec<u8>, Vec<u8>)> = packed
            .collect::<Result<_, _>>()
            .map_err(|source| self.failed(OPERATION, source))?;
        let contents = blocking(OPERATION, move || {
            let unpacked = packed.into_iter().map(|(hash, body)| {
                let hash = hash.try_into().map_err(|_| CodecError::Range)?;
                Ok((ContentHash(hash), Bytes::from(unpack(&body)?)))
            });
            unpacked.collect::<Result<_, _>>()
        });
        contents
            .await?
            .map_err(|source| unreadable("a message", id, source))
    }

    async fn content(&self, id: RolloutId, hash: ContentHash) -> Result<Option<Bytes>, StoreError> {
        let body: Option<Vec<u8>> = sqlx::query_scalar(
            "SELECT body FROM contents JOIN rollouts ON rollout = number WHERE rollouts.id = ? AND hash = ?",
        )
        .bind(id.to_string())
        .bind(hash.0.to_vec())
        .fetch_optional(&self.readers)
        .await
        .map_err(|source| self.failed("reading what was said", source))?;
        let body = body.map(|body| unpack(&body).map(Bytes::from)).transpose();
        body.map_err(|source| unreadable("a message", id, source))
    }

    async fn document_of<T: DeserializeOwned>(
        &self,
        id: RolloutId,
        kind: &'static str,
        what: &'static str,
    ) -> Result<Option<T>, StoreError> {
        let body: Option<Vec<u8>> = sqlx::query_scalar(
            "SELECT body FROM documents JOIN rollouts ON rollout = number WHERE rollouts.id = ? AND kind = ?",
        )
        .bind(id.to_string())
        .bind(kind)
        .fetch_optional(&self.readers)
        .await
        .map_err(|source| self.failed("reading a rollout", source))?;
        let document = body.map(|body| read_document(&body)).transpose();
        document.map_err(|source| unreadable(what, id, source))
    }

    /// Where a rollout is in lists: start and number.
    async fn place(&self, id: RolloutId) -> Result<(i64, i64), StoreError> {
        let read = |row: &SqliteRow| Ok((row.try_get("started_unix_ms")?, row.try_get("number")?));
        let row = sqlx::query("SELECT started_unix_ms, number FROM rollouts WHERE id = ?")
            .bind(id.to_string())
            .fetch_optional(&self.readers)
            .await
            .and_then(|row| row.as_ref().map(read).transpose())
            .map_err(|source| self.failed("finding a rollout", source))?;
        row.ok_or_else(|| StoreError::NotFound { id: id.to_string() })
    }
}

pub(crate) fn restore(records: Vec<CallRecord>) -> Trajectory {
    let mut trajectory = Trajectory::restore(records);
    trajectory.finalise();
    trajectory
}

fn unpack_call(document: &[u8], tokens: &[u8]) -> Result<CallRecord, CodecError> {
    let document: CallDocument = read_document(document)?;
    Ok(document.with_tokens(codec::decode(&unpack(tokens)?)?))
}

fn read_document<T: DeserializeOwned>(packed: &[u8]) -> Result<T, CodecError> {
    serde_json::from_slice(&unpack(packed)?).map_err(CodecError::Document)
}

fn unreadable(what: &'static str, rollout: RolloutId, source: CodecError) -> StoreError {
    StoreError::Unreadable {
        what,
        rollout,
        source,
    }
}
