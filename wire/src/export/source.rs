use crate::call::Purpose;
use crate::dialect::{Target, named};
use crate::export::{Cell, Column, Kind, Row, Shape};
use crate::ids::RolloutId;
use crate::rollout::{RolloutOutcome, RolloutStart, RolloutState};
use crate::trajectory::{CallRecord, ContentHash, Explanation, Said, SequencePlan, Trajectory, assemble};
use bytes::Bytes;
use std::collections::HashMap;

/// A rollout, read whole.
#[derive(Debug)]
pub struct Source<'a> {
    /// Its id.
    pub id: RolloutId,
    /// How far it is.
    pub state: RolloutState,
    /// Higher ones start first.
    pub priority: i32,
    /// When it was asked for, milliseconds since the Unix epoch.
    pub created_unix_ms: u64,
    /// When it ended, milliseconds since the Unix epoch.
    pub finished_unix_ms: Option<u64>,
    /// As it started; `None` while it waits.
    pub start: Option<&'a RolloutStart>,
    /// What came of it; `None` where it is not finished.
    pub outcome: Option<&'a RolloutOutcome>,
    /// Its calls with what is trained of them, late flags included.
    pub trajectory: &'a Trajectory,
    /// Its calls, in the order of recording.
    pub records: &'a [CallRecord],
    /// What was said.
    pub contents: &'a HashMap<ContentHash, Bytes>,
}

impl<'a> Source<'a> {
    /// The rows of a shape; of one that has documents, with these as text.
    pub fn rows(&self, shape: Shape) -> Box<dyn Iterator<Item = Row<'a>> + '_> {
        match shape {
            Shape::Native => Box::new(super::native::row(self).into_iter()),
            Shape::Trl => Box::new(super::trl::row(self).into_iter()),
            Shape::Verl => Box::new(super::verl::rows(self)),
            Shape::Chat => Box::new(super::chat::rows(self)),
            Shape::Atif => Box::new(super::atif::rows(self).into_iter()),
        }
    }

    /// Writes the rows of a shape as JSON, one a line, and gives their number.
    ///
    /// # Errors
    /// A writer that fails.
    pub fn write_lines(&self, shape: Shape, mut writer: impl std::io::Write) -> std::io::Result<u64> {
        if shape == Shape::Native {
            serde_json::to_writer(&mut writer, &self.document())?;
            writer.write_all(b"\n")?;
            return Ok(1);
        }
        let mut count = 0;
        if shape == Shape::Atif {
            for document in super::atif::documents(self) {
                serde_json::to_writer(&mut writer, &document.trajectory)?;
                writer.write_all(b"\n")?;
                count += 1;
            }
            return Ok(count);
        }
        for row in self.rows(shape) {
            super::table::write_json(&mut writer, shape.columns(), &row)?;
            writer.write_all(b"\n")?;
            count += 1;
        }
        Ok(count)
    }

    /// The reward; `None` where there is no verdict.
    #[must_use]
    pub fn reward(&self) -> Option<f64> {
        self.outcome?.reward.as_ref()?.value
    }

    /// A call as it was recorded.
    #[must_use]
    pub fn record(&self, index: u32) -> Option<&'a CallRecord> {
        self.records.iter().find(|record| record.meta.index == index)
    }

    /// The body of a call's request, byte for byte as the agent sent it; `None` where a part of it is missing.
    #[must_use]
    pub fn request(&self, record: &CallRecord) -> Option<Vec<u8>> {
        let messages = self.trajectory.messages(record.meta.index)?;
        assemble(&record.request, &messages, |hash| {
            self.contents.get(&hash).cloned()
        })
        .ok()
    }

    /// The body of the reply to a call, in the dialect's unary form; `None` where nothing came.
    #[must_use]
    pub fn response(&self, record: &CallRecord) -> Option<&'a Bytes> {
        self.contents.get(&record.response?)
    }

    /// Request and reply of a call in chat completions: as they were sent where that is the agent's dialect, else
    /// translated as they were for the endpoint. Each is `None` where a part of it is missing, or nothing came.
    pub(super) fn in_chat(&self, record: &CallRecord) -> (Option<Bytes>, Option<Bytes>) {
        let (Some(dialect), meta) = (named(record.meta.dialect), &record.meta) else {
            return (None, None);
        };
        let request = self.request(record).map(Bytes::from);
        let finish_reason = record
            .completions
            .first()
            .and_then(|completion| completion.finish_reason.as_deref());
        let reply = self.response(record).and_then(|reply| {
            let request = request.clone().unwrap_or_default();
            dialect.chat_reply(&request, reply, meta, finish_reason)
        });
        let target = Target {
            model: meta.model.clone(),
            ..Target::default()
        };
        let request = request.and_then(|request| dialect.chat_request(&target, &request).ok());
        (request, reply)
    }

    /// The native document.
    #[must_use]
    pub fn document(&self) -> super::native::Document<'a> {
        super::native::document(self)
    }

    /// What made the prompt of a call break with the one it goes on from; `None` where it did not.
    #[must_use]
    pub fn explain(&self, record: &CallRecord) -> Option<Explanation> {
        let found = record.prefix_break.as_ref()?;
        let base = self.record(found.base)?;
        let at = found.message.and_then(|message| usize::try_from(message).ok());
        let said = |record: &CallRecord| {
            let messages = self.trajectory.messages(record.meta.index).unwrap_or_default();
            let json = |hash: &ContentHash| serde_json::from_slice(self.contents.get(hash)?).ok();
            Said {
                messages: messages.len(),
                message: at.and_then(|at| messages.get(at)).and_then(json),
                tools: record.request.tools.as_ref().map(|(_, hash)| *hash),
                reply: record.response.as_ref().and_then(json),
            }
        };
        let prompt = base.prompt.as_ref().map_or(0, crate::trajectory::Delta::length);
        let expected = usize::try_from(found.at)
            .ok()
            .and_then(|at| at.checked_sub(prompt));
        let expected = expected.and_then(|at| base.completions.first()?.tokens.get(at));
        let name = expected.map(String::as_str);
        Some(Explanation::of(found, &said(base), &said(record), name))
    }

    /// What every row begins with: the columns of `head_columns`. Of a row for calls made for something, `purpose` says for what.
    pub(super) fn head(&self, shape: Shape, purpose: Purpose) -> Row<'a> {
        let start = self.start;
        let text = |of: fn(&'a RolloutStart) -> &'a str| Cell::maybe(start.map(of));
        let word = |value: serde_json::Result<serde_json::Value>| match value {
            Ok(serde_json::Value::String(word)) => Cell::text(word),
            _ => Cell::Null,
        };
        vec![
            Cell::text(shape.schema()),
            Cell::Integer(i64::from(shape.schema_version())),
            Cell::text(self.id.to_string()),
            Cell::maybe(start.and_then(|start| start.task.id.as_deref())),
            Cell::maybe(start.and_then(|start| start.group).map(|group| group.to_string())),
            start.map_or(Cell::Null, |start| Cell::Integer(i64::from(start.sample))),
            text(|start| &start.task.agent.name),
            text(|start| &start.agent_version),
            text(|start| &start.endpoint),
            text(|start| &start.model),
            word(serde_json::to_value(self.outcome.map(|outcome| outcome.ended))),
            Cell::float(self.trajectory.selection().reward(purpose, self.reward())),
        ]
    }

    /// The turns of a sequence as cells of [`TURN_COLUMNS`]; positions are counted from `from`.
    pub(super) fn turns(&self, plan: &SequencePlan, from: usize) -> Cell<'a> {
        let turn = |turn: &crate::trajectory::TurnSpan| {
            let meta = self.record(turn.call).map(|record| &record.meta);
            let version = |version: Option<&'a Option<String>>| {
                Cell::maybe(version.and_then(|version| version.as_deref()))
            };
            Cell::Struct(vec![
                Cell::Integer(i64::from(turn.call)),
                Cell::count(turn.start.saturating_sub(from)),
                Cell::count(turn.end.saturating_sub(from)),
                Cell::Bool(turn.trained),
                version(meta.map(|meta| &meta.policy_version_at_dispatch)),
                version(meta.map(|meta| &meta.policy_version_at_completion)),
            ])
        };
        Cell::List(plan.turns.iter().map(turn).collect())
    }
}

/// Columns of the turns of a sequence.
pub(super) const TURN_COLUMNS: &[Column] = &[
    Column::new("call", Kind::Integer),
    Column::new("start", Kind::Integer),
    Column::new("end", Kind::Integer),
    Column::new("trained", Kind::Bool),
    Column::new("policy_version_at_dispatch", Kind::Text),
    Column::new("policy_version_at_completion", Kind::Text),
];

/// Columns that every row begins with, then those given.
macro_rules! head_columns {
    ($($name:literal $kind:expr),* $(,)?) => {
        &[
            $crate::export::Column::new("schema", $crate::export::Kind::Text),
            $crate::export::Column::new("schema_version", $crate::export::Kind::Integer),
            $crate::export::Column::new("rollout", $crate::export::Kind::Text),
            $crate::export::Column::new("task_id", $crate::export::Kind::Text),
            $crate::export::Column::new("group", $crate::export::Kind::Text),
            $crate::export::Column::new("sample", $crate::export::Kind::Integer),
            $crate::export::Column::new("agent", $crate::export::Kind::Text),
            $crate::export::Column::new("agent_version", $crate::export::Kind::Text),
            $crate::export::Column::new("endpoint", $crate::export::Kind::Text),
            $crate::export::Column::new("model", $crate::export::Kind::Text),
            $crate::export::Column::new("ended", $crate::export::Kind::Text),
            $crate::export::Column::new("reward", $crate::export::Kind::Float),
            $($crate::export::Column::new($name, $kind),)*
        ]
    };
}
pub(super) use head_columns;
