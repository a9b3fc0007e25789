use super::engine::{Engine, said, status};
use super::holdings::snapshot_name;
use crate::SandboxError;
use bollard::query_parameters::CreateImageOptionsBuilder;
use dressage_wire::ids::SandboxId;
use futures_util::StreamExt;
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::OnceCell;

/// Between two lines about a pull.
pub(super) const PROGRESS_EVERY: Duration = Duration::from_secs(5);

/// Images that are remembered, and forgotten together when there are more: every snapshot is another.
const REMEMBERED: usize = 256;

/// The longest name that is looked up.
const MAX_NAME: usize = 512;

/// An image that the engine has.
pub(super) struct Image {
    /// As it was asked for.
    pub(super) name: String,
    /// By which containers are made of it.
    pub(super) id: String,
    /// The environment that it gives to programs.
    pub(super) env: BTreeMap<String, String>,
    /// Whether it has folders whose files are kept in volumes, which no image has.
    pub(super) has_volumes: bool,
    /// What was found in it, once.
    pub(super) accounts: OnceCell<super::accounts::Accounts>,
    /// Set once a sandbox of it was seen to have what stages need.
    pub(super) fit: OnceCell<()>,
}

/// The images that were used so far.
#[derive(Default)]
pub(super) struct Images {
    known: Mutex<HashMap<String, Arc<Image>>>,
    making: tokio::sync::Mutex<()>,
}

impl Images {
    /// The image that is built of a Dockerfile; built where the engine does not have it.
    pub(super) async fn build(&self, engine: &Engine, dockerfile: &str) -> Result<Arc<Image>, SandboxError> {
        let name = super::build::name_of(dockerfile);
        if let Some(image) = self.inspect(engine, &name).await? {
            return Ok(image);
        }
        let _making = self.making.lock().await;
        if let Some(image) = self.inspect(engine, &name).await? {
            return Ok(image);
        }
        super::build::build(engine, &name, dockerfile, &platform()).await?;
        self.made(engine, &name).await
    }

    /// The image of a name; pulled where the engine does not have it.
    pub(super) async fn find(&self, engine: &Engine, name: &str) -> Result<Arc<Image>, SandboxError> {
        if !is_reference(name) {
            let shown: String = name.escape_debug().take(80).collect();
            return Err(SandboxError::Unsupported {
                backend: super::NAME,
                what: format!("an image of the name `{shown}`, which can be none"),
            });
        }
        if let Some(image) = self.inspect(engine, name).await? {
            return Ok(image);
        }
        // A hundred rollouts that begin at once pull one image once.
        let _making = self.making.lock().await;
        if let Some(image) = self.inspect(engine, name).await? {
            return Ok(image);
        }
        pull(engine, name).await?;
        self.made(engine, name).await
    }

    /// The image of a snapshot.
    pub(super) async fn snapshot(
        &self,
        engine: &Engine,
        snapshot: SandboxId,
    ) -> Result<Arc<Image>, SandboxError> {
        let name = snapshot_name(snapshot);
        self.inspect(engine, &name)
            .await?
            .ok_or_else(|| SandboxError::Create {
                step: format!("find the image `{name}` of a snapshot"),
                source: Some(io::ErrorKind::NotFound.into()),
            })
    }

    async fn made(&self, engine: &Engine, name: &str) -> Result<Arc<Image>, SandboxError> {
        self.inspect(engine, name)
            .await?
            .ok_or_else(|| SandboxError::Create {
                step: format!("find the image `{name}`"),
                source: Some(io::Error::other("it was just made and is not there")),
            })
    }

    async fn inspect(&self, engine: &Engine, name: &str) -> Result<Option<Arc<Image>>, SandboxError> {
        let found = match engine.client().await?.inspect_image(name).await {
            Ok(found) => found,
            Err(error) if status(&error) == Some(404) => return Ok(None),
            Err(error) => return Err(engine.failed("look for its image", error)),
        };
        let id = found.id.unwrap_or_else(|| name.to_owned());
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(image) = known.get(&id) {
            return Ok(Some(Arc::clone(image)));
        }
        check_platform(name, found.os.as_deref(), found.architecture.as_deref())?;
        let config = found.config.unwrap_or_default();
        let has_volumes = config.volumes.is_some_and(|volumes| !volumes.is_empty());
        let env = config.env.unwrap_or_default();
        let env = env
            .iter()
            .filter_map(|line| line.split_once('='))
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect();
        let image = Arc::new(Image {
            name: name.to_owned(),
            id: id.clone(),
            env,
            has_volumes,
            accounts: OnceCell::new(),
            fit: OnceCell::new(),
        });
        if known.len() >= REMEMBERED {
            known.clear();
        }
        known.insert(id, Arc::clone(&image));
        Ok(Some(image))
    }
}

/// The architecture of `dressage-tap`, by the name that engines give it: that of this program.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// What images are pulled and built for.
pub(super) fn platform() -> String {
    format!("linux/{}", architecture())
}

fn check_platform(name: &str, os: Option<&str>, found: Option<&str>) -> Result<(), SandboxError> {
    let (os, found) = (os.unwrap_or("linux"), found.unwrap_or_default());
    let ours = architecture();
    if os == "linux" && (found.is_empty() || found == ours) {
        return Ok(());
    }
    Err(SandboxError::Unavailable {
        backend: super::NAME,
        reason: format!(
            "image `{name}` is for {os}/{found}, and dressage-tap, which runs in it, for linux/{ours}"
        ),
        remedy: Some(
            "name an image that is built for the architecture of this machine, and an engine that runs such",
        ),
    })
}

/// Whether a text can be the name of an image: with it an address is made.
pub(super) fn is_reference(name: &str) -> bool {
    let plain = |character: char| character.is_ascii_alphanumeric() || "._-:@".contains(character);
    let part =
        |part: &str| part.starts_with(|first: char| first.is_ascii_alphanumeric()) && part.chars().all(plain);
    name.len() <= MAX_NAME && name.split('/').all(part)
}

/// The tag that is meant where a name has none: an engine that is asked for none pulls all there are.
fn tag_of(name: &str) -> &'static str {
    let last = name.rsplit('/').next().unwrap_or(name);
    if last.contains([':', '@']) { "" } else { "latest" }
}

async fn pull(engine: &Engine, name: &str) -> Result<(), SandboxError> {
    tracing::info!(sandbox.image = name, "pulling an image");
    let platform = platform();
    let mut options = CreateImageOptionsBuilder::new()
        .from_image(name)
        .platform(&platform);
    if !tag_of(name).is_empty() {
        options = options.tag(tag_of(name));
    }
    let mut told = engine
        .client()
        .await?
        .create_image(Some(options.build()), None, None);
    let mut layers: HashMap<String, (i64, i64)> = HashMap::new();
    let mut last = Instant::now();
    while let Some(step) = told.next().await {
        let step = step.map_err(|error| pull_failed(engine, name, error))?;
        if let Some(message) = step.error_detail.and_then(|detail| detail.message) {
            let error = bollard::errors::Error::DockerStreamError { error: message };
            return Err(pull_failed(engine, name, error));
        }
        if let (Some(layer), Some(detail)) = (step.id, step.progress_detail)
            && let (Some(current), Some(total)) = (detail.current, detail.total)
        {
            layers.insert(layer, (current, total));
        }
        if last.elapsed() >= PROGRESS_EVERY {
            last = Instant::now();
            let sum = |of: fn(&(i64, i64)) -> i64| layers.values().map(of).sum::<i64>() >> 20;
            tracing::info!(
                sandbox.image = name,
                pull.done_mb = sum(|layer| layer.0),
                pull.known_mb = sum(|layer| layer.1),
                "an image is being pulled"
            );
        }
    }
    Ok(())
}

fn pull_failed(engine: &Engine, name: &str, error: bollard::errors::Error) -> SandboxError {
    let text = said(&error);
    let absent = [
        "not found",
        "denied",
        "unauthorized",
        "manifest unknown",
        "no matching manifest",
    ];
    if absent.iter().any(|sign| text.contains(sign)) {
        return SandboxError::Unavailable {
            backend: super::NAME,
            reason: format!("image `{name}` is not there, and cannot be pulled: {text}"),
            remedy: Some(
                "check its name; one that needs a login is to be pulled by hand: docker login, docker pull",
            ),
        };
    }
    match engine.failed("pull its image", error) {
        SandboxError::Create { source, .. } => SandboxError::Create {
            step: format!("pull the image `{name}`"),
            source,
        },
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_images_are_told_from_what_would_be_another_address() {
        for name in [
            "debian",
            "debian:12",
            "registry.example:5000/team/image:tag",
            "debian@sha256:0123456789abcdef",
            "a_b/c__d.e-f",
        ] {
            assert!(is_reference(name), "{name}");
        }
        for name in [
            "",
            "/",
            "a/",
            "../containers/x",
            "a/../b",
            "a?b",
            "a b",
            "a#b",
            "a%2fb",
            "-x",
            "ä",
            "a\n",
        ] {
            assert!(!is_reference(name), "{name:?}");
        }
        assert!(!is_reference(&"a".repeat(MAX_NAME + 1)));
    }

    #[test]
    fn a_name_without_a_tag_means_the_latest_alone() {
        assert_eq!(tag_of("debian"), "latest");
        assert_eq!(tag_of("registry:5000/debian"), "latest");
        assert_eq!(tag_of("debian:12"), "");
        assert_eq!(tag_of("debian@sha256:01"), "");
    }

    #[test]
    fn another_architecture_is_named() {
        let other = if architecture() == "arm64" {
            "amd64"
        } else {
            "arm64"
        };
        assert!(check_platform("x", Some("linux"), Some(architecture())).is_ok());
        let error = check_platform("x", Some("linux"), Some(other)).unwrap_err();
        assert!(error.to_string().contains(&format!("linux/{other}")), "{error}");
        assert!(check_platform("x", Some("windows"), Some(architecture())).is_err());
    }
}
