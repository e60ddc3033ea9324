//! The libllama backend on models with random weights of several kinds: a transformer, a state-space
//! model, a hybrid with experts, and one that only embeds.

#![cfg(feature = "llama")]
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod backend;
mod embedding;
mod events;
mod judged;
mod kept;
mod models;
mod native;
mod split;
mod vocabulary;
