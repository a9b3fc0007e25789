use super::e2b::{read, write};
use super::http::{Out, Request};
use super::machine::{Images, Machine, Program, Said, Who};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub const TOKEN: &str = "hf_0123456789";

/// Hugging Face, as `huggingface_hub` 2.4.0 and the sandbox server 0.7.0 have it.
#[derive(Default)]
pub struct HuggingFace {
    /// Images that were built.
    pub images: Images,
    jobs: Mutex<BTreeMap<String, Arc<Job>>>,
}

struct Job {
    id: String,
    labels: Value,
    token: String,
    stage: Mutex<&'static str>,
    machine: Machine,
    processes: Mutex<BTreeMap<String, Background>>,
}

struct Background {
    program: Program,
    /// Once it has ended: its exit code, which a signal leaves unset.
    ended: Arc<Mutex<Option<Option<i32>>>>,
}

async fn refuse(out: &mut Out, status: u16, message: &str) -> io::Result<()> {
    let body = json!({ "error": message }).to_string();
    out.answer(status, body.as_bytes()).await
}

impl HuggingFace {
    pub fn living(&self) -> usize {
        let jobs = self.jobs.lock().unwrap();
        jobs.values()
            .filter(|job| *job.stage.lock().unwrap() == "RUNNING")
            .count()
    }

    pub fn expire(&self) {
        for job in self.jobs.lock().unwrap().values() {
            job.end("COMPLETED");
        }
    }

    pub async fn serve(&self, request: Request, mut out: Out, url: &str) -> io::Result<()> {
        let path: Vec<String> = request.path.split('/').skip(1).map(str::to_owned).collect();
        let path: Vec<&str> = path.iter().map(String::as_str).collect();
        if let ["__jobs__", host, rest @ ..] = path.as_slice() {
            let job = self.job(host.split("--").next().unwrap());
            return match job {
                _ if !is_bearer(&request) => out.answer(401, b"Unauthorized").await,
                Some(job) if *job.stage.lock().unwrap() == "RUNNING" => job.inside(rest, request, out).await,
                _ => out.answer(503, b"Job is not running").await,
            };
        }
        if !is_bearer(&request) {
            return refuse(&mut out, 401, "Invalid username or password.").await;
        }
        let answer = match (request.method.as_str(), path.as_slice()) {
            ("GET", ["api", "whoami-v2"]) => Some(json!({ "type": "user", "name": "me" })),
            ("POST", ["api", "jobs", "me"]) => {
                let body: Value = serde_json::from_slice(&request.body).unwrap();
                Some(self.create(&body).told(url))
            }
            ("GET", ["api", "jobs", "me"]) => {
                let wanted: Vec<(&str, &str)> = request
                    .query
                    .iter()
                    .filter(|pair| pair.0 == "label")
                    .filter_map(|pair| pair.1.split_once('='))
                    .collect();
                let jobs = self.jobs.lock().unwrap();
                let carries =
                    |job: &&Arc<Job>| wanted.iter().all(|(name, value)| job.labels[*name] == **value);
                Some(jobs.values().filter(carries).map(|job| job.told(url)).collect())
            }
            ("GET", ["api", "jobs", "me", id]) => self.job(id).map(|job| job.told(url)),
            ("POST", ["api", "jobs", "me", id, "cancel"]) => self.job(id).map(|job| {
                job.end("CANCELED");
                job.told(url)
            }),
            _ => None,
        };
        match answer {
            Some(answer) => out.answer(200, answer.to_string().as_bytes()).await,
            None => refuse(&mut out, 404, "not found").await,
        }
    }

    fn job(&self, id: &str) -> Option<Arc<Job>> {
        self.jobs.lock().unwrap().get(id).cloned()
    }

    fn create(&self, body: &Value) -> Arc<Job> {
        let mut jobs = self.jobs.lock().unwrap();
        let id = format!("{:024x}", jobs.len() + 1);
        let job = Arc::new(Job {
            id: id.clone(),
            labels: body["labels"].clone(),
            token: body["secrets"]["SBX_TOKEN"].as_str().unwrap().to_owned(),
            stage: Mutex::new("RUNNING"),
            machine: Machine::boot(),
            processes: Mutex::default(),
        });
        let image = body["dockerImage"].as_str().unwrap_or_default();
        if let Some(image) = self.images.lock().unwrap().get(image) {
            job.machine.fill(image);
        }
        jobs.insert(id, Arc::clone(&job));
        job
    }
}

fn is_bearer(request: &Request) -> bool {
    request.header("authorization") == Some(format!("Bearer {TOKEN}").as_str())
}

impl Job {
    fn told(&self, url: &str) -> Value {
        json!({
            "id": self.id, "labels": self.labels, "owner": { "name": "me" },
            "status": {
                "stage": *self.stage.lock().unwrap(), "message": null,
                "exposeUrls": [format!("{url}/__jobs__/{}--49983.hf.jobs", self.id)],
            },
        })
    }

    fn end(&self, stage: &'static str) {
        let mut now = self.stage.lock().unwrap();
        if *now == "RUNNING" {
            *now = stage;
            self.machine.end();
        }
    }

    async fn inside(&self, path: &[&str], request: Request, mut out: Out) -> io::Result<()> {
        if path == ["health"] {
            return out.answer(200, br#"{"status":"ok","protocol":3}"#).await;
        }
        if request.header("x-sandbox-token") != Some(self.token.as_str()) {
            return refuse(&mut out, 403, "invalid or missing X-Sandbox-Token").await;
        }
        if request.header("transfer-encoding").is_some() {
            return refuse(
                &mut out,
                411,
                "chunked request bodies not supported; send Content-Length",
            )
            .await;
        }
        match (request.method.as_str(), path) {
            ("POST", ["v1", "exec"]) => self.exec(&request, out).await,
            ("POST", ["v1", "processes"]) => {
                let told = self.start(&request)?;
                out.answer(200, told.to_string().as_bytes()).await
            }
            ("GET", ["v1", "processes"]) => {
                let listed: Vec<Value> = {
                    let processes = self.processes.lock().unwrap();
                    processes
                        .iter()
                        .map(|(id, background)| {
                            let ended = *background.ended.lock().unwrap();
                            json!({
                                "id": id, "pid": background.program.pid, "running": ended.is_none(),
                                "exit_code": ended.flatten(),
                            })
                        })
                        .collect()
                };
                out.answer(200, json!(listed).to_string().as_bytes()).await
            }
            ("DELETE", ["v1", "processes", id]) => {
                let killed = {
                    let processes = self.processes.lock().unwrap();
                    let running = processes
                        .get(*id)
                        .filter(|background| background.ended.lock().unwrap().is_none());
                    running.map(|background| background.program.kill()).is_some()
                };
                // Until it is seen to have ended, as the server waits.
                while killed && self.is_running(id) {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                let told = json!({ "id": id, "ok": true, "killed": killed });
                out.answer(200, told.to_string().as_bytes()).await
            }
            ("PUT", ["v1", "files", "write"]) => {
                match write(
                    &self.machine,
                    &request,
                    request.query("offset").is_some(),
                    Who::Root,
                ) {
                    Ok(()) => out.answer(200, b"{}").await,
                    Err(error) => refuse(&mut out, 400, &format!("cannot open: {error}")).await,
                }
            }
            ("GET", ["v1", "files", "read"]) => match read(&self.machine, &request) {
                Ok(bytes) => out.answer(200, &bytes).await,
                Err(_) => refuse(&mut out, 404, "no such file").await,
            },
            (_, ["v1", "proxy", port, ..]) => {
                let port: u16 = port.parse().unwrap();
                // Version 0.5.0 of the server passes the account's token on; later ones do not.
                let head = request.replayed("/", &["x-sandbox-token"]);
                match self.machine.join(port, head, out.connection).await {
                    Some(connection) => {
                        refuse(&mut Out::of(connection), 502, "cannot reach port in sandbox").await
                    }
                    None => Ok(()),
                }
            }
            _ => refuse(&mut out, 404, "no route").await,
        }
    }

    fn is_running(&self, id: &str) -> bool {
        let processes = self.processes.lock().unwrap();
        processes
            .get(id)
            .is_some_and(|background| background.ended.lock().unwrap().is_none())
    }

    fn read_program(&self, request: &Request) -> (Vec<String>, BTreeMap<String, String>, Value) {
        let body: Value = serde_json::from_slice(&request.body).unwrap();
        let argv = serde_json::from_value(body["cmd"].clone()).unwrap();
        let mut env = BTreeMap::from([("HOME".to_owned(), "/root".to_owned())]);
        if let Ok(given) = serde_json::from_value::<BTreeMap<String, String>>(body["env"].clone()) {
            env.extend(given);
        }
        (argv, env, body)
    }

    fn start(&self, request: &Request) -> io::Result<Value> {
        let (argv, env, _) = self.read_program(request);
        let (program, mut hearing) = self.machine.start(&argv, &env, Who::Root)?;
        let ended = Arc::new(Mutex::new(None));
        let telling = Arc::clone(&ended);
        tokio::spawn(async move {
            loop {
                match hearing.recv().await {
                    Ok(Said::Ended(code)) => {
                        *telling.lock().unwrap() = Some(code.ok());
                        return;
                    }
                    Ok(_) | Err(tokio::sync::broadcast::error::RecvError::Lagged(_)) => {}
                    Err(_) => return,
                }
            }
        });
        let mut processes = self.processes.lock().unwrap();
        let id = format!("p-{}", processes.len());
        let told = json!({ "id": id, "pid": program.pid, "tag": null });
        processes.insert(id, Background { program, ended });
        Ok(told)
    }

    async fn exec(&self, request: &Request, mut out: Out) -> io::Result<()> {
        let (argv, env, body) = self.read_program(request);
        let limit = body["timeout"].as_f64().expect("always with a limit");
        let (program, mut hearing) = self.machine.start(&argv, &env, Who::Root)?;
        let line = |value: Value| format!("{value}\n").into_bytes();
        out.begin("application/x-ndjson").await?;
        out.piece(&line(json!({ "event": "start", "pid": program.pid })))
            .await?;
        let deadline = tokio::time::sleep(Duration::from_secs_f64(limit));
        tokio::pin!(deadline);
        let mut timed_out = false;
        loop {
            let said = tokio::select! {
                said = hearing.recv() => said.unwrap(),
                () = &mut deadline, if !timed_out => {
                    timed_out = true;
                    program.kill();
                    continue;
                }
            };
            let text = |name: &str, bytes: &[u8]| {
                line(json!({ "event": name, "data": String::from_utf8_lossy(bytes) }))
            };
            match said {
                Said::Stdout(bytes) => out.piece(&text("stdout", &bytes)).await?,
                Said::Stderr(bytes) => out.piece(&text("stderr", &bytes)).await?,
                Said::Ended(ended) => {
                    let told = json!({
                        "event": "exit", "exit_code": ended.ok(), "signal": ended.err(), "timed_out": timed_out,
                        "duration_ms": 1,
                    });
                    out.piece(&line(told)).await?;
                    return out.end().await;
                }
            }
        }
    }
}
