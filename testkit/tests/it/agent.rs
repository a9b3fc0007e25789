//! The scripted agent as a process, against the scripted model.

use crate::client::{chat, config, start};
use dressage_testkit::fault::{Cut, Fault, FaultPlan};
use dressage_testkit::model::{ScriptedModel, ScriptedModelConfig, ScriptedTurns, Turn};
use serde_json::{Value, json};
use std::path::Path;
use std::process::{Output, Stdio};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, Command};

fn spawn(model: &ScriptedModel, directory: &Path, arguments: &[&str]) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_scripted_agent"));
    command.args([
        "run",
        "--format",
        "json",
        "--base-url",
        &model.base_url(),
        "--api-key",
        "sk-test",
        "-m",
        "demo/tiny",
    ]);
    command
        .args(arguments)
        .current_dir(directory)
        .env("HOME", directory)
        .kill_on_drop(true);
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

async fn run(model: &ScriptedModel, directory: &Path, prompt: &str, arguments: &[&str]) -> Output {
    let mut child = spawn(model, directory, arguments);
    child
        .stdin
        .take()
        .unwrap()
        .write_all(prompt.as_bytes())
        .await
        .unwrap();
    tokio::time::timeout(Duration::from_secs(60), child.wait_with_output())
        .await
        .expect("the agent ends")
        .unwrap()
}

fn lines(output: &Output) -> Vec<Value> {
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

fn kinds(lines: &[Value]) -> Vec<&str> {
    lines.iter().map(|line| line["type"].as_str().unwrap()).collect()
}

fn says(text: &str) -> ScriptedModelConfig {
    ScriptedModelConfig {
        script: Arc::new(ScriptedTurns(vec![Turn::says(text)])),
        ..config()
    }
}

const BINARY_SEARCH: &str =
    "Create a single Python file named `binary_search.py` in the current working directory.";
const FIZZBUZZ: &str =
    "Create `fizzbuzz.py` in the current directory exposing `def fizzbuzz(n: int) -> list[str]`.";

#[tokio::test]
async fn the_presets_are_solved_in_three_turns_and_their_checks_pass() {
    for (prompt, file) in [(BINARY_SEARCH, "binary_search.py"), (FIZZBUZZ, "fizzbuzz.py")] {
        let directory = tempfile::tempdir().unwrap();
        let model = start(config()).await;
        let output = run(&model, directory.path(), prompt, &[]).await;
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        assert!(directory.path().join(file).is_file());
        let lines = lines(&output);
        let step = ["step_start", "text", "tool_use", "step_finish"];
        let wanted = [
            &step[..],
            &["step_start", "tool_use", "step_finish"],
            &["step_start", "text", "step_finish"],
        ]
        .concat();
        assert_eq!(kinds(&lines), wanted);
        let checked = &lines[5]["part"];
        assert_eq!(
            (&checked["tool"], &checked["state"]["status"]),
            (&json!("bash"), &json!("completed"))
        );
        assert_eq!(checked["state"]["output"], "OK\n");
        assert_eq!(lines[3]["part"]["reason"], "tool-calls");
        assert_eq!(lines.last().unwrap()["part"]["reason"], "stop");
        assert_eq!(model.calls(), 3);
    }
}

/// A tool with parameters that are texts.
fn tool(name: &str, parameters: &[&str]) -> Value {
    let text = |name: &&str| ((*name).to_owned(), json!({"type": "string"}));
    let properties: serde_json::Map<_, _> = parameters.iter().map(text).collect();
    json!({"type": "function", "function": {
        "name": name,
        "parameters": {"type": "object", "properties": properties},
    }})
}

#[tokio::test]
async fn the_mean_of_the_column_is_written_without_a_newline_and_without_pandas() {
    let home = tempfile::tempdir().unwrap();
    let instruction =
        "Read `/home/user/data/numbers.csv` (a CSV with a single column `x` of integers) using pandas.";
    let tools = json!([
        tool("write", &["filePath", "content"]),
        tool("bash", &["command", "description"]),
    ]);
    let request = json!({"messages": [{"role": "user", "content": instruction}], "tools": tools});
    let reply = chat(&start(config()).await, &request).await.json();
    let call = reply["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"]
        .as_str()
        .unwrap();
    let call: Value = serde_json::from_str(call).unwrap();
    assert_eq!(call["filePath"], "/home/user/workdir/mean.py");
    let program = call["content"]
        .as_str()
        .unwrap()
        .replace("/home/user", home.path().to_str().unwrap());
    for directory in ["data", "workdir"] {
        std::fs::create_dir(home.path().join(directory)).unwrap();
    }
    std::fs::write(
        home.path().join("data/numbers.csv"),
        "x\n1\n2\n3\n4\n5\n6\n7\n8\n9\n10\n",
    )
    .unwrap();
    // Isolated and without site packages: pandas is not there.
    let status = Command::new("python3")
        .args(["-I", "-S", "-c", &program])
        .status()
        .await
        .unwrap();
    assert!(status.success());
    assert_eq!(
        std::fs::read_to_string(home.path().join("workdir/mean.txt")).unwrap(),
        "5.5"
    );
}

#[tokio::test]
async fn without_a_tool_to_write_with_bash_does_it_and_without_any_the_model_says_so() {
    let model = start(config()).await;
    let ask = async |tools: Value| {
        let request = json!({"messages": [{"role": "user", "content": BINARY_SEARCH}], "tools": tools});
        chat(&model, &request).await.json()["choices"][0]["message"].clone()
    };
    let bash = ask(json!([tool("bash", &["command", "description"])])).await;
    let directory = tempfile::tempdir().unwrap();
    let call: Value =
        serde_json::from_str(bash["tool_calls"][0]["function"]["arguments"].as_str().unwrap()).unwrap();
    let command = call["command"]
        .as_str()
        .unwrap()
        .replace("/home/user/workdir", directory.path().to_str().unwrap());
    assert!(
        Command::new("sh")
            .args(["-c", &command])
            .status()
            .await
            .unwrap()
            .success()
    );
    let check =
        "from binary_search import binary_search as s; assert s([1, 2, 3], 3) == 2 and s([], 1) == -1";
    let checked = Command::new("python3")
        .args(["-B", "-c", check])
        .current_dir(directory.path())
        .status()
        .await;
    assert!(checked.unwrap().success());
    let nothing = ask(json!([])).await;
    assert!(nothing.get("tool_calls").is_none());
    assert!(
        nothing["content"]
            .as_str()
            .unwrap()
            .contains("no tool to write with")
    );
}

#[tokio::test]
async fn calls_for_titles_get_a_short_title() {
    let system = "You are a title generator. You output only a title.";
    let request = json!({"messages": [
        {"role": "system", "content": system}, {"role": "user", "content": "Generate a title for this conversation:\n"},
        {"role": "user", "content": BINARY_SEARCH},
    ]});
    let reply = chat(&start(config()).await, &request).await.json();
    assert_eq!(
        reply["choices"][0]["message"]["content"],
        "\n\nCreate binary_search.py"
    );
}

#[tokio::test]
async fn it_bears_the_signs_of_opencode_and_sends_arguments_back_compactly() {
    let directory = tempfile::tempdir().unwrap();
    let model = start(config()).await;
    for (style, wanted) in [("compact", r#"{"filePath":"#), ("verbatim", r#"{"filePath": "#)] {
        let output = run(&model, directory.path(), BINARY_SEARCH, &["--arguments", style]).await;
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let received = model.received();
        let last = received.last().unwrap();
        assert!(
            last.headers["user-agent"]
                .to_str()
                .unwrap()
                .starts_with("opencode/")
        );
        assert!(last.headers["x-session-id"].to_str().unwrap().starts_with("ses_"));
        assert_eq!(last.headers["authorization"], "Bearer sk-test");
        let body: Value = serde_json::from_slice(&last.body).unwrap();
        assert_eq!(
            body["messages"][1],
            json!({"role": "user", "content": BINARY_SEARCH})
        );
        let arguments = body["messages"][2]["tool_calls"][0]["function"]["arguments"]
            .as_str()
            .unwrap();
        assert!(arguments.starts_with(wanted), "{style}: {arguments}");
    }
}

#[tokio::test]
async fn an_instruction_without_a_script_is_answered_politely_without_a_tool() {
    let directory = tempfile::tempdir().unwrap();
    let output = run(&start(config()).await, directory.path(), "Bake a cake.", &[]).await;
    let lines = lines(&output);
    assert_eq!(kinds(&lines), ["step_start", "text", "step_finish"]);
    assert!(
        lines[1]["part"]["text"]
            .as_str()
            .unwrap()
            .contains("scripted model")
    );
}

#[tokio::test]
async fn a_refusal_is_a_line_and_exit_code_1() {
    let directory = tempfile::tempdir().unwrap();
    let model = start(ScriptedModelConfig {
        api_key: Some("sk-other".into()),
        ..config()
    })
    .await;
    let output = run(&model, directory.path(), "hi", &[]).await;
    assert_eq!(output.status.code(), Some(1));
    let lines = lines(&output);
    assert_eq!(kinds(&lines), ["step_start", "error"]);
    assert_eq!(lines[1]["error"]["data"]["statusCode"], 401);
}

#[tokio::test]
async fn a_stream_without_an_end_a_malformed_event_and_a_reset_are_told_apart() {
    let directory = tempfile::tempdir().unwrap();
    let cut = |how| Fault::Cut { after_events: 2, how };
    for (fault, said) in [
        (cut(Cut::CleanEnd), "the stream ended without a finish reason"),
        (cut(Cut::Close), "cannot exchange with the model"),
        (cut(Cut::Reset), "cannot exchange with the model"),
        (Fault::Malformed { at_event: 2 }, "JSON parsing failed"),
        (
            Fault::ErrorEvent {
                at_event: 2,
                message: "overloaded".into(),
            },
            "overloaded",
        ),
    ] {
        let model = start(ScriptedModelConfig {
            faults: FaultPlan::default().always(fault),
            ..says("Hello.")
        })
        .await;
        let output = run(&model, directory.path(), "hi", &[]).await;
        assert_eq!(output.status.code(), Some(1));
        let message = lines(&output)[1]["error"]["data"]["message"]
            .as_str()
            .unwrap()
            .to_owned();
        assert!(message.starts_with(said), "{said}: {message}");
    }
}

#[tokio::test]
async fn retries_repeat_the_same_body_until_one_succeeds() {
    let directory = tempfile::tempdir().unwrap();
    let faults = FaultPlan::default().on(0, Fault::status(429)).on(
        1,
        Fault::Cut {
            after_events: 3,
            how: Cut::Reset,
        },
    );
    let model = start(ScriptedModelConfig {
        faults,
        ..says("Hello.")
    })
    .await;
    let output = run(&model, directory.path(), "hi", &["--retries", "2"]).await;
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let bodies: Vec<_> = model
        .received()
        .into_iter()
        .map(|received| received.body)
        .collect();
    assert_eq!(bodies.len(), 3);
    assert!(bodies.iter().all(|body| *body == bodies[0]));
}

#[tokio::test]
async fn misbehaviours_that_end_by_themselves_end_as_named() {
    let directory = tempfile::tempdir().unwrap();
    let model = start(says("Hello.")).await;
    let output = run(&model, directory.path(), "hi", &["--misbehave", "no_text"]).await;
    assert_eq!(
        (output.status.code(), output.stdout.len(), model.calls()),
        (Some(0), 0, 0)
    );
    let output = run(&model, directory.path(), "hi", &["--misbehave", "exit_3"]).await;
    assert_eq!(
        (output.status.code(), kinds(&lines(&output)).last()),
        (Some(3), Some(&"step_finish"))
    );
    let output = run(&model, directory.path(), "hi", &["--misbehave", "crash"]).await;
    assert_eq!(
        std::os::unix::process::ExitStatusExt::signal(&output.status),
        Some(9)
    );
    let output = run(&model, directory.path(), "hi", &["--misbehave", "spam"]).await;
    assert!(output.stdout.len() > 50_000_000, "{}", output.stdout.len());
}

#[tokio::test]
async fn a_foreign_call_bears_no_signs_and_the_work_goes_on() {
    let directory = tempfile::tempdir().unwrap();
    let model = start(says("Hello.")).await;
    assert_eq!(
        run(&model, directory.path(), "hi", &["--misbehave", "foreign"])
            .await
            .status
            .code(),
        Some(0)
    );
    let received = model.received();
    assert_eq!(received.len(), 2);
    assert!(
        received[0].headers["user-agent"]
            .to_str()
            .unwrap()
            .starts_with("curl/")
    );
    assert!(
        !received[0].headers.contains_key("x-session-id") && received[1].headers.contains_key("x-session-id")
    );
}

#[tokio::test]
async fn an_agent_deaf_to_sigterm_outlives_it_and_never_exits() {
    let directory = tempfile::tempdir().unwrap();
    let model = start(says("Hello.")).await;
    let mut child = spawn(
        &model,
        directory.path(),
        &["--misbehave", "ignore_sigterm,never_exit"],
    );
    drop(child.stdin.take());
    // Once it has said its last line it does nothing but live.
    let (mut stdout, mut text) = (child.stdout.take().unwrap(), Vec::new());
    while !text.windows(13).any(|window| window == b"\"step_finish\"") {
        assert!(stdout.read_buf(&mut text).await.unwrap() > 0);
    }
    let id = child.id().unwrap().to_string();
    assert!(
        Command::new("kill")
            .args(["-TERM", &id])
            .status()
            .await
            .unwrap()
            .success()
    );
    assert!(
        tokio::time::timeout(Duration::from_millis(300), child.wait())
            .await
            .is_err(),
        "it died of SIGTERM"
    );
    child.kill().await.unwrap();
}

#[tokio::test]
async fn a_daemon_outlives_the_agent_and_forges_the_reward() {
    let directory = tempfile::tempdir().unwrap();
    let model = start(says("Hello.")).await;
    assert_eq!(
        run(&model, directory.path(), "hi", &["--misbehave", "leave_daemon"])
            .await
            .status
            .code(),
        Some(0)
    );
    let reward = directory.path().join("logs/verifier/reward.txt");
    let forged = async {
        while std::fs::read_to_string(&reward).unwrap_or_default() != "1.0\n" {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), forged)
        .await
        .expect("the daemon writes");
    for process in std::fs::read_dir("/proc").unwrap().filter_map(Result::ok) {
        let environment = std::fs::read(process.path().join("environ")).unwrap_or_default();
        let home = format!("HOME={}", directory.path().display());
        if environment
            .split(|&byte| byte == 0)
            .any(|variable| variable == home.as_bytes())
        {
            let id = process.file_name().into_string().unwrap();
            Command::new("kill").args(["-9", &id]).status().await.unwrap();
        }
    }
}

#[tokio::test]
async fn without_a_base_url_it_says_where_one_is_looked_for() {
    let output = Command::new(env!("CARGO_BIN_EXE_scripted_agent"))
        .env_clear()
        .output()
        .await
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(
        said,
        "error: no base URL: neither --base-url, SCRIPTED_AGENT_BASE_URL nor OPENCODE_CONFIG_CONTENT gives one\n"
    );
}
