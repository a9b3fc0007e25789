//! Placement in_sandbox: `dressage-tap proxy` runs beside the agent, and its trace is fetched afterwards.
//!
//! The agent could have written the trace itself; every call of it is flagged so.

use super::trace;
use crate::faults;
use crate::recording::Recording;
use crate::report::{Report, Stop};
use crate::run::{Cut, Scope};
use crate::stages::plan::TAP_ASSET;
use dressage_sandbox::{Command, OutputSink, Process, Sandbox, SandboxError};
use dressage_wire::event::{OutputStream, Stage};
use dressage_wire::task::CaptureMode;
use secrecy::ExposeSecret as _;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// How long the proxy may take to listen.
const START: Duration = Duration::from_secs(15);

/// What is read of a trace.
const TRACE_BYTES: u64 = 256 << 20;

/// What the proxy prints before its URL.
const LISTENING: &str = "listening on ";

/// A proxy that runs in the sandbox.
pub(super) struct Proxy {
    base_url: String,
    trace_path: String,
    process: Box<dyn Process>,
}

impl Proxy {
    pub(super) async fn start(scope: &Scope, sandbox: &dyn Sandbox) -> Result<Self, Stop> {
        let trace_path = format!("{}/logs/agent/proxy_trace.jsonl", sandbox.home());
        let failed =
            |error: &SandboxError| Stop::sandbox(Stage::Agent, faults::SANDBOX_OPERATION_FAILED, error);
        // The proxy makes the file but not its folders.
        sandbox
            .write_file(&trace_path, bytes::Bytes::new(), 0o600)
            .await
            .map_err(|error| failed(&error))?;
        let command = command(scope, sandbox, &trace_path)?;
        let (url, mut told) = watch::channel(None);
        let output = Arc::new(Output {
            url,
            text: Mutex::default(),
        });
        let process = sandbox
            .start(command, output.clone())
            .await
            .map_err(|error| failed(&error))?;
        let listening = async {
            match told.wait_for(Option::is_some).await {
                Ok(url) => url.clone(),
                Err(_) => None,
            }
        };
        match scope.until(Instant::now() + START, listening).await {
            Ok(Some(base_url)) => Ok(Self {
                base_url,
                trace_path,
                process,
            }),
            Err(Cut::Cancelled) => Err(Stop::Cancelled),
            Ok(None) | Err(Cut::Deadline) => {
                let mut fault = faults::SANDBOX_OPERATION_FAILED
                    .fault(Some(Stage::Agent), "the proxy in the sandbox did not start");
                fault.causes.extend(output.last_line());
                Err(fault.into())
            }
        }
    }

    pub(super) fn base_url(&self) -> &str {
        &self.base_url
    }

    /// Ends the proxy and hands over what it wrote down.
    pub(super) async fn finish(mut self, sandbox: &dyn Sandbox, recording: &Recording, report: &mut Report) {
        if let Err(error) = self.process.kill().await {
            report.warn(format!("the proxy in the sandbox could not be ended: {error}"));
        }
        let trace = match sandbox.read_file(&self.trace_path, TRACE_BYTES).await {
            Ok(trace) => trace,
            Err(error) => {
                report.warn(format!(
                    "the trace of the proxy in the sandbox could not be fetched: {error}"
                ));
                return;
            }
        };
        let sink = recording.sink();
        let mut unreadable = 0;
        for line in trace.split(|&byte| byte == b'\n').filter(|line| !line.is_empty()) {
            match trace::call(line) {
                Some(call) => sink.finished(call),
                None => unreadable += 1,
            }
        }
        if unreadable > 0 {
            report.warn(format!(
                "{unreadable} lines of the trace of the proxy in the sandbox are no calls"
            ));
        }
    }
}

fn command(scope: &Scope, sandbox: &dyn Sandbox, trace_path: &str) -> Result<Command, Stop> {
    let request = &scope.request;
    let endpoint = request.upstream.endpoint();
    let program = sandbox.asset_path(TAP_ASSET).ok_or_else(|| {
        faults::SANDBOX_OPERATION_FAILED.fault(Some(Stage::Agent), "the proxy was not put into the sandbox")
    })?;
    let sampling = serde_json::to_string(&request.task.sampling.over(&endpoint.sampling))
        .map_err(|error| faults::INTERNAL.from_error(Some(Stage::Agent), &error))?;
    let mut argv = vec![program, "proxy".into()];
    let mut option = |name: &str, value: String| argv.extend([name.to_owned(), value]);
    option("--upstream-url", request.upstream.base_url().to_owned());
    option("--trace", trace_path.to_owned());
    option("--port", "0".into());
    option("--top-logprobs", request.top_logprobs.to_string());
    option(
        "--max-tokens-cap",
        request.task.limits.max_tokens_cap.unwrap_or(0).to_string(),
    );
    option("--model-override", endpoint.model.clone().unwrap_or_default());
    option("--sampling", sampling);
    option(
        "--capture",
        match request.capture {
            CaptureMode::Stream | CaptureMode::Auto => "stream".into(),
            CaptureMode::Buffer => "buffer".into(),
        },
    );
    if request.disable_thinking.unwrap_or(endpoint.disable_thinking) {
        argv.push("--disable-thinking".into());
    }
    let key = endpoint
        .api_key
        .as_ref()
        .map(|key| key.expose_secret().to_owned());
    Ok(Command {
        argv,
        env: key
            .map(|key| ("OPENCODE_UPSTREAM_API_KEY".to_owned(), key))
            .into_iter()
            .collect(),
        ..Command::default()
    })
}

/// Waits for the line that tells the proxy's URL.
struct Output {
    url: watch::Sender<Option<String>>,
    text: Mutex<String>,
}

impl Output {
    fn last_line(&self) -> Option<String> {
        let text = self.text.lock().unwrap_or_else(PoisonError::into_inner);
        text.trim_end().lines().last().map(str::to_owned)
    }
}

impl OutputSink for Output {
    fn write(&self, _stream: OutputStream, bytes: &[u8]) {
        let mut text = self.text.lock().unwrap_or_else(PoisonError::into_inner);
        // It prints a few lines at its start, and later one where it cannot write its trace.
        if text.len() < 16 * 1024 {
            text.push_str(&String::from_utf8_lossy(bytes));
        }
        let whole_lines = text
            .rfind('\n')
            .and_then(|end| text.get(..end))
            .unwrap_or_default();
        if let Some(url) = whole_lines.lines().find_map(|line| line.strip_prefix(LISTENING)) {
            self.url
                .send_if_modified(|known| known.is_none().then(|| *known = Some(url.to_owned())).is_some());
        }
    }
}
