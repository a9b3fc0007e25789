//! The bodies of the fuzz targets, which are those of the property tests of `dressage-wire` as well.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "what does not hold is to end a fuzz target"
)]

/// Fixtures, and how a reply is put through the capture.
#[path = "../../wire/tests/it/recordings.rs"]
pub mod recordings;

/// The dialects and readers of them.
#[path = "../../wire/tests/it/speakers.rs"]
pub mod speakers;

/// What must hold for any bytes.
#[path = "../../wire/tests/it/fuzzed.rs"]
pub mod fuzzed;
