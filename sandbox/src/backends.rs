use crate::bake::Baker;
use crate::lease::{Lease, LeaseError, end_processes, is_alive};
use crate::{Backend, BackendConfig, SandboxError, SandboxSpec};
use dressage_wire::ids::SandboxId;
use dressage_wire::task::NetworkPolicy;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Isolated by bubblewrap on this machine.
mod local;

/// Not isolated: programs on this machine.
mod process;

/// Containers of Docker and Podman.
mod docker;

/// Machines at E2B.
mod e2b;

/// Jobs at Hugging Face.
mod huggingface;

/// Every backend. A row is all that the rest of Dressage knows of one.
#[must_use]
pub fn registry() -> &'static [BackendEntry] {
    &[
        BackendEntry {
            name: "local",
            summary: "bubblewrap on this machine: own namespaces, no network, read-only system",
            shares_loopback: false,
            make: local::make,
            probe: local::probe,
            baker: None,
        },
        BackendEntry {
            name: "process",
            summary: "no isolation: programs on this machine, for those without bubblewrap",
            shares_loopback: true,
            make: process::make,
            probe: process::probe,
            baker: None,
        },
        BackendEntry {
            name: "docker",
            summary: "a container of Docker or Podman for each sandbox, without a network if not asked for",
            shares_loopback: false,
            make: docker::make,
            probe: docker::probe,
            baker: Some(docker::baker),
        },
        BackendEntry {
            name: "e2b",
            summary: "a machine at E2B for each sandbox",
            shares_loopback: false,
            make: e2b::make,
            probe: e2b::probe,
            baker: Some(e2b::baker),
        },
        BackendEntry {
            name: "huggingface",
            summary: "a job at Hugging Face for each sandbox",
            shares_loopback: false,
            make: huggingface::make,
            probe: huggingface::probe,
            baker: None,
        },
    ]
}

/// The backend of that name.
///
/// # Errors
/// [`SandboxError::UnknownBackend`].
pub fn by_name(name: &str) -> Result<&'static BackendEntry, SandboxError> {
    registry()
        .iter()
        .find(|entry| entry.name == name)
        .ok_or_else(|| SandboxError::UnknownBackend {
            name: name.to_owned(),
        })
}

/// A row of the table of backends.
pub struct BackendEntry {
    /// By which it is asked for.
    pub name: &'static str,
    /// What it is, in a line.
    pub summary: &'static str,
    /// Whether its sandboxes reach what listens on this machine's loopback.
    pub shares_loopback: bool,
    /// Makes the backend; fails with [`SandboxError::Unavailable`] where it cannot work on this machine.
    pub make: fn(&BackendConfig) -> Result<Arc<dyn Backend>, SandboxError>,
    /// Finds out what it can do on this machine. Slow (starts programs) and blocking.
    pub probe: fn(&BackendConfig) -> Report,
    /// Makes what builds images for it, where there is such a thing; fails as `make` does.
    pub baker: Option<MakeBaker>,
}

/// Makes what builds images.
pub type MakeBaker = fn(&BackendConfig) -> Result<Arc<dyn Baker>, SandboxError>;

/// What a backend can do on this machine, for people.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Why it does not work here; unset where it does.
    pub problem: Option<String>,
    /// What would help.
    pub hint: Option<String>,
    /// What was found, in order.
    pub facts: Vec<Fact>,
}

/// One thing found out about a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fact {
    /// What.
    pub name: &'static str,
    /// How it is.
    pub value: String,
}

impl Report {
    pub(crate) fn fact(&mut self, name: &'static str, value: impl Into<String>) {
        self.facts.push(Fact {
            name,
            value: value.into(),
        });
    }
}

/// Refuses what only containers have.
fn refuse_containers(backend: &'static str, spec: &SandboxSpec) -> Result<(), SandboxError> {
    let what = match spec {
        SandboxSpec {
            dockerfile: Some(_), ..
        } => "an image built of a Dockerfile".into(),
        SandboxSpec { user: Some(user), .. } => format!("programs that are the user `{user}`"),
        _ => return Ok(()),
    };
    Err(SandboxError::Unsupported { backend, what })
}

/// Refuses a network of some hosts only, for a backend that cannot hold sandboxes to it.
pub(crate) fn refuse_allowed_hosts(backend: &'static str, spec: &SandboxSpec) -> Result<(), SandboxError> {
    match &spec.network {
        NetworkPolicy::Allow(_) => Err(SandboxError::Unsupported {
            backend,
            what: "a network of some hosts only, which needs backend local or docker".into(),
        }),
        NetworkPolicy::None | NetworkPolicy::Open => Ok(()),
    }
}

/// Refuses what begins with a snapshot.
pub(crate) fn refuse_snapshots(backend: &'static str, spec: &SandboxSpec) -> Result<(), SandboxError> {
    match &spec.snapshot {
        None => Ok(()),
        Some(_) => Err(SandboxError::Unsupported {
            backend,
            what: "snapshots".into(),
        }),
    }
}

/// Runs what blocks off the runtime's threads.
pub(crate) async fn off_the_runtime<T: Send + 'static>(
    step: &'static str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, SandboxError> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|error| SandboxError::Create {
            step: step.to_owned(),
            source: Some(std::io::Error::other(error)),
        })
}

/// Runs what asks an engine or a provider on a thread that has no runtime: there it is not cancelled with one.
pub(crate) fn block_on<T>(work: impl Future<Output = T>) -> std::io::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    Ok(runtime.block_on(work))
}

/// Sandboxes of a backend by their leases, whichever process has them.
pub(crate) async fn list_leased(
    config: &BackendConfig,
    backend: &'static str,
    labels: BTreeMap<String, String>,
) -> Result<Vec<SandboxId>, SandboxError> {
    let owner = Arc::clone(&config.owner);
    off_the_runtime("list leases", move || {
        let (leases, unreadable) =
            Lease::all(owner.data_dir()).map_err(|source| SandboxError::List { backend, source })?;
        for error in unreadable {
            tracing::warn!(error = &error as &dyn std::error::Error, "a lease cannot be read");
        }
        let carries = |lease: &Lease| {
            labels
                .iter()
                .all(|(name, value)| lease.labels.get(name) == Some(value))
        };
        Ok(leases
            .into_iter()
            .filter(|lease| lease.backend == backend && carries(lease))
            .map(|lease| lease.sandbox)
            .collect())
    })
    .await?
}

/// Removes a sandbox by its lease.
async fn delete_leased(
    config: &BackendConfig,
    backend: &'static str,
    sandbox: SandboxId,
) -> Result<(), SandboxError> {
    let owner = Arc::clone(&config.owner);
    off_the_runtime("remove a sandbox", move || {
        let data_dir = owner.data_dir();
        let found =
            Lease::find(data_dir, sandbox).map_err(|source| SandboxError::List { backend, source })?;
        let Some(lease) = found else { return Ok(()) };
        let result = if lease.owner != owner.id() && is_alive(data_dir, lease.owner) {
            Err(LeaseError::OwnedByAnother {
                sandbox,
                owner: lease.owner,
            })
        } else {
            end_processes(std::slice::from_ref(&lease));
            lease.clear(data_dir)
        };
        result.map_err(|source| SandboxError::Left {
            id: sandbox,
            source: Arc::new(source),
        })
    })
    .await?
}
