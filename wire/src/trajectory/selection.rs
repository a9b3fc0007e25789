use crate::call::{Flag, Purpose};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// What a trainer wants of trajectories. What is unset in JSON has its default.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(default, deny_unknown_fields)]
pub struct Selection {
    /// What the calls that are trained were made for; by default the agent's own line of conversation. Foreign calls are
    /// never trained, whatever is said here.
    pub purposes: Vec<Purpose>,
    /// Whether turns that a token limit ended are trained; by default they are.
    pub truncated: Keep,
    /// Whether sequences of sub-agents have the rollout's reward; by default they have.
    pub subagent_reward: SubagentReward,
    /// Whether the alternatives at each position are kept; by default they are.
    pub top_logprobs: Keep,
}

/// Whether something stays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Keep {
    /// It stays.
    #[default]
    Keep,
    /// It goes.
    Drop,
}

/// The reward of a sub-agent's sequences.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum SubagentReward {
    /// That of the rollout.
    #[default]
    Shared,
    /// None.
    None,
}

impl Default for Selection {
    fn default() -> Self {
        Self {
            purposes: vec![Purpose::Agent],
            truncated: Keep::default(),
            subagent_reward: SubagentReward::default(),
            top_logprobs: Keep::default(),
        }
    }
}

impl Selection {
    /// Purposes that can be trained.
    pub const PURPOSES: [Purpose; 4] = [
        Purpose::Agent,
        Purpose::Subagent,
        Purpose::Title,
        Purpose::Summary,
    ];

    /// Whether calls made for this are trained.
    #[must_use]
    pub fn trains(&self, purpose: Purpose) -> bool {
        purpose != Purpose::Foreign && self.purposes.contains(&purpose)
    }

    /// The reward of sequences made for this, in a rollout with that reward.
    #[must_use]
    pub fn reward(&self, purpose: Purpose, reward: Option<f64>) -> Option<f64> {
        reward.filter(|_| purpose != Purpose::Subagent || self.subagent_reward == SubagentReward::Shared)
    }
}

macro_rules! words {
    ($type:ident, $($variant:ident $word:literal),+) => {
        impl FromStr for $type {
            type Err = UnknownWord;

            fn from_str(text: &str) -> Result<Self, UnknownWord> {
                match text {
                    $($word => Ok(Self::$variant),)+
                    _ => Err(UnknownWord { known: &[$($word),+] }),
                }
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $(Self::$variant => $word,)+ })
            }
        }
    };
}

words!(Keep, Keep "keep", Drop "drop");
words!(SubagentReward, Shared "shared", None "none");

/// A word that is none of those known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("known are {}", .known.join(", "))]
pub struct UnknownWord {
    /// Those known.
    pub known: &'static [&'static str],
}

/// Why a call is not trained: the first of these that holds, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case", tag = "reason", content = "flag")]
pub enum Untrained {
    /// It was made for something that is not selected, such as a title.
    Purpose,
    /// It did not complete.
    End,
    /// It has a flag that keeps it out of training.
    Flag(Flag),
    /// Not every token was captured with its id and log-probability.
    Level,
    /// A token limit ended it, and such turns are dropped.
    Truncated,
    /// Nothing was sampled.
    Empty,
    /// Ids and log-probabilities do not fit each other.
    Unfit,
}

impl fmt::Display for Untrained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Purpose => "purpose",
            Self::End => "end",
            Self::Flag(flag) => flag.name(),
            Self::Level => "level",
            Self::Truncated => "truncated",
            Self::Empty => "empty",
            Self::Unfit => "unfit",
        })
    }
}
