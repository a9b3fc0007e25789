use super::client::{Events, Reply, Request, Sent};
use crate::support::{Place, Ran, Running};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How a server is to be started.
#[derive(Clone)]
pub struct Setup {
    place: Arc<Place>,
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
}

impl Setup {
    pub fn new() -> Self {
        Self {
            place: Arc::new(Place::new()),
            arguments: Vec::new(),
            environment: Vec::new(),
        }
    }

    pub fn arguments(mut self, arguments: &[&str]) -> Self {
        self.arguments
            .extend(arguments.iter().map(|&argument| argument.into()));
        self
    }

    pub fn variable(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.into(), value.into()));
        self
    }

    /// A file in the working directory.
    pub fn write(&self, name: &str, content: &str) -> PathBuf {
        self.place.write(name, content)
    }

    /// The test kit's scripted agent in the place of OpenCode.
    pub fn scripted_agent(self) -> Self {
        let cache = self.place.scripted_agent();
        self.variable("DRESSAGE_CACHE_DIR", cache.to_str().unwrap())
    }

    #[track_caller]
    pub fn start(self) -> Server {
        let (running, address) = start(&self, 0);
        Server {
            setup: self,
            running: Some(running),
            address,
            starts: 1,
        }
    }

    /// Starts a server that is to refuse.
    pub fn refused(self) -> Ran {
        let mut command = self.place.command(&["serve", "--port", "0"]);
        command.args(&self.arguments).envs(self.environment);
        Ran::of(command.output().unwrap())
    }
}

#[track_caller]
fn start(setup: &Setup, number: u32) -> (Running, SocketAddr) {
    let place = &setup.place;
    let [port, out, err] = ["port", "out", "err"].map(|kind| place.path(&format!("serve-{number}.{kind}")));
    let mut command = place.command(&["serve", "--port", "0", "--port-file"]);
    command
        .arg(&port)
        .args(&setup.arguments)
        .envs(setup.environment.iter().map(|(name, value)| (name, value)))
        .stdout(std::fs::File::create(&out).unwrap())
        .stderr(std::fs::File::create(&err).unwrap());
    let child = command.spawn().unwrap();
    let mut running = Running { child, out, err };
    running.until("its port", || port.exists());
    let port = std::fs::read_to_string(&port).unwrap().trim().parse().unwrap();
    (running, SocketAddr::from(([127, 0, 0, 1], port)))
}

/// A server that runs, with a data directory of its own.
pub struct Server {
    setup: Setup,
    pub running: Option<Running>,
    pub address: SocketAddr,
    starts: u32,
}

impl Server {
    /// One with nothing special about it.
    #[track_caller]
    pub fn plain() -> Self {
        Setup::new().start()
    }

    pub fn place(&self) -> &Place {
        &self.setup.place
    }

    pub fn pid(&self) -> u32 {
        self.running.as_ref().unwrap().child.id()
    }

    pub fn request(&self, method: &str, target: &str) -> Request {
        Request::new(self.address, method, target)
    }

    #[track_caller]
    pub fn get(&self, target: &str) -> Reply {
        self.request("GET", target).send()
    }

    #[track_caller]
    pub fn post(&self, target: &str, body: &Value) -> Reply {
        self.request("POST", target).json(body).send()
    }

    /// Asks for rollouts and gives their ids.
    #[track_caller]
    pub fn submit(&self, spec: &Value) -> Vec<String> {
        let taken = self.post("/api/v1/rollouts", spec).expect(202).json();
        let rollouts = taken["rollouts"].as_array().unwrap().iter();
        rollouts
            .map(|rollout| rollout["id"].as_str().unwrap().to_owned())
            .collect()
    }

    /// Asks for one rollout.
    #[track_caller]
    pub fn submit_one(&self, spec: &Value) -> String {
        let mut ids = self.submit(spec);
        assert_eq!(ids.len(), 1);
        ids.remove(0)
    }

    #[track_caller]
    pub fn rollout(&self, id: &str) -> Value {
        self.get(&format!("/api/v1/rollouts/{id}")).expect(200).json()
    }

    pub fn events(&self, id: &str) -> Events {
        Events::of(
            self.request("GET", &format!("/api/v1/rollouts/{id}/events"))
                .open(),
        )
    }

    pub fn events_after(&self, id: &str, last: &str) -> Events {
        let target = format!("/api/v1/rollouts/{id}/events");
        Events::of(self.request("GET", &target).header("last-event-id", last).open())
    }

    /// Reads a rollout's events until one of a type, with a stage where one is named.
    #[track_caller]
    pub fn until(&self, id: &str, event: &str) -> Vec<Sent> {
        let (kind, stage) = event.split_once(' ').unwrap_or((event, ""));
        self.events(id)
            .until(|sent| sent.event == kind && (stage.is_empty() || sent.data["event"]["stage"] == stage))
    }

    /// Waits for a rollout's end and gives it.
    #[track_caller]
    pub fn ended(&self, id: &str) -> Value {
        self.until(id, "finished");
        // The last event is told before the outcome is stored with it.
        self.eventually("the end is stored", || {
            let rollout = self.rollout(id);
            (rollout["state"] == "finished").then_some(rollout)
        })
    }

    #[track_caller]
    pub fn cancel(&self, id: &str) -> Reply {
        self.request("POST", &format!("/api/v1/rollouts/{id}/cancel"))
            .send()
    }

    /// Tries until there is something; fails after a while, saying what the server said.
    #[track_caller]
    pub fn eventually<T>(&self, what: &str, mut found: impl FnMut() -> Option<T>) -> T {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            if let Some(found) = found() {
                return found;
            }
            assert!(Instant::now() < deadline, "{what} did not come\n{}", self.said());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// What it wrote to standard error since its start.
    pub fn said(&self) -> String {
        let path = self.place().path(&format!("serve-{}.err", self.starts - 1));
        std::fs::read_to_string(path).unwrap()
    }

    pub fn signal(&self, signal: Signal) {
        self.running.as_ref().unwrap().signal(signal);
    }

    /// Ends it by a signal and waits until it is gone.
    pub fn end(&mut self, signal: Signal) -> Ran {
        self.signal(signal);
        self.running.take().unwrap().wait()
    }

    /// Starts it again on the same data, where it has ended.
    #[track_caller]
    pub fn start_again(&mut self) {
        assert!(self.running.is_none());
        let (running, address) = start(&self.setup, self.starts);
        (self.running, self.address) = (Some(running), address);
        self.starts += 1;
    }

    /// Another one on the same data.
    #[track_caller]
    pub fn beside(&self) -> Self {
        let setup = self.setup.clone();
        let (running, address) = start(&setup, 100);
        Self {
            setup,
            running: Some(running),
            address,
            starts: 101,
        }
    }

    /// Names of what stands in a folder of the data directory.
    pub fn left_in(&self, folder: &str) -> Vec<PathBuf> {
        let Ok(entries) = std::fs::read_dir(self.place().data().join(folder)) else {
            return Vec::new();
        };
        entries.map(|entry| entry.unwrap().path()).collect()
    }
}

/// A rollout whose setup fails at once.
pub fn failing() -> Value {
    json!({"task": {"instruction": "x", "setup": ["false"]}, "endpoint": "demo"})
}

/// A rollout that stays in its setup until it is cancelled.
pub fn hanging() -> Value {
    json!({"task": {"instruction": "x", "setup": ["sleep 600"], "limits": {"setup_timeout_s": 500}}, "endpoint": "demo"})
}

/// A rollout of the scripted agent that ends at once with a verdict.
pub fn quick() -> Value {
    json!({"preset": "binary_search", "endpoint": "demo"})
}

/// A spec with further keys.
pub fn with(mut spec: Value, more: Value) -> Value {
    let Value::Object(more) = more else {
        panic!("{more} is no table")
    };
    spec.as_object_mut().unwrap().extend(more);
    spec
}
