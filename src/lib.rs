//! Chimère: one daemon that serves a local mixture-of-experts model, remembers what was verified, scores its
//! own answers and trains itself at night.
//!
//! - [`turn`]: the records that travel between the parts.
//! - [`service`]: what the daemon offers to its doors (HTTP).
//! - [`engine`]: tokens in, tokens out, in a process of its own.
//! - [`gguf`]: reading and writing of model files; `quantize` rewrites them with smaller types.
//! - [`http`]: the door: OpenAI's API, event streams, limits.

#![forbid(unsafe_code)]

pub mod bench;
pub mod engine;
pub mod eval;
pub mod gguf;
pub mod http;
#[cfg(feature = "llama")]
pub mod quantize;
pub mod service;
pub mod turn;
