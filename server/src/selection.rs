//! What a trainer wants of trajectories, as command lines and queries say it.

use crate::render::word;
use dressage_wire::call::Purpose;
use dressage_wire::trajectory::{Keep, Selection, SubagentReward};

/// Keys of a query that say it.
pub const KEYS: &[&str] = &["train", "truncated", "subagent_reward", "top_logprobs"];

/// What `export` takes.
#[derive(Clone, Debug, clap::Args)]
pub struct SelectionArguments {
    /// What the calls are made for that are trained, with commas: agent, subagent, title, summary.
    #[arg(long, value_name = "PURPOSES", default_value = "agent", value_parser = purposes)]
    train: Purposes,
    /// Turns that a token limit ended: keep trains them, drop does not.
    #[arg(long, value_name = "WHAT", default_value_t)]
    truncated: Keep,
    /// The reward of sub-agents' sequences: shared is the rollout's, none is null.
    #[arg(long, value_name = "WHOSE", default_value_t)]
    subagent_reward: SubagentReward,
    /// The alternatives at each position, in native rows: keep or drop.
    #[arg(long, value_name = "WHAT", default_value_t)]
    top_logprobs: Keep,
}

/// A list, which clap is not to take apart.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Purposes(Vec<Purpose>);

impl From<&SelectionArguments> for Selection {
    fn from(arguments: &SelectionArguments) -> Self {
        Self {
            purposes: arguments.train.0.clone(),
            truncated: arguments.truncated,
            subagent_reward: arguments.subagent_reward,
            top_logprobs: arguments.top_logprobs,
        }
    }
}

/// Takes a key of a query; `None` where it is not one of [`KEYS`].
pub fn set(selection: &mut Selection, key: &str, value: &str) -> Option<Result<(), String>> {
    fn take<T>(to: &mut T, read: Result<T, impl ToString>) -> Result<(), String> {
        *to = read.map_err(|error| error.to_string())?;
        Ok(())
    }
    Some(match key {
        "train" => take(
            &mut selection.purposes,
            purposes(value).map(|purposes| purposes.0),
        ),
        "truncated" => take(&mut selection.truncated, value.parse()),
        "subagent_reward" => take(&mut selection.subagent_reward, value.parse()),
        "top_logprobs" => take(&mut selection.top_logprobs, value.parse()),
        _ => return None,
    })
}

fn purposes(text: &str) -> Result<Purposes, String> {
    let purpose = |name: &str| {
        let known = Selection::PURPOSES
            .into_iter()
            .find(|purpose| word(purpose) == name);
        known.ok_or_else(|| {
            let known = Selection::PURPOSES.map(|purpose| word(&purpose)).join(", ");
            format!("`{name}` is not trained; known are {known}")
        })
    };
    let named: Result<Vec<Purpose>, String> = text.split(',').map(str::trim).map(purpose).collect();
    named.map(Purposes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_says_the_same_as_a_command_line() {
        let mut selection = Selection::default();
        for (key, value) in [
            ("train", "agent,subagent"),
            ("truncated", "drop"),
            ("subagent_reward", "none"),
            ("top_logprobs", "drop"),
        ] {
            assert!(KEYS.contains(&key));
            assert_eq!(set(&mut selection, key, value), Some(Ok(())), "{key}");
        }
        let expected = Selection {
            purposes: vec![Purpose::Agent, Purpose::Subagent],
            truncated: Keep::Drop,
            subagent_reward: SubagentReward::None,
            top_logprobs: Keep::Drop,
        };
        assert_eq!(selection, expected);
        assert_eq!(set(&mut selection, "shape", "verl"), None);
        let error = set(&mut selection, "train", "foreign").unwrap().unwrap_err();
        assert_eq!(
            error,
            "`foreign` is not trained; known are agent, subagent, title, summary"
        );
        assert_eq!(
            set(&mut selection, "truncated", "x"),
            Some(Err("known are keep, drop".into()))
        );
    }
}
