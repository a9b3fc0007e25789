use super::NAME;
use super::archive::{Archive, padding};
use super::build::{Failed, build_of};
use super::engine::Engine;
use super::image::{is_reference, platform};
use crate::bake::{
    BakeError, BakeEvent, Baked, Baker, Hearing, Layer, Recipe, archive_name, dockerfile, layers,
};
use crate::{BackendConfig, SandboxError};
use async_trait::async_trait;
use bytes::Bytes;
use futures_util::stream::{self, BoxStream, StreamExt};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use tokio_util::io::ReaderStream;

/// Images that are built here are below this, where their names say nothing else.
const OURS: &str = "dressage";

/// Builds images in the engine.
struct Builder {
    engine: Engine,
    cache_dir: PathBuf,
    tap_binary: PathBuf,
}

pub(in crate::backends) fn baker(config: &BackendConfig) -> Result<Arc<dyn Baker>, SandboxError> {
    Ok(Arc::new(Builder {
        engine: Engine::find(&config.providers.docker)?,
        cache_dir: config.cache_dir.clone(),
        tap_binary: config.tap_binary.clone(),
    }))
}

#[async_trait]
impl Baker for Builder {
    async fn bake(&self, recipe: &Recipe, heard: Hearing<'_>) -> Result<Baked, BakeError> {
        let image = match recipe.name.contains('/') {
            true => recipe.name.clone(),
            false => format!("{OURS}/{}", recipe.name),
        };
        if !is_reference(&image) {
            return Err(BakeError::Name(image.escape_debug().take(80).collect()));
        }
        if recipe.cpus.is_some() || recipe.memory_mb.is_some() {
            return Err(BakeError::Backend(SandboxError::Unsupported {
                backend: NAME,
                what: "an image that decides on processors or memory: tasks do".into(),
            }));
        }
        let dockerfile = dockerfile(recipe)?;
        let layers = layers(&self.cache_dir, &self.tap_binary, recipe).await?;
        // All of it goes in one request, and the engine keeps nothing that would make another shorter.
        for layer in &layers {
            heard(BakeEvent::Sending {
                what: &layer.what,
                bytes: layer.bytes,
            });
        }
        heard(BakeEvent::Building {
            unattended: "the engine ends the build with the step that it is at",
        });
        let mut step = String::new();
        let hearing = |line: &str| {
            // As Docker's own builder begins them, and Podman's.
            if line.starts_with("Step ") || line.starts_with("STEP ") {
                step = line.to_owned();
            }
            heard(BakeEvent::Line(line));
        };
        let built = build_of(
            &self.engine,
            &image,
            context(&dockerfile, &layers),
            &platform(),
            hearing,
        )
        .await;
        match built {
            Ok(()) => Ok(Baked {
                image,
                template: None,
                build: None,
                sent_bytes: layers.iter().map(|layer| layer.bytes).sum(),
            }),
            Err(Failed::Step(reason)) if step.is_empty() => Err(BakeError::Step {
                step: "its beginning".into(),
                reason,
            }),
            Err(Failed::Step(reason)) => Err(BakeError::Step { step, reason }),
            // That one speaks of sandboxes.
            Err(Failed::Engine(SandboxError::Create { step, source })) => Err(BakeError::Failed {
                backend: NAME,
                operation: step,
                source: source.unwrap_or_else(|| io::ErrorKind::Other.into()).into(),
                remedy: None,
            }),
            Err(Failed::Engine(error)) => Err(error.into()),
        }
    }
}

/// The folder that an image is built of as one archive. What is in it is read as it is sent.
fn context(dockerfile: &str, layers: &[Layer]) -> BoxStream<'static, io::Result<Bytes>> {
    let mut first = Archive::default();
    first.file("Dockerfile", 0o644, dockerfile.as_bytes());
    let first = stream::iter([Ok(first.open())]);
    let files: Vec<BoxStream<'static, io::Result<Bytes>>> = layers
        .iter()
        .map(|layer| {
            let begin = Archive::default().begin(&archive_name(layer), 0o644, layer.bytes);
            let path = layer.packed.archive.clone();
            let content = stream::once(tokio::fs::File::open(path)).flat_map(|opened| match opened {
                Ok(file) => ReaderStream::with_capacity(file, 64 << 10).boxed(),
                Err(error) => stream::iter([Err(error)]).boxed(),
            });
            let end = stream::iter([Ok(padding(layer.bytes))]);
            stream::iter([Ok(begin)]).chain(content).chain(end).boxed()
        })
        .collect();
    let last = stream::iter([Ok(Archive::default().finish())]);
    first.chain(stream::iter(files).flatten()).chain(last).boxed()
}
