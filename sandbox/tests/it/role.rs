//! Tests that are a part of another test, in a process of their own that is killed.

use crate::world::World;
use dressage_sandbox::BackendConfig;
use dressage_wire::ids::SandboxId;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

/// Variable that makes a process of this test binary play a role: the folder of its world.
const FOLDER: &str = "DRESSAGE_TEST_ROLE";

/// Where the providers are that the other process plays.
const PROVIDERS: &str = "DRESSAGE_TEST_ROLE_PROVIDERS";

/// A process that plays a role, and the sandboxes and snapshots that it holds.
pub struct Other {
    process: Child,
    pub held: Vec<SandboxId>,
}

impl Other {
    /// Starts an ignored test of this binary that [`play`]s, and waits until it holds all.
    pub fn start(role: &str, world: &World) -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", role, "--ignored", "--nocapture"])
            .env(FOLDER, world.folder.path())
            .env(PROVIDERS, &world.fake().url)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (mut held, mut all) = (Vec::new(), false);
        for line in BufReader::new(process.stdout.take().unwrap()).lines() {
            match line.unwrap().split_once("holds ") {
                Some((_, "all")) => {
                    all = true;
                    break;
                }
                Some((_, id)) => held.push(id.parse().unwrap()),
                None => {}
            }
        }
        assert!(all, "the other process failed");
        Self { process, held }
    }

    pub fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// In the process that is started: makes what it is to hold, and waits to be killed.
pub fn play(make: impl AsyncFnOnce(BackendConfig)) {
    let variable = |name| std::env::var_os(name).expect("started by another test");
    let folder = PathBuf::from(variable(FOLDER));
    let providers = variable(PROVIDERS).into_string().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let mut config = World::config_of(&folder);
        let docker = config.providers.docker.clone();
        config.providers = crate::fake::Fake::providers_at(&providers);
        config.providers.docker = docker;
        make(config).await;
        println!("holds all");
        std::future::pending::<()>().await;
    });
}

/// Tells the other process of something that is held.
pub fn holds(id: SandboxId) {
    println!("holds {id}");
}
