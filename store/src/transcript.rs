use crate::error::StoreError;
use crate::open::Store;
use crate::read::restore;
use crate::write::blocking;
use bytes::Bytes;
use dressage_wire::ids::RolloutId;
use dressage_wire::trajectory::{CallRecord, ContentHash, Selection, Trajectory, assemble};
use std::collections::HashMap;

/// Everything that was said in a rollout: its calls with tokens, requests and replies, read once.
#[derive(Debug)]
pub struct Transcript {
    records: HashMap<u32, CallRecord>,
    trajectory: Trajectory,
    contents: HashMap<ContentHash, Bytes>,
}

impl Store {
    /// Everything that was said in a rollout.
    ///
    /// # Errors
    /// No such rollout; a call or content that cannot be read.
    pub async fn transcript(&self, id: RolloutId) -> Result<Transcript, StoreError> {
        let records = self.calls(id).await?;
        let contents = self.contents(id).await?;
        blocking("restoring a trajectory", move || Transcript {
            records: records
                .iter()
                .map(|record| (record.meta.index, record.clone()))
                .collect(),
            trajectory: restore(records),
            contents,
        })
        .await
    }
}

impl Transcript {
    /// The calls with their tokens, late flags included.
    #[must_use]
    pub fn trajectory(&self) -> &Trajectory {
        &self.trajectory
    }

    /// Says what is trained.
    pub fn select(&mut self, selection: Selection) {
        self.trajectory.select(selection);
    }

    /// A call as it was recorded.
    #[must_use]
    pub fn record(&self, index: u32) -> Option<&CallRecord> {
        self.records.get(&index)
    }

    /// The body of a call's request, byte for byte as the agent sent it; `None` where a part of it is missing.
    #[must_use]
    pub fn request(&self, index: u32) -> Option<Vec<u8>> {
        let messages = self.trajectory.messages(index)?;
        let parts = &self.record(index)?.request;
        assemble(parts, &messages, |hash| self.contents.get(&hash).cloned()).ok()
    }

    /// The body of the reply to a call, in the dialect's unary form; `None` where nothing came.
    #[must_use]
    pub fn response(&self, index: u32) -> Option<&Bytes> {
        self.contents.get(&self.record(index)?.response?)
    }

    /// How many messages the requests of two calls begin with in common.
    #[must_use]
    pub fn shared_messages(&self, one: u32, other: u32) -> usize {
        let messages = |index| self.trajectory.messages(index).unwrap_or_default();
        let (one, other) = (messages(one), messages(other));
        one.iter()
            .zip(&other)
            .take_while(|(one, other)| one == other)
            .count()
    }
}
