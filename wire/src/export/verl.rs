//! A row a sequence, with the members of verl's `AgentLoopOutput` (verl/experimental/agent_loop/agent_loop.py) as columns:
//! `prompt_ids`, `response_ids`, `response_mask`, `response_logprobs`. Its `reward_score` is `reward` here. Sequences
//! without a trained token are left out.

use crate::call::{Flag, Purpose};
use crate::export::source::{TURN_COLUMNS, head_columns};
use crate::export::{Cell, Column, Kind, Row, Shape, Source};
use serde::Deserialize;

/// The schema that a row names.
pub const SCHEMA: &str = "dressage.verl";

/// The version of it that is written.
pub const SCHEMA_VERSION: u32 = 1;

/// Columns of a row.
pub const COLUMNS: &[Column] = head_columns!(
    "leaf" Kind::Integer,
    "purpose" Kind::Text,
    "session" Kind::Text,
    "flags" Kind::List(&Kind::Text),
    "prompt_ids" Kind::List(&Kind::Integer),
    "response_ids" Kind::List(&Kind::Integer),
    "response_mask" Kind::List(&Kind::Integer),
    "response_logprobs" Kind::List(&Kind::Float),
    "turns" Kind::List(&Kind::Struct(TURN_COLUMNS)),
);

/// What a row says, as far as it is checked.
#[derive(Debug, Deserialize)]
pub struct VerlRow {
    /// The rollout.
    pub rollout: String,
    /// Index of the call whose completion ends the sequence.
    pub leaf: u32,
    /// What that call was made for.
    pub purpose: Purpose,
    /// Flags of the leaf.
    pub flags: Vec<Flag>,
    /// The reward.
    pub reward: Option<f64>,
    /// Ids before the first that was sampled.
    pub prompt_ids: Vec<u32>,
    /// All other ids.
    pub response_ids: Vec<u32>,
    /// For each of these, 1 where it is trained here, else 0.
    pub response_mask: Vec<u8>,
    /// For each of these, its log-probability where it was sampled, else 0.0.
    pub response_logprobs: Vec<f64>,
    /// Completions in the response; positions are counted from its start.
    pub turns: Vec<super::native::DocumentTurn>,
}

/// The rows of a rollout.
pub(super) fn rows<'a>(source: &Source<'a>) -> impl Iterator<Item = Row<'a>> {
    let trained = source.trajectory.plan().into_iter();
    let trained = trained.filter(|plan| plan.turns.iter().any(|turn| turn.trained));
    trained.filter_map(move |plan| {
        let from = plan.turns.first()?.start;
        let mut row = source.head(Shape::Verl, plan.purpose);
        row.extend([
            Cell::Integer(i64::from(plan.leaf)),
            Cell::text(purpose(plan.purpose)),
            Cell::maybe(plan.session.clone()),
            Cell::texts(plan.flags.iter().map(|flag| flag.name())),
        ]);
        let turns = source.turns(&plan, from);
        let mut sequence = source.trajectory.sequence(plan)?;
        let response = sequence.token_ids.split_off(from.min(sequence.token_ids.len()));
        row.extend([
            Cell::Ids(sequence.token_ids.into()),
            Cell::Ids(response.into()),
            Cell::Mask(
                sequence
                    .loss_mask
                    .split_off(from.min(sequence.loss_mask.len()))
                    .into(),
            ),
            Cell::Floats(
                sequence
                    .logprobs
                    .split_off(from.min(sequence.logprobs.len()))
                    .into(),
            ),
            turns,
        ]);
        Some(row)
    })
}

/// The word for a purpose.
pub(super) fn purpose(purpose: Purpose) -> &'static str {
    match purpose {
        Purpose::Agent => "agent",
        Purpose::Title => "title",
        Purpose::Summary => "summary",
        Purpose::Subagent => "subagent",
        Purpose::Foreign => "foreign",
    }
}
