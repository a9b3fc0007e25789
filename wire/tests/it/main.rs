//! What agents and model servers really send, through the public interface of the package.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that fails is to fail here"
)]

mod answers;
mod bad_input;
mod every_dialect;
mod every_trap;
mod fuzzed;
mod oracle;
mod recorded;
mod recordings;
mod refusals;
mod requests;
mod speakers;
mod translations;
mod traps;
