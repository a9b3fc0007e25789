use crate::call::{Call, Flag};
use crate::graph::TokenGraph;
use crate::ids::CallId;
use crate::rollout::Totals;
use crate::trajectory::lineage::{Lineage, Seeker};
use crate::trajectory::record::{CallRecord, Delta, Recorded, RequestParts};
use crate::trajectory::request::split;
use crate::trajectory::{ContentHash, Sequence, Trajectory, shape};
use bytes::Bytes;

/// Takes the calls of a rollout in, each as it ends, and gives what is to be stored of it.
///
/// Holds each token id and log-probability once, and of messages only hashes: 100 turns of 60,000 tokens stay under
/// 2 MB, also when each breaks inside the completion before.
#[derive(Debug, Default)]
pub struct TrajectoryBuilder {
    trajectory: Trajectory,
    lineage: Lineage,
}

impl TrajectoryBuilder {
    /// Of no calls yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes a call in. An index that an earlier call has is replaced by the next free one.
    pub fn push(&mut self, call: Call) -> Recorded {
        let Call {
            mut meta,
            request,
            response,
            prompt_token_ids,
            completions,
        } = call;
        meta.index = self.trajectory.free_index(meta.index);
        let index = meta.index;
        let shape = shape::of(meta.dialect);
        let parts = split(&request, shape);

        let mut contents = Vec::new();
        let kept: Vec<(ContentHash, u32)> = parts
            .messages
            .iter()
            .map(|message| self.keep(message, &mut contents))
            .collect();
        let numbers: Vec<u32> = kept.iter().map(|(_, number)| *number).collect();
        let line = self.trajectory.messages.insert(TokenGraph::ROOT, &numbers, index);
        let new_messages = kept.get(line.shared..).unwrap_or_default();
        let tail = new_messages.iter().map(|(hash, _)| *hash).collect();
        let request = RequestParts {
            messages: delta(line.shared, line.shared_with, tail),
            layout: parts.layout,
            tools: parts
                .tools
                .map(|(at, tools)| (at, self.keep(&tools, &mut contents).0)),
            rest: self.keep(&parts.rest, &mut contents).0,
        };

        let prompt = prompt_token_ids.map(|ids| {
            let inserted = self.trajectory.tokens.insert(TokenGraph::ROOT, &ids, index);
            let tail = ids.get(inserted.shared..).unwrap_or_default().to_vec();
            (inserted, delta(inserted.shared, inserted.shared_with, tail))
        });
        let seeker = Seeker {
            meta: &meta,
            shape,
            messages: &parts.messages,
            numbers: &numbers,
            prompt: prompt.as_ref().map(|(inserted, _)| *inserted),
            response: &response,
        };
        let (continues, prefix_break) = self.lineage.place(&self.trajectory, &seeker);
        let tokens = prompt
            .as_ref()
            .map(|(inserted, _)| self.trajectory.complete(inserted.node, &completions, index));
        let response = (!response.is_empty()).then(|| self.keep(&response, &mut contents).0);

        let record = CallRecord {
            meta,
            request,
            response,
            prompt: prompt.map(|(_, delta)| delta),
            completions,
            continues,
            prefix_break,
        };
        self.trajectory.hold(&record, Some(line.node), tokens);
        Recorded { record, contents }
    }

    /// Flags that calls get when all are known; those of the calls that have any. See [`Trajectory::finalise`].
    pub fn finalise(&mut self) -> Vec<(CallId, Vec<Flag>)> {
        self.trajectory.finalise()
    }

    /// What the calls so far add up to.
    #[must_use]
    pub fn totals(&self) -> Totals {
        self.trajectory.totals()
    }

    /// The sequences, made one by one. See [`Trajectory::plan`].
    pub fn sequences(&self) -> impl Iterator<Item = Sequence> + '_ {
        self.trajectory.sequences()
    }

    /// What has been taken in.
    #[must_use]
    pub fn trajectory(&self) -> &Trajectory {
        &self.trajectory
    }

    /// Hash and number of a content, which is added to `contents` if it is the first of its kind.
    fn keep(&mut self, content: &Bytes, contents: &mut Vec<(ContentHash, Bytes)>) -> (ContentHash, u32) {
        let hash = ContentHash::of(content);
        let (number, new) = self.trajectory.number(hash);
        if new {
            contents.push((hash, content.clone()));
        }
        (hash, number)
    }
}

fn delta<T>(shared: usize, shared_with: Option<u32>, tail: Vec<T>) -> Delta<T> {
    Delta {
        base: shared_with,
        // Longer lists than this do not fit into memory.
        shared: u32::try_from(shared).unwrap_or(u32::MAX),
        tail,
    }
}
