//! Engram tables in the daemon; the tables themselves are the core's.
//!
//! - [`fit`]: which of them a model can use, and what to do about the others.
//! - [`shelf`]: which tables there are and who may use them.
//! - [`nightly`]: how the nights make them anew from verified turns.
//! - [`revoked`]: whose words are out for good.

pub mod fit;
#[cfg(test)]
#[path = "../../core/src/engram/fixtures.rs"]
mod fixtures;
pub mod nightly;
pub mod revoked;
pub mod shelf;
#[cfg(test)]
mod tests;

pub use chimere_core::engram::*;
