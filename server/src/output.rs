//! `--output DIR`: a folder for each rollout, whole or not at all.
//!
//! It is written under a name that begins with a dot and renamed when everything is in it, so that whoever watches
//! the directory never sees half a rollout. Names of collected files are an agent's, hence checked part by part.

use dressage_store::{Store, StoreError};
use dressage_wire::rollout::RolloutOutcome;
use std::fs::File;
use std::path::{Component, Path, PathBuf};

/// A folder could not be written.
#[derive(Debug, thiserror::Error)]
pub enum OutputError {
    /// A file or folder could not be written.
    #[error("`{}` could not be written", path.display())]
    Write {
        /// Which.
        path: PathBuf,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
    /// The trajectory could not be had.
    #[error("trajectory for `{}` could not be exported", path.display())]
    Trajectory {
        /// Where it was to go.
        path: PathBuf,
        /// Why not.
        #[source]
        source: StoreError,
    },
}

/// Writes the folder of a rollout below `directory`, and returns its path. One that is there already is replaced.
///
/// # Errors
/// Where something cannot be written; nothing remains then.
pub async fn write(
    directory: &Path,
    store: &Store,
    outcome: &RolloutOutcome,
) -> Result<PathBuf, OutputError> {
    let target = directory.join(outcome.id.to_string());
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| OutputError::Write { path, source }
    };
    std::fs::create_dir_all(directory).map_err(failed(directory))?;
    // Removed on every way out but the last line's.
    let partial = tempfile::Builder::new()
        .prefix(&format!(".{}-", outcome.id))
        .tempdir_in(directory)
        .map_err(failed(directory))?;
    set_mode(partial.path(), 0o755).map_err(failed(partial.path()))?;

    let path = partial.path().join("trajectory.json");
    let file = File::create(&path).map_err(failed(&path))?;
    store
        .export_trajectory(outcome.id, file)
        .await
        .map_err(|source| OutputError::Trajectory {
            path: path.clone(),
            source,
        })?;

    let json = serde_json::to_vec_pretty(outcome).map_err(std::io::Error::from);
    let path = partial.path().join("outcome.json");
    json.and_then(|json| std::fs::write(&path, json))
        .map_err(failed(&path))?;

    if let Some(agent) = &outcome.agent {
        let path = partial.path().join("agent.log");
        std::fs::write(&path, &agent.log_tail).map_err(failed(&path))?;
    }
    for (name, content) in &outcome.files {
        let Some(relative) = inner(name) else {
            tracing::warn!(rollout.id = %outcome.id, "a collected file with a name that leads elsewhere was left out");
            continue;
        };
        let path = partial.path().join("files").join(relative);
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent).map_err(failed(parent))?;
        }
        std::fs::write(&path, content).map_err(failed(&path))?;
    }

    if target.exists() {
        std::fs::remove_dir_all(&target).map_err(failed(&target))?;
    }
    std::fs::rename(partial.path(), &target).map_err(failed(&target))?;
    // It has another name now; there is nothing to remove.
    let _ = partial.keep();
    Ok(target)
}

fn set_mode(path: &Path, mode: u32) -> std::io::Result<()> {
    std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(mode))
}

/// A relative path without parts that lead up or away.
fn inner(name: &str) -> Option<&Path> {
    let path = Path::new(name);
    let inside = path
        .components()
        .all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
    (inside && path.file_name().is_some()).then_some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_an_agent_that_lead_elsewhere_are_not_followed() {
        for name in ["../x", "/etc/passwd", "a/../../x", "", "..", "a/.."] {
            assert_eq!(inner(name), None, "{name}");
        }
        for name in ["x", "a/b", "./a", "..a", "a..b/.c"] {
            assert_eq!(inner(name), Some(Path::new(name)), "{name}");
        }
    }
}
