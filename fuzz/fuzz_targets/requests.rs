//! Requests of agents, in every dialect.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| dressage_fuzz::fuzzed::requests(bytes));
