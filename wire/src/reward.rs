use crate::task::RewardRange;
use serde::{Deserialize, Serialize};

/// The verdict on a rollout, with what it rests on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Reward {
    /// Passed / total, or the override; `None` where there is no verdict.
    pub value: Option<f64>,
    /// Whether a verify command wrote the value itself.
    pub overridden: bool,
    /// Who gave the value.
    #[serde(default)]
    pub source: RewardSource,
    /// Each verify command, in order; behind them, where the caller gave the value, the commands of the hold.
    pub commands: Vec<CommandResult>,
    /// What kept the agent's leavings away from verify.
    pub separation: Separation,
    /// What the caller of a held rollout said about it, at most [`DETAIL_MAX_BYTES`] as JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<Object>))]
    pub detail: Option<serde_json::Map<String, serde_json::Value>>,
}

/// Who gave a reward its value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum RewardSource {
    /// The exit codes of the verify commands.
    #[default]
    Verify,
    /// A verify command, in reward.txt.
    Override,
    /// The caller, while the rollout was held.
    Caller,
}

/// One command of setup or verify, and what came of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct CommandResult {
    /// The shell text.
    pub command: String,
    /// Exit code; 124 after a timeout, 128 + n after signal n, -1 if it could not be run.
    pub exit_code: i32,
    /// The signal that ended it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// Whether the deadline ended it.
    #[serde(default)]
    pub timed_out: bool,
    /// The end of its standard output.
    pub stdout: String,
    /// The end of its standard error.
    pub stderr: String,
    /// Bytes that it wrote to both in all.
    pub output_bytes: u64,
    /// Wall time.
    pub duration_ms: u64,
}

/// What kept the agent's leavings away from verify.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Separation {
    /// A second sandbox that only the outputs were copied to.
    Fresh,
    /// Other pid and mount namespaces over the same home.
    Namespace,
    /// Another user id.
    Uid,
    /// Nothing but the end of the agent's processes.
    None,
}

/// Bytes of JSON that a caller can give with a reward.
pub const DETAIL_MAX_BYTES: usize = 64 * 1024;

/// Bytes of a reward.txt that are read; a longer one is no reward.
pub const OVERRIDE_MAX_BYTES: u64 = 4096;

/// Passed / total; `None` without any command.
#[must_use]
pub fn passed_share(commands: &[CommandResult]) -> Option<f64> {
    let passed = commands.iter().filter(|result| result.exit_code == 0).count();
    // Both counts are far below 2^53.
    (!commands.is_empty()).then(|| passed as f64 / commands.len() as f64)
}

/// Reads what a verify command wrote to reward.txt: one decimal number, with white space around it at most.
///
/// # Errors
/// What is there is not one finite number in `range`.
pub fn parse_override(content: &[u8], range: RewardRange) -> Result<f64, OverrideError> {
    let text = std::str::from_utf8(content)
        .map_err(|_| OverrideError::NotText)?
        .trim();
    if text.is_empty() {
        return Err(OverrideError::Empty);
    }
    let value: f64 = text
        .parse()
        .map_err(|_| OverrideError::NotANumber { text: shown(text) })?;
    check(value, range)
}

/// A value as a reward: itself, if it is finite and in `range`.
///
/// # Errors
/// It is not.
pub fn check(value: f64, range: RewardRange) -> Result<f64, OverrideError> {
    if !value.is_finite() {
        return Err(OverrideError::NotFinite {
            text: value.to_string(),
        });
    }
    if !(range.min..=range.max).contains(&value) {
        return Err(OverrideError::OutOfRange {
            value,
            min: range.min,
            max: range.max,
        });
    }
    // Minus zero becomes zero.
    Ok(value + 0.0)
}

fn shown(text: &str) -> String {
    text.chars().take(40).flat_map(char::escape_debug).collect()
}

/// Why the content of a reward.txt is no reward.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum OverrideError {
    /// Nothing, or white space only.
    #[error("it is empty")]
    Empty,
    /// Invalid UTF-8.
    #[error("it is not text")]
    NotText,
    /// Something else than one number.
    #[error("`{text}` is not one number")]
    NotANumber {
        /// Its beginning.
        text: String,
    },
    /// Infinite, or no number at all.
    #[error("`{text}` is not finite")]
    NotFinite {
        /// Its beginning.
        text: String,
    },
    /// Outside of the task's range.
    #[error("{value} is not between {min} and {max}")]
    OutOfRange {
        /// The number.
        value: f64,
        /// Lowest reward of the task.
        min: f64,
        /// Highest reward of the task.
        max: f64,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(content: &str) -> Result<f64, OverrideError> {
        parse_override(content.as_bytes(), RewardRange::default())
    }

    #[test]
    fn one_finite_number_in_the_range_is_a_reward() {
        for (text, value) in [
            ("0.25", 0.25),
            (" 1\n", 1.0),
            ("0", 0.0),
            ("1e-3\r\n", 0.001),
            ("+.5", 0.5),
        ] {
            assert_eq!(parse(text), Ok(value), "{text:?}");
        }
        assert!(parse("-0").unwrap().is_sign_positive());
        let wide = RewardRange { min: -1.0, max: 2.0 };
        assert_eq!(parse_override(b"-0.5", wide), Ok(-0.5));
        assert_eq!(parse_override(b"1.5", wide), Ok(1.5));
    }

    #[test]
    fn overrides_nan_inf_negative_too_large_empty_and_two_numbers_are_no_rewards() {
        for text in ["nan", "NaN", "-nan", "inf", "-inf", "infinity", "1e999"] {
            let error = parse(text).unwrap_err();
            let is_named = matches!(
                error,
                OverrideError::NotFinite { .. } | OverrideError::NotANumber { .. }
            );
            assert!(is_named, "{text}: {error}");
        }
        assert_eq!(
            parse("-0.5"),
            Err(OverrideError::OutOfRange {
                value: -0.5,
                min: 0.0,
                max: 1.0
            })
        );
        assert_eq!(
            parse("1.5"),
            Err(OverrideError::OutOfRange {
                value: 1.5,
                min: 0.0,
                max: 1.0
            })
        );
        assert_eq!(parse(""), Err(OverrideError::Empty));
        assert_eq!(parse(" \n\t"), Err(OverrideError::Empty));
        for text in [
            "0.5 0.6",
            "0.5\n0.6",
            "0,5",
            "0x1",
            "one",
            "1/2",
            "1_0",
            "\u{feff}1",
        ] {
            assert!(
                matches!(parse(text), Err(OverrideError::NotANumber { .. })),
                "{text:?}"
            );
        }
        assert_eq!(
            parse_override(b"\xff\xfe1", RewardRange::default()),
            Err(OverrideError::NotText)
        );
    }

    #[test]
    fn what_is_shown_of_a_bad_override_is_short_and_has_no_control_characters() {
        let text = format!("\u{1b}[31m{}", "x".repeat(1000));
        let message = parse(&text).unwrap_err().to_string();
        assert!(message.len() < 120 && !message.contains('\u{1b}'), "{message}");
    }

    #[test]
    fn a_reward_that_was_stored_before_there_was_a_source_is_read() {
        let stored = r#"{"value": 0.5, "overridden": false, "commands": [], "separation": "namespace"}"#;
        let reward: Reward = serde_json::from_str(stored).unwrap();
        assert_eq!((reward.source, reward.detail), (RewardSource::Verify, None));
    }

    #[test]
    fn a_value_is_checked_as_what_a_command_writes_is() {
        let range = RewardRange::default();
        assert_eq!(check(-0.0, range).map(f64::is_sign_positive), Ok(true));
        assert!(check(f64::NAN, range).is_err() && check(f64::NEG_INFINITY, range).is_err());
        assert!(matches!(check(1.5, range), Err(OverrideError::OutOfRange { .. })));
    }

    #[test]
    fn the_share_of_no_commands_is_no_reward() {
        assert_eq!(passed_share(&[]), None);
    }
}
