//! Proxies between the upstream and the clients: what each adds, against the byte copy and against none.

use super::load::{self, LoadOptions, LoadReport};
use super::measurement::{MeasureError, Measurement, Sample, turned};
use super::process::{OneProcessor, Program, free_port};
use super::startup::{answers, start_proxy};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

/// What the programs of a run share.
#[derive(Clone, Debug)]
pub struct Setting {
    /// Where traces and logs go.
    pub directory: PathBuf,
    /// Where the upstream is.
    pub upstream: SocketAddr,
}

/// A proxy under measurement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proxy {
    /// Its name in tables.
    pub name: String,
    /// Its program and arguments, with `{port}`, `{upstream}` and `{directory}` to be filled in.
    pub argv: Vec<String>,
    /// Who asks for log-probabilities and ids.
    pub tokens: AskedBy,
}

/// Who asks for log-probabilities and ids. Either way every target moves the same bytes from the upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AskedBy {
    /// The clients, where nothing in between does.
    Clients,
    /// The proxy, which also keeps them from the clients.
    Proxy,
}

impl Proxy {
    /// Its command on a port.
    #[must_use]
    pub fn command(&self, setting: &Setting, port: u16) -> Command {
        let fill = |argument: &String| {
            argument
                .replace("{port}", &port.to_string())
                .replace("{upstream}", &setting.upstream.to_string())
                .replace("{directory}", &setting.directory.to_string_lossy())
        };
        let mut argv = self.argv.iter().map(fill);
        let mut command = Command::new(argv.next().unwrap_or_default());
        command.args(argv).env("OPENCODE_UPSTREAM_API_KEY", "sk-upstream");
        command
    }
}

/// Starts the upstream; it ends with the program returned.
///
/// # Errors
/// Where it cannot be started, or does not answer.
pub fn start_upstream(program: PathBuf, directory: PathBuf) -> Result<(Program, Setting), MeasureError> {
    let name = "bench_upstream";
    let failed = |source| MeasureError::Program {
        program: name.into(),
        source,
    };
    let upstream = free_port().map_err(failed)?;
    let mut command = Command::new(program);
    command.args(["--end-with-input", "--port", &upstream.port().to_string()]);
    let log = directory.join("upstream.log");
    let program = Program::start(command, &log).map_err(failed)?;
    let begun = Instant::now();
    while !answers(upstream, "/healthz") {
        if begun.elapsed() > Duration::from_secs(10) {
            let url = format!("http://{upstream}/healthz");
            return Err(MeasureError::Silent {
                program: name.into(),
                url,
                limit_s: 10,
                log,
            });
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok((program, Setting { directory, upstream }))
}

/// A load and how much of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scenario {
    /// Its name.
    pub name: &'static str,
    /// Whether replies are streamed.
    pub streamed: bool,
    /// Connections at once.
    pub connections: usize,
    /// Turns over all connections.
    pub turns: usize,
}

/// Streamed and unary turns over 1 (on one processor), 16, 64 and 256 connections.
pub const SCENARIOS: [Scenario; 8] = {
    const fn scenario(name: &'static str, streamed: bool, connections: usize, turns: usize) -> Scenario {
        Scenario {
            name,
            streamed,
            connections,
            turns,
        }
    }
    [
        scenario("stream-c1", true, 1, 200),
        scenario("stream-c16", true, 16, 600),
        scenario("stream-c64", true, 64, 800),
        scenario("stream-c256", true, 256, 1024),
        scenario("unary-c1", false, 1, 400),
        scenario("unary-c16", false, 16, 2000),
        scenario("unary-c64", false, 64, 2000),
        scenario("unary-c256", false, 256, 2048),
    ]
};

/// One scenario with no proxy, and with each.
#[derive(Debug)]
pub struct Load {
    setting: Setting,
    upstream_id: u32,
    proxies: Vec<Proxy>,
    scenario: Scenario,
    runtime: tokio::runtime::Runtime,
}

impl Load {
    /// A scenario with no proxy (target `direct`), and with each of `proxies`.
    ///
    /// # Errors
    /// Where no runtime can be built.
    pub fn new(
        setting: Setting,
        upstream_id: u32,
        proxies: Vec<Proxy>,
        scenario: Scenario,
    ) -> std::io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        Ok(Self {
            setting,
            upstream_id,
            proxies,
            scenario,
            runtime,
        })
    }
}

impl Measurement for Load {
    fn name(&self) -> &str {
        self.scenario.name
    }

    fn repeat(&mut self, repetition: usize) -> Result<Vec<Sample>, MeasureError> {
        let targets: Vec<Option<&Proxy>> = std::iter::once(None)
            .chain(self.proxies.iter().map(Some))
            .collect();
        let mut samples = Vec::new();
        // One turn at a time keeps one program busy, and each wakes the next. On another processor, which is idle and in a
        // virtual machine not even there, that takes longer than what is measured.
        let _kept = (self.scenario.connections == 1)
            .then(|| OneProcessor::keep(self.upstream_id))
            .transpose()
            .map_err(|source| MeasureError::Program {
                program: "the upstream, on one processor,".into(),
                source,
            })?;
        for target in turned(&targets, repetition) {
            // Started anew for each load: what an earlier one left behind is not measured.
            let started = target
                .map(|proxy| start_proxy(&self.setting, proxy))
                .transpose()?;
            let (watched, address) = started.as_ref().map_or(
                (self.upstream_id, self.setting.upstream),
                |(program, address, _)| (program.id(), *address),
            );
            let report = self.runtime.block_on(load::run(LoadOptions {
                address,
                api_key: "sk-bench-0f1e2d3c4b5a69788796a5b4c3d2e1f0".into(),
                streamed: self.scenario.streamed,
                ask_for_tokens: target.is_none_or(|proxy| proxy.tokens == AskedBy::Clients),
                connections: self.scenario.connections,
                turns: self.scenario.turns,
                limit: Duration::from_secs(60),
                prompt_bytes: 16 << 10,
                watched: Some(watched),
            }));
            let name = target.map_or("direct", |proxy| &proxy.name);
            samples.push(sample(self.scenario.name, name, repetition, &report));
        }
        Ok(samples)
    }
}

fn sample(scenario: &str, target: &str, repetition: usize, report: &LoadReport) -> Sample {
    let values = [
        ("turns", report.turns as f64),
        ("errors", report.errors as f64),
        ("turns_per_s", report.turns_per_s),
        ("turn_p50_ms", report.turn_p50_ms),
        ("turn_p99_ms", report.turn_p99_ms),
        ("first_token_p50_ms", report.first_token_p50_ms),
        ("first_token_p99_ms", report.first_token_p99_ms),
        ("cpu_s_per_1000_turns", report.cpu_s_per_1000_turns),
        ("rss_peak_mb", report.rss_peak_kb as f64 / 1024.0),
        ("leaked_logprobs_turns", report.leaked_logprobs_turns as f64),
        ("leaked_ids_turns", report.leaked_ids_turns as f64),
    ];
    Sample {
        scenario: scenario.into(),
        target: target.into(),
        repetition,
        values: values
            .map(|(name, value)| (name.to_owned(), value))
            .into_iter()
            .collect::<BTreeMap<_, _>>(),
        error: report.first_error.clone(),
    }
}
