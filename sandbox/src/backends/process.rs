//! Programs on this machine, without any isolation, for machines without bubblewrap.
//!
//! Only the home is new; everything else is this machine's, as its user, with its network. It must be asked for by name and
//! warns each time. A program can end its init here, being the same user; the sandbox is then gone, and only a control
//! group, where there are any, still finds what it left running.

use super::refuse_allowed_hosts;
use crate::cgroup::{Controller, Hierarchies};
use crate::controlled::{Built, ControlledSandbox, Ground, Inside};
use crate::estate::{Estate, Identity, check_size};
use crate::fresh::make_fresh;
use crate::launch::{OwnLimits, Wiring};
use crate::life::Belongings;
use crate::processes::Ending;
use crate::{Backend, BackendConfig, Report, Sandbox, SandboxError, SandboxSpec};
use async_trait::async_trait;
use dressage_wire::ids::SandboxId;
use dressage_wire::reward::Separation;
use std::collections::BTreeMap;
use std::fs::DirBuilder;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::{DirBuilderExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

const NAME: &str = "process";

/// Where programs are looked for; a folder with what is missing there follows.
const SEARCH_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

pub(super) fn make(config: &BackendConfig) -> Result<Arc<dyn Backend>, SandboxError> {
    let unavailable = |reason| SandboxError::Unavailable {
        backend: NAME,
        reason,
        remedy: None,
    };
    if !config.tap_binary.is_file() {
        return Err(unavailable(format!(
            "there is no dressage-tap at `{}`",
            config.tap_binary.display()
        )));
    }
    let own_programs = config.cache_dir.join("process").join("bin");
    make_programs(&own_programs, config)
        .map_err(|error| unavailable(format!("`{}` cannot be written: {error}", own_programs.display())))?;
    Ok(Arc::new(Process {
        config: config.clone(),
        search_path: format!("{SEARCH_PATH}:{}", own_programs.display()),
        hierarchies: Hierarchies::detect(),
    }))
}

pub(super) fn probe(config: &BackendConfig) -> Report {
    let mut report = Report::default();
    if let Err(error) = make(config) {
        report.problem = Some(error.to_string());
    }
    let hierarchies = Hierarchies::detect();
    report.fact(
        "isolation",
        "none: programs run as this user, with its files and its network",
    );
    report.fact("homes", config.data_dir.join("homes").display().to_string());
    report.fact("control groups", hierarchies.describe());
    let bound = if hierarchies.limits(Controller::Memory) {
        "control group"
    } else {
        "not limited"
    };
    report.fact("limits", format!("memory, processes, processors: {bound}"));
    report
}

/// `python` and `rg`, where the machine has them under other names or elsewhere only.
fn make_programs(folder: &Path, config: &BackendConfig) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o755).create(folder)?;
    let has = |name: &str| {
        SEARCH_PATH
            .split(':')
            .any(|place| Path::new(place).join(name).exists())
    };
    let link = |target: &Path, name: &str| match symlink(target, folder.join(name)) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    };
    if has("python3") && !has("python") {
        link(Path::new("/usr/bin/python3"), "python")?;
    }
    match &config.ripgrep {
        Some(ripgrep) if !has("rg") => link(ripgrep, "rg"),
        _ => Ok(()),
    }
}

struct Process {
    config: BackendConfig,
    search_path: String,
    hierarchies: Hierarchies,
}

#[async_trait]
impl Backend for Process {
    fn name(&self) -> &'static str {
        NAME
    }

    /// The home is a folder of the data directory, whatever is asked for.
    fn gives_home(&self, _: &str) -> bool {
        false
    }

    fn host_address(&self) -> Option<IpAddr> {
        Some(Ipv4Addr::LOCALHOST.into())
    }

    async fn create(&self, spec: SandboxSpec) -> Result<Arc<dyn Sandbox>, SandboxError> {
        let unsupported = |what: String| SandboxError::Unsupported { backend: NAME, what };
        check_size(NAME, spec.size)?;
        refuse_allowed_hosts(NAME, &spec)?;
        if spec.image.is_some() {
            return Err(unsupported("an image: its system is that of this machine".into()));
        }
        super::refuse_containers(NAME, &spec)?;
        super::refuse_snapshots(NAME, &spec)?;
        tracing::warn!(
            sandbox.id = %spec.id,
            sandbox.backend = NAME,
            "this sandbox is not isolated: its programs run as this user, with its files and its network"
        );
        let (owner, hierarchies, leased) = (
            Arc::clone(&self.config.owner),
            self.hierarchies.clone(),
            spec.clone(),
        );
        let estate = super::off_the_runtime("make its home", move || {
            Estate::make(&owner, NAME, &leased, Identity::Shared, &hierarchies)
        })
        .await??;
        let estate = Arc::new(estate);
        let home = estate
            .home()
            .to_str()
            .ok_or_else(|| SandboxError::Unsupported {
                backend: NAME,
                what: "a data directory whose name is not text".into(),
            })?
            .to_owned();
        let tree = Tree {
            tap_binary: self.config.tap_binary.clone(),
            spec: spec.clone(),
            estate: Arc::clone(&estate),
        };
        // Sandboxes share this machine's ports: each relay takes one that is free.
        let listen = spec
            .relay_port
            .map(|_| SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0));
        let built = tree.build(listen).await?;
        let env = [
            ("HOME", home.as_str()),
            ("LANG", "C.UTF-8"),
            ("PATH", self.search_path.as_str()),
            ("SHELL", "/bin/bash"),
        ];
        let inside = Inside {
            env: env
                .into_iter()
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .collect(),
            assets: spec
                .assets
                .iter()
                .map(|asset| (asset.name.clone(), asset.host_path.to_string_lossy().into_owned()))
                .collect(),
            home,
        };
        Ok(Arc::new(ControlledSandbox::new(
            &spec,
            inside,
            built,
            estate,
            Box::new(tree),
        )))
    }

    async fn list(&self, labels: &BTreeMap<String, String>) -> Result<Vec<SandboxId>, SandboxError> {
        super::list_leased(&self.config, NAME, labels.clone()).await
    }

    async fn delete(&self, id: SandboxId) -> Result<(), SandboxError> {
        super::delete_leased(&self.config, NAME, id).await
    }
}

/// The processes below one init.
struct Tree {
    tap_binary: PathBuf,
    spec: SandboxSpec,
    estate: Arc<Estate>,
}

impl Tree {
    async fn build(&self, listen: Option<SocketAddr>) -> Result<Built, SandboxError> {
        let failed = |source| SandboxError::Create {
            step: "start its init".into(),
            source: Some(source),
        };
        let lifetime = (!self.spec.lifetime.is_zero()).then_some(self.spec.lifetime);
        let mut wiring = Wiring::new(listen, None, lifetime, OwnLimits::default()).map_err(failed)?;
        let mut command = Command::new(&self.tap_binary);
        command.args(wiring.arguments()).current_dir("/");
        let child = wiring
            .start(command, &self.estate, Vec::new())
            .await
            .map_err(failed)?;
        let init = child
            .pid()
            .ok_or_else(|| failed(io::Error::from(io::ErrorKind::NotFound)))?;
        let body = wiring
            .body(init, Ending::ByInit, child, &self.estate)
            .map_err(failed)?;
        let built = wiring.connect(self.spec.id, body).await?;
        self.estate
            .name_processes(&[init])
            .map_err(|source| SandboxError::Lease {
                id: self.spec.id,
                source,
            })?;
        Ok(built)
    }
}

#[async_trait]
impl Ground for Tree {
    async fn rebuild(&self, fresh: &[String]) -> Result<Built, SandboxError> {
        for path in fresh {
            let below =
                Path::new(path)
                    .strip_prefix(self.estate.home())
                    .map_err(|_| SandboxError::Unsupported {
                        backend: NAME,
                        what: format!("a fresh directory outside of the home, at `{path}`"),
                    })?;
            make_fresh(self.estate.home(), below, None).map_err(|source| SandboxError::Create {
                step: format!("make `{path}` anew"),
                source: Some(source),
            })?;
        }
        self.build(None).await
    }

    fn separation(&self) -> Separation {
        Separation::None
    }

    fn backend(&self) -> &'static str {
        NAME
    }

    /// Setup may have changed anything of this machine.
    async fn keep(
        &self,
        _: SandboxId,
        _: BTreeMap<String, String>,
    ) -> Result<Arc<dyn Belongings>, SandboxError> {
        Err(SandboxError::Unsupported {
            backend: NAME,
            what: "snapshots".into(),
        })
    }
}
