mod unique;

use super::Task;
use serde_json::{Map, Value};

/// Why a text is not a task.
#[derive(Debug, thiserror::Error)]
pub enum TaskError {
    /// It is not TOML.
    #[error("task is not TOML: {message}")]
    Toml {
        /// What the parser says, with line and column.
        message: String,
    },
    /// It is not JSON.
    #[error("task is not JSON")]
    Json(#[source] serde_json::Error),
    /// It is JSON or TOML, but not one table.
    #[error("task is not a table with keys")]
    NotATable,
    /// A key that means nothing.
    #[error("unknown key `{path}`")]
    UnknownKey {
        /// The key with those above it.
        path: String,
        /// The key that was probably meant, with those above it.
        nearest: Option<String>,
    },
    /// A value of another type than its key takes.
    #[error("`{path}` is not as expected: {message}")]
    WrongType {
        /// The key with those above it.
        path: String,
        /// What was found and what was expected.
        message: String,
    },
    /// There is nothing to do.
    #[error("task has no instruction")]
    NoInstruction,
    /// The instruction is longer than any model reads.
    #[error("instruction has {bytes} bytes, over the limit of {limit}")]
    InstructionTooLong {
        /// Its length.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// A value of the right type that cannot be.
    #[error("`{path}` {problem}")]
    BadValue {
        /// The key with those above it.
        path: String,
        /// What is wrong with it.
        problem: String,
    },
}

impl TaskError {
    /// What may help, where that is known.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::UnknownKey {
                nearest: Some(nearest),
                ..
            } => Some(format!("did you mean `{nearest}`?")),
            Self::UnknownKey { nearest: None, .. } => {
                Some(format!("the keys of a task are: {}", TASK_KEYS.join(", ")))
            }
            Self::NoInstruction => Some("say in `instruction` what the agent is to do".into()),
            Self::InstructionTooLong { .. } => {
                Some("put long material into `files`, and name the file in the instruction".into())
            }
            _ => None,
        }
    }
}

const TASK_KEYS: &[&str] = &[
    "id",
    "instruction",
    "turns",
    "setup",
    "verify",
    "files",
    "verify_files",
    "env",
    "agent",
    "sampling",
    "limits",
    "image",
    "dockerfile",
    "user",
    "network",
    "reward",
    "verify_when",
    "verify_in",
    "outputs",
    "snapshot",
    "metadata",
];

/// The tables of a task whose keys are fixed, by path, and their keys. A test compares them with the types.
const KEYS: &[(&str, &[&str])] = &[
    ("", TASK_KEYS),
    (
        "agent",
        &[
            "name",
            "version",
            "system_prompt",
            "disabled_tools",
            "enabled_tools",
            "config",
            "env",
            "mcp_servers",
        ],
    ),
    (
        "sampling",
        &[
            "temperature",
            "top_p",
            "top_k",
            "min_p",
            "presence_penalty",
            "frequency_penalty",
            "repetition_penalty",
            "seed",
        ],
    ),
    (
        "limits",
        &[
            "boot_timeout_s",
            "setup_timeout_s",
            "agent_timeout_s",
            "verify_timeout_s",
            "collect_timeout_s",
            "max_calls",
            "max_prompt_tokens",
            "max_completion_tokens",
            "max_wall_s",
            "max_cost",
            "max_tokens_cap",
            "memory_mb",
            "cpus",
            "pids",
        ],
    ),
    ("reward", &["min", "max"]),
];

impl Task {
    /// Reads a task from TOML and checks it.
    ///
    /// # Errors
    /// Says what is wrong with it, and where.
    pub fn from_toml(text: &str) -> Result<Self, TaskError> {
        Self::checked(Self::unchecked_from_toml(text)?)
    }

    /// Reads a task from JSON and checks it.
    ///
    /// # Errors
    /// Says what is wrong with it, and where.
    pub fn from_json(text: &[u8]) -> Result<Self, TaskError> {
        Self::checked(Self::unchecked_from_json(text)?)
    }

    /// Takes a task from JSON that is parsed already, and checks it.
    ///
    /// # Errors
    /// Says what is wrong with it, and where.
    pub fn from_value(value: Value) -> Result<Self, TaskError> {
        Self::checked(Self::unchecked_from_value(value)?)
    }

    /// Reads a task from TOML whose `source` files are still to be loaded; [`Task::validate`] comes after that.
    ///
    /// # Errors
    /// Says what is wrong with its keys and types.
    pub fn unchecked_from_toml(text: &str) -> Result<Self, TaskError> {
        let table: toml::Table = text.parse().map_err(|error: toml::de::Error| TaskError::Toml {
            message: shortened(&error.to_string()),
        })?;
        Self::unchecked_from_value(Value::Object(json_table(table, "")?))
    }

    /// Reads a task from JSON whose `source` files are still to be loaded; [`Task::validate`] comes after that.
    ///
    /// # Errors
    /// Says what is wrong with its keys and types.
    pub fn unchecked_from_json(text: &[u8]) -> Result<Self, TaskError> {
        Self::unchecked_from_value(unique::from_slice(text).map_err(TaskError::Json)?)
    }

    fn unchecked_from_value(value: Value) -> Result<Self, TaskError> {
        let Value::Object(table) = &value else {
            return Err(TaskError::NotATable);
        };
        known_keys(table)?;
        if !table.contains_key("instruction") {
            return Err(TaskError::NoInstruction);
        }
        serde_path_to_error::deserialize(value).map_err(|error| TaskError::WrongType {
            path: error.path().to_string(),
            message: error.into_inner().to_string(),
        })
    }

    fn checked(self) -> Result<Self, TaskError> {
        self.validate()?;
        Ok(self)
    }
}

/// Checks the tables whose keys are fixed: that they are tables, and have no other keys.
fn known_keys(table: &Map<String, Value>) -> Result<(), TaskError> {
    for (path, keys) in KEYS {
        let part = match (*path, table.get(*path)) {
            ("", _) => table,
            (_, Some(Value::Object(part))) => part,
            (_, None) => continue,
            // Said here, since a derived struct would take a list too.
            (path, Some(_)) => {
                let message = "expected a table with keys".into();
                return Err(TaskError::WrongType {
                    path: path.into(),
                    message,
                });
            }
        };
        if let Some(key) = part.keys().find(|key| !keys.contains(&key.as_str())) {
            return Err(TaskError::UnknownKey {
                path: join(path, key),
                nearest: nearest(path, key),
            });
        }
    }
    Ok(())
}

/// The known key that was probably meant: the very key in another table, one like it in the same table, or one very
/// like it in another.
fn nearest(path: &str, key: &str) -> Option<String> {
    let best = |same_table: bool, at_least: f64| {
        KEYS.iter()
            .filter(|(table, _)| (*table == path) == same_table)
            .flat_map(|(table, keys)| keys.iter().map(move |known| (*table, *known)))
            .map(|(table, known)| (strsim::jaro_winkler(&key.to_lowercase(), known), table, known))
            .filter(|(likeness, ..)| *likeness >= at_least)
            .max_by(|(a, ..), (b, ..)| a.total_cmp(b))
            .map(|(_, table, known)| join(table, known))
    };
    best(false, 1.0)
        .or_else(|| best(true, 0.8))
        .or_else(|| best(false, 0.9))
}

fn join(path: &str, key: &str) -> String {
    if path.is_empty() {
        key.to_owned()
    } else {
        format!("{path}.{key}")
    }
}

/// What a parser says, which quotes a line whole, however long it is.
fn shortened(message: &str) -> String {
    const LONGEST: usize = 200;
    let lines = message
        .trim_end()
        .lines()
        .map(|line| match line.char_indices().nth(LONGEST) {
            Some((end, _)) => format!("{}…", line.get(..end).unwrap_or_default()),
            None => line.to_owned(),
        });
    lines.collect::<Vec<_>>().join("\n")
}

fn json_table(table: toml::Table, path: &str) -> Result<Map<String, Value>, TaskError> {
    table
        .into_iter()
        .map(|(key, value)| {
            let value = json(value, &join(path, &key))?;
            Ok((key, value))
        })
        .collect()
}

/// TOML as JSON. Dates become text; numbers that JSON cannot say are errors.
fn json(value: toml::Value, path: &str) -> Result<Value, TaskError> {
    Ok(match value {
        toml::Value::String(text) => Value::String(text),
        toml::Value::Integer(number) => number.into(),
        toml::Value::Boolean(word) => word.into(),
        toml::Value::Datetime(date) => Value::String(date.to_string()),
        toml::Value::Float(number) => serde_json::Number::from_f64(number)
            .map(Value::Number)
            .ok_or_else(|| TaskError::BadValue {
                path: path.to_owned(),
                problem: format!("is {number}, not a finite number"),
            })?,
        toml::Value::Array(values) => values
            .into_iter()
            .enumerate()
            .map(|(index, value)| json(value, &format!("{path}[{index}]")))
            .collect::<Result<_, _>>()?,
        toml::Value::Table(table) => Value::Object(json_table(table, path)?),
    })
}

#[cfg(test)]
mod tests;
