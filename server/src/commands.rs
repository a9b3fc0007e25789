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

/// `dressage export`.
pub mod export;

/// `dressage import`.
pub mod import;

/// `dressage validate`.
pub mod validate;

/// `dressage doctor`.
pub mod doctor;

/// `dressage agents`.
pub mod agents;

/// `dressage sandboxes`.
pub mod sandboxes;

/// `dressage template`.
pub mod template;

/// `dressage completions`.
pub mod completions;

/// `dressage docs`, for docs/.
pub mod docs;

use crate::error::Failure;
use crate::exit::Exit;
use crate::workspace::store_failure;
use dressage_store::{ListFilter, Store, StoreError};
use dressage_wire::ids::RolloutId;

/// The rollout whose id begins so; for `last`, the latest.
async fn find(store: &Store, name: &str) -> Result<RolloutId, Failure> {
    let failed = |error: StoreError| match error {
        StoreError::NotFound { .. } | StoreError::Ambiguous { .. } => Failure {
            exit: Exit::BadInput,
            ..store_failure(&error)
        },
        error => store_failure(&error),
    };
    if name != "last" {
        return store.find(name).await.map_err(failed);
    }
    let latest = ListFilter {
        limit: Some(1),
        ..ListFilter::default()
    };
    let rows = store.list(&latest).await.map_err(failed)?;
    rows.first()
        .map(|row| row.id)
        .ok_or_else(|| Failure::input("there are no rollouts yet"))
}

/// A value as JSON for people and programs: indented.
fn json(value: &impl serde::Serialize) -> Result<String, Failure> {
    serde_json::to_string_pretty(value).map_err(|error| Failure::from_error(Exit::MachineLacks, &error))
}
