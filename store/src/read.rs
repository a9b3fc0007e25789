use crate::codec::{self, CodecError};
use crate::error::StoreError;
use crate::open::Store;
use crate::packed::unpack;
use crate::rows::RolloutRow;
use crate::write::{CallDocument, blocking};
use bytes::Bytes;
use dressage_wire::ids::{OwnerId, RolloutId};
use dressage_wire::rollout::{RolloutOutcome, RolloutStart, RolloutState};
use dressage_wire::trajectory::{CallRecord, ContentHash, Trajectory, assemble};
use serde::de::DeserializeOwned;
use sqlx::Row;
use std::collections::HashMap;

/// What is known of a rollout.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredRollout {
    /// As lists show it.
    pub row: RolloutRow,
    /// As it started; `None` while it waits.
    pub start: Option<RolloutStart>,
    /// What came of it; `None` while it runs, and where it was interrupted.
    pub outcome: Option<RolloutOutcome>,
}

impl Store {
    /// A rollout.
    ///
    /// # Errors
    /// No such rollout; documents that cannot be read.
    pub async fn get(&self, id: RolloutId) -> Result<StoredRollout, StoreError> {
        let row = self.row(id).await?;
        if row.state == RolloutState::Queued {
            return Ok(StoredRollout {
                row,
                start: None,
                outcome: None,
            });
        }
        let start = self.document_of(id, "start", "the start").await?;
        Ok(StoredRollout {
            row,
            start: Some(start.ok_or(StoreError::Unreadable {
                what: "the start",
                rollout: id,
                source: CodecError::Truncated,
            })?),
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

    /// The calls of a rollout, in the order of recording; none of one that waits.
    ///
    /// # Errors
    /// No such rollout; a call that cannot be read.
    pub async fn calls(&self, id: RolloutId) -> Result<Vec<CallRecord>, StoreError> {
        const OPERATION: &str = "reading calls";
        let Some(number) = self.number_of(OPERATION, id).await? else {
            return Ok(Vec::new());
        };
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
        let Some(number) = self.number_of(OPERATION, id).await? else {
            return Ok(HashMap::new());
        };
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
