use crate::error::StoreError;
use crate::open::Store;
use crate::read::{StoredRollout, restore};
use bytes::Bytes;
use dressage_wire::export::Source;
use dressage_wire::ids::RolloutId;
use dressage_wire::rollout::RolloutState;
use dressage_wire::trajectory::{CallRecord, ContentHash, Selection};
use std::collections::HashMap;

/// A rollout with everything that is stored of it.
#[derive(Debug)]
pub(super) struct Whole {
    pub(super) stored: StoredRollout,
    records: Vec<CallRecord>,
    contents: HashMap<ContentHash, Bytes>,
}

impl Store {
    /// Reads a rollout with everything. Of one that runs, contents are read last, so that whatever a call refers to is
    /// among them.
    pub(super) async fn whole(&self, id: RolloutId) -> Result<Whole, StoreError> {
        let mut stored = self.get(id).await?;
        if stored.row.state == RolloutState::Running && stored.outcome.is_some() {
            // It ended between the reading of its row and that of its outcome.
            stored = self.get(id).await?;
        }
        Ok(Whole {
            stored,
            records: self.calls(id).await?,
            contents: self.contents(id).await?,
        })
    }
}

impl Whole {
    /// Gives what `work` makes of it.
    pub(super) fn with_source<T>(&self, selection: Selection, work: impl FnOnce(&Source<'_>) -> T) -> T {
        let mut trajectory = restore(self.records.clone());
        trajectory.select(selection);
        let row = &self.stored.row;
        work(&Source {
            id: row.id,
            state: row.state,
            priority: row.priority,
            created_unix_ms: row.created_unix_ms,
            finished_unix_ms: row.finished_unix_ms,
            start: self.stored.start.as_ref(),
            outcome: self.stored.outcome.as_ref(),
            trajectory: &trajectory,
            records: &self.records,
            contents: &self.contents,
        })
    }
}
