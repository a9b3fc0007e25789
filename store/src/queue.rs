use crate::codec::CodecError;
use crate::error::StoreError;
use crate::open::Store;
use crate::packed::{Packer, unpack};
use crate::rows::{Cells, signed};
use crate::write::blocking;
use bytes::Bytes;
use dressage_wire::ids::{GroupId, OwnerId, RolloutId};
use dressage_wire::trajectory::ContentHash;
use sqlx::sqlite::SqliteRow;
use sqlx::{Sqlite, Transaction};
use std::collections::HashSet;

/// How long what was answered to a request is kept.
const KEY_KEPT_MS: i64 = 24 * 60 * 60 * 1000;

/// A rollout as it was asked for.
#[derive(Clone, Debug, PartialEq)]
pub struct QueuedRollout {
    /// Its id.
    pub id: RolloutId,
    /// The process in whose queue it is.
    pub owner: OwnerId,
    /// The n rollouts that were asked for together.
    pub group: Option<GroupId>,
    /// Which of them it is, from 0.
    pub sample: u32,
    /// The caller's name for its task.
    pub task_id: Option<String>,
    /// The first line of the instruction, as [`title`](crate::title) makes it.
    pub title: String,
    /// Name of the agent.
    pub agent: String,
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
    /// What it can be made from again, in a form that is the caller's own. Never a secret. Where several have the same it
    /// is stored once.
    pub spec: Bytes,
}

/// What makes a request one that may come again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Idempotency {
    /// The caller's name for the request.
    pub key: String,
    /// A hash of the request, so that another one by the same name is not taken for it.
    pub fingerprint: [u8; 32],
}

/// What became of rollouts that were to be put into the queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Enqueued {
    /// They are in it.
    New,
    /// The same request came before, and these rollouts were made for it. Nothing was put into the queue.
    Repeated(Vec<RolloutId>),
    /// Another request came before by the same key. Nothing was put into the queue.
    Conflict,
}

/// A rollout taken over from an owner that died.
#[derive(Clone, Debug, PartialEq)]
pub struct Adopted {
    /// As it was asked for; its owner is the new one.
    pub queued: QueuedRollout,
    /// Whether its owner died over it. It begins again, with nothing left of what it was, when it is started again.
    pub interrupted: bool,
    /// How often an owner has died over it.
    pub interruptions: u32,
}

impl Store {
    /// Puts rollouts into the queue: all, or none. They stay there, whatever happens to the process, until they are
    /// finished or taken out.
    ///
    /// # Errors
    /// A database that cannot be written; an id that is in the queue already.
    pub async fn enqueue(
        &self,
        rollouts: &[QueuedRollout],
        idempotency: Option<Idempotency>,
    ) -> Result<Enqueued, StoreError> {
        const OPERATION: &str = "putting rollouts into the queue";
        let packed = {
            let rollouts = rollouts.to_vec();
            blocking(OPERATION, move || pack(&rollouts)).await?
        };
        let mut writing = self.begin(OPERATION).await?;
        if let Some(idempotency) = idempotency {
            let ids: Vec<RolloutId> = rollouts.iter().map(|rollout| rollout.id).collect();
            let earlier = self
                .remember(OPERATION, &mut writing.transaction, &idempotency, &ids)
                .await?;
            if let Some(earlier) = earlier {
                return Ok(earlier);
            }
        }
        for (hash, body) in packed.bodies {
            sqlx::query("INSERT OR IGNORE INTO specs (hash, body) VALUES (?, ?)")
                .bind(hash.0.to_vec())
                .bind(body)
                .execute(&mut *writing.transaction)
                .await
                .map_err(|source| self.failed(OPERATION, source))?;
        }
        for (rollout, hash) in rollouts.iter().zip(packed.hashes) {
            sqlx::query(
                "INSERT INTO queue (id, owner, group_id, sample, task_id, title, agent, backend, endpoint, model, \
                 priority, created_unix_ms, spec) \
                 VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, (SELECT number FROM specs WHERE hash = ?))",
            )
            .bind(rollout.id.to_string())
            .bind(rollout.owner.to_string())
            .bind(rollout.group.map(|group| group.to_string()))
            .bind(rollout.sample)
            .bind(&rollout.task_id)
            .bind(&rollout.title)
            .bind(&rollout.agent)
            .bind(&rollout.backend)
            .bind(&rollout.endpoint)
            .bind(&rollout.model)
            .bind(rollout.priority)
            .bind(signed(rollout.created_unix_ms))
            .bind(hash.0.to_vec())
            .execute(&mut *writing.transaction)
            .await
            .map_err(|source| self.failed(OPERATION, source))?;
        }
        writing.commit().await?;
        Ok(Enqueued::New)
    }

    /// Takes a rollout out of the queue, and tells whether it was there. One that has begun goes on, and does not begin
    /// again when its owner dies.
    ///
    /// # Errors
    /// A database that cannot be written.
    pub async fn dequeue(&self, id: RolloutId) -> Result<bool, StoreError> {
        let done = sqlx::query("DELETE FROM queue WHERE id = ?")
            .bind(id.to_string())
            .execute(&self.writer)
            .await
            .map_err(|source| self.failed("taking a rollout out of the queue", source))?;
        Ok(done.rows_affected() > 0)
    }

    /// Undoes an [`enqueue`](Self::enqueue) whose rollouts were not accepted after all: takes them out of the queue, and
    /// forgets the request, so that it is a new one when it comes again.
    ///
    /// # Errors
    /// A database that cannot be written.
    pub async fn withdraw(&self, ids: &[RolloutId], key: Option<&str>) -> Result<(), StoreError> {
        const OPERATION: &str = "taking rollouts out of the queue";
        let mut writing = self.begin(OPERATION).await?;
        for id in ids {
            self.leave_queue(OPERATION, &mut writing.transaction, *id).await?;
        }
        if let Some(key) = key {
            sqlx::query("DELETE FROM idempotency WHERE key = ?")
                .bind(key)
                .execute(&mut *writing.transaction)
                .await
                .map_err(|source| self.failed(OPERATION, source))?;
        }
        writing.commit().await
    }

    /// Owners that have rollouts in the queue.
    ///
    /// # Errors
    /// A database that cannot be read.
    pub async fn queue_owners(&self) -> Result<Vec<OwnerId>, StoreError> {
        let owners: Vec<String> = sqlx::query_scalar("SELECT DISTINCT owner FROM queue")
            .fetch_all(&self.readers)
            .await
            .map_err(|source| self.failed("reading the queue's owners", source))?;
        Ok(owners.iter().filter_map(|owner| owner.parse().ok()).collect())
    }

    /// Makes the new owner's what owners that are dead have in the queue, and gives it, the oldest first. What they ran
    /// is marked as interrupted. Of several processes that do this at once each rollout goes to one.
    ///
    /// # Errors
    /// A database that cannot be written; a spec that cannot be read (nothing is taken over then).
    pub async fn adopt(&self, new_owner: OwnerId, dead: &[OwnerId]) -> Result<Vec<Adopted>, StoreError> {
        const OPERATION: &str = "taking over a dead owner's queue";
        let failed = |source| self.failed(OPERATION, source);
        // What is finished, but not stored yet, does not begin again.
        self.take_in_unsaved().await;
        let mut writing = self.begin(OPERATION).await?;
        let mut rows = Vec::new();
        for owner in dead.iter().filter(|owner| **owner != new_owner) {
            self.interrupt(OPERATION, &mut writing.transaction, *owner)
                .await?;
            sqlx::query(
                "UPDATE queue SET interruptions = interruptions + 1 WHERE owner = ? AND EXISTS \
                 (SELECT 1 FROM rollouts WHERE rollouts.id = queue.id AND rollouts.owner = queue.owner)",
            )
            .bind(owner.to_string())
            .execute(&mut *writing.transaction)
            .await
            .map_err(failed)?;
            let of_owner = sqlx::query(
                "SELECT id, owner, group_id, sample, task_id, title, agent, backend, endpoint, model, priority, \
                 created_unix_ms, interruptions, \
                 EXISTS (SELECT 1 FROM rollouts WHERE rollouts.id = queue.id AND state = 'interrupted'), body \
                 FROM queue JOIN specs ON number = spec WHERE owner = ?",
            )
            .bind(owner.to_string())
            .fetch_all(&mut *writing.transaction)
            .await
            .map_err(failed)?;
            rows.extend(of_owner);
            sqlx::query("UPDATE queue SET owner = ? WHERE owner = ?")
                .bind(new_owner.to_string())
                .bind(owner.to_string())
                .execute(&mut *writing.transaction)
                .await
                .map_err(failed)?;
        }
        let mut adopted = Vec::new();
        for row in &rows {
            let (mut one, packed) = read(row).map_err(failed)?;
            let rollout = one.queued.id;
            one.queued.owner = new_owner;
            one.queued.spec = unpack(&packed)
                .map(Bytes::from)
                .map_err(|source| unreadable(rollout, source))?;
            adopted.push(one);
        }
        adopted.sort_by_key(|one| one.queued.id);
        writing.commit().await?;
        Ok(adopted)
    }

    /// Has a rollout of the queue, over which its owner died, wait again: what was recorded of it goes, and it is no longer
    /// told of as interrupted. One that nobody died over, or that is not in the queue, stays as it is.
    ///
    /// # Errors
    /// A database that cannot be written.
    pub async fn wait_again(&self, id: RolloutId) -> Result<(), StoreError> {
        const OPERATION: &str = "having an interrupted rollout wait again";
        let mut writing = self.begin(OPERATION).await?;
        self.make_room(OPERATION, &mut writing.transaction, id).await?;
        writing.commit().await
    }

    /// Keeps which rollouts a request led to, unless something is kept for it: then gives what that says.
    async fn remember(
        &self,
        operation: &'static str,
        transaction: &mut Transaction<'_, Sqlite>,
        Idempotency { key, fingerprint }: &Idempotency,
        ids: &[RolloutId],
    ) -> Result<Option<Enqueued>, StoreError> {
        let failed = |source| self.failed(operation, source);
        let now = jiff::Timestamp::now().as_millisecond();
        sqlx::query("DELETE FROM idempotency WHERE created_unix_ms < ?")
            .bind(now - KEY_KEPT_MS)
            .execute(&mut **transaction)
            .await
            .map_err(failed)?;
        let earlier: Option<(Vec<u8>, String)> =
            sqlx::query_as("SELECT fingerprint, rollouts FROM idempotency WHERE key = ?")
                .bind(key)
                .fetch_optional(&mut **transaction)
                .await
                .map_err(failed)?;
        if let Some((earlier, rollouts)) = earlier {
            if earlier != fingerprint {
                return Ok(Some(Enqueued::Conflict));
            }
            let rollouts = serde_json::from_str(&rollouts)
                .map_err(|source| failed(sqlx::Error::Decode(Box::new(source))))?;
            return Ok(Some(Enqueued::Repeated(rollouts)));
        }
        let rollouts =
            serde_json::to_string(ids).map_err(|source| failed(sqlx::Error::Encode(Box::new(source))))?;
        sqlx::query(
            "INSERT INTO idempotency (key, fingerprint, rollouts, created_unix_ms) VALUES (?, ?, ?, ?)",
        )
        .bind(key)
        .bind(fingerprint.to_vec())
        .bind(rollouts)
        .bind(now)
        .execute(&mut **transaction)
        .await
        .map_err(failed)?;
        Ok(None)
    }

    /// What is finished is not begun again.
    pub(crate) async fn leave_queue(
        &self,
        operation: &'static str,
        transaction: &mut Transaction<'_, Sqlite>,
        id: RolloutId,
    ) -> Result<(), StoreError> {
        sqlx::query("DELETE FROM queue WHERE id = ?")
            .bind(id.to_string())
            .execute(&mut **transaction)
            .await
            .map_err(|source| self.failed(operation, source))?;
        Ok(())
    }

    /// Removes what an owner left that died over a rollout, where that is in the queue to begin again.
    pub(crate) async fn make_room(
        &self,
        operation: &'static str,
        transaction: &mut Transaction<'_, Sqlite>,
        id: RolloutId,
    ) -> Result<(), StoreError> {
        sqlx::query(
            "DELETE FROM rollouts WHERE id = ?1 AND state = 'interrupted' \
             AND EXISTS (SELECT 1 FROM queue WHERE id = ?1)",
        )
        .bind(id.to_string())
        .execute(&mut **transaction)
        .await
        .map_err(|source| self.failed(operation, source))?;
        Ok(())
    }
}

/// Specs, each once.
struct PackedSpecs {
    /// That of each rollout.
    hashes: Vec<ContentHash>,
    bodies: Vec<(ContentHash, Vec<u8>)>,
}

fn pack(rollouts: &[QueuedRollout]) -> PackedSpecs {
    let mut packer = Packer::new();
    let mut packed = PackedSpecs {
        hashes: Vec::with_capacity(rollouts.len()),
        bodies: Vec::new(),
    };
    let mut known = HashSet::new();
    let mut last: Option<(&Bytes, ContentHash)> = None;
    for QueuedRollout { spec, .. } in rollouts {
        // The rollouts of a group share theirs, which may be large: it is read once.
        let hash = match last {
            Some((bytes, hash)) if bytes.as_ptr() == spec.as_ptr() && bytes.len() == spec.len() => hash,
            _ => ContentHash::of(spec),
        };
        last = Some((spec, hash));
        if known.insert(hash) {
            packed.bodies.push((hash, packer.pack(spec)));
        }
        packed.hashes.push(hash);
    }
    packed
}

/// A row of what [`Store::adopt`] selects, and its spec, packed.
fn read(row: &SqliteRow) -> Result<(Adopted, Vec<u8>), sqlx::Error> {
    let mut cells = Cells::of(row);
    let queued = QueuedRollout {
        id: cells.parsed()?,
        owner: cells.parsed()?,
        group: cells.optional()?,
        sample: cells.value()?,
        task_id: cells.value()?,
        title: cells.value()?,
        agent: cells.value()?,
        backend: cells.value()?,
        endpoint: cells.value()?,
        model: cells.value()?,
        priority: cells.value()?,
        created_unix_ms: cells.count()?,
        spec: Bytes::new(),
    };
    let adopted = Adopted {
        queued,
        interruptions: cells.value()?,
        interrupted: cells.value()?,
    };
    Ok((adopted, cells.value()?))
}

fn unreadable(rollout: RolloutId, source: CodecError) -> StoreError {
    StoreError::Unreadable {
        what: "the spec",
        rollout,
        source,
    }
}
