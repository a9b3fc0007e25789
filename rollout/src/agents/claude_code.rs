//! Claude Code (`claude`), as measured with 2.1.332.
//!
//! It speaks Messages. Key, URL, model and switches come from the environment, more from a file of settings; its prompt
//! comes as JSON on standard input, and it prints one JSON object a line. Without the switches it answers a broken stream
//! by asking again without a stream, tries a request ten times, and looks for updates.

use super::contract::{Agent, AgentError, LaunchPlan, LaunchRequest, Session, Wish};
use super::lines::{self, LineReader};
use super::npm::{NpmPackages, for_this_machine};
use super::tree::{self, Tree};
use dressage_wire::call::DialectName;
use dressage_wire::capture::AgentSigns;
use dressage_wire::task::McpServer;
use secrecy::ExposeSecret as _;
use serde_json::{Map, Value, json};

const NAME: &str = "claude-code";

/// The version that everything here was measured with.
const VERSION: &str = "2.1.332";

/// The longest that its timers take: the tap and the rollout's deadline watch over time.
const NEVER_MS: &str = "2147483647";

const SIGNS: AgentSigns = AgentSigns {
    session_header: Some("x-claude-code-session-id"),
    parent_session_header: None,
    subagent_header: Some("x-claude-code-agent-id"),
    user_agent_starts_with: Some("claude-cli/"),
    own_system_starts_with: &[],
    own_user_starts_with: &[],
    auxiliary: &[],
};

/// Claude Code.
#[derive(Clone, Copy, Debug)]
pub struct ClaudeCode;

impl Agent for ClaudeCode {
    fn name(&self) -> &'static str {
        NAME
    }

    fn pinned_version(&self) -> &str {
        VERSION
    }

    fn tree(&self, version: Option<&str>) -> Result<Tree, AgentError> {
        let version = tree::version(NAME, version, VERSION)?;
        let package = for_this_machine(
            NAME,
            "@anthropic-ai/claude-code-linux-x64",
            "@anthropic-ai/claude-code-linux-arm64",
        )?;
        let source = NpmPackages::program(package, &version, "claude");
        Ok(Tree::new(NAME, version, source))
    }

    fn dialect(&self) -> Option<DialectName> {
        Some(DialectName::Messages)
    }

    fn honours(&self) -> &'static [Wish] {
        &Wish::ALL
    }

    fn disabled_tools(&self) -> &'static [&'static str] {
        &["WebFetch", "WebSearch", "AskUserQuestion"]
    }

    fn launch(&self, request: &LaunchRequest<'_>) -> Result<LaunchPlan, AgentError> {
        let spec = request.spec;
        let mut files = vec![request.file(
            "claude_settings.json",
            Value::Object(spec.config.clone()).to_string(),
        )];
        let mut argv = vec![
            request.program.to_owned(),
            "--print".into(),
            "--verbose".into(),
            "--dangerously-skip-permissions".into(),
        ];
        let mut option = |name: &str, value: String| argv.extend([name.to_owned(), value]);
        option("--input-format", "stream-json".into());
        option("--output-format", "stream-json".into());
        option("--model", request.model.to_owned());
        option("--settings", request.own_path("claude_settings.json"));
        if let Some(prompt) = &spec.system_prompt {
            files.push(request.file("claude_system_prompt.md", prompt.clone()));
            option(
                "--append-system-prompt-file",
                request.own_path("claude_system_prompt.md"),
            );
        }
        if let Some(enabled) = &spec.enabled_tools {
            option("--tools", enabled.join(","));
        }
        if !request.disabled_tools.is_empty() {
            option("--disallowedTools", request.disabled_tools.join(","));
        }
        if !spec.mcp_servers.is_empty() {
            let servers = spec.mcp_servers.iter();
            let servers: Map<_, _> = servers
                .map(|(name, server)| (name.clone(), mcp_server(server)))
                .collect();
            let servers = json!({ "mcpServers": servers }).to_string();
            files.push(request.file("claude_mcp.json", servers));
            option("--mcp-config", request.own_path("claude_mcp.json"));
        }
        match request.session {
            Session::New => {}
            Session::Resumed { id: Some(id) } => option("--resume", id.to_owned()),
            Session::Resumed { id: None } => argv.push("--continue".into()),
        }
        let max_tokens = request.max_tokens.unwrap_or(32_000).to_string();
        let env = [
            ("ANTHROPIC_BASE_URL", request.base_url_without_version()),
            ("ANTHROPIC_API_KEY", request.api_key.expose_secret()),
            ("ANTHROPIC_DEFAULT_HAIKU_MODEL", request.model),
            ("ANTHROPIC_SMALL_FAST_MODEL", request.model),
            ("CLAUDE_CODE_SUBAGENT_MODEL", request.model),
            // Else it refuses to run without questions where the sandbox's user is root.
            ("IS_SANDBOX", "1"),
            ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1"),
            ("DISABLE_AUTOUPDATER", "1"),
            ("DISABLE_UPDATES", "1"),
            ("DISABLE_TELEMETRY", "1"),
            ("DISABLE_ERROR_REPORTING", "1"),
            ("DISABLE_INSTALLATION_CHECKS", "1"),
            ("CLAUDE_CODE_DISABLE_TERMINAL_TITLE", "1"),
            ("CLAUDE_CODE_DISABLE_FEEDBACK_SURVEY", "1"),
            ("CLAUDE_CODE_DISABLE_NONSTREAMING_FALLBACK", "1"),
            ("CLAUDE_CODE_MAX_RETRIES", "2"),
            ("CLAUDE_CODE_MAX_OUTPUT_TOKENS", &max_tokens),
            // A summary would break the sequence; the endpoint knows how long its context is.
            ("DISABLE_COMPACT", "1"),
            ("DISABLE_AUTO_COMPACT", "1"),
            ("API_TIMEOUT_MS", NEVER_MS),
            ("CLAUDE_STREAM_IDLE_TIMEOUT_MS", NEVER_MS),
            ("CLAUDE_STREAM_FIRST_BYTE_TIMEOUT_MS", NEVER_MS),
            ("TERM", "dumb"),
        ];
        Ok(LaunchPlan::new(argv, env, lines::user_message(request.prompt)).with_files(files))
    }

    fn reader(&self) -> LineReader {
        lines::stream_json()
    }

    fn signs(&self) -> AgentSigns {
        SIGNS
    }
}

fn mcp_server(server: &McpServer) -> Value {
    match (&server.command, &server.url) {
        (Some(command), _) => {
            json!({ "type": "stdio", "command": command, "args": server.args, "env": server.env })
        }
        (None, url) => json!({ "type": "http", "url": url, "headers": server.headers }),
    }
}
