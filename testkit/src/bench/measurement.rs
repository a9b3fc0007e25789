//! What is measured, by name, and how often.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// What one target came to, once, in one scenario.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// The scenario: `stream-c16`, `startup`, …
    pub scenario: String,
    /// The target: `direct`, `floor`, `tap`, …
    pub target: String,
    /// Which repetition, from 0.
    pub repetition: usize,
    /// Values by name; a name ends with its unit.
    pub values: BTreeMap<String, f64>,
    /// What went wrong, where something did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Why something could not be measured.
#[derive(Debug, thiserror::Error)]
pub enum MeasureError {
    /// A program could not be started or watched.
    #[error("cannot run {program}: {source}")]
    Program {
        /// Which.
        program: String,
        /// Why.
        source: std::io::Error,
    },
    /// A program did not answer in time.
    #[error("{program} did not answer at {url} within {limit_s} s; see {log}")]
    Silent {
        /// Which.
        program: String,
        /// Where it was asked.
        url: String,
        /// How long.
        limit_s: u64,
        /// Where it may have said why.
        log: PathBuf,
    },
    /// A program ended with an error.
    #[error("{program} ended with {status}: {said}")]
    Failed {
        /// Which.
        program: String,
        /// How.
        status: std::process::ExitStatus,
        /// The end of what it printed.
        said: String,
    },
    /// A line is no value.
    #[error("{program} printed {line:?}, which is no value: {source}")]
    BadLine {
        /// Which.
        program: String,
        /// The line.
        line: String,
        /// What the parser says.
        source: serde_json::Error,
    },
}

/// Something that can be measured again and again.
pub trait Measurement {
    /// Its name.
    fn name(&self) -> &str;

    /// Measures each of its targets once, in an order that turns with the repetition.
    ///
    /// # Errors
    /// Where a target cannot be run at all; one that runs and answers wrongly is a sample with an error.
    fn repeat(&mut self, repetition: usize) -> Result<Vec<Sample>, MeasureError>;
}

/// Runs every measurement in every repetition, and tells each sample as it is taken. A measurement that cannot be run is
/// told and left out from then on.
pub fn run(
    mut measurements: Vec<Box<dyn Measurement>>,
    repetitions: usize,
    mut tell: impl FnMut(Result<&Sample, (&str, &MeasureError)>),
) -> Vec<Sample> {
    let mut samples = Vec::new();
    for repetition in 0..repetitions {
        measurements.retain_mut(|measurement| match measurement.repeat(repetition) {
            Ok(taken) => {
                taken.iter().for_each(|sample| tell(Ok(sample)));
                samples.extend(taken);
                true
            }
            Err(error) => {
                tell(Err((measurement.name(), &error)));
                false
            }
        });
    }
    samples
}

/// Items in an order that begins one further in each repetition, so that none is always first.
pub(super) fn turned<T: Clone>(items: &[T], repetition: usize) -> Vec<T> {
    let mut items = items.to_vec();
    let count = items.len().max(1);
    items.rotate_left(repetition % count);
    items
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Counted(usize);

    impl Measurement for Counted {
        fn name(&self) -> &str {
            "counted"
        }

        fn repeat(&mut self, repetition: usize) -> Result<Vec<Sample>, MeasureError> {
            if repetition == self.0 {
                let source = std::io::ErrorKind::NotFound.into();
                return Err(MeasureError::Program {
                    program: "nothing".into(),
                    source,
                });
            }
            let (scenario, target) = ("s".to_owned(), "t".to_owned());
            Ok(vec![Sample {
                scenario,
                target,
                repetition,
                values: BTreeMap::new(),
                error: None,
            }])
        }
    }

    #[test]
    fn a_measurement_that_cannot_be_run_is_told_once_and_the_others_go_on() {
        let mut told = Vec::new();
        let samples = run(vec![Box::new(Counted(1)), Box::new(Counted(9))], 3, |told_now| {
            told.push(
                told_now
                    .map(|sample| sample.repetition)
                    .map_err(|(name, error)| format!("{name}: {error}")),
            );
        });
        assert_eq!(samples.len(), 4);
        assert_eq!(told.iter().filter(|told| told.is_err()).count(), 1);
    }

    #[test]
    fn the_order_turns_with_the_repetition() {
        assert_eq!(turned(&[1, 2, 3], 4), [2, 3, 1]);
        assert!(turned::<u8>(&[], 1).is_empty());
    }
}
