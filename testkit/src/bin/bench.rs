//! `make bench`: measures everything, interleaved, and writes tables and JSON.

use clap::Parser;
use dressage_testkit::bench::external::{External, ToldGoals};
use dressage_testkit::bench::goal::Goal;
use dressage_testkit::bench::measurement::{self, MeasureError, Measurement};
use dressage_testkit::bench::proxies::{AskedBy, Load, Proxy, SCENARIOS, Scenario, start_upstream};
use dressage_testkit::bench::report::{Machine, Results, SECTION_BEGIN, SECTION_END, replace_section};
use dressage_testkit::bench::startup::Startup;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::PoisonError;

/// Measures proxies against a byte copy and against none, and whatever other programs measure.
#[derive(Debug, Parser)]
struct Options {
    /// The `dressage-tap` to measure; without it the byte copy stands alone.
    #[arg(long)]
    tap: Option<PathBuf>,
    /// Another proxy: NAME=PROGRAM ARGUMENT…, with {port}, {upstream} and {directory} to be filled in; it must answer
    /// /healthz, and ask for log-probabilities itself.
    #[arg(long, value_name = "NAME=COMMAND")]
    proxy: Vec<String>,
    /// A program that measures by itself: NAME=PROGRAM ARGUMENT…; it prints {"metric", "value", "at_most" or "at_least"}
    /// lines.
    #[arg(long, value_name = "NAME=COMMAND")]
    external: Vec<String>,
    /// How often everything is measured.
    #[arg(long, default_value_t = 3)]
    repetitions: usize,
    /// Only these measurements: `startup`, `stream-c16`, the name of an external one, …
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Part of the turns to make.
    #[arg(long, default_value_t = 1.0)]
    scale: f64,
    /// Where the JSON goes.
    #[arg(long)]
    json: Option<PathBuf>,
    /// A page whose section between the marks is replaced.
    #[arg(long)]
    markdown: Option<PathBuf>,
}

/// The name of a `--proxy` that is the tap behind a relay, and has goals of its own.
const RELAYED: &str = "relayed";

/// Why the benchmark cannot be run.
#[derive(Debug, thiserror::Error)]
enum BenchError {
    #[error(transparent)]
    Measure(#[from] MeasureError),
    #[error("{argument:?} is not NAME=COMMAND")]
    NoCommand { argument: String },
    #[error("nothing is called so: {}", names.join(", "))]
    NothingToMeasure { names: Vec<String> },
    #[error("cannot {what} {path}: {source}")]
    Io {
        what: &'static str,
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("{path} has no section between {SECTION_BEGIN} and {SECTION_END}")]
    NoSection { path: PathBuf },
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<(), BenchError> {
    let directory = std::env::temp_dir().join(format!("dressage-bench-{}", std::process::id()));
    std::fs::create_dir_all(&directory).map_err(io("create", &directory))?;
    let measured = measure(options, &directory);
    let removed = std::fs::remove_dir_all(&directory).map_err(io("remove", &directory));
    let (results, goals) = measured?;
    removed?;
    let markdown = results.markdown(&goals);
    if let Some(path) = &options.json {
        let json = serde_json::to_string_pretty(&results).unwrap_or_default();
        std::fs::write(path, json + "\n").map_err(io("write", path))?;
    }
    if let Some(path) = &options.markdown {
        let page = std::fs::read_to_string(path).map_err(io("read", path))?;
        let page =
            replace_section(&page, &markdown).ok_or_else(|| BenchError::NoSection { path: path.clone() })?;
        std::fs::write(path, page).map_err(io("write", path))?;
    }
    writeln!(std::io::stdout(), "{markdown}").map_err(io("print to", Path::new("standard output")))
}

fn measure(options: &Options, directory: &Path) -> Result<(Results, Vec<Goal>), BenchError> {
    let machine = Machine::here();
    let (upstream, setting) = start_upstream(sibling("bench_upstream")?, directory.into())?;
    let proxies = proxies(options)?;
    let told = ToldGoals::default();
    let mut measurements: Vec<Box<dyn Measurement>> =
        vec![Box::new(Startup::new(setting.clone(), proxies.clone(), 5))];
    for scenario in SCENARIOS {
        let turns = (scenario.turns as f64 * options.scale).ceil() as usize;
        let scenario = Scenario {
            turns: turns.max(scenario.connections),
            ..scenario
        };
        let load = Load::new(setting.clone(), upstream.id(), proxies.clone(), scenario);
        measurements.push(Box::new(load.map_err(io("start a runtime in", directory))?));
    }
    for argument in &options.external {
        let (name, argv) = named_command(argument)?;
        measurements.push(Box::new(External::new(name, argv, told.clone())));
    }
    if !options.only.is_empty() {
        measurements.retain(|measurement| options.only.iter().any(|name| name == measurement.name()));
        if measurements.is_empty() {
            return Err(BenchError::NothingToMeasure {
                names: options.only.clone(),
            });
        }
    }
    let samples = measurement::run(measurements, options.repetitions, |told| match told {
        Ok(sample) => {
            let values = sample
                .values
                .iter()
                .map(|(name, value)| format!("{name} {value:.3}"));
            let values = values.collect::<Vec<_>>().join("  ");
            eprintln!(
                "{} {} #{}: {values}",
                sample.scenario, sample.target, sample.repetition
            );
        }
        Err((name, error)) => eprintln!("{name}: {error}"),
    });
    let mut goals: Vec<Goal> = match options.tap {
        Some(_) => Goal::of_proxy("tap"),
        None => Vec::new(),
    };
    if proxies.iter().any(|proxy| proxy.name == RELAYED) {
        goals.extend(Goal::of_relay(RELAYED, "tap"));
    }
    goals.extend(told.lock().unwrap_or_else(PoisonError::into_inner).clone());
    Ok((
        Results {
            machine,
            repetitions: options.repetitions,
            samples,
        },
        goals,
    ))
}

fn proxies(options: &Options) -> Result<Vec<Proxy>, BenchError> {
    let floor = sibling("bench_floor")?.to_string_lossy().into_owned();
    let floor = [
        &floor,
        "--end-with-input",
        "--port",
        "{port}",
        "--upstream",
        "{upstream}",
    ]
    .map(String::from);
    let mut proxies = vec![Proxy {
        name: "floor".into(),
        argv: floor.into(),
        tokens: AskedBy::Clients,
    }];
    if let Some(tap) = &options.tap {
        let tap = tap.to_string_lossy().into_owned();
        let upstream = "http://{upstream}/v1";
        let trace = "{directory}/trace.jsonl";
        let argv = [
            &tap,
            "proxy",
            "--upstream-url",
            upstream,
            "--trace",
            trace,
            "--host",
            "127.0.0.1",
            "--port",
            "{port}",
        ];
        proxies.push(Proxy {
            name: "tap".into(),
            argv: argv.map(String::from).into(),
            tokens: AskedBy::Proxy,
        });
    }
    for argument in &options.proxy {
        let (name, argv) = named_command(argument)?;
        proxies.push(Proxy {
            name,
            argv,
            tokens: AskedBy::Proxy,
        });
    }
    Ok(proxies)
}

/// NAME=COMMAND, split at spaces.
fn named_command(argument: &str) -> Result<(String, Vec<String>), BenchError> {
    let split = argument
        .split_once('=')
        .filter(|(name, command)| !name.is_empty() && !command.trim().is_empty());
    let (name, command) = split.ok_or_else(|| BenchError::NoCommand {
        argument: argument.into(),
    })?;
    Ok((
        name.into(),
        command.split_whitespace().map(str::to_owned).collect(),
    ))
}

/// A program that was built beside this one.
fn sibling(name: &str) -> Result<PathBuf, BenchError> {
    let own = std::env::current_exe().map_err(io("find", Path::new("this program")))?;
    Ok(own.with_file_name(name))
}

fn io(what: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> BenchError + use<> {
    let path = path.to_owned();
    move |source| BenchError::Io { what, path, source }
}
