use super::server::{Server, Setup};
use crate::engine::{IMAGE, engine};
use crate::fake::{E2B_KEY, Fake, HF_TOKEN};
use dressage_testkit::fault::{Fault, FaultPlan};
use dressage_testkit::model::{ScriptedModel, ScriptedModelConfig};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Rollouts that are in their midst when the server is killed.
const LIVE: u64 = 8;

/// What has died may take so long to be gone.
const SWEPT: Duration = Duration::from_secs(60);

/// In the environment of every program of a test's sandboxes, with a value of the test's own.
const MARK: &str = "LEAK_MARK";

/// A process: its number, and when it began, since numbers are given again.
type Known = (u32, String);

/// What there is of the sandboxes of a data directory, seen from this machine.
struct Watch {
    data: PathBuf,
    mark: String,
    /// Ids of the sandboxes that were leased.
    sandboxes: BTreeSet<String>,
    /// Whatever ran in them or for them.
    processes: BTreeSet<Known>,
}

impl Watch {
    fn new(data: PathBuf) -> Self {
        let mark = format!("{MARK}={}", data.display());
        Self {
            data,
            mark,
            sandboxes: BTreeSet::new(),
            processes: BTreeSet::new(),
        }
    }

    /// Remembers the sandboxes that are leased and the processes that are there. Says how many have the mark.
    fn look(&mut self, server: &Server) -> usize {
        for lease in server.left_in("leases") {
            let id = lease.file_stem().unwrap().to_str().unwrap().to_owned();
            self.sandboxes.insert(id);
        }
        let all = everything_that_runs();
        let own_space = pid_namespace("self");
        let (mut spaces, mut marked) = (BTreeSet::new(), 0);
        for known in &all {
            let space = pid_namespace(&known.0.to_string());
            if self.belongs(known.0) {
                self.processes.insert(known.clone());
                spaces.extend(space.filter(|space| Some(space) != own_space.as_ref()));
            }
            marked += usize::from(self.is_marked(known.0));
        }
        // What shares their namespace with them is theirs too, whatever it is called.
        let beside = all
            .into_iter()
            .filter(|known| pid_namespace(&known.0.to_string()).is_some_and(|space| spaces.contains(&space)));
        self.processes.extend(beside);
        marked
    }

    fn is_marked(&self, pid: u32) -> bool {
        let environ = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environ
            .split(|byte| *byte == 0)
            .any(|variable| variable == self.mark.as_bytes())
    }

    fn belongs(&self, pid: u32) -> bool {
        let read = |name: &str| {
            let bytes = std::fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default();
            String::from_utf8_lossy(&bytes).into_owned()
        };
        let (line, group) = (read("cmdline"), read("cgroup"));
        let named = |id: &String| line.contains(id.as_str()) || group.contains(id.as_str());
        // Of a zombie there is no command line: it has ended, and its parent is to ask how.
        !line.is_empty()
            && pid != std::process::id()
            && (line.contains(self.data.to_str().unwrap())
                || self.sandboxes.iter().any(named)
                || self.is_marked(pid))
    }

    /// What is left of them, in words.
    fn left(&self, server: &Server, fake: &Fake) -> Vec<String> {
        let mut left = Vec::new();
        for folder in ["homes", "leases"] {
            let found = server.left_in(folder);
            left.extend(found.iter().map(|path| path.display().to_string()));
        }
        for known in everything_that_runs() {
            if self.processes.contains(&known) || self.belongs(known.0) {
                let line = std::fs::read(format!("/proc/{}/cmdline", known.0)).unwrap_or_default();
                let line = String::from_utf8_lossy(&line).replace('\0', " ");
                left.push(format!("process {}: {line}", known.0));
            }
        }
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let named = |text: &str| self.sandboxes.iter().any(|id| text.contains(id.as_str()));
        let ours = mounts
            .lines()
            .filter(|line| named(line) || line.contains(self.data.to_str().unwrap()));
        left.extend(ours.map(|line| format!("mount {line}")));
        groups(Path::new("/sys/fs/cgroup"), &mut |name| {
            if named(name) {
                left.push(format!("control group {name}"));
            }
        });
        left.extend(
            containers()
                .into_iter()
                .filter(|text| named(text))
                .map(|name| format!("container {name}")),
        );
        for (what, count) in [("sandboxes", fake.living()), ("snapshots", fake.snapshots())] {
            if count > 0 {
                left.push(format!("{count} {what} at providers"));
            }
        }
        left
    }
}

fn everything_that_runs() -> Vec<Known> {
    std::fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
            let fields = stat.rsplit_once(") ")?.1.to_owned();
            let mut fields = fields.split(' ');
            let state = fields.next()?;
            // Its start is the 22nd field, the state the third.
            (state != "Z").then(|| Some((pid, fields.nth(18)?.to_owned())))?
        })
        .collect()
}

fn pid_namespace(pid: &str) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/{pid}/ns/pid")).ok()
}

/// Names of control groups, with the way to them.
fn groups(folder: &Path, each: &mut impl FnMut(&str)) {
    // Groups come and go while this reads.
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            each(&entry.path().to_string_lossy());
            groups(&entry.path(), each);
        }
    }
}

/// The names of the engine's containers, running or not.
fn containers() -> Vec<String> {
    let Some(socket) = engine().and_then(|engine| engine.strip_prefix("unix://")) else {
        return Vec::new();
    };
    let mut engine = UnixStream::connect(socket).unwrap();
    engine
        .write_all(b"GET /containers/json?all=1 HTTP/1.0\r\nHost: engine\r\n\r\n")
        .unwrap();
    let mut answer = String::new();
    engine.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.0 200"), "{answer}");
    let listed: Vec<Value> = serde_json::from_str(body).unwrap();
    let names = listed
        .iter()
        .flat_map(|container| container["Names"].as_array().unwrap());
    names.map(|name| name.as_str().unwrap().to_owned()).collect()
}

/// How often: once, or as `DRESSAGE_TEST_KILLS` says.
fn kills() -> u64 {
    std::env::var("DRESSAGE_TEST_KILLS").map_or(1, |count| count.parse().unwrap())
}

/// Kills a server with rollouts whose agents wait for their model, starts another on the same data, and looks at what is left.
fn nothing_is_left(backend: &str, more: Value, fake: &Fake) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let never = Fault::StallBeforeHeaders { ms: 3_600_000 };
    let model = runtime
        .block_on(ScriptedModel::start(ScriptedModelConfig {
            faults: FaultPlan::default().always(never),
            ..ScriptedModelConfig::default()
        }))
        .unwrap();
    let mut setup = Setup::new()
        .scripted_agent()
        .arguments(&[
            "--sandbox",
            backend,
            "--concurrency",
            "8",
            "--grace",
            "0.1",
            "--open",
        ])
        .variable("E2B_API_KEY", E2B_KEY)
        .variable("E2B_API_URL", &fake.url)
        .variable("E2B_SANDBOX_URL", &fake.url)
        .variable("HF_TOKEN", HF_TOKEN)
        .variable("HF_ENDPOINT", &fake.url);
    if let Some(engine) = engine() {
        setup = setup.variable("DOCKER_HOST", engine);
    }
    let mut server = setup.start();
    let mut watch = Watch::new(server.place().data());
    let mut task =
        json!({"instruction": "x", "env": {MARK: server.place().data()}, "limits": {"memory_mb": 512}});
    task.as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    let spec = json!({
        "task": task, "n": LIVE, "base_url": model.base_url(), "model": "scripted", "api_key": "k-k-k-k-k",
    });
    let snapshots = u64::from(more.get("snapshot").is_some());
    for kill in 1..=kills() {
        let ids = server.submit(&spec);
        server.eventually("calls of all rollouts", || {
            let over = ids.iter().find(|id| server.rollout(id)["state"] == "finished");
            assert_eq!(over, None, "{}", server.rollout(over.unwrap()));
            (model.calls() == kill * LIVE).then_some(())
        });
        let marked = watch.look(&server);
        assert!(
            marked >= 8,
            "{backend}: {marked} programs with the mark are no {LIVE} agents"
        );
        assert_eq!(watch.sandboxes.len() as u64, kill * (LIVE + snapshots));
        server.end(Signal::SIGKILL);
        server.start_again();
        let deadline = Instant::now() + SWEPT;
        loop {
            let left = watch.left(&server, fake);
            if left.is_empty() {
                break;
            }
            assert!(
                Instant::now() < deadline,
                "{backend}: {left:#?}\n{}",
                server.said()
            );
            std::thread::sleep(Duration::from_millis(50));
        }
        for id in &ids {
            assert_eq!(server.rollout(id)["state"], "interrupted");
        }
    }
    server.end(Signal::SIGTERM).expect(0);
    assert_eq!(watch.left(&server, fake), [""; 0], "{backend}");
    println!(
        "{backend}: killed {} times, {} sandboxes, {} processes seen: nothing left",
        kills(),
        watch.sandboxes.len(),
        watch.processes.len()
    );
}

#[test]
fn a_kill_9_leaves_nothing_of_local() {
    nothing_is_left("local", json!({}), &Fake::start());
}

#[test]
fn a_kill_9_leaves_nothing_of_process() {
    nothing_is_left("process", json!({}), &Fake::start());
}

#[test]
fn a_kill_9_leaves_nothing_of_docker() {
    if engine().is_some() {
        nothing_is_left("docker", json!({ "image": IMAGE }), &Fake::start());
    }
}

#[test]
fn a_kill_9_leaves_nothing_of_e2b() {
    nothing_is_left("e2b", json!({}), &Fake::start());
}

#[test]
fn a_kill_9_leaves_nothing_of_e2b_where_files_are_kept() {
    let kept = json!({ "setup": ["echo kept > file"], "snapshot": "after_setup" });
    nothing_is_left("e2b", kept, &Fake::start());
}

#[test]
fn a_kill_9_leaves_nothing_of_huggingface() {
    nothing_is_left("huggingface", json!({ "network": "open" }), &Fake::start());
}
