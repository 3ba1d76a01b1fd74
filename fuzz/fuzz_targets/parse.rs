//! libFuzzer around [`ferroce_fuzz::parse`].

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ferroce_fuzz::parse(data));
