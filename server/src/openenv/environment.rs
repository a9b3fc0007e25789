use super::problems::Problem;
use super::tool::{self, ToolError};
use crate::http::App;
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// One environment: what a session, a socket or a request without either acts on.
#[derive(Debug)]
pub struct Environment {
    state: Mutex<EnvState>,
}

/// What it tells of itself.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EnvState {
    /// The caller's name of the episode, or one of ours.
    pub episode_id: String,
    /// Always 0: OpenEnv's environment counts no steps.
    pub step_count: u64,
    /// Rollouts that ended.
    pub rollouts_completed: u64,
    /// The reward of the last one.
    pub last_reward: Option<f64>,
    /// The caller's name of the last one's task.
    pub last_task_id: Option<String>,
    /// The sandbox of the last one.
    pub last_sandbox_id: Option<String>,
}

/// What a client asks an environment to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Tell which tools there are.
    ListTools,
    /// Use one.
    CallTool {
        /// Its name.
        name: String,
        /// Its arguments.
        arguments: Map<String, Value>,
    },
}

impl Environment {
    /// A new episode.
    #[must_use]
    pub fn new() -> Self {
        Self {
            state: Mutex::new(EnvState {
                episode_id: new_episode(),
                step_count: 0,
                rollouts_completed: 0,
                last_reward: None,
                last_task_id: None,
                last_sandbox_id: None,
            }),
        }
    }

    fn lock(&self) -> MutexGuard<'_, EnvState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What it tells of itself.
    #[must_use]
    pub fn state(&self) -> EnvState {
        self.lock().clone()
    }

    /// Begins an episode.
    pub fn reset(&self, episode: Option<String>) -> Value {
        self.lock().episode_id = episode.unwrap_or_else(new_episode);
        let metadata =
            json!({"status": "ready", "message": "opencode_env ready. Call run_rollout(...) with a task."});
        json!({"observation": {"metadata": metadata}, "reward": null, "done": false, "metadata": metadata})
    }

    /// Does an action; a tool that fails is an observation too. Dropping the future cancels the rollout.
    pub async fn step(&self, app: &App, action: Action, timeout: Option<Duration>) -> Observation {
        let (name, arguments) = match action {
            Action::ListTools => return Observation::Tools,
            Action::CallTool { name, arguments } => (name, arguments),
        };
        let call = self.call(app, &name, arguments);
        let called = match timeout {
            None => call.await,
            Some(limit) => tokio::time::timeout(limit, call).await.unwrap_or_else(|_| {
                let message = format!("Tool '{name}' timed out after {:?} seconds", limit.as_secs_f64());
                Err(ToolError::Timeout(message))
            }),
        };
        Observation::Called { name, called }
    }

    /// Uses a tool: its result, as FastMCP words it.
    pub async fn call(
        &self,
        app: &App,
        name: &str,
        arguments: Map<String, Value>,
    ) -> Result<Box<RawValue>, ToolError> {
        if name != tool::NAME {
            return Err(ToolError::NotFound(format!("Unknown tool: '{name}'")));
        }
        let ended = tool::run(app, arguments).await?;
        let mut state = self.lock();
        state.rollouts_completed += 1;
        state.last_reward = ended.reward;
        state.last_task_id = Some(ended.task_id);
        state.last_sandbox_id = Some(ended.sandbox_id);
        Ok(ended.result)
    }
}

/// What came of an action.
#[derive(Debug)]
pub enum Observation {
    /// The tools there are.
    Tools,
    /// A tool was used.
    Called {
        /// Its name.
        name: String,
        /// Its result.
        called: Result<Box<RawValue>, ToolError>,
    },
}

impl Observation {
    /// As it is sent; over HTTP `metadata` stands at the top even where it is empty.
    pub fn into_json(self, over_http: bool) -> String {
        #[derive(Serialize)]
        struct Called<'a> {
            metadata: Value,
            tool_name: &'a str,
            result: Option<Box<RawValue>>,
            error: Option<Value>,
        }
        let observation = match self {
            Self::Tools => json!({"metadata": {}, "tools": [tool::listed()]}).to_string(),
            Self::Called { name, called } => {
                let (result, error) = match called {
                    Ok(result) => (Some(result), None),
                    Err(error) => (
                        None,
                        Some(json!({"error_type": error.kind(), "message": error.message()})),
                    ),
                };
                let called = Called {
                    metadata: json!({}),
                    tool_name: &name,
                    result,
                    error,
                };
                // Strings, maps with string keys, and JSON: always writable.
                serde_json::to_string(&called).unwrap_or_default()
            }
        };
        let metadata = if over_http { r#","metadata":null"# } else { "" };
        format!(r#"{{"observation":{observation},"reward":null,"done":false{metadata}}}"#)
    }
}

impl Action {
    /// Reads an action.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn read(data: &Value) -> Result<Self, Vec<Problem>> {
        let Value::Object(table) = data else {
            return Err(vec![Problem::new(
                "model_type",
                vec![],
                "Input should be a valid dictionary",
                data,
            )]);
        };
        match table.get("type") {
            Some(Value::String(kind)) if kind == "list_tools" => return Ok(Self::ListTools),
            None => {}
            Some(Value::String(kind)) if kind == "call_tool" => {}
            Some(other) => {
                return Err(vec![
                    Problem::new(
                        "literal_error",
                        vec![json!("type")],
                        "Input should be 'call_tool'",
                        other,
                    )
                    .context(json!({"expected": "'call_tool'"})),
                ]);
            }
        }
        let mut problems = Vec::new();
        let name = match table.get("tool_name") {
            Some(Value::String(name)) => name.clone(),
            Some(other) => {
                problems.push(Problem::new(
                    "string_type",
                    vec![json!("tool_name")],
                    "Input should be a valid string",
                    other,
                ));
                String::new()
            }
            None => {
                problems.push(Problem::missing(vec![json!("tool_name")], data));
                String::new()
            }
        };
        let arguments = match table.get("arguments") {
            None => Map::new(),
            Some(Value::Object(arguments)) => arguments.clone(),
            Some(other) => {
                problems.push(Problem::new(
                    "dict_type",
                    vec![json!("arguments")],
                    "Input should be a valid dictionary",
                    other,
                ));
                Map::new()
            }
        };
        if let Some(metadata) = table.get("metadata").filter(|metadata| !metadata.is_object()) {
            problems.push(Problem::new(
                "dict_type",
                vec![json!("metadata")],
                "Input should be a valid dictionary",
                metadata,
            ));
        }
        let known = ["type", "tool_name", "arguments", "metadata"];
        for (key, value) in table.iter().filter(|(key, _)| !known.contains(&key.as_str())) {
            problems.push(Problem::extra(vec![json!(key)], value));
        }
        if problems.is_empty() {
            Ok(Self::CallTool { name, arguments })
        } else {
            Err(problems)
        }
    }
}

/// The name of an episode that has none.
fn new_episode() -> String {
    dressage_wire::ids::RolloutId::new().to_string()
}
