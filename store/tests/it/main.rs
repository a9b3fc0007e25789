//! The store from outside: what goes in comes out, whatever happens to the process, the disk or the file.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod allocation;
mod child;
mod exports;
mod faults;
mod lists;
mod migrations;
mod processes;
mod queue;
mod round_trip;
mod samples;
mod size;
