//! Golden tests: logits against the reference implementation, on models with random weights, which
//! forgive nothing. Tolerances are named constants.

#![allow(clippy::unwrap_used, clippy::expect_used)]

#[cfg(feature = "llama")]
mod adapter;
#[cfg(feature = "llama")]
mod logits;
#[cfg(feature = "llama")]
mod nano;
#[cfg(feature = "llama")]
mod quantised;
#[cfg(feature = "llama")]
mod reference;
mod templates;
