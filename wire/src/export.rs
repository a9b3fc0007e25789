//! Rollouts in the forms in which they leave: the rows of exports, and the documents they are.
//!
//! A [`Source`](crate::export::Source) is a rollout read whole. A [`Shape`](crate::export::Shape) is a kind of row that is
//! made from it. `native` loses nothing and can be read in again; `atif` has documents in Harbor's format; the other shapes
//! are flat rows with the columns that a trainer reads. Each row says which schema it has, in which version. docs/export.md
//! describes them.

/// Rollouts, as they are read to be exported.
mod source;

/// Everything of a rollout, in a form that can be read in again.
pub mod native;

/// Columns and cells: rows of a shape, before they are written as JSON or Parquet.
mod table;

/// Token sequences: prompt, response, mask, log-probabilities.
pub mod verl;

/// Turns as TRL reads them.
pub mod trl;

/// Conversations for supervised fine-tuning.
pub mod chat;

/// Documents in Harbor's format.
pub mod atif;

pub use source::Source;
pub use table::{Cell, Column, Kind, Row};

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// A kind of row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Shape {
    /// A row a rollout, nothing lost.
    #[default]
    Native,
    /// A row a rollout: a `TrainingTrace`, and trace entries.
    Trl,
    /// A row a sequence: prompt ids, response ids, response mask, log-probabilities.
    Verl,
    /// A row a conversation: messages and tools.
    Chat,
    /// A document a conversation, in Harbor's Agent Trajectory Interchange Format.
    Atif,
}

impl Shape {
    /// Every shape.
    pub const ALL: [Self; 5] = [Self::Native, Self::Trl, Self::Verl, Self::Chat, Self::Atif];

    /// The word used everywhere.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Trl => "trl",
            Self::Verl => "verl",
            Self::Chat => "chat",
            Self::Atif => "atif",
        }
    }

    /// The schema that its rows name.
    #[must_use]
    pub fn schema(self) -> &'static str {
        match self {
            Self::Native => native::SCHEMA,
            Self::Trl => trl::SCHEMA,
            Self::Verl => verl::SCHEMA,
            Self::Chat => chat::SCHEMA,
            Self::Atif => atif::SCHEMA,
        }
    }

    /// The version of it that is written.
    #[must_use]
    pub fn schema_version(self) -> u32 {
        match self {
            Self::Native => native::SCHEMA_VERSION,
            Self::Trl => trl::SCHEMA_VERSION,
            Self::Verl => verl::SCHEMA_VERSION,
            Self::Chat => chat::SCHEMA_VERSION,
            Self::Atif => atif::SCHEMA_VERSION,
        }
    }

    /// Its columns. A row that is a document in JSON has columns only in Parquet.
    #[must_use]
    pub fn columns(self) -> &'static [Column] {
        match self {
            Self::Native => native::COLUMNS,
            Self::Trl => trl::COLUMNS,
            Self::Verl => verl::COLUMNS,
            Self::Chat => chat::COLUMNS,
            Self::Atif => atif::COLUMNS,
        }
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Shape {
    type Err = UnknownShape;

    fn from_str(text: &str) -> Result<Self, UnknownShape> {
        Self::ALL
            .into_iter()
            .find(|shape| shape.name() == text)
            .ok_or(UnknownShape)
    }
}

/// A word that names no shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("known are native, trl, verl, chat, atif")]
pub struct UnknownShape;
