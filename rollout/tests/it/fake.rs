use async_trait::async_trait;
use bytes::Bytes;
use dressage_sandbox::{
    Asset, Backend, Channel, Command, Exit, FileList, OutputSink, Process, Sandbox, SandboxError,
    SandboxSpec, Snapshot,
};
use dressage_wire::event::OutputStream;
use dressage_wire::ids::SandboxId;
use dressage_wire::reward::Separation;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::DuplexStream;

/// What goes wrong with a fake sandbox; by default nothing does, and every program exits 0 at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Trouble {
    #[default]
    None,
    /// It cannot be made.
    CreateFails,
    /// It is never there.
    CreateHangs,
    /// It is gone when the agent is to start.
    GoneAtAgent,
    /// It is gone when the first verify command is to start.
    GoneAtVerify,
    /// Programs never end, and nothing is reported of them.
    Unresponsive,
    /// It cannot be taken down.
    KillFails,
    /// Taking it down never ends.
    KillHangs,
    /// Setup panics inside the sandbox's own code.
    PanicsAtSetup,
    /// The agent's sandbox is gone when its outputs are to be taken.
    GoneAtTaking,
    /// Its outputs are no archive.
    NoArchive,
    /// Its outputs are an archive that would write where it is not to.
    HostileArchive,
    /// Taking its outputs never ends.
    TakingHangs,
    /// Putting them never ends.
    PuttingHangs,
    /// The second sandbox cannot be made.
    SecondFails,
    /// The second is never there.
    SecondHangs,
    /// Setup fails in the second.
    SecondSetupFails,
    /// The second is gone when outputs are put into it.
    GoneAtPutting,
    /// Its files cannot be kept.
    KeepFails,
    /// What was kept cannot be used.
    RestoreFails,
}

/// A backend whose sandboxes are a list of what was asked of them.
#[derive(Default)]
pub struct FakeBackend {
    pub trouble: Trouble,
    /// What was asked, in order.
    pub log: Arc<Mutex<Vec<String>>>,
    made: AtomicUsize,
}

impl FakeBackend {
    pub fn with(trouble: Trouble) -> Arc<Self> {
        Arc::new(Self {
            trouble,
            log: Arc::default(),
            made: AtomicUsize::new(0),
        })
    }

    pub fn log(&self) -> Vec<String> {
        self.log.lock().unwrap().clone()
    }
}

struct FakeSandbox {
    id: SandboxId,
    number: usize,
    trouble: Trouble,
    log: Arc<Mutex<Vec<String>>>,
    assets: Vec<Asset>,
    far_ends: Mutex<Vec<DuplexStream>>,
}

#[async_trait]
impl Backend for FakeBackend {
    fn name(&self) -> &'static str {
        "fake"
    }

    fn gives_home(&self, _home: &str) -> bool {
        true
    }

    fn keeps_snapshots(&self) -> bool {
        true
    }

    async fn create(&self, spec: SandboxSpec) -> Result<Arc<dyn Sandbox>, SandboxError> {
        let what = match spec.snapshot {
            Some(_) => "restore",
            None => "create",
        };
        self.log.lock().unwrap().push(what.into());
        let number = self.made.fetch_add(1, Ordering::Relaxed) + 1;
        match self.trouble {
            Trouble::CreateFails | Trouble::SecondFails
                if number == 2 || self.trouble == Trouble::CreateFails =>
            {
                let source = Some(std::io::Error::other("no space left on device"));
                return Err(SandboxError::Create {
                    step: "home".into(),
                    source,
                });
            }
            Trouble::CreateHangs => std::future::pending().await,
            Trouble::RestoreFails if spec.snapshot.is_some() => {
                return Err(SandboxError::Create {
                    step: "find it".into(),
                    source: None,
                });
            }
            Trouble::SecondHangs if number == 2 => std::future::pending().await,
            _ => {}
        }
        Ok(Arc::new(FakeSandbox {
            id: spec.id,
            number,
            trouble: self.trouble,
            log: self.log.clone(),
            assets: spec.assets,
            far_ends: Mutex::default(),
        }))
    }

    async fn list(&self, _labels: &BTreeMap<String, String>) -> Result<Vec<SandboxId>, SandboxError> {
        Ok(Vec::new())
    }

    async fn delete(&self, _id: SandboxId) -> Result<(), SandboxError> {
        Ok(())
    }
}

impl FakeSandbox {
    fn note(&self, what: impl Into<String>) {
        self.log.lock().unwrap().push(what.into());
    }

    fn gone(&self) -> SandboxError {
        SandboxError::Gone {
            id: self.id,
            reason: "its process ended".into(),
        }
    }
}

#[async_trait]
impl Sandbox for FakeSandbox {
    fn id(&self) -> SandboxId {
        self.id
    }

    fn home(&self) -> &str {
        "/home/user"
    }

    fn asset_path(&self, name: &str) -> Option<String> {
        self.assets
            .iter()
            .any(|asset| asset.name == name)
            .then(|| format!("/assets/{name}"))
    }

    fn relay_address(&self) -> Option<String> {
        Some("127.0.0.1:7000".into())
    }

    async fn start(
        &self,
        command: Command,
        output: Arc<dyn OutputSink>,
    ) -> Result<Box<dyn Process>, SandboxError> {
        let last = command.argv.last().cloned().unwrap_or_default();
        let kind = match command.argv.iter().map(String::as_str).collect::<Vec<_>>()[..] {
            ["bash", "-l", "-c", text] if text.contains("env -0") => "environment",
            ["bash", "-l", "-c", _] => "setup",
            ["bash", "--noprofile", "--norc", "-c", _] => "verify",
            ["sh", "-c", script, ..] if script.contains("exec tar") => "take",
            ["sh", "-c", script, ..] if script.contains("rm -rf") => "put",
            _ => "agent",
        };
        match (self.trouble, kind) {
            (Trouble::PanicsAtSetup, "setup") => panic!("a backend with a bug"),
            (Trouble::GoneAtAgent, "agent")
            | (Trouble::GoneAtVerify, "verify")
            | (Trouble::GoneAtTaking, "take")
            | (Trouble::GoneAtPutting, "put") => return Err(self.gone()),
            _ => {}
        }
        match kind {
            "environment" => {
                let mark = last.split_whitespace().nth(2).unwrap().trim_end_matches(';');
                output.write(
                    OutputStream::Stdout,
                    format!("{mark}\0PATH=/usr/bin\0").as_bytes(),
                );
            }
            "agent" => {
                self.note("agent");
                output.write(
                    OutputStream::Stdout,
                    b"{\"type\":\"text\",\"part\":{\"text\":\"Done.\"}}\n",
                );
            }
            kind => self.note(format!("{kind} {last}")),
        }
        let hangs = match self.trouble {
            Trouble::Unresponsive => kind != "environment",
            Trouble::TakingHangs => kind == "take",
            Trouble::PuttingHangs => kind == "put",
            _ => false,
        };
        let code = match (self.trouble, kind) {
            (Trouble::NoArchive, "take") => {
                output.write(OutputStream::Stdout, b"no archive\n");
                0
            }
            (Trouble::HostileArchive, "take") => {
                output.write(OutputStream::Stdout, &hostile());
                0
            }
            // Nothing is there.
            (_, "take") => 44,
            (Trouble::SecondSetupFails, "setup") if self.number == 2 => 5,
            _ => 0,
        };
        Ok(Box::new(FakeProcess { hangs, code }))
    }

    async fn write_file(&self, path: &str, _content: Bytes, _mode: u32) -> Result<(), SandboxError> {
        self.note(format!("write {path}"));
        Ok(())
    }

    async fn read_file(&self, path: &str, _limit: u64) -> Result<Bytes, SandboxError> {
        self.note(format!("read {path}"));
        Err(SandboxError::NotFound { path: path.into() })
    }

    async fn exists(&self, _path: &str) -> Result<bool, SandboxError> {
        Ok(false)
    }

    async fn list_files(&self, path: &str, _depth: u32, _files: usize) -> Result<FileList, SandboxError> {
        self.note(format!("list {path}"));
        Ok(FileList::default())
    }

    async fn open_relay(&self) -> Result<Box<dyn Channel>, SandboxError> {
        self.note("relay");
        let (near, far) = tokio::io::duplex(64);
        self.far_ends.lock().unwrap().push(far);
        Ok(Box::new(near))
    }

    async fn separate(&self, fresh: &[String]) -> Result<Separation, SandboxError> {
        self.note(format!("separate {}", fresh.join(" ")));
        Ok(Separation::Namespace)
    }

    async fn snapshot(&self, _labels: &BTreeMap<String, String>) -> Result<Snapshot, SandboxError> {
        self.note("keep");
        if self.trouble == Trouble::KeepFails {
            return Err(SandboxError::Create {
                step: "copy".into(),
                source: Some(std::io::Error::other("no space left on device")),
            });
        }
        let log = self.log.clone();
        let once = std::sync::Once::new();
        Ok(Snapshot::new(SandboxId::new(), "fake", move || {
            once.call_once(|| log.lock().unwrap().push("forget".into()));
            Ok(())
        }))
    }

    async fn relabel(&self, _labels: &BTreeMap<String, String>) -> Result<(), SandboxError> {
        Ok(())
    }

    async fn kill(&self) -> Result<(), SandboxError> {
        self.note("kill");
        match self.trouble {
            Trouble::KillFails => Err(SandboxError::Operation {
                operation: "delete",
                object: "home".into(),
                message: "device busy".into(),
                errno: None,
            }),
            Trouble::KillHangs => std::future::pending().await,
            _ => Ok(()),
        }
    }
}

/// An archive of one file in the folder above.
fn hostile() -> Vec<u8> {
    let mut block = vec![0; 512];
    let name = b"./workdir/../.bashrc";
    block[..name.len()].copy_from_slice(name);
    block[148..156].fill(b' ');
    let sum: u32 = block.iter().copied().map(u32::from).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    block
}

struct FakeProcess {
    hangs: bool,
    code: i32,
}

#[async_trait]
impl Process for FakeProcess {
    async fn wait(&mut self) -> Result<Exit, SandboxError> {
        if self.hangs {
            std::future::pending::<()>().await;
        }
        Ok(Exit {
            code: self.code,
            signal: None,
            timed_out: false,
            duration: Duration::from_millis(1),
        })
    }

    async fn kill(&mut self) -> Result<(), SandboxError> {
        Ok(())
    }
}
