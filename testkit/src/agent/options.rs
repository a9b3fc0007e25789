//! The command line and the variables. Variables are looked up by the caller, so that nothing here reads them by itself.

use super::Misbehaviour;
use serde_json::Value;

/// How the agent is to behave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentOptions {
    /// Base URL of the model, `/v1` included.
    pub base_url: String,
    /// Sent as a bearer token.
    pub api_key: String,
    /// The model to ask for.
    pub model: String,
    /// How arguments of tool calls are sent back.
    pub arguments: ArgumentStyle,
    /// Attempts after the first that fails by status 429 or 5xx, or by connection; made at once.
    pub retries: u32,
    /// What it does wrong on purpose.
    pub misbehaviours: Vec<Misbehaviour>,
}

/// How arguments of tool calls are sent back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ArgumentStyle {
    /// Parsed and written anew without spaces, as OpenCode does.
    #[default]
    Compact,
    /// As they came.
    Verbatim,
}

/// Why the agent does not know what to do.
#[derive(Debug, thiserror::Error)]
pub enum OptionsError {
    /// An argument nobody knows.
    #[error("unknown argument {argument:?}")]
    UnknownArgument {
        /// The argument.
        argument: String,
    },
    /// An option without its value.
    #[error("{option} needs a value")]
    NoValue {
        /// The option.
        option: String,
    },
    /// A value that an option does not take.
    #[error("{value:?} is no value for {option}")]
    BadValue {
        /// The option.
        option: &'static str,
        /// The value.
        value: String,
    },
    /// Nothing says where the model is.
    #[error("no base URL: neither --base-url, SCRIPTED_AGENT_BASE_URL nor OPENCODE_CONFIG_CONTENT gives one")]
    NoBaseUrl,
    /// OpenCode's configuration is no JSON.
    #[error("OPENCODE_CONFIG_CONTENT cannot be read")]
    BadConfig {
        /// What the parser says.
        source: serde_json::Error,
    },
}

/// Options of `opencode run` that take a value and change nothing here.
const IGNORED_WITH_VALUE: [&str; 12] = [
    "--format",
    "--title",
    "--agent",
    "--log-level",
    "--variant",
    "--dir",
    "--port",
    "-s",
    "--session",
    "-f",
    "--file",
    "--attach",
];
/// Words of `opencode run` that change nothing here.
const IGNORED: [&str; 8] = [
    "run",
    "--auto",
    "--print-logs",
    "--pure",
    "--thinking",
    "--share",
    "--fork",
    "--continue",
];

impl AgentOptions {
    /// Reads arguments (the program's name left out) and variables. Arguments win over `SCRIPTED_AGENT_*`, these over
    /// OpenCode's configuration.
    ///
    /// # Errors
    /// Where an argument is unknown, a value is not understood, or nothing says where the model is.
    pub fn read(
        arguments: impl IntoIterator<Item = String>,
        variable: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Self, OptionsError> {
        let config = OpenCodeConfig::read(variable)?;
        let own = |name: &str| variable(&format!("SCRIPTED_AGENT_{name}"));
        let mut base_url = own("BASE_URL").or(config.base_url);
        let mut api_key = own("API_KEY").or(config.api_key);
        let mut model = own("MODEL").or(config.model);
        let mut misbehaviours = own("MISBEHAVE");
        let mut style = own("ARGUMENTS");
        let mut retries = own("RETRIES");
        let mut arguments = arguments.into_iter();
        while let Some(argument) = arguments.next() {
            let slot = match argument.as_str() {
                "--base-url" => &mut base_url,
                "--api-key" => &mut api_key,
                "--model" | "-m" => &mut model,
                "--misbehave" => &mut misbehaviours,
                "--arguments" => &mut style,
                "--retries" => &mut retries,
                ignored if IGNORED_WITH_VALUE.contains(&ignored) => &mut None,
                ignored if IGNORED.contains(&ignored) => continue,
                _ => return Err(OptionsError::UnknownArgument { argument }),
            };
            *slot = Some(
                arguments
                    .next()
                    .ok_or(OptionsError::NoValue { option: argument })?,
            );
        }
        let names = misbehaviours.unwrap_or_default();
        let names = names.split(',').map(str::trim).filter(|name| !name.is_empty());
        let bad = |option, value: &str| OptionsError::BadValue {
            option,
            value: value.into(),
        };
        Ok(Self {
            base_url: base_url.ok_or(OptionsError::NoBaseUrl)?,
            api_key: api_key.unwrap_or_default(),
            // OpenCode names a model by its provider too.
            model: model.map_or_else(
                || "scripted".into(),
                |model| {
                    model
                        .split_once('/')
                        .map_or(model.clone(), |(_, name)| name.to_owned())
                },
            ),
            arguments: match style.as_deref() {
                None | Some("compact") => ArgumentStyle::Compact,
                Some("verbatim") => ArgumentStyle::Verbatim,
                Some(other) => return Err(bad("--arguments", other)),
            },
            retries: match retries.as_deref() {
                None => 0,
                Some(count) => count.parse().map_err(|_| bad("--retries", count))?,
            },
            misbehaviours: names
                .map(|name| Misbehaviour::named(name).ok_or_else(|| bad("--misbehave", name)))
                .collect::<Result<_, _>>()?,
        })
    }

    /// Whether it is to misbehave so.
    #[must_use]
    pub fn misbehaves(&self, misbehaviour: Misbehaviour) -> bool {
        self.misbehaviours.contains(&misbehaviour)
    }
}

/// What `OPENCODE_CONFIG_CONTENT` says of the model.
#[derive(Debug, Default)]
struct OpenCodeConfig {
    base_url: Option<String>,
    api_key: Option<String>,
    model: Option<String>,
}

impl OpenCodeConfig {
    fn read(variable: &dyn Fn(&str) -> Option<String>) -> Result<Self, OptionsError> {
        let Some(text) = variable("OPENCODE_CONFIG_CONTENT") else {
            return Ok(Self::default());
        };
        let config: Value =
            serde_json::from_str(&text).map_err(|source| OptionsError::BadConfig { source })?;
        let model = config.get("model").and_then(Value::as_str);
        let provider = model
            .and_then(|model| model.split_once('/'))
            .map(|(provider, _)| provider);
        let options = provider
            .and_then(|provider| config.get("provider")?.get(provider))
            .map(|provider| &provider["options"]);
        let option = |name: &str| {
            let value = options?.get(name)?.as_str()?;
            match value
                .strip_prefix("{env:")
                .and_then(|value| value.strip_suffix('}'))
            {
                Some(named) => variable(named),
                None => Some(value.to_owned()),
            }
        };
        Ok(Self {
            base_url: option("baseURL"),
            api_key: option("apiKey"),
            model: model.map(str::to_owned),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(arguments: &[&str], variables: &[(&str, &str)]) -> Result<AgentOptions, OptionsError> {
        let variable = |name: &str| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        AgentOptions::read(arguments.iter().map(|&argument| argument.to_owned()), &variable)
    }

    #[test]
    fn the_command_line_and_configuration_of_opencode_are_understood() {
        let config = r#"{"model": "p/some/model", "provider": {"p": {"options": {"baseURL": "http://127.0.0.1:7000/v1",
            "apiKey": "{env:MODEL_KEY}"}}}}"#;
        let options = read(
            &["run", "--format", "json", "--auto", "--title", "rollout"],
            &[
                ("OPENCODE_CONFIG_CONTENT", config),
                ("MODEL_KEY", "sk-1"),
                ("SCRIPTED_AGENT_MISBEHAVE", "foreign, exit_3"),
            ],
        );
        let wanted = AgentOptions {
            base_url: "http://127.0.0.1:7000/v1".into(),
            api_key: "sk-1".into(),
            model: "some/model".into(),
            arguments: ArgumentStyle::Compact,
            retries: 0,
            misbehaviours: vec![Misbehaviour::Foreign, Misbehaviour::Exit3],
        };
        assert_eq!(options.unwrap(), wanted);
    }

    #[test]
    fn what_is_not_understood_is_named() {
        let error = |arguments: &[&str]| read(arguments, &[]).unwrap_err().to_string();
        assert_eq!(error(&["--colour"]), "unknown argument \"--colour\"");
        assert_eq!(error(&["--model"]), "--model needs a value");
        assert!(error(&[]).starts_with("no base URL"));
        let error = |option: &str| {
            read(&["--base-url", "http://x", option, "nope"], &[])
                .unwrap_err()
                .to_string()
        };
        for option in ["--misbehave", "--arguments", "--retries"] {
            assert_eq!(error(option), format!("\"nope\" is no value for {option}"));
        }
    }
}
