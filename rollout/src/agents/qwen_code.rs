//! Qwen Code (`qwen`), as measured with 0.24.4.
//!
//! It runs with a Node.js of its own, takes its settings from a file in its home and its key and model from the
//! environment, reads its prompt from standard input, as JSON (it adds line breaks to plain text), and prints one JSON object a
//! line. Its main conversation, its
//! sub-agents and its helpers differ by their system prompt alone. It tries a request that failed with a 5xx status seven
//! times, which nothing switches off.

use super::contract::{Agent, AgentError, LaunchPlan, LaunchRequest, Session, Wish};
use super::lines::{self, LineReader};
use super::merge::merge;
use super::npm::NpmPackages;
use super::tree::{self, Tree};
use dressage_wire::call::{DialectName, Purpose};
use dressage_wire::capture::{AgentSigns, AuxiliarySign};
use dressage_wire::task::{AgentSpec, McpServer};
use secrecy::ExposeSecret as _;
use serde_json::{Map, Value, json};

const NAME: &str = "qwen-code";

/// The version that everything here was measured with.
const VERSION: &str = "0.24.4";

const PACKAGE: &str = "@qwen-code/qwen-code";

/// What Node.js runs, relative to the tree.
const SCRIPT: &str = "@qwen-code/qwen-code/cli.js";

/// Tokens of a context that is never full: the endpoint knows the real one, and a summary would break the sequence.
const CONTEXT_TOKENS: u64 = 100_000_000;

/// What Linux takes as one argument.
const ARGUMENT_MAX_BYTES: usize = 128 * 1024 - 1;

const SIGNS: AgentSigns = AgentSigns {
    session_header: None,
    parent_session_header: None,
    subagent_header: None,
    user_agent_starts_with: Some("QwenCode/"),
    own_system_starts_with: &["You are Qwen Code"],
    own_user_starts_with: &[],
    auxiliary: &[
        AuxiliarySign::system(Purpose::Title, "Generate a concise"),
        AuxiliarySign::system(Purpose::Summary, "You are the component that summarizes"),
    ],
};

/// Qwen Code.
#[derive(Clone, Copy, Debug)]
pub struct QwenCode;

impl Agent for QwenCode {
    fn name(&self) -> &'static str {
        NAME
    }

    fn pinned_version(&self) -> &str {
        VERSION
    }

    fn tree(&self, version: Option<&str>) -> Result<Tree, AgentError> {
        let version = tree::version(NAME, version, VERSION)?;
        let source = NpmPackages::scripts(NAME, PACKAGE, &version, SCRIPT)?;
        Ok(Tree::new(NAME, version, source))
    }

    fn dialect(&self) -> Option<DialectName> {
        Some(DialectName::ChatCompletions)
    }

    fn honours(&self) -> &'static [Wish] {
        &Wish::ALL
    }

    fn disabled_tools(&self) -> &'static [&'static str] {
        &["web_fetch", "ask_user_question"]
    }

    fn check(&self, spec: &AgentSpec) -> Result<(), AgentError> {
        let refuse = |reason: &str| {
            Err(AgentError::Config {
                name: NAME,
                reason: reason.into(),
            })
        };
        if spec.enabled_tools.as_ref().is_some_and(Vec::is_empty) {
            return refuse("`agent.enabled_tools` is empty, which it takes for all tools");
        }
        if spec
            .system_prompt
            .as_ref()
            .is_some_and(|prompt| prompt.len() > ARGUMENT_MAX_BYTES)
        {
            return refuse(
                "`agent.system_prompt` is longer than 131071 bytes, which is all that an argument can have",
            );
        }
        Ok(())
    }

    fn launch(&self, request: &LaunchRequest<'_>) -> Result<LaunchPlan, AgentError> {
        let script = format!("{}/{SCRIPT}", request.directory);
        let mut argv = vec![request.program, &script, "--yolo"];
        argv.extend(["--input-format", "stream-json", "--output-format", "stream-json"]);
        if let Some(prompt) = &request.spec.system_prompt {
            argv.extend(["--append-system-prompt", prompt]);
        }
        match request.session {
            Session::New => {}
            Session::Resumed { id: Some(id) } => argv.extend(["--resume", id]),
            Session::Resumed { id: None } => argv.push("--continue"),
        }
        let max_tokens = request.max_tokens.unwrap_or(32_000).to_string();
        let env = [
            ("OPENAI_API_KEY", request.api_key.expose_secret()),
            ("OPENAI_BASE_URL", request.base_url),
            ("OPENAI_MODEL", request.model),
            // Said, since it otherwise asks again with more tokens where a turn is cut.
            ("QWEN_CODE_MAX_OUTPUT_TOKENS", &max_tokens),
            ("QWEN_CODE_SUPPRESS_YOLO_WARNING", "1"),
            ("QWEN_DISABLE_AUTO_TITLE", "1"),
            ("TERM", "dumb"),
        ];
        let mut settings = request.file("qwen.json", settings(request).to_string());
        settings.path = format!("{}/.qwen/settings.json", request.home);
        Ok(LaunchPlan::new(argv, env, lines::user_message(request.prompt)).with_files(vec![settings]))
    }

    fn reader(&self) -> LineReader {
        lines::stream_json()
    }

    fn signs(&self) -> AgentSigns {
        SIGNS
    }
}

/// Its settings, the task's own merged deep into them.
fn settings(request: &LaunchRequest<'_>) -> Value {
    let mut settings = json!({
        "security": { "auth": { "selectedType": "openai" } },
        "privacy": { "usageStatisticsEnabled": false },
        "telemetry": { "enabled": false },
        "general": { "enableAutoUpdate": false },
        // Helpers that write down what they think the user would want remembered.
        "memory": { "enableManagedAutoMemory": false, "enableManagedAutoDream": false, "enableAutoSkill": false },
        "model": {
            "name": request.model,
            "generationConfig": {
                "maxRetries": 0,
                // The tap and the rollout's deadline watch over time.
                "timeout": i32::MAX,
                "streamIdleTimeoutMs": 0,
                "contextWindowSize": CONTEXT_TOKENS,
            },
        },
        "tools": { "disabled": request.disabled_tools },
    });
    if let Some(enabled) = &request.spec.enabled_tools {
        merge(&mut settings, json!({ "tools": { "core": enabled } }));
    }
    let servers: Map<_, _> = request
        .spec
        .mcp_servers
        .iter()
        .map(|(name, server)| (name.clone(), mcp_server(server)))
        .collect();
    if !servers.is_empty() {
        merge(&mut settings, json!({ "mcpServers": servers }));
    }
    merge(&mut settings, Value::Object(request.spec.config.clone()));
    settings
}

fn mcp_server(server: &McpServer) -> Value {
    match (&server.command, &server.url) {
        (Some(command), _) => {
            json!({ "command": command, "args": server.args, "env": server.env, "trust": true })
        }
        (None, url) => json!({ "httpUrl": url, "headers": server.headers, "trust": true }),
    }
}
