//! Where the members of a JSON text are, found without building a tree.
//!
//! `Reader` goes through a text once, from front to back: objects member by member, arrays item by item, values as
//! spans of bytes. What is skipped is checked for balanced brackets and closed strings only; `canonical` checks
//! a text in full. `NaN` and `Infinity`, which Python servers write, are read. Nothing recurses but `canonical`, which
//! takes no more than `MAX_DEPTH` open brackets.

/// Many bytes at once.
mod block;

/// Cuts and replacements in a text, applied in one pass.
mod edit;

/// The one form of all texts that say the same.
mod canonical;

/// What is nearly JSON, put right.
mod repair;

/// Going through a text.
mod reader;

/// Strings and numbers.
mod value;

pub use canonical::canonical;
#[cfg(feature = "translated")]
pub(crate) use canonical::least_escaped;
pub use edit::{Cutter, Edits};
pub use reader::{Member, Reader, members};
pub use repair::{has_doubtful_escape, sound};
pub use value::{decode_string, parse_f64, parse_u32_array, parse_u64, string_body, write_string};

/// The most brackets that may be open in a text that is checked in full.
pub const MAX_DEPTH: u32 = 128;

/// A text that is not JSON, with where it stops being so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{problem} at byte {at}")]
pub struct ScanError {
    /// Byte position from the start of the text.
    pub at: usize,
    /// What is wrong there.
    pub problem: ScanProblem,
}

/// What can be wrong with a JSON text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScanProblem {
    /// The text ends inside a value.
    #[error("unexpected end")]
    End,
    /// A byte that cannot stand there.
    #[error("unexpected character")]
    Unexpected,
    /// More open brackets than are read.
    #[error("nested too deeply")]
    Depth,
    /// Bytes that are not UTF-8.
    #[error("invalid UTF-8")]
    Utf8,
    /// A number, word or escape that JSON does not have.
    #[error("invalid literal")]
    Literal,
}

#[cfg(test)]
mod tests;
