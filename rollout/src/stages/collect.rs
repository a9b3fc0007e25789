use super::boot::seconds;
use super::plan::working_directory;
use crate::report::{Report, Stop};
use crate::run::{Cut, Scope};
use dressage_sandbox::{Sandbox, SandboxError};
use tokio::time::Instant;

/// Files are collected from this far down: the working directory and its folders.
const MAX_DEPTH: u32 = 2;

/// Files that are collected; others are named only.
const MAX_FILES: usize = 32;

/// Files that are named.
const MAX_LISTED: usize = 512;

/// Larger files are named only.
const MAX_FILE_BYTES: u64 = 63 * 1024;

/// Characters kept of a file.
const MAX_CHARACTERS: usize = 8000;

/// Fetches the text of the working directory's files, as far as it is small. What cannot be fetched is a warning: the
/// verdict stands without it.
pub(crate) async fn run(scope: &Scope, sandbox: &dyn Sandbox, report: &mut Report) -> Result<(), Stop> {
    let deadline = Instant::now() + seconds(scope.request.task.limits.collect_timeout_s);
    match scope.until(deadline, fetch(sandbox, report)).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => report.warn(format!("files could not be collected: {error}")),
        Err(Cut::Deadline) => report.warn("not all files were collected before the deadline"),
        Err(Cut::Cancelled) => return Err(Stop::Cancelled),
    }
    Ok(())
}

async fn fetch(sandbox: &dyn Sandbox, report: &mut Report) -> Result<(), SandboxError> {
    let directory = working_directory(sandbox);
    let found = match sandbox.list_files(&directory, MAX_DEPTH, MAX_LISTED).await {
        Ok(found) => found,
        // The agent may have removed it.
        Err(SandboxError::NotFound { .. }) => return Ok(()),
        Err(error) => return Err(error),
    };
    if found.truncated {
        report.warn(format!(
            "there are more than {MAX_LISTED} files; the rest is not listed"
        ));
    }
    let prefix = format!("{directory}/");
    for (path, size) in found.files {
        let name = path.strip_prefix(&prefix).unwrap_or(&path).to_owned();
        if size > MAX_FILE_BYTES || report.files.len() >= MAX_FILES {
            report.files_extra.push(name);
            continue;
        }
        match sandbox.read_file(&path, MAX_FILE_BYTES).await {
            Ok(content) => {
                let text = String::from_utf8_lossy(&content)
                    .chars()
                    .take(MAX_CHARACTERS)
                    .collect();
                report.files.insert(name, text);
            }
            Err(error @ SandboxError::Gone { .. }) => return Err(error),
            Err(_) => report.files_extra.push(name),
        }
    }
    Ok(())
}
