pub use crate::engine::{IMAGE, engine};
use crate::fake::Fake;
pub use crate::spec::spec;
use bollard::models::ContainerSummary;
use bollard::query_parameters::{ListContainersOptionsBuilder, RemoveImageOptionsBuilder};
use bytes::Bytes;
use dressage_sandbox::lease::{Lease, Owner, Reaper};
use dressage_sandbox::{
    Backend, BackendConfig, BackendEntry, Command, DockerAccess, Exit, OutputSink, Providers, Sandbox,
    SandboxError, SandboxSpec, registry,
};
use dressage_wire::event::OutputStream;
use dressage_wire::ids::SandboxId;
use dressage_wire::task::NetworkPolicy;
use std::collections::HashMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

/// A data directory of its own, with an owner.
pub struct World {
    pub folder: tempfile::TempDir,
    pub config: BackendConfig,
    fake: OnceLock<Fake>,
}

/// The backends at providers.
pub const REMOTE: [&str; 2] = ["e2b", "huggingface"];

/// The static `dressage-tap` that the tests run.
pub fn tap_binary() -> PathBuf {
    let path = std::env::var_os("DRESSAGE_TAP_BINARY")
        .map(PathBuf::from)
        .unwrap_or_else(|| {
            panic!("DRESSAGE_TAP_BINARY is not set: it names the static dressage-tap that `make build` makes")
        });
    assert!(
        path.is_file(),
        "DRESSAGE_TAP_BINARY names no file: {}",
        path.display()
    );
    path
}

impl World {
    pub fn new() -> Self {
        for program in ["/usr/bin/bwrap", "/usr/bin/python3"] {
            assert!(
                Path::new(program).exists(),
                "{program} is needed by these tests: run `make test`, which installs it"
            );
        }
        let folder = tempfile::Builder::new().prefix("dressage-").tempdir().unwrap();
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let config = Self::config_of(folder.path());
        Self {
            folder,
            config,
            fake: OnceLock::new(),
        }
    }

    /// As another process on the same data directory would have it.
    pub fn config_of(folder: &Path) -> BackendConfig {
        BackendConfig {
            data_dir: folder.join("data"),
            cache_dir: folder.join("cache"),
            tap_binary: tap_binary(),
            bubblewrap: None,
            ripgrep: None,
            owner: Arc::new(Owner::acquire(&folder.join("data")).unwrap()),
            providers: Providers {
                docker: DockerAccess {
                    host: engine().map(str::to_owned),
                    image: Some(IMAGE.into()),
                },
                ..Providers::default()
            },
        }
    }

    pub fn backend(&self, name: &str) -> Arc<dyn Backend> {
        (dressage_sandbox::by_name(name).unwrap().make)(&self.config).unwrap()
    }

    /// Every backend of the registry that needs no provider.
    pub fn backends(&self) -> Vec<Arc<dyn Backend>> {
        entries().map(|entry| self.backend(entry.name)).collect()
    }

    /// Providers that are played here.
    pub fn fake(&self) -> &Fake {
        self.fake.get_or_init(Fake::start)
    }

    /// With access to the providers that are played here, and to the engine.
    pub fn remote_config(&self) -> BackendConfig {
        let mut providers = self.fake().providers();
        providers.docker = self.config.providers.docker.clone();
        BackendConfig {
            providers,
            ..self.config.clone()
        }
    }

    pub fn remote(&self, name: &str) -> Arc<dyn Backend> {
        (dressage_sandbox::by_name(name).unwrap().make)(&self.remote_config()).unwrap()
    }

    /// Every backend: those at providers over the ones that are played here, and over those that the environment names
    /// (`DRESSAGE_TEST_E2B_URL`, `DRESSAGE_TEST_HF_URL`).
    pub fn everywhere(&self) -> Vec<Arc<dyn Backend>> {
        let mut backends = self.backends();
        for (name, variable) in REMOTE
            .iter()
            .zip(["DRESSAGE_TEST_E2B_URL", "DRESSAGE_TEST_HF_URL"])
        {
            backends.push(self.remote(name));
            if std::env::var_os(variable).is_some() {
                let config = BackendConfig {
                    providers: crate::fake::named(Providers::default()),
                    ..self.config.clone()
                };
                backends.push((dressage_sandbox::by_name(name).unwrap().make)(&config).unwrap());
            }
        }
        backends
    }

    /// A sandbox of every backend, everywhere.
    pub async fn sandboxes_everywhere(&self) -> Vec<Arc<dyn Sandbox>> {
        let mut sandboxes = Vec::new();
        for backend in self.everywhere() {
            sandboxes.push(backend.create(spec_for(&*backend)).await.unwrap());
        }
        sandboxes
    }

    /// A sandbox of every backend.
    pub async fn sandboxes(&self) -> Vec<Arc<dyn Sandbox>> {
        let mut sandboxes = Vec::new();
        for backend in self.backends() {
            sandboxes.push(backend.create(spec()).await.unwrap());
        }
        sandboxes
    }

    pub async fn local(&self) -> Arc<dyn Sandbox> {
        self.backend("local").create(spec()).await.unwrap()
    }

    /// Names of what is under a folder of the data directory.
    pub fn names(&self, folder: &str) -> Vec<String> {
        names(&self.config.data_dir.join(folder))
    }
}

impl Drop for World {
    /// Sandboxes that a test let go end in the background; what a killed process left is swept. Nothing may remain.
    fn drop(&mut self) {
        let own = self.config.owner.id();
        self.end_remote();
        let reaper = Reaper::new(Arc::clone(&self.config.owner));
        // On a thread without a runtime: most tests have one.
        std::thread::scope(|scope| {
            let sweeping = scope.spawn(|| {
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build()
                    .unwrap();
                runtime.block_on(reaper.sweep_everywhere(&self.config))
            });
            let _ = sweeping.join();
        });
        let leased = || {
            Lease::all(&self.config.data_dir)
                .is_ok_and(|(leases, _)| leases.iter().any(|lease| lease.owner == own))
        };
        let deadline = Instant::now() + Duration::from_secs(30);
        while leased() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(
            std::thread::panicking() || !leased(),
            "a sandbox that was let go was not removed"
        );
    }
}

impl World {
    /// What is at providers cannot end in the background while this thread waits for it.
    fn end_remote(&self) {
        let config = match self.fake.get() {
            Some(fake) => fake.providers(),
            None => return,
        };
        let configs = [config, crate::fake::named(Providers::default())].map(|providers| BackendConfig {
            providers,
            ..self.config.clone()
        });
        let leases = Lease::all(&self.config.data_dir).unwrap().0;
        let ending = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            for lease in leases
                .iter()
                .filter(|lease| REMOTE.contains(&lease.backend.as_str()))
            {
                for config in &configs {
                    // One of them made it.
                    if let Ok(backend) = (dressage_sandbox::by_name(&lease.backend).unwrap().make)(config) {
                        let _ = runtime.block_on(backend.delete(lease.sandbox));
                    }
                }
            }
        });
        let _ = ending.join();
    }
}

/// A small sandbox that the backend can provide.
pub fn spec_for(backend: &dyn Backend) -> SandboxSpec {
    let mut spec = spec();
    if backend.name() == "huggingface" {
        spec.network = NetworkPolicy::Open;
    }
    spec
}

/// The rows of the backends that need no provider, and no engine where none can be had.
pub fn entries() -> impl Iterator<Item = &'static BackendEntry> {
    registry().iter().filter(|entry| match entry.name {
        "docker" => engine().is_some(),
        name => !REMOTE.contains(&name),
    })
}

/// What the engine has of a sandbox: containers, running or not.
pub async fn containers(sandbox: SandboxId) -> Vec<ContainerSummary> {
    if engine().is_none() {
        return Vec::new();
    }
    let label = format!("dressage-sandbox={sandbox}");
    let options = ListContainersOptionsBuilder::new()
        .all(true)
        .filters(&HashMap::from([("label", vec![label])]))
        .build();
    client().await.list_containers(Some(options)).await.unwrap()
}

/// A client of the engine.
pub async fn client() -> bollard::Docker {
    let engine = engine().unwrap();
    let client = bollard::Docker::connect_with_unix(engine, 60, bollard::API_DEFAULT_VERSION).unwrap();
    client.negotiate_version().await.unwrap()
}

/// Removes an image from the engine.
pub async fn remove_image(name: &str) {
    let options = RemoveImageOptionsBuilder::new().force(true).build();
    client()
        .await
        .remove_image(name, Some(options), None)
        .await
        .unwrap();
}

/// The number on this machine of the first process of a sandbox's container.
pub async fn first_process(sandbox: SandboxId) -> i32 {
    let container = containers(sandbox).await.remove(0).id.unwrap();
    let inspected = client().await.inspect_container(&container, None).await.unwrap();
    i32::try_from(inspected.state.unwrap().pid.unwrap()).unwrap()
}

pub fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = match std::fs::read_dir(folder) {
        Ok(entries) => entries
            .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
            .collect(),
        Err(_) => Vec::new(),
    };
    names.sort();
    names
}

pub fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

/// Keeps what a program writes.
#[derive(Default)]
pub struct Output {
    stdout: Mutex<Vec<u8>>,
    stderr: Mutex<Vec<u8>>,
}

impl OutputSink for Output {
    fn write(&self, stream: OutputStream, bytes: &[u8]) {
        match stream {
            OutputStream::Stdout => self.stdout.lock().unwrap().extend_from_slice(bytes),
            OutputStream::Stderr => self.stderr.lock().unwrap().extend_from_slice(bytes),
        }
    }
}

impl Output {
    pub fn stdout(&self) -> String {
        String::from_utf8_lossy(&self.stdout.lock().unwrap()).into_owned()
    }

    pub fn stdout_bytes(&self) -> Vec<u8> {
        self.stdout.lock().unwrap().clone()
    }

    pub fn stderr(&self) -> String {
        String::from_utf8_lossy(&self.stderr.lock().unwrap()).into_owned()
    }
}

/// A shell command.
pub fn sh(script: &str) -> Command {
    Command {
        argv: vec!["sh".into(), "-c".into(), script.into()],
        ..Command::default()
    }
}

pub fn python(script: &str) -> Command {
    Command {
        argv: vec!["python3".into(), "-c".into(), script.into()],
        ..Command::default()
    }
}

/// What came of a command.
pub struct Ran {
    pub exit: Exit,
    pub stdout: String,
    pub stderr: String,
}

pub async fn try_run(sandbox: &dyn Sandbox, command: Command) -> Result<Ran, SandboxError> {
    let output = Arc::new(Output::default());
    let exit = sandbox
        .exec(command, Arc::clone(&output) as Arc<dyn OutputSink>)
        .await?;
    Ok(Ran {
        exit,
        stdout: output.stdout(),
        stderr: output.stderr(),
    })
}

pub async fn run(sandbox: &dyn Sandbox, command: Command) -> Ran {
    try_run(sandbox, command).await.unwrap()
}

/// The standard output of a command that must succeed, without the last line's end.
pub async fn stdout_of(sandbox: &dyn Sandbox, command: Command) -> String {
    let ran = run(sandbox, command).await;
    assert_eq!(ran.exit.code, 0, "{}{}", ran.stdout, ran.stderr);
    ran.stdout.trim_end().to_owned()
}

/// Waits until something holds, for as long as a loaded machine may take; fails with what was waited for.
pub async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..2_000 {
        if holds() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{what} did not come to hold within 20 s");
}

/// The processes of this machine whose command line holds `mark`, other than this one.
pub fn processes_with(mark: &str) -> Vec<i32> {
    let own = i32::try_from(std::process::id()).unwrap();
    std::fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok())
        .filter(|pid| *pid != own)
        .filter(|pid| {
            std::fs::read(format!("/proc/{pid}/cmdline"))
                .is_ok_and(|line| String::from_utf8_lossy(&line).replace('\0', " ").contains(mark))
        })
        .collect()
}

pub fn bytes(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}
