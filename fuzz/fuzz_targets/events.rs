//! Server-sent events.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| dressage_fuzz::fuzzed::events(bytes));
