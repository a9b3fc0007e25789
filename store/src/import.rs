use crate::codec;
use crate::error::{ImportProblem, StoreError};
use crate::open::Store;
use crate::packed::Packer;
use crate::rows::{signed, word};
use crate::write::{CallDocument, blocking, title};
use bytes::Bytes;
use dressage_wire::export::native::Document;
use dressage_wire::ids::RolloutId;
use dressage_wire::rollout::{RolloutOutcome, RolloutStart, RolloutState, Totals};
use dressage_wire::trajectory::{CallRecord, ContentHash};

/// What became of a rollout that was to be taken in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Imported {
    /// It is here now.
    Taken(RolloutId),
    /// It was here already, and was left as it was.
    There(RolloutId),
}

/// A rollout from elsewhere, before it is stored.
struct Foreign {
    state: RolloutState,
    priority: i32,
    created_unix_ms: u64,
    finished_unix_ms: Option<u64>,
    start: RolloutStart,
    outcome: Option<RolloutOutcome>,
    records: Vec<CallRecord>,
    contents: Vec<(ContentHash, Bytes)>,
}

/// The same, packed.
struct Packed {
    start: Vec<u8>,
    outcome: Option<Vec<u8>>,
    /// Index, id, document and tokens of each.
    calls: Vec<(u32, String, Vec<u8>, Vec<u8>)>,
    contents: Vec<(ContentHash, Vec<u8>)>,
}

impl Store {
    /// Takes in a rollout that was exported elsewhere, all of it or nothing. What its calls are trained in follows from
    /// them, and is not taken from the document.
    ///
    /// # Errors
    /// A rollout that was not over, or that refers to nothing; a database that cannot be written.
    pub async fn import(&self, document: &Document<'_>) -> Result<Imported, StoreError> {
        const OPERATION: &str = "taking in a rollout";
        let foreign = Foreign::of(document)?;
        let id = foreign.start.id;
        let (foreign, packed) = blocking(OPERATION, move || {
            let packed = foreign.pack();
            (foreign, packed)
        })
        .await?;
        let packed = packed.map_err(|source| StoreError::NotStorable {
            what: "a document",
            rollout: id,
            source,
        })?;
        let mut writing = self.begin(OPERATION).await?;
        let there: bool = sqlx::query_scalar(
            "SELECT EXISTS (SELECT 1 FROM rollouts WHERE id = ?1) OR EXISTS (SELECT 1 FROM queue WHERE id = ?1)",
        )
        .bind(id.to_string())
        .fetch_one(&mut *writing.transaction)
        .await
        .map_err(|source| self.failed(OPERATION, source))?;
        if there {
            return Ok(Imported::There(id));
        }
        let (start, outcome, totals) = (&foreign.start, foreign.outcome.as_ref(), foreign.totals());
        let fault = outcome.and_then(|outcome| outcome.fault.as_ref());
        let reward = outcome.and_then(|outcome| outcome.reward.as_ref());
        let number: i64 = sqlx::query_scalar(
            "INSERT INTO rollouts (id, owner, state, task_id, title, sample, agent, agent_version, backend, endpoint, \
             model, started_unix_ms, group_id, priority, created_unix_ms, finished_unix_ms, wall_ms, ended, reward, \
             fault_code, fault_owner, calls, trainable_calls, prompt_tokens, completion_tokens, trainable_tokens, \
             prefix_breaks, level) \
             VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) RETURNING number",
        )
        .bind(id.to_string())
        .bind(start.owner.to_string())
        .bind(foreign.state.name())
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
        .bind(foreign.priority)
        .bind(signed(foreign.created_unix_ms))
        .bind(foreign.finished_unix_ms.map(signed))
        .bind(outcome.map(|outcome| signed(outcome.wall_ms)))
        .bind(outcome.and_then(|outcome| word(&outcome.ended)))
        .bind(reward.and_then(|reward| reward.value))
        .bind(fault.map(|fault| &fault.code))
        .bind(fault.and_then(|fault| word(&fault.owner)))
        .bind(signed(totals.calls))
        .bind(signed(totals.trainable_calls))
        .bind(signed(totals.prompt_tokens))
        .bind(signed(totals.completion_tokens))
        .bind(signed(totals.trainable_tokens))
        .bind(signed(totals.prefix_breaks))
        .bind(totals.level.as_ref().and_then(word))
        .fetch_one(&mut *writing.transaction)
        .await
        .map_err(|source| self.failed(OPERATION, source))?;
        let documents = [("start", Some(packed.start)), ("outcome", packed.outcome)];
        for (kind, body) in documents {
            if let Some(body) = body {
                let query = sqlx::query("INSERT INTO documents (rollout, kind, body) VALUES (?, ?, ?)");
                writing.execute(query.bind(number).bind(kind).bind(body)).await?;
            }
        }
        for (hash, body) in packed.contents {
            let query = sqlx::query("INSERT INTO contents (rollout, hash, body) VALUES (?, ?, ?)");
            writing
                .execute(query.bind(number).bind(hash.0.to_vec()).bind(body))
                .await?;
        }
        for (position, (index, call, document, tokens)) in (0_i64..).zip(packed.calls) {
            let query = sqlx::query(
                "INSERT INTO calls (rollout, position, call_index, id, document, tokens) VALUES (?, ?, ?, ?, ?, ?)",
            );
            let query = query.bind(number).bind(position).bind(index).bind(call);
            writing.execute(query.bind(document).bind(tokens)).await?;
        }
        writing.commit().await?;
        Ok(Imported::Taken(id))
    }
}

impl Foreign {
    fn of(document: &Document<'_>) -> Result<Self, StoreError> {
        let start = document.rollout.as_deref();
        let Some(start) = start else {
            // One that waits: its document has no id, and nothing to be taken in.
            return Err(StoreError::ImportEmpty);
        };
        let problem = |problem| StoreError::Import {
            rollout: start.id,
            problem,
        };
        let over = match document.state {
            RolloutState::Finished => document.outcome.is_some(),
            RolloutState::Interrupted => true,
            RolloutState::Queued | RolloutState::Running => false,
        };
        if !over {
            return Err(problem(ImportProblem::NotOver));
        }
        let wrong = |error| problem(ImportProblem::Document(error));
        Ok(Self {
            state: document.state,
            priority: document.priority,
            created_unix_ms: document.created_unix_ms,
            finished_unix_ms: document.finished_unix_ms,
            start: start.clone(),
            outcome: document.outcome.as_deref().cloned(),
            records: document.records().map_err(wrong)?,
            contents: document.stored_contents().map_err(wrong)?,
        })
    }

    /// What its outcome says, or what its calls add up to so far.
    fn totals(&self) -> Totals {
        if let Some(outcome) = &self.outcome {
            return outcome.totals.clone();
        }
        let mut totals = Totals::default();
        for summary in self.records.iter().map(CallRecord::summary) {
            totals.calls += 1;
            totals.prompt_tokens += summary.prompt_tokens;
            totals.completion_tokens += summary.completion_tokens;
            totals.prefix_breaks += u64::from(summary.prefix_break);
        }
        totals
    }

    fn pack(&self) -> Result<Packed, serde_json::Error> {
        let mut packer = Packer::new();
        let mut packed = |document: serde_json::Result<Vec<u8>>| document.map(|text| packer.pack(&text));
        let start = packed(serde_json::to_vec(&self.start))?;
        let outcome = self
            .outcome
            .as_ref()
            .map(serde_json::to_vec)
            .map(&mut packed)
            .transpose()?;
        let mut calls = Vec::new();
        for record in &self.records {
            let document = packed(serde_json::to_vec(&CallDocument {
                meta: record.meta.clone(),
                request: record.request.clone(),
                response: record.response,
                continues: record.continues,
                prefix_break: record.prefix_break.clone(),
            }))?;
            let tokens = packed(Ok(codec::encode(record.prompt.as_ref(), &record.completions)))?;
            calls.push((record.meta.index, record.meta.id.to_string(), document, tokens));
        }
        let mut contents = Vec::new();
        for (hash, body) in &self.contents {
            contents.push((*hash, packed(Ok(body.to_vec()))?));
        }
        Ok(Packed {
            start,
            outcome,
            calls,
            contents,
        })
    }
}
