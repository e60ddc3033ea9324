//! What must hold at the HTTP server for any bytes whatever: of a client in [`body`], of a model in [`stream`].

// A broken promise ends the fuzzer with its reason.
#![allow(clippy::expect_used, clippy::panic)]

pub mod body;
pub mod stream;
