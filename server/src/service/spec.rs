//! What a rollout is asked for with: one form for REST, MCP, OpenEnv and the queue on disk.

use super::error::{Code, Place, ServiceError};
use crate::error::nearest;
use dressage_rollout::presets::{PRESETS, Preset};
use dressage_wire::task::{CaptureMode, Mode, Placement, Task};
use secrecy::SecretString;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Rollouts that one spec may ask for.
pub const SAMPLES_MAX: u32 = 1024;

/// Rollouts that one request may ask for.
pub const SUBMISSION_MAX: usize = 10_000;

/// Seconds that a sandbox is held after the agent, where nobody says.
pub const HOLD_TIMEOUT_S: f64 = 600.0;

/// What rollouts are asked for with. `task` or `preset` says what is to be done, `endpoint` or `base_url` with which model.
#[derive(Clone, Debug, Default, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RolloutSpec {
    /// The task, as docs/tasks.md describes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>, example = json!({"instruction": "Write hello.txt.", "verify": ["test -f hello.txt"]}))]
    pub task: Option<Value>,
    /// The name of a ready-made task, instead of `task`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "binary_search")]
    pub preset: Option<String>,
    /// Rollouts of the task, 1 to 1024: a group, which starts together when it can.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 1024, default = 1)]
    pub n: Option<u32>,
    /// The name of an endpoint: see `GET /api/v1/endpoints`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "vllm")]
    pub endpoint: Option<String>,
    /// The URL of an endpoint, up to and with `/v1`. Keys of the server do not go there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub base_url: Option<String>,
    /// The caller's own key for the endpoint. It is neither stored nor logged: a rollout that still waits when the server is
    /// started anew goes without it.
    #[serde(skip_serializing, deserialize_with = "secret")]
    #[schema(value_type = Option<String>, write_only)]
    pub api_key: Option<SecretString>,
    /// The model, over the endpoint's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The sandbox backend: see `GET /api/v1/backends`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "local")]
    pub backend: Option<String>,
    /// Image or template, for backends that have such.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Where model calls go: `transparent_proxy` (default) or `black_box`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub mode: Option<Mode>,
    /// Where the tap answers them: `relay` (default) or `in_sandbox`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub placement: Option<Placement>,
    /// How the endpoint is asked: `stream` (default) or `buffer`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub capture: Option<CaptureMode>,
    /// Alternatives asked for at each position.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(maximum = 20, default = 0)]
    pub top_logprobs: Option<u32>,
    /// Whether the model is told not to think; the endpoint's own setting if unset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disable_thinking: Option<bool>,
    /// Higher goes first among those that wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(default = 0)]
    pub priority: Option<i32>,
    /// Keep the sandbox after the agent, for the caller's own verifier.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub hold: bool,
    /// Seconds that it is kept, from the caller's last request on.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(default = 600.0)]
    pub hold_timeout_s: Option<f64>,
    /// What becomes of the rollout where the server dies over it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(inline)]
    pub on_interrupt: Option<OnInterrupt>,
}

/// What becomes of a rollout where the server dies over it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnInterrupt {
    /// It is marked as interrupted.
    #[default]
    Mark,
    /// It is run again under the same id, three times at most; then it is marked.
    Rerun,
}

/// Reads a key; its type has no form of its own, so that it is never written by chance.
fn secret<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<SecretString>, D::Error> {
    let key = Option::<String>::deserialize(deserializer)?;
    Ok(key.map(SecretString::from))
}

/// The keys of a spec. A test holds them against the type.
const KEYS: &[&str] = &[
    "task",
    "preset",
    "n",
    "endpoint",
    "base_url",
    "api_key",
    "model",
    "backend",
    "image",
    "mode",
    "placement",
    "capture",
    "top_logprobs",
    "disable_thinking",
    "priority",
    "hold",
    "hold_timeout_s",
    "on_interrupt",
];

impl RolloutSpec {
    /// Reads specs from the body of a request: one, or a table whose only key `rollouts` holds several.
    ///
    /// # Errors
    /// Says which key of which spec is wrong.
    pub fn read(body: Value) -> Result<Vec<Self>, ServiceError> {
        let Value::Object(mut table) = body else {
            return Err(ServiceError::invalid("", "the body is not an object"));
        };
        let Some(several) = table.remove("rollouts") else {
            return Self::one(table).map(|spec| vec![spec]);
        };
        if let Some(key) = table.keys().next() {
            return Err(ServiceError::invalid(
                key,
                "stands beside `rollouts`; put it into each spec",
            ));
        }
        let Value::Array(several) = several else {
            return Err(ServiceError::invalid("rollouts", "is not an array of specs"));
        };
        if several.is_empty() {
            return Err(ServiceError::invalid("rollouts", "is empty"));
        }
        let read = |(index, spec): (usize, Value)| {
            let place = format!("rollouts[{index}]");
            match spec {
                Value::Object(table) => Self::one(table).map_err(|error| error.under(&place)),
                _ => Err(ServiceError::invalid(place, "is not an object")),
            }
        };
        several.into_iter().enumerate().map(read).collect()
    }

    /// Reads one spec.
    fn one(table: Map<String, Value>) -> Result<Self, ServiceError> {
        if let Some(unknown) = table.keys().find(|key| !KEYS.contains(&key.as_str())) {
            let hint = match nearest(unknown, KEYS.iter().copied()) {
                Some(meant) => format!("did you mean `{meant}`?"),
                None => format!("the keys are: {}", KEYS.join(", ")),
            };
            return Err(ServiceError::invalid(unknown, "unknown key").hint(Some(hint)));
        }
        let spec: Self = serde_path_to_error::deserialize(Value::Object(table)).map_err(|error| {
            let path = error.path().to_string();
            ServiceError::invalid(path, error.into_inner().to_string())
        })?;
        spec.check()?;
        Ok(spec)
    }

    fn check(&self) -> Result<(), ServiceError> {
        if let Some(n) = self.n.filter(|n| !(1..=SAMPLES_MAX).contains(n)) {
            return Err(ServiceError::invalid(
                "n",
                format!("{n} is not between 1 and {SAMPLES_MAX}"),
            ));
        }
        if let Some(count) = self.top_logprobs.filter(|&count| count > 20) {
            return Err(ServiceError::invalid(
                "top_logprobs",
                format!("{count} is over 20"),
            ));
        }
        if let Some(seconds) = self.hold_timeout_s
            && !(seconds.is_finite() && (1.0..=86_400.0).contains(&seconds))
        {
            return Err(ServiceError::invalid(
                "hold_timeout_s",
                "is not between 1 and 86400 seconds",
            ));
        }
        if self.api_key.is_some() && self.base_url.is_none() && self.endpoint.is_none() {
            return Err(ServiceError::invalid(
                "api_key",
                "goes with a `base_url` or an `endpoint`",
            ));
        }
        Ok(())
    }

    /// The task that is asked for.
    ///
    /// # Errors
    /// Neither or both of `task` and `preset`; an unknown preset; a task that is wrong.
    pub fn task(&self) -> Result<Task, ServiceError> {
        match (&self.task, &self.preset) {
            (Some(task), None) => {
                Task::from_value(task.clone()).map_err(|error| ServiceError::task("task", &error))
            }
            (None, Some(name)) => Preset::named(name).map(Preset::task).ok_or_else(|| {
                let known = PRESETS.iter().map(|preset| preset.name);
                let hint = match nearest(name, known.clone()) {
                    Some(meant) => format!("did you mean `{meant}`?"),
                    None => format!("known are {}", known.collect::<Vec<_>>().join(", ")),
                };
                ServiceError::invalid("preset", format!("no preset is named `{name}`")).hint(Some(hint))
            }),
            (Some(_), Some(_)) => Err(ServiceError::invalid(
                "preset",
                "stands beside `task`; give one of them",
            )),
            (None, None) => Err(ServiceError {
                details: vec![Place {
                    path: "task".into(),
                    message: "is missing".into(),
                }],
                ..ServiceError::new(Code::InvalidRequest, "neither `task` nor `preset` is given")
            }),
        }
    }

    /// Rollouts that it asks for.
    #[must_use]
    pub fn samples(&self) -> u32 {
        self.n.unwrap_or(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_keys_are_those_of_the_type() {
        let given = json!({
            "task": {}, "preset": "x", "n": 1, "endpoint": "x", "base_url": "x", "model": "x", "backend": "x",
            "image": "x", "mode": "black_box", "placement": "relay", "capture": "stream", "top_logprobs": 1,
            "disable_thinking": true, "priority": 1, "hold": true, "hold_timeout_s": 1.0, "on_interrupt": "rerun",
        });
        let spec: RolloutSpec = serde_json::from_value(given).unwrap();
        let written = serde_json::to_value(&spec).unwrap();
        let mut keys: Vec<_> = written.as_object().unwrap().keys().map(String::as_str).collect();
        keys.push("api_key");
        keys.sort_unstable();
        let mut known = KEYS.to_vec();
        known.sort_unstable();
        assert_eq!(keys, known);
    }

    #[test]
    fn a_key_of_the_caller_is_never_written() {
        let spec =
            RolloutSpec::read(json!({"preset": "fizzbuzz", "base_url": "http://x/v1", "api_key": "sk-9"}));
        let spec = spec.unwrap().remove(0);
        assert!(spec.api_key.is_some());
        let written = format!("{} {spec:?}", serde_json::to_string(&spec).unwrap());
        assert!(!written.contains("sk-9"), "{written}");
    }

    #[test]
    fn wrong_keys_are_named_with_their_place() {
        let place = |body: Value| {
            let error = RolloutSpec::read(body)
                .and_then(|specs| specs[0].task().map(drop))
                .unwrap_err();
            (error.details[0].path.clone(), error.hint)
        };
        assert_eq!(
            place(json!({"presett": "x"})),
            ("presett".into(), Some("did you mean `preset`?".into()))
        );
        assert_eq!(place(json!({"rollouts": [{"n": 0}]})).0, "rollouts[0].n");
        assert_eq!(place(json!({"rollouts": [{"n": "x"}]})).0, "rollouts[0].n");
        assert_eq!(place(json!({"rollouts": [], "n": 1})).0, "n");
        assert_eq!(
            place(json!({"task": {"instruction": "x", "agent": {"nam": "y"}}})),
            ("task.agent.nam".into(), Some("did you mean `agent.name`?".into()))
        );
        assert_eq!(place(json!({"task": {"instruction": ""}})).0, "task.instruction");
        assert_eq!(place(json!({})).0, "task");
    }
}
