//! The tool `run_rollout`: its arguments, coerced as pydantic coerces them, and how a rollout answers it.

use super::problems::{Problem, report};
use super::result;
use crate::endpoints::{self, DEMO};
use crate::http::App;
use crate::service::{CancelOnDrop, Code, RolloutSpec, ServiceError};
use dressage_wire::task::{CaptureMode, Mode};
use secrecy::SecretString;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

/// Its name.
pub const NAME: &str = "run_rollout";

const DESCRIPTION: &str = "Run one OpenCode rollout end-to-end.";

/// Seconds that upstream gives each command of setup and verify.
const COMMAND_TIMEOUT_S: f64 = 120.0;

/// A tool could not be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToolError {
    /// There is no such tool.
    NotFound(String),
    /// Its arguments are wrong.
    InvalidArguments(String),
    /// It was used, and failed.
    Execution(String),
    /// It was not done in time.
    Timeout(String),
}

impl ToolError {
    /// OpenEnv's word for it.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::NotFound(_) => "tool_not_found",
            Self::InvalidArguments(_) => "invalid_args",
            Self::Execution(_) => "execution_error",
            Self::Timeout(_) => "timeout",
        }
    }

    /// What happened.
    #[must_use]
    pub fn message(&self) -> &str {
        match self {
            Self::NotFound(message)
            | Self::InvalidArguments(message)
            | Self::Execution(message)
            | Self::Timeout(message) => message,
        }
    }
}

/// What an argument is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Text,
    OptionalTexts,
    OptionalFlag,
    Count,
    Number,
}

/// The arguments in upstream's order, with upstream's defaults.
fn parameters() -> [(&'static str, Kind, Value); 14] {
    [
        ("endpoint", Kind::Text, json!("")),
        ("base_url", Kind::Text, json!("")),
        ("api_key", Kind::Text, json!("")),
        ("model", Kind::Text, json!("")),
        ("instruction", Kind::Text, json!("")),
        ("setup", Kind::OptionalTexts, Value::Null),
        ("verify", Kind::OptionalTexts, Value::Null),
        ("task_id", Kind::Text, json!("")),
        ("mode", Kind::Text, json!("transparent_proxy")),
        ("disable_thinking", Kind::OptionalFlag, Value::Null),
        ("max_tokens_cap", Kind::Count, json!(4096)),
        ("top_logprobs", Kind::Count, json!(5)),
        ("agent_timeout_s", Kind::Number, json!(600.0)),
        ("template", Kind::Text, json!("")),
    ]
}

/// The JSON schema of the arguments.
#[must_use]
pub fn input_schema() -> Value {
    let property = |kind, default: &Value| match kind {
        Kind::Text => json!({"default": default, "type": "string"}),
        Kind::OptionalTexts => {
            json!({"anyOf": [{"items": {"type": "string"}, "type": "array"}, {"type": "null"}], "default": null})
        }
        Kind::OptionalFlag => json!({"anyOf": [{"type": "boolean"}, {"type": "null"}], "default": null}),
        Kind::Count => json!({"default": default, "type": "integer"}),
        Kind::Number => json!({"default": default, "type": "number"}),
    };
    let properties: Map<String, Value> = parameters()
        .iter()
        .map(|(name, kind, default)| ((*name).to_owned(), property(*kind, default)))
        .collect();
    json!({"additionalProperties": false, "properties": properties, "type": "object"})
}

/// The tool in an observation.
#[must_use]
pub fn listed() -> Value {
    json!({"name": NAME, "description": DESCRIPTION, "input_schema": input_schema()})
}

/// The tool in a JSON-RPC reply.
#[must_use]
pub fn listed_by_rpc() -> Value {
    json!({
        "name": NAME,
        "title": null,
        "description": DESCRIPTION,
        "inputSchema": input_schema(),
        "outputSchema": {
            "properties": {"result": {"type": "string"}},
            "required": ["result"],
            "type": "object",
            "x-fastmcp-wrap-result": true,
        },
        "icons": null,
        "annotations": null,
        "meta": {"fastmcp": {"tags": []}},
        "execution": null,
    })
}

/// A rollout that a tool call ran.
#[derive(Debug)]
pub struct Ended {
    /// The caller's name of its task.
    pub task_id: String,
    /// Its sandbox; empty where it had none.
    pub sandbox_id: String,
    /// Its reward.
    pub reward: Option<f64>,
    /// The result, as FastMCP words it.
    pub result: Box<RawValue>,
}

/// Runs a rollout to its end. Dropping the future cancels it.
///
/// # Errors
/// Arguments that are wrong, an endpoint that cannot be used, no instruction. A rollout that fails is a result.
pub async fn run(app: &App, arguments: Map<String, Value>) -> Result<Ended, ToolError> {
    let arguments = Arguments::read(&arguments)
        .map_err(|problems| ToolError::InvalidArguments(report(&format!("call[{NAME}]"), &problems)))?;
    let failed = |message: &str| ToolError::Execution(format!("Error calling tool '{NAME}': {message}"));
    let spec = arguments.spec(app).map_err(|message| failed(&message))?;
    let submission = match app.service.submit(&[spec], None).await {
        Ok(submission) => submission,
        Err(error) => return refused(&arguments, &error, failed),
    };
    let Some(submitted) = submission.rollouts.first() else {
        return Err(failed("the rollout was not taken"));
    };
    let cancels = app.openenv.cancel_abandoned;
    let abandoned = cancels.then(|| CancelOnDrop::new(&app.service, submitted.id));
    let ended = app.service.wait(submitted.id).await;
    if let Some(abandoned) = abandoned {
        abandoned.disarm();
    }
    let outcome = match ended {
        Ok(Some(outcome)) => outcome,
        Ok(None) => return Err(failed("the rollout was interrupted")),
        Err(error) => return Err(failed(&error.message)),
    };
    let text = result::text(
        &app.service,
        &arguments.texts.task_id,
        arguments.texts.mode,
        &outcome,
    )
    .await
    .map_err(|error| failed(&error.message))?;
    Ok(Ended {
        task_id: arguments.texts.task_id,
        sandbox_id: outcome.sandbox.map(|id| id.to_string()).unwrap_or_default(),
        reward: outcome.reward.as_ref().and_then(|reward| reward.value),
        result: result::envelope(&text),
    })
}

/// What upstream raises for is an error of the tool; everything else is a result with `error`.
fn refused(
    arguments: &Arguments,
    error: &ServiceError,
    failed: impl Fn(&str) -> ToolError,
) -> Result<Ended, ToolError> {
    let hint = error
        .hint
        .as_ref()
        .map(|hint| format!(" ({hint})"))
        .unwrap_or_default();
    let message = format!("{}{hint}", error.message);
    match error.code {
        Code::EndpointUnusable | Code::InvalidRequest => Err(failed(&message)),
        _ => Ok(Ended {
            task_id: arguments.texts.task_id.clone(),
            sandbox_id: String::new(),
            reward: None,
            result: result::envelope(&result::unstarted(
                &arguments.texts.task_id,
                arguments.texts.mode,
                &format!("{}: {message}", error.code.name()),
            )),
        }),
    }
}

/// The arguments, read.
struct Arguments {
    texts: Texts,
    setup: Vec<String>,
    verify: Vec<String>,
    disable_thinking: Option<bool>,
    max_tokens_cap: i64,
    top_logprobs: i64,
    agent_timeout_s: f64,
}

struct Texts {
    endpoint: String,
    base_url: String,
    api_key: SecretString,
    model: String,
    instruction: String,
    task_id: String,
    template: String,
    mode: Mode,
}

impl Arguments {
    fn read(given: &Map<String, Value>) -> Result<Self, Vec<Problem>> {
        let parameters = parameters();
        let mut problems = Vec::new();
        let mut values: Map<String, Value> = Map::new();
        for (name, kind, default) in &parameters {
            let value = match given.get(*name) {
                None => Ok(default.clone()),
                Some(value) => coerce(*kind, value).ok_or(value),
            };
            match value {
                Ok(value) => drop(values.insert((*name).to_owned(), value)),
                Err(value) => problems.push(wrong(name, *kind, value)),
            }
        }
        for (key, value) in given {
            if !parameters.iter().any(|(name, ..)| name == key) {
                let shown = if key.contains("key") { &Value::Null } else { value };
                problems.push(Problem::new(
                    "unexpected_keyword_argument",
                    vec![json!(key)],
                    "Unexpected keyword argument",
                    shown,
                ));
            }
        }
        let text = |name: &str| values.get(name).and_then(Value::as_str).unwrap_or("").to_owned();
        let texts = |name: &str| -> Vec<String> {
            let items = values.get(name).and_then(Value::as_array).into_iter().flatten();
            items.filter_map(Value::as_str).map(str::to_owned).collect()
        };
        let mode = match text("mode").as_str() {
            "black_box" => Mode::BlackBox,
            "transparent_proxy" => Mode::TransparentProxy,
            other => {
                problems.push(Problem::new(
                    "literal_error",
                    vec![json!("mode")],
                    "Input should be 'black_box' or 'transparent_proxy'",
                    &json!(other),
                ));
                Mode::TransparentProxy
            }
        };
        if !problems.is_empty() {
            return Err(problems);
        }
        Ok(Self {
            texts: Texts {
                endpoint: text("endpoint"),
                base_url: text("base_url"),
                api_key: text("api_key").into(),
                model: text("model"),
                instruction: text("instruction"),
                task_id: text("task_id"),
                template: text("template"),
                mode,
            },
            setup: texts("setup"),
            verify: texts("verify"),
            disable_thinking: values.get("disable_thinking").and_then(Value::as_bool),
            max_tokens_cap: values.get("max_tokens_cap").and_then(Value::as_i64).unwrap_or(0),
            top_logprobs: values.get("top_logprobs").and_then(Value::as_i64).unwrap_or(0),
            agent_timeout_s: values
                .get("agent_timeout_s")
                .and_then(Value::as_f64)
                .unwrap_or(600.0),
        })
    }

    /// What they ask for. The messages are upstream's.
    fn spec(&self, app: &App) -> Result<RolloutSpec, String> {
        let config = &app.service.context().config;
        let texts = &self.texts;
        let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        let known = endpoints::known_names(config);
        let is_complete = !texts.base_url.is_empty() && !texts.model.is_empty();
        if texts.endpoint.is_empty() && !is_complete && config.defaults.endpoint.is_none() {
            return Err(format!(
                "must provide either ``endpoint`` (one of ({})) or all of base_url + api_key + model",
                known
                    .iter()
                    .map(|name| format!("'{name}'"))
                    .collect::<Vec<_>>()
                    .join(", ")
            ));
        }
        if texts.instruction.trim().is_empty() {
            return Err("instruction is required".into());
        }
        let mut limits = json!({
            "agent_timeout_s": self.agent_timeout_s, "setup_timeout_s": COMMAND_TIMEOUT_S, "verify_timeout_s": COMMAND_TIMEOUT_S,
        });
        if let Some(limits) = limits.as_object_mut().filter(|_| self.max_tokens_cap > 0) {
            limits.insert("max_tokens_cap".into(), json!(self.max_tokens_cap));
        }
        let mut task = json!({
            "instruction": texts.instruction, "setup": self.setup, "verify": self.verify, "limits": limits,
        });
        if let (Some(task), Some(id)) = (task.as_object_mut(), some(&texts.task_id)) {
            task.insert("id".into(), json!(id));
        }
        let is_demo = texts.endpoint == DEMO;
        Ok(RolloutSpec {
            task: Some(task),
            endpoint: some(&texts.endpoint),
            // The scripted model has no other URL, key or model.
            base_url: some(&texts.base_url).filter(|_| !is_demo),
            api_key: Some(texts.api_key.clone())
                .filter(|_| !is_demo && (!texts.endpoint.is_empty() || !texts.base_url.is_empty())),
            model: some(&texts.model).filter(|_| !is_demo),
            image: some(&texts.template),
            mode: Some(texts.mode),
            capture: Some(CaptureMode::Stream),
            top_logprobs: Some(u32::try_from(self.top_logprobs.clamp(0, 20)).unwrap_or(0)),
            disable_thinking: self.disable_thinking,
            ..RolloutSpec::default()
        })
    }
}

/// A value as its kind, read as leniently as pydantic reads. `None` where it is none.
fn coerce(kind: Kind, value: &Value) -> Option<Value> {
    match (kind, value) {
        (Kind::Text, Value::String(_)) => Some(value.clone()),
        (Kind::OptionalTexts | Kind::OptionalFlag, Value::Null) => Some(Value::Null),
        (Kind::OptionalTexts, Value::Array(items)) => {
            items.iter().all(Value::is_string).then(|| value.clone())
        }
        // FastMCP reads JSON in strings where something else than a string is wanted.
        (Kind::OptionalTexts, Value::String(text)) => match serde_json::from_str(text) {
            Ok(Value::Array(items)) if items.iter().all(Value::is_string) => Some(Value::Array(items)),
            Ok(Value::Null) => Some(Value::Null),
            _ => None,
        },
        (Kind::OptionalFlag, Value::Bool(_)) => Some(value.clone()),
        (Kind::OptionalFlag, Value::Number(number)) => match number.as_f64() {
            Some(0.0) => Some(json!(false)),
            Some(1.0) => Some(json!(true)),
            _ => None,
        },
        (Kind::OptionalFlag, Value::String(text)) => match text.to_ascii_lowercase().as_str() {
            "true" | "t" | "yes" | "y" | "on" | "1" => Some(json!(true)),
            "false" | "f" | "no" | "n" | "off" | "0" => Some(json!(false)),
            "null" => Some(Value::Null),
            _ => None,
        },
        (Kind::Count, Value::Number(number)) => {
            let whole = number
                .as_f64()
                .filter(|number| number.fract() == 0.0 && number.abs() < 9e15);
            number
                .as_i64()
                .or(whole.map(|whole| whole as i64))
                .map(|number| json!(number))
        }
        (Kind::Count, Value::String(text)) => text.trim().parse::<i64>().ok().map(|number| json!(number)),
        (Kind::Count, Value::Bool(flag)) => Some(json!(i64::from(*flag))),
        (Kind::Number, Value::Number(number)) => number.as_f64().map(|number| json!(number)),
        (Kind::Number, Value::String(text)) => {
            let number = text
                .trim()
                .parse::<f64>()
                .ok()
                .filter(|number| number.is_finite());
            number.map(|number| json!(number))
        }
        (Kind::Number, Value::Bool(flag)) => Some(json!(f64::from(u8::from(*flag)))),
        _ => None,
    }
}

/// What pydantic says of a value that is not of its kind.
fn wrong(name: &str, kind: Kind, value: &Value) -> Problem {
    let (kind, message) = match kind {
        Kind::Text => ("string_type", "Input should be a valid string"),
        Kind::OptionalTexts => ("list_type", "Input should be a valid list"),
        Kind::OptionalFlag => (
            "bool_parsing",
            "Input should be a valid boolean, unable to interpret input",
        ),
        Kind::Count => (
            "int_parsing",
            "Input should be a valid integer, unable to parse string as an integer",
        ),
        Kind::Number => (
            "float_parsing",
            "Input should be a valid number, unable to parse string as a number",
        ),
    };
    let shown = if name == "api_key" { &Value::Null } else { value };
    Problem::new(kind, vec![json!(name)], message, shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_coerced_as_pydantic_coerces_them() {
        for (kind, given, read) in [
            (Kind::Count, json!("5"), Some(json!(5))),
            (Kind::Count, json!(5.0), Some(json!(5))),
            (Kind::Count, json!(5.5), None),
            (Kind::Count, json!("5.5"), None),
            (Kind::Count, json!(null), None),
            (Kind::Number, json!("600"), Some(json!(600.0))),
            (Kind::Number, json!(7), Some(json!(7.0))),
            (Kind::Number, json!("soon"), None),
            (Kind::OptionalFlag, json!("True"), Some(json!(true))),
            (Kind::OptionalFlag, json!(0), Some(json!(false))),
            (Kind::OptionalFlag, json!(2), None),
            (Kind::OptionalTexts, json!(["a"]), Some(json!(["a"]))),
            (Kind::OptionalTexts, json!("[\"a\"]"), Some(json!(["a"]))),
            (Kind::OptionalTexts, json!([1]), None),
            (Kind::OptionalTexts, json!("a"), None),
            (Kind::Text, json!(1), None),
            (Kind::Text, json!(null), None),
        ] {
            assert_eq!(coerce(kind, &given), read, "{kind:?} {given}");
        }
    }

    #[test]
    fn an_unknown_argument_is_named_and_a_key_is_not_repeated() {
        let given = json!({"instruction": "x", "api_key": 7, "apikey": "sk-1", "nope": 1});
        let problems = Arguments::read(given.as_object().unwrap()).err().unwrap();
        let text = report("call[run_rollout]", &problems);
        assert!(
            text.starts_with("3 validation errors for call[run_rollout]\napi_key\n"),
            "{text}"
        );
        assert!(
            text.contains("nope\n  Unexpected keyword argument") && !text.contains("sk-1"),
            "{text}"
        );
    }
}
