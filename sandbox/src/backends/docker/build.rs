use super::archive::Archive;
use super::engine::{Engine, said};
use super::image::PROGRESS_EVERY;
use crate::SandboxError;
use bollard::errors::Error;
use bollard::query_parameters::BuildImageOptionsBuilder;
use futures_util::StreamExt;
use sha2::{Digest, Sha256};
use std::collections::VecDeque;
use std::time::Instant;

/// Lines of a build that are told when it fails.
const TOLD_LINES: usize = 5;

/// What the image of a Dockerfile is called: another for another text.
pub(super) fn name_of(dockerfile: &str) -> String {
    let hash = Sha256::digest(dockerfile.as_bytes());
    let hash: String = hash.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    format!("dressage-build:{hash}")
}

/// Has the engine build an image.
pub(super) async fn build(
    engine: &Engine,
    name: &str,
    dockerfile: &str,
    platform: &str,
) -> Result<(), SandboxError> {
    tracing::info!(sandbox.image = name, "building an image");
    let mut archive = Archive::default();
    archive.file("Dockerfile", 0o644, dockerfile.as_bytes());
    let options = BuildImageOptionsBuilder::new()
        .dockerfile("Dockerfile")
        .t(name)
        .rm(true)
        .forcerm(true)
        .platform(platform)
        .build();
    let body = bollard::body_full(archive.finish());
    let mut told = engine.client().await?.build_image(options, None, Some(body));
    let mut lines: VecDeque<String> = VecDeque::new();
    let mut last = Instant::now();
    while let Some(step) = told.next().await {
        let step = step.map_err(|error| failed(engine, &lines, error))?;
        if let Some(message) = step.error_detail.and_then(|detail| detail.message) {
            return Err(failed(
                engine,
                &lines,
                Error::DockerStreamError { error: message },
            ));
        }
        for line in step.stream.iter().flat_map(|text| text.lines()) {
            let line: String = line
                .trim()
                .chars()
                .filter(|character| !character.is_control())
                .take(200)
                .collect();
            if line.is_empty() {
                continue;
            }
            if last.elapsed() >= PROGRESS_EVERY {
                last = Instant::now();
                tracing::info!(sandbox.image = name, "an image is being built");
            }
            if lines.len() == TOLD_LINES {
                lines.pop_front();
            }
            lines.push_back(line);
        }
    }
    Ok(())
}

/// A Dockerfile that cannot be built is its author's affair; an engine that cannot build is not.
fn failed(engine: &Engine, lines: &VecDeque<String>, error: Error) -> SandboxError {
    let by_the_build = matches!(error, Error::DockerStreamError { .. });
    let text = said(&error);
    match engine.failed("build its image", error) {
        SandboxError::Create { .. } if by_the_build => {
            let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
            SandboxError::Unavailable {
                backend: super::NAME,
                reason: format!(
                    "the image could not be built: {text}; before that: {}",
                    lines.join(" / ")
                ),
                remedy: Some("try the Dockerfile by hand: docker build - < Dockerfile"),
            }
        }
        other => other,
    }
}
