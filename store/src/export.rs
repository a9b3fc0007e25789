//! The native trajectory file: one JSON document, in UTF-8, always valid (a log-probability that was not a finite number
//! is `null`). Schema version 1:
//!
//! - `schema` is `dressage.trajectory`, `schema_version` 1.
//! - `state` is `queued`, `running`, `finished` or `interrupted`; `rollout` is the rollout as it started (`null` while it is
//!   queued), `outcome` what came of it (`null` unless finished).
//! - `contents` is a list of what was said, each thing once; elsewhere it is referred to by its position in this list. What
//!   is no JSON text is a string here.
//! - `calls`, in the order of recording, each with `meta`; `flags` (all, also late ones); `trainable`; `continues`, the
//!   index of the call it goes on from; `prefix_break`; `request` with the `messages`, `tools` and `rest` of the body, by
//!   content, in whose rest `messages` and `tools` are `null`; `response`, by content; `prompt`, its token ids as the first
//!   `shared` of the prompt and first completion of call `base`, then `tail`; `completions`.
//! - `sequences`, the root-to-leaf token paths that a trainer takes, each with `leaf` (a call's index), `purpose`,
//!   `session`, `flags`, `turns` (`call`, `start`, `end`, `trained`), and of equal length `token_ids`, `loss_mask` (1 where
//!   trained, and each completion is in exactly one sequence) and `logprobs` (0.0 where not sampled on this path).

use crate::error::StoreError;
use crate::open::Store;
use crate::read::{StoredRollout, restore};
use crate::rows::RolloutState;
use crate::write::blocking;
use bytes::Bytes;
use dressage_wire::call::{CallMeta, Completion, Flag, Purpose, TopLogprob};
use dressage_wire::ids::RolloutId;
use dressage_wire::rollout::{RolloutOutcome, RolloutStart};
use dressage_wire::trajectory::{
    CallRecord, CallView, ContentHash, Delta, PrefixBreak, Sequence, Trajectory, TurnSpan,
};
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;
use std::collections::{BTreeMap, HashMap};
use std::io::{self, Write};

/// The version of the trajectory file that is written.
pub const TRAJECTORY_SCHEMA_VERSION: u32 = 1;

impl Store {
    /// Writes the trajectory file of a rollout, and gives the writer back. The file is made piece by piece.
    ///
    /// # Errors
    /// No such rollout; something of it that cannot be read; a writer that fails.
    pub async fn export_trajectory<W: Write + Send + 'static>(
        &self,
        id: RolloutId,
        mut writer: W,
    ) -> Result<W, StoreError> {
        let stored = self.get(id).await?;
        let records = self.calls(id).await?;
        let contents = self.contents(id).await?;
        let written = blocking("writing a trajectory", move || {
            write(&mut writer, &stored, &records, &contents).map(|()| writer)
        });
        written
            .await?
            .map_err(|source| StoreError::Export { rollout: id, source })
    }
}

fn write(
    writer: &mut impl Write,
    stored: &StoredRollout,
    records: &[CallRecord],
    contents: &HashMap<ContentHash, Bytes>,
) -> io::Result<()> {
    let trajectory = restore(records.to_vec());
    // In the order of their hashes, so that the same rollout gives the same file.
    let ordered: BTreeMap<_, _> = contents.iter().collect();
    let numbers: HashMap<ContentHash, usize> = ordered
        .keys()
        .enumerate()
        .map(|(number, hash)| (**hash, number))
        .collect();
    let file = File {
        schema: "dressage.trajectory",
        schema_version: TRAJECTORY_SCHEMA_VERSION,
        state: stored.row.state,
        rollout: stored.start.as_ref(),
        outcome: stored.outcome.as_ref(),
        contents: ordered.values().map(|bytes| said(bytes)).collect(),
        calls: records
            .iter()
            .zip(trajectory.calls())
            .map(|(record, view)| call(record, view, &trajectory, &numbers))
            .collect(),
        sequences: Sequences(&trajectory),
    };
    let mut buffered = io::BufWriter::new(writer);
    serde_json::to_writer(&mut buffered, &file)?;
    buffered.write_all(b"\n")?;
    buffered.flush()
}

#[derive(Serialize)]
struct File<'a> {
    schema: &'static str,
    schema_version: u32,
    state: RolloutState,
    rollout: Option<&'a RolloutStart>,
    outcome: Option<&'a RolloutOutcome>,
    contents: Vec<Said>,
    calls: Vec<FileCall<'a>>,
    sequences: Sequences<'a>,
}

/// A content, as JSON where it is that.
#[derive(Serialize)]
#[serde(untagged)]
enum Said {
    Json(Box<RawValue>),
    Text(String),
}

fn said(bytes: &Bytes) -> Said {
    serde_json::from_slice(bytes).map_or_else(
        |_| Said::Text(String::from_utf8_lossy(bytes).into_owned()),
        Said::Json,
    )
}

#[derive(Serialize)]
struct FileCall<'a> {
    meta: &'a CallMeta,
    flags: Vec<Flag>,
    trainable: bool,
    continues: Option<u32>,
    prefix_break: Option<&'a PrefixBreak>,
    request: FileRequest,
    response: Option<usize>,
    prompt: Option<&'a Delta<u32>>,
    completions: Vec<FileCompletion<'a>>,
}

#[derive(Serialize)]
struct FileRequest {
    messages: Option<Vec<usize>>,
    tools: Option<usize>,
    rest: Option<usize>,
}

#[derive(Serialize)]
struct FileCompletion<'a> {
    index: u32,
    token_ids: &'a [u32],
    logprobs: &'a [f64],
    tokens: &'a [String],
    top_logprobs: &'a [Vec<TopLogprob>],
    finish_reason: Option<&'a str>,
    stop_reason: Option<&'a str>,
}

fn call<'a>(
    record: &'a CallRecord,
    view: CallView<'_>,
    trajectory: &Trajectory,
    numbers: &HashMap<ContentHash, usize>,
) -> FileCall<'a> {
    let number = |hash: &ContentHash| numbers.get(hash).copied();
    FileCall {
        meta: &record.meta,
        flags: view.flags,
        trainable: view.trainable,
        continues: record.continues,
        prefix_break: record.prefix_break.as_ref(),
        request: FileRequest {
            messages: record.request.layout.as_ref().and_then(|_| {
                let messages = trajectory.messages(record.meta.index)?;
                messages.iter().map(number).collect()
            }),
            tools: record.request.tools.as_ref().and_then(|(_, tools)| number(tools)),
            rest: number(&record.request.rest),
        },
        response: record.response.as_ref().and_then(number),
        prompt: record.prompt.as_ref(),
        completions: record.completions.iter().map(completion).collect(),
    }
}

fn completion(choice: &Completion) -> FileCompletion<'_> {
    FileCompletion {
        index: choice.index,
        token_ids: &choice.token_ids,
        logprobs: &choice.logprobs,
        tokens: &choice.tokens,
        top_logprobs: &choice.top_logprobs,
        finish_reason: choice.finish_reason.as_deref(),
        stop_reason: choice.stop_reason.as_deref(),
    }
}

/// Made one by one as they are written.
struct Sequences<'a>(&'a Trajectory);

impl Serialize for Sequences<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.sequences().map(FileSequence::from))
    }
}

#[derive(Serialize)]
struct FileSequence {
    leaf: u32,
    purpose: Purpose,
    session: Option<String>,
    flags: Vec<Flag>,
    turns: Vec<FileTurn>,
    token_ids: Vec<u32>,
    loss_mask: Vec<u8>,
    logprobs: Vec<f64>,
}

#[derive(Serialize)]
struct FileTurn {
    call: u32,
    start: usize,
    end: usize,
    trained: bool,
}

impl From<Sequence> for FileSequence {
    fn from(sequence: Sequence) -> Self {
        let turn = |turn: &TurnSpan| FileTurn {
            call: turn.call,
            start: turn.start,
            end: turn.end,
            trained: turn.trained,
        };
        Self {
            leaf: sequence.plan.leaf,
            purpose: sequence.plan.purpose,
            session: sequence.plan.session,
            flags: sequence.plan.flags,
            turns: sequence.plan.turns.iter().map(turn).collect(),
            token_ids: sequence.token_ids,
            loss_mask: sequence.loss_mask,
            logprobs: sequence.logprobs,
        }
    }
}
