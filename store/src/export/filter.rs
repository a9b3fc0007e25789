use crate::rows::{ListFilter, RolloutRow, word};
use dressage_wire::call::Flag;
use dressage_wire::rollout::RolloutState;
use dressage_wire::trajectory::Trajectory;
use serde::de::{DeserializeOwned, IntoDeserializer};
use std::str::FromStr;

/// Which rollouts are exported: all terms must hold.
///
/// Written as terms with spaces between them: `reward>=0.5 agent=opencode -flag=truncated`. A term is a key, one of
/// `= != >= <= > <`, and a value, in double quotes where it has spaces. A minus before a term turns it around. Words take
/// `=` and `!=` only.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ExportFilter {
    terms: Vec<Term>,
}

#[derive(Clone, Debug, PartialEq)]
struct Term {
    condition: Condition,
    holds: bool,
}

#[derive(Clone, Debug, PartialEq)]
enum Condition {
    /// A call has it.
    Flag(Flag),
    State(RolloutState),
    Word(&'static str, String),
    Number(&'static str, Comparison, f64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Comparison {
    Equal,
    AtLeast,
    AtMost,
    Above,
    Below,
}

const WORDS: &[&str] = &[
    "task",
    "agent",
    "agent_version",
    "endpoint",
    "backend",
    "model",
    "group",
    "ended",
    "fault",
    "level",
];
const NUMBERS: &[&str] = &[
    "reward",
    "sample",
    "calls",
    "trainable_calls",
    "trainable_tokens",
    "completion_tokens",
    "prefix_breaks",
    "wall_ms",
    "created_unix_ms",
];

/// A filter that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{term}`: {problem}")]
pub struct FilterError {
    /// The term.
    pub term: String,
    /// What is wrong with it.
    pub problem: String,
}

impl ExportFilter {
    /// What narrows down which rollouts are read at all. Those that are not over are left out unless a state is asked for.
    pub(super) fn listed(&self) -> ListFilter {
        let mut filter = ListFilter::default();
        for term in &self.terms {
            match &term.condition {
                Condition::State(state) if term.holds => filter.states.push(*state),
                Condition::Word(key, value) if term.holds => {
                    let place = match *key {
                        "task" => &mut filter.task_id,
                        "agent" => &mut filter.agent,
                        "endpoint" => &mut filter.endpoint,
                        "backend" => &mut filter.backend,
                        "model" => &mut filter.model,
                        _ => continue,
                    };
                    *place = Some(value.clone());
                }
                _ => {}
            }
        }
        if !self
            .terms
            .iter()
            .any(|term| matches!(term.condition, Condition::State(_)))
        {
            filter.states = vec![RolloutState::Finished];
        }
        filter
    }

    /// Whether the row of a rollout fits.
    pub(super) fn fits_row(&self, row: &RolloutRow) -> bool {
        self.terms.iter().all(|term| {
            let is = match &term.condition {
                Condition::Flag(_) => return true,
                Condition::State(state) => row.state == *state,
                Condition::Word(key, value) => text_of(row, key).as_deref() == Some(value.as_str()),
                Condition::Number(key, comparison, value) => {
                    number_of(row, key).is_some_and(|number| comparison.holds(number, *value))
                }
            };
            is == term.holds
        })
    }

    /// Whether the calls of a rollout fit.
    pub(super) fn fits_calls(&self, trajectory: &Trajectory) -> bool {
        self.terms.iter().all(|term| match &term.condition {
            Condition::Flag(flag) => trajectory.calls().any(|call| call.flags.contains(flag)) == term.holds,
            _ => true,
        })
    }

    fn add(&mut self, text: &str) -> Result<(), FilterError> {
        let error = |problem: String| FilterError {
            term: text.to_owned(),
            problem,
        };
        let (positive, negated) = match text.strip_prefix('-') {
            Some(rest) => (rest, true),
            None => (text, false),
        };
        let at = positive
            .find(['=', '!', '<', '>'])
            .ok_or_else(|| error("is none of KEY=VALUE, KEY!=VALUE, KEY>=NUMBER and so on".into()))?;
        let (key, rest) = positive.split_at(at);
        let operators = [
            ("!=", Comparison::Equal, false),
            (">=", Comparison::AtLeast, true),
            ("<=", Comparison::AtMost, true),
            ("=", Comparison::Equal, true),
            (">", Comparison::Above, true),
            ("<", Comparison::Below, true),
        ];
        let found = operators.into_iter().find_map(|(operator, comparison, holds)| {
            Some((comparison, holds, rest.strip_prefix(operator)?.to_owned()))
        });
        let (comparison, holds, value) =
            found.ok_or_else(|| error("has no operator that is known".into()))?;
        let known = |list: &[&'static str]| list.iter().copied().find(|known| *known == key);
        let condition = if let Some(key) = known(NUMBERS) {
            let number = value.parse::<f64>().ok().filter(|number| number.is_finite());
            let number = number.ok_or_else(|| error(format!("`{value}` is not a number")))?;
            Condition::Number(key, comparison, number)
        } else if comparison != Comparison::Equal {
            return Err(error(
                match known(WORDS).is_some() || matches!(key, "flag" | "state") {
                    true => format!("`{key}` takes = and != only"),
                    false => unknown_key(key),
                },
            ));
        } else if let Some(key) = known(WORDS) {
            Condition::Word(key, value)
        } else {
            match key {
                "flag" => Condition::Flag(read_word(&value).map_err(error)?),
                "state" => Condition::State(read_word(&value).map_err(error)?),
                other => return Err(error(unknown_key(other))),
            }
        };
        let holds = holds != negated;
        self.terms.push(Term { condition, holds });
        Ok(())
    }
}

fn unknown_key(key: &str) -> String {
    let known: Vec<&str> = WORDS
        .iter()
        .chain(NUMBERS)
        .chain(&["flag", "state"])
        .copied()
        .collect();
    format!("`{key}` is not known; known are {}", known.join(", "))
}

fn read_word<T: DeserializeOwned>(value: &str) -> Result<T, String> {
    T::deserialize(value.into_deserializer()).map_err(|error: serde::de::value::Error| error.to_string())
}

impl FromStr for ExportFilter {
    type Err = FilterError;

    fn from_str(text: &str) -> Result<Self, FilterError> {
        let mut filter = Self::default();
        let (mut term, mut quoted) = (String::new(), false);
        for character in text.chars() {
            match character {
                '"' => quoted = !quoted,
                space if space.is_whitespace() && !quoted => {
                    if !term.is_empty() {
                        filter.add(&std::mem::take(&mut term))?;
                    }
                }
                other => term.push(other),
            }
        }
        if quoted {
            return Err(FilterError {
                term,
                problem: "a quote is not closed".into(),
            });
        }
        if !term.is_empty() {
            filter.add(&term)?;
        }
        Ok(filter)
    }
}

impl Comparison {
    fn holds(self, number: f64, value: f64) -> bool {
        match self {
            // Who asks for a value exactly means it exactly.
            Self::Equal => number == value,
            Self::AtLeast => number >= value,
            Self::AtMost => number <= value,
            Self::Above => number > value,
            Self::Below => number < value,
        }
    }
}

fn text_of(row: &RolloutRow, key: &str) -> Option<String> {
    match key {
        "task" => row.task_id.clone(),
        "agent" => Some(row.agent.clone()),
        "agent_version" => Some(row.agent_version.clone()),
        "endpoint" => Some(row.endpoint.clone()),
        "backend" => Some(row.backend.clone()),
        "model" => Some(row.model.clone()),
        "group" => row.group.map(|group| group.to_string()),
        "ended" => row.ended.as_ref().and_then(word),
        // By whose fault, or by its code.
        "fault" => row.fault_code.clone(),
        "level" => row.totals.level.as_ref().and_then(word),
        _ => None,
    }
}

fn number_of(row: &RolloutRow, key: &str) -> Option<f64> {
    match key {
        "reward" => row.reward,
        "sample" => Some(f64::from(row.sample)),
        "calls" => Some(row.totals.calls as f64),
        "trainable_calls" => Some(row.totals.trainable_calls as f64),
        "trainable_tokens" => Some(row.totals.trainable_tokens as f64),
        "completion_tokens" => Some(row.totals.completion_tokens as f64),
        "prefix_breaks" => Some(row.totals.prefix_breaks as f64),
        "wall_ms" => row.wall_ms.map(|wall| wall as f64),
        "created_unix_ms" => Some(row.created_unix_ms as f64),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dressage_wire::ids::{OwnerId, RolloutId};
    use dressage_wire::rollout::Totals;

    fn row() -> RolloutRow {
        RolloutRow {
            id: RolloutId::new(),
            owner: OwnerId::new(),
            state: RolloutState::Finished,
            task_id: Some("a task".into()),
            title: "t".into(),
            group: None,
            sample: 0,
            agent: "opencode".into(),
            agent_version: "1".into(),
            backend: "local".into(),
            endpoint: "demo".into(),
            model: "m".into(),
            priority: 0,
            created_unix_ms: 1,
            started_unix_ms: Some(1),
            finished_unix_ms: Some(2),
            wall_ms: Some(1),
            ended: Some(dressage_wire::fault::Ended::Completed),
            reward: Some(0.5),
            fault_code: None,
            fault_owner: None,
            totals: Totals::default(),
        }
    }

    #[test]
    fn terms_are_read_and_all_must_hold() {
        let fits = |filter: &str| filter.parse::<ExportFilter>().unwrap().fits_row(&row());
        for holds in [
            "",
            "reward>=0.5",
            "reward=0.5 agent=opencode",
            "task=\"a task\"",
            "-task=b",
            "task!=b",
            "reward<1 reward>0 ended=completed state=finished calls=0",
            "-fault=agent_timeout",
        ] {
            assert!(fits(holds), "{holds}");
        }
        for fails in [
            "reward>0.5",
            "-reward=0.5",
            "agent=codex",
            "state=running",
            "fault!=x fault=y",
        ] {
            assert!(!fits(fails), "{fails}");
        }
        let mut unrewarded = row();
        unrewarded.reward = None;
        let filter: ExportFilter = "reward>=0".parse().unwrap();
        assert!(!filter.fits_row(&unrewarded), "no verdict is no number");
    }

    #[test]
    fn what_is_wrong_in_a_filter_is_named() {
        for (filter, part) in [
            ("reward", "is none of"),
            ("reward>=high", "`high` is not a number"),
            ("reward>=nan", "`nan` is not a number"),
            ("agnt=x", "`agnt` is not known"),
            ("agent>x", "takes = and != only"),
            ("flag=truncted", "unknown variant `truncted`"),
            ("task=\"a", "a quote is not closed"),
        ] {
            let error = filter.parse::<ExportFilter>().unwrap_err().to_string();
            assert!(error.contains(part), "{filter}: {error}");
        }
    }

    #[test]
    fn rollouts_that_are_not_over_are_left_out_unless_asked_for() {
        let listed = |filter: &str| filter.parse::<ExportFilter>().unwrap().listed().states;
        assert_eq!(listed("agent=x"), [RolloutState::Finished]);
        assert_eq!(listed("state=interrupted"), [RolloutState::Interrupted]);
        assert!(listed("-state=running").is_empty());
    }
}
