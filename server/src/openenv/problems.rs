use serde::Serialize;
use serde_json::{Value, json};

/// One thing that is wrong with a request, in the form of pydantic, which clients print.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Problem {
    /// A stable word of pydantic's.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// The place.
    pub loc: Vec<Value>,
    /// What is wrong.
    pub msg: String,
    /// What was given.
    pub input: Value,
    /// What it was held against.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ctx: Option<Value>,
}

impl Problem {
    /// A key that must be there is not.
    pub fn missing(loc: Vec<Value>, input: &Value) -> Self {
        Self::new("missing", loc, "Field required", input)
    }

    /// A key that means nothing.
    pub fn extra(loc: Vec<Value>, input: &Value) -> Self {
        Self::new("extra_forbidden", loc, "Extra inputs are not permitted", input)
    }

    /// Something else.
    pub fn new(kind: &'static str, loc: Vec<Value>, msg: impl Into<String>, input: &Value) -> Self {
        Self {
            kind,
            loc,
            msg: msg.into(),
            input: input.clone(),
            ctx: None,
        }
    }

    /// With what it was held against.
    #[must_use]
    pub fn context(mut self, context: Value) -> Self {
        self.ctx = Some(context);
        self
    }

    /// As pydantic's exceptions print it.
    #[must_use]
    pub fn line(&self) -> String {
        let place: Vec<_> = self
            .loc
            .iter()
            .map(|part| part.as_str().map_or_else(|| part.to_string(), str::to_owned))
            .collect();
        format!(
            "{}\n  {} [type={}, input_value={}]",
            place.join("."),
            self.msg,
            self.kind,
            shown(&self.input)
        )
    }
}

/// A value, cut to what a message can hold.
fn shown(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(100) {
        Some((end, _)) => format!("{}...", text.get(..end).unwrap_or("")),
        None => text,
    }
}

/// What an exception of pydantic prints.
pub fn report(title: &str, problems: &[Problem]) -> String {
    let plural = if problems.len() == 1 { "" } else { "s" };
    let lines: Vec<_> = problems.iter().map(Problem::line).collect();
    format!(
        "{} validation error{plural} for {title}\n{}",
        problems.len(),
        lines.join("\n")
    )
}

/// Reads `seed` and `episode_id` of a reset; what else is there is left alone.
pub fn reset_options(data: &Value, above: &[Value]) -> Result<Option<String>, Vec<Problem>> {
    let place = |key: &str| above.iter().cloned().chain([json!(key)]).collect::<Vec<_>>();
    let mut problems = Vec::new();
    match data.get("seed") {
        None | Some(Value::Null) => {}
        Some(seed) => match seed.as_f64().filter(|seed| seed.fract() == 0.0) {
            Some(number) if number >= 0.0 => {}
            Some(_) => problems.push(
                Problem::new(
                    "greater_than_equal",
                    place("seed"),
                    "Input should be greater than or equal to 0",
                    seed,
                )
                .context(json!({"ge": 0})),
            ),
            None => problems.push(Problem::new(
                "int_type",
                place("seed"),
                "Input should be a valid integer",
                seed,
            )),
        },
    }
    let episode = match data.get("episode_id") {
        None | Some(Value::Null) => None,
        Some(Value::String(id)) if id.chars().count() > 255 => {
            problems.push(
                Problem::new(
                    "string_too_long",
                    place("episode_id"),
                    "String should have at most 255 characters",
                    &json!(id),
                )
                .context(json!({"max_length": 255})),
            );
            None
        }
        Some(Value::String(id)) => Some(id.clone()),
        Some(other) => {
            problems.push(Problem::new(
                "string_type",
                place("episode_id"),
                "Input should be a valid string",
                other,
            ));
            None
        }
    };
    if problems.is_empty() {
        Ok(episode)
    } else {
        Err(problems)
    }
}
