//! libFuzzer around [`ferroce_fuzz::two_nics`].

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ferroce_fuzz::two_nics(data));
