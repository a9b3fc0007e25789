//! Containers of Docker, or of another engine that speaks its API, such as Podman, on this machine or another.
//!
//! The first process of a container is `dressage-tap init`, spoken to over the standard input and output of the attached
//! container; the relay's channel is those of a program beside it. So a container without a network has none at all, an engine
//! elsewhere needs no way back, and a container ends when this process does. It has no capabilities, gains no privileges, and
//! its programs are one ordinary user; verification runs in a container that was ended and started anew over the same files,
//! with new namespaces and new temporary folders.

/// The engine, and what its errors mean.
mod engine;

/// Images: looked for, pulled.
mod image;

/// Images that are built.
mod build;

/// Images with what containers are brought otherwise.
mod template;

/// What is on this machine, for containers of an engine that does not see it.
mod parcels;

/// Archives of a few entries.
mod archive;

/// What programs of ours in containers write.
mod stream;

/// What a sandbox has in the engine.
mod holdings;

/// The users and groups of an image.
mod accounts;

/// Homes, and directories in them that are made anew.
mod home;

/// What the engine is asked to make.
mod body;

/// A container, from its making to its rebuilding.
mod container;

/// Its files, kept as an image.
mod commit;

pub(super) use template::baker;

use crate::controlled::ControlledSandbox;
use crate::estate::check_size;
use crate::lease::{HeldLease, find_removable};
use crate::life::Belongings;
use crate::{Backend, BackendConfig, Report, Sandbox, SandboxError, SandboxSpec};
use async_trait::async_trait;
use container::Container;
use dressage_wire::ids::SandboxId;
use engine::Engine;
use holdings::Holdings;
use image::Images;
use std::collections::BTreeMap;
use std::sync::Arc;

const NAME: &str = "docker";

pub(super) fn make(config: &BackendConfig) -> Result<Arc<dyn Backend>, SandboxError> {
    if !config.tap_binary.is_file() {
        return Err(SandboxError::Unavailable {
            backend: NAME,
            reason: format!("there is no dressage-tap at `{}`", config.tap_binary.display()),
            remedy: None,
        });
    }
    Ok(Arc::new(Containers {
        engine: Engine::find(&config.providers.docker)?,
        config: config.clone(),
        images: Images::default(),
    }))
}

pub(super) fn probe(config: &BackendConfig) -> Report {
    let mut report = Report::default();
    let engine = match Engine::find(&config.providers.docker) {
        Ok(engine) => engine,
        Err(error) => {
            report.problem = Some(error.to_string());
            report.hint = error.hint();
            return report;
        }
    };
    report.fact("engine", engine.place());
    // A thread without a runtime: whoever asks may have one.
    let asked = std::thread::scope(|scope| {
        let asking = scope.spawn(|| {
            super::block_on(async {
                let client = engine.client().await?;
                client
                    .version()
                    .await
                    .map_err(|error| engine.failed("ask its version", error))
            })
        });
        asking.join()
    });
    match asked {
        Ok(Ok(Ok(version))) => {
            let version = version.version.unwrap_or_default();
            report.fact("version", version);
        }
        Ok(Ok(Err(error))) => {
            report.problem = Some(error.to_string());
            report.hint = error.hint();
        }
        Ok(Err(error)) => report.problem = Some(error.to_string()),
        Err(_) => report.problem = Some("the engine could not be asked".into()),
    }
    report.fact("isolation", "a container for each sandbox, without capabilities");
    report.fact("limits", "memory, processes, processors: the engine");
    report
}

struct Containers {
    config: BackendConfig,
    engine: Engine,
    images: Images,
}

#[async_trait]
impl Backend for Containers {
    fn name(&self) -> &'static str {
        NAME
    }

    fn gives_home(&self, home: &str) -> bool {
        home::may_be_home(home)
    }

    fn keeps_snapshots(&self) -> bool {
        true
    }

    async fn create(&self, spec: SandboxSpec) -> Result<Arc<dyn Sandbox>, SandboxError> {
        self.check(&spec)?;
        let image = match (&spec.snapshot, &spec.dockerfile) {
            (Some(snapshot), _) => self.images.snapshot(&self.engine, snapshot.id_in(NAME)?).await?,
            (None, Some(dockerfile)) => self.images.build(&self.engine, dockerfile).await?,
            (None, None) => self.images.find(&self.engine, &self.image_of(&spec)?).await?,
        };
        let (owner, leased, engine) = (Arc::clone(&self.config.owner), spec.clone(), self.engine.clone());
        // Together, on the other thread: what is not waited for any more is then removed as well.
        let holdings = super::off_the_runtime("lease a sandbox", move || {
            HeldLease::intend(&owner, NAME, &leased, &engine.place())
                .map(|lease| Arc::new(Holdings::new(&engine, lease)))
        })
        .await?
        .map_err(|source| SandboxError::Lease { id: spec.id, source })?;
        let container = Container::new(&self.engine, spec.clone(), image, &self.config);
        match boot(container, &spec, &holdings).await {
            Ok(sandbox) => Ok(sandbox),
            Err(error) => {
                // The first error is told, whatever becomes of the cleaning; a lease that stays is for a sweep.
                let _ = super::off_the_runtime("remove a sandbox", move || holdings.clear()).await;
                Err(error)
            }
        }
    }

    async fn list(&self, labels: &BTreeMap<String, String>) -> Result<Vec<SandboxId>, SandboxError> {
        super::list_leased(&self.config, NAME, labels.clone()).await
    }

    async fn delete(&self, id: SandboxId) -> Result<(), SandboxError> {
        let left = |source| SandboxError::Left {
            id,
            source: Arc::new(source),
        };
        let owner = Arc::clone(&self.config.owner);
        let found = super::off_the_runtime("find a lease", move || find_removable(&owner, id))
            .await?
            .map_err(left)?;
        let Some(lease) = found else { return Ok(()) };
        holdings::remove(&self.engine, &lease).await.map_err(left)?;
        lease.clear(self.config.owner.data_dir()).map_err(left)
    }
}

impl Containers {
    /// Refuses what cannot be, before anything is made.
    fn check(&self, spec: &SandboxSpec) -> Result<(), SandboxError> {
        let unsupported = |what: String| SandboxError::Unsupported { backend: NAME, what };
        check_size(NAME, spec.size)?;
        if !home::may_be_home(&spec.home) {
            return Err(unsupported(format!("a home at `{}`", spec.home)));
        }
        for asset in &spec.assets {
            if !asset.host_path.exists() {
                let what = format!(
                    "asset `{}`: `{}` is not there",
                    asset.name,
                    asset.host_path.display()
                );
                return Err(unsupported(what));
            }
        }
        Ok(())
    }

    fn image_of(&self, spec: &SandboxSpec) -> Result<String, SandboxError> {
        let configured = self.config.providers.docker.image.as_ref();
        spec.image
            .as_ref()
            .or(configured)
            .cloned()
            .ok_or_else(|| SandboxError::Unavailable {
                backend: NAME,
                reason: "no image is named".into(),
                remedy: Some(
                    "name one with --image or in the task, or for all with `image` in [sandboxes.docker] of the configuration",
                ),
            })
    }
}

async fn boot(
    container: Container,
    spec: &SandboxSpec,
    holdings: &Arc<Holdings>,
) -> Result<Arc<dyn Sandbox>, SandboxError> {
    let built = container.boot(holdings).await?;
    container.check(&built.control).await?;
    let inside = container.inside();
    let belongings: Arc<dyn Belongings> = Arc::clone(holdings) as Arc<dyn Belongings>;
    Ok(Arc::new(ControlledSandbox::new(
        spec,
        inside,
        built,
        belongings,
        Box::new(container),
    )))
}
