#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| chimere_core::fuzz::prompt::check(data));
