use super::archive::Archive;
use super::engine::{Engine, said};
use super::image::PROGRESS_EVERY;
use crate::SandboxError;
use crate::bake::plain;
use bollard::errors::Error;
use bollard::query_parameters::BuildImageOptionsBuilder;
use bytes::Bytes;
use futures_util::stream::{self, BoxStream, StreamExt};
use sha2::{Digest, Sha256};
use std::collections::VecDeque;
use std::io;
use std::time::Instant;

/// Lines of a build that are told when it fails.
const TOLD_LINES: usize = 5;

/// What the image of a Dockerfile is called: another for another text.
pub(super) fn name_of(dockerfile: &str) -> String {
    let hash = Sha256::digest(dockerfile.as_bytes());
    let hash: String = hash.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    format!("dressage-build:{hash}")
}

/// Has the engine build the image of a Dockerfile without files beside it.
pub(super) async fn build(
    engine: &Engine,
    name: &str,
    dockerfile: &str,
    platform: &str,
) -> Result<(), SandboxError> {
    tracing::info!(sandbox.image = name, "building an image");
    let mut archive = Archive::default();
    archive.file("Dockerfile", 0o644, dockerfile.as_bytes());
    let mut lines: VecDeque<String> = VecDeque::new();
    let mut last = Instant::now();
    let heard = |line: &str| {
        if last.elapsed() >= PROGRESS_EVERY {
            last = Instant::now();
            tracing::info!(sandbox.image = name, "an image is being built");
        }
        if lines.len() == TOLD_LINES {
            lines.pop_front();
        }
        lines.push_back(line.chars().take(200).collect());
    };
    let archive = stream::iter([Ok(archive.finish())]).boxed();
    let built = build_of(engine, name, archive, platform, heard).await;
    built.map_err(|failed| match failed {
        Failed::Engine(error) => error,
        // A Dockerfile that cannot be built is its author's affair; an engine that cannot build is not.
        Failed::Step(text) => {
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
    })
}

/// Why an image was not built.
pub(super) enum Failed {
    /// The engine could not.
    Engine(SandboxError),
    /// By a step of its own, of which this was said.
    Step(String),
}

/// Has the engine build an image of what is in an archive, and hears what it says meanwhile, line by line.
pub(super) async fn build_of(
    engine: &Engine,
    name: &str,
    archive: BoxStream<'static, io::Result<Bytes>>,
    platform: &str,
    mut heard: impl FnMut(&str),
) -> Result<(), Failed> {
    let options = BuildImageOptionsBuilder::new()
        .dockerfile("Dockerfile")
        .t(name)
        .rm(true)
        .forcerm(true)
        .platform(platform)
        .build();
    let client = engine.client().await.map_err(Failed::Engine)?;
    let mut told = client.build_image(options, None, Some(bollard::body_try_stream(archive)));
    while let Some(step) = told.next().await {
        let step = step.map_err(|error| failed(engine, error))?;
        if let Some(message) = step.error_detail.and_then(|detail| detail.message) {
            return Err(failed(engine, Error::DockerStreamError { error: message }));
        }
        for line in step.stream.iter().flat_map(|text| text.lines()).map(plain) {
            let line = line.trim();
            if !line.is_empty() {
                heard(line);
            }
        }
    }
    Ok(())
}

fn failed(engine: &Engine, error: Error) -> Failed {
    let by_the_build = matches!(error, Error::DockerStreamError { .. });
    let text = said(&error);
    match engine.failed("build its image", error) {
        SandboxError::Create { .. } if by_the_build => Failed::Step(text),
        other => Failed::Engine(other),
    }
}
