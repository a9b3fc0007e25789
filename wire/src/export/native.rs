//! Everything of a rollout, as one JSON document. Two exports of the same rollout are the same bytes, and one that was
//! read in elsewhere is exported there as those bytes again.

use crate::call::{CallMeta, Completion, Flag, Purpose};
use crate::export::source::head_columns;
use crate::export::{Cell, Column, Kind, Row, Shape, Source};
use crate::rollout::{RolloutOutcome, RolloutStart, RolloutState};
use crate::trajectory::{
    ArrayLayout, CallRecord, CallView, ContentHash, Delta, Keep, PrefixBreak, RequestParts, Selection,
    Trajectory, Untrained,
};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};

/// The schema that a document names.
pub const SCHEMA: &str = "dressage.trajectory";

/// The version of it that is written, and the only one that is read.
pub const SCHEMA_VERSION: u32 = 2;

/// Columns of a row in Parquet: the document as JSON text, and what one filters by.
pub const COLUMNS: &[Column] = head_columns!("document" Kind::Text);

/// Where [`COLUMNS`] have the document.
pub const DOCUMENT_COLUMN: &str = "document";

/// A rollout with everything that is kept of it.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Document<'a> {
    /// [`SCHEMA`].
    pub schema: Cow<'a, str>,
    /// [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// How far it is.
    pub state: RolloutState,
    /// Higher ones start first.
    pub priority: i32,
    /// When it was asked for, milliseconds since the Unix epoch.
    pub created_unix_ms: u64,
    /// When it ended, milliseconds since the Unix epoch; for an interrupted one, when that was noticed.
    pub finished_unix_ms: Option<u64>,
    /// As it started; `None` while it waits.
    pub rollout: Option<Cow<'a, RolloutStart>>,
    /// What came of it; `None` where it is not finished.
    pub outcome: Option<Cow<'a, RolloutOutcome>>,
    /// What `trainable` and the sequences go by.
    pub selection: Cow<'a, Selection>,
    /// What was said, each thing once, in the order of the hashes. Elsewhere it is referred to by its position here.
    pub contents: Vec<Content<'a>>,
    /// The calls, in the order of recording.
    pub calls: Vec<DocumentCall<'a>>,
    /// The sequences that a trainer takes. They follow from the calls.
    #[cfg_attr(feature = "schema", schema(value_type = Vec<DocumentSequence>))]
    pub sequences: Sequences<'a>,
}

/// Something that was said: a message, an array of tools, the rest of a request, a reply.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Content<'a> {
    /// SHA-256 of its bytes, the first 16 of it.
    pub hash: ContentHash,
    /// The bytes, where they are UTF-8; `None` also where they were never stored.
    pub text: Option<Cow<'a, str>>,
    /// The bytes in base64, where they are not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base64: Option<String>,
}

/// A call.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct DocumentCall<'a> {
    /// What is small. Its flags are those it was recorded with.
    pub meta: Cow<'a, CallMeta>,
    /// All flags, with those given when all calls were known.
    pub flags: Vec<Flag>,
    /// Whether its completion is trained, in one of the sequences.
    pub trainable: bool,
    /// Why not, where it is not.
    pub untrained: Option<Untrained>,
    /// `meta.index` of the call whose conversation it goes on from.
    pub continues: Option<u32>,
    /// How its prompt differs from that call's prompt and completion, where it does.
    pub prefix_break: Option<Cow<'a, PrefixBreak>>,
    /// The agent's request, by contents.
    pub request: DocumentRequest<'a>,
    /// The reply, by content; `None` where nothing came.
    pub response: Option<u32>,
    /// The prompt's ids, where they were captured.
    pub prompt: Option<Cow<'a, Delta<u32>>>,
    /// What was sampled.
    #[cfg_attr(feature = "schema", schema(value_type = Vec<Completion>))]
    pub completions: Cow<'a, [Completion]>,
}

/// A request. See [`RequestParts`].
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct DocumentRequest<'a> {
    /// The messages, as what they share with an earlier call's and what is new.
    pub messages: Delta<u32>,
    /// How they stand in the body.
    pub layout: Option<Cow<'a, ArrayLayout>>,
    /// The tools.
    pub tools: Option<DocumentTools>,
    /// The body without both.
    pub rest: u32,
}

/// Where tools are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct DocumentTools {
    /// Offset in `rest` of the `null` that stands for them.
    pub at: u32,
    /// The content.
    pub content: u32,
}

/// Sequences: made as they are written, since together they may be much larger than the calls, or as they were read.
#[derive(Debug)]
pub enum Sequences<'a> {
    /// Those of a trajectory, in a rollout with this reward.
    Of(&'a Trajectory, Option<f64>),
    /// As read.
    Read(Vec<DocumentSequence>),
}

/// A sequence.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct DocumentSequence {
    /// `meta.index` of the call whose completion ends it.
    pub leaf: u32,
    /// What that call was made for.
    pub purpose: Purpose,
    /// The agent's own id of the conversation.
    pub session: Option<String>,
    /// Flags of the leaf.
    pub flags: Vec<Flag>,
    /// The reward that its trained tokens have.
    pub reward: Option<f64>,
    /// Completions on it.
    pub turns: Vec<DocumentTurn>,
    /// Every id from the root to the leaf.
    pub token_ids: Vec<u32>,
    /// For each id, 1 where it is trained here, else 0.
    pub loss_mask: Vec<u8>,
    /// For each id, its log-probability where it was sampled on this path, else 0.0.
    pub logprobs: Vec<f64>,
}

/// Where a completion lies in a sequence.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct DocumentTurn {
    /// `meta.index` of the call.
    pub call: u32,
    /// Position of its first sampled token.
    pub start: usize,
    /// Position after its last.
    pub end: usize,
    /// Whether it is trained in this sequence.
    pub trained: bool,
    /// Policy version when the call was sent.
    pub policy_version_at_dispatch: Option<String>,
    /// Policy version when it ended.
    pub policy_version_at_completion: Option<String>,
}

/// Something of a document that refers to nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DocumentError {
    /// A position that the contents do not have.
    #[error("call {call} refers to content {content}, and there are {contents}")]
    NoContent {
        /// `meta.index` of the call.
        call: u32,
        /// What it refers to.
        content: u32,
        /// How many there are.
        contents: usize,
    },
    /// Bytes that are not in base64.
    #[error("content {content} is not in base64")]
    NotBase64 {
        /// Its position.
        content: usize,
    },
}

/// The document of a rollout.
pub(super) fn document<'a>(source: &Source<'a>) -> Document<'a> {
    let (contents, numbers) = contents(source);
    let number = |hash: &ContentHash| numbers.get(hash).copied().unwrap_or(u32::MAX);
    let calls = source.records.iter().zip(source.trajectory.calls());
    Document {
        schema: SCHEMA.into(),
        schema_version: SCHEMA_VERSION,
        state: source.state,
        priority: source.priority,
        created_unix_ms: source.created_unix_ms,
        finished_unix_ms: source.finished_unix_ms,
        rollout: source.start.map(Cow::Borrowed),
        outcome: source.outcome.map(Cow::Borrowed),
        selection: Cow::Borrowed(source.trajectory.selection()),
        contents,
        calls: calls
            .map(|(record, view)| call(record, view, source.trajectory.selection(), &number))
            .collect(),
        sequences: Sequences::Of(source.trajectory, source.reward()),
    }
}

/// The document of a rollout for those who read its calls alone: its sequences, which follow from them and can be many times
/// as large, are left out.
#[must_use]
pub fn without_sequences<'a>(source: &Source<'a>) -> Document<'a> {
    Document {
        sequences: Sequences::Read(Vec::new()),
        ..document(source)
    }
}

/// Its row in Parquet; none where it has no JSON form, which does not happen.
pub(super) fn row<'a>(source: &Source<'a>) -> Option<Row<'a>> {
    let mut row = source.head(Shape::Native, Purpose::Agent);
    row.push(Cell::text(serde_json::to_string(&document(source)).ok()?));
    Some(row)
}

/// Everything that is there or referred to, and where it is.
fn contents<'a>(source: &Source<'a>) -> (Vec<Content<'a>>, HashMap<ContentHash, u32>) {
    let mut ordered: BTreeMap<ContentHash, Option<&'a Bytes>> = BTreeMap::new();
    for record in source.records {
        let parts = &record.request;
        let tools = parts.tools.iter().map(|(_, hash)| hash);
        let hashes = parts.messages.tail.iter().chain(tools).chain([&parts.rest]);
        ordered.extend(hashes.chain(&record.response).map(|hash| (*hash, None)));
    }
    ordered.extend(source.contents.iter().map(|(hash, bytes)| (*hash, Some(bytes))));
    let numbers = ordered.keys().copied().zip(0..).collect();
    let content = |(hash, bytes): (ContentHash, Option<&'a Bytes>)| {
        let text = bytes.and_then(|bytes| std::str::from_utf8(bytes).ok());
        let base64 = bytes.filter(|_| text.is_none());
        Content {
            hash,
            text: text.map(Cow::Borrowed),
            base64: base64.map(|bytes| STANDARD.encode(bytes)),
        }
    };
    (ordered.into_iter().map(content).collect(), numbers)
}

fn call<'a>(
    record: &'a CallRecord,
    view: CallView<'_>,
    selection: &Selection,
    number: &impl Fn(&ContentHash) -> u32,
) -> DocumentCall<'a> {
    let RequestParts {
        messages,
        layout,
        tools,
        rest,
    } = &record.request;
    let alternatives = record
        .completions
        .iter()
        .any(|choice| !choice.top_logprobs.is_empty());
    let completions = if selection.top_logprobs == Keep::Drop && alternatives {
        let without = |choice: &Completion| Completion {
            top_logprobs: Vec::new(),
            ..choice.clone()
        };
        Cow::Owned(record.completions.iter().map(without).collect())
    } else {
        Cow::Borrowed(record.completions.as_slice())
    };
    DocumentCall {
        meta: Cow::Borrowed(&record.meta),
        flags: view.flags,
        trainable: view.trainable,
        untrained: view.untrained,
        continues: record.continues,
        prefix_break: record.prefix_break.as_ref().map(Cow::Borrowed),
        request: DocumentRequest {
            messages: Delta {
                base: messages.base,
                shared: messages.shared,
                tail: messages.tail.iter().map(number).collect(),
            },
            layout: layout.as_ref().map(Cow::Borrowed),
            tools: tools.as_ref().map(|(at, hash)| DocumentTools {
                at: *at,
                content: number(hash),
            }),
            rest: number(rest),
        },
        response: record.response.as_ref().map(number),
        prompt: record.prompt.as_ref().map(Cow::Borrowed),
        completions,
    }
}

impl Document<'_> {
    /// The calls as records.
    ///
    /// # Errors
    /// A call that refers to a content that is not there.
    pub fn records(&self) -> Result<Vec<CallRecord>, DocumentError> {
        self.calls.iter().map(|call| self.record(call)).collect()
    }

    fn record(&self, call: &DocumentCall<'_>) -> Result<CallRecord, DocumentError> {
        let hash = |content: u32| {
            let place = usize::try_from(content).ok();
            let found = place.and_then(|place| self.contents.get(place));
            found.map(|found| found.hash).ok_or(DocumentError::NoContent {
                call: call.meta.index,
                content,
                contents: self.contents.len(),
            })
        };
        let request = &call.request;
        let tail = request.messages.tail.iter().map(|content| hash(*content));
        Ok(CallRecord {
            meta: call.meta.clone().into_owned(),
            request: RequestParts {
                messages: Delta {
                    base: request.messages.base,
                    shared: request.messages.shared,
                    tail: tail.collect::<Result<_, _>>()?,
                },
                layout: request.layout.as_deref().cloned(),
                tools: match request.tools {
                    None => None,
                    Some(tools) => Some((tools.at, hash(tools.content)?)),
                },
                rest: hash(request.rest)?,
            },
            response: call.response.map(hash).transpose()?,
            prompt: call.prompt.as_deref().cloned(),
            completions: call.completions.clone().into_owned(),
            continues: call.continues,
            prefix_break: call.prefix_break.as_deref().cloned(),
        })
    }

    /// The contents that were stored, with the hashes that the document gives them.
    ///
    /// # Errors
    /// One that is not in base64.
    pub fn stored_contents(&self) -> Result<Vec<(ContentHash, Bytes)>, DocumentError> {
        let mut stored = Vec::new();
        for (place, content) in self.contents.iter().enumerate() {
            if let Some(bytes) = content
                .bytes()
                .map_err(|_| DocumentError::NotBase64 { content: place })?
            {
                stored.push((content.hash, bytes));
            }
        }
        Ok(stored)
    }
}

impl Content<'_> {
    /// Its bytes; `None` where they were never stored.
    ///
    /// # Errors
    /// They are not in base64.
    pub fn bytes(&self) -> Result<Option<Bytes>, base64::DecodeError> {
        match (&self.text, &self.base64) {
            (Some(text), _) => Ok(Some(Bytes::copy_from_slice(text.as_bytes()))),
            (None, Some(base64)) => STANDARD.decode(base64).map(|bytes| Some(bytes.into())),
            (None, None) => Ok(None),
        }
    }
}

impl Serialize for Sequences<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Of(trajectory, reward) => serializer.collect_seq(made(trajectory, *reward)),
            Self::Read(sequences) => sequences.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Sequences<'_> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Vec::deserialize(deserializer).map(Self::Read)
    }
}

/// The sequences of a trajectory, one by one.
fn made(trajectory: &Trajectory, reward: Option<f64>) -> impl Iterator<Item = DocumentSequence> + '_ {
    let versions: HashMap<u32, (Option<String>, Option<String>)> = trajectory
        .calls()
        .map(|call| {
            let versions = (
                call.meta.policy_version_at_dispatch.clone(),
                call.meta.policy_version_at_completion.clone(),
            );
            (call.meta.index, versions)
        })
        .collect();
    trajectory.sequences().map(move |sequence| {
        let turn = |turn: &crate::trajectory::TurnSpan| {
            let (dispatched, completed) = versions.get(&turn.call).cloned().unwrap_or_default();
            DocumentTurn {
                call: turn.call,
                start: turn.start,
                end: turn.end,
                trained: turn.trained,
                policy_version_at_dispatch: dispatched,
                policy_version_at_completion: completed,
            }
        };
        DocumentSequence {
            leaf: sequence.plan.leaf,
            purpose: sequence.plan.purpose,
            reward: trajectory.selection().reward(sequence.plan.purpose, reward),
            turns: sequence.plan.turns.iter().map(turn).collect(),
            session: sequence.plan.session,
            flags: sequence.plan.flags,
            token_ids: sequence.token_ids,
            loss_mask: sequence.loss_mask,
            logprobs: sequence.logprobs,
        }
    })
}

impl Sequences<'_> {
    /// Each sequence, one after the other.
    pub fn each(&self) -> Box<dyn Iterator<Item = Cow<'_, DocumentSequence>> + '_> {
        match self {
            Self::Of(trajectory, reward) => Box::new(made(trajectory, *reward).map(Cow::Owned)),
            Self::Read(sequences) => Box::new(sequences.iter().map(Cow::Borrowed)),
        }
    }
}
