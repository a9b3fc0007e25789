//! Codex (`codex exec`), as measured with 0.171.0.
//!
//! It speaks Responses, takes its configuration from a file in its home and its key from a variable that the file names,
//! reads its prompt from standard input, and prints one JSON object a line. Which tools it offers is for it to say: its
//! configuration knows features, not tools.

/// The lines that it prints.
mod lines;

use super::contract::{Agent, AgentError, LaunchPlan, LaunchRequest, Session, Wish};
use super::lines::LineReader;
use super::merge::merge;
use super::npm::{NpmPackages, for_this_machine};
use super::tree::{self, Tree};
use dressage_wire::call::{DialectName, Purpose};
use dressage_wire::capture::{AgentSigns, AuxiliarySign};
use dressage_wire::task::{AgentSpec, McpServer};
use secrecy::ExposeSecret as _;
use serde_json::{Map, Value, json};

const NAME: &str = "codex";

/// The version that everything here was measured with.
const VERSION: &str = "0.171.0";

/// The variable that its key is in. Not one that it knows: it would take it for that of its own service.
const KEY_VARIABLE: &str = "DRESSAGE_MODEL_KEY";

/// Our name for the provider in its configuration; it is not seen on the wire.
const PROVIDER: &str = "dressage";

/// Tokens of a context that is never full: the endpoint knows the real one, and a summary would break the sequence.
const CONTEXT_TOKENS: u64 = 100_000_000;

const SIGNS: AgentSigns = AgentSigns {
    session_header: Some("thread-id"),
    parent_session_header: Some("x-codex-parent-thread-id"),
    subagent_header: None,
    user_agent_starts_with: Some("codex_exec/"),
    own_system_starts_with: &[],
    own_user_starts_with: &[],
    auxiliary: &[AuxiliarySign::header(
        Purpose::Summary,
        "x-openai-subagent",
        "compact",
    )],
};

/// Codex.
#[derive(Clone, Copy, Debug)]
pub struct Codex;

impl Agent for Codex {
    fn name(&self) -> &'static str {
        NAME
    }

    fn pinned_version(&self) -> &str {
        VERSION
    }

    fn tree(&self, version: Option<&str>) -> Result<Tree, AgentError> {
        let version = tree::version(NAME, version, VERSION)?;
        // What npm calls the build, and the folder of its program.
        let (build, program) = for_this_machine(
            NAME,
            ("linux-x64", "vendor/x86_64-unknown-linux-musl/bin/codex"),
            ("linux-arm64", "vendor/aarch64-unknown-linux-musl/bin/codex"),
        )?;
        let source = NpmPackages {
            packages: vec![format!("@openai/codex@{version}-{build}")],
            kept: "node_modules/@openai/codex".into(),
            program,
            script: None,
        };
        Ok(Tree::new(NAME, version, source))
    }

    fn dialect(&self) -> Option<DialectName> {
        Some(DialectName::Responses)
    }

    fn honours(&self) -> &'static [Wish] {
        &[
            Wish::Version,
            Wish::SystemPrompt,
            Wish::Config,
            Wish::McpServers,
            Wish::Turns,
        ]
    }

    fn check(&self, spec: &AgentSpec) -> Result<(), AgentError> {
        file(spec.config.clone()).map(|_| ())
    }

    fn launch(&self, request: &LaunchRequest<'_>) -> Result<LaunchPlan, AgentError> {
        let mut argv = vec![
            request.program,
            "exec",
            "--json",
            "--skip-git-repo-check",
            "--dangerously-bypass-approvals-and-sandbox",
        ];
        match request.session {
            Session::New => {}
            Session::Resumed { id: Some(id) } => argv.extend(["resume", id]),
            Session::Resumed { id: None } => argv.extend(["resume", "--last"]),
        }
        argv.push("-");
        let mut config = request.file("codex.toml", file(config(request))?);
        config.path = format!("{}/.codex/config.toml", request.home);
        let env = [(KEY_VARIABLE, request.api_key.expose_secret()), ("TERM", "dumb")];
        Ok(LaunchPlan::new(argv, env, request.prompt.to_owned()).with_files(vec![config]))
    }

    fn reader(&self) -> LineReader {
        lines::reader()
    }

    fn signs(&self) -> AgentSigns {
        SIGNS
    }
}

/// Its configuration, the task's own merged deep into it.
fn config(request: &LaunchRequest<'_>) -> Map<String, Value> {
    let mut config = json!({
        "model": request.model,
        "model_provider": PROVIDER,
        "model_context_window": CONTEXT_TOKENS,
        "check_for_update_on_startup": false,
        "web_search": "disabled",
        "analytics": { "enabled": false },
        "features": { "plugins": false },
        "model_providers": {
            PROVIDER: {
                "name": "Dressage",
                "base_url": request.base_url,
                "env_key": KEY_VARIABLE,
                "wire_api": "responses",
                "request_max_retries": 2,
                "stream_max_retries": 2,
                // The tap and the rollout's deadline watch over time.
                "stream_idle_timeout_ms": i32::MAX,
            },
        },
    });
    if let Some(prompt) = &request.spec.system_prompt {
        merge(&mut config, json!({ "developer_instructions": prompt }));
    }
    let servers: Map<_, _> = request
        .spec
        .mcp_servers
        .iter()
        .map(|(name, server)| (name.clone(), mcp_server(server)))
        .collect();
    if !servers.is_empty() {
        merge(&mut config, json!({ "mcp_servers": servers }));
    }
    merge(&mut config, Value::Object(request.spec.config.clone()));
    match config {
        Value::Object(config) => config,
        _ => Map::new(),
    }
}

/// A configuration as the text of its file.
fn file(config: Map<String, Value>) -> Result<String, AgentError> {
    toml::to_string(&config).map_err(|error| AgentError::Config {
        name: NAME,
        reason: format!("`agent.config` cannot be written as TOML: {error}"),
    })
}

fn mcp_server(server: &McpServer) -> Value {
    match (&server.command, &server.url) {
        (Some(command), _) => json!({ "command": command, "args": server.args, "env": server.env }),
        (None, url) => json!({ "url": url, "http_headers": server.headers }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use secrecy::SecretString;

    #[test]
    fn its_configuration_is_a_file_without_a_key_and_holds_the_tasks_own() {
        let Value::Object(config) =
            json!({ "features": { "goals": false }, "model_reasoning_effort": "high" })
        else {
            panic!()
        };
        let spec = AgentSpec {
            name: NAME.into(),
            config,
            system_prompt: Some("Say \"few\" words.".into()),
            ..AgentSpec::default()
        };
        let key = SecretString::from("sk-token");
        let request = LaunchRequest {
            spec: &spec,
            prompt: "Do it.\n",
            session: Session::Resumed { id: Some("t1") },
            disabled_tools: &[],
            home: "/home/user",
            working_directory: "/home/user/workdir",
            directory: "/opt",
            program: "/opt/codex",
            base_url: "http://127.0.0.1:7000/v1",
            api_key: &key,
            model: "org/model",
            max_tokens: None,
        };
        let plan = Codex.launch(&request).unwrap();
        assert_eq!(plan.argv[5..], ["resume", "t1", "-"]);
        assert_eq!(plan.stdin, "Do it.\n");
        assert_eq!(plan.files[0].path, "/home/user/.codex/config.toml");
        let text = std::str::from_utf8(&plan.files[0].content).unwrap();
        assert!(!text.contains("sk-token"), "{text}");
        let read: toml::Table = text.parse().unwrap();
        assert_eq!(read["model"].as_str(), Some("org/model"));
        assert_eq!(
            read["developer_instructions"].as_str(),
            Some("Say \"few\" words.")
        );
        assert_eq!(read["model_reasoning_effort"].as_str(), Some("high"));
        let features = read["features"].as_table().unwrap();
        assert_eq!(features["goals"].as_bool(), Some(false));
        assert_eq!(features["plugins"].as_bool(), Some(false));
        let provider = read["model_providers"]["dressage"].as_table().unwrap();
        assert_eq!(provider["base_url"].as_str(), Some("http://127.0.0.1:7000/v1"));
    }

    #[test]
    fn a_configuration_that_toml_cannot_say_is_an_error() {
        let Value::Object(config) = json!({ "a": null }) else {
            panic!()
        };
        let spec = AgentSpec {
            config,
            ..AgentSpec::default()
        };
        let error = Codex.check(&spec).unwrap_err().to_string();
        assert!(error.contains("cannot be written as TOML"), "{error}");
    }
}
