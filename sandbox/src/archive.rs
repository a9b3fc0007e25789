//! Archives that come out of sandboxes, read as what they are: bytes that an agent may have written.
//!
//! A `Rewriter` takes the tar archive of one file or directory, piece by piece, and writes another of the same content that
//! can do nothing but fill that one place: every name is below it and occurs once, links that lead out of it are apart from
//! the rest, and come last with all other links, so that nothing is ever written through one; devices, named pipes, owners and
//! the bits for other users' rights are left out. What no honest program writes is an error. Any split of the bytes gives the
//! same result. Formats: those of POSIX.1-2001 and of GNU tar 1.34, without members that are stored with holes.

/// One block that says what follows.
mod header;

/// What else is said of an entry.
mod said;

/// From one archive to another.
mod rewrite;

/// Where links lead.
mod links;

pub use links::Link;
pub use rewrite::{Ending, Omitted, Rewriter};

/// What an archive may hold at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArchiveLimits {
    /// Bytes of the archive itself: a little more than those of all files in it.
    pub bytes: u64,
    /// Entries.
    pub entries: u64,
    /// Bytes of all names, which are kept in memory.
    pub name_bytes: u64,
}

impl Default for ArchiveLimits {
    fn default() -> Self {
        Self {
            bytes: 4 << 30,
            entries: 500_000,
            name_bytes: 32 << 20,
        }
    }
}

/// Why bytes are not taken for an archive, or an archive is not taken.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// It is too long.
    #[error("it has more than {limit} bytes")]
    TooLong {
        /// The limit.
        limit: u64,
    },
    /// It has too much in it.
    #[error("it has more than {limit} entries")]
    TooMany {
        /// The limit.
        limit: u64,
    },
    /// Its names are too long.
    #[error("the names in it have more than {limit} bytes")]
    Names {
        /// The limit, of all names together.
        limit: u64,
    },
    /// It breaks off.
    #[error("it ends in the middle, after {bytes} bytes")]
    Truncated {
        /// How far it went.
        bytes: u64,
    },
    /// Something in it is not as the format has it, or is nothing that an honest program writes.
    #[error("entry {entry}, `{name}`, {problem}")]
    Entry {
        /// Which, from 1.
        entry: u64,
        /// Its name as far as it is known, short and without control characters.
        name: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// What came of it could not be written down.
    #[error("what is in it could not be kept")]
    Keep(#[source] std::io::Error),
}

#[cfg(test)]
mod tests;
