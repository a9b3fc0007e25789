//! What another program measures: it is run once a repetition and prints a line of JSON for each value,
//! `{"metric": "boot_median_ms", "value": 31.5, "at_most": 50}`; the goal is optional, `at_least` is the other kind. Lines
//! that do not start with `{` are for people.

use super::goal::{Bound, Goal};
use super::measurement::{MeasureError, Measurement, Sample};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

/// Goals that external programs told, by metric.
pub type ToldGoals = Arc<Mutex<Vec<Goal>>>;

/// A program that measures by itself.
#[derive(Debug)]
pub struct External {
    name: String,
    argv: Vec<String>,
    goals: ToldGoals,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    metric: String,
    value: f64,
    at_most: Option<f64>,
    at_least: Option<f64>,
}

impl External {
    /// Runs `argv` under this name; goals it tells are added to `goals`.
    #[must_use]
    pub fn new(name: String, argv: Vec<String>, goals: ToldGoals) -> Self {
        Self { name, argv, goals }
    }

    fn tell_goal(&self, line: &Line) {
        let at_most = line.at_most.map(Bound::AtMost);
        let Some(bound) = at_most.or(line.at_least.map(Bound::AtLeast)) else {
            return;
        };
        let goal = Goal::of_value(&self.name, &self.name, &line.metric, bound);
        let mut goals = self.goals.lock().unwrap_or_else(PoisonError::into_inner);
        if !goals.contains(&goal) {
            goals.push(goal);
        }
    }
}

impl Measurement for External {
    fn name(&self) -> &str {
        &self.name
    }

    fn repeat(&mut self, repetition: usize) -> Result<Vec<Sample>, MeasureError> {
        let program = self.argv.first().cloned().unwrap_or_default();
        let mut command = Command::new(&program);
        command.args(self.argv.iter().skip(1)).stdin(Stdio::null());
        let output = command.output().map_err(|source| MeasureError::Program {
            program: program.clone(),
            source,
        })?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            let said = said.lines().last().unwrap_or_default().to_owned();
            return Err(MeasureError::Failed {
                program,
                status: output.status,
                said,
            });
        }
        let mut values = BTreeMap::new();
        for line in String::from_utf8_lossy(&output.stdout)
            .lines()
            .filter(|line| line.starts_with('{'))
        {
            let parsed: Line = serde_json::from_str(line).map_err(|source| MeasureError::BadLine {
                program: program.clone(),
                line: line.into(),
                source,
            })?;
            self.tell_goal(&parsed);
            values.insert(parsed.metric, parsed.value);
        }
        let name = self.name.clone();
        Ok(vec![Sample {
            scenario: name.clone(),
            target: name,
            repetition,
            values,
            error: None,
        }])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn external(script: &str, goals: &ToldGoals) -> External {
        External::new(
            "boot".into(),
            ["sh", "-c", script].map(String::from).into(),
            goals.clone(),
        )
    }

    #[test]
    fn values_and_goals_are_read_and_other_lines_left() {
        let goals = ToldGoals::default();
        let script = r#"echo warming up; echo '{"metric": "median_ms", "value": 31.5, "at_most": 50}'"#;
        let mut external = external(script, &goals);
        for repetition in 0..2 {
            let samples = external.repeat(repetition).unwrap();
            assert_eq!(
                samples[0].values,
                BTreeMap::from([("median_ms".to_owned(), 31.5)])
            );
        }
        assert_eq!(
            *goals.lock().unwrap(),
            [Goal::of_value("boot", "boot", "median_ms", Bound::AtMost(50.0))]
        );
    }

    #[test]
    fn a_failing_program_and_a_bad_line_are_errors_that_say_so() {
        let goals = ToldGoals::default();
        let error = external("echo no bubblewrap >&2; exit 3", &goals)
            .repeat(0)
            .unwrap_err();
        assert_eq!(error.to_string(), "sh ended with exit status: 3: no bubblewrap");
        let error = external("echo '{\"metric\": 1}'", &goals).repeat(0).unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("sh printed \"{\\\"metric\\\": 1}\", which is no value"),
            "{error}"
        );
    }
}
