//! Results as JSON and as tables.

use super::goal::{Bound, Goal, median};
use super::measurement::Sample;
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;

/// What was measured, and on what.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Results {
    /// The machine.
    pub machine: Machine,
    /// How often everything was measured.
    pub repetitions: usize,
    /// Everything that was taken.
    pub samples: Vec<Sample>,
}

/// The machine, as far as it matters for speed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// Its processor.
    pub processor: String,
    /// Cores of it.
    pub cores: usize,
    /// Its kernel.
    pub kernel: String,
    /// Mean number of processes that wanted to run in the minute before.
    pub load_before: f64,
}

impl Machine {
    /// This machine.
    #[must_use]
    pub fn here() -> Self {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let processors = read("/proc/cpuinfo");
        let name = processors
            .lines()
            .find_map(|line| line.strip_prefix("model name")?.split_once(": "));
        Self {
            processor: name.map_or_else(|| "unknown".into(), |(_, name)| name.trim().into()),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            kernel: read("/proc/sys/kernel/osrelease").trim().into(),
            load_before: read("/proc/loadavg")
                .split(' ')
                .next()
                .and_then(|load| load.parse().ok())
                .unwrap_or(0.0),
        }
    }
}

/// The columns of a scenario's table: title, value, decimals.
const COLUMNS: [(&str, &str, usize); 9] = [
    ("turns/s", "turns_per_s", 0),
    ("turn p50, ms", "turn_p50_ms", 2),
    ("turn p99, ms", "turn_p99_ms", 2),
    ("first token p50, ms", "first_token_p50_ms", 2),
    ("CPU s / 1000 turns", "cpu_s_per_1000_turns", 3),
    ("peak MB", "rss_peak_mb", 0),
    ("errors", "errors", 0),
    ("leaked logprobs", "leaked_logprobs_turns", 0),
    ("leaked ids", "leaked_ids_turns", 0),
];

impl Results {
    /// Goals and tables in Markdown: a section to be put into a page.
    #[must_use]
    pub fn markdown(&self, goals: &[Goal]) -> String {
        let machine = &self.machine;
        let mut text = format!(
            "Measured on {} with {} cores, Linux {}, load {:.1} before, {} interleaved repetitions. Numbers are medians; \
             ratios are taken within a repetition.\n",
            machine.processor, machine.cores, machine.kernel, machine.load_before, self.repetitions
        );
        self.write_goals(&mut text, goals);
        for scenario in distinct(self.samples.iter().map(|sample| sample.scenario.as_str())) {
            self.write_scenario(&mut text, scenario);
        }
        text
    }

    fn write_goals(&self, text: &mut String, goals: &[Goal]) {
        text.push_str("\n| goal | wanted | measured | met |\n| --- | --- | --- | --- |\n");
        for goal in goals {
            let wanted = match goal.bound {
                Bound::AtMost(most) => format!("at most {}", number(most, 3)),
                Bound::AtLeast(least) => format!("at least {}", number(least, 3)),
            };
            let (measured, met) = match goal.number(&self.samples) {
                Some(value) => (
                    number(value, 3),
                    if goal.bound.is_met_by(value) {
                        "yes"
                    } else {
                        "**no**"
                    },
                ),
                None => ("not measured".into(), "–"),
            };
            // Writing to a string cannot fail.
            let _ = writeln!(text, "| {} | {wanted} | {measured} | {met} |", goal.name);
        }
    }

    fn write_scenario(&self, text: &mut String, scenario: &str) {
        let here: Vec<&Sample> = self
            .samples
            .iter()
            .filter(|sample| sample.scenario == scenario)
            .collect();
        let is_load = here
            .iter()
            .any(|sample| sample.values.contains_key("turns_per_s"));
        let columns: Vec<(&str, &str, usize)> = if is_load {
            COLUMNS.into()
        } else {
            distinct(
                here.iter()
                    .flat_map(|sample| sample.values.keys().map(String::as_str)),
            )
            .into_iter()
            .map(|value| (value, value, 2))
            .collect()
        };
        let mut titles: Vec<&str> = columns.iter().map(|(title, _, _)| *title).collect();
        if is_load {
            titles.extend(["turns/s, of floor", "CPU, of floor"]);
        }
        let rule = " --- |".repeat(titles.len());
        let _ = writeln!(
            text,
            "\n`{scenario}`\n\n| target | {} |\n| --- |{rule}",
            titles.join(" | ")
        );
        for target in distinct(here.iter().map(|sample| sample.target.as_str())) {
            let mut cells: Vec<String> = columns
                .iter()
                .map(|(_, value, decimals)| {
                    let values = here.iter().filter(|sample| sample.target == target);
                    let values = values.filter_map(|sample| sample.values.get(*value)).copied();
                    cell(median(values.collect()), *decimals)
                })
                .collect();
            if is_load {
                cells.push(cell(ratio(&here, target, "turns_per_s"), 2));
                // The upstream's CPU stands in the row without a proxy: no ratio.
                let cpu = ratio(&here, target, "cpu_s_per_1000_turns").filter(|_| target != "direct");
                cells.push(cell(cpu, 2));
            }
            let _ = writeln!(text, "| {target} | {} |", cells.join(" | "));
        }
        for sample in here.iter().filter(|sample| sample.error.is_some()) {
            let error = sample.error.as_deref().unwrap_or_default();
            let _ = writeln!(
                text,
                "\n{}, repetition {}: {error}",
                sample.target, sample.repetition
            );
        }
    }
}

/// A value of a target over that of the byte copy, within each repetition.
fn ratio(samples: &[&Sample], target: &str, value: &str) -> Option<f64> {
    let of = |target: &str, repetition: usize| {
        let mut here = samples
            .iter()
            .filter(|sample| sample.target == target && sample.repetition == repetition);
        here.find_map(|sample| sample.values.get(value)).copied()
    };
    let repetitions = samples
        .iter()
        .filter(|sample| sample.target == target)
        .map(|sample| sample.repetition);
    let ratios =
        repetitions.filter_map(|repetition| Some(of(target, repetition)? / of("floor", repetition)?));
    median(ratios.filter(|ratio| ratio.is_finite()).collect())
}

fn distinct<'a>(values: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut distinct = Vec::new();
    values.for_each(|value| {
        if !distinct.contains(&value) {
            distinct.push(value);
        }
    });
    distinct
}

fn cell(value: Option<f64>, decimals: usize) -> String {
    value.map_or_else(|| "–".into(), |value| number(value, decimals))
}

/// A number with at most so many decimals.
fn number(value: f64, decimals: usize) -> String {
    let text = format!("{value:.decimals$}");
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').into()
    } else {
        text
    }
}

/// Puts a section between two marks of a page; what is around them stays.
///
/// Returns `None` where the page has not both marks, in order.
#[must_use]
pub fn replace_section(page: &str, section: &str) -> Option<String> {
    let (before, rest) = page.split_once(SECTION_BEGIN)?;
    let (_, after) = rest.split_once(SECTION_END)?;
    Some(format!(
        "{before}{SECTION_BEGIN}\n\n{section}\n{SECTION_END}{after}"
    ))
}

/// What precedes the section in a page.
pub const SECTION_BEGIN: &str = "<!-- make bench begins -->";
/// What follows it.
pub const SECTION_END: &str = "<!-- make bench ends -->";

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn tables_show_medians_and_ratios_within_repetitions() {
        let sample = |target: &str, repetition, turns: f64, cpu: f64| Sample {
            scenario: "stream-c16".into(),
            target: target.into(),
            repetition,
            values: BTreeMap::from([
                ("turns_per_s".into(), turns),
                ("cpu_s_per_1000_turns".into(), cpu),
            ]),
            error: None,
        };
        let machine = Machine {
            processor: "P".into(),
            cores: 2,
            kernel: "6".into(),
            load_before: 0.25,
        };
        let samples = vec![sample("floor", 0, 100.0, 1.0), sample("tap", 0, 70.0, 1.5)];
        let text = Results {
            machine,
            repetitions: 1,
            samples,
        }
        .markdown(&Goal::of_proxy("tap"));
        assert!(
            text.contains("| tap | 70 | – | – | – | 1.5 | – | – | – | – | 0.7 | 1.5 |\n"),
            "{text}"
        );
        assert!(
            text.contains("| stream-c16: CPU a turn, of the byte copy's | at most 2.5 | 1.5 | yes |\n"),
            "{text}"
        );
        assert!(
            text.contains("| startup: cold_start_ms | at most 50 | not measured | – |\n"),
            "{text}"
        );
    }

    #[test]
    fn a_section_takes_the_place_of_the_last_one() {
        let page = format!("# Speed\n\n{SECTION_BEGIN}\nold\n{SECTION_END}\n\nHow to read it.\n");
        let page = replace_section(&page, "new").unwrap();
        assert_eq!(
            page,
            format!("# Speed\n\n{SECTION_BEGIN}\n\nnew\n{SECTION_END}\n\nHow to read it.\n")
        );
        assert_eq!(replace_section("no marks", "new"), None);
    }
}
