use super::http::{Out, Request};
use super::machine::{Images, Machine, Program, Said, USER, Who, is_root};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use dressage_wire::relay::SECRET_VARIABLE;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use tempfile::TempDir;
use tokio::sync::broadcast;

pub const KEY: &str = "e2b_0123456789";

const TRAFFIC_TOKEN: &str = "for-ports";

/// Before the names of snapshots.
const TEAM: &str = "team/";

/// E2B, as its SDK 2.63.0 and envd 0.6.13 have it.
#[derive(Default)]
pub struct E2b {
    /// Templates that were built.
    pub images: Images,
    sandboxes: Mutex<BTreeMap<String, Arc<Sandbox>>>,
    /// By their names, with team and tag.
    snapshots: Mutex<BTreeMap<String, Snapshot>>,
    /// The secrets that relays were given, in this order.
    relay_secrets: Arc<Mutex<Vec<String>>>,
}

struct Snapshot {
    files: TempDir,
    /// What ran, where memory was kept as well.
    runs: Vec<Started>,
}

/// A program as it was asked for.
#[derive(Clone)]
struct Started {
    argv: Vec<String>,
    env: BTreeMap<String, String>,
    who: Who,
}

struct Sandbox {
    id: String,
    key: String,
    metadata: Value,
    env: BTreeMap<String, String>,
    machine: Machine,
    processes: Mutex<BTreeMap<u64, (Program, Started)>>,
    relay_secrets: Arc<Mutex<Vec<String>>>,
    /// Whoever hears of its programs hears no more.
    is_over: AtomicBool,
}

impl Sandbox {
    fn start(&self, started: Started) -> io::Result<(u64, broadcast::Receiver<Said>)> {
        let secret = started.env.get(SECRET_VARIABLE);
        self.relay_secrets.lock().unwrap().extend(secret.cloned());
        let (program, hearing) = self.machine.start(&started.argv, &started.env, started.who)?;
        let pid = u64::from(program.pid);
        self.processes.lock().unwrap().insert(pid, (program, started));
        Ok((pid, hearing))
    }

    fn token(&self) -> String {
        format!("token-of-{}", self.id)
    }

    fn told(&self) -> Value {
        json!({
            "templateID": "base", "sandboxID": self.id, "clientID": "c", "envdVersion": "0.6.13",
            "envdAccessToken": self.token(), "trafficAccessToken": TRAFFIC_TOKEN, "metadata": self.metadata,
        })
    }
}

fn told_of_snapshot(name: &str) -> Value {
    json!({ "snapshotID": name, "names": [name.trim_end_matches(":default")] })
}

fn refusal(code: &str, message: &str) -> Vec<u8> {
    json!({ "code": code, "message": message })
        .to_string()
        .into_bytes()
}

fn frame(flags: u8, message: &Value) -> Vec<u8> {
    let message = message.to_string();
    let mut framed = vec![flags];
    framed.extend(u32::try_from(message.len()).unwrap().to_be_bytes());
    framed.extend(message.as_bytes());
    framed
}

/// The names that Go has for signals.
fn signal_name(signal: i32) -> String {
    match signal {
        9 => "killed".into(),
        11 => "segmentation fault".into(),
        15 => "terminated".into(),
        other => format!("signal {other}"),
    }
}

/// A header that who dials a port shows to the provider's proxy.
pub fn for_ports() -> String {
    format!("e2b-traffic-access-token: {TRAFFIC_TOKEN}")
}

impl E2b {
    pub fn living(&self) -> usize {
        self.sandboxes.lock().unwrap().len()
    }

    pub fn snapshots(&self) -> usize {
        self.snapshots.lock().unwrap().len()
    }

    pub fn relay_secrets(&self) -> Vec<String> {
        self.relay_secrets.lock().unwrap().clone()
    }

    pub fn expire(&self) {
        for (_, sandbox) in std::mem::take(&mut *self.sandboxes.lock().unwrap()) {
            sandbox.is_over.store(true, Ordering::Relaxed);
            sandbox.machine.end();
        }
    }

    pub async fn serve(&self, request: Request, mut out: Out) -> io::Result<()> {
        if let Some(id) = request.header("e2b-sandbox-id") {
            let found = self.sandboxes.lock().unwrap().get(id).cloned();
            let Some(sandbox) = found else {
                let gone = json!({ "sandboxId": id, "message": "The sandbox was not found", "code": 502 });
                return out.answer(502, gone.to_string().as_bytes()).await;
            };
            return match request.header("e2b-sandbox-port") {
                Some("49983") => sandbox.envd(request, out).await,
                port => {
                    let port: u16 = port.unwrap().parse().unwrap();
                    sandbox.port(port, request, out).await
                }
            };
        }
        if request.header("x-api-key") != Some(KEY) {
            return out
                .answer(401, br#"{"code":401,"message":"Invalid API key"}"#)
                .await;
        }
        let path: Vec<&str> = request.path.split('/').skip(1).collect();
        match (request.method.as_str(), path.as_slice()) {
            ("POST", ["v2", "sandboxes"]) => {
                let body: Value = serde_json::from_slice(&request.body).unwrap();
                match self.create(&body, request.header("idempotency-key").unwrap()) {
                    Some(created) => out.answer(201, created.to_string().as_bytes()).await,
                    None => {
                        out.answer(404, br#"{"code":404,"message":"template not found"}"#)
                            .await
                    }
                }
            }
            ("POST", ["sandboxes", id, "snapshots"]) => {
                let body: Value = serde_json::from_slice(&request.body).unwrap();
                match self.keep(id, &body) {
                    Some(kept) => out.answer(201, kept.to_string().as_bytes()).await,
                    None => {
                        out.answer(404, br#"{"code":404,"message":"sandbox not found"}"#)
                            .await
                    }
                }
            }
            ("GET", ["snapshots"]) => {
                let wanted = format!("{TEAM}{}", request.query("name").unwrap_or_default());
                let listed: Vec<Value> = {
                    let snapshots = self.snapshots.lock().unwrap();
                    let names = snapshots.keys().filter(|name| name.starts_with(&wanted));
                    names.map(|name| told_of_snapshot(name)).collect()
                };
                out.answer(200, json!(listed).to_string().as_bytes()).await
            }
            ("DELETE", ["templates", rest @ ..]) => {
                let removed = self.snapshots.lock().unwrap().remove(&rest.join("/"));
                match removed {
                    Some(_) => out.answer(204, b"").await,
                    None => {
                        out.answer(404, br#"{"code":404,"message":"template not found"}"#)
                            .await
                    }
                }
            }
            ("GET", ["v2", "sandboxes"]) => {
                let wanted = request.query("metadata").unwrap_or_default();
                let wanted: Vec<(&str, &str)> = wanted
                    .split('&')
                    .filter_map(|pair| pair.split_once('='))
                    .collect();
                let listed: Vec<Value> = {
                    let sandboxes = self.sandboxes.lock().unwrap();
                    sandboxes
                        .values()
                        .filter(|sandbox| {
                            wanted
                                .iter()
                                .all(|(name, value)| sandbox.metadata[*name] == **value)
                        })
                        .map(|sandbox| sandbox.told())
                        .collect()
                };
                out.answer(200, json!(listed).to_string().as_bytes()).await
            }
            ("DELETE", ["sandboxes", id]) => {
                let removed = self.sandboxes.lock().unwrap().remove(*id);
                match removed {
                    Some(sandbox) => {
                        sandbox.machine.end();
                        out.answer(204, b"").await
                    }
                    None => out.answer(404, br#"{"code":404,"message":"not found"}"#).await,
                }
            }
            _ => out.answer(404, br#"{"code":404,"message":"no route"}"#).await,
        }
    }

    /// With a user of its own, who may become root, as in the provider's templates.
    fn boot() -> Machine {
        let machine = Machine::boot();
        let home = machine.outside("/home/user").unwrap();
        std::fs::create_dir(&home).unwrap();
        give(&home);
        machine
    }

    /// Of a sandbox: what `memory` leaves out is not there.
    fn keep(&self, id: &str, body: &Value) -> Option<Value> {
        let sandbox = self.sandboxes.lock().unwrap().get(id).cloned()?;
        let name = format!("{TEAM}{}:default", body["name"].as_str().unwrap());
        let mut runs = Vec::new();
        if body["memory"] != false {
            let processes = sandbox.processes.lock().unwrap();
            let living = processes.values().filter(|(program, _)| program.lives());
            runs.extend(living.map(|(_, started)| started.clone()));
        }
        let files = sandbox.machine.copy();
        let told = told_of_snapshot(&name);
        self.snapshots
            .lock()
            .unwrap()
            .insert(name, Snapshot { files, runs });
        Some(told)
    }

    /// `None` where there is no such snapshot.
    fn create(&self, body: &Value, key: &str) -> Option<Value> {
        let mut sandboxes = self.sandboxes.lock().unwrap();
        if let Some(known) = sandboxes.values().find(|sandbox| sandbox.key == key) {
            return Some(known.told());
        }
        let snapshots = self.snapshots.lock().unwrap();
        let (machine, runs) = match body["templateID"].as_str().unwrap() {
            template if template.starts_with(TEAM) => {
                let snapshot = snapshots.get(template)?;
                (Machine::boot_from(&snapshot.files), snapshot.runs.clone())
            }
            _ => (Self::boot(), Vec::new()),
        };
        let sandbox = Arc::new(Sandbox {
            id: format!("i{key}"),
            key: key.to_owned(),
            metadata: body["metadata"].clone(),
            env: serde_json::from_value(body["envVars"].clone()).unwrap(),
            machine,
            processes: Mutex::default(),
            relay_secrets: Arc::clone(&self.relay_secrets),
            is_over: AtomicBool::new(false),
        });
        if let Some(image) = self
            .images
            .lock()
            .unwrap()
            .get(body["templateID"].as_str().unwrap())
        {
            sandbox.machine.fill(image);
        }
        for run in runs {
            sandbox.start(run).unwrap();
        }
        sandboxes.insert(sandbox.id.clone(), Arc::clone(&sandbox));
        Some(sandbox.told())
    }
}

impl Sandbox {
    async fn port(&self, port: u16, request: Request, mut out: Out) -> io::Result<()> {
        if request.header("e2b-traffic-access-token") != Some(TRAFFIC_TOKEN) {
            return out.answer(403, b"").await;
        }
        let hidden = ["e2b-traffic-access-token", "e2b-sandbox-id", "e2b-sandbox-port"];
        let head = request.replayed("/", &hidden);
        if let Some(connection) = self.machine.join(port, head, out.connection).await {
            // Nothing listens there.
            return Out::of(connection)
                .answer(
                    502,
                    br#"{"sandboxId":"i","message":"The sandbox is running but port is not open","port":7001,"code":502}"#,
                )
                .await;
        }
        Ok(())
    }

    async fn envd(&self, request: Request, mut out: Out) -> io::Result<()> {
        if request.path == "/health" {
            return out.answer(204, b"").await;
        }
        if request.header("x-access-token") != Some(self.token().as_str()) {
            return out
                .answer(401, br#"{"code":401,"message":"unauthorized access"}"#)
                .await;
        }
        let json = |body: &[u8]| serde_json::from_slice::<Value>(body).unwrap();
        match (request.method.as_str(), request.path.as_str()) {
            ("POST", "/process.Process/Start") => {
                let body = json(&request.body[5..]);
                let process = &body["process"];
                let mut argv = vec![process["cmd"].as_str().unwrap().to_owned()];
                argv.extend(serde_json::from_value::<Vec<String>>(process["args"].clone()).unwrap());
                let (who, name, home) = match request.header("authorization") {
                    // `root:`
                    Some("Basic cm9vdDo=") => (Who::Root, "root", "/root"),
                    None => (Who::User, "user", "/home/user"),
                    Some(other) => panic!("{other} is no user"),
                };
                let mut env: BTreeMap<String, String> = [("HOME", home), ("USER", name), ("LOGNAME", name)]
                    .map(|(name, value)| (name.to_owned(), value.to_owned()))
                    .into();
                env.extend(self.env.clone());
                env.extend(
                    serde_json::from_value::<BTreeMap<String, String>>(process["envs"].clone()).unwrap(),
                );
                let (pid, hearing) = self.start(Started { argv, env, who })?;
                self.tell(pid, hearing, out).await
            }
            ("POST", "/process.Process/Connect") => {
                let pid = json(&request.body[5..])["process"]["pid"].as_u64().unwrap();
                let hearing = {
                    let processes = self.processes.lock().unwrap();
                    processes.get(&pid).map(|(program, _)| program.said.subscribe())
                };
                match hearing {
                    Some(hearing) => self.tell(pid, hearing, out).await,
                    None => {
                        let message = format!("process with pid {pid} not found");
                        out.answer(404, &refusal("not_found", &message)).await
                    }
                }
            }
            ("POST", "/process.Process/SendSignal") => {
                let pid = json(&request.body)["process"]["pid"].as_u64().unwrap();
                let known = {
                    let processes = self.processes.lock().unwrap();
                    processes.get(&pid).map(|(program, _)| program.kill()).is_some()
                };
                match known {
                    true => out.answer(200, b"{}").await,
                    false => out.answer(404, &refusal("not_found", "no such process")).await,
                }
            }
            ("POST", "/files") => match write(&self.machine, &request, false, Who::User) {
                Ok(()) => out.answer(200, b"[]").await,
                Err(error) => {
                    let message = json!({ "code": 500, "message": error.to_string() });
                    out.answer(500, message.to_string().as_bytes()).await
                }
            },
            ("GET", "/files") => match read(&self.machine, &request) {
                Ok(bytes) => out.answer(200, &bytes).await,
                Err(_) => out.answer(404, br#"{"code":404,"message":"not found"}"#).await,
            },
            _ => out.answer(404, &refusal("unimplemented", "no route")).await,
        }
    }

    async fn tell(&self, pid: u64, mut hearing: broadcast::Receiver<Said>, mut out: Out) -> io::Result<()> {
        let event = |event: Value| frame(0, &json!({ "event": event }));
        let pipe = |name: &str, bytes: &[u8]| event(json!({ "data": { name: STANDARD.encode(bytes) } }));
        out.begin("application/connect+json").await?;
        out.piece(&event(json!({ "start": { "pid": pid } }))).await?;
        loop {
            let said = hearing.recv().await.unwrap();
            if self.is_over.load(Ordering::Relaxed) {
                return Ok(());
            }
            match said {
                Said::Stdout(bytes) => out.piece(&pipe("stdout", &bytes)).await?,
                Said::Stderr(bytes) => out.piece(&pipe("stderr", &bytes)).await?,
                Said::Ended(ended) => {
                    self.processes.lock().unwrap().remove(&pid);
                    let end = match ended {
                        // Proto3 leaves zeros out.
                        Ok(0) => json!({ "exited": true, "status": "exit status 0" }),
                        Ok(code) => {
                            json!({ "exitCode": code, "exited": true, "status": format!("exit status {code}") })
                        }
                        Err(signal) => {
                            json!({ "exitCode": -1, "status": format!("signal: {}", signal_name(signal)) })
                        }
                    };
                    out.piece(&event(json!({ "end": end }))).await?;
                    out.piece(&frame(2, &json!({}))).await?;
                    return out.end().await;
                }
            }
        }
    }
}

/// Gives a file to the user of templates.
fn give(path: &Path) {
    if is_root() {
        std::os::unix::fs::chown(path, Some(USER), Some(USER)).unwrap();
    }
}

/// Writes what was sent to a path, and makes its parents.
pub fn write(machine: &Machine, request: &Request, at: bool, who: Who) -> io::Result<()> {
    use std::io::{Seek, Write};
    let path = request.query("path").and_then(|path| machine.outside(path));
    let path = path.ok_or(io::ErrorKind::PermissionDenied)?;
    let missing: Vec<&Path> = path
        .ancestors()
        .skip(1)
        .take_while(|parent| !parent.exists())
        .collect();
    std::fs::create_dir_all(path.parent().unwrap())?;
    let mut file = std::fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(!at)
        .open(&path)?;
    if who == Who::User {
        missing.into_iter().chain([path.as_path()]).for_each(give);
    }
    if at {
        let offset = request.query("offset").unwrap().parse().unwrap();
        file.seek(io::SeekFrom::Start(offset))?;
    }
    file.write_all(&request.body)
}

pub fn read(machine: &Machine, request: &Request) -> io::Result<Vec<u8>> {
    let path = request.query("path").and_then(|path| machine.outside(path));
    std::fs::read(path.ok_or(io::ErrorKind::NotFound)?)
}
