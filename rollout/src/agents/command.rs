//! Any program: an agent of the user's own, or one that Dressage does not know.
//!
//! It is in the sandbox already (put there by the task's `files` or `setup`, or of the system). Its model is told in
//! environment variables, those that the usual SDKs read and whatever else it wants; its prompt comes by standard input.
//! Each line that it prints is something it said, and every call is its own: it has no signs.
//!
//! ```toml
//! [agent]
//! name = "command"
//!
//! [agent.config]
//! program = "python3"
//! args = ["agent.py"]
//! dialect = "messages"
//! variables = { base_url = ["MY_URL"], api_key = ["MY_KEY"], model = ["MY_MODEL"], dialect = ["MY_DIALECT"] }
//! ```

use super::contract::{
    Agent, AgentError, InstallProgress, InstallRequest, Installed, LaunchPlan, LaunchRequest, Wish,
};
use super::lines::LineReader;
use async_trait::async_trait;
use dressage_wire::call::DialectName;
use dressage_wire::capture::AgentSigns;
use dressage_wire::event::AgentEvent;
use dressage_wire::task::AgentSpec;
use secrecy::ExposeSecret as _;
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;

const NAME: &str = "command";

/// Its version, which says how it is configured.
const VERSION: &str = "1";

/// Variables with the base URL, `/v1` included.
const BASE_URL: [&str; 2] = ["OPENAI_BASE_URL", "OPENAI_API_BASE"];

/// Variables with the base URL, without `/v1`: these SDKs write it themselves.
const BASE_URL_WITHOUT_VERSION: [&str; 2] = ["ANTHROPIC_BASE_URL", "GOOGLE_GEMINI_BASE_URL"];

/// Variables with the key.
const API_KEY: [&str; 3] = ["OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY"];

/// Variables with the model's name.
const MODEL: [&str; 3] = ["OPENAI_MODEL", "ANTHROPIC_MODEL", "GEMINI_MODEL"];

/// Any program.
#[derive(Clone, Copy, Debug)]
pub struct Command;

/// `agent.config`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    /// The program: a path in the sandbox, or a name that its PATH finds.
    program: String,
    #[serde(default)]
    args: Vec<String>,
    /// What it speaks.
    #[serde(default = "chat_completions")]
    dialect: DialectName,
    #[serde(default)]
    variables: Variables,
}

/// More variables of the program's own.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Variables {
    /// With the base URL, as the SDKs of the dialect have it: `/v1` included for chat completions and responses.
    base_url: Vec<String>,
    api_key: Vec<String>,
    model: Vec<String>,
    dialect: Vec<String>,
}

fn chat_completions() -> DialectName {
    DialectName::ChatCompletions
}

impl Config {
    fn read(spec: &AgentSpec) -> Result<Self, AgentError> {
        let invalid = |reason: String| AgentError::Config { name: NAME, reason };
        let config: Self = serde_json::from_value(Value::Object(spec.config.clone()))
            .map_err(|error| invalid(format!("`agent.config` is not as expected: {error}")))?;
        if config.program.is_empty() {
            return Err(invalid("`agent.config.program` is empty".into()));
        }
        if config
            .args
            .iter()
            .chain([&config.program])
            .any(|text| text.contains('\0'))
        {
            return Err(invalid(
                "`agent.config` has a NUL character, which no argument can have".into(),
            ));
        }
        let variables = &config.variables;
        let names = [
            &variables.base_url,
            &variables.api_key,
            &variables.model,
            &variables.dialect,
        ];
        let bad = |name: &&String| name.is_empty() || name.contains(['=', '\0']);
        if let Some(name) = names.into_iter().flatten().find(bad) {
            let name = name.escape_debug();
            return Err(invalid(format!(
                "`{name}` is not a name of an environment variable"
            )));
        }
        Ok(config)
    }
}

#[async_trait]
impl Agent for Command {
    fn name(&self) -> &'static str {
        NAME
    }

    fn pinned_version(&self) -> &str {
        VERSION
    }

    fn installed(&self, _cache_dir: &Path, _version: Option<&str>) -> Result<Installed, AgentError> {
        Ok(Installed {
            version: VERSION.into(),
            directory: None,
            program: String::new(),
        })
    }

    async fn install(
        &self,
        request: &InstallRequest,
        progress: &(dyn Fn(InstallProgress) + Send + Sync),
    ) -> Result<Installed, AgentError> {
        progress(InstallProgress::AlreadyInstalled {
            version: VERSION.into(),
        });
        self.installed(&request.cache_dir, None)
    }

    fn dialect(&self) -> Option<DialectName> {
        None
    }

    fn honours(&self) -> &'static [Wish] {
        &[Wish::Config]
    }

    fn check(&self, spec: &AgentSpec) -> Result<(), AgentError> {
        Config::read(spec).map(|_| ())
    }

    fn launch(&self, request: &LaunchRequest<'_>) -> Result<LaunchPlan, AgentError> {
        let config = Config::read(request.spec)?;
        let without_version = request.base_url_without_version();
        let mut env = BTreeMap::new();
        let mut set = |names: &mut dyn Iterator<Item = &str>, value: &str| {
            env.extend(names.map(|name| (name.to_owned(), value.to_owned())));
        };
        set(&mut BASE_URL.into_iter(), request.base_url);
        set(&mut BASE_URL_WITHOUT_VERSION.into_iter(), without_version);
        set(&mut API_KEY.into_iter(), request.api_key.expose_secret());
        set(&mut MODEL.into_iter(), request.model);
        let base_url = match config.dialect {
            DialectName::ChatCompletions | DialectName::Responses => request.base_url,
            DialectName::Messages | DialectName::GenerateContent => without_version,
        };
        let dialect = serde_json::to_value(config.dialect).unwrap_or_default();
        let own = &config.variables;
        set(&mut own.base_url.iter().map(String::as_str), base_url);
        set(
            &mut own.api_key.iter().map(String::as_str),
            request.api_key.expose_secret(),
        );
        set(&mut own.model.iter().map(String::as_str), request.model);
        set(
            &mut own.dialect.iter().map(String::as_str),
            dialect.as_str().unwrap_or_default(),
        );
        Ok(LaunchPlan {
            argv: std::iter::once(config.program).chain(config.args).collect(),
            env,
            files: Vec::new(),
            stdin: request.prompt.to_owned().into(),
        })
    }

    fn reader(&self) -> LineReader {
        Box::new(|line, events| {
            let text = String::from_utf8_lossy(line);
            if !text.trim().is_empty() {
                events.push(AgentEvent::Text {
                    text: text.into_owned(),
                });
            }
        })
    }

    fn signs(&self) -> AgentSigns {
        AgentSigns::default()
    }
}

#[cfg(test)]
mod tests {
    use super::super::contract::Session;
    use super::*;
    use secrecy::SecretString;
    use serde_json::json;

    fn spec(config: Value) -> AgentSpec {
        let Value::Object(config) = config else { panic!() };
        AgentSpec {
            name: NAME.into(),
            config,
            ..AgentSpec::default()
        }
    }

    #[test]
    fn the_usual_variables_are_set_and_the_programs_own_by_its_dialect() {
        let spec = spec(json!({
            "program": "python3", "args": ["agent.py"], "dialect": "messages",
            "variables": { "base_url": ["MY_URL"], "api_key": ["MY_KEY"], "model": ["MY_MODEL"], "dialect": ["KIND"] },
        }));
        let key = SecretString::from("sk-token");
        let plan = Command
            .launch(&LaunchRequest {
                spec: &spec,
                prompt: "Do it.\n",
                session: Session::New,
                disabled_tools: &[],
                home: "/home/user",
                working_directory: "/home/user/workdir",
                directory: "",
                program: "",
                base_url: "http://127.0.0.1:7000/v1",
                api_key: &key,
                model: "m",
                max_tokens: None,
            })
            .unwrap();
        assert_eq!(plan.argv, ["python3", "agent.py"]);
        assert_eq!(plan.stdin, "Do it.\n");
        for (name, value) in [
            ("OPENAI_BASE_URL", "http://127.0.0.1:7000/v1"),
            ("ANTHROPIC_BASE_URL", "http://127.0.0.1:7000"),
            ("GOOGLE_GEMINI_BASE_URL", "http://127.0.0.1:7000"),
            ("OPENAI_API_KEY", "sk-token"),
            ("ANTHROPIC_API_KEY", "sk-token"),
            ("GEMINI_API_KEY", "sk-token"),
            ("OPENAI_MODEL", "m"),
            ("MY_URL", "http://127.0.0.1:7000"),
            ("MY_KEY", "sk-token"),
            ("MY_MODEL", "m"),
            ("KIND", "messages"),
        ] {
            assert_eq!(plan.env.get(name).map(String::as_str), Some(value), "{name}");
        }
    }

    #[test]
    fn a_configuration_that_says_no_program_or_something_else_is_an_error() {
        for (config, said) in [
            (json!({}), "missing field `program`"),
            (json!({ "program": "" }), "is empty"),
            (json!({ "program": "a\u{0}" }), "NUL"),
            (
                json!({ "program": "a", "arguments": [] }),
                "unknown field `arguments`",
            ),
            (
                json!({ "program": "a", "dialect": "chat" }),
                "unknown variant `chat`",
            ),
            (
                json!({ "program": "a", "variables": { "model": ["A=B"] } }),
                "`A=B` is not a name",
            ),
        ] {
            let error = Command.check(&spec(config.clone())).unwrap_err().to_string();
            assert!(error.contains(said), "{config}: {error}");
            assert!(error.starts_with("agent `command`"), "{error}");
        }
    }
}
