#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot go on should stop where it is"
)]
//! The scripted model against recordings of vLLM and against itself, faults as clients see them, the scripted agent as a
//! process, and the benchmark programs.

mod agent;
mod bench;
mod client;
mod faults;
mod honesty;
mod shapes;
