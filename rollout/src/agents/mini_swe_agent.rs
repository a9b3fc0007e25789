//! mini-swe-agent (`mini`), as measured with 2.4.6.
//!
//! It is written in Python and runs with that of the sandbox. Its own program prints for people and takes its prompt as
//! an argument; a script of ours starts the same agent, hands it the prompt from standard input, and prints each message
//! as a line of JSON. Its one tool is `bash`.

/// The lines that the script prints.
mod lines;

use super::contract::{Agent, AgentError, LaunchPlan, LaunchRequest, Wish};
use super::lines::LineReader;
use super::merge::merge;
use super::pip::PipPackages;
use super::tree::{self, Tree};
use dressage_wire::call::DialectName;
use dressage_wire::capture::AgentSigns;
use secrecy::ExposeSecret as _;
use serde_json::{Value, json};

const NAME: &str = "mini-swe-agent";

/// The version that everything here was measured with.
const VERSION: &str = "2.4.6";

/// What it speaks to models through, in the version that it was measured with.
const LITELLM: &str = "litellm==1.110.2";

/// Starts it.
const SCRIPT: &str = include_str!("mini_swe_agent/start.py");

/// Its own system prompt, of its `mini.yaml`.
const SYSTEM_PROMPT: &str = "You are a helpful assistant that can interact with a computer.";

const SIGNS: AgentSigns = AgentSigns {
    session_header: None,
    parent_session_header: None,
    subagent_header: None,
    user_agent_starts_with: Some("OpenAI/Python "),
    own_system_starts_with: &[],
    own_user_starts_with: &[],
    auxiliary: &[],
};

/// mini-swe-agent.
#[derive(Clone, Copy, Debug)]
pub struct MiniSweAgent;

impl Agent for MiniSweAgent {
    fn name(&self) -> &'static str {
        NAME
    }

    fn pinned_version(&self) -> &str {
        VERSION
    }

    fn tree(&self, version: Option<&str>) -> Result<Tree, AgentError> {
        let version = tree::version(NAME, version, VERSION)?;
        let mut packages = vec![format!("{NAME}=={version}")];
        if version == VERSION {
            packages.push(LITELLM.into());
        }
        let source = PipPackages {
            packages,
            module: "minisweagent",
        };
        Ok(Tree::new(NAME, version, source))
    }

    fn dialect(&self) -> Option<DialectName> {
        Some(DialectName::ChatCompletions)
    }

    fn honours(&self) -> &'static [Wish] {
        &[Wish::Version, Wish::SystemPrompt, Wish::Config]
    }

    fn launch(&self, request: &LaunchRequest<'_>) -> Result<LaunchPlan, AgentError> {
        let script = request.file("mini_swe_agent.py", SCRIPT);
        // JSON is YAML.
        let config = request.file("mini_swe_agent.yaml", config(request).to_string());
        let argv = [
            request.program,
            "-I",
            &script.path,
            request.directory,
            &config.path,
        ];
        let env = [
            ("OPENAI_API_KEY", request.api_key.expose_secret()),
            ("OPENAI_API_BASE", request.base_url),
            ("LITELLM_LOCAL_MODEL_COST_MAP", "True"),
            // Without it, the first run asks for a key and a model.
            ("MSWEA_CONFIGURED", "true"),
            ("MSWEA_COST_TRACKING", "ignore_errors"),
            ("MSWEA_SILENT_STARTUP", "1"),
            ("MSWEA_MODEL_RETRY_STOP_AFTER_ATTEMPT", "3"),
            ("TERM", "dumb"),
        ];
        let plan = LaunchPlan::new(argv, env, request.prompt.to_owned());
        Ok(plan.with_files(vec![script, config]))
    }

    fn reader(&self) -> LineReader {
        lines::reader()
    }

    fn signs(&self) -> AgentSigns {
        SIGNS
    }
}

/// What is put over its `mini.yaml`, the task's own merged deep into it.
fn config(request: &LaunchRequest<'_>) -> Value {
    let mut config = json!({
        "agent": {
            "mode": "yolo",
            "confirm_exit": false,
            // The tap has budgets.
            "cost_limit": 0,
        },
        "model": {
            "model_name": format!("openai/{}", request.model),
            "model_kwargs": { "max_retries": 0, "num_retries": 0 },
        },
    });
    if let Some(prompt) = &request.spec.system_prompt {
        // A template: a text of its language in it stands for itself.
        let text = Value::from(format!("{SYSTEM_PROMPT}\n\n{prompt}"));
        merge(
            &mut config,
            json!({ "agent": { "system_template": format!("{{{{ {text} }}}}") } }),
        );
    }
    merge(&mut config, Value::Object(request.spec.config.clone()));
    config
}
