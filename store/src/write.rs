use crate::codec;
use crate::error::StoreError;
use crate::open::Store;
use crate::packed::Packer;
use crate::rows::{signed, word};
use async_trait::async_trait;
use dressage_wire::call::{CallMeta, Completion};
use dressage_wire::ids::{OwnerId, RolloutId};
use dressage_wire::rollout::{Recorder, RecorderError, Remains, RolloutOutcome, RolloutStart};
use dressage_wire::trajectory::{CallRecord, ContentHash, PrefixBreak, Recorded, RequestParts, TokenDelta};
use serde::{Deserialize, Serialize};
use sqlx::query::Query;
use sqlx::sqlite::SqliteArguments;
use sqlx::{Sqlite, Transaction};

/// Characters of an instruction that lists show.
const TITLE_CHARACTERS: usize = 120;

/// Of a call, what is stored as JSON.
#[derive(Serialize, Deserialize)]
pub(crate) struct CallDocument {
    pub(crate) meta: CallMeta,
    pub(crate) request: RequestParts,
    pub(crate) response: Option<ContentHash>,
    pub(crate) continues: Option<u32>,
    pub(crate) prefix_break: Option<PrefixBreak>,
}

impl CallDocument {
    /// The record that this and its tokens are.
    pub(crate) fn with_tokens(
        self,
        (prompt, completions): (Option<TokenDelta>, Vec<Completion>),
    ) -> CallRecord {
        CallRecord {
            meta: self.meta,
            request: self.request,
            response: self.response,
            prompt,
            completions,
            continues: self.continues,
            prefix_break: self.prefix_break,
        }
    }
}

#[async_trait]
impl Recorder for Store {
    async fn started(&self, start: &RolloutStart) -> Result<(), RecorderError> {
        self.start(start)
            .await
            .map_err(recorder_error("the start", start.id))
    }

    async fn call(&self, rollout: RolloutId, recorded: &Recorded) -> Result<(), RecorderError> {
        self.add_call(rollout, recorded)
            .await
            .map_err(recorder_error("a call", rollout))
    }

    async fn finished(&self, outcome: &RolloutOutcome) -> Result<(), RecorderError> {
        self.finish_or_keep(outcome)
            .await
            .map_err(recorder_error("the outcome", outcome.id))
    }
}

fn recorder_error(operation: &'static str, rollout: RolloutId) -> impl FnOnce(StoreError) -> RecorderError {
    move |source| RecorderError {
        operation,
        rollout,
        reason: source.reason(),
        remains: match source {
            StoreError::KeptAside { .. } => Remains::Aside,
            _ => Remains::Nothing,
        },
        hint: source.hint(),
        source: Box::new(source),
    }
}

impl Store {
    /// Marks the running rollouts of owners that are dead as interrupted, and gives their ids.
    ///
    /// # Errors
    /// A database that cannot be written.
    pub async fn mark_interrupted(&self, dead: &[OwnerId]) -> Result<Vec<RolloutId>, StoreError> {
        const OPERATION: &str = "marking interrupted rollouts";
        let mut marked = Vec::new();
        let mut writing = self.begin(OPERATION).await?;
        for owner in dead {
            marked.extend(
                self.interrupt(OPERATION, &mut writing.transaction, *owner)
                    .await?,
            );
        }
        writing.commit().await?;
        Ok(marked)
    }

    pub(crate) async fn interrupt(
        &self,
        operation: &'static str,
        transaction: &mut Transaction<'_, Sqlite>,
        owner: OwnerId,
    ) -> Result<Vec<RolloutId>, StoreError> {
        let ids: Vec<String> = sqlx::query_scalar(
            "UPDATE rollouts SET state = 'interrupted', finished_unix_ms = ? \
             WHERE owner = ? AND state = 'running' RETURNING id",
        )
        .bind(jiff::Timestamp::now().as_millisecond())
        .bind(owner.to_string())
        .fetch_all(&mut **transaction)
        .await
        .map_err(|source| self.failed(operation, source))?;
        Ok(ids.iter().filter_map(|id| id.parse().ok()).collect())
    }

    async fn start(&self, start: &RolloutStart) -> Result<(), StoreError> {
        const OPERATION: &str = "storing the start of a rollout";
        let document = self.document(start, start.id).await?;
        let mut writing = self.begin(OPERATION).await?;
        self.make_room(OPERATION, &mut writing.transaction, start.id)
            .await?;
        let number: i64 = sqlx::query_scalar(
            "INSERT INTO rollouts (id, owner, state, task_id, title, sample, agent, agent_version, backend, endpoint, \
             model, started_unix_ms, group_id, priority, created_unix_ms) \
             VALUES (?1, ?2, 'running', ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, \
             coalesce((SELECT priority FROM queue WHERE id = ?1), 0), \
             coalesce((SELECT created_unix_ms FROM queue WHERE id = ?1), ?11)) RETURNING number",
        )
        .bind(start.id.to_string())
        .bind(start.owner.to_string())
        .bind(&start.task.id)
        .bind(title(&start.task.instruction))
        .bind(start.sample)
        .bind(&start.task.agent.name)
        .bind(&start.agent_version)
        .bind(&start.backend)
        .bind(&start.endpoint)
        .bind(&start.model)
        .bind(signed(start.started_unix_ms))
        .bind(start.group.map(|group| group.to_string()))
        .fetch_one(&mut *writing.transaction)
        .await
        .map_err(|source| self.failed(OPERATION, source))?;
        writing
            .execute(
                sqlx::query("INSERT INTO documents (rollout, kind, body) VALUES (?, 'start', ?)")
                    .bind(number)
                    .bind(document),
            )
            .await?;
        writing.commit().await
    }

    async fn add_call(&self, rollout: RolloutId, recorded: &Recorded) -> Result<(), StoreError> {
        const OPERATION: &str = "storing a call";
        let summary = recorded.record.summary();
        let packed = {
            let recorded = recorded.clone();
            blocking(OPERATION, move || pack_call(recorded)).await?
        };
        let (document, tokens, contents) = packed.map_err(|source| StoreError::NotStorable {
            what: "a call",
            rollout,
            source,
        })?;
        let mut writing = self.begin(OPERATION).await?;
        let number = writing.number(rollout).await?;
        for (hash, body) in contents {
            writing
                .execute(
                    sqlx::query("INSERT OR IGNORE INTO contents (rollout, hash, body) VALUES (?, ?, ?)")
                        .bind(number)
                        .bind(hash.0.to_vec())
                        .bind(body),
                )
                .await?;
        }
        writing.execute(sqlx::query(
            "INSERT INTO calls (rollout, position, call_index, id, document, tokens) \
             VALUES (?1, (SELECT coalesce(max(position) + 1, 0) FROM calls WHERE rollout = ?1), ?2, ?3, ?4, ?5)",
        )
        .bind(number)
        .bind(summary.index)
        .bind(summary.id.to_string())
        .bind(document)
        .bind(tokens)).await?;
        writing
            .execute(
                sqlx::query(
                    "UPDATE rollouts SET calls = calls + 1, prompt_tokens = prompt_tokens + ?, \
             completion_tokens = completion_tokens + ?, prefix_breaks = prefix_breaks + ? WHERE number = ?",
                )
                .bind(signed(summary.prompt_tokens))
                .bind(signed(summary.completion_tokens))
                .bind(i64::from(summary.prefix_break))
                .bind(number),
            )
            .await?;
        writing.commit().await
    }

    pub(crate) async fn finish(&self, outcome: &RolloutOutcome) -> Result<(), StoreError> {
        const OPERATION: &str = "storing the outcome of a rollout";
        let document = self.document(outcome, outcome.id).await?;
        let totals = &outcome.totals;
        let mut writing = self.begin(OPERATION).await?;
        let number = writing.number(outcome.id).await?;
        writing.execute(sqlx::query(
            "UPDATE rollouts SET state = 'finished', finished_unix_ms = ?, wall_ms = ?, ended = ?, reward = ?, \
             fault_code = ?, fault_owner = ?, calls = ?, trainable_calls = ?, prompt_tokens = ?, completion_tokens = ?, \
             trainable_tokens = ?, prefix_breaks = ?, level = ? WHERE number = ?",
        )
        .bind(signed(outcome.finished_unix_ms))
        .bind(signed(outcome.wall_ms))
        .bind(word(&outcome.ended))
        .bind(outcome.reward.as_ref().and_then(|reward| reward.value))
        .bind(outcome.fault.as_ref().map(|fault| &fault.code))
        .bind(outcome.fault.as_ref().and_then(|fault| word(&fault.owner)))
        .bind(signed(totals.calls))
        .bind(signed(totals.trainable_calls))
        .bind(signed(totals.prompt_tokens))
        .bind(signed(totals.completion_tokens))
        .bind(signed(totals.trainable_tokens))
        .bind(signed(totals.prefix_breaks))
        .bind(totals.level.as_ref().and_then(word))
        .bind(number)).await?;
        writing
            .execute(
                sqlx::query(
                    "INSERT OR REPLACE INTO documents (rollout, kind, body) VALUES (?, 'outcome', ?)",
                )
                .bind(number)
                .bind(document),
            )
            .await?;
        self.leave_queue(OPERATION, &mut writing.transaction, outcome.id)
            .await?;
        writing.commit().await
    }

    /// Writes something that changes nothing, as any other write would go.
    ///
    /// # Errors
    /// A database that cannot be written, or whose file is gone.
    pub async fn check_writable(&self) -> Result<(), StoreError> {
        const OPERATION: &str = "checking that it can be written";
        if !self.is_in_place() {
            return Err(self.removed(OPERATION));
        }
        let mut writing = self.begin(OPERATION).await?;
        let same = "UPDATE installation SET created_unix_ms = created_unix_ms";
        writing.execute(sqlx::query(same)).await?;
        writing.commit().await
    }

    /// Takes the writer's place at once: a transaction that reads first and writes later may be refused by SQLite when
    /// another process wrote in between.
    pub(crate) async fn begin(&self, operation: &'static str) -> Result<Writing<'_>, StoreError> {
        let transaction = self.writer.begin_with("BEGIN IMMEDIATE").await;
        Ok(Writing {
            store: self,
            operation,
            transaction: transaction.map_err(|source| self.failed(operation, source))?,
        })
    }

    /// A document as JSON, packed.
    async fn document(
        &self,
        document: &(impl Serialize + Clone + Send + 'static),
        rollout: RolloutId,
    ) -> Result<Vec<u8>, StoreError> {
        let document = document.clone();
        let packed = blocking("packing a document", move || {
            serde_json::to_vec(&document).map(|text| Packer::new().pack(&text))
        });
        packed.await?.map_err(|source| StoreError::NotStorable {
            what: "a document",
            rollout,
            source,
        })
    }
}

/// A transaction, with what it is for.
pub(crate) struct Writing<'a> {
    store: &'a Store,
    operation: &'static str,
    pub(crate) transaction: Transaction<'a, Sqlite>,
}

impl Writing<'_> {
    pub(crate) async fn execute(
        &mut self,
        query: Query<'_, Sqlite, SqliteArguments>,
    ) -> Result<(), StoreError> {
        let executed = query.execute(&mut *self.transaction).await;
        executed
            .map(drop)
            .map_err(|source| self.store.failed(self.operation, source))
    }

    /// The number of a rollout's row.
    async fn number(&mut self, rollout: RolloutId) -> Result<i64, StoreError> {
        sqlx::query_scalar("SELECT number FROM rollouts WHERE id = ?")
            .bind(rollout.to_string())
            .fetch_optional(&mut *self.transaction)
            .await
            .map_err(|source| self.store.failed(self.operation, source))?
            .ok_or_else(|| StoreError::NotFound {
                id: rollout.to_string(),
            })
    }

    /// Ends it. SQLite goes on writing to a file that was removed; what was written is kept only if the file is there.
    pub(crate) async fn commit(self) -> Result<(), StoreError> {
        let Self {
            store,
            operation,
            transaction,
        } = self;
        transaction
            .commit()
            .await
            .map_err(|source| store.failed(operation, source))?;
        if store.is_in_place() {
            Ok(())
        } else {
            Err(store.removed(operation))
        }
    }
}

/// Runs what may take milliseconds of computing (bodies may have 50 MB) away from the runtime's own threads.
pub(crate) async fn blocking<T: Send + 'static>(
    operation: &'static str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, StoreError> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|source| StoreError::Interrupted { operation, source })
}

/// Document, tokens and contents, packed.
type PackedCall = (Vec<u8>, Vec<u8>, Vec<(ContentHash, Vec<u8>)>);

fn pack_call(recorded: Recorded) -> Result<PackedCall, serde_json::Error> {
    let mut packer = Packer::new();
    let Recorded { record, contents } = recorded;
    let tokens = packer.pack(&codec::encode(record.prompt.as_ref(), &record.completions));
    let document = serde_json::to_vec(&CallDocument {
        meta: record.meta,
        request: record.request,
        response: record.response,
        continues: record.continues,
        prefix_break: record.prefix_break,
    })?;
    let document = packer.pack(&document);
    let contents = contents
        .into_iter()
        .map(|(hash, body)| (hash, packer.pack(&body)))
        .collect();
    Ok((document, tokens, contents))
}

/// What lists show of an instruction: its first line that is not empty, cut to 120 characters.
#[must_use]
pub fn title(instruction: &str) -> String {
    let line = instruction
        .lines()
        .map(str::trim)
        .find(|line| !line.is_empty())
        .unwrap_or_default();
    line.chars().take(TITLE_CHARACTERS).collect()
}
