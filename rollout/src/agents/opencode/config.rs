use super::super::contract::{AgentError, LaunchRequest, PlannedFile};
use super::super::merge::merge;
use super::{KEY_VARIABLE, NAME};
use dressage_wire::task::McpServer;
use serde_json::{Map, Value, json};

/// Our name for the provider in the agent's configuration; it is not seen on the wire.
const PROVIDER: &str = "dressage";

/// Tools that OpenCode knows only by one permission, `edit`, for them all. [`hider`] tells them apart.
const EDIT_TOOLS: [&str; 3] = ["edit", "write", "apply_patch"];

/// Before it loads any plugin, OpenCode waits until npm has installed its plugin library into the configuration
/// folder: half a minute, and for nothing without a network. These files say that it is there; ours does not use it.
const INSTALLED: [(&str, &str); 2] = [
    (".config/opencode/node_modules/.keep", ""),
    (
        ".config/opencode/package-lock.json",
        r#"{"packages":{"":{"dependencies":{"@opencode-ai/plugin":"*"}}}}"#,
    ),
];

/// What Linux takes as one environment variable, with its name.
const VARIABLE_MAX_BYTES: usize = 128 * 1024 - 64;

/// The agent's whole configuration, the task's own merged deep into it.
pub(super) fn build(request: &LaunchRequest<'_>) -> Result<Value, AgentError> {
    let tools = Tools::wanted(request);
    let mut config = json!({
        "model": format!("{PROVIDER}/{}", request.model),
        "autoupdate": false,
        "share": "disabled",
        "snapshot": false,
        "agent": { "title": { "disable": true } },
        "compaction": { "auto": false },
        "permission": tools.permission,
        "provider": {
            PROVIDER: {
                "npm": "@ai-sdk/openai-compatible",
                "name": "Dressage",
                "options": {
                    "baseURL": request.base_url,
                    "apiKey": format!("{{env:{KEY_VARIABLE}}}"),
                    // The tap and the rollout's deadline watch over time.
                    "headerTimeout": false,
                    "chunkTimeout": false,
                },
                "models": {
                    request.model: {
                        "name": request.model,
                        // Context 0: unknown, and no compaction by it.
                        "limit": { "context": 0, "output": request.max_tokens.unwrap_or(32_000) },
                    },
                },
            },
        },
    });
    if request.spec.system_prompt.is_some() {
        merge(
            &mut config,
            json!({ "instructions": [system_prompt_path(request.home)] }),
        );
    }
    if !request.spec.mcp_servers.is_empty() {
        let servers = request.spec.mcp_servers.iter();
        let servers: Map<_, _> = servers
            .map(|(name, server)| (name.clone(), mcp_server(server)))
            .collect();
        merge(&mut config, json!({ "mcp": servers }));
    }
    if !tools.hidden.is_empty() {
        merge(
            &mut config,
            json!({ "plugin": [format!("file://{}", hider_path(request.home))] }),
        );
    }
    merge(&mut config, Value::Object(request.spec.config.clone()));
    let bytes = config.to_string().len();
    if bytes > VARIABLE_MAX_BYTES {
        let reason = format!("its configuration has {bytes} bytes, over the limit of {VARIABLE_MAX_BYTES}");
        return Err(AgentError::Config { name: NAME, reason });
    }
    Ok(config)
}

fn mcp_server(server: &McpServer) -> Value {
    match (&server.command, &server.url) {
        (Some(command), _) => {
            let command: Vec<&String> = std::iter::once(command).chain(&server.args).collect();
            json!({ "type": "local", "command": command, "environment": server.env, "enabled": true })
        }
        (None, url) => json!({ "type": "remote", "url": url, "headers": server.headers, "enabled": true }),
    }
}

/// The files that the configuration refers to.
pub(super) fn files(request: &LaunchRequest<'_>) -> Vec<PlannedFile> {
    let file = |path: String, content: String| PlannedFile {
        path,
        content: content.into(),
        mode: 0o644,
    };
    let mut files = Vec::new();
    if let Some(prompt) = &request.spec.system_prompt {
        files.push(file(system_prompt_path(request.home), prompt.clone()));
    }
    let hidden = Tools::wanted(request).hidden;
    if !hidden.is_empty() {
        files.push(file(hider_path(request.home), hider(&hidden)));
        files.extend(
            INSTALLED.map(|(path, content)| file(format!("{}/{path}", request.home), content.into())),
        );
    }
    files
}

fn system_prompt_path(home: &str) -> String {
    format!("{home}/.config/dressage/system_prompt.md")
}

fn hider_path(home: &str) -> String {
    format!("{home}/.config/dressage/tools.js")
}

/// Which tools are offered.
struct Tools {
    /// OpenCode's permissions, in their order: the last that matches counts.
    permission: Map<String, Value>,
    /// Tools that are hidden by name, since no permission is theirs alone.
    hidden: Vec<&'static str>,
}

impl Tools {
    fn wanted(request: &LaunchRequest<'_>) -> Self {
        let spec = request.spec;
        let mut permission = Map::new();
        let mut set = |name: &str, action: &str| {
            permission.shift_remove(name);
            permission.insert(name.to_owned(), action.into());
        };
        let listed = |tools: &[String], name: &str| tools.iter().any(|tool| tool == name);
        let (hide_listed, tools) = match &spec.enabled_tools {
            Some(enabled) => {
                set("*", "deny");
                // No tools, but questions that OpenCode asks before it uses one.
                set("external_directory", "allow");
                set("doom_loop", "allow");
                (false, enabled.as_slice())
            }
            None => {
                set("*", "allow");
                (true, request.disabled_tools)
            }
        };
        for tool in tools {
            match (hide_listed, EDIT_TOOLS.contains(&tool.as_str())) {
                (true, true) => {}
                (true, false) => set(tool, "deny"),
                (false, true) => set("edit", "allow"),
                (false, false) => set(tool, "allow"),
            }
        }
        let none_of_them = !hide_listed && !EDIT_TOOLS.iter().any(|name| listed(tools, name));
        let hidden = EDIT_TOOLS
            .into_iter()
            .filter(|name| !none_of_them && listed(tools, name) == hide_listed)
            .collect();
        Self { permission, hidden }
    }
}

/// A plugin that takes tools out of what the model is offered, and refuses them where it calls them all the same.
fn hider(hidden: &[&str]) -> String {
    let names = json!(hidden);
    format!(
        "const hidden = {names};\n\
         export const DressageTools = async () => ({{\n\
         \x20 \"chat.message\": async (_input, output) => {{\n\
         \x20   const off = Object.fromEntries(hidden.map((name) => [name, false]));\n\
         \x20   output.message.tools = {{ ...output.message.tools, ...off }};\n\
         \x20 }},\n\
         \x20 \"tool.execute.before\": async (input) => {{\n\
         \x20   if (hidden.includes(input.tool)) throw new Error(`tool ${{input.tool}} is not enabled for this task`);\n\
         \x20 }},\n\
         }});\n"
    )
}

#[cfg(test)]
mod tests {
    use super::super::super::contract::{Agent as _, Session};
    use super::super::OpenCode;
    use super::*;
    use dressage_wire::task::AgentSpec;
    use secrecy::SecretString;

    fn built(spec: &AgentSpec) -> (Result<Value, AgentError>, Vec<PlannedFile>) {
        let key = SecretString::from("sk-secret");
        let by_default = OpenCode.disabled_tools().iter().map(|&tool| tool.to_owned());
        let disabled = match (&spec.enabled_tools, &spec.disabled_tools) {
            (Some(_), _) => Vec::new(),
            (None, Some(tools)) => tools.clone(),
            (None, None) => by_default.collect(),
        };
        let request = LaunchRequest {
            spec,
            prompt: "Do it.",
            session: Session::New,
            disabled_tools: &disabled,
            home: "/home/user",
            working_directory: "/home/user/workdir",
            directory: "/opt",
            program: "/opt/opencode",
            base_url: "http://127.0.0.1:7000/v1",
            api_key: &key,
            model: "org/model",
            max_tokens: Some(4096),
        };
        (build(&request), files(&request))
    }

    fn names(value: &Value) -> Vec<(&str, &str)> {
        let table = value.as_object().unwrap();
        table
            .iter()
            .map(|(name, action)| (name.as_str(), action.as_str().unwrap()))
            .collect()
    }

    #[test]
    fn the_default_configuration_is_quiet_and_holds_no_key() {
        let (config, files) = built(&AgentSpec::default());
        let config = config.unwrap();
        assert_eq!(config["model"], "dressage/org/model");
        assert_eq!(
            config["provider"]["dressage"]["options"]["apiKey"],
            "{env:DRESSAGE_MODEL_KEY}"
        );
        assert_eq!(
            config["provider"]["dressage"]["models"]["org/model"]["limit"]["output"],
            4096
        );
        assert_eq!(
            names(&config["permission"]),
            [("*", "allow"), ("webfetch", "deny"), ("question", "deny")]
        );
        assert!(!config.to_string().contains("sk-secret"));
        assert_eq!(files, []);
    }

    #[test]
    fn a_whitelist_hides_the_tools_that_share_a_permission_with_a_listed_one() {
        let spec = |tools: &[&str]| AgentSpec {
            enabled_tools: Some(tools.iter().map(|&tool| tool.into()).collect()),
            ..AgentSpec::default()
        };
        let asked = [
            ("*", "deny"),
            ("external_directory", "allow"),
            ("doom_loop", "allow"),
        ];
        let (config, files) = built(&spec(&["bash", "write"]));
        let config = config.unwrap();
        assert_eq!(names(&config["permission"])[..3], asked);
        assert_eq!(
            names(&config["permission"])[3..],
            [("bash", "allow"), ("edit", "allow")]
        );
        assert_eq!(config["plugin"][0], "file:///home/user/.config/dressage/tools.js");
        assert!(
            files[0]
                .content
                .starts_with(br#"const hidden = ["edit","apply_patch"];"#)
        );
        let (config, files) = built(&spec(&["bash"]));
        assert_eq!(names(&config.unwrap()["permission"])[3..], [("bash", "allow")]);
        assert_eq!(files, []);
        let (config, _) = built(&spec(&[]));
        assert_eq!(names(&config.unwrap()["permission"]), asked);
    }

    #[test]
    fn one_tool_that_shares_a_permission_is_disabled_alone() {
        let spec = AgentSpec {
            disabled_tools: Some(vec!["write".into(), "task".into()]),
            ..AgentSpec::default()
        };
        let (config, files) = built(&spec);
        assert_eq!(
            names(&config.unwrap()["permission"]),
            [("*", "allow"), ("task", "deny")]
        );
        assert!(files[0].content.starts_with(br#"const hidden = ["write"];"#));
    }

    #[test]
    fn the_tasks_configuration_is_merged_deep_and_a_system_prompt_is_a_file() {
        let config = json!({
            "compaction": { "auto": true, "reserved": 7 },
            "agent": { "build": { "temperature": 0.5 } },
            "instructions": ["more.md"],
        });
        let Value::Object(config) = config else { panic!() };
        let spec = AgentSpec {
            config,
            system_prompt: Some("Be brief.".into()),
            ..AgentSpec::default()
        };
        let (config, files) = built(&spec);
        let config = config.unwrap();
        assert_eq!(config["compaction"], json!({ "auto": true, "reserved": 7 }));
        assert_eq!(
            config["agent"],
            json!({ "title": { "disable": true }, "build": { "temperature": 0.5 } })
        );
        assert_eq!(
            config["instructions"],
            json!(["/home/user/.config/dressage/system_prompt.md", "more.md"])
        );
        assert_eq!(files[0].content, "Be brief.");
    }

    #[test]
    fn mcp_servers_are_told_as_opencode_has_them() {
        let started = McpServer {
            command: Some("server".into()),
            args: vec!["-v".into()],
            env: [("A".to_owned(), "1".to_owned())].into(),
            ..McpServer::default()
        };
        let listening = McpServer {
            url: Some("http://127.0.0.1:1/mcp".into()),
            ..McpServer::default()
        };
        let (config, _) = built(&AgentSpec {
            mcp_servers: [("a".to_owned(), started), ("b".to_owned(), listening)].into(),
            ..AgentSpec::default()
        });
        let mcp = &config.unwrap()["mcp"];
        assert_eq!(
            mcp["a"],
            json!({ "type": "local", "command": ["server", "-v"], "environment": { "A": "1" }, "enabled": true })
        );
        assert_eq!(
            mcp["b"],
            json!({ "type": "remote", "url": "http://127.0.0.1:1/mcp", "headers": {}, "enabled": true })
        );
    }

    #[test]
    fn a_configuration_that_no_variable_holds_is_an_error() {
        let config = Map::from_iter([("x".to_owned(), Value::String("y".repeat(200_000)))]);
        let (result, _) = built(&AgentSpec {
            config,
            ..AgentSpec::default()
        });
        assert!(matches!(result, Err(AgentError::Config { .. })), "{result:?}");
    }
}
