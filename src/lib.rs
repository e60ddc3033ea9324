//! Chimère: one daemon that serves a local mixture-of-experts model, remembers what was verified, scores its
//! own answers and trains itself at night.
//!
//! - [`turn`]: the records that travel between the parts.
//! - [`service`]: what the daemon offers to its doors (HTTP).
//! - [`config`]: what was typed, checked; the only reader of the environment.
//! - [`actors`]: the cast, its links and its supervisor.
//! - [`intent`] picks a request's route, [`pipeline`] makes its plan.
//! - [`night`]: judging a candidate, generations on disk, canary, schedule, report.
//! - [`optimise`]: instructions and demonstrations of a route, searched on exams.
//! - [`simulate`]: weeks that are made up, to see what the nights make of them.
//! - [`store`]: what is kept on disk; the only user of sled.
//! - [`toolcall`]: tool calls out of the text of a reply.
//! - [`engine`]: tokens in, tokens out, in a process of its own.
//! - [`engram`]: n-grams of verified texts that are mixed into what the model says.
//! - [`gguf`]: reading and writing of model files; `quantize` rewrites them with smaller types.
//! - [`http`]: the door: OpenAI's API, event streams, limits.
//! - [`daemon`] builds all of it; [`reply`] is the life of one reply; [`keys`] says who asks.

#![forbid(unsafe_code)]

pub mod actors;
pub mod bench;
pub mod clock;
pub mod config;
pub mod daemon;
pub mod engine;
pub mod engram;
pub mod eval;
pub mod failpoint;
pub mod gguf;
pub mod http;
pub mod intent;
pub mod keys;
pub mod meters;
pub mod night;
pub mod optimise;
pub mod pipeline;
#[cfg(feature = "llama")]
pub mod quantize;
pub mod reply;
pub mod scoring;
pub mod service;
pub mod simulate;
pub mod store;
pub mod toolcall;
pub mod training;
pub mod turn;
