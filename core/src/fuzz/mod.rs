//! What must hold for any bytes whatever. Each module takes bytes, makes of them what a stranger could send, and
//! asserts. The fuzz targets (`tests/fuzz`) call it with what a fuzzer makes up. The tests here call it with what was
//! found worth keeping (`tests/fuzz/seeds`), under the project's own compiler.

// A broken promise ends the fuzzer with its reason.
#![allow(clippy::expect_used, clippy::panic)]

pub mod engram;
pub mod gguf;
pub mod prompt;
pub mod reader;
pub mod stop;
pub mod template;
pub mod toolcall;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_kept_of_the_fuzzing_of_engram_tables_holds() {
        reader::replay("engram", engram::check);
    }

    #[test]
    fn what_was_kept_of_the_fuzzing_of_model_files_holds() {
        reader::replay("gguf", gguf::check);
    }

    #[test]
    fn what_was_kept_of_the_fuzzing_of_prompts_holds() {
        reader::replay("prompt", prompt::check);
    }

    #[test]
    fn what_was_kept_of_the_fuzzing_of_stop_strings_holds() {
        reader::replay("stop", stop::check);
    }

    #[test]
    fn what_was_kept_of_the_fuzzing_of_templates_holds() {
        reader::replay("template", template::check);
    }

    #[test]
    fn what_was_kept_of_the_fuzzing_of_tool_calls_holds() {
        reader::replay("toolcall", toolcall::check);
    }
}
