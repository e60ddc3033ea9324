//! The GGUF reader and writer: what is written is read back, real files load, damaged and hostile
//! files are refused with the reason.

#![allow(clippy::unwrap_used, clippy::expect_used)]

#[cfg(feature = "llama")]
mod requantize;
mod round_trip;
