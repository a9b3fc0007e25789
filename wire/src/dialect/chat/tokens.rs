use crate::call::{Completion, Flag, TopLogprob};
use crate::capture::RequestFacts;
use crate::scan::{
    Reader, ScanError, decode_string, has_doubtful_escape, parse_f64, parse_u32_array, parse_u64, sound,
};
use bytes::Bytes;
use std::borrow::Cow;

/// What stands for "minus infinity" with servers that do not write it: vLLM puts every lower value up to it.
const FILLER: f64 = -9999.0;

/// Room made at once for entries. It holds those of most replies, and is little for each of many choices.
const ENTRIES_BYTES: usize = 128 << 10;

/// How much of the log-probabilities is kept.
#[derive(Clone, Copy, Debug)]
pub(super) struct Keep {
    /// Alternatives at each position.
    top: usize,
    /// The entries as they came.
    entries: bool,
}

impl Keep {
    pub(super) fn of(facts: &RequestFacts) -> Self {
        Self {
            top: facts.keep_top_logprobs as usize,
            entries: facts.keep_entries,
        }
    }
}

/// Token ids and log-probabilities of a choice, as they come in.
#[derive(Debug, Default)]
pub(super) struct Tokens {
    /// `token_ids`.
    ids: Vec<u32>,
    /// The ids that entries of `logprobs` carry.
    entry_ids: Vec<u32>,
    logprobs: Vec<f64>,
    names: Vec<String>,
    top: Vec<Vec<TopLogprob>>,
    /// The entries as they came, each behind a comma.
    entries: Vec<u8>,
    /// An entry carries two ids.
    disagree: bool,
    /// A log-probability is none.
    invalid: bool,
}

impl Tokens {
    /// The endpoint's names for those that have come.
    pub(super) fn names(&self) -> &[String] {
        &self.names
    }

    /// Reads `token_ids`.
    pub(super) fn read_ids(&mut self, reader: &mut Reader<'_>) -> Result<(), ScanError> {
        parse_u32_array(reader, &mut self.ids).map(|_| ())
    }

    /// Reads `logprobs`.
    pub(super) fn read_logprobs(&mut self, reader: &mut Reader<'_>, keep: Keep) -> Result<(), ScanError> {
        if reader.peek() != Some(b'{') {
            return reader.skip().map(|_| ());
        }
        if keep.entries {
            let left = reader.text().len().saturating_sub(reader.at());
            self.entries.reserve(left.min(ENTRIES_BYTES));
        }
        let mut more = reader.enter(b'{')?;
        while more {
            let key = reader.key()?;
            let entries = matches!(reader.slice(key), b"content" | b"refusal");
            if entries && reader.peek() == Some(b'[') {
                let mut more_entries = reader.enter(b'[')?;
                while more_entries {
                    self.read_entry(reader, keep)?;
                    more_entries = reader.next(b']')?;
                }
            } else {
                reader.skip()?;
            }
            more = reader.next(b'}')?;
        }
        Ok(())
    }

    fn read_entry(&mut self, reader: &mut Reader<'_>, keep: Keep) -> Result<(), ScanError> {
        reader.peek();
        let start = reader.at();
        let entry = Entry::read(reader, keep.top)?;
        if keep.entries {
            let raw = reader.slice(start..reader.at());
            self.entries.push(b',');
            // An entry that is no object says nothing; its place is kept.
            self.entries
                .extend_from_slice(if raw.starts_with(b"{") { raw } else { b"{}" });
        }
        let logprob = entry.logprob.unwrap_or(f64::NAN);
        self.invalid |= !(logprob <= 0.0 && logprob > FILLER);
        // The type has one word for what is no finite number, so that what is stored stays valid JSON.
        self.logprobs
            .push(if logprob.is_finite() { logprob } else { f64::NAN });
        self.entry_ids.extend(entry.id);
        self.disagree |= entry.disagrees;
        self.names.push(decode_string(entry.token).into_owned());
        if keep.top > 0 {
            self.top.push(entry.top);
        }
        Ok(())
    }

    /// The entries as they came, as a JSON array.
    pub(super) fn take_entries(&mut self) -> Bytes {
        let mut array = std::mem::take(&mut self.entries);
        let Some(first) = array.first_mut() else {
            return Bytes::new();
        };
        *first = b'[';
        array.push(b']');
        if !may_be_unsound(&array) {
            return array.into();
        }
        match sound(&array) {
            Some(Cow::Borrowed(_)) => array.into(),
            Some(Cow::Owned(repaired)) => repaired.into(),
            None => Bytes::new(),
        }
    }

    /// How many ids there are.
    pub(super) fn count(&self) -> usize {
        if self.ids.is_empty() {
            self.entry_ids.len()
        } else {
            self.ids.len()
        }
    }

    /// How many log-probabilities there are.
    pub(super) fn logprobs(&self) -> usize {
        self.logprobs.len()
    }

    /// What is wrong with them.
    pub(super) fn flags(&self) -> impl Iterator<Item = Flag> {
        let both = !self.ids.is_empty() && self.ids.len() == self.entry_ids.len();
        let disagree = self.disagree || both && self.ids != self.entry_ids;
        let some = self.count() > 0 || self.logprobs() > 0;
        let mismatch = some && self.count() > 0 && self.count() != self.logprobs();
        [
            disagree.then_some(Flag::IdsDisagree),
            self.invalid.then_some(Flag::LogprobInvalid),
            mismatch.then_some(Flag::LengthMismatch),
        ]
        .into_iter()
        .flatten()
    }

    /// Moves them into the form that is kept.
    pub(super) fn into_completion(self, index: u32) -> Completion {
        Completion {
            index,
            token_ids: if self.ids.is_empty() {
                self.entry_ids
            } else {
                self.ids
            },
            logprobs: self.logprobs,
            tokens: self.names,
            top_logprobs: self.top,
            finish_reason: None,
            stop_reason: None,
        }
    }
}

/// An entry of `logprobs.content`, or an alternative in one.
#[derive(Default)]
struct Entry<'a> {
    token: &'a [u8],
    id: Option<u32>,
    disagrees: bool,
    logprob: Option<f64>,
    top: Vec<TopLogprob>,
}

impl<'a> Entry<'a> {
    fn read(reader: &mut Reader<'a>, keep_top: usize) -> Result<Self, ScanError> {
        let mut entry = Self::default();
        if reader.peek() != Some(b'{') {
            reader.skip()?;
            return Ok(entry);
        }
        let mut named_id = None;
        let mut more = reader.enter(b'{')?;
        while more {
            let key = reader.key()?;
            match reader.slice(key) {
                b"token" if reader.peek() == Some(b'"') => {
                    let token = reader.string()?;
                    entry.token = reader.slice(token);
                    named_id = entry.token.strip_prefix(b"token_id:").and_then(parse_id);
                }
                b"logprob" => {
                    let value = reader.skip()?;
                    entry.logprob = parse_f64(reader.slice(value));
                }
                b"id" | b"token_id" => {
                    let value = reader.skip()?;
                    entry.id = parse_id(reader.slice(value)).or(entry.id);
                }
                b"top_logprobs" if keep_top > 0 && reader.peek() == Some(b'[') => {
                    entry.top = read_alternatives(reader, keep_top)?;
                }
                _ => {
                    reader.skip()?;
                }
            }
            more = reader.next(b'}')?;
        }
        entry.disagrees = entry.id.zip(named_id).is_some_and(|(one, other)| one != other);
        entry.id = entry.id.or(named_id);
        Ok(entry)
    }
}

/// Whether a text that a reader let pass may yet be no JSON: cheap to say no to, for most are.
fn may_be_unsound(text: &[u8]) -> bool {
    let holds = |word: &[u8]| memchr::memmem::find(text, word).is_some();
    // Looked at to the end, which is done many bytes at once.
    text.iter().fold(false, |found, byte| found | (*byte < b' '))
        || holds(b"NaN")
        || holds(b"Infinity")
        || has_doubtful_escape(text)
        || std::str::from_utf8(text).is_err()
}

fn parse_id(text: &[u8]) -> Option<u32> {
    parse_u64(text).and_then(|id| u32::try_from(id).ok())
}

fn read_alternatives(reader: &mut Reader<'_>, keep_top: usize) -> Result<Vec<TopLogprob>, ScanError> {
    let mut kept = Vec::with_capacity(keep_top.min(20));
    let mut more = reader.enter(b'[')?;
    while more {
        if kept.len() < keep_top {
            let entry = Entry::read(reader, 0)?;
            let logprob = entry.logprob.filter(|logprob| logprob.is_finite());
            kept.push(TopLogprob {
                token: decode_string(entry.token).into_owned(),
                token_id: entry.id,
                logprob: logprob.unwrap_or(f64::NAN),
            });
        } else {
            reader.skip()?;
        }
        more = reader.next(b']')?;
    }
    Ok(kept)
}
