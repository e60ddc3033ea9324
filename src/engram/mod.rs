//! Engram: n-grams of texts that were verified, mixed into the model's own distribution while it answers.
//!
//! Tier 0 ([`filter`]) says in nanoseconds that a context is unknown, tier 1 ([`table`]) holds what followed the
//! known ones, [`blend`] makes one distribution of it. Tables are files ([`format`](mod@format)) that are written
//! once ([`draft`], [`count`]), signed and published by a rename ([`shelf`]), and never changed. [`nightly`] makes the
//! learned ones anew from the turns that may be learned from ([`learned`], [`revoked`]). [`dynamic`] is the table of
//! one request. The mixing itself is the engine's (`engine::sampler`), which alone maps files.

pub mod blend;
pub mod count;
pub mod draft;
pub mod dynamic;
pub mod filter;
pub mod format;
pub mod key;
pub mod learned;
pub mod nightly;
pub mod revoked;
pub mod shelf;
pub mod table;
#[cfg(test)]
mod tests;

pub use blend::{Lookups, Proposal, propose};
pub use draft::{Change, Draft};
pub use dynamic::Dynamic;
pub use format::{EngramError, Entry, Meta, Source};
pub use table::{Bytes, Table, View};
