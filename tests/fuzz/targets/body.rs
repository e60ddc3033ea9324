#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| chimere::fuzz::body::check(data));
