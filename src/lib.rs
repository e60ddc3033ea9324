//! Chimère: one daemon that serves a local language model, remembers what was verified, scores its own
//! answers and trains itself at night.
//!
//! - [`service`]: what the daemon offers to its server (HTTP).
//! - [`config`]: what was typed, checked; the only reader of the environment.
//! - [`actors`]: the actors, their links and their supervisor.
//! - [`intent`] picks a request's route, [`pipeline`] makes its plan.
//! - [`night`]: judging a candidate, generations on disk, canary, schedule, report.
//! - [`optimise`]: instructions and demonstrations of a route, searched on exams.
//! - [`simulate`]: weeks that are made up, to see what the nights make of them.
//! - [`store`]: what is kept on disk; the only user of sled.
//! - [`toolcall`]: tool calls out of the text of a reply; [`tools`]: what a model may have done inside one.
//! - [`engram`]: n-grams of verified texts: where their tables stand, how nights make them.
//! - [`embed`]: texts as vectors, and the index of verified exchanges.
//! - [`documents`]: files that people gave, found again passage by passage.
//! - [`lessons`]: what people taught, and what of it a reply is shown.
//! - [`http`]: the server: OpenAI's API, event streams, limits.
//! - [`engine`], [`gguf`], [`plural`], [`program`], [`training`], [`turn`]: the crate `chimere-core`, under the names it has there.
//! - [`daemon`] builds all of it; [`reply`] is the life of one reply; [`keys`] says who asks.

#![forbid(unsafe_code)]

pub mod actors;
pub mod bench;
pub mod clock;
pub mod config;
pub mod daemon;
pub mod documents;
pub mod embed;
pub mod engram;
pub mod eval;
pub mod failpoint;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;
pub mod http;
pub mod intent;
pub mod keys;
pub mod lessons;
pub mod meters;
mod mistyped;
pub mod night;
pub mod optimise;
pub mod pipeline;
pub mod reply;
pub mod scoring;
pub mod service;
pub mod simulate;
pub mod store;
pub mod tools;
pub mod web;

#[cfg(feature = "llama")]
pub use chimere_core::quantize;
pub use chimere_core::{engine, fair, gguf, plural, program, toolcall, training, turn, whole};
