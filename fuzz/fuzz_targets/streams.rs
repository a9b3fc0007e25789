//! Streamed replies of endpoints, to agents of every dialect.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| dressage_fuzz::fuzzed::streams(bytes));
