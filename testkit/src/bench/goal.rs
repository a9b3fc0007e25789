//! Goals, and whether they are met.

use super::measurement::Sample;
use std::collections::BTreeMap;

/// A goal for a number that is taken from samples, once a repetition, and whose median counts.
#[derive(Clone, Debug, PartialEq)]
pub struct Goal {
    /// What it is called in the table.
    pub name: String,
    /// The number.
    number: Number,
    /// What it should be.
    pub bound: Bound,
}

/// What a number should be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bound {
    /// No more than this.
    AtMost(f64),
    /// No less than this.
    AtLeast(f64),
}

impl Bound {
    /// Whether a value is within it.
    #[must_use]
    pub fn is_met_by(self, value: f64) -> bool {
        match self {
            Self::AtMost(most) => value <= most,
            Self::AtLeast(least) => value >= least,
        }
    }
}

/// How a number is taken from the samples of a repetition.
#[derive(Clone, Debug, PartialEq)]
enum Number {
    /// A value of a target.
    Value(Source),
    /// The quotient of one target's value and another's.
    Ratio(Source, Source),
    /// One target's value less another's.
    Difference(Source, Source),
    /// The sum of several values.
    Sum(Vec<Source>),
}

/// Where a value comes from.
#[derive(Clone, Debug, PartialEq)]
struct Source {
    scenario: String,
    target: String,
    value: String,
}

impl Source {
    fn new(scenario: &str, target: &str, value: &str) -> Self {
        Self {
            scenario: scenario.into(),
            target: target.into(),
            value: value.into(),
        }
    }

    /// The median of its values in a repetition.
    fn of(&self, samples: &[Sample], repetition: usize) -> Option<f64> {
        let here = samples.iter().filter(|sample| {
            sample.repetition == repetition
                && sample.scenario == self.scenario
                && sample.target == self.target
        });
        median(
            here.filter_map(|sample| sample.values.get(&self.value))
                .copied()
                .collect(),
        )
    }
}

impl Goal {
    /// A goal for a value of a target in a scenario.
    #[must_use]
    pub fn of_value(scenario: &str, target: &str, value: &str, bound: Bound) -> Self {
        let number = Number::Value(Source::new(scenario, target, value));
        Self {
            name: format!("{scenario}: {value}"),
            number,
            bound,
        }
    }

    /// The goals for a capturing proxy against the byte copy `floor`. The figures of the Python proxy it replaces are
    /// taken through the ratio to the byte copy that was measured together with them, at 16 connections: 27 of 642 turns a
    /// second streamed, 42 of 7665 unary.
    #[must_use]
    pub fn of_proxy(proxy: &str) -> Vec<Self> {
        const PYTHON_STREAMED: f64 = 27.0 / 642.0;
        const PYTHON_UNARY: f64 = 42.0 / 7665.0;
        let ratio = |name: &str, scenario: &str, value: &str, bound| Self {
            name: format!("{scenario}: {name}"),
            number: Number::Ratio(
                Source::new(scenario, proxy, value),
                Source::new(scenario, "floor", value),
            ),
            bound,
        };
        let mut goals = vec![
            ratio(
                "CPU a turn, of the byte copy's",
                "stream-c16",
                "cpu_s_per_1000_turns",
                Bound::AtMost(2.5),
            ),
            ratio(
                "CPU a turn, of the byte copy's",
                "unary-c16",
                "cpu_s_per_1000_turns",
                Bound::AtMost(5.0),
            ),
        ];
        for connections in [16, 64] {
            for (kind, least) in [("stream", 10.0 * PYTHON_STREAMED), ("unary", 25.0 * PYTHON_UNARY)] {
                let scenario = format!("{kind}-c{connections}");
                goals.push(ratio(
                    "turns a second, of the byte copy's",
                    &scenario,
                    "turns_per_s",
                    Bound::AtLeast(least),
                ));
            }
        }
        let first_token = |target| Source::new("stream-c1", target, "first_token_p50_ms");
        goals.push(Self {
            name: "stream-c1: added time to first token, ms".into(),
            number: Number::Difference(first_token(proxy), first_token("direct")),
            bound: Bound::AtMost(1.0),
        });
        let startup = |value, most| Self::of_value("startup", proxy, value, Bound::AtMost(most));
        goals.extend([startup("idle_rss_mb", 10.0), startup("cold_start_ms", 50.0)]);
        for kind in ["stream", "unary"] {
            let scenario = format!("{kind}-c256");
            let values = ["errors", "leaked_logprobs_turns", "leaked_ids_turns"];
            let sources = values.map(|value| Source::new(&scenario, proxy, value));
            goals.push(Self {
                name: format!("{scenario}: errors and leaks"),
                number: Number::Sum(sources.into()),
                bound: Bound::AtMost(0.0),
            });
        }
        goals
    }

    /// The goals for the same proxy behind a relay: that adds at most as much again.
    #[must_use]
    pub fn of_relay(relayed: &str, proxy: &str) -> Vec<Self> {
        let goal = |scenario: &str| Self {
            name: format!("{scenario}: CPU a turn behind a relay, of the proxy's alone"),
            number: Number::Ratio(
                Source::new(scenario, relayed, "cpu_s_per_1000_turns"),
                Source::new(scenario, proxy, "cpu_s_per_1000_turns"),
            ),
            bound: Bound::AtMost(2.0),
        };
        vec![goal("stream-c16"), goal("unary-c16")]
    }

    /// The number, as the median over repetitions; `None` where it was not measured.
    #[must_use]
    pub fn number(&self, samples: &[Sample]) -> Option<f64> {
        let repetitions = samples
            .iter()
            .map(|sample| (sample.repetition, ()))
            .collect::<BTreeMap<_, _>>();
        let numbers = repetitions.keys().filter_map(|&repetition| {
            let of = |source: &Source| source.of(samples, repetition);
            match &self.number {
                Number::Value(source) => of(source),
                Number::Ratio(over, under) => Some(of(over)? / of(under)?).filter(|ratio| ratio.is_finite()),
                Number::Difference(from, less) => Some(of(from)? - of(less)?),
                Number::Sum(sources) => sources.iter().map(of).sum(),
            }
        });
        median(numbers.collect())
    }
}

/// The median; `None` of nothing.
#[must_use]
pub fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let upper = values.get(values.len() / 2)?;
    let lower = values.get((values.len() - 1) / 2)?;
    Some(f64::midpoint(*lower, *upper))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(target: &str, repetition: usize, value: f64) -> Sample {
        Sample {
            scenario: "stream-c16".into(),
            target: target.into(),
            repetition,
            values: BTreeMap::from([("cpu_s_per_1000_turns".to_owned(), value)]),
            error: None,
        }
    }

    #[test]
    fn ratios_are_taken_within_a_repetition_and_their_median_counts() {
        let goal = Goal::of_proxy("tap").remove(0);
        // The machine was three times slower in the second repetition; both targets were.
        let samples = [
            sample("tap", 0, 2.0),
            sample("floor", 0, 1.0),
            sample("tap", 1, 6.0),
            sample("floor", 1, 3.0),
            sample("tap", 2, 2.2),
            sample("floor", 2, 1.0),
        ];
        assert_eq!(goal.number(&samples), Some(2.0));
        assert!(goal.bound.is_met_by(2.5) && !goal.bound.is_met_by(2.51));
        assert_eq!(goal.number(&samples[..1]), None);
    }

    #[test]
    fn the_median_of_an_even_number_is_between_the_middle_two() {
        assert_eq!(median(vec![4.0, 1.0, 3.0, 2.0]), Some(2.5));
        assert_eq!(median(Vec::new()), None);
    }
}
