//! One suite over the registry: each real agent that is installed, offline in a `local` sandbox, against the scripted
//! model in the agent's own dialect. Those of [`PROMISED`] must be installed; `DRESSAGE_TEST_AGENTS=all` asks for all.

use crate::world::{Done, World, WorldPlan, agents_cache_dir};
use dressage_rollout::agents::{Agent, AgentError, Agents, Wish};
use dressage_rollout::presets::Preset;
use dressage_testkit::fault::{Cut, Fault, FaultPlan};
use dressage_testkit::model::{Conversation, PresetScript, Script, Sent, Turn};
use dressage_wire::call::{CaptureLevel, DialectName, Purpose};
use dressage_wire::event::{AgentEvent, Event, Stage};
use dressage_wire::export::trl::{TrainingTrace, TrainingTurn, TrlRow};
use dressage_wire::export::verl::VerlRow;
use dressage_wire::export::{Shape, Source};
use dressage_wire::fault::{Ended, FaultOwner};
use dressage_wire::ids::RolloutId;
use dressage_wire::rollout::{RolloutOutcome, RolloutStart, RolloutState};
use dressage_wire::task::{McpServer, Task};
use dressage_wire::trajectory::{Recorded, Trajectory};
use dressage_wire::validate::{self, Findings};
use serde_json::{Value, json};
use std::sync::Arc;

/// What `make test` installs.
const PROMISED: [&str; 2] = ["opencode", "qwen-code"];

/// A module of tests for each agent that speaks to a model by itself; a test compares them with the registry.
macro_rules! agents {
    ($($module:ident = $name:literal),* $(,)?) => {
        const TESTED: &[&str] = &[$($name),*];

        $(mod $module {
            use super::*;

            #[tokio::test]
            async fn solves_a_task_without_a_network() {
                if let Some(agent) = installed($name) {
                    solves_a_task(&*agent).await;
                }
            }

            #[tokio::test]
            async fn reaches_its_model_past_the_proxy_of_a_sandbox_of_some_hosts() {
                if let Some(agent) = installed($name) {
                    reaches_its_model_past_a_proxy(&*agent).await;
                }
            }

            #[tokio::test]
            async fn survives_an_endpoint_that_fails() {
                if let Some(agent) = installed($name) {
                    survives_faults(&*agent).await;
                }
            }

            #[tokio::test]
            async fn does_what_it_is_told_next_in_the_same_session() {
                if let Some(agent) = installed($name) {
                    goes_on(&*agent).await;
                }
            }

            #[tokio::test]
            async fn tells_the_calls_of_a_sub_agent_apart() {
                if let Some(agent) = installed($name) {
                    delegates(&*agent).await;
                }
            }

            #[tokio::test]
            async fn honours_what_the_task_says_of_it() {
                if let Some(agent) = installed($name) {
                    honours_wishes(&*agent).await;
                }
            }
        })*
    };
}

agents! {
    opencode = "opencode",
    claude_code = "claude-code",
    codex = "codex",
    gemini_cli = "gemini-cli",
    qwen_code = "qwen-code",
    mini_swe_agent = "mini-swe-agent",
}

/// The agent, where it is installed; it must be where it is promised.
fn installed(name: &str) -> Option<Arc<dyn Agent>> {
    let agent = Agents::builtin().get(name).unwrap();
    let all = std::env::var("DRESSAGE_TEST_AGENTS").is_ok_and(|wanted| wanted == "all");
    match agent.installed(&agents_cache_dir(), None) {
        Ok(_) => Some(agent),
        Err(AgentError::NotInstalled { .. }) if !all && !PROMISED.contains(&name) => None,
        Err(error) => panic!("{error}: run `dressage agents install {name}`"),
    }
}

#[test]
fn every_agent_of_the_registry_is_tested() {
    let agents = Agents::builtin();
    let speaking: Vec<_> = agents
        .iter()
        .filter(|agent| agent.dialect().is_some())
        .map(|agent| agent.name())
        .collect();
    assert_eq!(speaking, TESTED);
}

async fn world(faults: FaultPlan) -> World {
    World::planned(WorldPlan {
        script: Arc::new(PresetScript),
        cache_dir: Some(agents_cache_dir()),
        faults,
        ..WorldPlan::default()
    })
    .await
}

/// A preset for an agent, whose processes can be told from all others by a variable.
fn task(agent: &dyn Agent, preset: &str) -> (Task, String) {
    let mut task = Preset::named(preset).unwrap().task();
    task.agent.name = agent.name().into();
    let mark = format!("mark-{}", RolloutId::new());
    task.env.insert("DRESSAGE_TEST_MARK".into(), mark.clone());
    (task, mark)
}

/// Processes on this machine that have the mark in their environment.
fn left_of(mark: &str) -> Vec<String> {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let has_mark = |path: &std::path::Path| {
        std::fs::read(path.join("environ")).is_ok_and(|environ| {
            environ
                .windows(mark.len())
                .any(|window| window == mark.as_bytes())
        })
    };
    processes
        .map(|process| process.path())
        .filter(|path| has_mark(path))
        .map(|path| {
            let command = std::fs::read(path.join("cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&command).replace('\0', " ")
        })
        .collect()
}

/// What the endpoint got, as JSON, in order.
fn bodies(world: &World) -> Vec<Value> {
    let received = world.model.received();
    received
        .iter()
        .map(|received| serde_json::from_slice(&received.body).unwrap())
        .collect()
}

/// The names of the tools of a request.
fn offered(body: &Value) -> Vec<&str> {
    let tools = body["tools"].as_array().into_iter().flatten();
    tools
        .map(|tool| tool["function"]["name"].as_str().unwrap())
        .collect()
}

/// The texts of the messages of a role.
fn texts<'b>(body: &'b Value, role: &str) -> Vec<&'b str> {
    let messages = body["messages"].as_array().unwrap().iter();
    let of_role = messages.filter(|message| message["role"] == role);
    of_role
        .flat_map(|message| match &message["content"] {
            Value::String(text) => vec![text.as_str()],
            Value::Array(parts) => parts.iter().filter_map(|part| part["text"].as_str()).collect(),
            _ => Vec::new(),
        })
        .collect()
}

fn events(done: &Done) -> Vec<&AgentEvent> {
    let of_agent = |event: &'_ Event| matches!(event, Event::Agent { .. });
    done.events
        .iter()
        .filter(|event| of_agent(&event.event))
        .map(|event| match &event.event {
            Event::Agent { event } => event,
            _ => unreachable!(),
        })
        .collect()
}

async fn solves_a_task(agent: &dyn Agent) {
    let world = world(FaultPlan::default()).await;
    let (task, mark) = task(agent, "binary_search");
    let instruction = task.instruction.clone();
    let done = world.run(task).await;
    let name = agent.name();
    assert_eq!(done.outcome.ended, Ended::Completed, "{name}: {:?}", done.outcome);
    assert_eq!(done.stages(), Stage::ALL, "{name}");
    assert_eq!(done.reward(), Some(1.0), "{name}: {:?}", done.outcome);
    assert_eq!(left_of(&mark), [] as [&str; 0], "{name}");

    // Every call is the agent's own, at the level of tokens, and in its dialect.
    let totals = &done.outcome.totals;
    assert!(totals.calls >= 3, "{name}: {totals:?}");
    assert_eq!(totals.trainable_calls, totals.calls, "{name}: {totals:?}");
    let kept = world.recorder.kept.lock().unwrap();
    for (_, call) in &kept.calls {
        let meta = &call.record.meta;
        assert_eq!(meta.purpose, Purpose::Agent, "{name}: {meta:?}");
        assert_eq!(meta.level, CaptureLevel::Tokens, "{name}: {meta:?}");
        assert_eq!(Some(meta.dialect), agent.dialect(), "{name}");
        assert_eq!(meta.retry_count.unwrap_or(0), 0, "{name}: {meta:?}");
    }

    let calls: Vec<_> = kept.calls.iter().map(|(_, call)| call.clone()).collect();
    exports_what_was_sent(&world.model.sent(), &kept.started[0], &done.outcome, calls);

    // The instruction reaches the model as it was written.
    let bodies = bodies(&world);
    let said = texts(&bodies[0], "user");
    let verbatim = |text: &&str| match agent.dialect() {
        // mini-swe-agent's own words around it are part of how it works.
        Some(DialectName::ChatCompletions) if name != "mini-swe-agent" => *text == instruction,
        // Translated, parts of a message may be one text.
        _ => text.contains(&instruction),
    };
    assert!(said.iter().any(verbatim), "{name}: {said:?}");

    // It is heard.
    let events = events(&done);
    let heard = |what: fn(&AgentEvent) -> bool| events.iter().any(|event| what(event));
    assert!(heard(
        |event| matches!(event, AgentEvent::Text { text } if text.contains("binary_search.py"))
    ));
    assert!(
        heard(|event| matches!(event, AgentEvent::Tool { input, failed: false, .. } if !input.is_empty())),
        "{name}: {events:?}"
    );
    assert!(
        !heard(|event| matches!(event, AgentEvent::Tool { failed: true, .. })),
        "{name}: {events:?}"
    );
    let outcome = done.outcome.agent.as_ref().unwrap();
    assert_eq!((outcome.exit_code, outcome.spoke), (0, true), "{name}");
    if agent.honours().contains(&Wish::Turns) {
        assert!(outcome.session.is_some(), "{name}: {events:?}");
    }
}

/// What a trainer gets of a rollout is what the endpoint sent, token by token.
fn exports_what_was_sent(
    sent: &[Sent],
    started: &RolloutStart,
    outcome: &RolloutOutcome,
    calls: Vec<Recorded>,
) {
    let records: Vec<_> = calls.iter().map(|call| call.record.clone()).collect();
    let contents = calls.into_iter().flat_map(|call| call.contents).collect();
    let mut trajectory = Trajectory::restore(records.clone());
    trajectory.finalise();
    let source = Source {
        id: started.id,
        state: RolloutState::Finished,
        priority: 0,
        created_unix_ms: 0,
        finished_unix_ms: Some(0),
        start: Some(started),
        outcome: Some(outcome),
        trajectory: &trajectory,
        records: &records,
        contents: &contents,
    };
    let lines = |shape| -> Vec<Vec<u8>> {
        let mut written = Vec::new();
        source.write_lines(shape, &mut written).unwrap();
        let mut lines: Vec<_> = written.split(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
        assert_eq!(lines.pop(), Some(Vec::new()));
        for line in &lines {
            let mut findings = Findings::default();
            assert_eq!(validate::line(line, &mut findings), Some(shape));
            assert_eq!(findings.take().0, []);
        }
        lines
    };

    let row: TrlRow = serde_json::from_slice(&lines(Shape::Trl)[0]).unwrap();
    let trace: TrainingTrace = serde_json::from_str(&row.training_trace.unwrap()).unwrap();
    let of_turn = |turn: &TrainingTurn| Sent {
        prompt_token_ids: turn.prompt_token_ids.clone(),
        completion_token_ids: vec![turn.completion_token_ids.clone()],
    };
    assert_eq!(trace.turns.iter().map(of_turn).collect::<Vec<_>>(), sent);

    // Each completion is trained in one sequence, which begins with its prompt.
    let mut untrained = sent.to_vec();
    for line in lines(Shape::Verl) {
        let row: VerlRow = serde_json::from_slice(&line).unwrap();
        let ids = [row.prompt_ids.clone(), row.response_ids].concat();
        for turn in row.turns.iter().filter(|turn| turn.trained) {
            let (start, end) = (row.prompt_ids.len() + turn.start, row.prompt_ids.len() + turn.end);
            let of_turn = Sent {
                prompt_token_ids: ids[..start].to_vec(),
                completion_token_ids: vec![ids[start..end].to_vec()],
            };
            let at = untrained.iter().position(|sent| *sent == of_turn);
            untrained.remove(at.expect("a turn that was not sent, or was trained before"));
            let mask = &row.response_mask[turn.start..turn.end];
            assert!(mask.iter().all(|trained| *trained == 1), "{mask:?}");
        }
        let trained: usize = row
            .response_mask
            .iter()
            .map(|trained| usize::from(*trained))
            .sum();
        let of_turns = row.turns.iter().filter(|turn| turn.trained);
        assert_eq!(trained, of_turns.map(|turn| turn.end - turn.start).sum::<usize>());
    }
    assert_eq!(untrained, []);
    lines(Shape::Native);
}

async fn reaches_its_model_past_a_proxy(agent: &dyn Agent) {
    let world = world(FaultPlan::default()).await;
    let (mut task, _) = task(agent, "binary_search");
    task.network = "allow:nowhere.example".parse().unwrap();
    let done = world.run(task).await;
    assert_eq!(done.outcome.ended, Ended::Completed, "{:?}", done.outcome);
    assert_eq!(done.reward(), Some(1.0), "{:?}", done.outcome);
    // What an agent asks others for by itself is refused and told of; its model it does not ask the proxy for.
    let warnings = done.outcome.warnings.join("\n");
    assert!(
        !warnings.contains("127.0.0.1") && !warnings.contains("localhost"),
        "{warnings}"
    );
}

async fn survives_faults(agent: &dyn Agent) {
    // Some agents wait as long as they are told between attempts; the rest wait by themselves.
    let status = |status| Fault::status(status).with_header("retry-after-ms", "50");
    // One agent asks for no stream: a reply that is cut as if it were whole is then no reply.
    let streams = agent.name() != "mini-swe-agent";
    let cut = |how| Fault::Cut {
        after_events: if streams { 3 } else { 0 },
        how,
    };
    let no_reply = if streams {
        "upstream_cut"
    } else {
        "upstream_failed"
    };
    tokio::join!(
        fails(agent, status(401), "upstream_unauthorized"),
        fails(agent, status(429), "upstream_rate_limited"),
        fails(agent, status(500), "upstream_failed"),
        fails(agent, cut(Cut::Reset), "upstream_cut"),
        fails(agent, cut(Cut::CleanEnd), no_reply),
    );
    // By itself: its deadline is the one that a busy machine could miss.
    is_told_of_silence(agent).await;
}

/// Every call fails so: the rollout ends with the endpoint's fault.
async fn fails(agent: &dyn Agent, fault: Fault, code: &str) {
    let told = format!("{}: {fault:?}", agent.name());
    let world = world(FaultPlan::default().always(fault)).await;
    let (task, mark) = task(agent, "binary_search");
    let done = world.run(task).await;
    assert_eq!(
        done.outcome.ended,
        Ended::AgentError,
        "{told}: {:?}",
        done.outcome
    );
    let fault = done.outcome.fault.as_ref().unwrap();
    assert_eq!(fault.code, code, "{told}: {fault:?}");
    assert_eq!(fault.owner, FaultOwner::Upstream, "{told}: {fault:?}");
    assert_eq!(done.outcome.reward, None, "{told}");
    assert_eq!(done.outcome.totals.trainable_calls, 0, "{told}");
    assert_eq!(left_of(&mark), [] as [&str; 0], "{told}");
}

/// The endpoint never answers: the rollout's deadline ends it, and says so.
async fn is_told_of_silence(agent: &dyn Agent) {
    let name = agent.name();
    // Gemini CLI gives up after a minute by itself, unless its configuration keeps it from that.
    let deadline_s = if name == "gemini-cli" { 90.0 } else { 15.0 };
    let silence = Fault::StallBeforeHeaders { ms: 600_000 };
    let world = world(FaultPlan::default().always(silence)).await;
    let silent_for = async |deadline_s| {
        let (mut task, mark) = task(agent, "binary_search");
        task.limits.agent_timeout_s = deadline_s;
        (world.run(task).await, mark)
    };
    let (mut done, mut mark) = silent_for(deadline_s).await;
    if world.model.received().is_empty() {
        // It had not even asked: on a busy machine the slowest take long to start.
        (done, mark) = silent_for(90.0).await;
    }
    assert_eq!(done.outcome.ended, Ended::Timeout, "{name}: {:?}", done.outcome);
    let causes = done.outcome.fault.unwrap().causes;
    let told = |cause: &String| cause.contains("had not answered the last call");
    assert!(causes.iter().any(told), "{name}: {causes:?}");
    assert_eq!(left_of(&mark), [] as [&str; 0], "{name}");
}

async fn goes_on(agent: &dyn Agent) {
    let name = agent.name();
    let world = world(FaultPlan::default()).await;
    let (mut task, mark) = task(agent, "binary_search");
    let second = Preset::named("fizzbuzz").unwrap().task();
    task.turns = vec![second.instruction.clone()];
    task.verify.extend(second.verify);
    let first = task.instruction.clone();
    let done = world.run(task).await;
    if !agent.honours().contains(&Wish::Turns) {
        let fault = done.outcome.fault.as_ref().unwrap();
        assert_eq!(fault.code, "agent_config_invalid", "{name}: {fault:?}");
        assert_eq!(fault.message, format!("agent `{name}` does not support `turns`"));
        return;
    }
    assert_eq!(done.outcome.ended, Ended::Completed, "{name}: {:?}", done.outcome);
    assert_eq!(done.reward(), Some(1.0), "{name}: {:?}", done.outcome);
    let bodies = bodies(&world);
    let last = texts(bodies.last().unwrap(), "user");
    for prompt in [&first, &second.instruction] {
        assert!(last.iter().any(|text| text.contains(prompt)), "{name}: {last:?}");
    }
    let totals = &done.outcome.totals;
    assert_eq!(totals.trainable_calls, totals.calls, "{name}: {totals:?}");
    assert_eq!(left_of(&mark), [] as [&str; 0], "{name}");
}

/// The tool that starts a sub-agent, by the name under which it reaches the model, and how it is called.
fn delegation(name: &str) -> Option<(&'static str, Value)> {
    let described = |kind: &str| json!({"description": "Ask", "prompt": SUBTASK, "subagent_type": kind});
    match name {
        "opencode" => Some(("task", described("general"))),
        "claude-code" => Some(("Agent", described("general-purpose"))),
        "codex" => Some(("spawn_agent", json!({"message": SUBTASK}))),
        "gemini-cli" => Some((
            "invoke_agent",
            json!({"agent_name": "generalist", "prompt": SUBTASK}),
        )),
        "qwen-code" => Some(("agent", described("general-purpose"))),
        _ => None,
    }
}

const SUBTASK: &str = "Say which day it is.";

/// Has the agent hand on [`SUBTASK`], and a sub-agent say something to it.
#[derive(Debug)]
struct Delegates(&'static str, Value);

impl Script for Delegates {
    fn next_turn(&self, conversation: &Conversation<'_>) -> Turn {
        if conversation
            .user_texts_from_last()
            .any(|text| text.contains("Delegate."))
        {
            let Some(said) = conversation.last_tool_result() else {
                return Turn::calls(self.0, self.1.clone());
            };
            // Codex says whom it has started, and waits for nobody by itself.
            let started: Value = serde_json::from_str(said).unwrap_or_default();
            return match started["agent_id"].as_str() {
                Some(id) => Turn::calls("wait_agent", json!({"targets": [id]})),
                None => Turn::says("It was handed on."),
            };
        }
        Turn::says("It is Monday.")
    }
}

async fn delegates(agent: &dyn Agent) {
    let name = agent.name();
    let Some((tool, arguments)) = delegation(name) else {
        return;
    };
    let world = World::planned(WorldPlan {
        script: Arc::new(Delegates(tool, arguments)),
        cache_dir: Some(agents_cache_dir()),
        ..WorldPlan::default()
    })
    .await;
    let (mut task, mark) = task(agent, "fizzbuzz");
    task.instruction = "Delegate.".into();
    let done = world.run(task).await;
    assert_eq!(done.outcome.ended, Ended::Completed, "{name}: {:?}", done.outcome);
    assert_eq!(left_of(&mark), [] as [&str; 0], "{name}");
    let kept = world.recorder.kept.lock().unwrap();
    let bodies = bodies(&world);
    for (_, call) in &kept.calls {
        let said = texts(&bodies[call.record.meta.index as usize], "user");
        let has = |wanted: &str| said.iter().any(|text| text.contains(wanted));
        // Qwen Code tells its own conversation by another user's message what came of it.
        let purpose = if has("Delegate.") {
            Purpose::Agent
        } else {
            assert!(has(SUBTASK), "{name}: {said:?}");
            Purpose::Subagent
        };
        assert_eq!(call.record.meta.purpose, purpose, "{name}: {said:?}");
    }
    let of = |purpose| {
        kept.calls
            .iter()
            .filter(|(_, call)| call.record.meta.purpose == purpose)
            .count()
    };
    assert!(of(Purpose::Agent) >= 2, "{name}");
    // Gemini CLI asks a sub-agent that says no more than this to end with a tool.
    assert!(of(Purpose::Subagent) >= 1, "{name}");
}

/// A tool that every agent with several has, and one that it can do without, by the agent's own names.
fn tools_of(name: &str) -> Option<(&'static str, &'static str)> {
    match name {
        "opencode" => Some(("bash", "write")),
        "claude-code" => Some(("Bash", "Write")),
        "gemini-cli" | "qwen-code" => Some(("run_shell_command", "write_file")),
        _ => None,
    }
}

/// An MCP server with one tool, over standard input and output.
const MCP_SERVER: &str = r#"
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked:
        continue
    if asked["method"] == "initialize":
        told = {"protocolVersion": asked["params"]["protocolVersion"], "capabilities": {"tools": {}},
                "serverInfo": {"name": "oracle", "version": "1"}}
    elif asked["method"] == "tools/list":
        told = {"tools": [{"name": "foresee", "description": "Foresees " + sys.argv[1],
                           "inputSchema": {"type": "object", "properties": {"what": {"type": "string"}}}}]}
    else:
        told = {}
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": told}), flush=True)
"#;

async fn honours_wishes(agent: &dyn Agent) {
    let name = agent.name();
    let wants = |wish| agent.honours().contains(&wish);
    let (mut task, _) = task(agent, "fizzbuzz");
    let system_prompt = "Say \"few\" words, {{ says }} the task: {% raw %} \\n é.";
    if wants(Wish::SystemPrompt) {
        task.agent.system_prompt = Some(system_prompt.into());
    }
    let tools = tools_of(name).filter(|_| wants(Wish::DisabledTools));
    if let Some((_, disabled)) = tools {
        task.agent.disabled_tools = Some(vec![disabled.into()]);
    }
    if wants(Wish::McpServers) {
        task.files.insert(
            "oracle.py".into(),
            dressage_wire::task::FileContent::Text(MCP_SERVER.into()),
        );
        task.agent.mcp_servers.insert(
            "oracle".into(),
            McpServer {
                command: Some("python3".into()),
                args: vec!["/home/user/workdir/oracle.py".into(), "rain".into()],
                ..McpServer::default()
            },
        );
    }
    let world_of_all = world(FaultPlan::default()).await;
    let done = world_of_all.run(task.clone()).await;
    assert_eq!(done.reward(), Some(1.0), "{name}: {:?}", done.outcome);
    let bodies_of_all = bodies(&world_of_all);
    let first = bodies_of_all.first().unwrap();
    if wants(Wish::SystemPrompt) {
        let roles = ["system", "developer", "user"].map(|role| texts(first, role).join("\n"));
        assert!(
            roles.iter().any(|text| text.contains(system_prompt)),
            "{name}: {roles:?}"
        );
    }
    if let Some((kept, disabled)) = tools {
        let offered = offered(first);
        assert!(
            offered.contains(&kept) && !offered.contains(&disabled),
            "{name}: {offered:?}"
        );
    }
    if wants(Wish::McpServers) {
        // Some are told of it only after the first call has gone out.
        let told = bodies_of_all
            .iter()
            .any(|body| body.to_string().contains("foresee"));
        assert!(told, "{name}: {:?}", offered(bodies_of_all.last().unwrap()));
    }

    let (Some((enabled, other)), true) = (tools_of(name), wants(Wish::EnabledTools)) else {
        return;
    };
    let (mut task, _) = self::task(agent, "fizzbuzz");
    task.agent.enabled_tools = Some(vec![enabled.into()]);
    let world = world(FaultPlan::default()).await;
    let done = world.run(task).await;
    assert_eq!(done.reward(), Some(1.0), "{name}: {:?}", done.outcome);
    let bodies = bodies(&world);
    let offered = offered(&bodies[0]);
    assert!(
        offered.contains(&enabled) && !offered.contains(&other),
        "{name}: {offered:?}"
    );
}

#[tokio::test]
async fn a_program_of_the_users_own_is_told_where_its_model_is() {
    const PROGRAM: &str = r#"
import json, os, sys, urllib.request
body = {"model": os.environ["MY_MODEL"], "messages": [{"role": "user", "content": sys.stdin.read()}]}
request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", json.dumps(body).encode(),
    {"content-type": "application/json", "authorization": "Bearer " + os.environ["OPENAI_API_KEY"]})
print(json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"])
open("dialect", "w").write(os.environ["KIND"])
"#;
    let world = world(FaultPlan::default()).await;
    let text = r#"
        instruction = "  Say \"something\".\n"
        verify = ["test $(cat dialect) = chat_completions"]
        [agent]
        name = "command"
        [agent.config]
        program = "python3"
        args = ["agent.py"]
        variables = { model = ["MY_MODEL"], dialect = ["KIND"] }
    "#;
    let mut task = Task::from_toml(text).unwrap();
    task.files.insert(
        "agent.py".into(),
        dressage_wire::task::FileContent::Text(PROGRAM.into()),
    );
    let done = world.run(task.clone()).await;
    assert_eq!(done.reward(), Some(1.0), "{:?}", done.outcome);
    assert_eq!(bodies(&world)[0]["messages"][0]["content"], task.instruction);
    let meta = world.recorder.kept.lock().unwrap().calls[0].1.record.meta.clone();
    assert_eq!(
        (meta.purpose, meta.level, meta.dialect),
        (Purpose::Agent, CaptureLevel::Tokens, DialectName::ChatCompletions)
    );

    task.agent.system_prompt = Some("Be brief.".into());
    let refused = world.run(task).await;
    let fault = refused.outcome.fault.as_ref().unwrap();
    assert_eq!(fault.code, "agent_config_invalid", "{fault:?}");
    assert_eq!(
        fault.message,
        "agent `command` does not support `agent.system_prompt`"
    );
    assert!(fault.hint.as_ref().unwrap().contains("opencode"), "{fault:?}");
}

#[test]
fn docs_agents_tells_what_the_registry_knows() {
    let page = include_str!("../../../docs/agents.md");
    let cells = |line: &str| -> Vec<String> {
        let inner = line.trim().trim_matches('|');
        inner.split('|').map(|cell| cell.trim().to_owned()).collect()
    };
    let row = |first: &str| {
        let line = page
            .lines()
            .find(|line| line.starts_with(&format!("| {first} |")));
        cells(line.unwrap_or_else(|| panic!("docs/agents.md has no row of {first}")))
    };
    let heading = row("key");
    for agent in Agents::builtin().iter() {
        let name = format!("`{}`", agent.name());
        let facts = row(&name);
        assert_eq!(facts[1], agent.pinned_version(), "{name}");
        let dialect = match agent.dialect() {
            Some(DialectName::ChatCompletions) => "chat completions",
            Some(DialectName::Responses) => "Responses",
            Some(DialectName::Messages) => "Messages",
            Some(DialectName::GenerateContent) => "generateContent",
            None => "as the task says",
        };
        assert_eq!(facts[2], dialect, "{name}");
        let column = heading.iter().position(|cell| *cell == name).unwrap();
        for wish in Wish::ALL {
            let told = &row(&format!("`{}`", wish.key()))[column];
            let honoured = if agent.honours().contains(&wish) {
                "yes"
            } else {
                "no"
            };
            assert_eq!(told, honoured, "{name}: {}", wish.key());
        }
    }
}
