//! The tokens of a call, before they are packed. A byte for the version, then the prompt's delta and the completions:
//! ids as variable-length integers, log-probabilities in the shortest of three forms that gives every bit back, in
//! planes of bytes (their exponents are alike), the strings that name tokens once each.

use dressage_wire::call::{Completion, TopLogprob};
use dressage_wire::trajectory::TokenDelta;
use std::cell::Cell;
use std::collections::HashMap;

const VERSION: u8 = 1;

/// Each value is a 32-bit float.
const FLOATS_32: u8 = 0;
/// Each value is what the shortest decimal of a 32-bit float reads as: how many servers print theirs.
const FLOATS_32_DECIMAL: u8 = 1;
/// Neither.
const FLOATS_64: u8 = 2;

/// Stored bytes that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum CodecError {
    /// They end too early.
    #[error("the bytes end too early")]
    Truncated,
    /// A form that is not known.
    #[error("form {version} is not known")]
    Version {
        /// The number of the form.
        version: u8,
    },
    /// A number out of its range.
    #[error("a number is out of range")]
    Range,
    /// A string that is not UTF-8.
    #[error("a string is not UTF-8")]
    Text,
    /// More bytes than belong there.
    #[error("there are bytes after the end")]
    Trailing,
    /// The compressed frame is damaged.
    #[error("the compressed frame is damaged")]
    Frame(#[source] std::io::Error),
    /// A document that does not fit its type.
    #[error("the document does not fit")]
    Document(#[source] serde_json::Error),
}

/// Writes the tokens of a call.
pub(crate) fn encode(prompt: Option<&TokenDelta>, completions: &[Completion]) -> Vec<u8> {
    let mut out = Writer(vec![VERSION]);
    out.option(prompt, |out, delta| {
        out.option(delta.base.as_ref(), |out, base| out.integer(u64::from(*base)));
        out.integer(u64::from(delta.shared));
        out.ids(&delta.tail);
    });

    let mut names = Names::default();
    let named = completions.iter().flat_map(|choice| {
        let alternatives = choice.top_logprobs.iter().flatten().map(|top| top.token.as_str());
        choice.tokens.iter().map(String::as_str).chain(alternatives)
    });
    named.for_each(|name| names.add(name));
    out.count(names.list.len());
    names.list.iter().for_each(|name| out.text(name));

    out.count(completions.len());
    for choice in completions {
        out.integer(u64::from(choice.index));
        out.ids(&choice.token_ids);
        out.floats(&choice.logprobs);
        out.count(choice.tokens.len());
        choice
            .tokens
            .iter()
            .for_each(|name| out.integer(names.steps_back(name)));
        out.count(choice.top_logprobs.len());
        choice
            .top_logprobs
            .iter()
            .for_each(|position| out.count(position.len()));
        for top in choice.top_logprobs.iter().flatten() {
            out.integer(names.steps_back(&top.token));
            out.integer(top.token_id.map_or(0, |id| u64::from(id) + 1));
        }
        let alternatives = choice.top_logprobs.iter().flatten().map(|top| top.logprob);
        out.floats(&alternatives.collect::<Vec<_>>());
        out.option(choice.finish_reason.as_ref(), |out, reason| out.text(reason));
        out.option(choice.stop_reason.as_ref(), |out, reason| out.text(reason));
    }
    out.0
}

/// Reads the tokens of a call.
pub(crate) fn decode(bytes: &[u8]) -> Result<(Option<TokenDelta>, Vec<Completion>), CodecError> {
    let mut from = Reader(bytes);
    let version = from.byte()?;
    if version != VERSION {
        return Err(CodecError::Version { version });
    }
    let prompt = from.option(|from| {
        Ok(TokenDelta {
            base: from.option(Reader::small)?,
            shared: from.small()?,
            tail: from.ids()?,
        })
    })?;
    let names = from.list(Reader::text)?;
    let referred_to = Cell::new(0_u64);
    let name = |from: &mut Reader<'_>| {
        let steps = from.integer()?;
        let number = referred_to.get().checked_sub(steps).ok_or(CodecError::Range)?;
        referred_to.set(referred_to.get() + u64::from(steps == 0));
        let number = usize::try_from(number).map_err(|_| CodecError::Range)?;
        names.get(number).cloned().ok_or(CodecError::Range)
    };
    let completions = from.list(|from| {
        let index = from.small()?;
        let token_ids = from.ids()?;
        let logprobs = from.floats()?;
        let tokens = from.list(name)?;
        let lengths = from.list(Reader::count)?;
        let mut alternatives = Vec::new();
        for length in &lengths {
            let mut position = Vec::new();
            for _ in 0..*length {
                let token = name(from)?;
                let token_id = match from.integer()? {
                    0 => None,
                    id => Some(u32::try_from(id - 1).map_err(|_| CodecError::Range)?),
                };
                position.push(TopLogprob {
                    token,
                    token_id,
                    logprob: f64::NAN,
                });
            }
            alternatives.push(position);
        }
        let values = from.floats()?;
        let mut places = alternatives.iter_mut().flatten();
        for value in &values {
            places.next().ok_or(CodecError::Range)?.logprob = *value;
        }
        if places.next().is_some() {
            return Err(CodecError::Range);
        }
        Ok(Completion {
            index,
            token_ids,
            logprobs,
            tokens,
            top_logprobs: alternatives,
            finish_reason: from.option(Reader::text)?,
            stop_reason: from.option(Reader::text)?,
        })
    })?;
    if from.0.is_empty() {
        Ok((prompt, completions))
    } else {
        Err(CodecError::Trailing)
    }
}

/// Strings, each once, in the order in which they are first referred to.
#[derive(Default)]
struct Names<'a> {
    list: Vec<&'a str>,
    numbers: HashMap<&'a str, u64>,
    referred_to: u64,
}

impl<'a> Names<'a> {
    fn add(&mut self, name: &'a str) {
        let next = self.list.len() as u64;
        if let std::collections::hash_map::Entry::Vacant(entry) = self.numbers.entry(name) {
            entry.insert(next);
            self.list.push(name);
        }
    }

    /// A reference to a name: 0 for the next that was not referred to yet, else how far back from there it is.
    fn steps_back(&mut self, name: &str) -> u64 {
        let number = self.numbers.get(name).copied().unwrap_or_default();
        let steps = self.referred_to.saturating_sub(number);
        self.referred_to += u64::from(steps == 0);
        steps
    }
}

struct Writer(Vec<u8>);

impl Writer {
    fn integer(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push((value & 0x7f) as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    fn count(&mut self, count: usize) {
        self.integer(count as u64);
    }

    fn option<T>(&mut self, value: Option<&T>, write: impl FnOnce(&mut Self, &T)) {
        self.0.push(u8::from(value.is_some()));
        if let Some(value) = value {
            write(self, value);
        }
    }

    fn text(&mut self, text: &str) {
        self.count(text.len());
        self.0.extend_from_slice(text.as_bytes());
    }

    fn ids(&mut self, ids: &[u32]) {
        self.count(ids.len());
        ids.iter().for_each(|id| self.integer(u64::from(*id)));
    }

    fn floats(&mut self, values: &[f64]) {
        self.count(values.len());
        if values.iter().all(|value| same(f64::from(*value as f32), *value)) {
            self.0.push(FLOATS_32);
            self.planes(values.iter().map(|value| (*value as f32).to_le_bytes()));
        } else if values
            .iter()
            .all(|value| decimal(*value as f32).is_some_and(|back| same(back, *value)))
        {
            self.0.push(FLOATS_32_DECIMAL);
            self.planes(values.iter().map(|value| (*value as f32).to_le_bytes()));
        } else {
            self.0.push(FLOATS_64);
            self.planes(values.iter().map(|value| value.to_le_bytes()));
        }
    }

    /// First bytes, then second bytes, and so on.
    fn planes<const N: usize>(&mut self, values: impl Iterator<Item = [u8; N]> + Clone) {
        for plane in 0..N {
            self.0
                .extend(values.clone().filter_map(|bytes| bytes.get(plane).copied()));
        }
    }
}

/// Bit for bit, so that zeros keep their sign and a NaN is one still.
fn same(a: f64, b: f64) -> bool {
    a.to_bits() == b.to_bits()
}

/// What the shortest decimal of a 32-bit float reads as.
fn decimal(value: f32) -> Option<f64> {
    value.to_string().parse().ok()
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, length: usize) -> Result<&'a [u8], CodecError> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or(CodecError::Truncated)?;
        self.0 = rest;
        Ok(taken)
    }

    fn byte(&mut self) -> Result<u8, CodecError> {
        self.take(1)?.first().copied().ok_or(CodecError::Truncated)
    }

    fn integer(&mut self) -> Result<u64, CodecError> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(CodecError::Range)
    }

    fn small(&mut self) -> Result<u32, CodecError> {
        self.integer()?.try_into().map_err(|_| CodecError::Range)
    }

    /// A number of things, each of at least a byte, that are still to come: so damage cannot ask for much memory.
    fn count(&mut self) -> Result<usize, CodecError> {
        let count = usize::try_from(self.integer()?).map_err(|_| CodecError::Range)?;
        if count > self.0.len() {
            Err(CodecError::Truncated)
        } else {
            Ok(count)
        }
    }

    fn list<T>(&mut self, read: impl Fn(&mut Self) -> Result<T, CodecError>) -> Result<Vec<T>, CodecError> {
        (0..self.count()?).map(|_| read(self)).collect()
    }

    fn option<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<T, CodecError>,
    ) -> Result<Option<T>, CodecError> {
        match self.byte()? {
            0 => Ok(None),
            1 => read(self).map(Some),
            _ => Err(CodecError::Range),
        }
    }

    fn text(&mut self) -> Result<String, CodecError> {
        let length = self.count()?;
        String::from_utf8(self.take(length)?.to_vec()).map_err(|_| CodecError::Text)
    }

    fn ids(&mut self) -> Result<Vec<u32>, CodecError> {
        self.list(Self::small)
    }

    fn floats(&mut self) -> Result<Vec<f64>, CodecError> {
        let count = usize::try_from(self.integer()?).map_err(|_| CodecError::Range)?;
        match self.byte()? {
            FLOATS_32 => Ok(self
                .planes(count)?
                .into_iter()
                .map(|bytes| f64::from(f32::from_le_bytes(bytes)))
                .collect()),
            FLOATS_32_DECIMAL => {
                let values = self.planes(count)?.into_iter();
                values
                    .map(|bytes| decimal(f32::from_le_bytes(bytes)).ok_or(CodecError::Range))
                    .collect()
            }
            FLOATS_64 => Ok(self.planes(count)?.into_iter().map(f64::from_le_bytes).collect()),
            version => Err(CodecError::Version { version }),
        }
    }

    fn planes<const N: usize>(&mut self, count: usize) -> Result<Vec<[u8; N]>, CodecError> {
        let bytes = self.take(count.checked_mul(N).ok_or(CodecError::Range)?)?;
        let mut values = vec![[0; N]; count];
        if count > 0 {
            for (place, plane) in bytes.chunks_exact(count).enumerate() {
                for (value, byte) in values.iter_mut().zip(plane) {
                    if let Some(to) = value.get_mut(place) {
                        *to = *byte;
                    }
                }
            }
        }
        Ok(values)
    }
}

#[cfg(test)]
mod tests;
