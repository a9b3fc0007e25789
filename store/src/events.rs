use crate::codec::CodecError;
use crate::error::StoreError;
use crate::open::Store;
use crate::packed::{Packer, unpack};
use crate::write::blocking;
use bytes::Bytes;
use dressage_wire::ids::RolloutId;

impl Store {
    /// Keeps the events of a rollout: JSON, one a line, not packed yet. What was kept of it earlier is replaced.
    ///
    /// # Errors
    /// No such rollout, or one that has not begun; a database that cannot be written.
    pub async fn save_events(&self, id: RolloutId, lines: Bytes) -> Result<(), StoreError> {
        const OPERATION: &str = "storing events";
        let packed = blocking(OPERATION, move || Packer::new().pack(&lines)).await?;
        let done = sqlx::query(
            "INSERT OR REPLACE INTO event_logs (rollout, body) SELECT number, ? FROM rollouts WHERE id = ?",
        )
        .bind(packed)
        .bind(id.to_string())
        .execute(&self.writer)
        .await
        .map_err(|source| self.failed(OPERATION, source))?;
        if done.rows_affected() > 0 {
            Ok(())
        } else {
            Err(StoreError::NotFound { id: id.to_string() })
        }
    }

    /// The events of a rollout, as they were given; `None` where none were kept.
    ///
    /// # Errors
    /// No such rollout; events that cannot be read.
    pub async fn events(&self, id: RolloutId) -> Result<Option<Vec<u8>>, StoreError> {
        const OPERATION: &str = "reading events";
        let Some(number) = self.number_of(OPERATION, id).await? else {
            return Ok(None);
        };
        let packed: Option<Vec<u8>> = sqlx::query_scalar("SELECT body FROM event_logs WHERE rollout = ?")
            .bind(number)
            .fetch_optional(&self.readers)
            .await
            .map_err(|source| self.failed(OPERATION, source))?;
        let Some(packed) = packed else {
            return Ok(None);
        };
        let unpacked: Result<_, CodecError> = blocking(OPERATION, move || unpack(&packed)).await?;
        unpacked.map(Some).map_err(|source| StoreError::Unreadable {
            what: "the event log",
            rollout: id,
            source,
        })
    }
}
