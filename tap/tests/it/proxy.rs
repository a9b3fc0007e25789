use crate::support::{Act, Agent, FakeEndpoint, Received, Script, ask, fixture, soon};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use tokio::net::TcpStream;

/// The program, with what every test of it needs.
fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dressage-tap"));
    command
        .arg("proxy")
        .env_clear()
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// A running proxy; killed when dropped.
struct Proxy {
    child: Child,
    address: String,
}

impl Proxy {
    fn start(endpoint: &FakeEndpoint, trace: &Path, more: &[&str]) -> Self {
        let mut command = program();
        command
            .args(["--port", "0", "--upstream-url", &endpoint.base_url(), "--trace"])
            .arg(trace)
            .args(more);
        command.env("OPENCODE_UPSTREAM_API_KEY", "sk-upstream-key");
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap())
            .read_line(&mut line)
            .unwrap();
        let address = line
            .trim()
            .strip_prefix("listening on http://")
            .and_then(|rest| rest.strip_suffix("/v1"));
        Self {
            address: address.unwrap_or_else(|| panic!("{line:?}")).to_owned(),
            child,
        }
    }

    async fn agent(&self) -> Agent {
        Agent::over(TcpStream::connect(&self.address).await.unwrap(), "intercepted").await
    }

    async fn get(&self, path: &str) -> Received {
        let mut agent = self.agent().await;
        let request = agent.request("GET", path, "");
        crate::support::agent::read(agent.send(request).await).await
    }

    /// Tells it to end; gives its exit code and what it said on standard error.
    fn end(mut self, signal: nix::sys::signal::Signal) -> (Option<i32>, String) {
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(self.child.id() as i32), signal).unwrap();
        let status = self.child.wait().unwrap();
        let mut said = String::new();
        self.child
            .stderr
            .take()
            .unwrap()
            .read_to_string(&mut said)
            .unwrap();
        (status.code(), said)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn lines(trace: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(trace).unwrap();
    assert!(text.is_empty() || text.ends_with('\n'));
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

const TERMINATE: nix::sys::signal::Signal = nix::sys::signal::Signal::SIGTERM;

#[tokio::test]
async fn a_line_has_the_keys_of_interception_py_with_the_ids_filled_in_and_ours() {
    let recorded = fixture("vllm-0.32.0/list_tools_unary_lp5_ids.response.body");
    let reply: Value = serde_json::from_slice(&recorded).unwrap();
    let endpoint = FakeEndpoint::start(move |_, _| Script::json(200, &recorded)).await;
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace.jsonl");
    let proxy = Proxy::start(
        &endpoint,
        &trace,
        &[
            "--max-tokens-cap",
            "64",
            "--model-override",
            "qwen",
            "--disable-thinking",
        ],
    );
    let pretty = "{\n  \"model\": \"x\",\n  \"max_tokens\": 32000,\n  \"messages\": [{\"role\": \"user\", \"content\": \"a\\nb\"}]\n}";
    let received = proxy.agent().await.chat(pretty).await;
    assert_eq!(received.status, 200);
    assert!(
        received.json()["choices"][0]["token_ids"].is_null(),
        "nothing captured leaks"
    );
    let lines = lines(&trace);
    assert_eq!(lines.len(), 1);
    let line = lines[0].as_object().unwrap();
    let keys: Vec<&str> = line.keys().map(String::as_str).collect();
    assert_eq!(
        keys,
        [
            "turn",
            "request",
            "response",
            "logprobs",
            "completion_tokens",
            "completion_token_ids",
            "per_token_logps",
            "finish_reason",
            "latency_s",
            "timestamp",
            "call_id",
            "prompt_token_ids",
            "usage",
            "flags",
            "level",
            "purpose",
            "end",
            "error",
            "hint",
            "model",
            "sampling_params",
            "changes",
            "first_token_ms",
            "status",
            "streamed",
            "retry_count",
            "retry_key",
        ]
    );
    let choice = &reply["choices"][0];
    assert_eq!(line["turn"], 1);
    assert_eq!(line["completion_token_ids"], choice["token_ids"]);
    assert_eq!(line["prompt_token_ids"], reply["prompt_token_ids"]);
    let entries = choice["logprobs"]["content"].as_array().unwrap();
    let logprobs: Vec<&Value> = entries.iter().map(|entry| &entry["logprob"]).collect();
    let tokens: Vec<&Value> = entries.iter().map(|entry| &entry["token"]).collect();
    assert_eq!(line["per_token_logps"], json!(logprobs));
    assert_eq!(line["completion_tokens"], json!(tokens));
    assert_eq!(line["logprobs"][3]["top_logprobs"].as_array().unwrap().len(), 5);
    assert_eq!(line["logprobs"], choice["logprobs"]["content"], "as they came");
    assert_eq!(
        line["logprobs"][3]["top_logprobs"][1]["logprob"],
        entries[3]["top_logprobs"][1]["logprob"]
    );
    assert_eq!(line["finish_reason"], "tool_calls");
    assert_eq!(
        line["response"]["choices"][0]["message"]["tool_calls"],
        choice["message"]["tool_calls"]
    );
    let request = &line["request"];
    assert_eq!(*request, endpoint.asked()[0].json(), "as it was forwarded");
    assert_eq!(
        (&request["model"], &request["max_tokens"]),
        (&json!("qwen"), &json!(64))
    );
    assert_eq!(request["chat_template_kwargs"]["enable_thinking"], false);
    assert_eq!(
        (&line["level"], &line["end"], &line["purpose"]),
        (&json!("tokens"), &json!("complete"), &json!("agent"))
    );
    assert_eq!(line["flags"], json!(["sampling_defaulted"]));
    assert_eq!(
        endpoint.asked()[0].header("authorization"),
        Some("Bearer sk-upstream-key")
    );
    let (code, said) = proxy.end(TERMINATE);
    assert_eq!((code, said.as_str()), (Some(0), ""));
}

#[tokio::test]
async fn trap_01_streams_with_ids_in_the_token_names_have_their_ids_in_the_line() {
    let recorded = fixture("vllm-0.32.0/hi_stream_tokens_as_ids.response.body");
    let endpoint = FakeEndpoint::start(move |_, _| Script::events(&recorded, 77)).await;
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace.jsonl");
    let proxy = Proxy::start(&endpoint, &trace, &[]);
    proxy.agent().await.chat(ask(true)).await;
    let line = lines(&trace).remove(0);
    let ids = line["completion_token_ids"].as_array().unwrap();
    let named: Vec<String> = ids.iter().map(|id| format!("token_id:{id}")).collect();
    assert!(!ids.is_empty());
    assert_eq!(line["completion_tokens"], json!(named));
    assert_eq!(line["request"]["stream"], true);
}

#[tokio::test]
async fn failures_are_lines_in_openenvs_form() {
    let error = r#"{"error":{"message":"slow down","type":"rate_limit"}}"#;
    let endpoint = FakeEndpoint::start(move |number, _| match number {
        0 => Script::json(429, error),
        1 => Script::reply(500, "content-type: text/plain\r\n", "broken\npipe"),
        _ => Script::default().then(Act::Close),
    })
    .await;
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace.jsonl");
    let proxy = Proxy::start(&endpoint, &trace, &[]);
    for _ in 0..3 {
        proxy.agent().await.chat(ask(false)).await;
    }
    let lines = lines(&trace);
    let responses: Vec<&Value> = lines.iter().map(|line| &line["response"]).collect();
    let parsed: Value = serde_json::from_str(error).unwrap();
    assert_eq!(
        *responses[0],
        json!({"choices": [], "usage": null, "upstream_status": 429, "upstream_error": parsed})
    );
    assert_eq!(responses[1]["upstream_status"], 500);
    assert!(
        responses[1]["upstream_error"]["message"].is_string(),
        "{}",
        responses[1]
    );
    assert_eq!(
        (&responses[2]["choices"], &responses[2]["upstream_status"]),
        (&json!([]), &Value::Null)
    );
    assert!(
        responses[2]["upstream_error"]["message"]
            .as_str()
            .unwrap()
            .contains("closed before a reply")
    );
    assert!(
        lines
            .iter()
            .all(|line| line["end"] == "upstream_error" && line["completion_token_ids"] == json!([]))
    );
}

#[tokio::test]
async fn trap_03_a_logprob_that_is_no_number_is_null_in_the_line_and_the_ids_stay() {
    let reply = r#"{"id":"c","object":"chat.completion","created":1,"model":"t","prompt_token_ids":[1],"choices":[{"index":0,"message":{"role":"assistant","content":"ab"},"finish_reason":"stop","token_ids":[5,6],"logprobs":{"content":[{"token":"a","logprob":NaN,"bytes":null,"top_logprobs":[]},{"token":"b","logprob":-0.5,"bytes":null,"top_logprobs":[{"token":"b","logprob":-Infinity}]}]}}],"usage":{"prompt_tokens":1,"completion_tokens":2,"total_tokens":3}}"#;
    let endpoint = FakeEndpoint::start(move |_, _| Script::json(200, reply)).await;
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace.jsonl");
    let proxy = Proxy::start(&endpoint, &trace, &[]);
    proxy.agent().await.chat(ask(false)).await;
    let line = lines(&trace).remove(0);
    assert_eq!(line["per_token_logps"], json!([null, -0.5]));
    assert_eq!(line["completion_token_ids"], json!([5, 6]));
    assert!(
        line["flags"]
            .as_array()
            .unwrap()
            .contains(&json!("logprob_invalid")),
        "{}",
        line["flags"]
    );
}

#[tokio::test]
async fn a_full_disk_costs_lines_and_never_the_agent() {
    let endpoint =
        FakeEndpoint::start(|_, _| Script::json(200, fixture("vllm-0.32.0/hi_unary_lp5_ids.response.body")))
            .await;
    let proxy = Proxy::start(&endpoint, Path::new("/dev/full"), &[]);
    assert_eq!(proxy.get("/healthz").await.json(), json!({"status": "ok"}));
    for _ in 0..2 {
        assert_eq!(proxy.agent().await.chat(ask(false)).await.status, 200);
    }
    let health = proxy.get("/healthz").await;
    assert_eq!(
        (health.status.as_u16(), &health.json()["status"]),
        (200, &json!("degraded"))
    );
    assert!(
        health.json()["reason"]
            .as_str()
            .unwrap()
            .starts_with("2 calls are not in the trace"),
        "{}",
        health.text()
    );
    let (code, said) = proxy.end(TERMINATE);
    assert_eq!(code, Some(0));
    assert_eq!(said.lines().count(), 1, "said once: {said}");
    assert!(said.contains("No space left on device"), "{said}");
}

#[tokio::test]
async fn models_and_health_are_served_and_other_host_names_are_not() {
    let endpoint = FakeEndpoint::start(|_, _| Script::json(200, r#"{"object":"list","data":[]}"#)).await;
    let folder = tempfile::tempdir().unwrap();
    let proxy = Proxy::start(&endpoint, &folder.path().join("t"), &[]);
    assert_eq!(proxy.get("/healthz").await.text(), r#"{"status":"ok"}"#);
    assert_eq!(
        proxy.get("/v1/models").await.text(),
        r#"{"object":"list","data":[]}"#
    );
    let mut agent = proxy.agent().await;
    let mut request = agent.post(ask(false));
    request
        .headers_mut()
        .insert("host", "rebound.example".parse().unwrap());
    assert_eq!(agent.send(request).await.status(), 421);
}

#[tokio::test]
async fn a_signal_lets_a_call_under_way_end_and_the_line_is_there() {
    let gate = std::sync::Arc::new(tokio::sync::Notify::new());
    let held = gate.clone();
    let endpoint = FakeEndpoint::start(move |_, _| {
        let reply = Script::json(200, fixture("vllm-0.32.0/hi_unary_lp5_ids.response.body"));
        Script::default().then(Act::Wait(held.clone())).and(reply)
    })
    .await;
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace.jsonl");
    let proxy = Proxy::start(&endpoint, &trace, &[]);
    let mut agent = proxy.agent().await;
    let asking = tokio::spawn(async move { agent.chat(ask(false)).await.status });
    soon("the request", async {
        while endpoint.asked().is_empty() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let ending = tokio::task::spawn_blocking(move || proxy.end(nix::sys::signal::Signal::SIGINT));
    gate.notify_one();
    assert_eq!(asking.await.unwrap(), 200);
    assert_eq!(soon("the end", ending).await.unwrap().0, Some(0));
    assert_eq!(lines(&trace).len(), 1);
}

#[tokio::test]
async fn a_key_among_the_arguments_is_used_and_warned_of() {
    let endpoint = FakeEndpoint::start(|_, _| Script::json(200, r#"{"object":"list","data":[]}"#)).await;
    let folder = tempfile::tempdir().unwrap();
    let proxy = Proxy::start(
        &endpoint,
        &folder.path().join("t"),
        &["--upstream-api-key", "sk-argument"],
    );
    proxy.get("/v1/models").await;
    assert_eq!(
        endpoint.asked()[0].header("authorization"),
        Some("Bearer sk-argument")
    );
    let (_, said) = proxy.end(TERMINATE);
    assert!(
        said.contains("visible to every process") && said.contains("OPENCODE_UPSTREAM_API_KEY"),
        "{said}"
    );
    assert!(!said.contains("sk-argument"));
}

fn run(arguments: &[&str]) -> Output {
    program().args(arguments).output().unwrap()
}

#[test]
fn arguments_that_make_no_sense_are_named_and_end_it_with_2() {
    let good = ["--upstream-url", "http://127.0.0.1:1/v1", "--trace", "/dev/null"];
    for (arguments, said) in [
        (&[][..], "--upstream-url is missing"),
        (&good[..2], "--trace is missing"),
        (&["--upstream"], "--upstream"),
        (&["--port", "70000"], "70000"),
        (&["--port"], "--port"),
        (&["--host", "nowhere"], "it is not an IP address"),
        (&["--top-logprobs", "21"], "from 0 to 20"),
        (&["--max-tokens-cap", "many"], "it must be a whole number"),
        (&["--request-timeout", "0"], "more than 0"),
        (&["--request-timeout", "nan"], "a number of seconds"),
        (&["--sampling", "{\"temprature\":1}"], "temprature"),
        (&["--capture", "auto"], "`stream` or `buffer`"),
        (&["extra"], "extra"),
    ] {
        let output = run(arguments);
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {text}");
        assert!(
            text.starts_with("dressage-tap proxy: ") && text.contains(said),
            "{arguments:?}: {text}"
        );
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn what_keeps_it_from_starting_is_named_and_ends_it_with_1() {
    for (arguments, said) in [
        (
            &["--upstream-url", "ftp://x/v1", "--trace", "/dev/null"][..],
            "does not start with http:// or https://",
        ),
        (
            &[
                "--upstream-url",
                "http://169.254.169.254/v1",
                "--trace",
                "/dev/null",
            ],
            "link-local",
        ),
        (
            &[
                "--upstream-url",
                "http://127.0.0.1:1/v1",
                "--trace",
                "/nowhere/trace",
            ],
            "trace /nowhere/trace cannot be opened",
        ),
        (
            &[
                "--upstream-url",
                "http://127.0.0.1:1/v1",
                "--trace",
                "/dev/null",
                "--host",
                "203.0.113.1",
                "--port",
                "0",
            ],
            "cannot be listened on",
        ),
    ] {
        let output = run(arguments);
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {text}");
        assert!(text.contains(said), "{arguments:?}: {text}");
    }
}

#[test]
fn help_lists_every_flag_and_version_is_the_packages() {
    let help = String::from_utf8(run(&["--help"]).stdout).unwrap();
    for flag in [
        "--upstream-url",
        "--trace",
        "--host",
        "--port",
        "--top-logprobs",
        "--max-tokens-cap",
        "--disable-thinking",
        "--model-override",
        "--request-timeout",
        "--upstream-api-key",
    ] {
        assert!(help.contains(flag), "{flag}");
    }
    let version = String::from_utf8(run(&["--version"]).stdout).unwrap();
    assert_eq!(version, format!("dressage-tap {}\n", env!("CARGO_PKG_VERSION")));
}
