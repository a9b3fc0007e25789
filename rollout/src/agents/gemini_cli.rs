//! Gemini CLI (`gemini`), as measured with 0.61.0.
//!
//! It speaks generateContent and runs with a Node.js of its own. Settings come from a file in its home, key and URL from
//! the environment, its prompt from standard input; it prints one JSON object a line. A comment in a stream breaks it.
//! The system prompt of a task is its `GEMINI.md`, which it puts behind its own system prompt; there `@path` would be read
//! as a file to include.

/// The lines that it prints.
mod lines;

use super::contract::{Agent, AgentError, LaunchPlan, LaunchRequest, Session, Wish};
use super::lines::LineReader;
use super::merge::merge;
use super::npm::NpmPackages;
use super::tree::{self, Tree};
use dressage_wire::call::{DialectName, Purpose};
use dressage_wire::capture::{AgentSigns, AuxiliarySign};
use dressage_wire::task::{AgentSpec, McpServer};
use secrecy::ExposeSecret as _;
use serde_json::{Map, Value, json};

const NAME: &str = "gemini-cli";

/// The version that everything here was measured with.
const VERSION: &str = "0.61.0";

const PACKAGE: &str = "@google/gemini-cli";

/// What Node.js runs, relative to the tree.
const SCRIPT: &str = "@google/gemini-cli/bundle/gemini.js";

const SIGNS: AgentSigns = AgentSigns {
    session_header: None,
    parent_session_header: None,
    subagent_header: None,
    user_agent_starts_with: Some("GeminiCLI"),
    own_system_starts_with: &[
        "You are Gemini CLI",
        "You are an interactive CLI agent",
        "You are a non-interactive CLI agent",
    ],
    // Its sub-agent `generalist` has the same system prompt, and is told what to do in its first message.
    own_user_starts_with: &["<session_context>"],
    auxiliary: &[
        AuxiliarySign::system(Purpose::Summary, "You are a specialized system component"),
        AuxiliarySign::system(Purpose::Summary, "You are an expert context compressor"),
    ],
};

/// It waits a minute for an answer to begin. What changes that is no setting but an experiment, which it reads from a
/// file where a variable names one; by number, and in seconds.
const REQUEST_TIMEOUT: (u64, u64) = (45_773_134, 2_147_483);

/// Gemini CLI.
#[derive(Clone, Copy, Debug)]
pub struct GeminiCli;

impl Agent for GeminiCli {
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
        Some(DialectName::GenerateContent)
    }

    fn honours(&self) -> &'static [Wish] {
        &Wish::ALL
    }

    fn disabled_tools(&self) -> &'static [&'static str] {
        &["web_fetch", "google_web_search", "ask_user"]
    }

    fn check(&self, spec: &AgentSpec) -> Result<(), AgentError> {
        if spec.enabled_tools.as_ref().is_some_and(Vec::is_empty) {
            return Err(AgentError::Config {
                name: NAME,
                reason: "`agent.enabled_tools` is empty, which it takes for all tools".into(),
            });
        }
        Ok(())
    }

    fn launch(&self, request: &LaunchRequest<'_>) -> Result<LaunchPlan, AgentError> {
        let script = format!("{}/{SCRIPT}", request.directory);
        let mut argv = vec![request.program, &script, "--yolo"];
        argv.extend(["--output-format", "stream-json", "--model", request.model]);
        match request.session {
            Session::New => {}
            Session::Resumed { id } => argv.extend(["--resume", id.unwrap_or("latest")]),
        }
        let own = |name: &str| format!("{}/.gemini/{name}", request.home);
        let (flag, seconds) = REQUEST_TIMEOUT;
        let flag = json!({ "flagId": flag, "intValue": seconds.to_string() });
        let experiments = json!({ "flags": [flag], "experimentIds": [] });
        let experiments = request.file("gemini_experiments.json", experiments.to_string());
        let mut files = vec![request.file("gemini.json", settings(request).to_string())];
        if let Some(prompt) = &request.spec.system_prompt {
            files.push(request.file("GEMINI.md", prompt.clone()));
        }
        for (file, name) in files.iter_mut().zip(["settings.json", "GEMINI.md"]) {
            file.path = own(name);
        }
        let env = [
            ("GEMINI_API_KEY", request.api_key.expose_secret()),
            ("GOOGLE_GEMINI_BASE_URL", request.base_url_without_version()),
            ("GEMINI_CLI_TRUST_WORKSPACE", "true"),
            // Else it starts itself a second time, with more memory than the sandbox may have.
            ("GEMINI_CLI_NO_RELAUNCH", "true"),
            ("GEMINI_EXP", &experiments.path),
            ("TERM", "dumb"),
        ];
        let plan = LaunchPlan::new(argv, env, request.prompt.to_owned());
        files.push(experiments);
        Ok(plan.with_files(files))
    }

    fn reader(&self) -> LineReader {
        lines::reader()
    }

    fn signs(&self) -> AgentSigns {
        SIGNS
    }

    fn bears_comments(&self) -> bool {
        false
    }
}

/// Its settings, the task's own merged deep into them.
fn settings(request: &LaunchRequest<'_>) -> Value {
    let mut settings = json!({
        "security": { "auth": { "selectedType": "gemini-api-key" }, "folderTrust": { "enabled": false } },
        "privacy": { "usageStatisticsEnabled": false },
        "telemetry": { "enabled": false },
        "general": {
            "enableAutoUpdate": false,
            "enableAutoUpdateNotification": false,
            "maxAttempts": 3,
            "retryFetchErrors": false,
        },
        "ide": { "enabled": false },
        // A summary would break the sequence; the endpoint knows how long its context is.
        "model": { "name": request.model, "compressionThreshold": 1.0 },
        "tools": { "exclude": request.disabled_tools },
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
