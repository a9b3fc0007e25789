//! The commands, a file each: what they take, and what they do.

/// `dressage demo`.
pub mod demo;

/// `dressage run`.
pub mod run;

/// `dressage serve`.
pub mod serve;

/// `dressage mcp`.
pub mod mcp;

/// `dressage list`.
pub mod list;

/// `dressage show`.
pub mod show;

/// `dressage doctor`.
pub mod doctor;

/// `dressage agents`.
pub mod agents;

/// `dressage completions`.
pub mod completions;

/// `dressage docs`, for docs/.
pub mod docs;

use crate::error::Failure;
use crate::exit::Exit;

/// A value as JSON for people and programs: indented.
fn json(value: &impl serde::Serialize) -> Result<String, Failure> {
    serde_json::to_string_pretty(value).map_err(|error| Failure::from_error(Exit::MachineLacks, &error))
}
