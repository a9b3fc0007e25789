//! What a user sees of a failure: what failed, why, and what to do, on lines of their own.

use crate::exit::Exit;
use std::fmt::Write as _;

/// A failure as it is shown. Made from the error of a seam, or by a command that refuses its input.
#[derive(Debug)]
pub struct Failure {
    /// How the program ends by it.
    pub exit: Exit,
    /// What failed, on which object; lower case.
    pub what: String,
    /// The causes, outermost first.
    pub causes: Vec<String>,
    /// What may help.
    pub hints: Vec<String>,
}

impl Failure {
    /// A failure without a cause.
    pub fn new(exit: Exit, what: impl Into<String>) -> Self {
        Self {
            exit,
            what: what.into(),
            causes: Vec::new(),
            hints: Vec::new(),
        }
    }

    /// Bad input.
    pub fn input(what: impl Into<String>) -> Self {
        Self::new(Exit::BadInput, what)
    }

    /// The failure that an error and its chain of sources tell of.
    pub fn from_error(exit: Exit, error: &(dyn std::error::Error + 'static)) -> Self {
        let causes = std::iter::successors(error.source(), |error| error.source()).map(ToString::to_string);
        Self {
            causes: causes.collect(),
            ..Self::new(exit, error.to_string())
        }
    }

    /// With a cause more.
    #[must_use]
    pub fn cause(mut self, cause: impl Into<String>) -> Self {
        self.causes.push(cause.into());
        self
    }

    /// With a hint more.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hints.push(hint.into());
        self
    }

    /// With a hint more, where there is one.
    #[must_use]
    pub fn maybe_hint(mut self, hint: Option<String>) -> Self {
        self.hints.extend(hint);
        self
    }

    /// The lines that are shown, without colours.
    #[must_use]
    pub fn render(&self) -> String {
        let mut text = String::new();
        let mut line = |label: &str, message: &str| {
            let indented = message.trim_end().replace('\n', "\n       ");
            let _ = writeln!(text, "{label}: {indented}");
        };
        line("error", &self.what);
        let mut previous = self.what.as_str();
        for cause in &self.causes {
            // Some libraries repeat their source in their own message.
            if previous != cause {
                line("cause", cause);
            }
            previous = cause;
        }
        for hint in &self.hints {
            line("hint", hint);
        }
        text
    }
}

/// The name of `known` that is closest to `given`, if one is close enough to be meant.
pub fn nearest<'a>(given: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    known
        .into_iter()
        .map(|name| (strsim::damerau_levenshtein(given, name), name))
        .filter(|(distance, name)| *distance <= 1 + name.len().min(given.len()) / 4)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_causes_and_hints_are_on_lines_of_their_own() {
        let failure = Failure::input("a failed")
            .cause("a failed")
            .cause("b\nc")
            .hint("do d");
        assert_eq!(
            failure.render(),
            "error: a failed\ncause: b\n       c\nhint: do d\n"
        );
    }

    #[test]
    fn the_nearest_name_is_near() {
        assert_eq!(nearest("vlm", ["vllm", "openai"]), Some("vllm"));
        assert_eq!(nearest("hfrouter", ["vllm", "hf_router"]), Some("hf_router"));
        assert_eq!(nearest("kubernetes", ["vllm", "openai"]), None);
    }
}
