//! Log-probabilities as they stand in a reply.

use super::Tokenizer;
use super::sample::Alternative;
use crate::fault::BadLogprob;
use serde::{Serialize, Serializer};

/// The log-probabilities of an event, or of a whole reply.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Entries {
    /// One for each token.
    pub content: Vec<Entry>,
}

/// The log-probability of a sampled token.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Entry {
    /// The token itself.
    #[serde(flatten)]
    pub named: Named,
    /// The alternatives, the sampled token first.
    pub top_logprobs: Vec<Named>,
}

/// A token by name.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Named {
    token: String,
    /// Its log-probability.
    pub logprob: Logprob,
    bytes: Vec<u8>,
}

/// A log-probability, or what a fault put in its place.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Logprob {
    /// Single precision, as the model computes it.
    Value(f32),
    /// None.
    Bad(BadLogprob),
}

/// Stand-ins for what JSON has no number for; [`with_bad_numbers`] puts the words in their place.
const NAN_MARK: (f64, &str) = (-825_825_825.5, "-825825825.5");
const NEGATIVE_INFINITY_MARK: (f64, &str) = (-826_826_826.5, "-826826826.5");

impl Serialize for Logprob {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Value(value) => serializer.serialize_f64(f64::from(*value)),
            Self::Bad(BadLogprob::Null) => serializer.serialize_none(),
            Self::Bad(BadLogprob::Filler) => serializer.serialize_f64(-9999.0),
            Self::Bad(BadLogprob::Nan) => serializer.serialize_f64(NAN_MARK.0),
            Self::Bad(BadLogprob::NegativeInfinity) => serializer.serialize_f64(NEGATIVE_INFINITY_MARK.0),
        }
    }
}

/// A text of JSON with the words that Python writes for numbers JSON does not have.
pub(super) fn with_bad_numbers(json: &str) -> String {
    json.replace(NAN_MARK.1, BadLogprob::Nan.text())
        .replace(NEGATIVE_INFINITY_MARK.1, BadLogprob::NegativeInfinity.text())
}

/// Names tokens. A character of several tokens is named by the last of them; those before it have an empty name.
#[derive(Debug)]
pub(super) struct Names {
    as_ids: bool,
    /// Bytes of a character that is not whole yet.
    partial: Vec<u8>,
}

impl Names {
    /// Names tokens by their text, or by `token_id:` and their id.
    pub(super) fn new(as_ids: bool) -> Self {
        Self {
            as_ids,
            partial: Vec::new(),
        }
    }

    /// The entry of the next sampled token.
    pub(super) fn entry(&mut self, id: u32, logprob: f32, alternatives: &[Alternative]) -> Entry {
        self.partial
            .extend_from_slice(Tokenizer::get().bytes(id).unwrap_or_default());
        let text = match std::str::from_utf8(&self.partial) {
            Ok(text) => {
                let text = text.to_owned();
                self.partial.clear();
                text
            }
            Err(_) => String::new(),
        };
        let top_logprobs = alternatives
            .iter()
            .map(|alternative| self.alternative(id, &text, *alternative));
        let top_logprobs = top_logprobs.collect();
        let bytes = text.clone().into_bytes();
        let token = if self.as_ids {
            format!("token_id:{id}")
        } else {
            text
        };
        Entry {
            named: Named {
                token,
                logprob: Logprob::Value(logprob),
                bytes,
            },
            top_logprobs,
        }
    }

    fn alternative(&self, sampled: u32, sampled_text: &str, alternative: Alternative) -> Named {
        let token = if self.as_ids {
            format!("token_id:{}", alternative.id)
        } else if alternative.id == sampled {
            sampled_text.to_owned()
        } else {
            let bytes = Tokenizer::get().bytes(alternative.id).unwrap_or_default();
            std::str::from_utf8(bytes).unwrap_or_default().to_owned()
        };
        let bytes = token.clone().into_bytes();
        Named {
            token,
            logprob: Logprob::Value(alternative.logprob),
            bytes,
        }
    }
}
