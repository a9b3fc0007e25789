//! A byte-level tokenizer with a fixed vocabulary: 256 bytes, the pieces of `vocabulary.txt`, special tokens.
//!
//! Any text has ids and any ids have bytes; decoding what was encoded gives the text back. Encoding takes the longest
//! piece at each position, so what an edit changes is where it is and a few tokens after.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::LazyLock;

/// The special tokens, in the order of their ids, which follow those of the pieces.
pub mod special {
    /// Ends a turn; the end of a completion.
    pub const IM_END: &str = "<|im_end|>";
    /// Never sampled.
    pub const END_OF_TEXT: &str = "<|endoftext|>";
    /// Starts a turn.
    pub const IM_START: &str = "<|im_start|>";
    /// Starts reasoning.
    pub const THINK: &str = "<think>";
    /// Ends reasoning.
    pub const THINK_END: &str = "</think>";
    /// Starts a tool call.
    pub const TOOL_CALL: &str = "<tool_call>";
    /// Ends a tool call.
    pub const TOOL_CALL_END: &str = "</tool_call>";
    /// Starts the result of a tool.
    pub const TOOL_RESPONSE: &str = "<tool_response>";
    /// Ends the result of a tool.
    pub const TOOL_RESPONSE_END: &str = "</tool_response>";
    /// All of them, by id.
    pub const ALL: [&str; 9] = [
        IM_END,
        END_OF_TEXT,
        IM_START,
        THINK,
        THINK_END,
        TOOL_CALL,
        TOOL_CALL_END,
        TOOL_RESPONSE,
        TOOL_RESPONSE_END,
    ];
}

/// The pieces, a JSON string a line: frequent words and fragments of code, prose and JSON.
const PIECES: &str = include_str!("vocabulary.txt");
const BYTES: u32 = 256;

static TOKENIZER: LazyLock<Tokenizer> = LazyLock::new(Tokenizer::build);

/// Text to ids and back.
#[derive(Debug)]
pub struct Tokenizer {
    /// The bytes of each token, by id.
    tokens: Vec<Box<[u8]>>,
    /// Ids of pieces, sorted by their first two bytes and then longest first.
    by_start: Vec<u32>,
    /// Where in `by_start` the pieces with these first two bytes are.
    starts: HashMap<[u8; 2], Range<usize>>,
    /// Id of the first special token.
    first_special: u32,
}

impl Tokenizer {
    /// The one tokenizer there is.
    #[must_use]
    pub fn get() -> &'static Self {
        &TOKENIZER
    }

    fn build() -> Self {
        let mut tokens: Vec<Box<[u8]>> = (0..=u8::MAX).map(|byte| Box::from([byte])).collect();
        let pieces = PIECES
            .lines()
            .filter_map(|line| serde_json::from_str::<String>(line).ok());
        tokens.extend(pieces.map(|piece| piece.into_bytes().into_boxed_slice()));
        let first_special = tokens.len() as u32;
        let mut by_start: Vec<([u8; 2], usize, u32)> = (BYTES..first_special)
            .zip(tokens.iter().skip(BYTES as usize))
            .filter_map(|(id, bytes)| Some((*bytes.first_chunk::<2>()?, bytes.len(), id)))
            .collect();
        by_start.sort_by_key(|&(start, length, id)| (start, std::cmp::Reverse(length), id));
        let mut starts: HashMap<[u8; 2], Range<usize>> = HashMap::new();
        for (position, (start, _, _)) in by_start.iter().enumerate() {
            starts.entry(*start).or_insert(position..position).end = position + 1;
        }
        tokens.extend(special::ALL.iter().map(|text| text.as_bytes().into()));
        let by_start = by_start.into_iter().map(|(_, _, id)| id).collect();
        Self {
            tokens,
            by_start,
            starts,
            first_special,
        }
    }

    /// Number of ids: every id is below it.
    #[must_use]
    pub fn vocabulary_size(&self) -> u32 {
        self.tokens.len() as u32
    }

    /// The id of a special token, given by its text; `None` for other text.
    #[must_use]
    pub fn special_id(&self, text: &str) -> Option<u32> {
        let offset = special::ALL.iter().position(|special| *special == text)?;
        Some(self.first_special + offset as u32)
    }

    /// The text of a special token; `None` for other ids.
    #[must_use]
    pub fn special_text(&self, id: u32) -> Option<&'static str> {
        let offset = id.checked_sub(self.first_special)?;
        special::ALL.get(offset as usize).copied()
    }

    /// The bytes of a token; `None` for ids outside the vocabulary.
    #[must_use]
    pub fn bytes(&self, id: u32) -> Option<&[u8]> {
        self.tokens.get(id as usize).map(AsRef::as_ref)
    }

    /// The ids of a text. Special tokens in it are taken for what they are, wherever they come from, as model servers do.
    #[must_use]
    pub fn encode(&self, text: &str) -> Vec<u32> {
        let mut ids = Vec::with_capacity(text.len() / 3);
        let mut rest = text;
        while let Some((before, id, after)) = self.split_special(rest) {
            self.encode_plain(before.as_bytes(), &mut ids);
            ids.push(id);
            rest = after;
        }
        self.encode_plain(rest.as_bytes(), &mut ids);
        ids
    }

    /// The first special token of a text, with what is before and after it.
    fn split_special<'a>(&self, text: &'a str) -> Option<(&'a str, u32, &'a str)> {
        for (at, _) in text.match_indices('<') {
            let (before, here) = text.split_at_checked(at)?;
            for (offset, special) in special::ALL.iter().enumerate() {
                if let Some(after) = here.strip_prefix(special) {
                    return Some((before, self.first_special + offset as u32, after));
                }
            }
        }
        None
    }

    fn encode_plain(&self, mut bytes: &[u8], ids: &mut Vec<u32>) {
        while let Some((first, after)) = bytes.split_first() {
            let (id, rest) = self.longest_piece(bytes).unwrap_or((u32::from(*first), after));
            ids.push(id);
            bytes = rest;
        }
    }

    /// The longest piece that starts these bytes, and the bytes after it.
    fn longest_piece<'a>(&self, bytes: &'a [u8]) -> Option<(u32, &'a [u8])> {
        let range = self.starts.get(bytes.first_chunk::<2>()?)?;
        self.by_start.get(range.clone())?.iter().find_map(|&id| {
            let rest = bytes.strip_prefix(self.bytes(id)?)?;
            Some((id, rest))
        })
    }

    /// The bytes of a sequence of ids. Ids outside the vocabulary have none.
    #[must_use]
    pub fn decode(&self, ids: &[u32]) -> Vec<u8> {
        ids.iter()
            .filter_map(|&id| self.bytes(id))
            .flatten()
            .copied()
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_piece_of_the_vocabulary_file_is_a_distinct_piece_of_several_bytes() {
        let tokenizer = Tokenizer::get();
        let lines = PIECES.lines().count();
        assert_eq!(
            tokenizer.first_special as usize,
            256 + lines,
            "a line is not a JSON string"
        );
        let distinct: std::collections::HashSet<_> = tokenizer.tokens.iter().collect();
        assert_eq!(distinct.len(), tokenizer.tokens.len());
        assert_eq!(
            tokenizer.by_start.len(),
            lines,
            "a piece is shorter than two bytes"
        );
    }

    #[test]
    fn common_words_are_one_token_and_rare_text_is_bytes() {
        let tokenizer = Tokenizer::get();
        assert_eq!(tokenizer.encode("return").len(), 1);
        assert_eq!(tokenizer.encode("é"), vec![0xc3, 0xa9]);
        assert_eq!(
            tokenizer.encode("<think>"),
            vec![tokenizer.special_id(special::THINK).unwrap()]
        );
        assert_eq!(tokenizer.decode(&[0xc3, 0xa9, u32::MAX]), "é".as_bytes());
    }

    #[test]
    fn spaced_and_compact_json_have_different_ids() {
        let tokenizer = Tokenizer::get();
        assert_ne!(tokenizer.encode(r#"{"a": 1}"#), tokenizer.encode(r#"{"a":1}"#));
    }

    proptest! {
        #[test]
        fn decoding_what_was_encoded_gives_the_text_back(text in any::<String>()) {
            let tokenizer = Tokenizer::get();
            prop_assert_eq!(tokenizer.decode(&tokenizer.encode(&text)), text.into_bytes());
        }

        #[test]
        fn text_between_special_tokens_has_the_ids_it_has_alone(before in "[a-z<> {}\":\n]{0,40}", after in "[a-z<> {}\":\n]{0,40}") {
            let tokenizer = Tokenizer::get();
            let whole = tokenizer.encode(&format!("{before}<|im_start|>{after}"));
            let mut parts = tokenizer.encode(&before);
            parts.extend(tokenizer.special_id(special::IM_START));
            parts.extend(tokenizer.encode(&after));
            prop_assert_eq!(whole, parts);
        }
    }
}
