//! Engram tables in the daemon: where they stand and who may use them ([`shelf`]), how the nights make them anew from
//! verified turns ([`nightly`]), whose words are out for good ([`revoked`]). The tables themselves are the core's.

#[cfg(test)]
#[path = "../../core/src/engram/fixtures.rs"]
mod fixtures;
pub mod nightly;
pub mod revoked;
pub mod shelf;
#[cfg(test)]
mod tests;

pub use chimere_core::engram::*;
