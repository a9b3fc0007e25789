use serde::Serialize;
use std::collections::HashSet;
use std::fmt;

/// Findings that are kept of one rollout or row: one broken list has many.
const KEPT: usize = 20;

macro_rules! damage {
    ($($variant:ident $word:literal $meaning:literal,)+) => {
        /// A kind of damage.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
        #[serde(rename_all = "snake_case")]
        pub enum Damage {
            $(#[doc = $meaning] $variant,)+
        }

        impl Damage {
            /// Every kind.
            pub const ALL: &[Self] = &[$(Self::$variant,)+];

            /// The word used everywhere.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $word,)+ }
            }

            /// What it means, in a line.
            #[must_use]
            pub fn meaning(self) -> &'static str {
                match self { $(Self::$variant => $meaning,)+ }
            }
        }
    };
}

damage! {
    Unreadable "unreadable" "it is no JSON, or not of the form that its schema has",
    UnknownSchema "unknown_schema" "it names no schema that is known, or another version of one",
    ContentChanged "content_changed" "something that was said does not have its hash",
    ContentMissing "content_missing" "something that a call refers to is not there",
    BaseMissing "base_missing" "a call goes on from, or shares with, a call that is not there before it",
    Duplicate "duplicate" "an index, id or node that must be unique is there twice",
    LengthsDiffer "lengths_differ" "lists that must be equally long are not",
    NotFinite "not_finite" "a log-probability is not a finite number, and nothing says so",
    LogprobPositive "logprob_positive" "a log-probability is above zero, and nothing says so",
    UsageDiffers "usage_differs" "the endpoint counted other than was captured, and nothing says so",
    FlagsInconsistent "flags_inconsistent" "flags and what is trained do not fit each other",
    TurnsMisplaced "turns_misplaced" "turns overlap, are out of order, or are not where their call was sampled",
    TokensDiffer "tokens_differ" "a sequence is not what the endpoint saw",
    LogprobsDiffer "logprobs_differ" "a sequence has other log-probabilities than its calls",
    MaskInvalid "mask_invalid" "a mask has something other than 0 and 1",
    MaskOutsideTurns "mask_outside_turns" "something is trained that was not sampled in a trained turn",
    MaskIncomplete "mask_incomplete" "a token of a trained turn is not trained",
    TrainedTwice "trained_twice" "a completion is trained in more than one sequence",
    NotTrained "not_trained" "a completion that can be trained is trained nowhere",
    MaskSum "mask_sum" "the sum of the masks is not that of the trainable completions",
    Outcome "outcome" "rollout, outcome and state do not fit each other",
    Messages "messages" "messages are not a conversation that ends with the assistant",
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Where damage is; what is unset is not known, or has no such part.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Place {
    /// Id of the rollout.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rollout: Option<String>,
    /// Which sequence of the rollout, from 0; of a row that is one, the index of its leaf.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sequence: Option<usize>,
    /// Index of the call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub call: Option<u32>,
    /// Position in the list that is damaged, from 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub position: Option<usize>,
}

impl Place {
    /// In a sequence of the rollout here.
    pub(super) fn sequence(mut self, sequence: usize) -> Self {
        self.sequence = Some(sequence);
        self
    }

    /// In a call of the rollout here.
    pub(super) fn call(mut self, call: u32) -> Self {
        self.call = Some(call);
        self
    }

    /// At a position.
    pub(super) fn at(mut self, position: usize) -> Self {
        self.position = Some(position);
        self
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [
            self.rollout.as_ref().map(|rollout| format!("rollout {rollout}")),
            self.sequence.map(|sequence| format!("sequence {sequence}")),
            self.call.map(|call| format!("call {call}")),
            self.position.map(|position| format!("position {position}")),
        ];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        f.write_str(&parts.join(", "))
    }
}

/// Something that is damaged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What kind of damage it is.
    pub damage: Damage,
    /// Where it is.
    pub place: Place,
    /// What is there, and what should be.
    pub message: String,
}

/// What was looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Tally {
    /// Rows, or documents.
    pub rows: u64,
    /// Calls.
    pub calls: u64,
    /// Calls that can be trained on.
    pub trainable_calls: u64,
    /// Sequences.
    pub sequences: u64,
    /// Tokens of sequences and traces.
    pub tokens: u64,
    /// Of these, trained ones.
    pub trained_tokens: u64,
}

/// What was found so far, and what is to be remembered from row to row.
#[derive(Debug, Default)]
pub struct Findings {
    /// What is damaged.
    pub list: Vec<Finding>,
    /// Damage beyond what is kept.
    pub more: u64,
    /// What was looked at.
    pub tally: Tally,
    /// What was trained of the rollout whose rows come now: an export has them one after the other.
    pub(super) trained: (String, HashSet<u32>),
}

impl Findings {
    /// Takes the findings out, for the next row to begin with none.
    pub fn take(&mut self) -> (Vec<Finding>, u64) {
        (std::mem::take(&mut self.list), std::mem::take(&mut self.more))
    }

    pub(super) fn add(&mut self, damage: Damage, place: Place, message: impl Into<String>) {
        if self.list.len() < KEPT {
            let message = message.into();
            self.list.push(Finding {
                damage,
                place,
                message,
            });
        } else {
            self.more += 1;
        }
    }
}
