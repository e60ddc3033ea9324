#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| chimere_fuzz::prompt::check(data));
