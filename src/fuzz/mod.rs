//! What must hold for any bytes whatever, wherever they enter the daemon. Each module takes bytes, makes of them what a
//! stranger or a model could send, and asserts. The fuzz targets (`tests/fuzz`) call it with what a fuzzer makes up.
//! The tests here call it with what was found worth keeping (`tests/fuzz/seeds`), under the project's own compiler.
#[path = "../../core/src/fuzz/reader.rs"]
pub mod reader;

pub use crate::http::fuzz::{body, stream};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_kept_of_the_fuzzing_of_request_bodies_holds() {
        reader::replay("body", body::check);
    }

    #[test]
    fn what_was_kept_of_the_fuzzing_of_event_streams_holds() {
        reader::replay("stream", stream::check);
    }
}
