//! Hosts that sandboxes want to reach, and those that are allowed.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| dressage_fuzz::fuzzed::hosts(bytes));
